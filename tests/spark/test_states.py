"""Streams of Spark whose checkpoint, ledger, target, source or partitions were changed.

Each case lets an exactly-once stream write three batches, does something to one of its parts, goes
on, and asks for one of two ends: refused by name with nothing more written, or every row once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark import forget_queries
from fluss_df.spark.write import ledger, publish
from fluss_df.spark.write.identity import ContentDigest, read_of_batch
from fluss_df.spark.write.ledger import Ledger, Manifest
from fluss_df.spark.write.publish import Publisher
from tests.io.conftest import MakeTable
from tests.spark.sinks import SCHEMA, STEPS, Sink, die, engine, rows, sink

# fixtures of that module
__all__ = ["engine", "sink"]


@pytest.mark.parametrize(
    "properties",
    [
        {"table.log.format": "INDEXED"},
        {"table.log.format": "COMPACTED"},
        {"table.statistics.columns": "*"},
    ],
    ids=["indexed", "compacted", "statistics"],
)
def test_rows_go_in_the_form_of_the_table(
    engine: FlussConnection, tmp_path: Path, properties: dict[str, str]
) -> None:
    """What tasks stage is published as it is: batches of the log's own format."""

    class Formed(Sink):
        def make(self) -> None:
            descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2, properties=properties)
            self.connection.get_admin().create_table(self.table, descriptor)

    sink = Formed(engine, tmp_path / "checkpoint", True)
    for number in range(2):
        sink.batch(number, 10 * number, 10 * number + 10)
    assert sink.found() == list(range(20))


