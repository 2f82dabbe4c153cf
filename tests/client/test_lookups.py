"""Lookups: single, many, by prefix, concurrent, awaited, and of what does not exist."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import FlussError
from fluss_df.client.lookup.queue import LookupQueue
from fluss_df.errors import SchemaMismatchError
from tests.client.kv_support import SCHEMA
from tests.client.support import Tables

ROWS = 20_000


def frame(rows: int) -> pa.Table:
    return pa.table(
        [range(rows), [f"name {i}" for i in range(rows)], [i / 2 for i in range(rows)]],
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def filled(tables: Tables) -> fluss.FlussTable:
    table = tables(SCHEMA, ["id"], bucket_count=4)
    with table.new_upsert() as writer:
        writer.write_arrow(frame(ROWS))
    return table


def test_one_row(filled: fluss.FlussTable) -> None:
    lookuper = filled.new_lookup().create_lookuper()
    expected = {"id": 7, "name": "name 7", "score": 3.5}
    assert lookuper.lookup({"id": 7}) == expected
    assert lookuper.lookup([7]) == expected
    assert lookuper.lookup((7,)) == expected
    assert filled.new_lookup().lookup({"id": 7}) == expected
    assert lookuper.lookup({"id": -1}) is None


def test_many_rows_in_the_order_of_their_keys(filled: fluss.FlussTable) -> None:
    rng = random.Random(1)
    keys = [rng.randrange(-100, ROWS + 100) for _ in range(30_000)]
    lookuper = filled.new_lookup().create_lookuper()
    rows = lookuper.lookup_arrow(pa.table({"id": keys}), found_column="found")
    expected = [
        {"id": k, "name": f"name {k}", "score": k / 2, "found": True}
        if 0 <= k < ROWS
        else {"id": None, "name": None, "score": None, "found": False}
        for k in keys
    ]
    assert rows.to_pylist() == expected
    assert rows.schema.names == [*SCHEMA.names, "found"]


def test_other_frames_of_keys(filled: fluss.FlussTable) -> None:
    lookuper = filled.new_lookup().create_lookuper()
    for keys in (
        pl.DataFrame({"id": [3, 1]}),
        pa.record_batch({"id": [3, 1]}),
        pa.table({"id": pa.array([3, 1], pa.int16())}),
    ):
        assert lookuper.lookup_arrow(keys).column("id").to_pylist() == [3, 1]
    empty = lookuper.lookup_arrow(pa.table({"id": pa.array([], pa.int64())}), found_column="ok")
    assert empty.num_rows == 0
    assert empty.schema.names == [*SCHEMA.names, "ok"]


def test_keys_that_do_not_fit(filled: fluss.FlussTable) -> None:
    lookuper = filled.new_lookup().create_lookuper()
    for bad, match in (
        ({"id": "x"}, "'id': row 0: 'x'"),
        ({"id": None}, "'id'.*null"),
        ({}, "no value for column 'id'"),
        ({"id": 1, "name": "a"}, "'name' is none of id"),
        ([1, 2], "2 values for 1 columns: id"),
    ):
        with pytest.raises(SchemaMismatchError, match=f"{filled.get_table_path()}.*{match}"):
            lookuper.lookup(bad)
    with pytest.raises(SchemaMismatchError, match="'name' is none of id: drop it"):
        lookuper.lookup_arrow(pa.table({"id": [1], "name": ["a"]}))
    with pytest.raises(SchemaMismatchError, match="cannot look up list"):
        lookuper.lookup_arrow([1])
    with pytest.raises(FlussError, match="choose another found_column"):
        lookuper.lookup_arrow(pa.table({"id": [1]}), found_column="name")


def test_concurrent_callers_share_requests(
    filled: fluss.FlussTable, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for while a request is on its way goes together in the next one."""
    ask = LookupQueue._request
    sizes = []

    async def asked_slowly(queue: LookupQueue, node: Any, groups: Any) -> Any:
        sizes.append(sum(len(queries) for queries in groups.values()))
        await asyncio.sleep(0.02)  # time for the other callers to ask, on a busy machine too
        return await ask(queue, node, groups)

    monkeypatch.setattr(LookupQueue, "_request", asked_slowly)
    with fluss.connect(address) as connection:
        lookuper = connection.get_table(filled.get_table_path()).new_lookup().create_lookuper()
        lookuper.lookup([0])
        before = connection.metrics.requests
        with ThreadPoolExecutor(32) as pool:
            rows = list(pool.map(lambda i: lookuper.lookup([i]), range(1000)))
        asked = connection.metrics.requests - before
    assert [row["name"] for row in rows if row] == [f"name {i}" for i in range(1000)]
    assert sum(sizes) > 4 * len(sizes)
    # one caller at a time asks alone, on its own thread
    assert asked == 1000 - sum(sizes) + len(sizes)


