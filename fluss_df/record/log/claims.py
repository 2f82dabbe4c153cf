"""Compares the size that a compressed Arrow message claims with what it can decompress to.

Before each compressed buffer stands its size when it is decompressed, and readers allocate that.
The frames of LZ4 and Zstandard are walked from block to block without decompressing them: they
bound what comes out. A batch whose claims are false would make what is stored beside it unreadable.
"""

from __future__ import annotations

import struct
from typing import Final

from fluss_df.errors import ProtocolError
from fluss_df.record.log.cut import ArrowMessage, ColumnLayout

_SIZE: Final = struct.Struct("<q")
_NOT_COMPRESSED: Final = -1
_LZ4, _ZSTD = 0, 1
_WORD: Final = struct.Struct("<I")

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCKS: Final = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_STORED: Final = 1 << 31
# one byte of a block of LZ4 stands for at most this number of bytes
_LZ4_RATIO: Final = 255

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK: Final = 128 << 10
# a claimed size of up to this many times the compressed bytes is believed without a look at the
# blocks
_BELIEVED_RATIO: Final = 64
_ZSTD_SIZES: Final = (0, 2, 4, 8)
_ZSTD_DICTIONARIES: Final = (0, 1, 2, 4)
_RAW, _REPEATED, _COMPRESSED = 0, 1, 2


def check_claims(
    message: ArrowMessage, layout: ColumnLayout, data: memoryview, most_bytes: int
) -> None:
    """Refuse a message that becomes too large, or other than what it says.

    The message is one of that layout, which :meth:`ColumnLayout.check` has accepted. It was read
    from ``data``. Its buffers may have ``most_bytes`` together when they are decompressed.

    Raises ProtocolError, naming the field and the claim.
    """
    nodes = message.nodes
    for first in layout.nodes[:-1]:
        if nodes[first][0] != message.rows:
            raise ProtocolError(
                f"an Arrow field of {nodes[first][0]} rows in a message of {message.rows}"
            )
    codec = None if message.compression is None else message.compression[0]
    total = 0
    for (offset, length), (node, bits, more) in zip(message.buffers, layout.needs, strict=True):
        size = length
        if length and codec is not None:
            size = _claim(data, message.body + offset, length, codec)
            total += size
            if total > most_bytes:
                raise ProtocolError(
                    f"an Arrow message says that it has {total:,} bytes or more when it is"
                    f" decompressed, where {most_bytes:,} may be"
                )
        rows, nulls = nodes[node]
        if rows and size < (rows + (more > 0)) * bits + 7 >> 3:
            # a column of nulls alone needs no values, and one without nulls no validity bits
            optional = nulls == 0 if more < 0 else nulls == rows and not more
            if size or not optional:
                raise ProtocolError(
                    f"an Arrow buffer of {size} bytes, too few for the {rows} rows of its field"
                )


def _claim(data: memoryview, at: int, length: int, codec: int) -> int:
    """Return the size that a compressed buffer says; raise where it cannot have it."""
    if length < _SIZE.size:
        raise ProtocolError(f"a compressed Arrow buffer of {length} bytes")
    size = int(_SIZE.unpack_from(data, at)[0])
    if size == _NOT_COMPRESSED:
        return length - _SIZE.size
    if size == 0:
        return 0
    if size < 0:
        raise ProtocolError(f"a compressed Arrow buffer says it has {size} bytes")
    try:
        if codec == _LZ4:
            most, said = _lz4_most(data, at + _SIZE.size, at + length)
        elif codec == _ZSTD:
            if _zstd_says(data, at + _SIZE.size, length, size):
                return size
            most, said = _zstd_most(data, at + _SIZE.size, at + length)
        else:
            raise ProtocolError(f"an Arrow message of the unknown compression {codec}")
    except (IndexError, struct.error, KeyError):
        raise ProtocolError("a compressed Arrow buffer whose frame is cut off or broken") from None
    if size > most or (said is not None and size != said):
        known = most if said is None else said
        raise ProtocolError(
            f"a compressed Arrow buffer says it has {size:,} bytes, and its frame has {known:,} at"
            " the most"
        )
    return size


def _lz4_most(data: memoryview, at: int, end: int) -> tuple[int, int | None]:
    """Return how much a frame of LZ4 can become, and what it says itself."""
    flags, sizes = data[at + 4], data[at + 5]
    if _WORD.unpack_from(data, at)[0] != _LZ4_MAGIC or flags >> 6 != 1:
        raise IndexError
    block = _LZ4_BLOCKS[sizes >> 4 & 7]
    at += 6
    said = None
    if flags & 8:
        said = int.from_bytes(data[at : at + 8], "little")
        at += 8
    at += 5 if flags & 1 else 1
    checksum = 4 if flags & 16 else 0
    most = 0
    while True:
        (size,) = _WORD.unpack_from(data, at)
        at += 4
        if not size:
            break
        if size & _LZ4_STORED:
            size -= _LZ4_STORED
            most += size
        else:
            most += min(block, _LZ4_RATIO * size)
        at += size + checksum
        if at > end:
            raise IndexError
    if at > end:
        raise IndexError
    return most, said


def _zstd_says(data: memoryview, at: int, length: int, size: int) -> bool:
    """Return whether a Zstandard frame has ``size`` in its header, and the size is plausible.

    It is then small enough, compared with the frame, for a reader to allocate memory by it. The
    blocks of the frame need not be looked at: they do not tell their decompressed sizes.
    """
    # every frame that Arrow writes has all its data in one segment, and its size in 1 to 8 bytes
    flags = data[at + 4]
    if size > _BELIEVED_RATIO * length or not flags >> 5 & 1 or flags & 3:
        return False
    width = _ZSTD_SIZES[flags >> 6] or 1
    said = int.from_bytes(data[at + 5 : at + 5 + width], "little") + (256 if width == 2 else 0)
    return said == size and _WORD.unpack_from(data, at)[0] == _ZSTD_MAGIC


def _zstd_most(data: memoryview, at: int, end: int) -> tuple[int, int | None]:
    """Return how much a frame of Zstandard can become, and what it says itself."""
    if _WORD.unpack_from(data, at)[0] != _ZSTD_MAGIC:
        raise IndexError
    flags = data[at + 4]
    single = flags >> 5 & 1
    at += 5 + (not single) + _ZSTD_DICTIONARIES[flags & 3]
    width = _ZSTD_SIZES[flags >> 6] or single
    said = None
    if width:
        # a size in two bytes is counted from 256 on
        said = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
        at += width
    most = 0
    last = 0
    while not last:
        if at + 3 > end:
            raise IndexError
        head = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        at += 3
        if kind == _REPEATED:
            most += size
            at += 1
        elif kind == _RAW:
            most += size
            at += size
        elif kind == _COMPRESSED:
            most += _ZSTD_BLOCK
            at += size
        else:
            raise IndexError
    if at > end:
        raise IndexError
    return most, said
