"""Texts of filters at their edges, and what happens between two questions of Spark.

Most need no JVM: the source is asked as Spark asks it, in this process, on an embedded engine.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, Not
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.metadata import TablePath
from fluss_df.pushdown.evaluate import filter_rows
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark.plan.filters import from_spark
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.plan.sql_filter import parse_filter
from fluss_df.spark.queries.queries import SqlScan, _narrowed
from fluss_df.spark.read.streaming import FlussStreamReader
from fluss_df.spark.source import FlussDataSource, FlussReader

SCHEMA = pa.schema(
    {"a": pa.int64(), "x": pa.struct([("a", pa.int64())]), "f": pa.float64(), "day": pa.date32()}
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day > TIMESTAMP_LTZ '0001-01-01 00:00:00+02:00'", "cannot be compared with timestamp"),
        ("x.a = 1", "may be a field of column 'x'"),
        ("`X`.a = 1", "may be a field of column 'X'"),
        ("f < 1e400", "larger than every DOUBLE"),
        ("f > -1e999", "larger than every DOUBLE"),
        pytest.param("(" * 3000 + "a = 1" + ")" * 3000, "nested too deeply", id="brackets"),
        pytest.param("a = 1" + " AND a = 1" * 5000, "nested too deeply", id="and"),
    ],
)
def test_what_a_filter_cannot_say_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        parse_filter(text, SCHEMA, "America/New_York", "table d.t")


@pytest.mark.parametrize(
    "text", ["day LIKE '2020-01-01'", "day NOT LIKE '2020-01-01'", "a LIKE '1'"]
)
def test_texts_of_other_types_are_not_compared(text: str) -> None:
    """Spark compares how the values are written: a day's first moment is written with its time."""
    with pytest.raises(FlussError, match="is no string"):
        parse_filter(text, SCHEMA, "UTC", "table d.t")


def test_a_qualified_column_of_the_table_is_taken() -> None:
    assert str(parse_filter("t.a = 1", SCHEMA, "UTC", "table d.t")) == "a == 1"


_NUMBERS = pa.table(
    {
        "d": pa.array(["0.99", "1.00", "1.01", "2.50", None]).cast(pa.decimal128(10, 2)),
        "wide": pa.array(["1", "1.000000000000000000000000000001", "2", "5", None]).cast(
            pa.decimal128(38, 30)
        ),
        "i": pa.array([1, 2, 5, -5, None], pa.int32()),
        "b": pa.array([1, 2, 1 << 62, -5, None], pa.int64()),
    }
)
_COMPARISONS = {
    "d > 1": "d > 1.00",
    "1 >= d": "d <= 1.00",
    "d IN (1, 2.5)": "d in",
    "d BETWEEN 1 AND 2": "d >= 1.00",
    "d <=> 1L": "d == 1.00",
    "wide = 1": "wide == 1.0",
    "wide IN (1.0)": "wide",
    "i = 5.0": "i == 5",
    "i IN (1, -5.0)": "i in",
    "b = 4611686018427387904.0": "b == 4611686018427387904",
}


def test_whole_numbers_are_compared_with_decimals(classic_spark: SparkSession) -> None:
    """As Spark compares them, and pushed down: also a decimal with whole values on an integer."""
    classic_spark.createDataFrame(_NUMBERS).createOrReplaceTempView("numbers")
    made = ", ".join(f"({text}) AS c{i}" for i, text in enumerate(_COMPARISONS))
    expected = classic_spark.sql(f"SELECT {made} FROM numbers").toArrow()
    for i, (text, shown) in enumerate(_COMPARISONS.items()):
        predicate = parse_filter(text, _NUMBERS.schema, "UTC", "table d.t")
        assert shown in str(predicate), text
        there = _NUMBERS.filter(expected.column(f"c{i}"))
        assert filter_rows(predicate, _NUMBERS).equals(there), text


@pytest.mark.parametrize("text", ["wide IN (1)", "i = 5.5", "d > 1.234", "d > 1000000000"])
def test_numbers_that_would_be_rounded_are_refused(text: str) -> None:
    with pytest.raises(FlussError, match="cannot be evaluated by the scan"):
        parse_filter(text, _NUMBERS.schema, "UTC", "table d.t")


@pytest.fixture
def engine() -> Iterator[FlussConnection]:
    with EmbeddedFluss(None) as served, served.connection() as connection:
        yield connection


