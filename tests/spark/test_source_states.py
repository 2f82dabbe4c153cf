"""Streams of tables that were changed, as Spark asks for them, of an engine."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark.plan import planning
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.read.streaming import FlussStreamReader
from tests.spark.sinks import SCHEMA, engine, rows

# fixtures of that module
__all__ = ["engine"]

_BOTH = ("true", "false")


def reader(connection: FlussConnection, table: TablePath, **options: str) -> FlussStreamReader:
    given = {
        "path": str(table),
        "bootstrap.servers": connection.config.bootstrap_servers,
        **{key.replace("_", "."): value for key, value in options.items()},
    }
    return FlussStreamReader(ReadOptions.parse(given), spark_schema(SCHEMA))


def read(found: FlussStreamReader, start: Any, end: Any) -> list[int]:
    ids: list[int] = []
    for partition in found.partitions(start, end):
        for batch in found.read(partition):
            ids.extend(batch.column(0).to_pylist())
    return sorted(ids)


@pytest.fixture
def log(engine: FlussConnection) -> TablePath:
    engine.get_admin().create_database("sources", ignore_if_exists=True)
    path = TablePath("sources", f"t_{uuid.uuid4().hex[:8]}")
    engine.get_admin().create_table(path, TableDescriptor(Schema(SCHEMA), bucket_count=1))
    return path


def test_a_stream_of_what_is_to_come_begins_once(engine: FlussConnection, log: TablePath) -> None:
    """An empty batch writes down where; and the first batch comes again as it was."""
    write_fluss(rows(0, 10), log, connection=engine)
    first = reader(engine, log, starting_offsets="latest")
    everything = first.getDefaultReadLimit()
    start = first.initialOffset()
    end = first.latestOffset(start, everything)
    assert end != start
    assert read(first, start, end) == []
    assert first.latestOffset(end, everything) == end
    write_fluss(rows(10, 20), log, connection=engine)
    # killed, and started again, amid the batch that wrote the beginning down
    again = reader(engine, log, starting_offsets="latest")
    assert read(again, again.initialOffset(), end) == []
    assert read(again, end, again.latestOffset(end, everything)) == list(range(10, 20))
    # a first batch with rows
    other = reader(engine, log, starting_offsets="latest")
    start = other.initialOffset()
    write_fluss(rows(20, 30), log, connection=engine)
    end = other.latestOffset(start, everything)
    write_fluss(rows(30, 40), log, connection=engine)
    again = reader(engine, log, starting_offsets="latest")
    assert read(again, again.initialOffset(), end) == list(range(20, 30))


def test_a_stream_without_rows_makes_no_batches(engine: FlussConnection, log: TablePath) -> None:
    first = reader(engine, log)
    start = first.initialOffset()
    assert first.latestOffset(start, first.getDefaultReadLimit()) == start


def test_a_source_that_is_another_one(engine: FlussConnection, log: TablePath) -> None:
    write_fluss(rows(0, 10), log, connection=engine)
    first = reader(engine, log)
    everything = first.getDefaultReadLimit()
    end = first.latestOffset(first.initialOffset(), everything)
    engine.get_admin().drop_table(log)
    engine.get_admin().create_table(log, TableDescriptor(Schema(SCHEMA), bucket_count=1))
    write_fluss(rows(0, 20), log, connection=engine)
    with pytest.raises(FlussError, match="was dropped and made again"):
        reader(engine, log).latestOffset(end, everything)
    # of the same id, in an engine that was made again
    info = engine.get_table(log).get_table_info()
    same = {**end, "table_id": info.table_id}
    with pytest.raises(FlussError, match="was dropped and made again"):
        reader(engine, log).latestOffset(same, everything)


def test_a_source_put_back(engine: FlussConnection, log: TablePath) -> None:
    """It has other rows where it was read; or it ends before."""
    write_fluss(rows(0, 10), log, connection=engine)
    first = reader(engine, log)
    everything = first.getDefaultReadLimit()
    kept = first.latestOffset(first.initialOffset(), everything)
    write_fluss(rows(10, 30), log, connection=engine)
    # as a checkpoint would say that read 20 rows in the time in which there were 10
    other = {**kept, "offsets": {"0": 20}}
    with pytest.raises(FlussError, match="has other rows now"):
        reader(engine, log).latestOffset(other, everything)
    lenient = reader(engine, log, fail_on_data_loss="false")
    end = lenient.latestOffset(other, everything)
    assert end["offsets"] == {"0": 30}
    # all of the new rows, not those behind what was read before
    tasks = lenient.partitions(other, end)
    assert sum(part.num_rows for task in tasks for part in lenient.read(task)) == 20
    assert lenient.latestOffset(end, everything) == end
    # also where there are no more rows than were read
    short = {**kept, "offsets": {"0": 90}}
    lenient = reader(engine, log, fail_on_data_loss="false")
    end = lenient.latestOffset(short, everything)
    assert end["offsets"] == {"0": 30}
    tasks = lenient.partitions(short, end)
    assert sum(part.num_rows for task in tasks for part in lenient.read(task)) == 20
    with pytest.raises(FlussError, match="the log ends before what was read"):
        reader(engine, log).latestOffset({**kept, "offsets": {"0": 90}}, everything)


class Served:
    """A log behind an address, whose server is put back while others read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = EmbeddedFluss(folder, port=0)
        self.port = int(self.engine.address.rpartition(":")[2])
        self.connection = FlussConnection.create(self.engine.address)
        self.path = TablePath("fluss", "served")
        descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=1)
        self.connection.get_admin().create_table(self.path, descriptor)
        self.kept = folder.with_name("kept")

    def write(self, start: int, stop: int) -> None:
        write_fluss(rows(start, stop), self.path, connection=self.connection)

    def keep(self) -> None:
        """Copy the folder as it is now."""
        self.engine.close()
        shutil.copytree(self.folder, self.kept)
        self.engine = EmbeddedFluss(self.folder, port=self.port)

    def put_back(self) -> None:
        self.engine.close()
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)
        self.engine = EmbeddedFluss(self.folder, port=self.port)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "fluss")
    made.write(0, 10)
    made.keep()
    made.write(10, 20)
    yield made
    made.connection.close()
    made.engine.close()


