from __future__ import annotations

import datetime as dt
import re
import types
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.rows import RowChecker, rows_to_batch
from fluss_df.types import Column, DataType, TypeRoot, from_arrow, to_arrow

R = TypeRoot
ZONE = dt.timezone(dt.timedelta(hours=2))
D = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)
ROW = from_arrow(pa.struct([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]))


def one(values: list[Any], t: pa.DataType | DataType, *, nullable: bool = True) -> list[Any]:
    kind = (t if isinstance(t, DataType) else from_arrow(t)).with_nullable(nullable)
    batch = rows_to_batch([(value,) for value in values], [Column("c", kind)], "d.t")
    batch.validate(full=True)
    assert batch.schema.field(0).type == to_arrow(kind)
    by_name = rows_to_batch([{"c": value} for value in values], [Column("c", kind)], "d.t")
    assert by_name.column(0).equals(batch.column(0)) or "nan" in str(batch.column(0))
    made: list[Any] = batch.column(0).to_pylist()
    return made


TAKEN: list[tuple[list[Any], Any, list[Any]]] = [
    ([1, None, -128], pa.int8(), [1, None, -128]),
    ([2**63 - 1, -(2**63)], pa.int64(), [2**63 - 1, -(2**63)]),
    ([np.int8(3), np.uint64(4), 5], pa.int32(), [3, 4, 5]),
    ([1.5, 2, None, float("nan"), np.float32(0.5)], pa.float64(),
     [1.5, 2.0, None, float("nan"), 0.5]),
    ([0.1, float("inf")], pa.float32(), [pytest.approx(0.1), float("inf")]),
    ([True, None, np.bool_(False)], pa.bool_(), [True, None, False]),
    (["a", None, np.str_("é")], pa.string(), ["a", None, "é"]),
    ([b"a", bytearray(b"b"), memoryview(b"c"), None], pa.binary(), [b"a", b"b", b"c", None]),
    ([b"ab", bytearray(b"cd")], pa.binary(2), [b"ab", b"cd"]),
    ([Decimal("1.20"), 3, None], pa.decimal128(5, 1), [Decimal("1.2"), Decimal(3), None]),
    ([dt.date(2026, 1, 1), None], pa.date32(), [dt.date(2026, 1, 1), None]),
    ([dt.time(1, 2, 3, 4000), None], pa.time32("ms"), [dt.time(1, 2, 3, 4000), None]),
    ([dt.time(1, 2, 3)], pa.time32("s"), [dt.time(1, 2, 3)]),
    ([D, None], pa.timestamp("ms"), [D, None]),
    ([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)], pa.timestamp("us"),
     [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]),
    ([D.replace(tzinfo=ZONE), D, None], pa.timestamp("us", "UTC"),
     [dt.datetime(2026, 1, 2, 1, 4, 5, 678000, dt.UTC), D.replace(tzinfo=dt.UTC), None]),
    ([pd.Timestamp(D), np.datetime64(D), None, D, np.datetime64("NaT", "us")], pa.timestamp("us"),
     [D, D, None, D, None]),
    ([pd.Timestamp(D, tz="Asia/Tokyo")], pa.timestamp("us", "UTC"),
     [dt.datetime(2026, 1, 1, 18, 4, 5, 678000, dt.UTC)]),
    ([[1, 2], None, (), np.array([3])], pa.list_(pa.int8()), [[1, 2], None, [], [3]]),
    ([[["a"], None]], pa.list_(pa.list_(pa.string())), [[["a"], None]]),
    ([{"a": 1}, None, [("b", 2)], {}], pa.map_(pa.string(), pa.int8()),
     [[("a", 1)], None, [("b", 2)], []]),
    ([{"b": "x"}, (1, "y"), None, [2, "z"]], ROW,
     [{"a": None, "b": "x"}, {"a": 1, "b": "y"}, None, {"a": 2, "b": "z"}]),
    ([[{"b": "x"}], None], DataType(R.ARRAY, element=ROW), [[{"a": None, "b": "x"}], None]),
    ([], pa.int8(), []),
]  # fmt: skip


