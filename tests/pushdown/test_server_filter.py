"""Conditions as the message that servers judge log batches by."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.pushdown.column import col
from fluss_df.pushdown.evaluate import bind
from fluss_df.pushdown.predicate import Predicate
from fluss_df.pushdown.server_filter import server_filter
from fluss_df.schema import TableInfo


def table_info(kind: pa.DataType) -> TableInfo:
    # with the ids that a server gives to columns
    schema = fluss.Schema.from_json(fluss.Schema(pa.schema([("x", kind)])).to_json())
    properties = {"table.statistics.columns": "*"}
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=properties)
    return TableInfo(fluss.TablePath("db", "t"), 7, 1, descriptor, 0, 0)


@pytest.mark.parametrize("unscaled", [10**38 - 1, 1 - 10**38, 10**18, -1, 0])
@pytest.mark.parametrize("scale", [0, 5, 38])
def test_wide_decimals_keep_all_their_digits(unscaled: int, scale: int) -> None:
    kind = pa.decimal128(38, scale)
    value = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    info = table_info(kind)
    predicate = bind(col("x") == value, pa.schema([("x", kind)]))
    made = server_filter(info, [predicate])
    assert made is not None
    (literal,) = made.predicate.leaf.literals
    # a rounded literal would have servers leave out batches that have the row
    assert int.from_bytes(literal.decimal_bytes, "big", signed=True) == unscaled


@pytest.mark.parametrize(
    ("predicate", "function"),
    [
        (col("x") == 1, 0),
        (col("x") != 1, 1),
        (col("x") < 1, 2),
        (col("x") <= 1, 3),
        (col("x") > 1, 4),
        (col("x") >= 1, 5),
        (col("x").is_null(), 6),
        (col("x").is_not_null(), 7),
    ],
    ids=str,
)
def test_functions_have_the_numbers_of_servers(predicate: Predicate, function: int) -> None:
    bound = bind(predicate, pa.schema([("x", pa.int64())]))
    made = server_filter(table_info(pa.int64()), [bound])
    assert made is not None
    assert made.predicate.leaf.function == function


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(
    ("unit", "number", "millis", "nanos"),
    [
        ("s", -2, -2_000, 0),
        ("ms", -2, -2, 0),
        ("us", -1, -1, 999_000),
        ("us", 2_001, 2, 1_000),
        ("ns", -1, -1, 999_999),
        ("ns", 2_000_001, 2, 1),
    ],
)
def test_timestamps_are_milliseconds_and_what_is_behind_them(
    unit: str, number: int, millis: int, nanos: int, zone: str | None
) -> None:
    kind = pa.timestamp(unit, zone)
    value = pa.scalar(number, kind)
    made = server_filter(table_info(kind), [bind(col("x") == value, pa.schema([("x", kind)]))])
    assert made is not None
    (literal,) = made.predicate.leaf.literals
    found = literal.timestamp_millis_value, literal.timestamp_nano_of_millis_value
    assert found == (millis, nanos)
