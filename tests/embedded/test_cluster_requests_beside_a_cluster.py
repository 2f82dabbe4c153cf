"""Requests about the cluster as such, answered as a real server does.

What differs on purpose stands in docs/embedded.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.upkeep.backup import back_up
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.engine.upkeep.restore import restore
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.peers import DATABASE, Peer, path, table_json
from tests.embedded.raw import RawClient
from tests.embedded.test_key_requests_beside_a_cluster import plain, schema

Step = tuple[api.Api[Any, Any], Message]
NOBODY = 10**9


class Place:
    """A server's own ids of the tables that both have."""

    def __init__(self, peer: Peer, keyed: str) -> None:
        self.peer = peer
        peer.create(keyed, schema=schema())
        info = peer.coordinator.call(
            api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(keyed))
        )
        partitions = peer.coordinator.call(
            api.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path("parted"))
        )
        self.log, self.parted, self.keyed = peer.ids["log"], peer.ids["parted"], info.table_id
        self.partition = partitions.partitions_info[0].partition_id

    def ask(self, step: Callable[[Place], Step]) -> tuple[int, str, str]:
        """Return code, message and answer of a step, without what is this server's own."""
        code, message, answer = self.peer.ask(*step(self))
        names = {self.log: "LOG", self.parted: "PARTED", self.keyed: "KEYED"}

        def named(text: str) -> str:
            for number, name in names.items():
                pattern = rf"(table(?:_id: |Id=| id: | |\b\D*?ID ))\b{number}\b"
                text = re.sub(pattern, rf"\g<1>{name}", text, flags=re.IGNORECASE)
            text = re.sub(rf"([Pp]artition(?:_id:|) ){self.partition}\b", r"\g<1>P", text)
            return re.sub(r"expiration_time: \d+", "expiration_time: T", text)

        message = named(plain(re.sub(r"^org\.apache[\w.]*Exception: ", "", message)))
        return code, message, "\n".join(sorted(named(answer).splitlines()))


@pytest.fixture(scope="module")
def places(real: Peer, embedded: Peer) -> Iterator[tuple[Place, Place]]:
    keyed = f"keyed_{uuid.uuid4().hex[:6]}"
    yield Place(real, keyed), Place(embedded, keyed)
    for peer in (real, embedded):
        peer.coordinator.call(
            api.DROP_TABLE, pb.DropTableRequest(table_path=path(keyed), ignore_if_not_exists=True)
        )


def configs(*changes: tuple[str, str | None, int]) -> Step:
    made = [pb.AlterConfig(config_key=k, config_value=v, op_type=kind) for k, v, kind in changes]
    return api.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(alter_configs=made)


def tag(add: bool, number: int, *servers: int) -> Step:
    if add:
        return api.ADD_SERVER_TAG, pb.AddServerTagRequest(server_ids=servers, server_tag=number)
    return api.REMOVE_SERVER_TAG, pb.RemoveServerTagRequest(server_ids=servers, server_tag=number)


def lease(table: int) -> Step:
    tables = [pb.KvSnapshotLeaseForTable(table_id=table)]
    return api.ACQUIRE_KV_SNAPSHOT_LEASE, pb.AcquireKvSnapshotLeaseRequest(
        lease_id="l", lease_duration_ms=10_000, snapshots_to_lease=tables
    )


def release(table: int) -> Step:
    buckets = [pb.TableBucketId(table_id=table, bucket_id=0)]
    return api.RELEASE_KV_SNAPSHOT_LEASE, pb.ReleaseKvSnapshotLeaseRequest(
        lease_id="nope", buckets_to_release=buckets
    )


def renew(name: str) -> Step:
    return api.ACQUIRE_KV_SNAPSHOT_LEASE, pb.AcquireKvSnapshotLeaseRequest(
        lease_id=name, lease_duration_ms=10_000
    )


def drop(name: str) -> Step:
    return api.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id=name)


def lake_snapshot(number: int | None) -> Step:
    return api.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(
        table_path=path("log"), snapshot_id=number
    )


