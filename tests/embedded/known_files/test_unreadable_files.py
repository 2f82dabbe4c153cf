"""Files that are damaged or cut off are told, or made again from what is whole."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.kv.stored_rows import stored_rows
from fluss_df.engine.log.synced_point import BucketIds, SyncedPoint, first_file
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from tests.embedded.damage import Contents
from tests.embedded.known_files.folders import (
    KEYED,
    LOGS,
    OPTIONS,
    bucket_folder,
    refused,
    seen,
    segments,
)
from tests.embedded.test_damaged_rows import create, write
from tests.embedded.test_damaged_rows import frame as rows_frame
from tests.embedded.test_durability import batch, opened

# ---- what cannot be read


def no_index(folder: Path, bucket: TableBucket) -> None:
    for index in (bucket_folder(folder, bucket) / "log").glob("*.index"):
        index.unlink()


@pytest.mark.parametrize("content", [None, b"", b"noise" * 30, b"FDFSYNC2" + bytes(300)])
def test_a_lost_point_is_made_again(
    folder: Path, expected: Contents, content: bytes | None
) -> None:
    file = bucket_folder(folder, LOGS[0]) / "log" / "synced"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    refused(folder, expected)
    assert check_folder(folder).findings == []


def test_a_lost_point_and_a_bad_batch_is_no_torn_tail(folder: Path, expected: Contents) -> None:
    no_index(folder, LOGS[0])
    last = segments(folder, LOGS[0])[-1]
    data = last.read_bytes()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (bucket_folder(folder, LOGS[0]) / "log" / "synced").write_bytes(b"torn")
    damaged = last.read_bytes()
    (error,) = refused(folder, expected, LOGS[0])
    assert "a batch is damaged, and" in error
    assert last.read_bytes() == damaged


def test_one_of_two_slots(folder: Path, expected: Contents) -> None:
    """A loss of power writes one of them in part at the most: the other one has a point."""
    file = bucket_folder(folder, LOGS[0]) / "log" / "synced"
    good = file.read_bytes()
    for slot in (0, 512):
        data = bytearray(good)
        data[slot + 40] ^= 1
        file.write_bytes(bytes(data))
        refused(folder, expected)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"{}", bytes(100)])
def test_an_index_that_lost_its_bytes(folder: Path, expected: Contents, content: bytes) -> None:
    for index in folder.rglob("*.index"):
        index.write_bytes(content)
    refused(folder, expected)
    # it is there again, also of segments that are not written to any more
    kept = list(folder.rglob("*.index"))
    assert len(kept) == sum(len(segments(folder, bucket)) for bucket in LOGS + KEYED)
    assert all(index.stat().st_size > 100 for index in kept)


@pytest.mark.parametrize("index", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("which", [0, -1], ids=["first segment", "last segment"])
@pytest.mark.parametrize("field", ["timestamp", "base offset", "last offset"])
def test_headers_that_are_damaged(
    folder: Path, expected: Contents, index: bool, which: int, field: str
) -> None:
    file = segments(folder, LOGS[0])[which]
    if not index and which:
        no_index(folder, LOGS[0])
    data = bytearray(file.read_bytes())
    last, at = 0, 0
    while at < len(data):
        last, at = at, at + 12 + struct.unpack_from("<i", data, at + 8)[0]
    # a batch of more rows ends behind what readers see
    data[last + {"timestamp": 14, "base offset": 1, "last offset": 30}[field]] ^= 1
    file.write_bytes(bytes(data))
    refused(folder, expected, LOGS[0])


def test_a_search_for_a_time_sees_damage(folder: Path, expected: Contents) -> None:
    file = segments(folder, LOGS[0])[0]
    data = bytearray(file.read_bytes())
    times = struct.unpack_from("<q", data, 13)[0]
    struct.pack_into("<q", data, 13, times - 3_600_000)
    file.write_bytes(bytes(data))
    engine = Engine(folder, OPTIONS)
    try:
        with pytest.raises(FlussError, match="headers of batches") as raised:
            engine.bucket(LOGS[0])[1].offset_for_time(times - 3_600_000)
        assert raised.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    finally:
        engine.close()


def test_bytes_behind_a_whole_segment_are_no_loss(folder: Path, expected: Contents) -> None:
    for file in segments(folder, LOGS[0]):
        with open(file, "ab") as stream:
            stream.write(b"noise")
    refused(folder, expected)
    assert check_folder(folder).findings == []


def test_a_damaged_segment_before_a_point_that_is_old(folder: Path, expected: Contents) -> None:
    """A loss of power may leave an old point; a segment is whole once there is another one."""
    first, second = segments(folder, LOGS[0])[:2]
    no_index(folder, LOGS[0])
    early = SyncedPoint(BucketIds(0, -1, 0), 0, 0, 0, 0, 0)
    point = bucket_folder(folder, LOGS[0]) / "log" / "synced"
    point.write_bytes(first_file(early))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(bytes(data))
    refused(folder, expected, LOGS[0])
    assert second.exists()


def test_many_small_batches_before_a_bad_one(tmp_path: Path) -> None:
    """They are not verified again for each other."""
    folder = tmp_path / "log"
    tablet = opened(folder)
    for _ in range(40):
        tablet.append(memoryview(bytes(batch()) * 1000), {1: None})
    tablet.close()
    for index in folder.glob("*.index"):
        index.unlink()
    file = next(folder.glob("*.log"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    # of this process: others may have the machine
    began = time.process_time()
    with pytest.raises(FlussError, match="offset 119997, below what was acknowledged"):
        opened(folder)
    assert time.process_time() - began < 2


# ---- the version, and rows


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"format": 2, "kind": "fluss_df embedd"}', b"\xff\xfe", b"[3]"]
)
def test_a_damaged_version(folder: Path, expected: Contents, content: bytes) -> None:
    whole = (folder / "FORMAT").read_bytes()
    (folder / "FORMAT").write_bytes(content)
    assert [f.level for f in check_folder(folder).findings] == ["note"]
    assert seen(folder) == expected
    assert (folder / "FORMAT").read_bytes() == whole


def test_each_digit_of_the_version(folder: Path, expected: Contents) -> None:
    whole = (folder / "FORMAT").read_bytes()
    for digit in b"0123456789":
        (folder / "FORMAT").write_bytes(whole.replace(b": 3", b": %c" % digit))
        refused(folder, expected)


def test_check_sees_every_byte_of_rows(tmp_path: Path) -> None:
    """Whichever file it is in, and also where RocksDB reads on without a word."""
    folder = tmp_path / "d"
    for first in (0, 1000, 2000):
        with EmbeddedFluss(folder) as engine, engine.connection() as connection:
            if not first:
                create(connection)
            write(connection, rows_frame(first, 1000))
    files = sorted(folder.rglob("*.sst"))
    assert len(files) >= 3
    choose = random.Random(1)
    for file in files:
        good = file.read_bytes()
        # filter, properties, index and footer are at the end
        places = [choose.randrange(len(good)) for _ in range(10)]
        places += range(len(good) - 2800, len(good), 90)
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << choose.randrange(8)
            file.write_bytes(bytes(bad))
            with pytest.raises(FlussError):
                list(stored_rows(file.parent))
        file.write_bytes(good)
    list(stored_rows(files[0].parent))
