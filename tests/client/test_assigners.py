"""Which bucket a row goes to: by hash as the official client does, round robin, sticky."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from tests.client.support import Official, Tables

BUCKETS = 7
KEYS: dict[str, pa.Array] = {
    "int": pa.array([-(2**31), -1, 0, 1, 2**31 - 1, *range(50)], pa.int32()),
    "bigint": pa.array([-(2**63), -1, 0, 1, 2**63 - 1, *range(50)], pa.int64()),
    "smallint": pa.array([-(2**15), -1, 0, 1, 2**15 - 1], pa.int16()),
    "tinyint": pa.array([-(2**7), -1, 0, 1, 2**7 - 1], pa.int8()),
    "boolean": pa.array([True, False]),
    "string": pa.array(["", "a", "ä€😀", "x" * 300, *(f"key-{i}" for i in range(50))]),
    "bytes": pa.array([b"", b"\0", b"\xff" * 300]),
    "binary": pa.array([b"\0\0\0", b"abc"], pa.binary(3)),
    "float": pa.array([0.0, -0.0, 1.5, float("inf")], pa.float32()),
    "double": pa.array([0.0, -0.0, 1.5, float("-inf")]),
    "decimal small": pa.array([Decimal("1.25"), Decimal("-9.99")], pa.decimal128(5, 2)),
    "decimal large": pa.array([Decimal(10) ** 27, Decimal(-1)], pa.decimal128(38, 0)),
    "date": pa.array([dt.date(1969, 12, 31), dt.date(2026, 11, 21)]),
    "time": pa.array([dt.time(0), dt.time(23, 59, 59, 999000)]).cast(pa.time32("ms")),
    "timestamp(3)": pa.array([-1, 0, 10**12], pa.int64()).cast(pa.timestamp("ms")),
    "timestamp(6)": pa.array([0, 1, 10**15 + 1], pa.int64()).cast(pa.timestamp("us")),
    "timestamp_ltz(6)": pa.array([-1, 0, 10**15], pa.int64()).cast(pa.timestamp("us", "UTC")),
}


def buckets(tables: Tables, table: fluss.FlussTable) -> dict[int, list[dict[str, Any]]]:
    """Return bucket -> rows in it."""
    result = {}
    for bucket in range(table.get_table_info().num_buckets):
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(bucket, fluss.EARLIEST_OFFSET)
        result[bucket] = scanner.to_arrow().to_pylist()
    return result


def check_hash(tables: Tables, official_client: Official, data: pa.Table, key: list[str]) -> None:
    ours = tables(data.schema, bucket_count=BUCKETS, bucket_keys=key)
    theirs = tables(data.schema, bucket_count=BUCKETS, bucket_keys=key)
    tables.write(ours, data)

    async def one_by_one() -> None:
        opened = await official_client.connection.get_table(official_client.path(theirs))
        writer = opened.new_append().create_writer()
        for row in data.to_pylist():
            writer.append(row)
        await writer.flush()

    official_client.run(one_by_one)
    info = ours.get_table_info()
    types = [next(c.type for c in info.schema.columns if c.name == name) for name in key]
    keys = encode_keys([data.column(name).combine_chunks() for name in key], types)
    # servers and the Java client hash signed bytes; the official Python client does not
    assert where(buckets(tables, ours)) == bucket_ids(keys, BUCKETS).tolist()
    assert where(buckets(tables, theirs)) == bucket_ids(keys, BUCKETS, unsigned_tail=True).tolist()


def where(found: dict[int, list[dict[str, Any]]]) -> list[int]:
    """Return the bucket of row 0, 1, ..."""
    pairs = {row["n"]: bucket for bucket, rows in found.items() for row in rows}
    return [pairs[n] for n in range(len(pairs))]


@pytest.mark.parametrize("kind", KEYS)
def test_hash_of_each_type(tables: Tables, official_client: Official, kind: str) -> None:
    key = KEYS[kind]
    data = pa.table({"n": range(len(key)), "key": key})
    check_hash(tables, official_client, data, ["key"])


def test_hash_of_several_columns(tables: Tables, official_client: Official) -> None:
    data = pa.table(
        {
            "a": [f"a{i % 5}" for i in range(100)],
            "n": range(100),
            "b": pa.array([i % 11 for i in range(100)], pa.int32()),
        }
    )
    check_hash(tables, official_client, data, ["b", "a"])


def test_hash_of_rows_and_frames_is_the_same(tables: Tables) -> None:
    data = pa.table({"key": [f"key-{i}" for i in range(200)]})
    frames = tables(data.schema, bucket_count=BUCKETS, bucket_keys=["key"])
    rows = tables(data.schema, bucket_count=BUCKETS, bucket_keys=["key"])
    tables.write(frames, data)
    with rows.new_append().create_writer() as writer:
        for row in data.to_pylist():
            writer.append(row)
    assert buckets(tables, frames) == buckets(tables, rows)
    assert all(buckets(tables, rows).values())


def connect(address: str, assigner: str) -> fluss.FlussConnection:
    return fluss.connect({"bootstrap.servers": address, "writer.bucket.no-key-assigner": assigner})


@pytest.mark.parametrize("form", ["frame", "rows", "frames"])
def test_round_robin_is_even(address: str, tables: Tables, form: str) -> None:
    table = tables(pa.schema([("n", pa.int64())]), bucket_count=4)
    data = pa.table({"n": range(41)})
    with connect(address, "round_robin") as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            if form == "frame":
                writer.write_arrow(data)
            elif form == "rows":
                for row in data.to_pylist():
                    writer.append(row)
            else:
                for start in range(0, 41, 3):
                    writer.write_arrow(data.slice(start, 3)).wait()
    found = buckets(tables, table)
    assert sorted(len(rows) for rows in found.values()) == [10, 10, 10, 11]
    for rows in found.values():
        numbers = [row["n"] for row in rows]
        assert numbers == list(range(numbers[0], 41, 4))


def test_sticky_takes_one_bucket_for_a_batch_and_another_for_the_next(
    address: str, tables: Tables
) -> None:
    table = tables(pa.schema([("n", pa.int64())]), bucket_count=3)
    with connect(address, "sticky") as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            for i in range(60):
                writer.write_arrow(pa.table({"n": [i, i]})).wait()
    found = buckets(tables, table)
    where = {row["n"]: bucket for bucket, rows in found.items() for row in rows}
    counts = Counter(row["n"] for rows in found.values() for row in rows)
    assert counts == dict.fromkeys(range(60), 2)
    assert all(where[i] != where[i + 1] for i in range(59))
    assert set(where.values()) == {0, 1, 2}


def test_null_in_a_bucket_key(tables: Tables) -> None:
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    table = tables(schema, bucket_count=2, bucket_keys=["key"])
    with table.new_append().create_writer() as writer:
        accepted = writer.append(("a", 0))
        with pytest.raises(fluss.FlussError, match="key"):
            writer.append((None, 1))
        accepted.wait()
    assert tables.read(table).to_pylist() == [{"key": "a", "n": 0}]


@pytest.mark.parametrize("skewed", [False, True])
def test_batches_of_a_bucket_are_as_large_as_was_asked_for(
    address: str, tables: Tables, skewed: bool
) -> None:
    size = 1 << 16
    rows = 1 << 17
    keys = [0] * rows if skewed else list(range(rows))
    data = pa.table({"key": keys, "n": range(rows)})
    table = tables(data.schema, bucket_count=4, bucket_keys=["key"])
    with fluss.connect({"bootstrap.servers": address, "writer.batch-size": size}) as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            sizes = [batch.rows.nbytes for batch in writer.route(data)]
            writer.write_arrow(data)
    assert max(sizes) <= size * 1.2
    assert sum(sizes) / len(sizes) > size * 0.8
    found = buckets(tables, table)
    assert sum(len(part) for part in found.values()) == rows
    # in the order of the frame within a bucket
    for part in found.values():
        numbers = [row["n"] for row in part]
        assert numbers == sorted(numbers)
