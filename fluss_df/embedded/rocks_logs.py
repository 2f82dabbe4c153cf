"""Verifies the MANIFEST and the logs of a RocksDB before RocksDB reads them.

RocksDB compares the checksums of their records itself. But where a record seems to be one of a log
file that was used again, which the engine never writes, its reader can come to the same place again
and again: it never returns, and no other Python code of the process runs.

The format: https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

import google_crc32c

from fluss_df.embedded.files import DamagedError, names_in, read_bytes

_BLOCK_BYTES: Final = 32 << 10
# checksum, bytes of the content, kind; the checksum is of the kind and the content
_HEADER: Final = struct.Struct("<IHB")
_CONTENT: Final = 6
# whole records, and their first, middle and last parts
_KINDS: Final = range(1, 5)
_MASK: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF
_READ_FIRST: Final = re.compile(r"MANIFEST-\d+|\d+\.log")


def verify_logs(folder: Path) -> None:
    """Verify each MANIFEST and each log of a RocksDB that nobody has open.

    Raises
    ------
    ValueError
        Where a record is damaged. An end that was not written is none: RocksDB leaves it out.
    FlussError
        Where a file cannot be opened now.
    """
    for name in names_in(folder):
        if _READ_FIRST.fullmatch(name):
            # errors begin as RocksDB's own do
            try:
                at = _damaged_at(read_bytes(folder / name) or b"")
            except DamagedError as error:
                raise ValueError(f"IO error: {error}") from error
            if at is not None:
                raise ValueError(f"Corruption: {name} is damaged at byte {at}")


def _damaged_at(data: bytes) -> int | None:
    """Return where the first damaged record begins, or None."""
    at, end = 0, len(data)
    while at < end:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            # too short for a record: filled up with zeros
            at += left
            continue
        if end - at < _HEADER.size:
            return None
        checksum, length, kind = _HEADER.unpack_from(data, at)
        behind = at + _HEADER.size + length
        if not kind and not length and not any(data[at:]):
            return None
        if kind not in _KINDS or length > left - _HEADER.size:
            return at
        if behind > end:
            return None
        if _masked(google_crc32c.value(data[at + _CONTENT : behind])) != checksum:
            return at
        at = behind
    return None


def _masked(crc: int) -> int:
    return ((((crc >> 15) | (crc << 17)) & _WORD) + _MASK) & _WORD
