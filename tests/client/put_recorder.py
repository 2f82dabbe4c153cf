"""Servers behind proxies that keep the kv batches that clients put."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_METADATA, PUT_KV
from tests.client.kv_support import OfficialKv
from tests.client.support import Official, Tables
from tests.faults.fault_proxy import FaultProxy

# length, API key and version, request id; length, type, request id
_REQUEST_HEAD = 12
_RESPONSE_HEAD = 9
_SUCCESS = 0


@dataclass
class Recorded:
    """A server whose puts are recorded, and both clients."""

    cluster: LocalCluster
    coordinator: FaultProxy
    proxy: FaultProxy
    tables: Tables
    official: OfficialKv

    def puts(self) -> list[bytes]:
        """Return the kv batches that were put since the last call; one sent again counts once."""
        frames, self.proxy.requests[:] = list(self.proxy.requests), []
        batches = []
        for _, frame in frames:
            request = pb.PutKvRequest.FromString(frame[_REQUEST_HEAD:])
            batches += [bucket.records for bucket in request.buckets_req]
        return list(dict.fromkeys(batches))


@contextlib.contextmanager
def recorded_cluster(
    factory: ClusterFactory | type[LocalCluster], **options: Any
) -> Iterator[Recorded]:
    """Start a cluster whose servers are reached through proxies alone."""
    with (
        FaultProxy() as first,
        FaultProxy() as proxy,
        factory(tablet_servers=1, **options) as cluster,
    ):
        coordinator, server = cluster.bootstrap_servers, cluster.tablet_servers[0]

        def rewrite(api_key: int, frame: bytes) -> bytes:
            if api_key != GET_METADATA.key or frame[4] != _SUCCESS:
                return frame
            response = pb.MetadataResponse.FromString(frame[_RESPONSE_HEAD:])
            response.coordinator_server.port = first.port
            for node in response.tablet_servers:
                node.port = proxy.port
            body = response.SerializeToString()
            head = frame[4:_RESPONSE_HEAD]
            return struct.pack(">i", len(head) + len(body)) + head + body

        first.rewrite = proxy.rewrite = rewrite
        first.target = lambda: ("127.0.0.1", int(coordinator.rpartition(":")[2]))
        proxy.target = lambda: ("127.0.0.1", server.port)
        proxy.kept_keys = frozenset({PUT_KV.key})
        address = f"127.0.0.1:{first.port}"
        with fluss.connect(address) as connection:
            tables = Tables(connection, "fluss")
            client = Official(address)
            try:
                yield Recorded(cluster, first, proxy, tables, OfficialKv(client))
            finally:
                client.close()
