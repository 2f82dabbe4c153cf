"""A folder knows what must be in it: what is missing, exchanged or cut off is told, or mended."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.engine import Engine
from fluss_df.engine.kv.stored_rows import stored_rows
from fluss_df.engine.log.retention import may_expire
from fluss_df.engine.log.synced_point import BucketIds, SyncedPoint, first_file
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.tables.tables import Table
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.damage import Contents, make_filled, read_all
from tests.embedded.test_damaged_rows import create, write
from tests.embedded.test_damaged_rows import frame as rows_frame
from tests.embedded.test_durability import batch, contents, opened

OPTIONS = EngineOptions(segment_bytes=2500)
LOGS = [TableBucket(0, 0), TableBucket(0, 1)]
KEYED = [TableBucket(1, 0), TableBucket(1, 1)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A folder of a log table and one with keys, two buckets each; and what is in it."""
    root = tmp_path_factory.mktemp("known")
    made = make_filled(root / "made", 1, tables={"log": None, "rows": ["n"]})
    return made.folder, made.expected


@pytest.fixture
def folder(tmp_path: Path, template: tuple[Path, Contents]) -> Path:
    shutil.copytree(template[0], tmp_path / "d")
    return tmp_path / "d"


@pytest.fixture
def expected(template: tuple[Path, Contents]) -> Contents:
    return template[1]


def bucket_folder(folder: Path, bucket: TableBucket) -> Path:
    return folder / "data" / str(bucket.table_id) / "table" / str(bucket.bucket_id)


def segments(folder: Path, bucket: TableBucket) -> list[Path]:
    return sorted((bucket_folder(folder, bucket) / "log").glob("*.log"))


def seen(folder: Path) -> Contents:
    engine = Engine(folder, OPTIONS)
    try:
        return read_all(engine)
    finally:
        engine.close()


def refused(folder: Path, expected: Contents, *buckets: TableBucket) -> list[str]:
    """Hold what is seen and what ``check`` says against what must be refused; return the errors."""
    report = check_folder(folder)
    found = seen(folder)
    names = [str(bucket_folder(folder, bucket).relative_to(folder)) for bucket in buckets]
    errors = [found.pop(name) for name in names]
    assert found == {name: value for name, value in expected.items() if name not in names}
    assert report.sound == (not buckets)
    damaged = {f.where for f in report.findings if f.level == "damage"}
    assert damaged == {bucket_folder(folder, bucket) for bucket in buckets}
    assert all(isinstance(error, str) for error in errors)
    return [str(error) for error in errors]


# ---- what is missing


def test_a_missing_first_segment(folder: Path, expected: Contents) -> None:
    segments(folder, LOGS[0])[0].unlink()
    (error,) = refused(folder, expected, LOGS[0])
    assert "offset 0" in error
    assert "is missing" in error


@pytest.mark.parametrize("bucket", [LOGS[1], KEYED[0]])
@pytest.mark.parametrize("part", [".", "log"])
def test_a_missing_folder_of_a_bucket(
    folder: Path, expected: Contents, bucket: TableBucket, part: str
) -> None:
    shutil.rmtree(bucket_folder(folder, bucket) / part)
    for _ in range(2):  # also when it was opened before
        refused(folder, expected, bucket)


