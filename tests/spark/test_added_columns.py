"""Columns that a destination gets while a job of Spark writes it: no row is lost or called so."""

from __future__ import annotations

import itertools
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    DayTimeIntervalType,
    IntegerType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import SchemaMismatchError
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark import FlussDataSource
from fluss_df.spark.plan.options import ReadOptions, time_zone
from fluss_df.spark.plan.types import spark_schema
from tests.spark.sinks import SCHEMA, STEPS, Sink, die, engine, rows, sink

# fixtures of that module
__all__ = ["engine", "sink"]

MORE = pa.schema({"more": pa.int32()})
BOTH = pa.schema([*SCHEMA, *MORE])


@pytest.fixture(params=["engine", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[FlussConnection]:
    """An engine, and a real server: both take batches of a schema before the newest."""
    named = {"engine": "engine", "cluster": "connection"}
    made: FlussConnection = request.getfixturevalue(named[request.param])
    yield made
    for database in ("added", "sinks"):
        made.get_admin().drop_database(database, ignore_if_not_exists=True, cascade=True)


class Write:
    """A table of an engine, and writers of its source as Spark makes them."""

    def __init__(self, connection: FlussConnection, name: str, schema: pa.Schema, keys: bool):
        self.connection = connection
        self.path = TablePath("added", name)
        admin = connection.get_admin()
        admin.create_database("added", ignore_if_exists=True)
        admin.drop_table(self.path, ignore_if_not_exists=True)
        columns = Schema(schema, ["id"] if keys else None)
        admin.create_table(self.path, TableDescriptor(columns, bucket_count=1))

    def writer(self, stream: bool, schema: pa.Schema = SCHEMA, **options: str) -> Any:
        given = {
            "path": str(self.path),
            "bootstrap.servers": self.connection.config.bootstrap_servers,
            **{key.replace("_", "."): value for key, value in options.items()},
        }
        source = FlussDataSource(given)
        made = source.streamWriter if stream else source.writer
        return made(schema if isinstance(schema, StructType) else spark_schema(schema), False)

    def add(self) -> None:
        self.connection.get_admin().alter_table(self.path, add_columns=MORE)

    def found(self) -> list[dict[str, Any]]:
        return scan_fluss(self.path, connection=self.connection).collect().sort("id").to_dicts()


def batches(start: int, stop: int, schema: pa.Schema = SCHEMA) -> Iterator[pa.RecordBatch]:
    return iter(rows(start, stop).to_arrow().select(schema.names).cast(schema).to_batches())


@pytest.mark.parametrize(
    ("kind", "keys"),
    [*itertools.product(("batch", "stream"), (False, True)), ("all or nothing", False)],
)
def test_a_write_is_committed(server: FlussConnection, kind: str, keys: bool) -> None:
    """Its rows are acknowledged, or staged: who writes them again has them twice."""
    write = Write(server, "committed", SCHEMA, keys)
    stream = kind == "stream"
    options = {"all_or_nothing": "true"} if kind == "all or nothing" else {}
    writer = write.writer(stream, **options)
    message = writer.write(batches(0, 4))
    write.add()
    # Spark makes another writer for the commit of a stream
    committer = write.writer(stream, **options) if stream else writer
    committer.commit([message], *([0] if stream else []))
    assert write.found() == [{"id": n, "part": "a", "more": None} for n in range(4)]


@pytest.mark.parametrize("step", STEPS)
def test_an_exactly_once_stream_goes_on(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The batch that is open comes again with the rows that it had, and without the column."""
    die(monkeypatch, step, sink)
    sink.connection.get_admin().alter_table(sink.table, add_columns=MORE)
    sink.batch(3, 30, 40)
    sink.batch(4, 40, 50)
    assert sink.found() == list(range(50))


def test_an_exactly_once_stream_amid_a_batch(server: FlussConnection, tmp_path: Path) -> None:
    """Between a task and the commit; tasks before and after it are of one batch."""
    sink = Sink(server, tmp_path / "checkpoint", False)
    staged = [sink.writer().stage(sink.query, 0, batches(0, 5))]
    server.get_admin().alter_table(sink.table, add_columns=MORE)
    staged.append(sink.writer().stage(sink.query, 0, batches(5, 10)))
    sink.writer().commit(list(staged), 0)
    assert sink.found() == list(range(10))


@pytest.mark.parametrize(
    ("stream", "options"),
    [(False, {}), (True, {}), (False, {"all_or_nothing": "true"})],
    ids=["batch", "stream", "all or nothing"],
)
def test_appended_rows_have_nulls_where_they_have_no_column(
    engine: FlussConnection, stream: bool, options: dict[str, str]
) -> None:
    write = Write(engine, "filled", BOTH, False)
    writer = write.writer(stream, **options)
    message = writer.write(batches(0, 3))
    writer.commit([message], *([0] if stream else []))
    assert write.found() == [{"id": n, "part": "a", "more": None} for n in range(3)]


def test_what_is_refused(engine: FlussConnection) -> None:
    """Columns that must have values, that a table has not, that an upsert would make null."""
    write = Write(engine, "strict", pa.schema([SCHEMA.field(0).with_nullable(False)]), False)
    other = pa.schema({"ids": pa.int64()})
    with pytest.raises(SchemaMismatchError, match="column 'ids' is none of id; did you mean 'id'"):
        write.writer(False, other)
    write.add()
    with pytest.raises(SchemaMismatchError, match=r"'id' .* is missing .*: it is NOT NULL"):
        write.writer(False, MORE)
    with pytest.raises(SchemaMismatchError, match="has no columns for it; there are id, more"):
        write.writer(False, pa.schema([]))
    write = Write(engine, "strict", BOTH, True)
    told = r"'more' .* is missing .*write\.mode='partial-update'"
    with pytest.raises(SchemaMismatchError, match=told):
        write.writer(False)
    # the writer of a stream may be one for a commit: a task checks what it writes
    with pytest.raises(SchemaMismatchError, match=told):
        write.writer(True).write(batches(0, 1))
    writer = write.writer(True, write_mode="partial-update")
    writer.commit([writer.write(batches(0, 1))], 0)
    assert write.found() == [{"id": 0, "part": "a", "more": None}]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            YearMonthIntervalType(0, 1),
            "is interval year to month, which cannot be written: cast it",
        ),
        (DayTimeIntervalType(), "cast it to an integer first|cast it to int64"),
    ],
)
def test_types_that_fluss_has_not(engine: FlussConnection, kind: Any, told: str) -> None:
    write = Write(engine, "types", BOTH, False)
    schema = StructType([StructField("id", IntegerType()), StructField("more", kind)])
    for stream in (False, True):
        with pytest.raises(SchemaMismatchError, match=told) as error:
            write.writer(stream, schema).write(iter(()))
        assert "added.types" in error.value.message
        assert "'more'" in error.value.message


@pytest.mark.parametrize("kind", ["at-least-once", "exactly-once", "upserts"])
def test_on_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A task of the stream adds the column, as another program would; then it goes on.

    An upsert, which would make the column null in rows that have it, does not go on.
    """
    with EmbeddedFluss(None, port=0) as server, server.connection() as connection:
        address = str(server.address)
        admin = connection.get_admin()
        source, target = TablePath("fluss", "source"), TablePath("fluss", "target")
        for path, keys in ((source, None), (target, ["id"] if kind == "upserts" else None)):
            admin.create_table(path, TableDescriptor(Schema(SCHEMA, keys), bucket_count=1))
        write_fluss(rows(0, 5), source, connection=connection)

        def adding(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import fluss_df

            yield from parts
            there = fluss_df.connect(address)
            path = fluss_df.TablePath("fluss", "target")
            if "more" not in there.get_table(path).get_table_info().get_column_names():
                there.get_admin().alter_table(path, add_columns=pa.schema({"more": pa.int32()}))

        for stop in (5, 8):
            reader = spark.readStream.format("fluss").option("connection", address)
            stream = reader.load(str(source)).mapInArrow(adding, "id bigint, part string")
            writer = stream.writeStream.format("fluss").option("connection", address)
            if kind != "upserts":
                writer = writer.option("delivery.guarantee", kind)
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start(str(target))
            try:
                query.awaitTermination(120)
            except StreamingQueryException as error:
                assert (kind, stop) == ("upserts", 8)
                # told before any task starts
                top = str(error).splitlines()[:9]
                assert any("'more' (int) is missing in the data" in line for line in top)
                return
            finally:
                query.stop()
            found = scan_fluss(target, connection=connection).collect()
            assert sorted(found["id"]) == list(range(stop))
            assert found["more"].null_count() == stop
            write_fluss(rows(5, 8), source, connection=connection)
    assert kind != "upserts"


@pytest.mark.parametrize("kind", ["batch", "stream", "all or nothing"])
@pytest.mark.parametrize("where", [{"partition_keys": ["part"]}, {"bucket_keys": ["part"]}])
def test_columns_that_say_where_rows_go_are_not_filled(
    engine: FlussConnection, kind: str, where: dict[str, list[str]]
) -> None:
    path = TablePath("fluss", f"places_{uuid.uuid4().hex[:12]}")
    descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2, **where)  # type: ignore[arg-type]
    engine.get_admin().create_table(path, descriptor)
    given = {"path": str(path), "bootstrap.servers": engine.config.bootstrap_servers}
    if kind == "all or nothing":
        given["all.or.nothing"] = "true"
    source = FlussDataSource(given)
    made = source.streamWriter if kind == "stream" else source.writer

    def write() -> None:
        writer: Any = made(spark_schema(SCHEMA.remove(1)), False)
        # Spark plans streams in a process of its own; here the task finds it
        writer.write(batches(0, 2, SCHEMA.remove(1)))

    with pytest.raises(SchemaMismatchError, match="column 'part' is missing in the data: it says"):
        write()


def test_utc_needs_no_database_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    read = ReadOptions.parse({"path": "t", "bootstrap.servers": "127.0.0.1:1"})
    assert read.timezone == "UTC"
    assert time_zone("Europe/Berlin") is None
