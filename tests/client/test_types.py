"""Every type with nulls and extremes, written by either client and read by either."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.types import Column, DataType, TypeRoot
from tests.client.support import Official, Tables

D = Decimal
_WIDE = decimal.Context(prec=60)


def decimals(precision: int, scale: int) -> list[Decimal]:
    largest = _WIDE.scaleb(D(10**precision - 1), -scale)
    return [largest, largest.copy_negate(), D(0), _WIDE.scaleb(D(1), -scale)]


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def local(unit: str) -> pa.Array:
    first, last = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999
    if unit == "ns":
        first, last = -(2**63) // 10**9 + 1, 2**63 // 10**9 - 1
    values = [0, -1, 1, first * PER_SECOND[unit], last * PER_SECOND[unit], None]
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit))


def zoned(unit: str) -> pa.Array:
    return local(unit).cast(pa.int64()).cast(pa.timestamp(unit, "UTC"))


COLUMNS: dict[str, pa.Array] = {
    "boolean": pa.array([True, False, None]),
    "tinyint": pa.array([-(2**7), 2**7 - 1, 0, None], pa.int8()),
    "smallint": pa.array([-(2**15), 2**15 - 1, 0, None], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
    "float": pa.array([1.5, -0.0, math.inf, -math.inf, 3.4028235e38, 1e-45, None], pa.float32()),
    "double": pa.array([1.5, -0.0, math.inf, -math.inf, 1.7976931348623157e308, 5e-324, None]),
    "string": pa.array(["", "a", "ä€😀", "\0", "x" * 10_000, None]),
    "bytes": pa.array([b"", b"\0\xff", b"x" * 10_000, None]),
    "binary": pa.array([b"\0\0\0", b"\xff\xff\xff", None], pa.binary(3)),
    "decimal(5,2)": pa.array([*decimals(5, 2), None], pa.decimal128(5, 2)),
    "decimal(18,0)": pa.array([*decimals(18, 0), None], pa.decimal128(18, 0)),
    "decimal(19,5)": pa.array([*decimals(19, 5), None], pa.decimal128(19, 5)),
    "decimal(38,38)": pa.array([*decimals(38, 38), None], pa.decimal128(38, 38)),
    "date": pa.array([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
    "time(0)": pa.array([0, 86_399, None], pa.int32()).cast(pa.time32("s")),
    "time(3)": pa.array([0, 86_399_999, None], pa.int32()).cast(pa.time32("ms")),
    "time(6)": pa.array([0, 86_399_999_999, None], pa.int64()).cast(pa.time64("us")),
    "time(9)": pa.array([0, 86_399_999_999_999, None], pa.int64()).cast(pa.time64("ns")),
    "timestamp(0)": local("s"),
    "timestamp(3)": local("ms"),
    "timestamp(6)": local("us"),
    "timestamp(9)": local("ns"),
    "timestamp_ltz(0)": zoned("s"),
    "timestamp_ltz(3)": zoned("ms"),
    "timestamp_ltz(6)": zoned("us"),
    "timestamp_ltz(9)": zoned("ns"),
    "array<int>": pa.array([[1, None, 3], [], None, [2**31 - 1]], pa.list_(pa.int32())),
    "array<string>": pa.array([["", None, "ä"], [], None], pa.list_(pa.string())),
    "array<array<int>>": pa.array([[[1], [], None], [], None], pa.list_(pa.list_(pa.int32()))),
    "map<string,int>": pa.array(
        [[("a", 1), ("", None)], [], None], pa.map_(pa.string(), pa.int32())
    ),
    "row<int,string>": pa.array(
        [{"x": 1, "y": "a"}, {"x": None, "y": None}, None],
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
    ),
    "array<row>": pa.array(
        [[{"x": 1, "y": [1.5]}, None], [], None],
        pa.list_(pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float64()))])),
    ),
    "map<int,row>": pa.array(
        [[(1, {"t": dt.datetime(1969, 7, 20)})], [(2, None)], None],
        pa.map_(pa.int32(), pa.struct([("t", pa.timestamp("us"))])),
    ),
    "row<row>": pa.array(
        [{"a": {"b": D("1.20")}}, {"a": None}, None],
        pa.struct([("a", pa.struct([("b", pa.decimal128(10, 2))]))]),
    ),
}
# whose rows are encoded by themselves where they come alone
PLAIN = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "bytes"),
    *("decimal(5,2)", "decimal(18,0)", "date", "timestamp(3)", "timestamp(6)"),
    *("timestamp_ltz(3)", "timestamp_ltz(6)"),
]
ROWS = 12
SCHEMA = pa.schema([("row", pa.int32()), *((n, c.type) for n, c in COLUMNS.items())])
TYPE, LEVEL = "table.log.arrow.compression.type", "table.log.arrow.compression.zstd.level"
CODECS = [{TYPE: "NONE"}, {TYPE: "LZ4_FRAME"}, {TYPE: "ZSTD"}, {TYPE: "ZSTD", LEVEL: "3"}]
# the official client reads these and does not write them
OUR_CODECS = [{TYPE: "ZSTD", LEVEL: "1"}, {TYPE: "ZSTD", LEVEL: "22"}]


def everything() -> pa.Table:
    """Every value of every column, each over and over until there are ROWS of it."""
    columns = [c.take(pa.array([i % len(c) for i in range(ROWS)])) for c in COLUMNS.values()]
    return pa.Table.from_arrays([pa.array(range(ROWS), pa.int32()), *columns], schema=SCHEMA)


@pytest.fixture(scope="module", params=CODECS, ids=lambda p: "-".join(p.values()))
def both_wrote(
    request: pytest.FixtureRequest, tables: Tables, official_client: Official
) -> tuple[fluss.FlussTable, pa.Table]:
    """A table that we wrote to, then the official client the same again."""
    table = tables(SCHEMA, properties=request.param)
    tables.write(table, everything())
    official_client.write(table, everything())
    return table, pa.concat_tables([everything(), everything()])


def test_we_read_what_both_wrote(
    tables: Tables, both_wrote: tuple[fluss.FlussTable, pa.Table]
) -> None:
    table, expected = both_wrote
    got = tables.read(table)
    assert got.schema == expected.schema
    for name in expected.schema.names:
        assert got.column(name).equals(expected.column(name)), name
    got.validate(full=True)


def test_the_official_client_reads_what_both_wrote(
    official_client: Official, both_wrote: tuple[fluss.FlussTable, pa.Table]
) -> None:
    table, expected = both_wrote
    got = official_client.read(table)
    for name in expected.schema.names:
        column = got.column(name)
        assert column.cast(expected.schema.field(name).type).equals(expected.column(name)), name


@pytest.mark.parametrize("properties", CODECS[:3], ids=lambda p: p[TYPE])
def test_rows_sent_alone(
    tables: Tables, official_client: Official, properties: dict[str, str]
) -> None:
    """Rows that are waited for one by one are not encoded as many are."""
    expected = everything().select(["row", *PLAIN])
    table = tables(expected.schema, properties=properties)
    with table.new_append().create_writer() as writer:
        for row in expected.to_pylist():
            writer.append(row).wait()
    assert tables.read(table).equals(expected)
    # projected by the server
    for names in ([PLAIN[-1], "row"], ["string", "bytes"]):
        assert tables.read(table, names).equals(expected.select(names))
    got = official_client.read(table)
    for name in expected.schema.names:
        column = got.column(name).cast(expected.schema.field(name).type)
        assert column.equals(expected.column(name)), name


@pytest.mark.parametrize("properties", CODECS[:3], ids=lambda p: p[TYPE])
def test_small_batches_between_large_ones(
    tables: Tables, official_client: Official, properties: dict[str, str]
) -> None:
    """Small batches are not compressed where large ones are; a server cuts columns out of both."""
    schema = everything().select(["row", *PLAIN]).schema
    table = tables(schema, properties=properties)
    parts = [everything().select(schema.names).slice(0, rows) for rows in (1, 2, 9, ROWS, 3)]
    parts.insert(2, pa.concat_tables([parts[3]] * 20).combine_chunks())
    for part in parts:
        with table.new_append().create_writer() as writer:
            writer.write_arrow(part)
        official_client.write(table, part.combine_chunks())
    expected = pa.concat_tables([part for part in parts for _ in range(2)])
    for names in (schema.names, ["row"], [PLAIN[-1], "row"], ["string", "bytes"]):
        assert tables.read(table, names).equals(expected.select(names))
        got = official_client.read(table, names)
        for name in names:
            column = got.column(name).cast(schema.field(name).type)
            assert column.equals(expected.column(name)), name


@pytest.mark.parametrize("properties", OUR_CODECS, ids=lambda p: p[LEVEL])
def test_other_levels_of_zstd(
    tables: Tables, official_client: Official, properties: dict[str, str]
) -> None:
    table = tables(SCHEMA, properties=properties)
    tables.write(table, everything())
    assert tables.read(table).equals(everything())
    got = official_client.read(table)
    assert got.num_rows == ROWS
    assert got.column("string").equals(everything().column("string"))


def test_the_level_matters(tables: Tables) -> None:
    data = pa.table({"text": [f"line {i * 7919 % 1000} of {i % 17}" for i in range(20_000)]})
    sizes = {}
    for level in ("1", "3", "22"):
        table = tables(data.schema, properties={TYPE: "ZSTD", LEVEL: level})
        tables.write(table, data)
        scanner = tables.scanner(table)
        assert scanner.to_arrow().equals(data)
        sizes[level] = scanner.metrics.record_bytes
    assert sizes["22"] < sizes["3"] < data.nbytes
    assert sizes["1"] != sizes["3"]


@pytest.fixture(scope="module")
def table_of_everything(tables: Tables) -> fluss.FlussTable:
    table = tables(SCHEMA)
    tables.write(table, everything())
    return table


@pytest.mark.parametrize("name", SCHEMA.names)
def test_each_column_alone(
    tables: Tables, table_of_everything: fluss.FlussTable, name: str
) -> None:
    got = tables.read(table_of_everything, [name])
    assert got.equals(everything().select([name]))


@pytest.mark.parametrize(
    "names",
    [
        SCHEMA.names[::-1],
        SCHEMA.names[::2],
        ["string", "boolean", "map<string,int>"],
        ["row<row>", "row"],
    ],
)
def test_columns_in_another_order(
    tables: Tables, table_of_everything: fluss.FlussTable, names: list[str]
) -> None:
    assert tables.read(table_of_everything, names).equals(everything().select(names))


def test_columns_by_index(tables: Tables, table_of_everything: fluss.FlussTable) -> None:
    scan = table_of_everything.new_scan().project([5, 1, 8])
    scanner = tables.subscribe_all(scan.create_record_batch_log_scanner(), table_of_everything)
    names = [SCHEMA.names[i] for i in (5, 1, 8)]
    assert scanner.to_arrow().equals(everything().select(names))


def test_projection_fetches_less(table_of_everything: fluss.FlussTable, tables: Tables) -> None:
    whole, one = tables.scanner(table_of_everything), tables.scanner(table_of_everything, ["row"])
    whole.to_arrow()
    one.to_arrow()
    assert 0 < one.metrics.record_bytes < whole.metrics.record_bytes / 3


def test_rows_as_python_values(tables: Tables, official_client: Official) -> None:
    """Rows as dicts, lists and tuples are what the same values are as Arrow."""
    rows = everything().to_pylist(maps_as_pydicts="strict")
    names = [n for n in SCHEMA.names if n not in NANOSECONDS]
    table = tables(everything().select(names).schema)
    with table.new_append().create_writer() as writer:
        for i, row in enumerate(rows):
            values: Any = {name: row[name] for name in names}
            if i % 3:
                values = [list, tuple][i % 2](values.values())
            writer.append(values)
    assert tables.read(table).equals(everything().select(names))


# Python's datetime and time have no nanoseconds
NANOSECONDS = {"time(9)", "timestamp(9)", "timestamp_ltz(9)"}


def test_records_are_python_values(tables: Tables, table_of_everything: fluss.FlussTable) -> None:
    names = [n for n in SCHEMA.names if n not in NANOSECONDS]
    scan = table_of_everything.new_scan().project_by_name(names)
    scanner = scan.create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    rows = [record.row for record in scanner.poll(5000)]
    assert rows == everything().select(names).to_pylist()


def test_char_columns(tables: Tables, connection: fluss.FlussConnection) -> None:
    columns = [
        Column("c", DataType(TypeRoot.CHAR, length=3)),
        Column("i", DataType(TypeRoot.INTEGER)),
    ]
    path = tables.path()
    descriptor = fluss.TableDescriptor(fluss.Schema.from_columns(columns), bucket_count=1)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    assert table.get_table_info().schema.get_column_types() == ["char(3)", "int"]
    data = pa.table({"c": ["abc", "äöü", None]}).append_column("i", pa.array([1, 2, 3], pa.int32()))
    tables.write(table, data)
    assert tables.read(table).equals(data)


def test_wide_table(tables: Tables) -> None:
    names = [f"c{i}" for i in range(300)]
    data = pa.table({name: pa.array([i, None], pa.int64()) for i, name in enumerate(names)})
    table = tables(data.schema)
    tables.write(table, data)
    assert tables.read(table).equals(data)
    some = names[250:0:-50]
    assert tables.read(table, some).equals(data.select(some))


def test_all_null_and_empty(tables: Tables) -> None:
    data = pa.Table.from_arrays([pa.nulls(5, f.type) for f in SCHEMA], schema=SCHEMA)
    table = tables(SCHEMA)
    assert tables.read(table).equals(data.slice(0, 0))
    tables.write(table, data.slice(0, 0))
    assert tables.read(table).num_rows == 0
    tables.write(table, data)
    assert tables.read(table).equals(data)
