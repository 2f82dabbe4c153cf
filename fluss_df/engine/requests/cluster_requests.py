"""Requests about the cluster as such, answered by a cluster of one server.

It has no snapshots of rows and no remote storage, and says so as a server of Apache Fluss 1.0
without them does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from google.protobuf.message import Message

from fluss_df.engine.catalog.cluster_configs import altered_configs
from fluss_df.engine.engine import Engine
from fluss_df.engine.tables.buckets import java_name, unknown_table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket, lease_problem
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of

# the id of the only server
SERVER: Final = 0
_TAGS: Final = ("PERMANENT_OFFLINE", "TEMPORARY_OFFLINE")
_GOALS: Final = ("REPLICA_DISTRIBUTION", "LEADER_DISTRIBUTION", "RACK_AWARE")
# what each goal says where every server has a tag
_WITHOUT_A_SERVER: Final = (
    "[ReplicaDistributionGoal] All alive tabletServers are excluded from replica moves.",
    "[LeaderReplicaDistributionGoal] All alive tabletServers are excluded from replica moves.",
    "[RackAwareGoal] Insufficient number of racks to distribute each replica (Current: 0,"
    " Needed: 1).",
)
_CREATED, _ALREADY_EXISTS = 0, 1
_GREEN, _RED = 0, 2
_COMPLETED: Final = 3

_Handler = tuple[api.Api[Any, Any], Callable[..., Message]]


@dataclass(frozen=True, slots=True)
class ClusterRequests:
    """The handlers of these requests."""

    engine: Engine

    def handlers(self) -> list[_Handler]:
        """Return each request with what answers it."""
        return [
            (api.DESCRIBE_CLUSTER_CONFIGS, self._configs),
            (api.ALTER_CLUSTER_CONFIGS, self._alter_configs),
            (api.ADD_SERVER_TAG, self._add_tag),
            (api.REMOVE_SERVER_TAG, self._remove_tag),
            (api.REBALANCE, self._rebalance),
            (api.LIST_REBALANCE_PROGRESS, self._rebalance_progress),
            (api.CANCEL_REBALANCE, self._cancel_rebalance),
            (api.REGISTER_PRODUCER_OFFSETS, self._register),
            (api.GET_PRODUCER_OFFSETS, self._producer_offsets),
            (api.DELETE_PRODUCER_OFFSETS, self._forget_producer),
            (api.GET_KV_SNAPSHOT_METADATA, _no_snapshot),
            (api.LIST_KV_SNAPSHOTS, self._snapshots),
            (api.ACQUIRE_KV_SNAPSHOT_LEASE, self._acquire_lease),
            (api.RELEASE_KV_SNAPSHOT_LEASE, self._release_lease),
            (api.DROP_KV_SNAPSHOT_LEASE, _drop_lease),
            (api.GET_CLUSTER_HEALTH, self._health),
            (api.LIST_REMOTE_LOG_MANIFESTS, self._manifests),
        ]

    def require_server(self) -> None:
        """Refuse to place buckets where the only server is tagged as gone for good.

        Raises ``INVALID_REPLICATION_FACTOR``.
        """
        if self.engine.cluster.tag(SERVER) == _TAGS.index("PERMANENT_OFFLINE"):
            raise FlussError(
                "Replication factor: 1 larger than available tablet servers: 0.",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )

    # ---- settings and health

    def _configs(self, request: pb.DescribeClusterConfigsRequest) -> Message:
        settings = self.engine.settings
        configs = {
            "data.dir": str(self.engine.folder),
            "default.bucket.number": str(settings.default_buckets),
            "default.replication.factor": "1",
            "log.segment.file-size": f"{settings.segment_bytes}b",
            "embedded.durability": settings.durability,
        }
        response = pb.DescribeClusterConfigsResponse()
        for source, found in (
            ("INITIAL_SERVER_CONFIG", configs),
            ("DYNAMIC_SERVER_CONFIG", self.engine.cluster.configs),
        ):
            for key, value in found.items():
                response.configs.add(config_key=key, config_value=value, config_source=source)
        return response

    def _alter_configs(self, request: pb.AlterClusterConfigsRequest) -> Message:
        self.engine.cluster.alter_configs(
            lambda configs: altered_configs(configs, request.alter_configs)
        )
        return pb.AlterClusterConfigsResponse()

    def _health(self, request: pb.GetClusterHealthRequest) -> Message:
        catalog = self.engine.catalog
        buckets = sum(
            table.buckets * (len(table.partitions) if table.partitioned else 1)
            for table in catalog.all_tables()
        )
        active = buckets - self.engine.refusing_writes()
        return pb.GetClusterHealthResponse(
            num_replicas=buckets,
            in_sync_replicas=buckets,
            num_leader_replicas=buckets,
            active_leader_replicas=active,
            status=_GREEN if active == buckets else _RED,
        )

    # ---- tags and balance

    def _add_tag(self, request: pb.AddServerTagRequest) -> Message:
        wanted = _one_of(request.server_tag, _TAGS)
        state = self.engine.cluster
        for server in request.server_ids:
            if server != SERVER:
                raise FlussError(
                    f"Server {server} not exists when trying to add server tag.",
                    ErrorCode.SERVER_NOT_EXIST_EXCEPTION,
                )
            tag = state.tag(server)
            if tag is not None and tag != request.server_tag:
                raise FlussError(
                    f"Server tag {_TAGS[tag]} already exists for server {server}. However you want"
                    f" to set it to {wanted}, please remove the server tag first.",
                    ErrorCode.SERVER_TAG_ALREADY_EXIST_EXCEPTION,
                )
        if request.server_ids:
            state.add_tag(SERVER, request.server_tag)
        return pb.AddServerTagResponse()

    def _remove_tag(self, request: pb.RemoveServerTagRequest) -> Message:
        wanted = _one_of(request.server_tag, _TAGS)
        state = self.engine.cluster
        for server in request.server_ids:
            tag = state.tag(server)
            if tag is not None and tag != request.server_tag:
                raise FlussError(
                    f"Server tag {wanted} not exists for server {server}, the current server tag"
                    f" of this server is {_TAGS[tag]}.",
                    ErrorCode.SERVER_TAG_NOT_EXIST_EXCEPTION,
                )
        for server in request.server_ids:
            state.remove_tag(server)
        return pb.RemoveServerTagResponse()

    def _rebalance(self, request: pb.RebalanceRequest) -> Message:
        for goal in request.goals:
            _one_of(goal, _GOALS)
        if request.goals and self.engine.cluster.tag(SERVER) is not None:
            # the only server is one that buckets are to be moved away from
            raise FlussError(
                "Failed to generate plan and execute rebalance. The root cause:"
                f" {_WITHOUT_A_SERVER[request.goals[0]]}",
                ErrorCode.REBALANCE_FAILURE_EXCEPTION,
            )
        # complete at once: there is one server, and nothing to move
        rebalance = str(uuid.uuid4())
        self.engine.cluster.rebalanced(rebalance)
        return pb.RebalanceResponse(rebalance_id=rebalance)

    def _rebalance_progress(self, request: pb.ListRebalanceProgressRequest) -> Message:
        last = self._last_rebalance(request, "list")
        if last is None:
            return pb.ListRebalanceProgressResponse()
        return pb.ListRebalanceProgressResponse(rebalance_id=last, rebalance_status=_COMPLETED)

    def _cancel_rebalance(self, request: pb.CancelRebalanceRequest) -> Message:
        self._last_rebalance(request, "cancel")
        return pb.CancelRebalanceResponse()

    def _last_rebalance(
        self, request: pb.ListRebalanceProgressRequest | pb.CancelRebalanceRequest, what: str
    ) -> str | None:
        last = self.engine.cluster.rebalance
        asked = request.rebalance_id if request.HasField("rebalance_id") else last
        if last is not None and asked != last:
            raise FlussError(
                f"Rebalance task id {asked} to {what} is not the current rebalance task id {last}.",
                ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION,
            )
        return last

    # ---- producers

    def _register(self, request: pb.RegisterProducerOffsetsRequest) -> Message:
        offsets: dict[TableBucket, int] = {}
        for table in request.table_offsets:
            parts = table.bucket_offsets
            problem = None
            if not all(part.HasField("log_end_offset") for part in parts):
                problem = "lacks offsets"
            elif len({part.HasField("partition_id") for part in parts}) > 1:
                problem = "has buckets with a partition and without one"
            if problem:
                raise FlussError(
                    "Failed to register producer offsets for producer"
                    f" {request.producer_id}: table {table.table_id} {problem}",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
            for part in parts:
                offsets[bucket_of(table.table_id, part)] = part.log_end_offset
        ttl = request.ttl_ms if request.HasField("ttl_ms") else None
        created = self.engine.cluster.register(request.producer_id, offsets, ttl)
        return pb.RegisterProducerOffsetsResponse(result=_CREATED if created else _ALREADY_EXISTS)

    def _producer_offsets(self, request: pb.GetProducerOffsetsRequest) -> Message:
        response = pb.GetProducerOffsetsResponse()
        known = self.engine.cluster.producer(request.producer_id)
        if known is None:
            return response
        response.producer_id = request.producer_id
        response.expiration_time = known.expires
        tables: dict[int, pb.ProducerTableOffsets] = {}
        for bucket, offset in known.offsets.items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = response.table_offsets.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        return response

    def producer_tables(self, producer_id: str) -> set[int]:
        """Return the ids of the tables that a producer has offsets of.

        Raises ``INVALID_PRODUCER_ID_EXCEPTION``.
        """
        known = self.engine.cluster.producer(producer_id)
        return set() if known is None else {bucket.table_id for bucket in known.offsets}

    def _forget_producer(self, request: pb.DeleteProducerOffsetsRequest) -> Message:
        self.engine.cluster.forget(request.producer_id)
        return pb.DeleteProducerOffsetsResponse()

    # ---- snapshots and remote logs, of which there are none

    def _snapshots(self, request: pb.ListKvSnapshotsRequest) -> Message:
        response = pb.ListKvSnapshotsResponse(table_id=request.table_id)
        if self._partition_of(request) is not None:
            response.partition_id = request.partition_id
        elif self.engine.catalog.table_by_id(request.table_id) is None:
            raise FlussError(f"Table {request.table_id} does not exist", ErrorCode.TABLE_NOT_EXIST)
        return response

    def _manifests(self, request: pb.ListRemoteLogManifestsRequest) -> Message:
        self._partition_of(request)
        return pb.ListRemoteLogManifestsResponse()

    def _partition_of(
        self, request: pb.ListKvSnapshotsRequest | pb.ListRemoteLogManifestsRequest
    ) -> int | None:
        """Return the partition that a request names, if it is one of its table."""
        if not request.HasField("partition_id"):
            return None
        found = self.engine.catalog.partition_by_id(request.partition_id)
        if found is None or found[0].id != request.table_id:
            problem = (
                "does not exist"
                if found is None
                else f"does not belong to table {request.table_id}"
            )
            raise FlussError(
                f"Partition {request.partition_id} {problem}", ErrorCode.PARTITION_NOT_EXISTS
            )
        return request.partition_id

    def _acquire_lease(self, request: pb.AcquireKvSnapshotLeaseRequest) -> Message:
        for table in request.snapshots_to_lease:
            self._check_keyed(table.table_id)
        _check_lease(request.lease_id, "acquire")
        # there are no snapshots: none that is asked for is to be had
        asked = [table for table in request.snapshots_to_lease if table.bucket_snapshots]
        return pb.AcquireKvSnapshotLeaseResponse(unavailable_snapshots=asked)

    def _release_lease(self, request: pb.ReleaseKvSnapshotLeaseRequest) -> Message:
        for bucket in request.buckets_to_release:
            self._check_keyed(bucket.table_id)
        return pb.ReleaseKvSnapshotLeaseResponse()

    def _check_keyed(self, table_id: int) -> None:
        table = self.engine.catalog.table_by_id(table_id)
        if table is None:
            raise unknown_table(table_id)
        if not table.has_primary_key:
            raise FlussError(
                f"Table '{table.path}' is not a primary key table",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )


def _one_of(number: int, names: tuple[str, ...]) -> str:
    if not 0 <= number < len(names):
        raise FlussError(
            f"Value {number} must be one of [{', '.join(names)}]", ErrorCode.UNKNOWN_SERVER_ERROR
        )
    return names[number]


def _no_snapshot(request: pb.GetKvSnapshotMetadataRequest) -> NoReturn:
    bucket = bucket_of(request.table_id, request)
    raise FlussError(
        f"Failed to get kv snapshot metadata for table bucket {java_name(bucket)} and snapshot id"
        f" {request.snapshot_id}. Error: Kv snapshot not found",
        ErrorCode.KV_SNAPSHOT_NOT_EXIST,
    )


def _check_lease(lease_id: str, what: str) -> None:
    if lease_problem(lease_id) is not None:
        raise FlussError(
            f"Failed to {what} kv snapshot lease for{lease_id}", ErrorCode.UNKNOWN_SERVER_ERROR
        )


def _drop_lease(request: pb.DropKvSnapshotLeaseRequest) -> Message:
    _check_lease(request.lease_id, "drop")
    return pb.DropKvSnapshotLeaseResponse()
