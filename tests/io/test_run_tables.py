"""Micro-batches into Fluss tables: each row exactly once, whatever happens in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.client.send.batch import RoutedBatch
from fluss_df.client.write.upsert import UpsertWriter
from fluss_df.client.write.writer import TableWriter
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, from_arrow
from tests.io.conftest import MakeTable, Place, write

# more of them for a campaign
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "2"))
SCHEMA = pa.schema({"id": pa.int64(), "kind": pa.string()})


def rows(start: int, stop: int) -> pl.DataFrame:
    frame = pl.DataFrame({"id": range(start, stop)})
    return frame.with_columns(kind=pl.when(pl.col("id") % 3 == 0).then(pl.lit("a")).otherwise(None))


def ids(connection: FlussConnection, path: TablePath) -> list[int]:
    """Return all ids in a table, those of a changelog where there is a key; duplicates too."""
    mode = "changelog" if connection.get_table(path).has_primary_key() else "log"
    return sorted(read_fluss(path, mode=mode, connection=connection)["id"].to_list())


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_rows_go_into_a_table(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path, keys: list[str] | None
) -> None:
    source = make_table(SCHEMA, rows(0, 1000), bucket_keys=["id"], bucket_count=3)
    target = make_table(SCHEMA, primary_keys=keys, bucket_count=3)
    query = scan_fluss(source, connection=connection).filter(pl.col("kind") == "a")
    result = run(query, to=str(target), checkpoint=tmp_path, max_batch_rows=400)
    assert (result.batches, result.rows_read, result.rows_written) == (3, 1000, 334)
    write(connection, source, rows(1000, 1006))
    write(connection, target, rows(-5, 0)) if keys is None else None
    run(query, to=target, checkpoint=tmp_path)
    run(query, to=target, checkpoint=tmp_path)
    others = range(-5, 0) if keys is None else ()
    assert ids(connection, target) == [*others, *range(0, 1006, 3)]
    found = read_fluss(target, connection=connection)
    assert_frame_equal(
        found.filter(pl.col("id") >= 0).sort("id"), rows(0, 1006).filter(pl.col("kind") == "a")
    )


def test_partitions_are_created_where_wanted(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    source = make_table(SCHEMA, rows(0, 60).with_columns(kind=pl.format("p{}", pl.col("id") % 3)))
    target = make_table(SCHEMA, partition_keys=["kind"], bucket_count=2)
    query = scan_fluss(source, connection=connection)
    with pytest.raises(FlussError, match="has no partition"):
        run(query, to=target, checkpoint=tmp_path)
    run(query, to=target, checkpoint=tmp_path, create_partitions=True)
    assert ids(connection, target) == list(range(60))


class TornError(Exception):
    """The process is as good as dead."""


Tear = Callable[[TableWriter, int, dict[TableBucket, int], list[RoutedBatch]], None]


def tear(monkeypatch: pytest.MonkeyPatch, how: Tear) -> None:
    """Have the next batch end in some way when it is sent."""
    send = TableWriter.send_as

    def torn(
        writer: TableWriter,
        writer_id: int,
        sequences: dict[TableBucket, int],
        batches: Iterable[RoutedBatch],
    ) -> None:
        monkeypatch.setattr(TableWriter, "send_as", send)
        how(writer, writer_id, sequences, list(batches))
        raise TornError

    monkeypatch.setattr(TableWriter, "send_as", torn)


@pytest.mark.parametrize("keys", [None, ["id"]])
@pytest.mark.parametrize("sent", [0, 1, 2, 3, 4, 6])
def test_a_batch_that_was_sent_in_part_is_completed(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[str] | None,
    sent: int,
) -> None:
    """Also when the query would not give the same rows again, and others write meanwhile."""
    source = make_table(SCHEMA, rows(0, 400))
    target = make_table(SCHEMA, primary_keys=keys, bucket_count=3)
    query = scan_fluss(source, connection=connection)
    run(query, to=target, checkpoint=tmp_path)
    write(connection, source, rows(400, 800))
    monkeypatch.setattr("fluss_df.client.routing.row_router._pieces", _small_pieces)
    tear(monkeypatch, lambda writer, wid, at, some: writer.send_as(wid, at, some[:sent]))
    with pytest.raises(TornError):
        run(query, to=target, checkpoint=tmp_path)
    if keys is None:
        write(connection, target, rows(-50, 0))
    written = []
    # another query altogether: what was staged is what counts
    other = query.select(pl.col("id") - 10_000, "kind")
    run(other, to=target, checkpoint=tmp_path, on_batch=lambda *numbers: written.append(numbers))
    assert written == [(1, 400, 400)]
    assert ids(connection, target) == [*(range(-50, 0) if keys is None else ()), *range(800)]
    write(connection, source, rows(800, 803))
    run(query, to=target, checkpoint=tmp_path)
    assert ids(connection, target)[-803:] == list(range(803))


def _small_pieces(table: pa.Table, target_bytes: int) -> list[pa.RecordBatch]:
    return [batch for part in range(0, table.num_rows, 200)
            for batch in table.slice(part, 200).combine_chunks().to_batches()]  # fmt: skip


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_a_request_that_arrives_late_changes_nothing(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[str] | None,
) -> None:
    source = make_table(SCHEMA, rows(0, 400))
    target = make_table(SCHEMA, primary_keys=keys, bucket_count=2)
    query = scan_fluss(source, connection=connection)
    late: list[Callable[[], None]] = []

    def keep(
        writer: TableWriter, wid: int, at: dict[TableBucket, int], some: list[RoutedBatch]
    ) -> None:
        kind = type(writer)
        late.append(lambda: kind(connection, writer.info).send_as(wid, at, some))  # type: ignore[call-arg]

    tear(monkeypatch, keep)
    with pytest.raises(TornError):
        run(query, to=target, checkpoint=tmp_path)
    run(query, to=target, checkpoint=tmp_path)
    late[0]()
    late[0]()
    assert ids(connection, target) == list(range(400))


def test_a_writer_that_the_server_forgot_is_replaced(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_table(SCHEMA, rows(0, 600))
    target = make_table(SCHEMA)
    query = scan_fluss(source, connection=connection)
    monkeypatch.setattr("fluss_df.client.routing.row_router._pieces", _small_pieces)
    tear(monkeypatch, lambda writer, wid, at, some: writer.send_as(wid, at, some[:1]))
    with pytest.raises(TornError):
        run(query, to=target, checkpoint=tmp_path)
    send = TableWriter.send_as

    def refused(writer: TableWriter, wid: int, at: dict[TableBucket, int], some: object) -> None:
        monkeypatch.setattr(TableWriter, "send_as", send)
        raise FlussError("forgotten", ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)

    monkeypatch.setattr(TableWriter, "send_as", refused)
    run(query, to=target, checkpoint=tmp_path)
    assert ids(connection, target) == list(range(600))


def test_what_cannot_be_written(
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_table(SCHEMA, rows(0, 10))
    query = scan_fluss(source, connection=connection)
    with pytest.raises(FlussError, match="cannot write to the table that it reads"):
        run(query, to=source, checkpoint=tmp_path / "c")
    # by another connection, and by another name of the cluster: what it writes it would read
    stop = threading.Event()
    address = connection.config.bootstrap_servers.replace("127.0.0.1", "localhost")
    with (
        FlussConnection.create(address) as other,
        pytest.raises(FlussError, match="cannot write to the table that it reads"),
    ):
        run(
            query,
            to=source,
            connection=other,
            checkpoint=tmp_path / "c0",
            stop=stop,
            on_batch=lambda number, *_: stop.set() if number else None,
        )
    with pytest.raises(FlussError, match=r"say to='\./io\.nothing'"):
        run(query, to="io.nothing", checkpoint=tmp_path / "c")
    with pytest.raises(SchemaMismatchError, match="kind"):
        run(query.select("id"), to=make_table(SCHEMA), checkpoint=tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    Path("io.folder").mkdir()
    run(query, to="io.folder", checkpoint=tmp_path / "c")
    assert len(list(Path("io.folder").glob("*.parquet"))) == 1
    # a folder does not tell what the name means where the cluster cannot be asked
    with FlussConnection.create(connection.config.bootstrap_servers) as closed:
        pass
    with pytest.raises(FlussError, match="closed"):
        run(query, to="io.folder", connection=closed, checkpoint=tmp_path / "c3")
    assert len(list(Path("io.folder").glob("*.parquet"))) == 1
    # the checkpoint would make a folder of that name
    with pytest.raises(FlussError, match=r"lies in .*io\.nothing, .* name a folder outside"):
        run(query, to="io.nothing", checkpoint="io.nothing/checkpoint")
    assert not Path("io.nothing").exists()
    target = make_table(SCHEMA)
    Path(str(target)).mkdir()
    with pytest.raises(FlussError, match="is a table and a folder"):
        run(query, to=str(target), checkpoint=tmp_path / "c")
    careless = FlussConnection.create(connection.config.copy(writer_acks="1"))
    with careless, pytest.raises(FlussError, match="needs writer_acks='all'"):
        run(query, to=target, connection=careless, checkpoint=tmp_path / "c2")
    # the batch is staged, and belongs to this very table
    connection.get_admin().drop_table(target)
    again = make_table(SCHEMA)
    with pytest.raises(FlussError, match="that is gone"):
        run(query, to=again, checkpoint=tmp_path / "c2")


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_what_is_added_up_is_added_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """A batch that comes again would double sums; each of its parts counts once."""
    numbers = pl.DataFrame({"id": [i % 7 for i in range(400)], "total": range(400)})
    source = place.make_table(pa.schema({"id": pa.int64(), "total": pa.int64()}), numbers)
    columns = [
        Column("id", from_arrow(pa.int64(), False)),
        Column("total", from_arrow(pa.int64(), True), aggregate="sum"),
    ]
    target = place.make_table(
        Schema.from_columns(columns, ["id"]),
        bucket_count=2,
        properties={"table.merge-engine": "aggregation"},
    )
    query = scan_fluss(source, connection=place.connection)
    monkeypatch.setattr("fluss_df.client.routing.row_router._pieces", _small_pieces)
    late: list[Callable[[], None]] = []

    def die(
        writer: TableWriter, wid: int, at: dict[TableBucket, int], some: list[RoutedBatch]
    ) -> None:
        late.append(
            lambda: UpsertWriter(place.connection, writer.info).send_as(wid, at, some[:sent])
        )
        writer.send_as(wid, at, some[:sent])

    tear(monkeypatch, die)
    with pytest.raises(TornError):
        run(query, to=target, checkpoint=tmp_path)
    run(query, to=target, checkpoint=tmp_path)
    # a request of the killed process that is only now received
    late[0]()
    write(place.connection, source, numbers)
    run(query, to=target, checkpoint=tmp_path)
    expected = numbers.group_by("id").agg(pl.col("total").sum() * 2)
    found = read_fluss(target, connection=place.connection)
    assert_frame_equal(found.sort("id"), expected.sort("id"))


RUNNER = """
import sys
import polars as pl
import fluss_df