@pytest.mark.parametrize("more", [0, 5, 10, 30])
def test_a_source_put_back_while_a_stream_lives(served: Served, more: int) -> None:
    """Rows between what is there and what was read were never read, and nothing was said."""
    made = {n: reader(served.connection, served.path, fail_on_data_loss=n) for n in _BOTH}
    everything = made["true"].getDefaultReadLimit()
    ends = {}
    for losses, found in made.items():
        start = found.initialOffset()
        end = ends[losses] = found.latestOffset(start, everything)
        assert read(found, start, end) == list(range(20))
        assert found.latestOffset(end, everything) == end
    served.put_back()
    served.write(100, 100 + more)
    if more == 10:
        # nothing seems to have come: it is found when something does
        assert made["true"].latestOffset(ends["true"], everything) == ends["true"]
        served.write(110, 115)
        more = 15
    with pytest.raises(FlussError, match="put back to an earlier"):
        made["true"].latestOffset(ends["true"], everything)
    end = made["false"].latestOffset(ends["false"], everything)
    assert read(made["false"], ends["false"], end) == list(range(100, 100 + more))
    assert made["false"].latestOffset(end, everything) == end
    served.write(200, 205)
    last = made["false"].latestOffset(end, everything)
    assert read(made["false"], end, last) == list(range(200, 205))


