"""How large the files of a lake's metadata become: a backup may be somebody else's, and a bomb."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from typing import Final

import pyarrow as pa

from fluss_df.engine.files.files import DamagedError
from fluss_df.record.layout.unaligned import read_varint

# of the metadata of a table, as JSON, or of a list of its files
_MOST_BYTES: Final = 256 << 20
_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_RAW_DEFLATE: Final = -15
_CODEC: Final = b"avro.codec"


def unpacked(data: bytes, below: str) -> bytes:
    """Return what was compressed by gzip.

    Raises DamagedError where it is larger than it may be. Raises OSError, EOFError, zlib.error
    where it is not what was written.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise _too_large(below)
    return text


def require_size(data: bytes, below: str) -> None:
    """Raise where the blocks of an Avro file become larger together than they may be.

    Raises DamagedError there, and where it is no Avro file.
    """
    try:
        codec, at = _header(data)
        left = _MOST_BYTES
        while at < len(data):
            _, at = _long(data, at)
            size, at = _long(data, at)
            if not 0 <= size <= len(data) - at:
                raise ValueError("a block is cut off")
            if codec != b"null":
                left -= _size(codec, data[at : at + size], left + 1)
            if left < 0:
                raise _too_large(below)
            at += size + _SYNC_BYTES
    except (ValueError, IndexError, OSError, EOFError, zlib.error) as error:
        raise DamagedError(f"{below} is damaged: {type(error).__name__}: {error}") from error


def _too_large(below: str) -> DamagedError:
    return DamagedError(f"{below} has more than {_MOST_BYTES:,} bytes unpacked")


def _header(data: bytes) -> tuple[bytes, int]:
    """Return the codec of a file, and where its first block begins."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no Avro file")
    codec, at = b"null", len(_MAGIC)
    while True:
        count, at = _long(data, at)
        if not count:
            return codec, at + _SYNC_BYTES
        if count < 0:
            # the bytes of the entries stand before them
            count, (_, at) = -count, _long(data, at)
        for _ in range(count):
            key, at = _bytes(data, at)
            value, at = _bytes(data, at)
            codec = value if key == _CODEC else codec


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("its header is cut off")
    return data[at : at + size], at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number as Avro writes it, and where it ends."""
    value, at = read_varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _size(codec: bytes, block: bytes, most: int) -> int:
    """Return how large a block becomes; no more than ``most`` of it is unpacked."""
    if codec == b"deflate":
        return len(zlib.decompressobj(_RAW_DEFLATE).decompress(block, most))
    if codec == b"bzip2":
        return len(bz2.BZ2Decompressor().decompress(block, most))
    if codec == b"zstandard":
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            return len(stream.read(most))
    # snappy's make no more than some twenty bytes of one; others are refused by who reads them
    return len(block)