def test_a_single_lookup_does_not_linger(filled: fluss.FlussTable) -> None:
    """The official client waits for 100 ms; ten in turn would take a second."""
    lookuper = filled.new_lookup().create_lookuper()
    lookuper.lookup([0])
    took = []
    for i in range(10):
        began = time.perf_counter()
        lookuper.lookup([i])
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05


def test_lookups_can_be_awaited(filled: fluss.FlussTable) -> None:
    async def work() -> list[Any]:
        lookuper = filled.new_lookup().create_lookuper()
        found = [await lookuper.lookup([i]) for i in (5, -5)]  # type: ignore[misc]
        missing = lookuper.lookup([-5])
        assert missing == None  # noqa: E711
        assert not missing
        return found

    assert asyncio.run(work()) == [{"id": 5, "name": "name 5", "score": 2.5}, None]


def test_partitions(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("name", pa.string())])
    table = tables(schema, ["region", "id"], partition_keys=["region"], bucket_count=2)
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup({"id": 1, "region": "eu"}) is None
    with table.new_upsert().create_writer(create_partitions=True) as writer:
        for region in ("eu", "us"):
            for i in range(50):
                writer.upsert({"id": i, "region": region, "name": f"{region}{i}"})
    assert lookuper.lookup(["eu", 1]) == {"id": 1, "region": "eu", "name": "eu1"}
    keys = pa.table({"id": [4, 4, 4, 99], "region": ["us", "asia", "eu", "us"]})
    assert lookuper.lookup_arrow(keys).column("name").to_pylist() == ["us4", None, "eu4", None]
    admin = tables.connection.get_admin()
    admin.drop_partition(table.get_table_path(), {"region": "us"})
    assert lookuper.lookup({"id": 4, "region": "eu"}) is not None


def test_prefixes(tables: Tables) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64())])
    table = tables(schema, ["a", "b", "c"], bucket_keys=["a", "b"], bucket_count=3)
    with table.new_upsert() as writer:
        for a in range(5):
            for c in range(a):
                writer.upsert([a, "x", c])
    lookuper = table.new_lookup().lookup_by(["a", "b"]).create_lookuper()
    assert sorted(row["c"] for row in lookuper.lookup([3, "x"])) == [0, 1, 2]
    assert lookuper.lookup({"a": 3, "b": "y"}) == []
    prefixes = pa.table({"b": ["x", "x", "y"], "a": pa.array([4, 2, 4], pa.int32())})
    rows = lookuper.lookup_arrow(prefixes, index_column="prefix")
    found = [(row["a"], row["c"], row["prefix"]) for row in rows.to_pylist()]
    assert sorted(found) == [(2, 0, 1), (2, 1, 1), (4, 0, 0), (4, 1, 0), (4, 2, 0), (4, 3, 0)]
    assert rows.column("prefix").to_pylist() == [0] * 4 + [1] * 2
    assert table.new_lookup().prefix_lookup([1, "x"]) == [{"a": 1, "b": "x", "c": 0}]
    assert table.new_lookup().lookup([2, "x", 1]) == {"a": 2, "b": "x", "c": 1}
    with pytest.raises(FlussError, match="is by a, b, not by b, a"):
        table.new_lookup().lookup_by(["b", "a"])


def test_tables_without_prefixes(filled: fluss.FlussTable) -> None:
    with pytest.raises(FlussError, match="has no prefix lookup: its bucket key"):
        filled.new_lookup().lookup_by(["id"])


def test_chunks_follow_the_size_of_the_values(filled: fluss.FlussTable) -> None:
    """What one answer brings is bounded, and no key is left out or asked for twice."""
    cluster = filled.new_lookup()._connection.cluster
    queue = LookupQueue(cluster, filled.get_table_info(), prefix=False)
    bucket = fluss.TableBucket(1, 0)
    keys = [str(i).encode() for i in range(5000)]
    sizes, seen = [], []
    for _, start, _, part in queue._chunks([(bucket, keys)]):
        assert keys[start : start + len(part)] == part
        sizes.append(len(part))
        seen += part
        queue._adapt([b"x" * 40_000] * len(part))
    assert seen == keys
    assert sizes[0] == 1024
    assert set(sizes[1:-1]) == {(4 << 20) // 40_000}
