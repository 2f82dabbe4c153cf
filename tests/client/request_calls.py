"""What sends each request that clients may send: functions named like the requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TableBucket
from fluss_df.client.fetch.remote_fs import RemoteFileSystems
from fluss_df.lake.tiering.coordinator import Coordinator
from tests.client.request_world import EVENTS, LIMIT, NOBODY, Answer, World


def api_versions(world: World) -> Answer:
    # a user of its own has sockets of its own, and these servers ask nobody for a password
    with pytest.raises(FlussError) as raised, world.another_connection(**SASL):
        raise AssertionError("let in")
    return raised.value.error_code


SASL = {
    "security.protocol": "sasl",
    "security.sasl.mechanism": "PLAIN",
    "security.sasl.username": "nobody",
    "security.sasl.password": "nothing",
}
authenticate = api_versions


def create_database(world: World) -> Answer:
    return world.code(lambda: world.admin.create_database(world.database))


def drop_database(world: World) -> Answer:
    return (
        world.admin.drop_database("nothing_here", ignore_if_not_exists=True),
        world.code(lambda: world.admin.drop_database("nothing_here")),
        world.code(lambda: world.admin.drop_database(world.database, cascade=False)),
    )


def list_databases(world: World) -> Answer:
    summaries = world.admin.list_database_summaries()
    names = world.admin.list_databases()
    assert [summary.database_name for summary in summaries] == names
    mine = next(s for s in summaries if s.database_name == world.database)
    info = world.admin.get_database_info(world.database)
    # servers of a cluster tell when ZooKeeper stored it
    assert 0 <= mine.created_time - info.created_time < 10_000
    return mine.table_count


def database_exists(world: World) -> Answer:
    exists = world.admin.database_exists
    return exists(world.database), exists("nothing_here")


def get_database_info(world: World) -> Answer:
    info = world.admin.get_database_info(world.database)
    descriptor = info.get_database_descriptor()
    return descriptor.comment, descriptor.get_custom_properties()


def alter_database(world: World) -> Answer:
    world.admin.alter_database(world.database, set_properties={"owner": "me"})
    info = world.admin.get_database_info(world.database)
    world.admin.alter_database(world.database, reset_properties=["owner"])
    return info.get_database_descriptor().get_custom_properties()


def create_table(world: World) -> Answer:
    path = world.path("events")
    descriptor = fluss.TableDescriptor(fluss.Schema(EVENTS))
    world.admin.create_table(path, descriptor, ignore_if_exists=True)
    return world.code(lambda: world.admin.create_table(path, descriptor))


def drop_table(world: World) -> Answer:
    world.table("goes", fluss.Schema(EVENTS), bucket_count=1)
    world.admin.drop_table(world.path("goes"))
    return world.code(lambda: world.admin.drop_table(world.path("goes")))


def get_table_info(world: World) -> Answer:
    info = world.admin.get_table_info(world.path("keyed"))
    return info.get_primary_keys(), info.get_bucket_keys(), info.num_buckets, info.schema_id


def list_tables(world: World) -> Answer:
    return world.admin.list_tables(world.database)


def table_exists(world: World) -> Answer:
    exists = world.admin.table_exists
    return exists(world.path("events")), exists(world.path("nothing_here"))


def get_table_schema(world: World) -> Answer:
    return world.admin.get_table_schema(world.path("keyed"), 1).arrow_schema


def alter_table(world: World) -> Answer:
    path = world.path("keyed")
    world.admin.alter_table(path, set_properties={"owner": "me"})
    found = world.admin.get_table_info(path).get_custom_properties()
    world.admin.alter_table(path, reset_properties=["owner"])
    return found, world.code(
        lambda: world.admin.alter_table(world.path("nothing_here"), reset_properties=["owner"])
    )


def get_table_stats(world: World) -> Answer:
    return world.admin.get_table_stats(world.path("events")).row_count


def list_partition_infos(world: World) -> Answer:
    infos = world.admin.list_partition_infos(world.path("parted"))
    return [(info.partition_name, info.spec) for info in infos]


def create_partition(world: World) -> Answer:
    return world.code(lambda: world.admin.create_partition(world.path("parted"), {"name": "p"}))


def drop_partition(world: World) -> Answer:
    return world.code(lambda: world.admin.drop_partition(world.path("parted"), {"name": "q"}))


def get_metadata(world: World) -> Answer:
    with world.another_connection() as connection:
        connection.get_table(world.path("parted"))
        return sorted({node.server_type for node in connection.get_admin().get_server_nodes()})


def init_writer(world: World) -> Answer:
    with world.another_connection() as connection:
        table = connection.get_table(world.path("parted"))
        with table.new_append().create_writer() as writer:
            writer.append({"id": 7, "name": "p"}).wait()
        info = table.get_table_info()
        offsets = connection.get_admin().list_partition_offsets(
            info.table_path, "p", range(info.num_buckets), fluss.OffsetSpec.earliest()
        )
    return offsets


produce_log = init_writer


def fetch_log(world: World) -> Answer:
    return world.rows(world.connection)


def put_kv(world: World) -> Answer:
    with world.keyed.new_upsert().create_writer() as writer:
        writer.upsert({"id": 9, "sub": 9, "name": "z"}).wait()
        writer.delete({"id": 9, "sub": 9}).wait()
    return world.keyed.new_lookup().create_lookuper().lookup({"id": 9, "sub": 9})


def lookup(world: World) -> Answer:
    lookuper = world.keyed.new_lookup().create_lookuper()
    return [lookuper.lookup({"id": number, "sub": 1}) for number in (1, 2)]


def prefix_lookup(world: World) -> Answer:
    lookuper = world.keyed.new_lookup().lookup_by(["id"]).create_lookuper()
    return [lookuper.lookup({"id": number}) for number in (1, 5)]


def limit_scan(world: World) -> Answer:
    scanner = world.keyed.new_scan().limit(2).create_bucket_batch_scanner(world.bucket)
    return scanner.to_arrow().num_rows


def scan_kv(world: World) -> Answer:
    # where a server has no such request, the changelog is read instead
    scanner = world.keyed.new_scan().create_snapshot_scanner()
    rows = scanner.to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["id"], row["sub"]))


def list_offsets(world: World) -> Answer:
    return world.admin.list_offsets(world.path("events"), [0], fluss.OffsetSpec.latest())


def get_filesystem_security_token(world: World) -> Answer:
    systems = RemoteFileSystems(world.connection)
    return systems._token("s3").values


def get_latest_kv_snapshots(world: World) -> Answer:
    newest = world.admin.get_latest_kv_snapshots(world.path("keyed"))
    assert newest.table_id == world.bucket.table_id
    assert newest.get_table_buckets() == [world.bucket]
    ask = world.admin.get_latest_kv_snapshots
    return (
        (newest.partition_id, newest.snapshot_ids, newest.log_offsets),
        world.code(lambda: ask(world.path("events"))),
        world.code(lambda: ask(world.path("nothing_here"))),
        world.code(lambda: ask(world.path("keyed"), "p")),
        world.code(lambda: ask(world.path("parted"))),
    )


def get_kv_snapshot_metadata(world: World) -> Answer:
    ask = world.admin.get_kv_snapshot_metadata
    return world.code(lambda: ask(world.bucket, 3)), world.code(lambda: ask(NO_BUCKET, 3))


NO_BUCKET = TableBucket(NOBODY, 0)


def list_kv_snapshots(world: World) -> Answer:
    found = world.admin.list_kv_snapshots(world.path("keyed"))
    assert found.table_id == world.bucket.table_id
    of_partition = world.admin.list_kv_snapshots(world.path("parted"), "p")
    assert of_partition.partition_id is not None
    return found.snapshot_ids, of_partition.snapshot_ids


def list_remote_log_manifests(world: World) -> Answer:
    ask = world.admin.list_remote_log_manifests
    return ask(world.path("events")), ask(world.path("parted"), "p")


def acquire_kv_snapshot_lease(world: World) -> Answer:
    lease = world.admin.create_kv_snapshot_lease(f"every-{uuid.uuid4()}", 60_000)
    events = TableBucket(world.events.get_table_info().table_id, 0)
    answers = (
        world.code_at_once(lambda: lease.acquire_snapshots({NO_BUCKET: 1})),
        world.code(lambda: lease.acquire_snapshots({events: 1})),
        lease.renew(),
    )
    lease.drop_lease()
    return answers


def release_kv_snapshot_lease(world: World) -> Answer:
    lease = world.admin.create_kv_snapshot_lease(f"every-{uuid.uuid4()}", 60_000)
    return (
        lease.release_snapshots([world.bucket]),
        lease.release_snapshots([]),
        world.code_at_once(lambda: lease.release_snapshots([NO_BUCKET])),
    )


def drop_kv_snapshot_lease(world: World) -> Answer:
    return world.admin.create_kv_snapshot_lease(f"every-{uuid.uuid4()}", 60_000).drop_lease()


def describe_cluster_configs(world: World) -> Answer:
    entries = world.admin.describe_cluster_configs()
    assert [entry.key for entry in entries] == sorted({entry.key for entry in entries})
    found = {entry.key: entry for entry in entries}
    assert found["data.dir"].value
    return found["data.dir"].source, [each for each in entries if "DYNAMIC" in each.source.value]


def alter_cluster_configs(world: World) -> Answer:
    alter = world.admin.alter_cluster_configs

    def changed() -> list[fluss.ConfigEntry]:
        entries = world.admin.describe_cluster_configs()
        return [entry for entry in entries if "DYNAMIC" in entry.source.value]

    alter(set_configs={LIMIT: "64mb"})
    after = changed()
    codes = [
        world.code(lambda: alter(set_configs={LIMIT: "many"})),
        world.code(lambda: alter(set_configs={LIMIT: "1mb", "bogus": 1})),
        world.code(lambda: alter(reset_configs=["default.bucket.number"])),
        world.code(lambda: alter(append_configs={LIMIT: "1"})),
        world.code(lambda: alter(subtract_configs={LIMIT: "1"})),
    ]
    assert changed() == after
    alter(reset_configs=[LIMIT])
    return after, codes, changed()


def _tablet_server(world: World) -> int:
    nodes = world.admin.get_server_nodes()
    return next(node.id for node in nodes if node.server_type == "TabletServer")


def add_server_tag(world: World) -> Answer:
    server, admin = _tablet_server(world), world.admin
    try:
        return (
            admin.add_server_tag([server], fluss.ServerTag.TEMPORARY_OFFLINE),
            admin.add_server_tag([server], "temporary_offline"),
            admin.add_server_tag([], "permanent_offline"),
            world.code(lambda: admin.add_server_tag([server], "permanent_offline")),
            world.code(lambda: admin.add_server_tag([server, 77], "temporary_offline")),
            world.code(lambda: admin.remove_server_tag([server], "permanent_offline")),
        )
    finally:
        admin.remove_server_tag([server], "temporary_offline")


def remove_server_tag(world: World) -> Answer:
    server, admin = _tablet_server(world), world.admin
    return (
        admin.remove_server_tag([server], "temporary_offline"),
        admin.remove_server_tag([], "permanent_offline"),
    )


def until_led(call: Callable[[], str]) -> str:
    """Call again while a bucket of the cluster has no leader yet: it is not rebalanced then."""
    end = time.monotonic() + 20
    while True:
        try:
            return call()
        except FlussError as error:
            failed = error.error_code == ErrorCode.REBALANCE_FAILURE_EXCEPTION
            if not failed or time.monotonic() > end:
                raise
        time.sleep(0.2)


def rebalance(world: World) -> Answer:
    goals: list[fluss.GoalType | str] = [fluss.GoalType.REPLICA_DISTRIBUTION, "leader_distribution"]
    last = until_led(lambda: world.admin.rebalance(goals))
    progress = world.admin.list_rebalance_progress(last)
    assert progress is not None
    assert progress == world.admin.list_rebalance_progress()
    assert progress.rebalance_id == last
    return (
        progress.status,
        progress.progress,
        progress.progress_for_buckets,
        world.admin.cancel_rebalance(),
        world.admin.cancel_rebalance(last),
        world.code(lambda: world.admin.list_rebalance_progress("other")),
        world.code(lambda: world.admin.cancel_rebalance("other")),
    )


list_rebalance_progress = rebalance
cancel_rebalance = rebalance


def register_producer_offsets(world: World) -> Answer:
    admin = world.admin
    name = f"every-{uuid.uuid4()}"
    events = TableBucket(world.events.get_table_info().table_id, 0)
    offsets = {world.bucket: 3, events: 5, TableBucket(events.table_id, 1): 0}
    assert admin.get_producer_offsets(name) is None
    first = admin.register_producer_offsets(name, offsets, ttl_ms=60_000)
    again = admin.register_producer_offsets(name, {events: 9})
    found = admin.get_producer_offsets(name)
    assert found is not None
    assert (found.producer_id, found.offsets) == (name, offsets)
    assert found.expiration_time > 0
    admin.delete_producer_offsets(name)
    assert admin.get_producer_offsets(name) is None
    return (
        first,
        again,
        admin.delete_producer_offsets(name),
        world.code(lambda: admin.register_producer_offsets("a b", offsets)),
        world.code(lambda: admin.get_producer_offsets("../x")),
        world.code(lambda: admin.delete_producer_offsets(".")),
    )


get_producer_offsets = register_producer_offsets
delete_producer_offsets = register_producer_offsets


def get_cluster_health(world: World) -> Answer:
    end = time.monotonic() + 30
    while True:
        # a real coordinator hears a moment later that leaders are active
        health = world.admin.get_cluster_health()
        if health.status is fluss.ClusterHealthStatus.GREEN or time.monotonic() > end:
            break
        time.sleep(0.2)
    assert health.num_replicas >= health.num_leader_replicas >= 4
    return health.status


def get_lake_snapshot(world: World) -> Answer:
    admin, path = world.admin, world.path("events")
    return [
        world.code(call)
        for call in (
            lambda: admin.get_latest_lake_snapshot(path),
            lambda: admin.get_latest_lake_snapshot(path, readable=False),
            lambda: admin.get_readable_lake_snapshot(path),
            lambda: admin.get_lake_snapshot(path, 1),
            lambda: admin.get_lake_snapshot(world.path("nothing_here"), 1),
        )
    ]


def lake_tiering_heartbeat(world: World) -> Answer:
    return Coordinator(world.connection).heartbeat(request=True)


def commit_lake_table_snapshot(world: World) -> Answer:
    table = world.table(f"t{uuid.uuid4().hex}", fluss.Schema(EVENTS), bucket_count=2)
    info = table.get_table_info()
    coordinator = Coordinator(world.connection)
    offsets: dict[tuple[int | None, int], int] = {(None, 0): 3, (None, 1): 0}
    file = coordinator.prepare(info.table_id, info.table_path, offsets)
    coordinator.commit(info.table_id, info.table_path, 77, file, offsets, {})
    found = world.admin.get_latest_lake_snapshot(info.table_path, readable=False)
    assert world.admin.get_lake_snapshot(info.table_path, 77) == found
    assert {bucket.table_id for bucket in found.get_table_buckets()} == {info.table_id}
    ends = sorted((b.bucket_id, found.get_bucket_offset(b)) for b in found.get_table_buckets())
    missing = world.code(lambda: world.admin.get_lake_snapshot(info.table_path, 78))
    world.admin.drop_table(info.table_path)
    return found.snapshot_id, ends, missing


prepare_lake_table_snapshot = commit_lake_table_snapshot
