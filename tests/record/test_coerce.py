"""Each cell of the table in ``fluss_df.record.python.coerce``."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.coerce import coerce
from fluss_df.types import Column, DataField, DataType, TypeRoot, from_arrow, to_arrow

R = TypeRoot
NAN = float("nan")
CHAR3 = DataType(R.CHAR, length=3)
BIN2 = DataType(R.BINARY, length=2)
ROW = from_arrow(
    pa.struct([("a", pa.string()), pa.field("b", pa.int32(), nullable=False)])
)  # fmt: skip
MAP = from_arrow(pa.map_(pa.string(), pa.int32()))
ENTRY = pa.struct([("key", pa.string()), ("value", pa.int64())])
D = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)
FINE = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)


def fluss(t: pa.DataType | DataType) -> DataType:
    return t if isinstance(t, DataType) else from_arrow(t)


def one(values: pa.Array, t: pa.DataType | DataType, *, nullable: bool = True) -> pa.Table:
    column = Column("c", fluss(t).with_nullable(nullable))
    table: pa.Table = coerce(pa.table({"c": values}), [column], table="d.t")
    table.take(pa.array(range(table.num_rows), pa.int64())).validate(full=True)
    assert table.schema.field(0).type == to_arrow(column.type)
    assert table.schema.field(0).nullable == nullable
    batch = coerce(pa.record_batch({"c": values}), [column], table="d.t")
    assert repr(batch.column(0).to_pylist()) == repr(table.column(0).to_pylist())
    return table


def arr(values: list[Any], t: pa.DataType) -> pa.Array:
    return pa.array(values, t)


def raw(values: list[Any], t: pa.DataType) -> pa.Array:
    """Make an array without a look at its values, as reading a file or C data does."""
    if isinstance(values[-1], bytes):
        return pa.array(values, pa.binary()).view(t) if t != pa.binary_view() else arr(values, t)
    width = t.bit_width // 8
    data = b"".join(value.to_bytes(width, "little", signed=True) for value in values)
    return pa.Array.from_buffers(t, len(values), [None, pa.py_buffer(data)])


TAKEN: list[tuple[str, pa.Array, Any, list[Any]]] = [
    ("string", arr(["a", None], pa.string()), pa.string(), ["a", None]),
    ("large string", arr(["a", None], pa.large_string()), pa.string(), ["a", None]),
    ("string view", arr(["a" * 20, None], pa.string_view()), pa.string(), ["a" * 20, None]),
    ("categorical", arr(["a", None, "a"], pa.string()).dictionary_encode(), pa.string(),
     ["a", None, "a"]),
    ("run-end encoded", pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None]), pa.string(),
     ["x", "x", None]),
    ("extension", pa.ExtensionArray.from_storage(pa.uuid(), arr([b"0" * 16], pa.binary(16))),
     pa.binary(16), [b"0" * 16]),
    ("null type", pa.nulls(2), pa.timestamp("us", "UTC"), [None, None]),
    ("char", arr(["abc", "é", ""], pa.string()), CHAR3, ["abc", "é", ""]),
    ("binary view", arr([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
    ("large binary", arr([b"a"], pa.large_binary()), pa.binary(), [b"a"]),
    ("fixed binary to bytes", arr([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
    ("binary to BINARY(2)", arr([b"ab", None], pa.binary()), BIN2, [b"ab", None]),
    ("binary view to BINARY(2)", arr([b"ab", None], pa.binary_view()), BIN2, [b"ab", None]),
    ("bool", arr([True, None], pa.bool_()), pa.bool_(), [True, None]),
    ("int64 to int8", arr([127, -128, None], pa.int64()), pa.int8(), [127, -128, None]),
    ("uint8 to int8", arr([127], pa.uint8()), pa.int8(), [127]),
    ("uint64 to int64", arr([2**63 - 1], pa.uint64()), pa.int64(), [2**63 - 1]),
    ("int8 to int64", arr([-1], pa.int8()), pa.int64(), [-1]),
    ("double to float", arr([0.5, NAN, None, float("inf")], pa.float64()), pa.float32(),
     [0.5, NAN, None, float("inf")]),
    ("half to float", arr([0.5], pa.float16()), pa.float32(), [0.5]),
    ("float to double", arr([0.1], pa.float32()), pa.float64(), [0.10000000149011612]),
    ("int to float", arr([2**24, -3], pa.int32()), pa.float32(), [2.0**24, -3.0]),
    ("int to double", arr([2**53, 2**60, -(2**63), None], pa.int64()), pa.float64(),
     [2.0**53, 2.0**60, -(2.0**63), None]),
    ("uint64 to double", arr([2**63], pa.uint64()), pa.float64(), [2.0**63]),
    ("int to decimal", arr([999, None], pa.int64()), pa.decimal128(5, 2), [Decimal("999"), None]),
    ("uint64 to decimal", arr([2**64 - 1], pa.uint64()), pa.decimal128(38, 0),
     [Decimal(2**64 - 1)]),
    ("decimal rescaled", arr([Decimal("1.500")], pa.decimal128(10, 3)), pa.decimal128(5, 1),
     [Decimal("1.5")]),
    ("decimal256", arr([Decimal("1.5")], pa.decimal256(60, 20)), pa.decimal128(5, 1),
     [Decimal("1.5")]),
    ("decimal64", arr([Decimal("1.5")], pa.decimal64(10, 1)), pa.decimal128(38, 5),
     [Decimal("1.5")]),
    ("date64", arr([dt.date(2026, 1, 1), None], pa.date64()), pa.date32(),
     [dt.date(2026, 1, 1), None]),
    ("time ns to s", arr([dt.time(1, 2, 3)], pa.time64("ns")), pa.time32("s"), [dt.time(1, 2, 3)]),
    ("time s to us", arr([dt.time(1, 2, 3)], pa.time32("s")), pa.time64("us"), [dt.time(1, 2, 3)]),
    ("timestamp us to ms", arr([D], pa.timestamp("us")), pa.timestamp("ms"), [D]),
    ("timestamp ns to us", arr([FINE], pa.timestamp("ns")), pa.timestamp("us"), [FINE]),
    ("timestamp s to us", arr([dt.datetime(1900, 1, 1)], pa.timestamp("s")), pa.timestamp("us"),
     [dt.datetime(1900, 1, 1)]),
    ("other zone", arr([D], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Asia/Tokyo")),
     pa.timestamp("ms", "UTC"), [D.replace(tzinfo=dt.UTC)]),
    ("large list", arr([[1], None, []], pa.large_list(pa.int64())), pa.list_(pa.int8()),
     [[1], None, []]),
    ("fixed list", arr([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int8()),
     [[1, 2], None]),
    ("list view", arr([[1, 2], None], pa.list_view(pa.int64())), pa.list_(pa.int8()),
     [[1, 2], None]),
    ("nested list", arr([[["a"], None], None], pa.list_(pa.list_(pa.string_view()))),
     pa.list_(pa.list_(pa.string())), [[["a"], None], None]),
    ("list without nulls to NOT NULL", arr([[1], None], pa.list_(pa.int8())),
     pa.list_(pa.field("item", pa.int8(), nullable=False)), [[1], None]),
    ("map", arr([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())), MAP,
     [[("a", 1)], None, []]),
    ("map as Polars has it", arr([[{"key": "a", "value": 1}], None], pa.list_(ENTRY)), MAP,
     [[("a", 1)], None]),
    ("row by name", arr([{"b": 1, "a": "x"}, None], pa.struct([("b", pa.int64()),
     ("a", pa.string())])), ROW, [{"a": "x", "b": 1}, None]),
    ("list of rows", arr([[{"b": 1, "a": None}, None]], pa.list_(pa.struct([("b", pa.int8()),
     ("a", pa.large_string())]))), DataType(R.ARRAY, element=ROW), [[{"a": None, "b": 1}, None]]),
]  # fmt: skip


@pytest.mark.parametrize(("what", "values", "t", "expected"), TAKEN, ids=[t[0] for t in TAKEN])
def test_taken_without_loss(what: str, values: pa.Array, t: Any, expected: list[Any]) -> None:
    got = one(values, t).column(0).to_pylist()
    assert repr(got) == repr(expected) or got == expected
    # the same from the middle of a longer array, and in chunks
    longer = pa.concat_arrays([values, values]) if values.type.id != pa.string_view().id else values
    middle = longer.slice(1, max(len(longer) - 2, 0))
    assert len(one(middle, t)) == len(middle)
    column = Column("c", fluss(t))
    chunked = pa.table({"c": pa.chunked_array([values, values[:0], values], values.type)})
    assert repr(coerce(chunked, [column], table="d.t").column(0).to_pylist()) == repr(got + got)


REFUSED: list[tuple[str, pa.Array, Any, str]] = [
    ("int to string", arr([1], pa.int64()), pa.string(), "cast it to a string"),
    ("binary to string", arr([b"a"], pa.binary()), pa.string(), "cast it to a string"),
    ("string to bytes", arr(["a"], pa.string()), pa.binary(), "cast it to binary"),
    ("string to BINARY", arr(["ab"], pa.string()), BIN2, "cast it to binary"),
    ("char too long", arr(["abc", "abcd"], pa.string()), CHAR3, "row 1: 'abcd'"),
    ("binary of other length", arr([b"ab", b"abc"], pa.binary()), BIN2, "row 1"),
    ("fixed binary of other length", arr([b"abc"], pa.binary(3)), BIN2, "3 bytes"),
    ("int to bool", arr([1], pa.int8()), pa.bool_(), "boolean"),
    ("bool to int", arr([True], pa.bool_()), pa.int8(), "integer"),
    ("float to int", arr([1.0], pa.float64()), pa.int8(), "integer"),
    ("decimal to int", arr([Decimal(1)], pa.decimal128(3, 0)), pa.int8(), "integer"),
    ("string to int", arr(["1"], pa.string()), pa.int8(), "integer"),
    ("duration", arr([1], pa.duration("us")), pa.int64(), "unit you choose"),
    ("int too large", arr([0, None, 128, 129], pa.int64()), pa.int8(), "row 2: 128"),
    ("uint too large", arr([2**63], pa.uint64()), pa.int64(), "row 0: 9223372036854775808"),
    ("double not exact", arr([0.5, 0.1], pa.float64()), pa.float32(), "row 1: 0.1"),
    ("double too large", arr([1e300], pa.float64()), pa.float32(), "row 0"),
    ("int not exact in double", arr([2**53 + 1], pa.int64()), pa.float64(), "row 0"),
    ("largest int in double", arr([2**63 - 1], pa.int64()), pa.float64(), "row 0"),
    ("largest uint in double", arr([2**64 - 1], pa.uint64()), pa.float64(), "row 0"),
    ("int not exact in float", arr([2**24 + 1], pa.int32()), pa.float32(), "row 0"),
    ("bool to float", arr([True], pa.bool_()), pa.float64(), "float"),
    ("float to decimal", arr([1.0], pa.float64()), pa.decimal128(5, 2), "decimal128"),
    ("decimal digits lost", arr([Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(5, 1),
     "row 0"),
    ("decimal too large", arr([1000], pa.int64()), pa.decimal128(5, 2), "row 0"),
    ("date64 with hours", arr([1, 86_400_000], pa.int64()).view(pa.date64()), pa.date32(), "row 0"),
    ("timestamp to date", arr([D], pa.timestamp("us")), pa.date32(), "date first"),
    ("date to timestamp", arr([dt.date(2026, 1, 1)], pa.date32()), pa.timestamp("us"), "timestamp"),
    ("time digits lost", arr([dt.time(1, 2, 3, 4)], pa.time64("us")), pa.time32("ms"), "row 0"),
    ("timestamp digits lost", arr([D, FINE], pa.timestamp("us")), pa.timestamp("ms"), "row 1"),
    ("nanoseconds lost", arr([1], pa.int64()).view(pa.timestamp("ns")), pa.timestamp("us"),
     "row 0: .*0001"),
    ("timestamp too large", arr([2**62], pa.int64()).view(pa.timestamp("s")), pa.timestamp("us"),
     "row 0"),
    ("zoned into NTZ", arr([D], pa.timestamp("us", "UTC")), pa.timestamp("us"), "drop the zone"),
    ("naive into LTZ", arr([D], pa.timestamp("us")), pa.timestamp("us", "UTC"), "set one"),
    ("precision below its unit", arr([D], pa.timestamp("ms")),
     DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=2), "more digits"),
    ("time precision below its millisecond", arr([dt.time(1, 2, 3, 450_000)], pa.time32("ms")),
     DataType(R.TIME_WITHOUT_TIME_ZONE, precision=1), "more digits"),
    ("time precision below its unit", arr([dt.time(1, 2, 3, 45)], pa.time64("us")),
     DataType(R.TIME_WITHOUT_TIME_ZONE, precision=5), "more digits"),
    ("list element", arr([[1], [2, 300]], pa.list_(pa.int64())), pa.list_(pa.int8()),
     r"'c\[\]': row 1: 300"),
    ("element of an element", arr([[], [[1], [300]]], pa.list_(pa.list_(pa.int64()))),
     pa.list_(pa.list_(pa.int8())), r"'c\[\]\[\]': row 1: 300"),
    ("null element", arr([[1], None, [None]], pa.list_(pa.int8())),
     pa.list_(pa.field("item", pa.int8(), nullable=False)), r"'c\[\]'.*null in row 2"),
    ("no list", arr([1], pa.int8()), pa.list_(pa.int8()), "no list"),
    ("null key", arr([[{"key": None, "value": 1}]], pa.list_(ENTRY)), MAP, r"'c\[\].key'.*row 0"),
    ("null entry", arr([[None]], pa.list_(ENTRY)), MAP, "null in row 0"),
    ("map value", arr([[], [("a", 2**40)]], pa.map_(pa.string(), pa.int64())), MAP,
     r"'c\[\].value': row 1"),
    ("list of no entries", arr([[1]], pa.list_(pa.int8())), MAP, "key and value"),
    ("no map", arr([1], pa.int8()), MAP, "neither a map"),
    ("null field", arr([{"a": "x", "b": 1}, None, {"a": "y", "b": None}],
     pa.struct([("a", pa.string()), ("b", pa.int32())])), ROW, r"'c.b'.*null in row 2"),
    ("field out of range", arr([{"a": "x", "b": 1}, None, {"a": "y", "b": 2**40}],
     pa.struct([("a", pa.string()), ("b", pa.int64())])), ROW, r"'c.b': row 2: 1099511627776"),
    ("unknown field", arr([{"a": "x", "z": 1}], pa.struct([("a", pa.string()),
     ("z", pa.int32())])), ROW, "field 'z'"),
    ("missing field", arr([{"a": "x"}], pa.struct([("a", pa.string())])), ROW, "field 'b'"),
    ("no struct", arr([1], pa.int8()), ROW, "no struct"),
    ("text that is not UTF-8", raw([b"a", None, b"\xff"], pa.string()), pa.string(),
     "row 2: .*UTF8"),
    ("not UTF-8, as a view", raw([b"a", b"\xff" * 20], pa.binary_view()).view(pa.string_view()),
     pa.string(), "row 1: .*UTF8"),
    ("no UTF-8 in a list", pa.ListArray.from_arrays([0, 0, 1], raw([b"\xff"], pa.string())),
     pa.list_(pa.string()), "row 1: .*UTF8"),
    ("time before the day", raw([0, -1], pa.time64("us")), pa.time64("us"), "row 1: .*-1 is not"),
    ("time behind the day", raw([86_400], pa.time32("s")), pa.time32("s"), "row 0: .*86400 is not"),
    ("time within a struct", pa.StructArray.from_arrays([raw([-1], pa.time64("ns"))], ["t"]),
     pa.struct([("t", pa.time64("ns"))]), "row 0: .*-1 is not"),
    ("digits beyond the precision", raw([0, 10**18], pa.decimal128(5, 2)), pa.decimal128(5, 2),
     "row 1: .*precision"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "values", "t", "match"), REFUSED, ids=[t[0] for t in REFUSED])
def test_refused(what: str, values: pa.Array, t: Any, match: str) -> None:
    with pytest.raises(SchemaMismatchError, match=match) as raised:
        one(values, t)
    assert "table d.t, column 'c" in raised.value.message


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("year", [1600, 9999])
def test_times_beyond_nanoseconds(zone: str | None, year: int) -> None:
    values = pa.array([dt.datetime(year, 1, 1)], pa.timestamp("us", zone))
    with pytest.raises(SchemaMismatchError, match=r"1677-09-21 to 2262-04-11, .*precision of 6"):
        one(values, pa.timestamp("ns", zone))
    # digits that are lost are something else
    root = R.TIMESTAMP_WITH_LOCAL_TIME_ZONE if zone else R.TIMESTAMP_WITHOUT_TIME_ZONE
    fine = pa.array([1], pa.timestamp("ns", zone))
    with pytest.raises(SchemaMismatchError, match="would lose data"):
        one(fine, DataType(root, precision=6))


def test_rows_are_counted_over_chunks_and_slices() -> None:
    chunked = pa.chunked_array([arr([1, 2], pa.int64()), arr([9, 9, 3, 300], pa.int64())[2:]])
    with pytest.raises(SchemaMismatchError, match="row 3: 300"):
        coerce(pa.table({"c": chunked}), [Column("c", fluss(pa.int8()))], table="d.t")
    nulls = pa.chunked_array([arr([1], pa.int64()), arr([1, None], pa.int64())])
    for kind in (pa.int64(), pa.int8()):
        column = Column("c", fluss(kind).with_nullable(False))
        with pytest.raises(SchemaMismatchError, match="null in row 2"):
            coerce(pa.table({"c": nulls}), [column], table="d.t")


def test_only_the_rows_that_are_written_are_looked_at() -> None:
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], raw([b"a", b"\xff", b"c"], pa.string()))
    for good in (lists[:1], lists[2:]):
        assert len(one(good, lists.type)) == 1
    chunked = pa.table({"c": pa.chunked_array([lists[:1], lists])})
    with pytest.raises(SchemaMismatchError, match=r"row 2: .*UTF8"):
        coerce(chunked, [Column("c", fluss(lists.type))], table="d.t")


def test_the_offending_value_is_found_among_many() -> None:
    values = pa.array([0] * 100_000 + [200] + [0] * 77 + [300])
    with pytest.raises(SchemaMismatchError, match="row 100000: 200"):
        one(values, pa.int8())


COLUMNS = [
    Column("id", DataType(R.BIGINT, nullable=False)),
    Column("name", DataType(R.STRING)),
    Column("score", DataType(R.DOUBLE)),
]


def test_order_is_the_tables() -> None:
    data = pa.table({"score": [1.5], "name": ["x"], "id": [1]})
    made = coerce(data, COLUMNS, table="d.t")
    assert made.schema.names == ["id", "name", "score"]
    assert not made.schema.field("id").nullable


def test_data_that_fits_is_handed_back() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()),
                        ("score", pa.float64())])  # fmt: skip
    data = pa.table({"id": [1], "name": ["x"], "score": [None]}, schema=schema)
    assert coerce(data, COLUMNS, table="d.t") is data
    batch = data.to_batches()[0]
    assert coerce(batch, COLUMNS, table="d.t") is batch
    # only the nullability of the schema differs: no buffer is copied
    loose = pa.table({"id": pa.array([1]), "name": ["x"], "score": pa.array([1.5])})
    made = coerce(loose, COLUMNS, table="d.t")
    for name in ("id", "name", "score"):
        old, new = (t.column(name).chunk(0).buffers()[-1].address for t in (loose, made))
        assert old == new


def test_unknown_columns_suggest_a_name() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'nmae'.*did you mean 'name'"):
        coerce(pa.table({"id": [1], "nmae": ["x"], "score": [1.0]}), COLUMNS, table="d.t")
    with pytest.raises(SchemaMismatchError, match=r"'ID'.*did you mean 'id'"):
        coerce(pa.table({"ID": [1]}), COLUMNS, table="d.t")
    with pytest.raises(SchemaMismatchError, match="drop it"):
        coerce(pa.table({"id": [1], "zzzzz": [1]}), COLUMNS, table="d.t")


def test_missing_columns() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'name' \(string\) is missing.*add it"):
        coerce(pa.table({"id": [1], "score": [1.0]}), COLUMNS, table="d.t")
    made = coerce(pa.table({"id": [1], "score": [1.0]}), COLUMNS, table="d.t", allow_missing=True)
    assert made.to_pylist() == [{"id": 1, "name": None, "score": 1.0}]
    batch = coerce(pa.record_batch({"id": [1]}), COLUMNS, table="d.t", allow_missing=True)
    assert batch.to_pylist() == [{"id": 1, "name": None, "score": None}]
    with pytest.raises(SchemaMismatchError, match=r"'id'.*NOT NULL"):
        coerce(pa.table({"name": ["x"]}), COLUMNS, table="d.t", allow_missing=True)


def test_a_column_twice() -> None:
    data = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(SchemaMismatchError, match="twice"):
        coerce(data, COLUMNS, table="d.t", allow_missing=True)


def test_missing_fields_of_rows_and_empty_data() -> None:
    t = DataType(R.ROW, fields=(DataField("a", DataType(R.STRING)),))
    made = one(pa.array([], pa.struct([])), t)
    assert made.num_rows == 0
    assert coerce(pa.table({"id": [], "name": [], "score": []}), COLUMNS, table="d.t").num_rows == 0


def test_polars_frames_of_every_kind() -> None:
    frame = pl.DataFrame(
        {
            "s": ["a", None],
            "cat": pl.Series(["x", "y"], dtype=pl.Categorical),
            "enum": pl.Series(["x", "y"], dtype=pl.Enum(["x", "y"])),
            "u8": pl.Series([1, 255], dtype=pl.UInt8),
            "dec": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(20, 2)),
            "time": [dt.time(1, 2, 3), None],
            "at": pl.Series([D, None], dtype=pl.Datetime("us", "Europe/Berlin")),
            "naive": pl.Series([D, None], dtype=pl.Datetime("ns")),
            "day": [dt.date(2026, 1, 1), None],
            "blob": [b"x", None],
            "list": [[1, 2], None],
            "array": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)),
            "row": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
            "map": [[{"key": "k", "value": 1}], None],
            "nothing": [None, None],
        }
    )
    types = {
        "s": pa.string(), "cat": pa.string(), "enum": pa.string(), "u8": pa.int16(),
        "dec": pa.decimal128(10, 1), "time": pa.time32("s"), "at": pa.timestamp("ms", "UTC"),
        "naive": pa.timestamp("us"), "day": pa.date32(), "blob": pa.binary(),
        "list": pa.list_(pa.int8()), "array": pa.list_(pa.int32()),
        "row": pa.struct([("a", pa.int32()), ("b", pa.string())]),
        "map": pa.map_(pa.string(), pa.int8()), "nothing": pa.float32(),
    }  # fmt: skip
    columns = [Column(name, from_arrow(t)) for name, t in types.items()]
    for level in (pl.CompatLevel.oldest(), pl.CompatLevel.newest()):
        made = coerce(frame.to_arrow(compat_level=level), columns, table="d.t")
        made.validate(full=True)
        assert [made.schema.field(n).type for n in types] == list(types.values())
        assert made.column("map").to_pylist() == [[("k", 1)], None]
        assert made.column("row").to_pylist()[0] == {"a": 1, "b": "x"}