def test_a_backup_of_a_folder_that_lacks_a_bucket(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(bucket_folder(folder, LOGS[0]))
    engine = Engine(folder, OPTIONS)
    try:
        with pytest.raises(FlussError, match="is missing, and rows were written to it"):
            back_up(engine, tmp_path / "b.tar.zst")
    finally:
        engine.close()


def test_a_restored_folder_knows_its_buckets(
    folder: Path, expected: Contents, tmp_path: Path
) -> None:
    engine = Engine(folder, OPTIONS)
    try:
        back_up(engine, tmp_path / "b.tar.zst")
    finally:
        engine.close()
    restore(tmp_path / "b.tar.zst", tmp_path / "again")
    assert check_folder(tmp_path / "again").findings == []
    shutil.rmtree(bucket_folder(tmp_path / "again", LOGS[0]))
    refused(tmp_path / "again", expected, LOGS[0])


def test_a_bucket_without_rows_may_be_missing(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        create(connection)
        assert engine.engine.kv_bucket(TableBucket(0, 0))[1].get([b"x"]) == [None]
    shutil.rmtree(bucket_folder(tmp_path / "d", TableBucket(0, 0)))
    assert check_folder(tmp_path / "d").findings == []
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        write(connection, rows_frame(0, 10))


def test_dropped_partitions_and_tables_are_not_missed(tmp_path: Path) -> None:
    path = fluss.TablePath("fluss", "parted")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        schema = pa.schema([("n", pa.int64()), ("day", pa.string())])
        for name in ("parted", "gone"):
            admin.create_table(
                fluss.TablePath("fluss", name),
                fluss.TableDescriptor(fluss.Schema(schema), partition_keys=["day"], bucket_count=1),
            )
            table = connection.get_table(fluss.TablePath("fluss", name))
            with table.new_append().create_writer(create_partitions=True) as writer:
                writer.write_arrow(pa.table([[1, 2], ["a", "b"]], schema=schema))
        admin.drop_partition(path, {"day": "a"})
        admin.drop_table(fluss.TablePath("fluss", "gone"))
    assert check_folder(tmp_path / "d").findings == []
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        assert fluss.scan_fluss(path, connection=connection).collect()["n"].to_list() == [2]
    assert sorted(p.name for p in (tmp_path / "d" / "catalog").glob("*.buckets")) == [
        "table-0.buckets"
    ]


@pytest.mark.parametrize("lost", ["catalog/table-0.buckets", "data/0/buckets"])
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_the_list_of_buckets_is_kept_twice(
    folder: Path, expected: Contents, lost: str, how: str
) -> None:
    whole = (folder / lost).read_bytes()
    if how == "deleted":
        (folder / lost).unlink()
    else:
        (folder / lost).write_bytes(b"\1" + whole[1:])
    refused(folder, expected)
    assert (folder / lost).read_bytes() == whole
    shutil.rmtree(bucket_folder(folder, LOGS[1]))
    refused(folder, expected, LOGS[1])


# ---- what is exchanged


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


@pytest.mark.parametrize("part", ["", "log"])
def test_exchanged_folders_of_buckets(folder: Path, expected: Contents, part: str) -> None:
    exchange(*(bucket_folder(folder, bucket) / part for bucket in LOGS))
    errors = refused(folder, expected, *LOGS)
    assert "has that of bucket 1 (table 0): folders were exchanged" in errors[0]
    exchange(*(bucket_folder(folder, bucket) / part for bucket in LOGS))
    refused(folder, expected)


@pytest.mark.parametrize("name", ["kv", "log/synced"])
def test_exchanged_files_that_can_be_made_again(
    folder: Path, expected: Contents, name: str
) -> None:
    exchange(*(bucket_folder(folder, bucket) / name for bucket in KEYED))
    refused(folder, expected)
    assert check_folder(folder).findings == []


def log_of(folder: Path, number: int) -> Tablet:
    owner = BucketIds(0, -1, number)
    return Tablet(folder / str(number), "bucket", segment_bytes=300, owner=owner)


def read_log(folder: Path, number: int) -> None:
    tablet = log_of(folder, number)
    try:
        contents(tablet)
    finally:
        tablet.abandon()


@pytest.mark.parametrize("index", [True, False], ids=["closed", "killed"])
def test_exchanged_segments(tmp_path: Path, index: bool) -> None:
    """Each batch has offsets and a checksum that are right, in files of one size or of two."""
    for size in (0, 5):
        folder = tmp_path / str(size)
        for number in range(2):
            tablet = log_of(folder, number)
            for i in range(6):
                rows = pa.record_batch({"a": pa.array([f"{number}{i}" + "x" * size * number])})
                encoded = encode_log_batch(rows, schema_id=1, compression=Compression("none"))
                encoded.stamp(-1, -1)
                tablet.append(memoryview(encoded.to_bytes()), {1: None})
            tablet.sync()
            tablet.close() if index else tablet.abandon()
        logs = [sorted((folder / str(number)).glob("*.log")) for number in range(2)]
        assert [file.name for file in logs[0]] == [file.name for file in logs[1]]
        for one, other in zip(*logs, strict=True):
            exchange(one, other)
            for number in range(2):
                with pytest.raises(FlussError, match="damaged"):
                    read_log(folder, number)
            exchange(one, other)


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


# ---- retention


def expire(folder: Path, bucket: TableBucket, now: int, ttl: int) -> int:
    engine = Engine(folder, OPTIONS)
    try:
        return engine.bucket(bucket)[1].expire(now, ttl)
    finally:
        engine.close()


def test_where_a_log_begins_outlives_one_file(folder: Path, tmp_path: Path) -> None:
    log = bucket_folder(folder, LOGS[0]) / "log"
    older = (log / "synced").read_bytes()
    assert expire(folder, LOGS[0], time.time_ns() // 1_000_000 + 10_000, 1000)
    expected = seen(folder)
    newer = (log / "synced").read_bytes()
    start = (log / "start").read_bytes()
    for content in (older, b"", None):
        (log / "synced").write_bytes(content) if content is not None else (log / "synced").unlink()
        refused(folder, expected)
    (log / "synced").write_bytes(newer)
    for content in (b"", start[:-1] + bytes([start[-1] ^ 1]), None):
        (log / "start").write_bytes(content) if content is not None else (log / "start").unlink()
        refused(folder, expected)
        assert (log / "start").read_bytes() == start
    (log / "synced").unlink()
    segments(folder, LOGS[0])[0].unlink()
    refused(folder, expected, LOGS[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of writers and files to some days from now."""
    real, write_ = time.time_ns, os.pwritev
    ahead = 0

    def pwritev(fd: int, parts: Any, at: int) -> int:
        count = write_(fd, parts, at)
        now = real() + ahead
        os.utime(fd, ns=(now, now))
        return count

    def set_to(days: float) -> None:
        nonlocal ahead
        ahead = int(days * DAY_NS)

    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    monkeypatch.setattr(os, "pwritev", pwritev)
    return set_to


DAY_NS = 24 * 3600 * 1_000_000_000
DAY = DAY_NS // 1_000_000
TTL = 7 * DAY


def days_from_now(days: float) -> int:
    return time.time_ns() // 1_000_000 + int(days * DAY)


def test_a_clock_that_was_ahead_once(tmp_path: Path, clock: Callable[[float], None]) -> None:
    tablet = opened(tmp_path / "log", 300)
    clock(20_000)  # 2081
    for _ in range(6):
        tablet.append(batch(), {1: None})
    clock(0)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    tablet.close()
    begun = len(list((tmp_path / "log").glob("*.log")))
    assert begun > 5
    tablet = opened(tmp_path / "log", 300)
    # nothing is older than a week, as far as is known
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(6)
    assert tablet.expire(days_from_now(0), TTL) == 0
    # a week later all of it is, also for an engine that was opened again
    tablet.close()
    clock(8)
    tablet = opened(tmp_path / "log", 300)
    assert tablet.expire(days_from_now(0), TTL) == begun - 1
    tablet.close()


def test_an_unused_bucket_of_a_clock_that_was_ahead(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    clock(20_000)
    tablet = opened(tmp_path / "log", 300)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    tablet.close()
    clock(0)
    assert not may_expire(tmp_path / "log", days_from_now(0), TTL)
    assert may_expire(tmp_path / "log", days_from_now(8), TTL)


def test_a_clock_that_goes_back(tmp_path: Path, clock: Callable[[float], None]) -> None:
    """Nothing expires by it, neither while it is behind nor when it is right again."""
    tablet = opened(tmp_path / "log", 300)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    clock(-15_000)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(1)
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(8)
    files = len(list((tmp_path / "log").glob("*.log")))
    assert tablet.expire(days_from_now(0), TTL) == files - 1 > 3
    tablet.close()


# ---- files that are cut while they are open


@pytest.mark.parametrize("use", ["read", "filter", "time"])
def test_a_file_that_is_cut_while_it_is_open(folder: Path, use: str) -> None:
    """It does not end the process."""
    program = """
import os, sys
from pathlib import Path
sys.path.insert(0, ".")
from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.errors import FlussError
from fluss_df.engine.log.tablet import Tablet
from fluss_df.metadata import TableBucket
from fluss_df.record.log.log_batch import Compression, encode_log_batch
engine = Engine(Path(sys.argv[1]), EngineOptions(segment_bytes=2500))
tablet = engine.bucket(TableBucket(0, 0))[1]
uses = {
    "read": lambda: tablet.read(0, 1 << 20, at_least_one=True),
    "filter": lambda: tablet.stretches(0)[1][0].view[-1],
    "time": lambda: tablet.offset_for_time(1),
}
use = uses[sys.argv[2]]
use()
os.truncate(tablet._segments[0].path, 0)
try:
    use()
except FlussError as error:
    print(error.error_code, error.message)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder), use],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run
    assert run.stdout.startswith(f"{ErrorCode.UNKNOWN_SERVER_ERROR} the log of TableBucket")
    assert "it was cut while it was open" in run.stdout


# ---- a bucket that is written to while its table is dropped


def make_table(engine: Engine, name: str = "t") -> Table:
    schema = fluss.Schema(pa.schema([("n", pa.int32())]))
    descriptor = fluss.TableDescriptor(schema, bucket_count=1)
    path = fluss.TablePath("fluss", name)
    table = engine.catalog.create_table(path, descriptor.to_json(), False)
    assert table is not None
    return table


def drop(engine: Engine, table: Table) -> None:
    engine.catalog.drop_table(table.path, False)
    engine.drop_table(table)


def lists(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "catalog").glob("*.buckets"))


def test_a_bucket_of_a_dropped_table_is_not_noted(tmp_path: Path) -> None:
    """A bucket may be opened in the moment in which its table is dropped."""
    engine = Engine(tmp_path / "d")
    table, kept = make_table(engine), make_table(engine, "kept")
    opened = engine._open_bucket(TableBucket(table.id, 0))
    drop(engine, table)
    with pytest.raises(FlussError, match="Unknown table or bucket") as caught:
        opened.tablet.append(batch(), {1: None})
    assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    opened.abandon()
    engine.bucket(TableBucket(kept.id, 0))[1].append(batch(), {1: None})
    assert lists(tmp_path / "d") == [f"table-{kept.id}.buckets"]
    engine.close()


def test_notes_beside_drops_leave_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "d")
    for number in range(40):
        table = make_table(engine, f"t{number}")
        begin = threading.Barrier(3)

        def note(table: Table = table, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for bucket in range(5):
                with contextlib.suppress(FlussError):
                    engine._used.note(BucketIds(table.id, -1, bucket))

        threads = [threading.Thread(target=note) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        time.sleep(number / 10_000)
        drop(engine, table)
        for thread in threads:
            thread.join()
        assert lists(tmp_path / "d") == []
    engine.close()


def test_a_list_of_buckets_without_a_table_is_set_aside(folder: Path, expected: Contents) -> None:
    """As all that may be left of a table is."""
    data = (folder / "catalog" / "table-0.buckets").read_bytes()
    (folder / "catalog" / "table-77.buckets").write_bytes(data)
    report = check_folder(folder)
    assert report.sound
    assert [f.where.name for f in report.findings] == ["table-77.buckets"]
    assert seen(folder) == expected
    assert lists(folder) == ["table-0.buckets", "table-1.buckets"]
    assert [p.read_bytes() for p in (folder / "set-aside").iterdir()] == [data]
