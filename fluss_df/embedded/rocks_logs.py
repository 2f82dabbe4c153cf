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
from fluss_df.embedded.sst_blocks import masked

_BLOCK_BYTES: Final = 32 << 10
# checksum, bytes of the content, kind; the checksum is of the kind and the content
_HEADER: Final = struct.Struct("<IHB")
_CONTENT: Final = 6
# of log files that were used again: whole records, their first, middle and last parts, and a mark
_USED_AGAIN: Final = frozenset({5, 6, 7, 8, 11})
_LOG: Final = re.compile(r"\d+\.log")


def verify_logs(folder: Path) -> None:
    """Verify the MANIFEST that is in use, and each log, of a RocksDB that nobody has open.

    Raises
    ------
    ValueError
        Where a record is damaged. An end that was not written is none: RocksDB leaves it out.
    FlussError
        Where a file cannot be opened now.
    """
    current = _bytes(folder / "CURRENT").rstrip(b"\n").decode(errors="replace")
    for name in names_in(folder):
        if name == current or _LOG.fullmatch(name):
            at = _damaged_at(_bytes(folder / name))
            if at is not None:
                # begins as RocksDB's own messages do
                raise ValueError(f"Corruption: {name} is damaged at byte {at}")


def _bytes(file: Path) -> bytes:
    try:
        return read_bytes(file) or b""
    except DamagedError as error:
        raise ValueError(f"IO error: {error}") from error


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
        if not kind and not length and data.count(0, at) == end - at:
            return None
        # other kinds that are not known here may be of a later RocksDB
        if kind in _USED_AGAIN or length > left - _HEADER.size:
            return at
        if behind > end:
            return None
        if masked(google_crc32c.value(data[at + _CONTENT : behind])) != checksum:
            return at
        at = behind
    return None
