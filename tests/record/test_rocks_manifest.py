"""The MANIFEST of a RocksDB, verified before RocksDB reads it."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pytest

from fluss_df.record.kv.rocks_manifest import verify_manifest


def verify(folder: Path) -> None:
    verify_manifest(lambda name: (folder / name).open("rb"))


def record(content: bytes, kind: int = 1) -> bytes:
    crc = google_crc32c.value(bytes([kind]) + content)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(content), kind) + content


def test_records_of_a_manifest(tmp_path: Path) -> None:
    file = tmp_path / "MANIFEST-000001"
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    # RocksDB left it behind, and does not read it
    (tmp_path / "MANIFEST-000000").write_bytes(b"none of a MANIFEST")
    whole = record(b"one") + record(b"two" * 100)
    # a record of many blocks, and zeros where a block has no room for a header
    parts = record(bytes(32_768 - 7), 2) + record(bytes(32_768 - 7 - 6), 3) + bytes(6)
    large = parts + record(b"end", 4)
    # of a kind that this version does not know
    later = whole + record(b"later", 130)
    for sound in (b"", whole, large, whole[:-1], whole + b"\1", whole + bytes(5_000_000), later):
        file.write_bytes(sound)
        verify(tmp_path)
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        # a length beyond the end is that of a record which was not written to its end
        if at in (5, 15):
            continue
        with pytest.raises(ValueError, match=r"Corruption: MANIFEST-000001 is damaged at byte \d+"):
            verify(tmp_path)
    file.write_bytes(large[:-1] + b"!")
    with pytest.raises(ValueError, match="byte 65536"):
        verify(tmp_path)
    file.write_bytes(whole + bytes(100_000) + b"!")
    with pytest.raises(ValueError, match=f"byte {len(whole)}"):
        verify(tmp_path)


def test_a_record_may_begin_with_a_part_of_no_bytes_at_the_end_of_a_block(tmp_path: Path) -> None:
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    file = tmp_path / "MANIFEST-000001"
    first = record(b"", 2)
    filled = record(bytes(32_768 - 7 - len(first)))
    file.write_bytes(filled + first + record(b"end", 4))
    verify(tmp_path)
    # it is looked at, too
    file.write_bytes(filled + bytes([first[0] ^ 1]) + first[1:] + record(b"end", 4))
    with pytest.raises(ValueError, match=f"byte {len(filled)}"):
        verify(tmp_path)
