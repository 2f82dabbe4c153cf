"""Verifies the blocks of an SST file that RocksDB does not need, and so does not complain about.

Reading all rows compares the checksums of the blocks of rows and of their index. The filter is
another block: RocksDB reads on without one that is damaged, only slower. What is verified here is
the metaindex (the list of such blocks, which stands before the footer) and each block in it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import google_crc32c

from fluss_df.engine.files.files import disk_refused
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.rocks_manifest import masked
from fluss_df.record.layout.unaligned import read_varint

_FOOTER_BYTES: Final = 53
_MAGIC: Final = 0x88E241B785F4CFF7
# RocksDB's footer of format 6: checksum type, extended magic, footer checksum, base context
# checksum, size of the metaindex, padding, format version, magic
_FOOTER: Final = struct.Struct("<B4sIII24xIQ")
_CRC32C: Final = 1
_FIRST_WITH_CONTEXT: Final = 6
_TRAILER: Final = struct.Struct("<BI")
_WORD: Final = 0xFFFFFFFF


def verify_other_blocks(file: Path) -> None:
    """Verify the blocks of a file that reading its rows leaves out.

    Files of earlier formats, which have another kind of checksum, are passed over.

    Raises ``KV_STORAGE_EXCEPTION`` where one is damaged.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise disk_refused(f"cannot read {file}", file.parent, error) from error
    try:
        with os.fdopen(fd, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - _FOOTER_BYTES))
            kind, _, _, base, listed, version, magic = _FOOTER.unpack(stream.read())
            if magic != _MAGIC or kind != _CRC32C or version < _FIRST_WITH_CONTEXT:
                return
            at = size - _FOOTER_BYTES - listed - _TRAILER.size

            def block(start: int, length: int) -> bytes:
                stream.seek(start)
                data = stream.read(length + _TRAILER.size)
                if len(data) != length + _TRAILER.size or not _sound(data, base, start):
                    raise ValueError(f"the block at byte {start} is damaged")
                return data[:length]

            for start, length in _handles(block(at, listed)):
                block(start, length)
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise FlussError(f"{file}: {error}", ErrorCode.KV_STORAGE_EXCEPTION) from error


def _sound(block: bytes, base: int, start: int) -> bool:
    """Whether a block with its trailer has the checksum that the trailer says."""
    checksum = masked(google_crc32c.value(block[:-4]))
    if base:
        # the block's offset in the file is part of its checksum, so exchanged blocks are found
        checksum += base ^ ((start & _WORD) + (start >> 32))
    return bool(checksum & _WORD == _TRAILER.unpack(block[-5:])[1])


def _handles(block: bytes) -> list[tuple[int, int]]:
    """Return where the blocks of a metaindex begin, and how many bytes each has."""
    restarts = struct.unpack_from("<I", block, len(block) - 4)[0] & 0x7FFFFFFF
    end = len(block) - 4 - 4 * restarts
    at, found = 0, []
    while at < end:
        _, at = read_varint(block, at)  # how many bytes the key shares with the previous one
        own, at = read_varint(block, at)
        value, at = read_varint(block, at)
        at += own
        start, place = read_varint(block, at)
        length, _ = read_varint(block, place)
        found.append((start, length))
        at += value
    return found