def goals(*numbers: int) -> Step:
    return api.REBALANCE, pb.RebalanceRequest(goals=numbers)


def snapshot(table: int, bucket: int = 0) -> Step:
    return api.GET_KV_SNAPSHOT_METADATA, pb.GetKvSnapshotMetadataRequest(
        table_id=table, bucket_id=bucket, snapshot_id=3
    )


def create(name: str) -> Step:
    return api.CREATE_TABLE, pb.CreateTableRequest(
        table_path=path(name), table_json=table_json(), ignore_if_exists=False
    )


ACL = pb.AclFilter(resource_type=1, operation_type=1, permission_type=1)
STEPS: list[Callable[[Place], Step]] = [
    lambda _: (api.LIST_ACLS, pb.ListAclsRequest(acl_filter=ACL)),
    lambda _: (api.CREATE_ACLS, pb.CreateAclsRequest()),
    lambda _: (api.DROP_ACLS, pb.DropAclsRequest(acl_filter=[ACL])),
    lambda _: configs(),
    lambda _: configs(("bogus", "1", 0)),
    lambda _: configs(("default.bucket.number", "3", 0)),
    lambda _: configs(("data.dir", None, 1)),
    lambda _: configs(("bogus", "1", 9)),
    lambda _: tag(True, 0, 7),
    lambda _: tag(True, 0),
    lambda _: tag(True, 7, 0),
    lambda _: tag(True, 1, 0),
    lambda _: tag(True, 0, 0),
    lambda _: tag(True, 1, 0),
    lambda _: create("while_away"),
    lambda _: tag(False, 0, 0),
    lambda _: tag(False, 1, 0),
    lambda _: tag(False, 1, 0),
    lambda _: tag(False, 1, 8),
    lambda _: tag(False, -1, 0),
    lambda _: tag(True, 0, 0),
    lambda _: create("when_gone"),
    lambda _: tag(False, 0, 0),
    lambda _: goals(9),
    # every server there is has a tag: there is none to move buckets to
    *(
        lambda _, step=step: step
        for number in (0, 1)
        for step in (
            tag(True, number, 0),
            *(goals(*wanted) for wanted in ((0,), (1,), (2,), (2, 1), (1, 2), (0, 9))),
            tag(False, number, 0),
        )
    ),
    *(lambda _, number=number: lake_snapshot(number) for number in (None, 0, -1, 2**62)),
    *(
        lambda _, step=step: step
        for name in ("a", "a/b", "ä b", "x" * 300, "", ".", "..", "/", "a/", "a/../b", "\n", "\0")
        for step in (renew(name), drop(name))
    ),
    *(
        lambda at, table=table, bucket=bucket: snapshot(getattr(at, table, NOBODY), bucket)
        for table, bucket in (("keyed", 0), ("log", 0), ("nobody", 0), ("keyed", 9))
    ),
    *(
        lambda at, kind=kind, table=table: kind(getattr(at, table, NOBODY))
        for kind in (lease, release)
        for table in ("keyed", "log", "nobody")
    ),
    lambda _: drop("nope"),
]


def test_requests(places: tuple[Place, Place]) -> None:
    real, embedded = places
    for number, step in enumerate(STEPS):
        expected = real.ask(step)
        answer = embedded.ask(step)
        if answer[0] == ErrorCode.CONFIG_EXCEPTION and expected[0] == -1:
            expected = (answer[0], *expected[1:])  # the code of 0.9.1
        assert answer == expected, f"step {number}"


LIMIT = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"
SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, str | None, int]


def sets(key: str, *values: str) -> list[list[Change]]:
    """Return changes that set a key, one after another."""
    return [[(key, value, SET)] for value in values]