address, table, target, checkpoint = sys.argv[1:]
query = fluss_df.scan_fluss(table, connection=address)
fluss_df.run(query, to=target, checkpoint=checkpoint, max_batch_rows=500, trigger="10ms")
"""


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_killed_at_any_moment(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path, keys: list[str] | None
) -> None:
    """Every row once in the log, after kills at random moments, while another one writes too."""
    source = make_table(SCHEMA, rows(0, 20_000), bucket_keys=["id"], bucket_count=3)
    target = make_table(SCHEMA, primary_keys=keys, bucket_count=3)
    checkpoint = tmp_path / "checkpoint"
    rng = random.Random(7)
    total, foreign = 20_000, 0
    address = connection.config.bootstrap_servers
    command = [sys.executable, "-c", RUNNER, address, str(source), str(target), str(checkpoint)]
    in_part = 0
    for _ in range(KILLS):
        write(connection, source, rows(total, total + 700))
        total += 700
        before = _commits(checkpoint)
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 120
        while _commits(checkpoint) == before:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        if keys is None:
            foreign += 1
            write(connection, target, rows(-foreign, -foreign + 1))
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        in_part += _uncommitted(checkpoint)
    query = scan_fluss(source, connection=connection)
    run(query, to=target, checkpoint=checkpoint)
    assert ids(connection, target) == list(range(-foreign, total))
    print(f"{KILLS} kills, {in_part} of them while a batch was being sent")


def _numbers(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()}


def _commits(checkpoint: Path) -> set[int]:
    return _numbers(checkpoint / "commits")


def _uncommitted(checkpoint: Path) -> bool:
    return bool(_numbers(checkpoint / "ledger") - _commits(checkpoint))


def test_a_continuous_run_goes_on_under_one_writer_id(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    source = make_table(SCHEMA, rows(0, 10))
    target = make_table(SCHEMA)
    stop = threading.Event()

    def more(number: int, read: int, written: int) -> None:
        write(connection, source, rows(10 * number + 10, 10 * number + 20))
        if number == 5:
            stop.set()

    result = run(
        scan_fluss(source, connection=connection),
        to=target,
        checkpoint=tmp_path,
        trigger="10ms",
        stop=stop,
        on_batch=more,
    )
    assert result.batches == 6
    assert ids(connection, target) == list(range(60))


def test_a_run_goes_on_where_the_server_forgot_its_writer(tmp_path: Path) -> None:
    """As after seven days without rows."""
    source, target = (TablePath("fluss", name) for name in ("source", "target"))
    with EmbeddedFluss(tmp_path / "data") as engine, engine.connection() as connection:
        schema = Schema(pa.schema([("x", pa.int64())]))
        for path in (source, target):
            descriptor = TableDescriptor(schema, bucket_count=1)
            connection.get_admin().create_table(path, descriptor)
        bucket = TableBucket(connection.get_table(target).get_table_info().table_id, 0)

        def more(*numbers: int) -> None:
            with connection.get_table(source).new_append().create_writer() as writer:
                writer.write_arrow(pa.table({"x": numbers}))

        done = threading.Event()

        def next_batch(number: int, read: int, written: int) -> None:
            if number == 2:
                done.set()
                return
            if number == 0:
                engine.engine.bucket(bucket)[1]._writers.expire(2**62)
            more(2 * number + 2, 2 * number + 3)

        more(0, 1)
        query = scan_fluss(source, connection=connection)
        run(
            query,
            to=target,
            checkpoint=tmp_path / "checkpoint",
            trigger="10ms",
            stop=done,
            on_batch=next_batch,
        )
        found = scan_fluss(target, connection=connection).collect()["x"].to_list()
        assert found == list(range(6))


@pytest.mark.parametrize("again", [True, False])
def test_a_partition_of_the_target_is_dropped_while_a_run_goes_on(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path, again: bool
) -> None:
    columns = pa.schema({"id": pa.int64(), "day": pa.string()})
    frame = pl.DataFrame({"id": range(300), "day": "a"})
    source = make_table(columns, frame, bucket_count=1)
    target = make_table(columns, partition_keys=["day"], bucket_count=2)
    query = scan_fluss(source, connection=connection)
    admin = connection.get_admin()

    def dropped(number: int, *_: object) -> None:
        if number == 0:
            admin.drop_partition(target, {"day": "a"})
            if again:
                admin.create_partition(target, {"day": "a"})

    run(
        query, to=target, checkpoint=tmp_path, max_batch_rows=100, create_partitions=True,
        on_batch=dropped,
    )  # fmt: skip
    found = scan_fluss(target, connection=connection).collect()
    assert sorted(found["id"]) == list(range(100, 300))


def test_types_that_do_not_fit_are_told_before_there_are_rows(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    source = make_table(SCHEMA)
    target = make_table(pa.schema({"id": pa.int64(), "kind": pa.int32()}))
    query = scan_fluss(source, connection=connection)
    with pytest.raises(SchemaMismatchError, match="kind"):
        run(query, to=target, checkpoint=tmp_path)