@pytest.mark.parametrize("step", STEPS)
def test_the_same_batch_again_is_repaired(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    die(monkeypatch, step, sink)
    sink.batch(3, 30, 40)
    sink.batch(4, 40, 50)
    assert sink.found() == list(range(50))


@pytest.mark.parametrize("step", STEPS)
def test_a_checkpoint_that_lost_its_last_files(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Batch 3 comes again with more rows, which were lost."""
    die(monkeypatch, step, sink)
    if step == "staged":
        # nothing was decided, so that it is any batch
        sink.batch(3, 30, 50)
        assert sink.found() == list(range(50))
        return
    sink.refused("with other rows, and these would be lost", 3, 30, 50)
    sink.batch(3, 30, 40)
    assert sink.found() == list(range(40))


@pytest.mark.parametrize("step", ["decided", "sent in part"])
def test_a_query_that_does_not_give_the_same_rows_again(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The rows that were decided are written: of a batch that is known by its offsets, always."""
    die(monkeypatch, step, sink)
    if not sink.checkpoint:
        sink.refused("writes those of the first time", 3, 130, 140)
        sink.batch(3, 130, 140, fail_on_data_loss="false")
        assert sink.found() == list(range(40))
        sink.batch(4, 40, 50)
        assert sink.found() == list(range(50))
        return
    sink.refused("with other rows", 3, 130, 140, fail_on_data_loss="false")


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_checkpoint_put_back(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str, back: int
) -> None:
    die(monkeypatch, step, sink)
    if step == "staged":
        sink.batch(3, 30, 40)
    number = 3 - back
    # even with the rows that the batch had
    sink.refused("the ledger has batches up to 3", number, number * 10, number * 10 + 10)
    sink.refused("the ledger has batches up to 3", number, number * 10, 60)


@pytest.mark.parametrize("step", ["staged", "decided"])
def test_a_copied_checkpoint(sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Of two queries of one name the first decides; the other is told, and its rows stay."""
    die(monkeypatch, step, sink)
    if step == "staged":
        # while this one staged, the copy decided
        staged: list[Any] = []
        monkeypatch.setattr(Ledger, "decide", _late(Ledger.decide, sink, staged))
        with pytest.raises(FlussError, match="with other rows, and these would be lost"):
            sink.batch(3, 30, 45)
        assert staged
        assert sink.found() == list(range(40))
    else:
        sink.refused("with other rows", 3, 30, 45)
        sink.batch(3, 30, 40)
    sink.batch(4, 40, 50)
    assert sink.found() == list(range(50))


def _late(decide: Callable[..., Any], sink: Sink, staged: list[Any]) -> Callable[..., Any]:
    def late(ledger: Ledger, batch: int, manifest: Any) -> Any:
        if not staged:
            staged.append(manifest)
            kept = (sink.folder / "offsets" / "3").read_text()
            sink.batch(3, 30, 40)
            (sink.folder / "offsets" / "3").write_text(kept)
        return decide(ledger, batch, manifest)

    return late


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("part", ["decisions", "staged", "both"])
def test_a_ledger_that_is_gone(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str, part: str
) -> None:
    """Dropped, or its partitions: as when it was deleted, or has expired."""
    die(monkeypatch, step, sink)
    admin = sink.connection.get_admin()
    for name in ("decisions", "staged") if part == "both" else (part,):
        path = TablePath(sink.ledger, name)
        for partition in admin.list_partition_infos(path):
            admin.drop_partition(path, partition.spec)
    if part == "staged" and step in ("decided", "sent in part"):
        sink.refused("staged batches are in table", 3, 30, 40)
        return
    if part == "staged":
        sink.batch(3, 30, 40)
        sink.batch(4, 40, 50)
        assert sink.found() == list(range(50))
        return
    sink.refused("was dropped, put back or has expired", 3, 30, 40)
    if step in ("staged", "decided"):
        sink.batch(3, 30, 40, fail_on_data_loss="false")
        sink.batch(4, 40, 50)
        assert sink.found() == list(range(50))


def test_what_landed_of_a_batch_has_expired(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    die(monkeypatch, "sent in part", sink)

    def expired(*_: Any) -> Any:
        raise FlussError("the log begins at 3", ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)

    monkeypatch.setattr(publish, "landed_batches", expired)
    told = "batch 3: the log begins at 3; start over with another checkpoint"
    sink.refused(told, 3, 30, 40)


@pytest.mark.parametrize("step", STEPS)
def test_a_target_made_anew(sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    die(monkeypatch, step, sink)
    sink.connection.get_admin().drop_table(sink.table)
    sink.make()
    number = 4 if step == "committed" else 3
    sink.refused("was dropped and made again", number, 10 * number, 10 * number + 10)
    if step in ("staged", "committed"):
        sink.batch(number, 10 * number, 10 * number + 10, fail_on_data_loss="false")
        sink.batch(number + 1, 10 * number + 10, 10 * number + 20)
        assert sink.found() == list(range(10 * number, 10 * number + 20))


class PartitionedSink(Sink):
    """Batches of which each task's rows are for both partitions."""

    def make(self) -> None:
        admin = self.connection.get_admin()
        descriptor = TableDescriptor(Schema(SCHEMA), partition_keys=["part"], bucket_count=1)
        admin.create_table(self.table, descriptor)
        for part in ("even", "odd"):
            admin.create_partition(self.table, {"part": part})

    def tasks(self, start: int, stop: int) -> list[pl.DataFrame]:
        part = pl.when(pl.col("id") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd"))
        return [task.with_columns(part=part) for task in super().tasks(start, stop)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", ["decided", "sent in part", "publishing"])
def test_a_partition_that_is_dropped_amid_a_batch(
    engine: FlussConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    again: bool,
) -> None:
    """As by retention, also with another one made under its name: those rows are lost, and told."""
    sink = PartitionedSink(engine, tmp_path / "checkpoint", True)
    for number in range(3):
        sink.batch(number, 10 * number, 10 * number + 10)

    def drop() -> None:
        engine.get_admin().drop_partition(sink.table, {"part": "odd"})
        if again:
            engine.get_admin().create_partition(sink.table, {"part": "odd"})

    if step == "publishing":
        send = Publisher._send_missing

        def late(*args: Any) -> None:
            monkeypatch.setattr(Publisher, "_send_missing", send)
            drop()
            send(*args)

        monkeypatch.setattr(Publisher, "_send_missing", late)
        with pytest.raises(FlussError, match=r"1 of the 2 partitions .* were dropped"):
            sink.batch(3, 30, 40)
    else:
        die(monkeypatch, step, sink)
        drop()
    with pytest.raises(FlussError, match=r"1 of the 2 partitions .*fail\.on\.data\.loss") as error:
        sink.batch(3, 30, 40)
    assert error.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    sink.batch(3, 30, 40, fail_on_data_loss="false")
    assert "its rows for them are lost" in caplog.text
    assert sink.found() == list(range(0, 40, 2))
    if again:
        sink.batch(4, 40, 50)
        assert sink.found() == [*range(0, 40, 2), *range(40, 50)]


@pytest.mark.parametrize("step", STEPS)
def test_another_destination(sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    die(monkeypatch, step, sink)
    first, sink.table = sink.table, TablePath("sinks", f"other_{sink.query[:8]}")
    sink.make()
    number = 4 if step == "committed" else 3
    sink.refused("another destination needs a checkpoint|made again", number, 30, 40)
    assert sink.found() == []
    sink.table = first
    sink.batch(number, 10 * number, 10 * number + 10)
    assert sink.found() == list(range(10 * number + 10))


def test_entries_of_earlier_releases(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say nothing of what a batch read: it is believed, as before."""
    decide = Ledger.decide

    def untold(ledger: Ledger, batch: int, manifest: Manifest) -> Manifest:
        old = json.loads(manifest.to_json())
        for key in ("read", "content", "table"):
            del old[key]
        return decide(ledger, batch, Manifest.from_json(json.dumps(old)))

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "decide", untold)
        sink.batch(3, 30, 40)
    sink.batch(3, 30, 40)
    sink.batch(4, 40, 50)
    assert sink.found() == list(range(50))


def test_staged_rows_are_dropped_soon(
    engine: FlussConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once no checkpoint can be so far behind that they are needed; decisions stay longer."""
    monkeypatch.setattr(ledger, "_BATCHES_PER_EPOCH", 4)
    sink = Sink(engine, tmp_path / "checkpoint", True)
    kept = []
    for number in range(10):
        sink.batch(number, 10 * number, 10 * number + 10)
        sink.batch(number, 10 * number, 10 * number + 10)
        names = []
        for name in ("staged", "decisions"):
            there = engine.get_admin().list_partition_infos(TablePath(sink.ledger, name))
            names.append("".join(p.partition_name.rpartition("-")[2] for p in there))
        kept.append(" ".join(names))
    assert kept == ["0 0"] * 4 + ["01 01"] + ["1 01"] * 3 + ["12 12", "2 12"]
    assert sink.found() == list(range(100))


def test_queries_that_have_ended_are_forgotten(engine: FlussConnection, tmp_path: Path) -> None:
    first, other = (Sink(engine, tmp_path / name, True) for name in ("first", "other"))
    other.ledger = first.ledger
    for one in (first, other):
        one.batch(0, 0, 10)

    def forget(*ids: str) -> list[str]:
        return forget_queries(ids, connection=engine, ledger_database=first.ledger)

    assert forget("no-such-query", first.query) == [first.query]
    assert forget(first.query) == []
    for name in ("staged", "decisions"):
        there = engine.get_admin().list_partition_infos(TablePath(first.ledger, name))
        assert [p.partition_name for p in there] == [f"{other.query}-0"]
    other.batch(1, 10, 20)
    assert other.found() == list(range(20))
    first.refused("the ledger was dropped", 1, 10, 20)
    with pytest.raises(FlussError, match=r"'' is no id of a query; Spark says it as query\.id"):
        forget("")


def test_a_checkpoint_with_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one of this machine if it is there: Spark says its path as it was given."""
    monkeypatch.chdir(tmp_path)
    assert read_of_batch("copies.checkpoint", 0) is None
    offsets = tmp_path / "copies.checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for batch in range(2):
        (offsets / str(batch)).write_text(f'v1\n{{}}\n{{"0": {batch}, "clock": 7}}')
    found = {
        read_of_batch(path, 1)
        for path in ("copies.checkpoint", str(offsets.parent), offsets.parent.as_uri())
    }
    assert found == {'from {"0": 0} up to {"0": 1}'}
    assert read_of_batch("hdfs://host/copies.checkpoint", 1) is None


def test_content_is_the_same_in_any_order() -> None:
    table = pl.DataFrame(
        {
            "a": [1, None, 3] * 100,
            "b": ["x", None, "é"] * 100,
            "c": [[1.5], None, []] * 100,
            "d": [{"e": b"1"}, {"e": None}, None] * 100,
        }
    )
    contents = []
    for part in (table, table.reverse(), table.sample(fraction=1.0, shuffle=True, seed=1)):
        for size in (7, 300):
            digest = ContentDigest()
            pieces = (p.to_arrow() for p in part.iter_slices(size))
            assert sum(t.num_rows for t in digest.counted(pieces)) == 300
            contents.append(digest.content)
    assert len(set(contents)) == 1
    digest = ContentDigest()
    list(digest.counted(iter([table.with_columns(a=pl.lit(2)).to_arrow()])))
    assert digest.content not in contents
    # of the columns that were there, whatever the table has got since
    digest = ContentDigest()
    more = table.with_columns(e=pl.lit(None, pl.Int32)).to_arrow()
    list(digest.counted(iter([more]), table.columns))
    assert digest.content in contents


# ---- all of it, on a real Spark


class Stream:
    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.folder = folder / "checkpoint"

    def run(self, source: TablePath, target: TablePath, **options: str) -> None:
        read = self.spark.readStream.format("fluss").option("max.offsets.per.trigger", "100")
        read = read.option("bootstrap.servers", self.cluster.bootstrap_servers)
        if "starting_offsets" in options:
            read = read.option("starting.offsets", options.pop("starting_offsets"))
        writer = read.load(str(source)).writeStream.format("fluss").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder))
        writer = writer.option("bootstrap.servers", self.cluster.bootstrap_servers)
        writer = writer.option("delivery.guarantee", "exactly-once")
        for key, value in options.items():
            writer = writer.option(key.replace("_", "."), value)
        query = writer.start(str(target))
        try:
            query.awaitTermination(120)
        finally:
            query.stop()


def test_on_spark_a_checkpoint_goes_back_and_a_target_is_another_one(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
) -> None:
    source, target = make_table(SCHEMA, rows(0, 250)), make_table(SCHEMA)
    stream = Stream(spark, fluss_cluster, tmp_path)
    stream.run(source, target)
    write_fluss(rows(250, 280), source, connection=connection)
    # the last files are lost: batch 2 comes again, with 80 rows for 50
    for kind in ("offsets", "commits"):
        for name in ("2", ".2.crc"):
            (stream.folder / kind / name).unlink(missing_ok=True)
    kept = tmp_path / "kept"
    shutil.copytree(stream.folder, kept)
    with pytest.raises(StreamingQueryException, match="these would be lost"):
        stream.run(source, target)
    found = sorted(scan_fluss(target, connection=connection).collect()["id"])
    assert found == list(range(250))
    # what Spark wrote of the refused batch is taken back: it is the same batch again
    shutil.rmtree(stream.folder)
    shutil.copytree(kept, stream.folder)
    with pytest.raises(StreamingQueryException, match="another destination"):
        stream.run(source, make_table(SCHEMA))


def test_on_spark_a_stream_begins_at_the_end(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
    tmp_path: Path,
) -> None:
    source, target = make_table(SCHEMA, rows(0, 50)), make_table(SCHEMA)
    stream = Stream(spark, fluss_cluster, tmp_path)
    stream.run(source, target, starting_offsets="latest")
    write_fluss(rows(50, 80), source, connection=connection)
    stream.run(source, target, starting_offsets="latest")
    found = sorted(scan_fluss(target, connection=connection).collect()["id"])
    assert found == list(range(50, 80))
