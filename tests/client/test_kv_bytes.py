"""Kv batches of this client and of the official one, as they are put: the same bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluss_df as fluss
from fluss_df.cluster.pytest_plugin import ClusterFactory
from tests.client.put_recorder import Recorded, recorded_cluster

# checksum, writer and sequence, which differ, stand at bytes 5 to 9 and 12 to 24
OWN = [slice(5, 9), slice(12, 24)]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(3)),
        ("small", pa.decimal128(18, 3)),
        ("wide", pa.decimal128(38, 9)),
        ("day", pa.date32()),
        ("clock", pa.time32("ms")),
        ("t0", pa.timestamp("s")),
        ("t3", pa.timestamp("ms")),
        ("t6", pa.timestamp("us")),
        ("z6", pa.timestamp("us", "UTC")),
        ("texts", pa.list_(pa.string())),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("row", pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.float64())])),
    ]
)
# the default context rounds more than 28 digits
WIDE = Context(prec=60)
# those that can be a key
KEYS = ["id", "text", "i32", "flag", "small", "wide", "day", "t3", "t6", "raw"]


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    numbers = st.one_of(st.integers(-most, most), st.sampled_from([0, 1, -1, 127, 128, -129, most]))
    return numbers.map(lambda n: Decimal(n).scaleb(-scale, WIDE))


def ints(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    near = [n for b in range(0, bits, 7) for n in (2**b - 1, 2**b, -(2**b)) if low <= n <= high]
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, *near]))


def times(step: str, first: int = 1900) -> st.SearchStrategy[dt.datetime]:
    def cut(value: dt.datetime) -> dt.datetime:
        keep = {"s": 10**6, "ms": 1000, "us": 1}[step]
        return value.replace(microsecond=value.microsecond // keep * keep)

    return st.datetimes(dt.datetime(first, 1, 1), dt.datetime(2200, 1, 1)).map(cut)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": ints(64),
    "flag": st.booleans(),
    "i8": ints(8),
    "i16": ints(16),
    "i32": ints(32),
    "i64": ints(64),
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "text": TEXTS,
    "raw": st.binary(max_size=30),
    "fixed": st.binary(min_size=3, max_size=3),
    "small": decimals(18, 3),
    "wide": decimals(38, 9),
    "day": st.dates(dt.date(1800, 1, 1)),
    "clock": st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "t0": times("s"),
    "t3": times("ms"),
    # the official client refuses digits below the millisecond before 1970
    "t6": st.one_of(times("us", 1970), times("ms")),
    "z6": st.one_of(times("us", 1970), times("ms")).map(lambda t: t.replace(tzinfo=dt.UTC)),
    "texts": st.lists(st.none() | TEXTS, max_size=10),
    "lists": st.lists(st.none() | st.lists(st.none() | ints(32), max_size=5), max_size=4),
    "map": st.dictionaries(TEXTS, st.none() | ints(64), max_size=5).map(lambda d: list(d.items())),
    "row": st.fixed_dictionaries(
        {"x": st.none() | ints(32), "y": st.none() | TEXTS, "z": st.floats(allow_nan=False)}
    ),
}


def rows_of(names: list[str], keys: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = {name: VALUES[name] if name in keys else st.none() | VALUES[name] for name in names}
    made = st.fixed_dictionaries(row)
    return st.lists(made, min_size=1, max_size=8, unique_by=lambda r: repr([r[k] for k in keys]))


@pytest.fixture(scope="module")
def recorded(fluss_cluster_factory: ClusterFactory) -> Iterator[Recorded]:
    with recorded_cluster(fluss_cluster_factory) as found:
        yield found


def without_own(batch: bytes) -> bytes:
    data = bytearray(batch)
    for part in OWN:
        data[part] = bytes(part.stop - part.start)
    return bytes(data)


def check_same(
    recorded: Recorded, table: fluss.FlussTable, rows: list[dict[str, Any]], keys: list[str]
) -> None:
    """Put rows, and delete some, with both clients; compare what was put, and what is there."""
    deletes = [[row[key] for key in keys] for row in rows[::3]]
    recorded.puts()
    recorded.official.write(table, rows, [dict(zip(keys, key, strict=True)) for key in deletes])
    theirs = recorded.puts()
    with table.new_upsert().create_writer() as writer:
        schema = table.arrow_schema
        writer.write_arrow(pa.Table.from_pylist(rows, schema=schema))
        deleted = pa.Table.from_pylist(rows[::3], schema=schema).select(keys)
        writer.delete_arrow(deleted)
    ours = recorded.puts()
    assert [without_own(b) for b in ours] == [without_own(b) for b in theirs]
    assert len(ours) == 1


@pytest.fixture(scope="module")
def wide(recorded: Recorded) -> fluss.FlussTable:
    return recorded.tables(SCHEMA, ["id"])


often = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@often
@given(rows=rows_of(SCHEMA.names, ["id"]))
def test_rows_of_every_type(
    recorded: Recorded, wide: fluss.FlussTable, rows: list[dict[str, Any]]
) -> None:
    check_same(recorded, wide, rows, ["id"])


@pytest.fixture(scope="module")
def keyed(recorded: Recorded) -> fluss.FlussTable:
    schema = pa.schema([SCHEMA.field(name).with_nullable(False) for name in KEYS])
    return recorded.tables(schema.append(pa.field("v", pa.int32())), KEYS)


@often
@given(rows=rows_of(KEYS, KEYS))
def test_keys_of_every_type(
    recorded: Recorded, keyed: fluss.FlussTable, rows: list[dict[str, Any]]
) -> None:
    check_same(recorded, keyed, [{**row, "v": 1} for row in rows], KEYS)


@pytest.mark.parametrize("step", ["s", "ms", "us"])
def test_moments_before_1970(recorded: Recorded, step: str) -> None:
    """Ours writes them with all their digits, and the official client reads them."""
    kind = pa.timestamp(step)
    moments = [dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(1901, 2, 3, 4, 5, 6)]
    if step != "s":
        moments.append(dt.datetime(1969, 12, 31, 23, 59, 59, 999_000))
    if step == "us":
        moments += [
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            dt.datetime(1950, 1, 1, 0, 0, 0, 1),
        ]
    schema = pa.schema([("id", pa.int64()), ("t", kind)])
    table = recorded.tables(schema, ["id"])
    data = pa.Table.from_arrays(
        [pa.array(range(len(moments))), pa.array(moments, kind)], schema=schema
    )
    with table.new_upsert() as writer:
        writer.write_arrow(data)
    found = recorded.official.lookup(table, [[i] for i in range(len(moments))])
    assert [row["t"] for row in found] == moments
    scanned = table.new_scan().create_snapshot_scanner().to_arrow().sort_by("id")
    assert scanned.column("t").to_pylist() == moments
