"""Verifies the MANIFEST of a RocksDB before RocksDB reads it.

RocksDB compares the checksums of its records itself. But where a damaged record looks like one of
a recycled log file (a MANIFEST never is one), its reader can loop for ever: the call never returns,
and no other Python code of the process runs. Damaged log files do not have this effect.

The format: https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import BinaryIO, Final

import google_crc32c

_BLOCK_BYTES: Final = 32 << 10
# checksum, bytes of the content, kind; the checksum covers the kind and the content
_HEADER: Final = struct.Struct("<IHB")
_CONTENT: Final = 6
# the kinds of records in recycled log files: whole records; first, middle and last parts; a mark
_USED_AGAIN: Final = frozenset({5, 6, 7, 8, 11})
_CURRENT: Final = "CURRENT"
_NAME: Final = re.compile(r"MANIFEST-\d+")
# more bytes than the name of a MANIFEST can have
_NAME_BYTES: Final = 4096
_MASK: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a CRC-32C as RocksDB stores it."""
    return ((((crc >> 15) | (crc << 17)) & _WORD) + _MASK) & _WORD


def verify_manifest(opened: Callable[[str], BinaryIO]) -> None:
    """Verify the MANIFEST that is in use, of a RocksDB that nobody has open.

    ``opened`` opens a file of its folder for reading; what it raises is not caught.

    Raises ValueError where a record is damaged. A last record that was not written to its end is no
    damage: RocksDB leaves it out.
    """
    with opened(_CURRENT) as file:
        name = file.read(_NAME_BYTES).rstrip(b"\n").decode(errors="replace")
    # RocksDB itself refuses a name that no MANIFEST has
    if _NAME.fullmatch(name):
        with opened(name) as file:
            at = _damaged_at(file)
        if at is not None:
            # begins as RocksDB's own messages do
            raise ValueError(f"Corruption: {name} is damaged at byte {at}")


def _damaged_at(file: BinaryIO) -> int | None:
    """Return where the first damaged record begins, or None."""
    begin = 0
    zeros_from: int | None = None
    # no record goes beyond the end of a block
    while block := file.read(_BLOCK_BYTES):
        at = 0
        if zeros_from is not None and block.count(0) != len(block):
            return zeros_from
        while zeros_from is None and len(block) - at >= _HEADER.size:
            checksum, length, kind = _HEADER.unpack_from(block, at)
            behind = at + _HEADER.size + length
            if not kind and not length and block.count(0, at) == len(block) - at:
                zeros_from = begin + at
                break
            # unknown kinds may be those of a later RocksDB
            if kind in _USED_AGAIN or behind > _BLOCK_BYTES:
                return begin + at
            if behind > len(block):
                return None
            if masked(google_crc32c.value(block[at + _CONTENT : behind])) != checksum:
                return begin + at
            at = behind
        begin += len(block)
    return None
