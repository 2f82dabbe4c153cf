"""Scans of the current rows, beside writers: what they return is the changelog, folded."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import FlussError
from fluss_df.client.cluster.snapshot_leases import acquire_request
from fluss_df.client.scan import snapshot_files
from fluss_df.client.scan.change_fold import ChangeFold
from fluss_df.client.scan.snapshot_files import KvSnapshot, leased, newest_ids, snapshot_entries
from fluss_df.cluster.pytest_plugin import ClusterFactory
from tests.campaigns.kv_scan import run as compare
from tests.client.kv_support import SCHEMA, Rows, fold, random_changes, state
from tests.client.support import Tables
from tests.client.test_schema_evolution import add_columns


@pytest.fixture(scope="module")
def snapshotting(fluss_cluster_factory: ClusterFactory) -> Iterator[Tables]:
    """Tables of a cluster that takes a snapshot of each bucket every second."""
    options = {"kv.snapshot.interval": "1s"}
    with (
        fluss_cluster_factory(tablet_servers=1, server_options=options) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        connection.get_admin().create_database("kv_scan")
        yield Tables(connection, "kv_scan")


@pytest.mark.parametrize("together", [2048, 0])
def test_random_scans_beside_a_writer(
    snapshotting: Tables, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("fluss_df.client.scan.snapshot_offsets._GROUP_CHANGES", together)
    table = snapshotting(SCHEMA, ["id"], bucket_count=3)
    assert compare(table, runs=20, seed=5) == 20


def test_scans_before_the_first_snapshot(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"], bucket_count=2)
    assert compare(table, runs=3, seed=6) == 3


def newest_leased(
    connection: fluss.FlussConnection, info: fluss.TableInfo, bucket: fluss.TableBucket
) -> AbstractContextManager[KvSnapshot | None]:
    ids = connection.io.run(newest_ids(connection, info, None, None))
    return leased(connection, bucket, ids.get(bucket))


def test_snapshots_are_read_where_there_are_any(snapshotting: Tables) -> None:
    """A scan behind a snapshot fetches the changes behind it, and none before."""
    table = snapshotting(SCHEMA, ["id"])
    info = table.get_table_info()
    model: Rows = {}
    with table.new_upsert() as writer:
        random_changes(writer, model, random.Random(1), ids=200, calls=80)
    bucket = fluss.TableBucket(info.table_id, 0)
    for _ in range(100):
        with newest_leased(snapshotting.connection, info, bucket) as snapshot:
            if snapshot is not None:
                break
        time.sleep(0.2)
    assert snapshot is not None
    time.sleep(1.5)
    scanner = table.new_scan().create_snapshot_scanner()
    rows = {row["id"]: row for row in scanner.to_arrow().to_pylist()}
    assert rows == model
    assert scanner.metrics.rows == len(model)


def test_a_lease_is_renewed_while_a_snapshot_is_read(
    snapshotting: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = snapshotting(SCHEMA, ["id"])
    info, connection = table.get_table_info(), snapshotting.connection
    bucket = fluss.TableBucket(info.table_id, 0)
    with table.new_upsert() as writer:
        random_changes(writer, {}, random.Random(2), ids=5, calls=5)
    renewed = threading.Semaphore(0)

    def request(lease: str, duration: int, snapshots: dict[fluss.TableBucket, int]) -> object:
        if not snapshots:
            renewed.release()
        return acquire_request(lease, duration, snapshots)

    async def renewing() -> int:
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        return sum(getattr(each, "__name__", None) == "_renew" for each in coroutines)

    monkeypatch.setattr(snapshot_files, "acquire_request", request)
    monkeypatch.setattr(snapshot_files, "_LEASE_MS", 600)
    for _ in range(100):
        with newest_leased(connection, info, bucket) as snapshot:
            if snapshot is not None:
                assert renewed.acquire(timeout=20)
                assert renewed.acquire(timeout=20)
                assert connection.io.run(renewing()) == 1
                break
        time.sleep(0.2)
    assert snapshot is not None
    assert connection.io.run(renewing()) == 0


def test_a_snapshot_stays_while_it_is_read(snapshotting: Tables) -> None:
    """Newer ones take its place, and its files are deleted when the lease ends."""
    table = snapshotting(SCHEMA, ["id"])
    info, connection = table.get_table_info(), snapshotting.connection
    bucket = fluss.TableBucket(info.table_id, 0)

    def newest(after: int) -> KvSnapshot:
        """Write until there is a snapshot newer than one."""
        for number in range(200):
            with table.new_upsert() as writer:
                writer.upsert([number % 5, f"after {after}", None])
            with newest_leased(connection, info, bucket) as snapshot:
                if snapshot is not None and snapshot.snapshot_id > after:
                    return snapshot
            time.sleep(0.1)
        raise AssertionError("no snapshot")

    newest(-1)
    with newest_leased(connection, info, bucket) as held:
        assert held is not None
        newest(newest(held.snapshot_id).snapshot_id)
        rows = sum(len(values) for _, values in snapshot_entries(connection, held))
        assert 1 <= rows <= 5
    last = newest(held.snapshot_id).snapshot_id
    for _ in range(20):
        last = newest(last).snapshot_id
        with contextlib.suppress(fluss.FlussError):
            list(snapshot_entries(connection, held))
            continue
        break
    with pytest.raises(fluss.FlussError, match=f"of snapshot {held.snapshot_id} is gone"):
        list(snapshot_entries(connection, held))


def test_a_changelog_goes_on_where_a_scan_ends(snapshotting: Tables) -> None:
    table = snapshotting(SCHEMA, ["id"], bucket_count=2)
    with table.new_upsert() as writer:
        random_changes(writer, {}, random.Random(2), ids=20)
    scanner = table.new_scan().create_snapshot_scanner()
    rows = {row["id"]: row for row in scanner.to_arrow().to_pylist()}
    with table.new_upsert() as writer:
        random_changes(writer, {}, random.Random(3), ids=20)
    log = table.new_scan().create_record_batch_log_scanner()
    log.subscribe_buckets({b.bucket_id: offset for b, offset in scanner.offsets.items()})
    for change in log.to_arrow().to_pylist():
        kind = change.pop("_change_type")
        del change["_log_offset"], change["_commit_timestamp"]
        if kind in ("-U", "-D"):
            assert rows.pop(change["id"]) == change
        else:
            assert change["id"] not in rows
            rows[change["id"]] = change
    assert rows == state(table)


def test_projection_limit_and_batches(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"], bucket_count=3)
    with table.new_upsert() as writer:
        data = [range(1000), [str(i) for i in range(1000)], [0.5] * 1000]
        writer.write_arrow(pa.table(data, schema=SCHEMA))
    scan = table.new_scan().project_by_name(["score", "name"])
    scanner = scan.create_snapshot_scanner()
    with pytest.raises(FlussError, match="is not over"):
        _ = scanner.offsets
    batches = list(scanner.batches())
    assert {b.schema.names == ["score", "name"] for b in batches} == {True}
    assert sorted(int(v) for b in batches for v in b.column(1).to_pylist()) == list(range(1000))
    assert len(scanner.offsets) == 3
    with pytest.raises(FlussError, match="reads once"):
        scanner.to_arrow()
    for limit in (1, 400, 5000):
        limited = scan.limit(limit).create_snapshot_scanner()
        assert limited.to_arrow().num_rows == min(limit, 1000)
        with pytest.raises(FlussError, match="had a limit"):
            _ = limited.offsets
    # by a column that is not in the result; a limit counts the rows that pass
    some = scan.filter(fluss.col("id") >= 990)
    found = some.create_snapshot_scanner()
    assert found.schema.names == ["score", "name"]
    assert sorted(found.to_arrow().column("name").to_pylist()) == [str(i) for i in range(990, 1000)]
    assert len(found.offsets) == 3
    assert some.limit(7).create_snapshot_scanner().to_arrow().num_rows == 7
    assert sum(b.num_rows for b in some.create_snapshot_scanner().batches()) == 10
    with pytest.raises(FlussError, match="have no limit"):
        scan.limit(1).create_log_scanner()
    with pytest.raises(FlussError, match="expected a positive integer"):
        scan.limit(0)


def test_a_scan_that_is_given_up(tables: Tables) -> None:
    """Its connection is of use for the next one."""
    table = tables(SCHEMA, ["id"])
    wide = "x" * 1000
    with table.new_upsert() as writer:
        data = [range(9_000), [wide] * 9_000, [None] * 9_000]
        writer.write_arrow(pa.table(data, schema=SCHEMA))
    for _ in range(5):
        batches = table.new_scan().create_snapshot_scanner().batches()
        assert next(batches).num_rows
        batches.close()
    assert table.new_scan().create_snapshot_scanner().to_arrow().num_rows == 9_000


def test_bucket_batch_scanner(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"], bucket_count=2)
    with table.new_upsert() as writer:
        writer.write_arrow(pa.table([range(50), ["a"] * 50, [None] * 50], schema=SCHEMA))
    table_id = table.get_table_info().table_id
    scan = table.new_scan().limit(5)
    scanner = scan.create_bucket_batch_scanner(fluss.TableBucket(table_id, 1))
    first = scanner.next_batch()
    assert first is not None
    assert first.batch.num_rows == 5
    assert first.bucket == scanner.bucket
    assert not scanner.next_batch()
    assert scanner.collect_all_batches() == []
    with pytest.raises(FlussError, match="no bucket 2"):
        scan.create_bucket_batch_scanner(fluss.TableBucket(table_id, 2))
    with pytest.raises(FlussError, match="call limit"):
        table.new_scan().create_bucket_batch_scanner(fluss.TableBucket(table_id, 0))
    log = tables(SCHEMA)
    tables.write(log, pa.table([range(50), ["a"] * 50, [None] * 50], schema=SCHEMA))
    bucket = fluss.TableBucket(log.get_table_info().table_id, 0)
    last = log.new_scan().limit(3).project([0]).create_bucket_batch_scanner(bucket).to_arrow()
    assert last.to_pydict() == {"id": [47, 48, 49]}


def test_rows_of_several_schemas(tables: Tables) -> None:
    """Rows written before a column was added have nulls in it, however they are read."""
    table = tables(SCHEMA, ["id"])
    before = [[i, f"old {i}", 1.0] for i in range(10)]
    with table.new_upsert() as writer:
        for row in before:
            writer.upsert(row)
    add_columns(tables, table, pa.schema([("extra", pa.string())]))
    evolved = tables.connection.get_table(table.get_table_path())
    deadline = time.monotonic() + 20
    while evolved.get_table_info().schema_id == table.get_table_info().schema_id:
        assert time.monotonic() < deadline
        evolved = tables.connection.get_table(table.get_table_path())
    with evolved.new_upsert() as writer:
        writer.upsert([10, "new", 2.0, "more"])
        writer.upsert([3, "updated", 2.0, "e"])
    names = [*SCHEMA.names, "extra"]
    expected = {row[0]: dict(zip(names, [*row, None], strict=True)) for row in before}
    expected[3] = dict(zip(names, [3, "updated", 2.0, "e"], strict=True))
    expected[10] = dict(zip(names, [10, "new", 2.0, "more"], strict=True))
    assert state(evolved) == expected
    lookuper = evolved.new_lookup()
    keys = pa.table({"id": [10, 3, 0]})
    assert lookuper.lookup_arrow(keys).to_pylist() == [expected[10], expected[3], expected[0]]
    # a table that was opened before reads the columns that it knows
    old = {key: {name: row[name] for name in SCHEMA.names} for key, row in expected.items()}
    assert state(table) == old
    assert table.new_lookup().lookup([10]) == old[10]
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    limited = table.new_scan().limit(100).create_bucket_batch_scanner(bucket).to_arrow()
    assert {row["id"]: row for row in limited.to_pylist()} == old
    changes = tables.read(evolved).to_pylist()
    assert [row["extra"] for row in changes] == [None] * 10 + ["more", None, "e"]


@pytest.mark.parametrize("seed", range(3))
def test_folding_in_pieces(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """However a changelog is cut, and however often what it replaced is given up."""
    monkeypatch.setattr("fluss_df.client.scan.change_fold._FOLD_ROWS", 20)
    rng = random.Random(seed)
    columns = fluss.Schema(SCHEMA, ["id"]).columns
    changes = ChangeFold(columns[:1], None, SCHEMA)
    model: Rows = {}
    touched = set()
    for _ in range(40):
        rows, kinds = [], []
        for _ in range(rng.randrange(12)):
            key, kind = rng.randrange(30), rng.choice([1, 2, 3, 4])
            row = {"id": key, "name": str(rng.random()), "score": None}
            rows.append(row)
            kinds.append(kind)
            if kind == 2:
                continue
            touched.add(key)
            if kind == 4:
                model.pop(key, None)
            else:
                model[key] = row
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        changes.add(table, pa.chunked_array([pa.array(kinds, pa.int8())]))
    keys, left = changes.finish()
    assert {row["id"]: row for row in left.to_pylist()} == model
    assert len(keys) == len(touched)


def test_a_scan_while_partitions_come(tables: Tables) -> None:
    """A scan reads the partitions that there are when it begins."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = tables(schema, ["id", "day"], partition_keys=["day"], bucket_count=1)
    assert table.new_scan().create_snapshot_scanner().to_arrow().num_rows == 0
    done = threading.Event()

    def work() -> None:
        with table.new_upsert().create_writer(create_partitions=True) as writer:
            for day in range(3):
                writer.write_arrow(pa.table({"id": range(100), "day": [f"d{day}"] * 100}))
                writer.flush()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        scanner = table.new_scan().create_snapshot_scanner()
        rows = scanner.to_arrow()
        assert rows.num_rows % 100 == 0
        assert len(scanner.offsets) >= rows.num_rows // 100
    thread.join()
    scanner = table.new_scan().create_snapshot_scanner()
    assert scanner.to_arrow().num_rows == 300
    # ids repeat over partitions: folded partition by partition
    for bucket, offset in scanner.offsets.items():
        assert len(fold(table, {bucket: offset})) == 100


def test_a_read_of_first_rows_that_failed_is_not_an_empty_one(tables: Tables) -> None:
    table = tables(SCHEMA, ["id"], bucket_count=1)
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    tables.connection.get_admin().drop_table(table.get_table_path())
    deadline = time.monotonic() + 30
    while True:
        scanner = table.new_scan().limit(3).create_bucket_batch_scanner(bucket)
        try:
            scanner.to_arrow()
        except FlussError:
            break
        # a tablet server has a table for a moment after the coordinator dropped it
        assert time.monotonic() < deadline
    with pytest.raises(FlussError):
        scanner.to_arrow()
