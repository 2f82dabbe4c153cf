"""The asynchronous façade, with the names of the official Python client as released (1.0).

``import fluss_df.aio as fluss`` in place of ``import fluss``: what waits is a coroutine and never
blocks the caller's loop. See ``docs/migration.md`` for what differs.
"""

from fluss_df.aio.admin import FlussAdmin, KvSnapshotLease
from fluss_df.aio.connection import FlussConnection, FlussTable, TableAppend, TableScan
from fluss_df.aio.keyed import (
    Lookuper,
    PrefixLookuper,
    TableLookup,
    TablePrefixLookup,
    TableUpsert,
    UpsertWriter,
)
from fluss_df.aio.scanner import BatchScanner, LogScanner, SnapshotScanner
from fluss_df.aio.writer import AppendWriter, WriteResultHandle
from fluss_df.client.admin import (
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
from fluss_df.client.scan.records import RecordBatch, ScanRecord, ScanRecords
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ChangeType,
    DatabaseDescriptor,
    DatabaseInfo,
    LakeSnapshot,
    OffsetSpec,
    PartitionInfo,
    ServerNode,
    TableBucket,
    TablePath,
    TableStats,
)
from fluss_df.pushdown.column import ColumnRef, col
from fluss_df.pushdown.predicate import Predicate
from fluss_df.schema import Schema, TableDescriptor, TableInfo
from fluss_df.version import __version__

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "AcquireKvSnapshotLeaseResult",
    "ActiveKvSnapshots",
    "AppendWriter",
    "BatchScanner",
    "ChangeType",
    "ClusterHealth",
    "ClusterHealthStatus",
    "ColumnRef",
    "Config",
    "ConfigEntry",
    "ConfigSource",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "DatabaseSummary",
    "ErrorCode",
    "FlussAdmin",
    "FlussConnection",
    "FlussError",
    "FlussTable",
    "GoalType",
    "KvSnapshotLease",
    "KvSnapshotMetadata",
    "KvSnapshots",
    "LakeSnapshot",
    "LogScanner",
    "Lookuper",
    "OffsetSpec",
    "PartitionInfo",
    "Predicate",
    "PrefixLookuper",
    "ProducerOffsetsResult",
    "RebalanceProgress",
    "RebalanceResultForBucket",
    "RebalanceStatus",
    "RecordBatch",
    "RegisterResult",
    "RemoteLogManifestInfo",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "ServerNode",
    "ServerTag",
    "SnapshotScanner",
    "TableAppend",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TableLookup",
    "TablePath",
    "TablePrefixLookup",
    "TableScan",
    "TableStats",
    "TableUpsert",
    "UpsertWriter",
    "WriteResultHandle",
    "__version__",
    "col",
]
