"""Administration of a cluster, and what it answers."""

from fluss_df.client.admin.admin import FlussAdmin
from fluss_df.client.admin.leases import KvSnapshotLease
from fluss_df.client.admin.results import (
    AcquireKvSnapshotLeaseResult,
    ActiveKvSnapshots,
    ClusterHealth,
    ClusterHealthStatus,
    ConfigEntry,
    ConfigSource,
    DatabaseSummary,
    GoalType,
    KvSnapshotMetadata,
    KvSnapshots,
    ProducerOffsetsResult,
    RebalanceProgress,
    RebalanceResultForBucket,
    RebalanceStatus,
    RegisterResult,
    RemoteLogManifestInfo,
    ServerTag,
)

__all__ = [
    "AcquireKvSnapshotLeaseResult",
    "ActiveKvSnapshots",
    "ClusterHealth",
    "ClusterHealthStatus",
    "ConfigEntry",
    "ConfigSource",
    "DatabaseSummary",
    "FlussAdmin",
    "GoalType",
    "KvSnapshotLease",
    "KvSnapshotMetadata",
    "KvSnapshots",
    "ProducerOffsetsResult",
    "RebalanceProgress",
    "RebalanceResultForBucket",
    "RebalanceStatus",
    "RegisterResult",
    "RemoteLogManifestInfo",
    "ServerTag",
]
