"""Statistics of batches: their bytes, and bytes that are none."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from fluss_df.record.log.statistics import encode_statistics, read_statistics, sortable_float
from fluss_df.schema import Schema

SCHEMA = Schema(pa.schema({"n": pa.int64(), "text": pa.string()}))
BATCH = pa.record_batch(
    {"n": [5, None, -1], "text": ["b", "a text of more bytes", "c"]}, schema=SCHEMA.arrow_schema
)


def test_the_bytes_of_statistics() -> None:
    word = "a text of more bytes"
    low = bytes(8) + struct.pack("<qq", -1, 24 << 32 | len(word)) + word.encode().ljust(24, b"\0")
    high = bytes(8) + struct.pack("<q", 5) + b"c" + bytes(6) + b"\x81"
    head = struct.pack("<Bhhhii", 1, 2, 0, 1, 1, 0)
    rows = b"".join(struct.pack("<i", len(row)) + row for row in (low, high))
    assert encode_statistics(BATCH, SCHEMA.columns) == head + rows
    found = read_statistics(memoryview(head + rows), SCHEMA.columns)
    assert found.of(0, SCHEMA.columns[0].type) == (1, -1, 5)
    assert found.of(1, SCHEMA.columns[1].type) == (0, word.encode(), b"c")


def made(
    version: int = 1, indexes: tuple[int, ...] = (0,), sizes: tuple[int, int] = (16, 16)
) -> bytes:
    n = len(indexes)
    head = struct.pack(f"<Bh{n}h{n}i", version, n, *indexes, *([0] * n))
    return head + b"".join(struct.pack("<i", size) + bytes(max(0, size)) for size in sizes)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (made(version=2), "statistics of version 2"),
        (made(indexes=()), "with 0 columns"),
        (made(indexes=(0, 0)), "statistics of columns"),
        (made(indexes=(2,)), "statistics of columns"),
        (made(indexes=(-1,)), "statistics of columns"),
        (made(sizes=(0, 16)), "a row of 0 bytes"),
        (made(sizes=(-1, 16)), "a row of -1 bytes"),
        (made(sizes=(16, 16))[:-1], "a row of 16 bytes"),
    ],
)
def test_bytes_that_are_no_statistics(data: bytes, text: str) -> None:
    assert read_statistics(memoryview(made()), SCHEMA.columns).of(0, SCHEMA.columns[0].type)
    with pytest.raises(ValueError, match=text):
        read_statistics(memoryview(data), SCHEMA.columns)


def test_numbers_have_the_order_of_servers() -> None:
    ordered = [-float("inf"), -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, float("inf"), float("nan")]
    keys = [sortable_float(number) for number in ordered]
    assert keys == sorted(set(keys))


NAN = float("nan")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.5, None, -2.5], -2.5, 1.5),
        ([-7.0, -0.5], -7.0, -0.5),
        # which of the two zeros is there is not known
        ([0.0, 3.0], -0.0, 3.0),
        ([-3.0, -0.0], -3.0, 0.0),
        ([1.0, NAN, 2.0], 1.0, NAN),
        ([NAN], NAN, NAN),
    ],
)
def test_the_smallest_and_the_largest_of_floats(
    kind: pa.DataType, values: list[float | None], low: float, high: float
) -> None:
    schema = Schema(pa.schema({"x": kind}))
    batch = pa.record_batch({"x": values}, schema=schema.arrow_schema)
    found = read_statistics(memoryview(encode_statistics(batch, schema.columns)), schema.columns)
    expected = (values.count(None), sortable_float(low), sortable_float(high))
    assert found.of(0, schema.columns[0].type) == expected


def test_long_values_stand_behind_each_other() -> None:
    """More columns than one word has bits; texts and decimals that do not fit their own word."""
    number = pa.decimal128(38, 2)
    kinds = {f"n{i}": pa.int64() for i in range(180)}
    short, long = pa.decimal128(18, 0), pa.decimal128(19, 0)
    last = {"a": pa.string(), "price": number, "b": pa.string(), "short": short, "long": long}
    schema = Schema(pa.schema({**kinds, **last}))
    prices = [Decimal("-123456789012345678901234567890.25"), Decimal("0.50"), Decimal(10) ** 30]
    batch = pa.record_batch(
        {
            **{name: [int(name[1:]), None, -7] for name in kinds},
            "a": ["first text of many bytes", "b", None],
            "price": pa.array(prices, number),
            "b": ["another text of many bytes", "c" * 50, "d" * 9],
            "short": pa.array([10**17, -(10**17), 5], short),
            "long": pa.array([10**18, -(10**18), 5], long),
        },
        schema=schema.arrow_schema,
    )
    data = encode_statistics(batch, schema.columns)
    assert data is not None
    found = read_statistics(memoryview(data), schema.columns)
    of = {c.name: found.of(i, c.type) for i, c in enumerate(schema.columns)}
    assert all(of[f"n{i}"] == (1, -7, i) for i in range(180))
    assert of["a"] == (1, b"b", b"first text of many bytes")
    assert of["price"] == (0, -12345678901234567890123456789025, 10**32)
    assert of["b"] == (0, b"another text of many bytes", b"d" * 9)
    assert of["short"] == (0, -(10**17), 10**17)
    assert of["long"] == (0, -(10**18), 10**18)


def test_a_long_text_is_left_out() -> None:
    """It would stand in the batch twice as it is, while the rows are compressed."""
    for size, known in ((4000, True), (9000, False), (20_000_000, False)):
        text = "x" * size
        batch = pa.record_batch({"n": [1], "text": [text]}, schema=SCHEMA.arrow_schema)
        made = encode_statistics(batch, SCHEMA.columns)
        found = read_statistics(memoryview(made), SCHEMA.columns)
        assert found.of(0, SCHEMA.columns[0].type) == (0, 1, 1)
        assert (1 in found.places) == known
        assert (len(made) < 200) != known
        alone = encode_statistics(batch, SCHEMA.columns[1:])
        assert bool(alone) == known
