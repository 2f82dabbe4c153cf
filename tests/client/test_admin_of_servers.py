"""What only several servers, and servers with remote storage, have to tell an admin."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TableBucket, TablePath
from fluss_df.cli import app
from fluss_df.cluster.pytest_plugin import ClusterFactory

T = TypeVar("T")

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
PATH = TablePath("fluss", "people")
BUCKETS = 6


@pytest.fixture(scope="module")
def connection(fluss_cluster_factory: ClusterFactory) -> Iterator[fluss.FlussConnection]:
    """A cluster of two tablet servers, which write snapshots all the time."""
    settings = {
        "kv.snapshot.interval": "1s",
        "kv.snapshot.num-retained": "1",
        "log.segment.file-size": "64kb",
        "remote.log.task-interval-duration": "1s",
    }
    with (
        fluss_cluster_factory(tablet_servers=2, server_options=settings) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        admin = connection.get_admin()
        schema = fluss.Schema(KEYED, ["id"])
        properties = {"table.replication.factor": "1"}
        admin.create_table(
            PATH, fluss.TableDescriptor(schema, bucket_count=BUCKETS, properties=properties)
        )
        yield connection


def until(look: Callable[[], T | None]) -> T:
    """Look until there is something, for half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError("not in time")


def write(connection: fluss.FlussConnection, name: str) -> None:
    with connection.get_table(PATH).new_upsert().create_writer() as writer:
        writer.write_arrow(pa.table({"id": range(100), "name": [name] * 100}, schema=KEYED))


def test_snapshots_and_a_lease_of_one(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    table_id = admin.get_table_info(PATH).table_id

    def newest() -> fluss.KvSnapshots | None:
        found = admin.get_latest_kv_snapshots(PATH)
        return None if None in found.snapshot_ids.values() else found

    write(connection, "first")
    first = until(newest)
    assert list(first.snapshot_ids) == list(first.log_offsets) == list(range(BUCKETS))
    ends = admin.list_offsets(PATH, range(BUCKETS), fluss.OffsetSpec.latest())
    bucket = TableBucket(table_id, 0)
    snapshot = first.snapshot_ids[0]
    assert snapshot is not None
    lease = admin.create_kv_snapshot_lease("test", 60_000)
    assert lease.acquire_snapshots({bucket: snapshot}).unavailable_snapshots == {}
    about = admin.get_kv_snapshot_metadata(bucket, snapshot)
    assert 0 < about.log_offset <= ends[0]
    assert about.log_offset == first.log_offsets[0]
    assert "CURRENT" in about.snapshot_files
    assert all(str(table_id) in uri for uri in about.snapshot_files.values())

    def replaced(since: int) -> int | None:
        found = admin.get_latest_kv_snapshots(PATH).snapshot_ids[0]
        return found if found is not None and found > since + 1 else None

    def gone(number: int) -> bool | None:
        try:
            admin.get_kv_snapshot_metadata(bucket, number)
        except FlussError as error:
            assert error.error_code == ErrorCode.KV_SNAPSHOT_NOT_EXIST  # noqa: PT017
            return True
        return None

    last = snapshot
    for name in ("second", "third"):
        write(connection, name)
        last = until(lambda last=last: replaced(last - 1))  # type: ignore[misc]
    # newer ones took its place, and it is kept
    lease.renew()
    assert admin.get_kv_snapshot_metadata(bucket, snapshot) == about
    lease.release_snapshots([bucket])

    def gone_after_a_change() -> bool | None:
        write(connection, "another")
        return gone(snapshot)

    assert until(gone_after_a_change)
    lease.drop_lease()


def test_logs_in_remote_storage(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    path = TablePath("fluss", "events")
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("day", pa.string())]))
    properties = {"table.log.arrow.compression.type": "NONE"}
    descriptor = fluss.TableDescriptor(
        schema, partition_keys=["day"], bucket_count=1, properties=properties
    )
    admin.create_table(path, descriptor)
    admin.create_partition(path, {"day": "monday"})
    rows = pa.table({"id": range(5_000), "day": ["monday"] * 5_000})
    for _ in range(6):
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(rows)

    def manifests() -> list[fluss.RemoteLogManifestInfo] | None:
        return admin.list_remote_log_manifests(path, "monday") or None

    try:
        [manifest] = until(manifests)
    except FlussError as error:
        # a server of 0.9
        assert error.error_code == ErrorCode.UNSUPPORTED_VERSION  # noqa: PT017
        assert "LIST_REMOTE_LOG_MANIFESTS" in error.message  # noqa: PT017
        return
    [partition] = admin.list_partition_infos(path)
    table_id = admin.get_table_info(path).table_id
    assert manifest.table_bucket == TableBucket(table_id, 0, partition.partition_id)
    assert manifest.remote_log_manifest_path.endswith(".manifest")
    assert 5_000 <= manifest.remote_log_end_offset <= 30_000
    kept = admin.list_kv_snapshots(PATH).snapshot_ids
    assert sorted(kept) == list(range(BUCKETS))
    assert all(kept.values())


def command(connection: fluss.FlussConnection, *words: str) -> str:
    place = connection.config.bootstrap_servers
    result = CliRunner().invoke(app, [*words, "--connection", place])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_server_is_emptied(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    write(connection, "here")
    servers = [n.id for n in admin.get_server_nodes() if n.server_type == "TabletServer"]
    assert len(servers) == 2
    stays, goes = servers
    admin.add_server_tag([goes], fluss.ServerTag.PERMANENT_OFFLINE)
    last = admin.rebalance([fluss.GoalType.REPLICA_DISTRIBUTION, "leader_distribution"])

    def finished() -> fluss.RebalanceProgress | None:
        progress = admin.list_rebalance_progress(last)
        assert progress is not None
        return progress if progress.status.final else None

    progress = until(finished)
    assert (progress.status, progress.progress) == (fluss.RebalanceStatus.COMPLETED, 1.0)
    table_id = admin.get_table_info(PATH).table_id
    moved = {b: r for b, r in progress.progress_for_buckets.items() if b.table_id == table_id}
    assert moved
    for result in moved.values():
        assert result.status is fluss.RebalanceStatus.COMPLETED
        assert goes in result.original_replicas
        assert result.new_replicas == (stays,)
        assert result.new_leader == stays
    shown = command(connection, "rebalance", "status", last)
    assert f"{last}: COMPLETED, 100%" in shown
    assert shown.count(f"{goes} -> {stays}") >= 2 * len(moved)
    told = json.loads(command(connection, "rebalance", "status", "--json"))
    listed = [bucket for bucket in told["buckets"] if bucket["table_id"] == table_id]
    assert {bucket["bucket_id"] for bucket in listed} == {b.bucket_id for b in moved}
    assert all(bucket["new_replicas"] == [stays] for bucket in listed)
    # clients find the buckets where they are now
    write(connection, "there")
    rows = connection.get_table(PATH).new_scan().create_snapshot_scanner().to_arrow()
    assert set(rows["name"].to_pylist()) == {"there"}
    admin.remove_server_tag([goes], fluss.ServerTag.PERMANENT_OFFLINE)
