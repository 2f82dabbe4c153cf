"""fluss_df: Apache Fluss for people who think in dataframes.

Importing it adds ``pl.scan_fluss``, ``pl.read_fluss``, ``LazyFrame.sink_fluss``,
``DataFrame.write_fluss`` and the namespace ``lf.fluss`` to Polars.
"""

import os as _os
from typing import TYPE_CHECKING

from fluss_df.lazy import lazy_names
from fluss_df.register import register
from fluss_df.version import __version__

if TYPE_CHECKING:
    from fluss_df.client.acl import (
        AccessControlEntry,
        AccessControlEntryFilter,
        AclBinding,
        AclBindingFilter,
        FlussPrincipal,
        OperationType,
        PermissionType,
        Resource,
        ResourceFilter,
        ResourceType,
    )
    from fluss_df.client.admin import (
        AcquireKvSnapshotLeaseResult,
        ActiveKvSnapshots,
        ClusterHealth,
        ClusterHealthStatus,
        ConfigEntry,
        ConfigSource,
        DatabaseSummary,
        FlussAdmin,
        GoalType,
        KvSnapshotLease,
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
    from fluss_df.client.connection import FlussConnection, connect, set_default_connection
    from fluss_df.client.lookup.lookuper import (
        Lookuper,
        PrefixLookuper,
        TableLookup,
        TablePrefixLookup,
    )
    from fluss_df.client.scan.batch_scanner import BatchScanner
    from fluss_df.client.scan.log_scanner import LogScanner
    from fluss_df.client.scan.records import RecordBatch, ScanRecord, ScanRecords
    from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
    from fluss_df.client.send.batch import BucketResult, WriteResultHandle
    from fluss_df.client.table import FlussTable, TableAppend, TableScan
    from fluss_df.client.write.append import AppendWriter
    from fluss_df.client.write.upsert import TableUpsert, UpsertWriter
    from fluss_df.config import Config
    from fluss_df.errors import ErrorCode, FlussError
    from fluss_df.io.lookup_join import lookup_join
    from fluss_df.io.runs.micro_batches import MicroBatch, MicroBatches
    from fluss_df.io.runs.runner import RunResult, run
    from fluss_df.io.scan import count, explain, fetched, read_fluss, scan_fluss
    from fluss_df.io.scans.report import ScanReport, last_scan, track_scans
    from fluss_df.io.sinks.sink import SinkResult, sink_fluss, write_fluss
    from fluss_df.metadata import (
        EARLIEST_OFFSET,
        LATEST_OFFSET,
        ChangeType,
        DatabaseDescriptor,
        DatabaseInfo,
        LakeSnapshot,
        OffsetSpec,
        OffsetType,
        PartitionInfo,
        ServerNode,
        TableBucket,
        TablePath,
        TableStats,
    )
    from fluss_df.pushdown.column import ColumnRef, col
    from fluss_df.pushdown.predicate import Predicate
    from fluss_df.schema import Schema, TableDescriptor, TableInfo

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "AccessControlEntry",
    "AccessControlEntryFilter",
    "AclBinding",
    "AclBindingFilter",
    "AcquireKvSnapshotLeaseResult",
    "ActiveKvSnapshots",
    "AppendWriter",
    "BatchScanner",
    "BucketResult",
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
    "FlussPrincipal",
    "FlussTable",
    "GoalType",
    "KvSnapshotLease",
    "KvSnapshotMetadata",
    "KvSnapshots",
    "LakeSnapshot",
    "LogScanner",
    "Lookuper",
    "MicroBatch",
    "MicroBatches",
    "OffsetSpec",
    "OffsetType",
    "OperationType",
    "PartitionInfo",
    "PermissionType",
    "Predicate",
    "PrefixLookuper",
    "ProducerOffsetsResult",
    "RebalanceProgress",
    "RebalanceResultForBucket",
    "RebalanceStatus",
    "RecordBatch",
    "RegisterResult",
    "RemoteLogManifestInfo",
    "Resource",
    "ResourceFilter",
    "ResourceType",
    "RunResult",
    "ScanRecord",
    "ScanRecords",
    "ScanReport",
    "Schema",
    "ServerNode",
    "ServerTag",
    "SinkResult",
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
    "connect",
    "count",
    "explain",
    "fetched",
    "last_scan",
    "lookup_join",
    "read_fluss",
    "run",
    "scan_fluss",
    "set_default_connection",
    "sink_fluss",
    "track_scans",
    "write_fluss",
]

if not TYPE_CHECKING:
    # the names, and the modules that have them
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "client.acl": (
                "AccessControlEntry AccessControlEntryFilter AclBinding AclBindingFilter "
                "FlussPrincipal OperationType PermissionType Resource ResourceFilter ResourceType"
            ),
            "client.admin": (
                "AcquireKvSnapshotLeaseResult ActiveKvSnapshots ClusterHealth "
                "ClusterHealthStatus ConfigEntry ConfigSource DatabaseSummary "
                "FlussAdmin GoalType KvSnapshotLease KvSnapshotMetadata KvSnapshots "
                "ProducerOffsetsResult RebalanceProgress RebalanceResultForBucket "
                "RebalanceStatus RegisterResult RemoteLogManifestInfo ServerTag"
            ),
            "client.connection": "FlussConnection connect set_default_connection",
            "client.lookup.lookuper": "Lookuper PrefixLookuper TableLookup TablePrefixLookup",
            "client.scan.batch_scanner": "BatchScanner",
            "client.scan.log_scanner": "LogScanner",
            "client.scan.records": "RecordBatch ScanRecord ScanRecords",
            "client.scan.snapshot_scanner": "SnapshotScanner",
            "client.send.batch": "BucketResult WriteResultHandle",
            "client.table": "FlussTable TableAppend TableScan",
            "client.write.append": "AppendWriter",
            "client.write.upsert": "TableUpsert UpsertWriter",
            "config": "Config",
            "errors": "ErrorCode FlussError",
            "io.lookup_join": "lookup_join",
            "io.runs.micro_batches": "MicroBatch MicroBatches",
            "io.runs.runner": "RunResult run",
            "io.scan": "count explain fetched read_fluss scan_fluss",
            "io.scans.report": "ScanReport last_scan track_scans",
            "io.sinks.sink": "SinkResult sink_fluss write_fluss",
            "metadata": (
                "ChangeType DatabaseDescriptor DatabaseInfo EARLIEST_OFFSET LATEST_OFFSET "
                "LakeSnapshot OffsetSpec OffsetType PartitionInfo ServerNode TableBucket "
                "TablePath TableStats"
            ),
            "pushdown.column": "ColumnRef col",
            "pushdown.predicate": "Predicate",
            "schema": "Schema TableDescriptor TableInfo",
        },
    )

register()

if _os.environ.get("FLUSS_DF_LOG") or _os.environ.get("FLUSS_DF_LOG_LEVEL"):
    from fluss_df.observe.json_logs import set_up as _set_up_logs

    _set_up_logs()
