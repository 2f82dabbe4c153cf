from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss_df.errors import FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.keys.partition_names import (
    invalid_value,
    partition_names,
    partition_scalars,
    partition_values,
    split_by_partition,
)
from fluss_df.types import Column, DataType, TypeRoot, from_arrow, to_arrow

R = TypeRoot
DAY = Column("day", from_arrow(pa.string()))
HOUR = Column("hour", from_arrow(pa.int32()))


def test_split_keeps_the_order_of_rows() -> None:
    generator = np.random.default_rng(1)
    n = 10_000
    table = pa.table(
        {
            "row": np.arange(n),
            "day": pa.array([f"2026-0{1 + i}" for i in generator.integers(0, 3, n)]),
            "hour": pa.array(generator.integers(-2, 2, n), pa.int32()),
            "text": [str(i) for i in range(n)],
        }
    )
    table = pa.concat_tables([table.slice(0, 100), table.slice(100)])
    parts = split_by_partition(table, [DAY, HOUR], table="d.t")
    assert len(parts) == 12
    assert sum(part.data.num_rows for part in parts) == n
    for part in parts:
        assert part.name == f"{part.spec['day']}${part.spec['hour']}"
        days, hours = part.data.column("day").unique(), part.data.column("hour").unique()
        assert days.to_pylist() == [part.spec["day"]]
        assert hours.to_pylist() == [int(part.spec["hour"])]
        rows = part.data.column("row").to_numpy()
        assert (np.diff(rows) > 0).all()
        assert part.data.column("text").to_pylist() == [str(i) for i in rows]


def test_one_partition_is_the_table_itself() -> None:
    table = pa.table({"day": ["a", "a"], "x": [1, 2]})
    [part] = split_by_partition(table, [DAY], table="d.t")
    assert part.data is table
    assert (part.name, part.spec) == ("a", {"day": "a"})
    assert split_by_partition(table.slice(0, 0), [DAY], table="d.t") == []


def test_three_columns() -> None:
    flag = Column("flag", from_arrow(pa.bool_()))
    table = pa.table(
        {
            "day": ["b", "a", "b", "a"],
            "hour": pa.array([2, 2, 2, 1], pa.int32()),
            "flag": [True, True, True, False],
        }
    )
    parts = {
        p.name: p.data.num_rows for p in split_by_partition(table, [DAY, HOUR, flag], table="t")
    }
    assert parts == {"b$2$true": 2, "a$2$true": 1, "a$1$false": 1}
    arrays = [table.column(name) for name in ("day", "hour", "flag")]
    names = partition_names(arrays, [DAY.type, HOUR.type, flag.type])
    assert names.to_pylist() == ["b$2$true", "a$2$true", "b$2$true", "a$1$false"]


def test_values_that_read_alike_are_one_partition() -> None:
    t = from_arrow(pa.time64("us"))
    array = pa.array([1000, 1999, 2000], pa.int64()).view(pa.time64("us"))
    parts = split_by_partition(pa.table({"p": array}), [Column("p", t)], table="t")
    assert [(p.name, p.data.num_rows) for p in parts] == [("00-00-00_001", 2), ("00-00-00_002", 1)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"), ("a b", "only letters"), ("a$b", "only letters"), ("é", "only letters"),
        (".", "only letters"), ("..", "only letters"), ("__x", "prefix"), ("x" * 201, "201"),
        ("a\n", "only letters"), ("2026-01-01 00:00", "only letters"),
    ],
)  # fmt: skip
def test_values_that_cannot_name_a_partition(value: str, why: str) -> None:
    table = pa.table({"day": ["ok", value, value]})
    with pytest.raises(SchemaMismatchError, match=why) as raised:
        split_by_partition(table, [DAY], table="d.t")
    message = raised.value.message
    assert "table d.t" in message
    assert "'day'" in message
    assert "row 1" in message
    assert invalid_value(value) is not None
    assert invalid_value("x" * 200) is None