def test_a_source_put_back_before_a_trigger_ends(served: Served) -> None:
    """What was there when ``AvailableNow`` began is not there any more: it ends all the same."""
    found = reader(served.connection, served.path, fail_on_data_loss="false")
    found.prepareForTriggerAvailableNow()
    start = found.initialOffset()
    end = found.latestOffset(start, ReadMaxRows(15))
    assert read(found, start, end) == list(range(15))
    served.put_back()
    for _ in range(5):
        start, end = end, found.latestOffset(end, ReadMaxRows(15))
        if start == end:
            break
        assert read(found, start, end) == []
    assert start == end
    assert end["offsets"] == {"0": 10}


# ---- options that choose buckets and partitions


class Chosen:
    """A stream of a log of two buckets, or of two partitions a and b, whose batches are run."""

    def __init__(self, connection: FlussConnection, partitioned: bool) -> None:
        self.connection = connection
        connection.get_admin().create_database("sources", ignore_if_exists=True)
        self.path = TablePath("sources", f"t_{uuid.uuid4().hex[:8]}")
        descriptor = TableDescriptor(
            Schema(SCHEMA),
            partition_keys=["part"] if partitioned else None,
            bucket_keys=["id"],
            bucket_count=1 if partitioned else 2,
        )
        connection.get_admin().create_table(self.path, descriptor)

    def write(self, start: int, stop: int, part: str = "a") -> None:
        found = rows(start, stop, part)
        write_fluss(found, self.path, connection=self.connection, create_partitions=True)

    def batch(self, start: Any = None, **options: str) -> tuple[Any, list[int]]:
        """Run the next batch; return where it ended, and its rows."""
        found = reader(self.connection, self.path, **options)
        begun = found.initialOffset() if start is None else start
        end = found.latestOffset(begun, found.getDefaultReadLimit())
        return end, [] if end == begun else read(found, begun, end)

    def refused(self, told: str, start: Any, **options: str) -> None:
        for losses in ("true", "false"):
            with pytest.raises(FlussError, match=told):
                self.batch(start, fail_on_data_loss=losses, **options)


def test_a_stream_that_reads_fewer_buckets(engine: FlussConnection) -> None:
    """They were called dropped; and the rows came twice when the option was taken back."""
    chosen = Chosen(engine, partitioned=False)
    chosen.write(0, 60)
    end, found = chosen.batch()
    assert found == list(range(60))
    told = "has read bucket 1 so far, which option 'buckets' with '0' leaves out"
    chosen.refused(told, end, buckets="0")
    chosen.write(60, 70)
    assert chosen.batch(end)[1] == list(range(60, 70))


def test_options_that_change_amid_a_batch(engine: FlussConnection) -> None:
    """Spark asks for the tasks of an open batch alone."""
    chosen = Chosen(engine, partitioned=True)
    for part in ("a", "b"):
        chosen.write(0, 10, part)
    found = reader(engine, chosen.path)
    start = found.initialOffset()
    end = found.latestOffset(start, found.getDefaultReadLimit())
    for losses in ("true", "false"):
        again = reader(engine, chosen.path, partitions="a", fail_on_data_loss=losses)
        with pytest.raises(FlussError, match="has read bucket b/0 so far"):
            again.partitions(start, end)


@pytest.mark.parametrize("noted", [True, False], ids=["now", "earlier-release"])
@pytest.mark.parametrize("starts", ["earliest", "latest"])
def test_a_stream_that_reads_more_buckets(
    engine: FlussConnection, starts: str, noted: bool
) -> None:
    """A stream from the latest read the whole history of a bucket that it had passed over."""
    chosen = Chosen(engine, partitioned=False)
    chosen.write(0, 60)
    end, _ = chosen.batch(buckets="0", starting_offsets=starts)
    if not noted:
        assert end.pop("only")["buckets"] == [0]
    by = "option 'buckets' with '0'" if noted else "options 'buckets' or 'partitions'"
    chosen.refused(f"has passed over bucket 1 so far, by {by}", end, starting_offsets=starts)
    chosen.refused("has passed over bucket 1 so far", end, buckets="0,1")
    chosen.write(60, 90)
    found = chosen.batch(end, buckets="0", starting_offsets=starts)[1]
    assert 0 < len(found) < 30