# each is asked of both servers, and all settings that were changed are compared behind it
CHANGES: list[list[Change]] = [
    [(LIMIT, "64mb", SET)],
    [(LIMIT, "64 MB", SET)],
    *sets(LIMIT, "64", "x", "-5", "", "1.5mb", "3 q", "mb"),
    *sets(LIMIT, "9223372036854775808tb", "9999999999tb", "8388607tb", "1tb"),
    # not 0: a tablet server of 0.9.1 dies of it, by a division in RocksDB
    *sets(LIMIT, " 3 mebibytes ", "3 G", "7bytes"),
    [(LIMIT, "1kb", SET), ("bogus", "1", SET)],
    [("bogus", "1", DELETE), (LIMIT, "1kb", SET)],
    [(LIMIT, "1kb", SET), (LIMIT, "2kb", SET)],
    [(LIMIT, "1", APPEND)],
    [(LIMIT, "1", SUBTRACT)],
    [(LIMIT, "7kb", SET), (LIMIT, None, DELETE)],
    [(LIMIT, "5kb", DELETE)],
    [(LIMIT, None, DELETE)],
    [("datalake.x", None, DELETE)],
    [("datalake.format", None, DELETE)],
    *sets("datalake.format", "bogus", "iceberg", "Paimon", "lance"),
    [("", "x", SET)],
    [],
]
# which 1.0 takes
CHANGES_OF_0_9: list[list[Change]] = [
    [("datalake.iceberg.warehouse", "/x", SET)],
    [("datalake.", "x", SET)],
    [(LIMIT, "1mb", SET), ("datalake.iceberg.warehouse", "/x", SET)],
]


def changed_configs(place: Place) -> dict[str, str]:
    described = place.peer.coordinator.call(
        api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()
    )
    return {
        config.config_key: config.config_value
        for config in described.configs
        if config.config_source == "DYNAMIC_SERVER_CONFIG"
    }


def test_settings_change_as_those_of_a_cluster(places: tuple[Place, Place]) -> None:
    real, embedded = places
    since_1_0 = real.peer.since_1_0
    for changes in CHANGES if since_1_0 else CHANGES + CHANGES_OF_0_9:
        expected = real.ask(lambda _, changes=changes: configs(*changes))  # type: ignore[misc]
        answer = embedded.ask(lambda _, changes=changes: configs(*changes))  # type: ignore[misc]
        assert bool(answer[0]) == bool(expected[0]), changes
        # with the way out, where there is one; in the words of 0.9.1
        assert since_1_0 or answer[1].startswith(
            expected[1].partition("Exception: ")[2] or expected[1]
        )
        assert changed_configs(embedded) == changed_configs(real), changes
    assert changed_configs(embedded) == {}


# of Fluss 1.0, where the server that is there does not know them
LISTED = {
    ("log", None): (0, 0),
    ("keyed", None): (0, 0),
    ("parted", None): (0, 0),
    ("parted", "partition"): (0, 0),
    ("log", "partition"): (36, 36),
    ("keyed", "nobody"): (36, 36),
    ("nobody", None): (7, 0),
    ("nobody", "partition"): (36, 36),
}


@pytest.mark.parametrize("kind", [api.LIST_KV_SNAPSHOTS, api.LIST_REMOTE_LOG_MANIFESTS])
def test_lists_of_what_there_is_not(places: tuple[Place, Place], kind: api.Api[Any, Any]) -> None:
    real, embedded = places
    known = {version.api_key for version in real.peer.coordinator.hello().api_versions}
    for (table, partition), codes in LISTED.items():

        def step(at: Place, table: str = table, partition: str | None = partition) -> Step:
            request = kind.request(table_id=getattr(at, table, NOBODY))
            if partition is not None:
                request.partition_id = getattr(at, partition, NOBODY)
            return kind, request

        answer = embedded.ask(step)
        assert answer[0] == codes[kind is not api.LIST_KV_SNAPSHOTS]
        if kind.key in known:
            assert answer == real.ask(step)


def rebalance(place: Place) -> str:
    """Rebalance as soon as every bucket has a leader; until then a real server refuses."""
    step = api.REBALANCE, pb.RebalanceRequest(goals=[0, 1])
    for _ in range(100):
        answer = place.peer.coordinator.ask(*step)
        if answer.error[0] != ErrorCode.REBALANCE_FAILURE_EXCEPTION:
            break
        time.sleep(0.1)
    made: pb.RebalanceResponse = place.peer.coordinator.call(*step)
    return made.rebalance_id


