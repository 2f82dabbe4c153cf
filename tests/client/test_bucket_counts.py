"""Partitions that have fewer or more buckets than their table says, as newer servers let them.

The engine serves the requests; what it says of partitions is what such a server would say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.requests import dispatch
from fluss_df.engine.requests.catalog_requests import CatalogRequests
from fluss_df.errors import ErrorCode, FlussError

COUNTS = {"a": 2, "b": 5, "c": 1}
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("id", pa.int64()), ("v", pa.int64())])
IDS = range(300)

# requests that say of how many buckets theirs is one
CHECKED = {
    "PRODUCE_LOG",
    "FETCH_LOG",
    "PUT_KV",
    "LOOKUP",
    "PREFIX_LOOKUP",
    "LIMIT_SCAN",
    "SCAN_KV",
    "LIST_OFFSETS",
    "GET_TABLE_STATS",
}


class Rescaled:
    """A server whose partitions have buckets of their own number, and what it was asked."""

    def __init__(self, connection: fluss.FlussConnection) -> None:
        self.connection = connection
        self.asked: set[str] = set()

    def table(self, *, keys: bool) -> fluss.FlussTable:
        admin = self.connection.get_admin()
        path = fluss.TablePath("fluss", "keys" if keys else "log")
        schema = fluss.Schema(SCHEMA, ["p", "k", "id"] if keys else None)
        # the engine has as many buckets of each partition as any of them needs
        descriptor = fluss.TableDescriptor(
            schema, bucket_count=5, bucket_keys=["k"], partition_keys=["p"]
        )
        admin.create_table(path, descriptor)
        for name in COUNTS:
            admin.create_partition(path, {"p": name})
        return self.connection.get_table(path)

    def rows(self, v: int = 0) -> pa.Table:
        n = len(IDS)
        return pa.concat_tables(
            pa.table({"p": [name] * n, "k": list(IDS), "id": list(IDS), "v": [v] * n})
            for name in COUNTS
        )


def _counted(request: Any, partitions: dict[int, int]) -> bool:
    """Whether every bucket that a request names is said to be of as many as it is."""
    parts = [request, *getattr(request, "buckets_req", ())]
    for table in getattr(request, "tables_req", ()):
        parts += table.buckets_req
    if hasattr(request, "bucket_scan_req"):
        parts.append(request.bucket_scan_req)
    return all(
        part.bucket_count == partitions[part.partition_id]
        for part in parts
        if hasattr(part, "bucket_count") and part.HasField("partition_id")
    )


@pytest.fixture
def rescaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rescaled]:
    partitions: dict[int, int] = {}
    asked: set[str] = set()
    dispatcher = dispatch.Dispatcher
    list_partitions = CatalogRequests._list_partitions
    add_partition = dispatcher._add_partition
    made = dispatcher.__post_init__

    def listed(self: Any, request: Any) -> Any:
        response = list_partitions(self, request)
        for info in response.partitions_info:
            name = info.partition_spec.partition_key_values[0].value
            info.bucket_count = partitions[info.partition_id] = COUNTS[name]
        return response

    def added(response: Any, table: Any, name: str, partition_id: int) -> None:
        add_partition(response, table, name, partition_id)
        partitions[partition_id] = COUNTS[name]
        response.partition_metadata[-1].bucket_count = COUNTS[name]

    def checked(kind: Any, handler: Any) -> Any:
        def handle(*args: Any, **more: Any) -> Any:
            asked.add(kind.name)
            # some are handed on as bytes, behind the engine
            request = args[0] if len(args) == 1 else kind.request.FromString(bytes(args[1]))
            if not _counted(request, partitions):
                raise FlussError(f"{kind.name}: another number", ErrorCode.STALE_METADATA)
            return handler(*args, **more)

        return handle

    def post_init(self: Any) -> None:
        made(self)
        for key, (kind, handler) in list(self._handlers.items()):
            if kind.name in CHECKED:
                self._handlers[key] = (kind, checked(kind, handler))

    monkeypatch.setattr(CatalogRequests, "_list_partitions", listed)
    monkeypatch.setattr(dispatcher, "_add_partition", staticmethod(added))
    monkeypatch.setattr(dispatcher, "__post_init__", post_init)
    with EmbeddedFluss(tmp_path / "server", port=0) as engine:
        config = fluss.Config({"bootstrap.servers": engine.address})
        with fluss.connect(config.copy(retry_timeout_ms=3000)) as connection:
            server = Rescaled(connection)
            server.asked = asked
            yield server


def test_rows_go_where_lookups_and_scans_look(rescaled: Rescaled) -> None:
    table, connection = rescaled.table(keys=True), rescaled.connection
    with table.new_upsert().create_writer() as writer:
        writer.write_arrow(rescaled.rows())
        writer.flush()
        places = {(r.partition_name, r.bucket_id) for r in writer.offsets()}
        for name in COUNTS:  # one by one
            writer.upsert((name, 7, 7, 1))
    assert places == {(name, b) for name, count in COUNTS.items() for b in range(count)}
    keys = rescaled.rows().select(["p", "k", "id"])
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup_arrow(keys).column("v").null_count == 0
    for name in COUNTS:
        for k in (7, 8, 9):
            found = lookuper.lookup((name, k, k))
            assert found is not None
            assert found["v"] == int(k == 7)
    assert table.new_scan().create_snapshot_scanner().to_arrow().num_rows == len(keys)
    frame = fluss.scan_fluss(table.get_table_path(), connection=connection)
    assert frame.collect().height == len(keys)
    assert frame.filter(pl.col("k") == 7).collect().get_column("v").to_list() == [1, 1, 1]
    prefix = pa.table({"p": list(COUNTS), "k": [7] * len(COUNTS)})
    prefixes = table.new_lookup().lookup_by(["p", "k"]).create_lookuper()
    assert prefixes.lookup_arrow(prefix).column("v").to_pylist() == [1] * len(COUNTS)
    ids = {
        p.partition_name: p
        for p in connection.get_admin().list_partition_infos(table.get_table_path())
    }
    assert {name: found.num_buckets for name, found in ids.items()} == COUNTS
    table_id = table.get_table_info().table_id
    bucket = fluss.TableBucket(table_id, 4, ids["b"].partition_id)
    assert table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow().num_rows == 3
    with pytest.raises(FlussError, match="its buckets are 0 to 1"):
        table.new_scan().limit(3).create_bucket_batch_scanner(
            fluss.TableBucket(table_id, 4, ids["a"].partition_id)
        )
    stats = connection.get_admin().get_table_stats(table.get_table_path())
    assert stats.row_count == len(keys)
    assert {"PUT_KV", "LOOKUP", "SCAN_KV", "GET_TABLE_STATS"} <= rescaled.asked


@pytest.fixture
def table_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose tables say that they have three buckets."""
    table_info = CatalogRequests._table_info

    def said(self: Any, request: Any) -> Any:
        response = table_info(self, request)
        told = {**json.loads(response.table_json), "bucket_count": 3}
        response.table_json = json.dumps(told).encode()
        return response

    monkeypatch.setattr(CatalogRequests, "_table_info", said)


