"""What is on the disk after crashes and damage."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.files import files
from fluss_df.engine.log import tablet as tablet_module
from fluss_df.engine.log.tablet import Tablet
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.log.cut import ColumnLayout
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.crashing import campaign

NAME = "TableBucket{tableId=1, bucket=0}"


def batch(rows: int = 3, writer: int = -1, sequence: int = -1) -> memoryview:
    data = pa.record_batch({"a": pa.array(range(rows), pa.int32())})
    encoded = encode_log_batch(data, schema_id=1, compression=Compression("none"))
    encoded.stamp(writer, sequence)
    return memoryview(encoded.to_bytes())


def opened(folder: Path, segment_bytes: int = 1 << 30) -> Tablet:
    return Tablet(folder, NAME, segment_bytes=segment_bytes)


def contents(tablet: Tablet) -> bytes:
    data = b""
    offset = tablet.start_offset
    while offset < tablet.high_watermark:
        piece = tablet.read(offset, 1 << 20, at_least_one=True)
        assert piece is not None
        data += bytes(piece.data)
        assert piece.headers.end_offset is not None
        offset = piece.headers.end_offset
    return data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def filled(folder: Path, batches: int, segment_bytes: int = 1 << 30) -> bytes:
    tablet = opened(folder, segment_bytes)
    for i in range(batches):
        tablet.append(batch(writer=7, sequence=i), {1: None})
    tablet.sync()
    data = contents(tablet)
    tablet.close()
    return data


def test_killed_engines_lose_nothing(tmp_path: Path) -> None:
    written = campaign(tmp_path / "data", 5, seed=1)
    assert written.log > 0
    assert written.rows > 0


@pytest.mark.parametrize("cut", range(1, 296, 37))
def test_a_torn_tail_is_cut(folder: Path, cut: int) -> None:
    tablet = opened(folder)
    for i in range(3):
        tablet.append(batch(writer=7, sequence=i), {1: None})
    tablet.sync()
    whole = contents(tablet)
    tablet.append(batch(writer=7, sequence=3), {1: None})
    tablet.abandon()
    file = folder / f"{0:020}.log"
    os.truncate(file, len(whole) + cut % (file.stat().st_size - len(whole)))
    again = opened(folder)
    assert contents(again) == whole
    # the writer of what was lost writes it again
    assert again.append(batch(writer=7, sequence=3), {1: None}).base_offset == 9
    again.close()


def test_zeros_and_garbage_behind_the_log_are_cut(folder: Path) -> None:
    whole = filled(folder, 4)
    file = folder / f"{0:020}.log"
    for tail in (bytes(4096), os.urandom(500), whole[:100]):
        with open(file, "ab") as stream:
            stream.write(tail)
        tablet = opened(folder)
        assert contents(tablet) == whole
        tablet.abandon()


def open_and_read(folder: Path) -> bytes:
    tablet = opened(folder)
    try:
        return contents(tablet)
    finally:
        tablet.abandon()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_flipped_bit_is_refused_loudly(folder: Path, closed: bool) -> None:
    whole = filled(folder, 4)
    if not closed:
        # a killed process leaves no index: the log is read when it is opened
        (folder / f"{0:020}.index").unlink()
    file = folder / f"{0:020}.log"
    place = len(whole) // 4 + 60  # in the second batch
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(bytes(data))
    with pytest.raises(FlussError, match=r"damaged .*offset 3") as caught:
        open_and_read(folder)
    assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert NAME in caught.value.message
    assert file.read_bytes() == bytes(data)


def test_a_log_shorter_than_what_was_acknowledged_is_refused(folder: Path) -> None:
    whole = filled(folder, 4)
    os.truncate(folder / f"{0:020}.log", len(whole) // 2)
    with pytest.raises(FlussError, match="below what was acknowledged"):
        opened(folder)


def test_a_missing_segment_is_refused(folder: Path) -> None:
    filled(folder, 10, segment_bytes=300)
    names = sorted(path for path in folder.glob("*.log"))
    assert len(names) > 3
    names[1].unlink()
    with pytest.raises(FlussError, match="a segment is missing"):
        opened(folder)


def test_segments_and_writers_are_the_same_after_reopening(folder: Path) -> None:
    whole = filled(folder, 10, segment_bytes=300)
    for keep in (True, False):
        if not keep:
            for index in folder.glob("*.index"):
                index.unlink()
        tablet = opened(folder, 300)
        assert contents(tablet) == whole
        assert tablet.append(batch(writer=7, sequence=9), {1: None}).base_offset == 27
        assert tablet.append(batch(writer=7, sequence=5), {1: None}).base_offset == 15
        with pytest.raises(FlussError) as caught:
            tablet.append(batch(writer=7, sequence=11), {1: None})
        assert caught.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        tablet.close()


def test_a_damaged_index_is_made_again(folder: Path) -> None:
    whole = filled(folder, 10, segment_bytes=300)
    for index in folder.glob("*.index"):
        data = bytearray(index.read_bytes())
        data[len(data) // 2] ^= 1
        index.write_bytes(bytes(data))
    tablet = opened(folder, 300)
    assert contents(tablet) == whole
    tablet.close()


def test_a_failed_sync_ends_writing_and_not_reading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablet = opened(folder)
    tablet.append(batch(), {1: None})
    tablet.sync()
    whole = contents(tablet)
    tablet.append(batch(), {1: None})

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(tablet_module, "sync_data", fail)
        with pytest.raises(FlussError, match="cannot sync"):
            tablet.sync()
    # the disk works again, and still nothing is acknowledged: what it holds is not known
    with pytest.raises(FlussError, match="takes no more writes"):
        tablet.append(batch(), {1: None})
    assert contents(tablet) == whole
    tablet.abandon()


def test_a_full_disk_refuses_the_write_and_keeps_the_log(folder: Path) -> None:
    whole = filled(folder, 4)
    script = f"""