def test_rebalance(places: tuple[Place, Place]) -> None:
    for place in places:
        client = place.peer.coordinator
        last = rebalance(place)
        asked = pb.ListRebalanceProgressRequest
        for request in (asked(), asked(rebalance_id=last)):
            progress = client.call(api.LIST_REBALANCE_PROGRESS, request)
            assert (progress.rebalance_id, progress.rebalance_status) == (last, 3)
        wrong = client.ask(api.LIST_REBALANCE_PROGRESS, asked(rebalance_id="x"))
        assert wrong.error[0] == ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION
        assert f"x to list is not the current rebalance task id {last}." in wrong.error[1]
        wrong = client.ask(api.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id="x"))
        assert f"x to cancel is not the current rebalance task id {last}." in wrong.error[1]
        client.call(api.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id=last))


def register(name: str, *tables: pb.ProducerTableOffsets, ttl_ms: int | None = None) -> Step:
    return api.REGISTER_PRODUCER_OFFSETS, pb.RegisterProducerOffsetsRequest(
        producer_id=name, table_offsets=tables, ttl_ms=ttl_ms
    )


def registered(name: str) -> Step:
    return api.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id=name)


def forget(name: str) -> Step:
    return api.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id=name)


def offsets(table: int, *parts: tuple[int | None, int, int | None]) -> pb.ProducerTableOffsets:
    made = [
        pb.ProducerBucketOffset(partition_id=partition, bucket_id=bucket, log_end_offset=offset)
        for partition, bucket, offset in parts
    ]
    return pb.ProducerTableOffsets(table_id=table, bucket_offsets=made)


def test_producers(places: tuple[Place, Place]) -> None:
    mark = uuid.uuid4().hex[:6]
    one = (None, 0, 5)
    steps: list[Callable[[Place], Step]] = [
        lambda at: register(f"a{mark}", offsets(at.log, one)),
        lambda at: register(f"a{mark}"),
        lambda at: registered(f"a{mark}"),
        lambda _: registered("nobody"),
        lambda _: forget(f"a{mark}"),
        lambda _: forget(f"a{mark}"),
        lambda _: registered(f"a{mark}"),
        *(
            lambda at, name=name, what=what: what(name)
            for name in ("", ".", "a b", "../x", "ä", "x" * 201)
            for what in (register, registered, forget)
        ),
        lambda at: register(f"__{mark}", offsets(at.log, one)),
        lambda _: registered(f"__{mark}"),
        lambda _: register(f"none{mark}"),
        lambda _: registered(f"none{mark}"),
        lambda at: register(f"empty{mark}", offsets(at.log)),
        lambda _: registered(f"empty{mark}"),
        lambda _: register(f"odd{mark}", offsets(NOBODY, one, (None, 9, -5))),
        lambda _: registered(f"odd{mark}"),
        lambda at: register(
            f"all{mark}",
            offsets(at.log, one, (None, 3, 7)),
            offsets(at.log, (None, 0, 9)),
            offsets(at.parted, (at.partition, 0, 1), (10**9, 0, 2)),
            offsets(at.keyed, (None, 2, 9)),
        ),
        lambda _: registered(f"all{mark}"),
        lambda at: register(f"bad{mark}", offsets(at.log, (None, 0, None))),
        lambda _: registered(f"bad{mark}"),
        lambda at: register(f"bad{mark}", offsets(at.parted, (at.partition, 0, 1), (None, 0, 2))),
        lambda _: registered(f"bad{mark}"),
        lambda at: register(f"old{mark}", offsets(at.log, one), ttl_ms=-5),
        lambda _: registered(f"old{mark}"),
        lambda at: register(f"old{mark}", offsets(at.log, (None, 0, 6))),
        lambda _: registered(f"old{mark}"),
    ]
    real, embedded = places
    for number, step in enumerate(steps):
        expected = real.ask(step)
        answer = embedded.ask(step)
        if answer[0] == ErrorCode.UNKNOWN_SERVER_ERROR:  # with the reason behind it
            answer = (answer[0], answer[1][: len(expected[1])], answer[2])
        assert answer == expected, f"step {number}"