def name_of(value: object) -> str:
    """Return a test's name without addresses in memory, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]*", "", str(value))[:40]


@pytest.mark.parametrize(("values", "t", "expected"), TAKEN, ids=name_of)
def test_taken(values: list[Any], t: Any, expected: list[Any]) -> None:
    got = one(values, t)
    assert got == expected or repr(got) == repr(expected)


REFUSED: list[tuple[list[Any], Any, str]] = [
    ([1, None, 300], pa.int8(), "row 2: 300"),
    ([1, True], pa.int8(), "row 1: True"),
    ([1.0], pa.int8(), "row 0: 1.0"),
    (["1"], pa.int8(), "row 0: '1'"),
    ([2**63], pa.int64(), "row 0"),
    ([True], pa.float64(), "row 0"),
    ([2**53 + 1], pa.float64(), "row 0"),
    ([1e300], pa.float32(), "too large"),
    ([1], pa.bool_(), "row 0"),
    ([1], pa.string(), "row 0"),
    ([b"a"], pa.string(), "row 0"),
    (["ok", "\ud800"], pa.string(), "row 1"),
    (["a"], pa.binary(), "row 0"),
    ([b"abc"], pa.binary(2), "row 0"),
    ([1.5], pa.decimal128(5, 2), "row 0"),
    ([Decimal("1.234")], pa.decimal128(5, 2), "row 0"),
    ([Decimal(1), Decimal(100000)], pa.decimal128(5, 2), "row 1"),
    ([Decimal("NaN")], pa.decimal128(5, 2), "row 0"),
    ([D], pa.date32(), "row 0"),
    ([5], pa.date32(), "row 0"),
    ([dt.time(1, 2, 3, 4)], pa.time32("ms"), "row 0"),
    ([dt.time(1, tzinfo=ZONE)], pa.time32("ms"), "time zone"),
    ([D.replace(microsecond=1)], pa.timestamp("ms"), "row 0"),
    ([None, D.replace(tzinfo=ZONE)], pa.timestamp("us"), "row 1.*time zone"),
    ([pd.Timestamp(D, tz="UTC")], pa.timestamp("us"), "time zone"),
    ([np.datetime64(1, "ns")], pa.timestamp("us"), "row 0"),
    ([dt.date(2026, 1, 1)], pa.timestamp("us"), "row 0"),
    ([1], pa.timestamp("us"), "row 0"),
    (["ab"], pa.list_(pa.string()), "row 0"),
    ([[1], [2, 300]], pa.list_(pa.int8()), r"'c\[\]': row 1: 300"),
    ([[[1]], [[], [1, 300]]], pa.list_(pa.list_(pa.int8())), r"'c\[\]\[\]': row 1: 300"),
    ([{}, {None: 1}], pa.map_(pa.string(), pa.int8()), "key.*null in row 1"),
    ([[("a",)]], pa.map_(pa.string(), pa.int8()), "pair"),
    ([1], pa.map_(pa.string(), pa.int8()), "row 0"),
    ([{"a": 1}], ROW, "NOT NULL"),
    ([{"b": "x", "z": 1}], ROW, "'z'"),
    ([(1,)], ROW, "2 columns"),
    ([5], ROW, "dict, list or tuple"),
    ([(1, "x"), ("1", "x")], ROW, "'c.a': row 1"),
    ([(1, "x"), None, (1, None)], ROW, "'c.b'.*null in row 2"),
]


@pytest.mark.parametrize(("values", "t", "match"), REFUSED, ids=lambda v: str(v)[:40])
def test_refused(values: list[Any], t: Any, match: str) -> None:
    with pytest.raises(SchemaMismatchError, match=match) as raised:
        one(values, t)
    assert "table d.t" in raised.value.message


def test_char_length_and_not_null() -> None:
    with pytest.raises(SchemaMismatchError, match="row 1: 'abcd'"):
        one(["abc", "abcd"], DataType(R.CHAR, length=3))
    with pytest.raises(SchemaMismatchError, match="null in row 1"):
        one([1, None], pa.int32(), nullable=False)


COLUMNS = [
    Column("id", DataType(R.BIGINT, nullable=False)),
    Column("name", DataType(R.STRING)),
    Column("score", DataType(R.DOUBLE)),
]


def test_a_mapping_of_any_kind_is_a_row_of_a_column() -> None:
    row = types.MappingProxyType({"a": 1, "b": "x"})
    assert one([row, None, {"b": "y"}], ROW) == [dict(row), None, {"a": None, "b": "y"}]


def test_rows_of_all_kinds_in_one_batch() -> None:
    rows: list[Any] = [
        {"score": 1.5, "id": 1, "name": "a"},
        (2, "b", None),
        [3, None, 2.5],
        {"id": 4},
    ]
    made = rows_to_batch(rows, COLUMNS, "d.t")
    assert made.to_pydict() == {
        "id": [1, 2, 3, 4],
        "name": ["a", "b", None, None],
        "score": [1.5, None, 2.5, None],
    }


BAD_ROWS: list[tuple[Any, str]] = [
    ({"id": 1, "nmae": "x"}, "'nmae'.*id, name, score"),
    ({"id": 1, "name": "x", "score": 1.0, "more": 1}, "'more'"),
    ({"id": 1, "nmae": "x", "score": 1.0}, "'nmae'"),
    ({"name": "x"}, "'id'.*NOT NULL"),
    ((1, "x"), "3 columns"),
    ([1, "x", 1.0, 2], "4 values"),
    ("abc", "not str"),
    (None, "not NoneType"),
    ({1: 2, "id": 3}, "column 1 is none of id"),
]


@pytest.mark.parametrize(("row", "match"), BAD_ROWS, ids=str)
def test_forms_of_rows(row: Any, match: str) -> None:
    check = RowChecker(COLUMNS, "d.t")
    with pytest.raises(SchemaMismatchError, match=match):
        check(row)
    check({"id": 1})
    check((1, "a", 1.0))
    with pytest.raises(SchemaMismatchError, match=match) as raised:
        rows_to_batch([{"id": 1, "name": "a", "score": 1.0}, row], COLUMNS, "d.t")
    assert raised.value.message.startswith("row 1: ")


class _Moment(dt.datetime):
    """As those of libraries that have a datetime of their own."""


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2300-01-01", "us"),
        np.datetime64("2300", "Y"),
        np.datetime64("2300-01", "M"),
        np.datetime64("2300-01-01", "D"),
        np.datetime64("2300-01-01T00", "h"),
        _Moment(2300, 1, 1),
    ],
)
def test_moments_beyond_nanoseconds_are_what_they_are(value: Any) -> None:
    columns = [Column("t", DataType(TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, precision=6))]
    beside = (dt.datetime(9999, 12, 31), np.datetime64("2026-01-01T00:00:00"))
    rows = [{"t": moment} for moment in (value, *beside)]
    found = rows_to_batch(rows, columns, "db.t").column(0).to_pylist()
    assert found == [
        dt.datetime(2300, 1, 1), dt.datetime(9999, 12, 31), dt.datetime(2026, 1, 1),
    ]  # fmt: skip
    exact = [Column("t", DataType(TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, precision=9))]
    with pytest.raises(SchemaMismatchError, match=r"2300, 1, 1.* is beyond"):
        rows_to_batch([{"t": value}], exact, "db.t")


def test_digits_below_a_nanosecond_are_not_lost() -> None:
    columns = [Column("t", DataType(TypeRoot.TIMESTAMP_WITHOUT_TIME_ZONE, precision=9))]
    whole = rows_to_batch([{"t": np.datetime64(5000, "ps")}], columns, "db.t").column(0)
    assert whole.cast(pa.int64()).to_pylist() == [5]
    with pytest.raises(SchemaMismatchError, match="digits below a nanosecond"):
        rows_to_batch([{"t": np.datetime64(5001, "ps")}], columns, "db.t")


@pytest.mark.parametrize("value", [2**24 + 1, -(2**24) - 1, np.int64(2**24 + 1), 2**40 + 1])
def test_whole_numbers_that_no_float_has_are_refused(value: Any) -> None:
    columns = [Column("f", DataType(TypeRoot.FLOAT))]
    assert rows_to_batch([{"f": 2**24}, {"f": 0.1}], columns, "db.t").num_rows == 2
    with pytest.raises(SchemaMismatchError, match=r"row 1: .* more digits than a FLOAT"):
        rows_to_batch([{"f": None}, {"f": value}], columns, "db.t")
