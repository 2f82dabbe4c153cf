"""Rows of primary-key tables whose files in RocksDB are damaged while the engine runs."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.engine import Engine
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError

PATH = fluss.TablePath("fluss", "rows")
# several blocks of an SST, which has no memory table before it
ROWS = 5_000


def frame(first: int = 0, count: int = ROWS) -> pa.Table:
    ids = list(range(first, first + count))
    noise = random.Random(first)
    texts = [noise.randbytes(20).hex() for _ in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose rows are all in SST files."""
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        create(connection)
        write(connection, frame())
    return tmp_path / "d"


def create(connection: FlussConnection, **properties: str) -> None:
    schema = fluss.Schema(frame(0, 0).schema, primary_keys=["id"])
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=properties)
    connection.get_admin().create_table(PATH, descriptor)


def write(connection: FlussConnection, rows: pa.Table) -> None:
    with connection.get_table(PATH).new_upsert().create_writer() as writer:
        writer.write_arrow(rows)


def damage(folder: Path) -> Path:
    """Flip a bit in the middle of the largest SST."""
    file = max(folder.rglob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(bytes(data))
    return file


def rows_of(connection: FlussConnection) -> pa.Table:
    found = connection.get_table(PATH).new_scan().create_snapshot_scanner().to_arrow()
    return found.sort_by("id")


def scan(connection: FlussConnection) -> pa.Table:
    return rows_of(connection)


def lookup(connection: FlussConnection) -> pa.Table:
    lookuper = connection.get_table(PATH).new_lookup().create_lookuper()
    return lookuper.lookup_arrow(frame().select(["id"]))


def limited(connection: FlussConnection) -> pa.Table:
    scan = connection.get_table(PATH).new_scan().limit(ROWS)
    bucket = fluss.TableBucket(connection.get_table(PATH).get_table_info().table_id, 0)
    return scan.create_bucket_batch_scanner(bucket).to_arrow().sort_by("id")


def update(connection: FlussConnection) -> pa.Table:
    write(connection, frame())
    return rows_of(connection)


@pytest.mark.parametrize("use", [scan, lookup, limited, update])
@pytest.mark.parametrize("open_files", [None, 2], ids=["open", "resting"])
def test_damaged_rows_are_made_again(
    folder: Path, use: Callable[[FlussConnection], pa.Table], open_files: int | None
) -> None:
    file = damage(folder)
    options = EngineOptions(open_files=open_files)
    with EmbeddedFluss(folder, options=options) as engine, engine.connection() as connection:
        assert use(connection).equals(frame())
        assert rows_of(connection).equals(frame())
        write(connection, frame(ROWS, 10))
        assert rows_of(connection).num_rows == ROWS + 10
        assert connection.get_admin().get_table_stats(PATH).row_count == ROWS + 10
    assert not file.exists()
    assert check_folder(folder).sound
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        assert rows_of(connection).num_rows == ROWS + 10


@pytest.mark.parametrize("place", ["first block", "index", "footer"])
def test_a_scan_that_cannot_begin(folder: Path, place: str) -> None:
    """Also of a store that gave its files back, all of whose files are opened by a scan."""
    options = EngineOptions(open_files=2)
    with EmbeddedFluss(folder, options=options) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        other = fluss.TablePath("fluss", "other")
        schema = fluss.Schema(frame(0, 0).schema, primary_keys=["id"])
        admin.create_table(other, fluss.TableDescriptor(schema, bucket_count=1))
        assert rows_of(connection).equals(frame())
        with connection.get_table(other).new_upsert().create_writer() as writer:
            writer.write_arrow(frame(0, 10))
        file = max(folder.rglob("*.sst"), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[{"first block": 100, "index": len(data) - 400, "footer": len(data) - 20}[place]] ^= 4
        file.write_bytes(bytes(data))
        assert rows_of(connection).equals(frame())
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        assert rows_of(connection).equals(frame())


def test_a_scan_that_outlives_its_engine(folder: Path, tmp_path: Path) -> None:
    """Its RocksDB is closed with the engine, and does not reach into the next engine's folder."""
    shutil.copytree(folder, tmp_path / "other")
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        batches = connection.get_table(PATH).new_scan().create_snapshot_scanner().batches()
        next(batches)
    for again in (tmp_path / "other", folder):
        stores = sorted(path.name for path in again.rglob("kv*"))
        with EmbeddedFluss(again) as engine, engine.connection() as connection:
            assert rows_of(connection).equals(frame())
        assert sorted(path.name for path in again.rglob("kv*")) == stores == ["kv"]
    del batches


def test_a_scan_under_way_is_not_short(folder: Path) -> None:
    """What was handed on cannot be taken back: the scan says so, and the next one has all rows."""
    damage(folder)
    engine = Engine(folder)
    try:
        kv = engine.kv_bucket(fluss.TableBucket(0, 0))[1]
        values, _ = kv.scan()
        with pytest.raises(FlussError, match="made again from the changelog") as raised:
            deque(values, 0)
        assert raised.value.is_retriable
        assert sum(1 for _ in kv.scan()[0]) == ROWS
    finally:
        engine.close()


def test_rows_without_the_beginning_of_their_changelog(tmp_path: Path) -> None:
    """They cannot be made again: each use of what is damaged says so at once."""
    options = EngineOptions(segment_bytes=1000)
    with (
        EmbeddedFluss(tmp_path / "d", options=options) as engine,
        engine.connection() as connection,
    ):
        create(connection)
        write(connection, frame())
        write(connection, frame(ROWS, 10))
    opened = Engine(tmp_path / "d", options)
    try:
        assert opened.kv_bucket(fluss.TableBucket(0, 0))[1].expire(2**60, 1)
    finally:
        opened.close()
    damage(tmp_path / "d")
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        for use in (scan, lookup, update):
            with pytest.raises(FlussError, match=r"bucket=0.*Restore the folder") as raised:
                use(connection)
            assert not raised.value.is_retriable
            assert raised.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("how", ["read", "follow"])
def test_a_damaged_log_is_told_at_once(tmp_path: Path, how: str) -> None:
    """Not after the minute for which clients try again what passes; nor never."""
    path = fluss.TablePath("fluss", "log")
    folder = tmp_path / "d"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(frame(0, 0).schema), bucket_count=1)
        connection.get_admin().create_table(path, descriptor)
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(frame())
    file = max(folder.rglob("*.log"), key=lambda found: found.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        scan = connection.get_table(path).new_scan()
        follower, reader = scan.create_log_scanner(), scan.create_record_batch_log_scanner()
        follower.subscribe(0, 0)
        reader.subscribe(0, 0)
        read = reader.to_arrow if how == "read" else partial(follower.poll, 30_000)
        begun = time.monotonic()
        with pytest.raises(FlussError, match=rf"bucket=0.*offset 0.*{file.name}"):
            read()
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
def test_a_record_of_another_kind_of_log_holds_nobody_up(folder: Path, kind: int) -> None:
    manifest = next(folder.rglob("kv/MANIFEST-*"))
    data = bytearray(manifest.read_bytes())
    # behind the checksum and the length of the second record
    second = 7 + int.from_bytes(data[4:6], "little")
    data[second + 6] = kind
    manifest.write_bytes(bytes(data))
    # RocksDB's reader never returned, and nothing else of its process ran
    program = (
        "import sys; from pathlib import Path;"
        "from fluss_df.engine.upkeep.check import check_folder;"
        "from fluss_df.embedded import EmbeddedFluss; folder = Path(sys.argv[1]);"
        "print(check_folder(folder).sound); EmbeddedFluss(folder).close();"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        assert scan(connection).equals(frame())