def test_a_partition_that_comes_while_a_trigger_begins(engine: FlussConnection) -> None:
    """Spark asks for the ends of ``AvailableNow`` before it asks where a new query starts."""
    fields = pa.schema({"p": pa.string(), "id": pa.int64()})
    path = TablePath("fluss", "later")
    engine.get_admin().create_table(
        path, TableDescriptor(Schema(fields), partition_keys=["p"], bucket_count=2)
    )

    def write(place: str, number: int) -> None:
        row = pa.table({"p": [place], "id": [number]}, fields)
        with engine.get_table(path).new_append().create_writer(create_partitions=True) as writer:
            writer.write_arrow(row)

    write("old", 1)
    source = FlussDataSource({"path": str(path), "connection": engine.config.bootstrap_servers})
    ids = []
    stored = None
    for _ in range(2):
        reader = source.streamReader(source.schema())
        assert isinstance(reader, FlussStreamReader)
        reader.prepareForTriggerAvailableNow()
        if stored is None:
            write("new", 2)
        start = reader.initialOffset() if stored is None else stored
        stored = reader.latestOffset(start, ReadAllAvailable())
        tasks = reader.partitions(start, stored)
        ids.append([row["id"] for t in tasks for b in reader.read(t) for row in b.to_pylist()])
        assert reader.latestOffset(stored, ReadAllAvailable()) == stored
    assert ids == [[1], [2]]


NESTED = pa.schema(
    {
        "l": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.int64()),
        "ll": pa.list_(pa.struct([("x", pa.list_(pa.int32()))])),
    }
)
_FULL = {"l": [1], "m": [("a", 1)], "ll": [{"x": [1]}, None]}
_NULL = {"l": [2, None], "m": [("b", None)], "ll": [{"x": [None]}]}


def test_nulls_within_lists_that_a_schema_says_are_none(engine: FlussConnection) -> None:
    """Spark itself would say 'Value at index is null', and name no column."""
    schema = (
        StructType()
        .add("l", ArrayType(IntegerType(), False))
        .add("m", MapType(StringType(), LongType(), False))
        .add("ll", ArrayType(StructType().add("x", ArrayType(IntegerType(), False))))
    )
    path = TablePath("fluss", "nested")
    engine.get_admin().create_table(path, TableDescriptor(Schema(NESTED), bucket_count=1))
    writer = engine.get_table(path).new_append().create_writer()
    source = FlussDataSource({"path": str(path), "connection": engine.config.bootstrap_servers})

    def read(names: list[str], wanted: StructType = schema) -> list[dict[str, object]]:
        reader = source.reader(StructType([wanted[name] for name in names]))
        assert isinstance(reader, FlussReader)
        tasks = reader.partitions()
        return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]

    with writer:
        writer.write_arrow(pa.Table.from_pylist([_FULL, dict.fromkeys(NESTED.names)], NESTED))
        writer.flush()
        assert read(NESTED.names) == [_FULL, dict.fromkeys(NESTED.names)]
        writer.write_arrow(pa.Table.from_pylist([_NULL], NESTED))
    for name in NESTED.names:
        with pytest.raises(SchemaMismatchError, match=f"'{name}' has nulls in its lists or maps"):
            read([name])
    assert read(NESTED.names, source.schema())[2] == _NULL


_TIMES = pa.schema(
    {
        "l": pa.list_(pa.time64("ns")),
        "m": pa.map_(pa.int32(), pa.time64("ns")),
        "r": pa.struct([("x", pa.list_(pa.time64("ns")))]),
    }
)


def test_nanoseconds_of_times_within_lists_maps_and_rows(engine: FlussConnection) -> None:
    """As of times alone: Spark, which holds six digits, compared what it did not show."""
    path = TablePath("fluss", "times")
    engine.get_admin().create_table(path, TableDescriptor(Schema(_TIMES), bucket_count=1))

    def read(name: str, **options: str) -> list[int]:
        given = {"path": str(path), "connection": engine.config.bootstrap_servers, "columns": name}
        source = FlussDataSource({**given, **options})
        reader = source.reader(source.schema())
        assert isinstance(reader, FlussReader)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        column = pa.Table.from_batches(batches).column(0).combine_chunks()
        while pa.types.is_nested(column.type):
            column = column.items if pa.types.is_map(column.type) else column.flatten()
            column = column[0] if isinstance(column, list) else column
        found: list[int] = column.cast(pa.int64()).to_pylist()
        return found

    def write(time: int) -> None:
        at = pa.scalar(time, pa.time64("ns"))
        row = {"l": [at], "m": [(1, at)], "r": {"x": [at]}}
        columns = [pa.array([row[field.name]], field.type) for field in _TIMES]
        with engine.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.Table.from_arrays(columns, schema=_TIMES))

    write(1_000_000_000)
    for name in _TIMES.names:
        assert read(name) == [1_000_000_000]
    write(1_000_000_001)
    for name in _TIMES.names:
        with pytest.raises(FlussError, match=f"column '{name}' .* cannot hold as"):
            read(name)
        cut = read(name, **{"truncate.nanoseconds": "true"})
        assert cut == [1_000_000_000] * 2