def ask(engine: EmbeddedFluss, step: Step) -> Any:
    with RawClient(engine.address) as client:
        return client.call(*step)


def test_it_is_there_again(tmp_path: Path) -> None:
    """What was answered is durable; what has expired goes with the next round."""
    folder = tmp_path / "data"
    with EmbeddedFluss(folder, port=0) as engine:
        ask(engine, register("kept", offsets(3, (None, 0, 5), (None, 1, 6)), offsets(4, (7, 0, 1))))
        ask(engine, register("old", ttl_ms=0))
        ask(engine, tag(True, 1, 0))
        before = ask(engine, registered("kept"))
        last = ask(engine, (api.REBALANCE, pb.RebalanceRequest())).rebalance_id
    with EmbeddedFluss(folder, port=0) as engine:
        assert ask(engine, registered("kept")) == before
        assert len(before.table_offsets) == 2
        progress = (api.LIST_REBALANCE_PROGRESS, pb.ListRebalanceProgressRequest())
        assert ask(engine, progress).rebalance_id == last
        with RawClient(engine.address) as client:
            code = client.ask(*tag(True, 0, 0)).error[0]
        assert code == ErrorCode.SERVER_TAG_ALREADY_EXIST_EXCEPTION
        assert engine.engine.cluster.expire() == 1
        assert not ask(engine, registered("old")).HasField("producer_id")
        assert ask(engine, registered("kept")) == before


def test_settings_are_there_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    state = folder / "catalog" / "cluster.json"
    described = api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()
    with EmbeddedFluss(folder, port=0) as engine:
        ask(engine, configs((LIMIT, "64mb", SET)))
        # not in the file yet: as after the end of the process
        killed = tmp_path / "killed"
        shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("*.lock", "*.sock"))
        archive = tmp_path / "backup.tar.zst"
        back_up(engine.engine, archive)
    assert "64mb" in state.read_text()
    restored = tmp_path / "restored"
    restore(archive, restored)
    for place in (folder, killed, restored):
        with EmbeddedFluss(place, port=0) as engine:
            found = {each.config_key: each for each in ask(engine, described).configs}
            assert found[LIMIT].config_value == "64mb"
            assert found[LIMIT].config_source == "DYNAMIC_SERVER_CONFIG"
            ask(engine, configs((LIMIT, None, DELETE)))
        with EmbeddedFluss(place, port=0) as engine:
            assert LIMIT not in {each.config_key for each in ask(engine, described).configs}
        assert check_folder(place).sound


def test_a_folder_of_before_there_were_settings(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder, port=0) as engine:
        ask(engine, tag(True, 1, 0))
    # as version 0.1.0 wrote it
    CatalogFiles(folder).cluster().save({"producers": {}, "tags": {"0": 1}, "rebalance": None})
    with EmbeddedFluss(folder, port=0) as engine:
        assert engine.engine.cluster.tag(0) == 1
        assert engine.engine.cluster.configs == {}
        ask(engine, configs((LIMIT, "64mb", SET)))
    with EmbeddedFluss(folder, port=0) as engine:
        assert engine.engine.cluster.tag(0) == 1
        assert engine.engine.cluster.configs == {LIMIT: "64mb"}


@pytest.mark.parametrize("configs", [["a"], "a", 5, {"a": {"b": 1}}, None])
def test_settings_that_are_none_are_told(tmp_path: Path, configs: object) -> None:
    folder = tmp_path / "data"
    with EmbeddedFluss(folder, port=0) as engine:
        ask(engine, tag(True, 1, 0))
    value = {"producers": {}, "tags": {}, "rebalance": None, "configs": configs}
    CatalogFiles(folder).cluster().save(value)
    assert not check_folder(folder).sound
    with pytest.raises(FlussError, match=r"cluster\.json"), EmbeddedFluss(folder, port=0):
        raise AssertionError("opened")


