"""Tables and partitions that another client drops and creates again while Spark has them open.

What each handle does is in docs/faults.md. Most are asked as Spark asks them, in one process; what
Spark itself keeps of a dataframe and of a query that runs is tried on Spark.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.read.streaming import FlussStreamReader
from fluss_df.spark.source import FlussDataSource, FlussReader

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64()), ("v", pa.int64())])
# a server goes on with what is dropped for a moment
SETTLE_S = 0.3
WHAT = ["partition", "table"]
GONE = {"partition": ErrorCode.PARTITION_NOT_EXISTS, "table": ErrorCode.TABLE_NOT_EXIST}


def rows(value: int) -> pa.Table:
    return pa.table({"p": ["a"] * 4, "id": list(range(4)), "v": [value] * 4}, SCHEMA)


class Case:
    """A table of one partition, whose rows have the value 1; 2 after it was created again."""

    def __init__(self, connection: FlussConnection, keys: bool) -> None:
        self.keys = keys
        self.connection = connection
        self.admin = connection.get_admin()
        self.admin.create_database("again", ignore_if_exists=True)
        self.path = TablePath("again", f"t_{uuid.uuid4().hex[:8]}")
        self.descriptor = TableDescriptor(
            Schema(SCHEMA, ["p", "id"] if keys else None), bucket_count=2, partition_keys=["p"]
        )
        self.create()

    def create(self) -> None:
        self.admin.create_table(self.path, self.descriptor)
        self.admin.create_partition(self.path, {"p": "a"})
        self.fill(1)

    def fill(self, value: int) -> None:
        table = self.connection.get_table(self.path)
        new = table.new_upsert() if self.keys else table.new_append()
        with new.create_writer() as writer:
            writer.write_arrow(rows(value))

    def change(self, what: str) -> None:
        if what == "table":
            self.admin.drop_table(self.path)
            self.admin.create_table(self.path, self.descriptor)
        else:
            self.admin.drop_partition(self.path, {"p": "a"})
        self.admin.create_partition(self.path, {"p": "a"})
        time.sleep(SETTLE_S)
        self.fill(2)

    def source(self, **options: str) -> FlussDataSource:
        return FlussDataSource(
            {
                "path": str(self.path),
                "bootstrap.servers": self.connection.config.bootstrap_servers,
                **{key.replace("_", "."): value for key, value in options.items()},
            }
        )

    def values(self) -> list[int]:
        found = scan_fluss(self.path, connection=self.connection).collect()
        return sorted(found.get_column("v").to_list())


def read(reader: FlussReader | FlussStreamReader, tasks: Iterable[InputPartition]) -> list[int]:
    """Return the values that tasks read."""
    found: list[int] = []
    for task in tasks:
        for batch in reader.read(task):
            found += batch.column(SCHEMA.names.index("v")).to_pylist()
    return sorted(found)


@pytest.fixture(scope="module")
def engine() -> Iterator[FlussConnection]:
    with FlussConnection.create(":memory:") as made:
        yield made


@pytest.fixture(params=[False, True], ids=["log", "keys"])
def case(request: pytest.FixtureRequest, engine: FlussConnection) -> Case:
    return Case(engine, request.param)


@pytest.mark.parametrize("what", WHAT)
def test_a_batch_reader(case: Case, what: str) -> None:
    """Tasks of an earlier plan are refused; a plan that is made now reads what is there now."""
    reader: Any = case.source().reader(spark_schema(SCHEMA))
    planned = reader.partitions()
    assert read(reader, planned) == [1] * 4
    case.change(what)
    for task in planned:
        with pytest.raises(FlussError, match=case.path.table_name) as error:
            read(reader, [task])
        assert error.value.error_code == GONE[what]
    assert read(reader, reader.partitions()) == [2] * 4


@pytest.mark.parametrize("what", WHAT)
def test_a_stream_reader(case: Case, what: str) -> None:
    """Between batches, and amid one that is planned."""
    mode = {"changelog_mode": "upsert"} if case.keys else {}
    reader: Any = case.source(**mode).streamReader(spark_schema(SCHEMA))
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)
    planned = reader.partitions(start, end)
    case.change(what)
    for task in planned:
        with pytest.raises(FlussError, match=case.path.table_name) as error:
            read(reader, [task])
        assert error.value.error_code == GONE[what]
    for ask, *given in ((reader.latestOffset, end, limit), (reader.partitions, start, end)):
        with pytest.raises(FlussError, match=case.path.table_name) as error:
            ask(*given)
        assert error.value.error_code == GONE[what]
    lenient: Any = case.source(fail_on_data_loss="false", **mode).streamReader(spark_schema(SCHEMA))
    if what == "table":
        with pytest.raises(FlussError, match="start over with another checkpoint"):
            lenient.latestOffset(end, limit)
        return
    after = lenient.latestOffset(end, limit)
    assert read(lenient, lenient.partitions(end, after)) == [2] * 4


def of_each(kinds: list[str], of_logs: str) -> pytest.MarkDecorator:
    """Return cases of both kinds of tables, and one that there is for log tables alone."""
    cases = [*itertools.product((False, True), kinds), (False, of_logs)]
    names = [f"{'keys' if keys else 'log'}-{kind}" for keys, kind in cases]
    return pytest.mark.parametrize(("case", "kind"), cases, indirect=["case"], ids=names)


@pytest.mark.parametrize("what", WHAT)
@of_each(["batch", "stream"], "all or nothing")
def test_a_writer(case: Case, what: str, kind: str) -> None:
    """It goes on into a new partition; a table it does not take for the one it began with."""
    schema = spark_schema(SCHEMA)
    options = {"all_or_nothing": "true"} if kind == "all or nothing" else {}
    source = case.source(**options)
    make: Any = source.streamWriter if kind == "stream" else source.writer
    writer = make(schema, False)

    def write(value: int) -> object:
        return writer.write(iter(rows(value).to_batches()))

    def commit(*messages: object) -> None:
        batch = (0,) if kind == "stream" else ()
        writer.commit(list(messages), *batch)

    first = write(3)
    case.change(what)
    if what == "partition":
        second = write(4)
        if kind == "all or nothing":
            # what is staged for a partition is for that one
            with pytest.raises(FlussError, match="created again under its name") as error:
                commit(first, second)
            assert error.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
            assert case.values() == [2] * 4
            return
        commit(first, second)
        # what was acknowledged before the drop is dropped with its partition
        assert case.values() == ([4] * 4 if case.keys else [2] * 4 + [4] * 4)
        return
    if kind != "all or nothing":
        with pytest.raises(FlussError, match="rows that were written before are gone") as error:
            write(4)
        assert error.value.error_code == ErrorCode.TABLE_NOT_EXIST
    with pytest.raises(FlussError, match="rows that were written before are gone"):
        commit(first)
    assert case.values() == [2] * 4


@of_each(["stream"], "exactly once")
def test_a_stream_commits_by_another_writer(case: Case, kind: str) -> None:
    """Spark makes it when the tasks are done: they say which table it was that they wrote to."""
    schema = spark_schema(SCHEMA)
    options = {"delivery_guarantee": "exactly-once"} if kind == "exactly once" else {}

    def made() -> Any:
        return case.source(**options).streamWriter(schema, False)

    batches = iter(rows(3).to_batches())
    writer, query = made(), uuid.uuid4().hex
    message = writer.stage(query, 0, batches) if options else writer.write(batches)
    case.change("table")
    for _ in range(2):
        with pytest.raises(FlussError, match="rows that were written before are gone") as error:
            made().commit([message], 0)
        assert error.value.error_code == ErrorCode.TABLE_NOT_EXIST
        assert case.values() == [2] * 4
    if options:
        # nothing was decided: the batch that runs again goes into the table that there is
        made().commit([made().stage(query, 0, iter(rows(4).to_batches()))], 0)
        assert case.values() == [2] * 4 + [4] * 4


@pytest.mark.parametrize("what", WHAT)
def test_on_spark(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    tmp_path: Path,
    what: str,
) -> None:
    """A dataframe that is held, and a stream from a table into another that both change."""
    source, target = Case(connection, False), Case(connection, False)
    try:
        reader = spark.read.format("fluss")
        reader = reader.option("bootstrap.servers", fluss_cluster.bootstrap_servers)
        held, asked = reader.load(str(source.path)), reader.load(str(source.path))
        assert asked.count() == 4
        stream = (
            spark.readStream.format("fluss")
            .option("bootstrap.servers", fluss_cluster.bootstrap_servers)
            .load(str(source.path))
            .writeStream.format("fluss")
            .option("bootstrap.servers", fluss_cluster.bootstrap_servers)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(target.path))
        )
        try:
            stream.processAllAvailable()
            assert target.values() == [1] * 8
            target.change(what)
            source.fill(5)
            stream.processAllAvailable()
            # Spark makes a writer for each batch
            assert target.values() == [2] * 4 + [5] * 4
        finally:
            stream.stop()
        source.change(what)
        # a new plan, of a dataframe that was never run and of one that was
        for frame in (held, asked.where("v > 0")):
            assert [row.v for row in frame.collect()] == [2] * 4
    finally:
        for made in (source, target):
            made.admin.drop_table(made.path, ignore_if_not_exists=True)