def test_a_column_that_is_named_twice(engine: FlussConnection) -> None:
    """Spark itself would fail with words of its JVM."""
    path = TablePath("fluss", "twice")
    engine.get_admin().create_table(path, TableDescriptor(Schema(_TIMES), bucket_count=1))
    given = {"path": str(path), "connection": engine.config.bootstrap_servers}
    with pytest.raises(
        FlussError, match=r"'metadata\.columns' names column '_bucket' .* more than"
    ):
        FlussDataSource({**given, "metadata.columns": "_bucket,_bucket"}).schema()
    schema = StructType().add("_bucket", IntegerType()).add("_bucket", IntegerType())
    reader = FlussDataSource(given).reader(schema)
    assert isinstance(reader, FlussReader)
    with pytest.raises(FlussError, match=r"the schema names column '_bucket' .* more than once"):
        reader.partitions()


def test_a_time_zone_of_spark_that_no_filter_has(engine: FlussConnection) -> None:
    """A session may have one by its offset: conditions for which it does not count are pushed."""
    path = TablePath("fluss", "zones")
    engine.get_admin().create_table(path, TableDescriptor(Schema(SCHEMA), bucket_count=1))
    options = {"table": str(path), "connection": engine.config.bootstrap_servers}
    scan = SqlScan("v", str(path), ("a",), "a > 1")
    table = TableScan(ReadOptions.parse(options))
    narrowed = _narrowed(options, scan, table, "+05:30")
    assert (narrowed["filter"], narrowed["filter.timezone"]) == ("a > 1", "UTC")
    ReadOptions.parse(narrowed)


_DAY = pa.schema({"day": pa.date32(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")})


@pytest.mark.parametrize(
    ("item", "taken"),
    [
        # what 1582-10-10 becomes on its way, which may as well be itself
        (EqualTo(("day",), dt.date(1582, 10, 15)), False),
        (In(("day",), (dt.date(2024, 1, 1), dt.date(1582, 10, 15))), False),
        (Not(GreaterThan(("day",), dt.date(1582, 10, 10))), False),
        (EqualTo(("day",), dt.date(1582, 9, 1)), True),
        (EqualTo(("at",), dt.datetime(1582, 10, 15, 12, tzinfo=dt.UTC)), False),
        (EqualTo(("at",), dt.datetime(1883, 11, 18, 17, tzinfo=dt.UTC)), False),
        (EqualTo(("at",), dt.datetime(1900, 2, 1, tzinfo=dt.UTC)), True),
        (EqualTo(("local",), dt.datetime(1883, 11, 18, 17)), True),
    ],
)
def test_days_that_spark_may_have_moved_are_left_to_it(item: Filter, taken: bool) -> None:
    assert bool(from_spark([item], _DAY)) is taken


def test_a_day_that_the_julian_calendar_has_not(classic_spark: SparkSession) -> None:
    days = [dt.date(1582, 10, 4), dt.date(1582, 10, 10), dt.date(1582, 10, 20), None]
    with EmbeddedFluss(None, port=0) as engine, engine.connection() as connection:
        path = TablePath("fluss", "days")
        schema = pa.schema({"day": pa.date32()})
        connection.get_admin().create_table(path, TableDescriptor(Schema(schema), bucket_count=1))
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"day": days}, schema))
        classic_spark.dataSource.register(FlussDataSource)
        reader = classic_spark.read.format("fluss").option("connection", str(engine.address))
        rows = reader.option("push.filters", "true").load(str(path))
        found = rows.where("day IN (DATE '1582-10-10', DATE '1582-10-04')").collect()
    assert sorted(row.day for row in found) == days[:2]