def test_nulls_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="'day': null in row 1"):
        split_by_partition(pa.table({"day": ["a", None]}), [DAY], table="d.t")


def test_types_that_cannot_be_partition_columns() -> None:
    for kind, value in ((pa.decimal128(5, 2), Decimal(1)), (pa.list_(pa.int8()), [1])):
        column = Column("p", from_arrow(kind))
        with pytest.raises(FlussError, match="partition column"):
            partition_names([pa.array([value], kind)], [column.type])
        with pytest.raises(FlussError, match="partition column"):
            partition_values("1", [column])


VALUES: list[tuple[pa.DataType, str, Any]] = [
    (pa.string(), "x", "x"),
    (pa.bool_(), "TRUE", True),
    (pa.binary(), "00ff", b"\x00\xff"),
    (pa.binary(2), "00ff", b"\x00\xff"),
    (pa.int8(), "-5", -5),
    (pa.float64(), "-1_5E10", -1.5e10),
    (pa.float64(), "Inf", float("inf")),
    (pa.date32(), "2026-11-21", dt.date(2026, 11, 21)),
    (pa.time32("ms"), "12-34-56_789", dt.time(12, 34, 56, 789000)),
    (pa.timestamp("us"), "2026-11-21-12-34-56_5", dt.datetime(2026, 11, 21, 12, 34, 56, 500000)),
    (pa.timestamp("us"), "2026-11-21-12-34-56_", dt.datetime(2026, 11, 21, 12, 34, 56)),
    (pa.timestamp("ms", "UTC"), "2026-11-21", dt.datetime(2026, 11, 21, tzinfo=dt.UTC)),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES, ids=lambda v: str(v)[:30])
def test_values_of_names(kind: pa.DataType, text: str, value: Any) -> None:
    assert partition_values(text, [Column("p", from_arrow(kind))]) == (value,)
    pair = partition_values(f"a${text}", [DAY, Column("p", from_arrow(kind))])
    assert pair == ("a", value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.bool_(), "yes"), (pa.binary(), "0g"), (pa.binary(2), "00"), (pa.int8(), "300"),
        (pa.int8(), ""), (pa.int8(), "x"), (pa.float64(), "x"), (pa.date32(), "20261121"),
        (pa.date32(), "2026-13-01"), (pa.time32("ms"), "12:34"), (pa.timestamp("us"), "x"),
        (pa.timestamp("ms"), "2026-11-21-12-34-56_0001"), (pa.timestamp("us"), "2026-02-30"),
        (pa.string(), "a$b"),
    ],
    ids=str,
)  # fmt: skip
def test_names_that_are_none(kind: pa.DataType, text: str) -> None:
    with pytest.raises(ProtocolError, match="partition"):
        partition_values(text, [Column("p", from_arrow(kind))])


def test_timestamps_beyond_the_years_that_read_back() -> None:
    t = DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=0)
    for seconds in (-(2**40), 2**40, -62167219200):
        array = pa.array([seconds], pa.int64()).view(pa.timestamp("s"))
        with pytest.raises(SchemaMismatchError, match=r"row 0.*year"):
            partition_names([array], [t])


KINDS = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.binary(), st.binary(min_size=1, max_size=20)),
    (pa.date32(), st.dates()),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("ms", "UTC"), st.integers(-(10**12), 10**12)),
    (pa.timestamp("ns"), st.integers(-(10**18), 10**18)),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda k: str(k)[:20])
@given(data=st.data())
def test_names_read_back(kind: pa.DataType, values: Any, data: st.DataObject) -> None:
    array = pa.array(data.draw(st.lists(values, min_size=1, max_size=5)))
    array = (
        array.cast(kind)
        if array.type != pa.int64()
        else array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    )
    t = from_arrow(kind)
    assert to_arrow(t) == kind
    for name, value in zip(partition_names([array], [t]).to_pylist(), array, strict=True):
        assert invalid_value(name) is None
        assert partition_scalars(name, [Column("p", t)])[0].equals(value)