def test_partitions_that_come_are_new_and_others_are_not(engine: FlussConnection) -> None:
    chosen = Chosen(engine, partitioned=True)
    for part in ("a", "b"):
        chosen.write(0, 10, part)
    begun, _ = chosen.batch(partitions="a", starting_offsets="latest")
    chosen.refused("has passed over bucket b/0 so far, by option 'partitions' with 'a'", begun)
    chosen.refused("has passed over bucket b/0 so far", begun, partitions="a,b")
    chosen.write(10, 20, "c")
    end, found = chosen.batch(begun, partitions="a,c")
    assert found == list(range(10, 20))
    # the partition that was passed over goes: what is left is known, or new
    engine.get_admin().drop_partition(chosen.path, {"part": "b"})
    chosen.write(20, 30, "d")
    end, found = chosen.batch(end)
    assert found == list(range(20, 30))
    assert end["only"] is None
    chosen.write(30, 40, "e")
    assert chosen.batch(end)[1] == list(range(30, 40))


def test_a_partition_that_is_named_goes(
    engine: FlussConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream ended for good, whatever was said about losses."""
    chosen = Chosen(engine, partitioned=True)
    for part in ("a", "b"):
        chosen.write(0, 10, part)
    end, _ = chosen.batch(partitions="a,b")
    chosen.write(10, 20, "a")
    chosen.write(20, 30, "b")
    engine.get_admin().drop_partition(chosen.path, {"part": "b"})
    with pytest.raises(FlussError, match=r"dropped.*bucket b/0 behind offset 10.*fail.on.data"):
        chosen.batch(end, partitions="a,b")
    end, found = chosen.batch(end, partitions="a,b", fail_on_data_loss="false")
    assert found == list(range(10, 20))
    assert "bucket b/0 behind offset 10" in caplog.text
    # it was told: from here on nothing is lost
    chosen.write(30, 40, "a")
    end, found = chosen.batch(end, partitions="a,b")
    assert found == list(range(30, 40))
    # no partition that the stream has lost; and none of a stream that begins
    for losses in _BOTH:
        options = {"partitions": "a,nope", "fail_on_data_loss": losses}
        with pytest.raises(FlussError, match="has no partition 'nope'"):
            chosen.batch(end, **options)
        with pytest.raises(FlussError, match="has no partition 'nope'"):
            chosen.batch(**options)
    # there again, with others
    chosen.write(40, 50, "b")
    assert chosen.batch(end, partitions="a,b")[1] == list(range(40, 50))
    for part in ("a", "b"):
        engine.get_admin().drop_partition(chosen.path, {"part": part})
    assert chosen.batch(end, partitions="a,b", fail_on_data_loss="false")[1] == []


def test_a_partition_that_goes_before_a_task_begins(
    engine: FlussConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost is passed over where one says so; others that the task reads are read."""
    # one task of all partitions, as of many
    monkeypatch.setattr(planning, "_MANY_TASKS", 1)
    chosen = Chosen(engine, partitioned=True)
    for at, part in enumerate("abc"):
        chosen.write(10 * at, 10 * at + 10, part)
    made = {losses: reader(engine, chosen.path, fail_on_data_loss=losses) for losses in _BOTH}
    tasks: dict[str, Any] = {}
    for losses, found in made.items():
        start = found.initialOffset()
        end = found.latestOffset(start, found.getDefaultReadLimit())
        (tasks[losses],) = found.partitions(start, end)
    engine.get_admin().drop_partition(chosen.path, {"part": "b"})
    with pytest.raises(FlussError) as error:
        list(made["true"].read(tasks["true"]))
    assert error.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    ids = [n for b in made["false"].read(tasks["false"]) for n in b.column(0).to_pylist()]
    assert sorted(ids) == [*range(10), *range(20, 30)]
    assert "partition 'b' was dropped while a batch" in caplog.text
