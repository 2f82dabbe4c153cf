"""Answers to an admin that are lost on the way: it asks again, where that changes nothing more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError, NetworkError
from fluss_df.metadata import ServerNode, TableBucket
from fluss_df.protocol import api
from tests.faults.fault_proxy import FaultProxy, Rule

LIMIT = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"
LOST = "reset after"


@dataclasses.dataclass
class Way:
    """An engine behind a proxy."""

    proxy: FaultProxy
    admin: fluss.FlussAdmin

    def lose(self, kind: api.Api[api.RequestT, api.ResponseT]) -> None:
        """Lose the next answer to a request."""
        self.proxy.rules[:] = [Rule(kind.key, LOST)]

    def asked(self, kind: api.Api[api.RequestT, api.ResponseT]) -> int:
        """Return how often a request was sent."""
        [rule] = self.proxy.rules
        assert rule.hits == 1
        return sum(key == kind.key for key, _ in self.proxy.requests)


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    direct = Cluster.endpoint
    with EmbeddedFluss(tmp_path, port=0) as engine, FaultProxy() as proxy:
        port = int(engine.address.rpartition(":")[2])
        proxy.target = lambda: ("127.0.0.1", port)
        proxy.kept_keys = frozenset(
            value.key for value in vars(api).values() if isinstance(value, api.Api)
        )

        def redirected(cluster: Cluster, node: ServerNode) -> Endpoint:
            return dataclasses.replace(direct(cluster, node), port=proxy.port)

        monkeypatch.setattr(Cluster, "endpoint", redirected)
        with fluss.connect(engine.address) as connection:
            yield Way(proxy, connection.get_admin())


def test_settings(way: Way) -> None:
    way.lose(api.ALTER_CLUSTER_CONFIGS)
    way.admin.alter_cluster_configs(set_configs={LIMIT: "64mb"})
    assert way.asked(api.ALTER_CLUSTER_CONFIGS) == 2
    found = {entry.key: entry.value for entry in way.admin.describe_cluster_configs()}
    assert found[LIMIT] == "64mb"


def test_entries_of_settings_are_added_once(way: Way) -> None:
    way.lose(api.ALTER_CLUSTER_CONFIGS)
    with pytest.raises(NetworkError):
        way.admin.alter_cluster_configs(append_configs={LIMIT: "1"})
    assert way.asked(api.ALTER_CLUSTER_CONFIGS) == 1
    # and the next call goes on
    with pytest.raises(FlussError, match="APPEND"):
        way.admin.alter_cluster_configs(append_configs={LIMIT: "1"})


def test_tags(way: Way) -> None:
    way.lose(api.ADD_SERVER_TAG)
    way.admin.add_server_tag([0], "temporary_offline")
    assert way.asked(api.ADD_SERVER_TAG) == 2
    way.lose(api.REMOVE_SERVER_TAG)
    way.admin.remove_server_tag([0], "temporary_offline")
    assert way.asked(api.REMOVE_SERVER_TAG) == 2


def test_rebalance(way: Way) -> None:
    way.lose(api.REBALANCE)
    last = way.admin.rebalance(["leader_distribution"])
    assert way.asked(api.REBALANCE) == 2
    progress = way.admin.list_rebalance_progress()
    assert progress is not None
    assert progress.rebalance_id == last


def test_offsets_of_a_producer(way: Way) -> None:
    way.lose(api.REGISTER_PRODUCER_OFFSETS)
    offsets = {TableBucket(1, 0): 5}
    # as documented: they are compared then
    result = way.admin.register_producer_offsets("p", offsets)
    assert result is fluss.RegisterResult.ALREADY_EXISTS
    assert way.asked(api.REGISTER_PRODUCER_OFFSETS) == 2
    known = way.admin.get_producer_offsets("p")
    assert known is not None
    assert known.offsets == offsets


def test_leases(way: Way) -> None:
    lease = way.admin.create_kv_snapshot_lease("l", 1000)
    way.lose(api.ACQUIRE_KV_SNAPSHOT_LEASE)
    lease.renew()
    assert way.asked(api.ACQUIRE_KV_SNAPSHOT_LEASE) == 2
    way.lose(api.RELEASE_KV_SNAPSHOT_LEASE)
    lease.release_snapshots([])
    assert way.asked(api.RELEASE_KV_SNAPSHOT_LEASE) == 2
    way.lose(api.DROP_KV_SNAPSHOT_LEASE)
    lease.drop_lease()
    assert way.asked(api.DROP_KV_SNAPSHOT_LEASE) == 2