import resource, signal, sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.embedded.test_durability import batch, contents, opened
from fluss_df.errors import ErrorCode, FlussError
tablet = opened(Path({str(folder)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(whole)} + 100, resource.RLIM_INFINITY))
try:
    tablet.append(batch(), {{1: None}})
except FlussError as error:
    # clients do not try again with it
    assert error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, error
    assert {str(folder)!r} in str(error)
else:
    raise SystemExit("the write was not refused")
assert len(contents(tablet)) == {len(whole)}
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert tablet.append(batch(), {{1: None}}).base_offset == 12
tablet.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    tablet = opened(folder)
    assert contents(tablet)[: len(whole)] == whole
    assert tablet.end_offset == 15
    tablet.abandon()


@pytest.mark.parametrize("way", ["in process", "tcp"])
def test_a_full_disk_is_told_at_once_and_the_engine_goes_on(tmp_path: Path, way: str) -> None:
    script = f"""
import resource, signal, sys, time
import pyarrow as pa
import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
folder = {str(tmp_path / "data")!r}
names = [fluss.TablePath("fluss", "logged"), fluss.TablePath("fluss", "keyed")]

def frame(start):
    return pa.table({{"id": range(start, start + 1000)}})

def write(path, start):
    table = connection.get_table(path)
    builder = table.new_append() if path is names[0] else table.new_upsert()
    with builder.create_writer() as writer:
        writer.write_arrow(frame(start))

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with EmbeddedFluss(folder, port=0) as engine:
    with fluss.connect(folder if {way!r} == "in process" else engine.address) as connection:
        admin = connection.get_admin()
        for path, keys in zip(names, [None, ["id"]]):
            schema = fluss.Schema(pa.schema([("id", pa.int64())]), keys)
            admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            write(path, 0)
        limit(1)
        for work in (*(lambda p=p: write(p, 1000) for p in names),
                     lambda: admin.create_database("more")):
            began = time.monotonic()
            try:
                work()
            except fluss.FlussError as error:
                assert folder in str(error) and "make room" in str(error), error
            else:
                raise SystemExit("the write was not refused")
            # what is tried again is so for two minutes
            assert time.monotonic() - began < 60
        bucket = fluss.TableBucket(connection.get_table(names[1]).get_table_info().table_id, 0)
        try:
            # after which RocksDB takes no more writes
            engine.engine.kv_bucket(bucket)[1].flush()
        except fluss.FlussError as error:
            assert "make room" in str(error), error
        else:
            raise SystemExit("the flush was not refused")
        assert fluss.scan_fluss(names[0], connection=connection).collect().height == 1000
        assert connection.get_table(names[1]).new_lookup().create_lookuper().lookup([7])
        limit(resource.RLIM_INFINITY)
        for path in names:
            write(path, 1000)
with fluss.connect(folder) as connection:
    for path in names:
        found = fluss.scan_fluss(path, connection=connection).collect()
        assert sorted(found["id"].to_list()) == list(range(2000)), found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_time_never_runs_backwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = opened(folder)
    tablet.append(batch(), {1: None})
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    tablet.append(batch(), {1: None})
    tablet.sync()
    piece = tablet.read(0, 1 << 20, at_least_one=True)
    assert piece is not None
    first, second = piece.headers.timestamp.tolist()
    assert second >= first > 1_000_000
    tablet.abandon()


def test_old_segments_expire_and_the_active_one_stays(folder: Path) -> None:
    filled(folder, 10, segment_bytes=300)
    tablet = opened(folder, 300)
    later = time.time_ns() // 1_000_000 + 10_000
    assert tablet.expire(later, 60_000) == 0
    assert tablet.expire(later, 1_000) > 0
    assert 0 < tablet.start_offset < tablet.end_offset == 30
    with pytest.raises(FlussError) as caught:
        tablet.read(0, 100, at_least_one=True)
    assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    tablet.close()
    again = opened(folder, 300)
    assert again.start_offset == tablet.start_offset
    again.abandon()


def refusal(tablet: Tablet, data: bytearray, layouts: dict[int, ColumnLayout]) -> int | None:
    try:
        tablet.append(memoryview(data), layouts)
    except FlussError as error:
        return error.error_code
    return None


def test_a_batch_with_a_hostile_body_is_refused(folder: Path) -> None:
    layouts = {1: ColumnLayout(pa.schema([("a", pa.int32())]))}
    tablet = opened(folder)
    good = batch()
    assert tablet.append(good, layouts).base_offset == 0
    for at in range(48, len(good) - 8):
        data = bytearray(good)
        data[at] ^= 0xFF
        struct.pack_into("<I", data, 21, google_crc32c.value(bytes(data[25:])))
        problem = refusal(tablet, data, layouts)
        # what cannot be told from good is read as it is by clients, who check it again
        assert problem in (None, ErrorCode.CORRUPT_RECORD_EXCEPTION)
    tablet.abandon()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path / "d") as engine:
        with pytest.raises(FlussError, match=f"in use by process {os.getpid()}"):
            EmbeddedFluss(tmp_path / "d")
        assert not engine.closed
    EmbeddedFluss(tmp_path / "d").close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FlussError, match="holds other files"):
        EmbeddedFluss(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    EmbeddedFluss(tmp_path / "d").close()
    (tmp_path / "d" / "FORMAT").write_text('{"format": 99}')
    with pytest.raises(FlussError, match="storage format 99"):
        EmbeddedFluss(tmp_path / "d")


def test_durability_has_three_levels() -> None:
    with pytest.raises(FlussError, match="'commit', 'interval' or 'none'"):
        EngineOptions(durability="maybe")  # type: ignore[arg-type]


def test_last_records_are_not_read_on_where_there_is_no_room(folder: Path) -> None:
    filled(folder, 40, segment_bytes=300)
    tablet = opened(folder, 300)
    taken: list[int] = []

    def take(size: int) -> None:
        taken.append(size)
        if len(taken) == 3:
            raise FlussError("no room")

    with pytest.raises(FlussError, match="no room"):
        tablet.last_records(2**31 - 1, take)
    assert len(taken) == 3
    assert sum(len(piece.data) for piece in tablet.last_records(5, lambda _: None)) > 0
    tablet.close()


# ---- other systems


def test_macos_writes_through_the_cache_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There fsync leaves bytes in it: a system without fdatasync is asked for more, if it can."""
    asked: list[tuple[str, int, int]] = []
    system = types.SimpleNamespace(F_FULLFSYNC=51)
    system.fcntl = lambda fd, command: asked.append(("fcntl", os.fstat(fd).st_ino, command))
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(files, "file_locks", lambda: system)
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append(("fsync", os.fstat(fd).st_ino, 0)))
    path = tmp_path / "record"
    files.add_record(path, b"first", 0, durable=False)
    assert asked == []
    files.add_record(path, b"second", 5, durable=True)
    assert asked == [("fcntl", path.stat().st_ino, 51)]
    # others have no such command
    del system.F_FULLFSYNC
    asked.clear()
    files.sync_file(path)
    assert asked == [("fsync", path.stat().st_ino, 0)]