def test_settings_are_changed_by_two_processes(tmp_path: Path) -> None:
    """One has the folder, and the other asks it."""
    folder = tmp_path / "data"
    with fluss.connect(folder) as connection:
        admin = connection.get_admin()
        for value in ("64mb", "32mb"):
            program = [sys.executable, "-m", "tests.cli.main", "config", "set", f"{LIMIT}={value}"]
            subprocess.run([*program, "--connection", str(folder)], check=True)
            found = {entry.key: entry.value for entry in admin.describe_cluster_configs()}
            assert found[LIMIT] == value
        admin.alter_cluster_configs(reset_configs=[LIMIT])
        listed = subprocess.run(
            [*program[:-2], "list", "--changed", "--json", "--connection", str(folder)],
            check=True,
            capture_output=True,
        )
        assert listed.stdout == b""


MANY = 1_000_000


def repeat(message: Message) -> None:
    """Have a million entries where there is one."""
    [(field, [entry])] = [(f, v) for f, v in message.ListFields() if f.is_repeated]
    entry = entry.SerializeToString()
    message.MergeFromString((bytes([field.number << 3 | 2, len(entry)]) + entry) * (MANY - 1))


def many_requests() -> list[Step]:
    asked = lease(0)
    assert isinstance(asked[1], pb.AcquireKvSnapshotLeaseRequest)
    asked[1].snapshots_to_lease[0].bucket_snapshots.add(bucket_id=0, snapshot_id=1)
    repeat(asked[1].snapshots_to_lease[0])
    registered = offsets(0, (None, 0, 1))
    repeat(registered)
    released = release(0)
    repeat(released[1])
    return [
        asked,
        released,
        register("many", registered),
        tag(True, 0, *range(MANY)),
        tag(False, 0, *range(MANY)),
        goals(*[0] * MANY),
        configs(*((f"datalake.{number}", "x", SET) for number in range(100_000))),
        configs((LIMIT, "9" * MANY, SET)),
        drop("x" * MANY),
        (api.LIST_REBALANCE_PROGRESS, pb.ListRebalanceProgressRequest(rebalance_id="x" * MANY)),
    ]


def test_a_million_buckets_are_refused(engine: EmbeddedFluss) -> None:
    steps = many_requests()
    with RawClient(engine.address) as client:
        for step in steps:
            code, message = client.ask(*step).error
            assert code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert step[0].name in message
        assert client.call(api.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest()).status == 0
    assert engine.engine.cluster.configs == {}
    assert engine.engine.cluster.tag(0) is None


def test_no_snapshot_is_leased(engine: EmbeddedFluss) -> None:
    with RawClient(engine.address) as client:
        database = pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=False)
        client.call(api.CREATE_DATABASE, database)
        made = table_json(schema=schema())
        client.call(
            api.CREATE_TABLE,
            pb.CreateTableRequest(table_path=path("k"), table_json=made, ignore_if_exists=False),
        )
        kind, request = lease(0)
        assert isinstance(request, pb.AcquireKvSnapshotLeaseRequest)
        request.snapshots_to_lease[0].bucket_snapshots.add(bucket_id=0, snapshot_id=1)
        answer = client.call(kind, request)
    assert answer.unavailable_snapshots == request.snapshots_to_lease


def test_health_and_settings(engine: EmbeddedFluss, tmp_path: Path) -> None:
    health = (api.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
    assert ask(engine, health).num_replicas == 0
    with RawClient(engine.address) as client:
        client.call(
            api.CREATE_DATABASE,
            pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=False),
        )
        client.call(
            api.CREATE_TABLE,
            pb.CreateTableRequest(
                table_path=path("log"),
                table_json=table_json(bucket_count=3),
                ignore_if_exists=False,
            ),
        )
        answer = client.call(*health)
        fields = [value for _, value in answer.ListFields()]
        assert fields == [3, 3, 3, 3, 0]
        described = client.call(
            api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()
        ).configs
    found = {entry.config_key: entry.config_value for entry in described}
    assert found["data.dir"] == str(tmp_path / "data")
    assert found["embedded.durability"] == "commit"