@pytest.mark.usefixtures("table_of_three")
def test_buckets_that_are_named_are_bounded_by_the_partitions_read(rescaled: Rescaled) -> None:
    table, connection = rescaled.table(keys=False), rescaled.connection
    with table.new_append().create_writer() as writer:
        writer.write_arrow(rescaled.rows())
    path = table.get_table_path()
    all_rows = fluss.read_fluss(path, connection=connection, include_metadata=True)
    assert all_rows.height == 3 * len(IDS)
    for numbers in ([4], [3, 4], [0, 4], 2):
        found = fluss.read_fluss(path, connection=connection, buckets=numbers)
        wanted = [numbers] if isinstance(numbers, int) else numbers
        expected = all_rows.filter(pl.col("_bucket").is_in(wanted)).select(found.columns)
        assert found.equals(expected)
        assert found.height
    of_b = fluss.read_fluss(path, connection=connection, partitions="b", buckets=4)
    assert set(of_b["p"]) == {"b"}
    tail = fluss.read_fluss(path, connection=connection, buckets=4, start={("b", 4): 3})
    assert tail.equals(of_b[3:])
    for given, message in (
        ({"buckets": 5}, r"buckets: table fluss.log has no bucket 5; its buckets are 0 to 4"),
        ({"buckets": [4], "partitions": ["a", "c"]}, r"no bucket 4; its buckets are 0 to 1"),
        ({"buckets": -1}, "no bucket -1; its buckets are 0 to 2"),
        ({"start": {("b", 5): 0}}, "start: .* no bucket 5 of its partition 'b'.* 0 to 4"),
        ({"start": {("a", 4): 0}}, "start: .* no bucket 4 of its partition 'a'.* 0 to 1"),
    ):
        with pytest.raises(FlussError, match=message):
            fluss.scan_fluss(path, connection=connection, **given)
    shown = fluss.explain(fluss.scan_fluss(path, connection=connection))
    assert re.search(r"buckets +8 of 8", shown)


@pytest.mark.usefixtures("table_of_three")
def test_the_plan_of_a_scan_of_keys_counts_buckets_of_partitions(rescaled: Rescaled) -> None:
    table, connection = rescaled.table(keys=True), rescaled.connection
    with table.new_upsert().create_writer() as writer:
        writer.write_arrow(rescaled.rows())
    frame = fluss.scan_fluss(table.get_table_path(), connection=connection)
    assert re.search(r"buckets +8 of 8", fluss.explain(frame))
    assert re.search(r"buckets +5 of 8", fluss.explain(frame.filter(p="b")))
    assert frame.collect().height == 3 * len(IDS)


def test_logs_are_pruned_by_their_own_numbers(rescaled: Rescaled) -> None:
    table, connection = rescaled.table(keys=False), rescaled.connection
    with table.new_append().create_writer() as writer:
        writer.write_arrow(rescaled.rows())
    frame = fluss.scan_fluss(table.get_table_path(), connection=connection)
    assert frame.collect().height == 3 * len(IDS)
    for k in range(0, 40, 3):
        found = frame.filter(pl.col("k") == k).collect()
        assert sorted(found.get_column("p").to_list()) == ["a", "b", "c"]
    assert {"PRODUCE_LOG", "FETCH_LOG", "LIST_OFFSETS"} <= rescaled.asked
