"""The requests of the protocol: API key, messages and versions of each, and what a server knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Api(Generic[RequestT, ResponseT]):
    """One kind of request: its key, its messages, the versions that this client supports.

    ``key`` and ``name`` are those of Fluss. ``max_version`` is the newest version that this client
    supports; the oldest is 0.
    """

    key: int
    name: str
    request: type[RequestT]
    response: type[ResponseT]
    max_version: int = 0


API_VERSIONS = Api(1000, "API_VERSIONS", pb.ApiVersionsRequest, pb.ApiVersionsResponse)
CREATE_DATABASE = Api(1001, "CREATE_DATABASE", pb.CreateDatabaseRequest, pb.CreateDatabaseResponse)
DROP_DATABASE = Api(1002, "DROP_DATABASE", pb.DropDatabaseRequest, pb.DropDatabaseResponse)
LIST_DATABASES = Api(1003, "LIST_DATABASES", pb.ListDatabasesRequest, pb.ListDatabasesResponse)
DATABASE_EXISTS = Api(1004, "DATABASE_EXISTS", pb.DatabaseExistsRequest, pb.DatabaseExistsResponse)
CREATE_TABLE = Api(1005, "CREATE_TABLE", pb.CreateTableRequest, pb.CreateTableResponse)
DROP_TABLE = Api(1006, "DROP_TABLE", pb.DropTableRequest, pb.DropTableResponse)
GET_TABLE_INFO = Api(1007, "GET_TABLE_INFO", pb.GetTableInfoRequest, pb.GetTableInfoResponse)
LIST_TABLES = Api(1008, "LIST_TABLES", pb.ListTablesRequest, pb.ListTablesResponse)
LIST_PARTITION_INFOS = Api(
    1009, "LIST_PARTITION_INFOS", pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse
)
TABLE_EXISTS = Api(1010, "TABLE_EXISTS", pb.TableExistsRequest, pb.TableExistsResponse)
GET_TABLE_SCHEMA = Api(
    1011, "GET_TABLE_SCHEMA", pb.GetTableSchemaRequest, pb.GetTableSchemaResponse
)
GET_METADATA = Api(1012, "GET_METADATA", pb.MetadataRequest, pb.MetadataResponse)
PRODUCE_LOG = Api(1014, "PRODUCE_LOG", pb.ProduceLogRequest, pb.ProduceLogResponse)
FETCH_LOG = Api(1015, "FETCH_LOG", pb.FetchLogRequest, pb.FetchLogResponse)
# Version 1 says that the client encodes keys by the table's kv format version (see
# fluss_df.record.keys.keys), version 2 that it also knows STORAGE_BACKPRESSURE_EXCEPTION.
PUT_KV = Api(1016, "PUT_KV", pb.PutKvRequest, pb.PutKvResponse, 2)
LOOKUP = Api(1017, "LOOKUP", pb.LookupRequest, pb.LookupResponse, 1)
LIST_OFFSETS = Api(1021, "LIST_OFFSETS", pb.ListOffsetsRequest, pb.ListOffsetsResponse)
GET_LATEST_KV_SNAPSHOTS = Api(
    1023, "GET_LATEST_KV_SNAPSHOTS", pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse
)
GET_KV_SNAPSHOT_METADATA = Api(
    1024,
    "GET_KV_SNAPSHOT_METADATA",
    pb.GetKvSnapshotMetadataRequest,
    pb.GetKvSnapshotMetadataResponse,
)
GET_FILESYSTEM_SECURITY_TOKEN = Api(
    1025,
    "GET_FILESYSTEM_SECURITY_TOKEN",
    pb.GetFileSystemSecurityTokenRequest,
    pb.GetFileSystemSecurityTokenResponse,
)
INIT_WRITER = Api(1026, "INIT_WRITER", pb.InitWriterRequest, pb.InitWriterResponse)
COMMIT_LAKE_TABLE_SNAPSHOT = Api(
    1030,
    "COMMIT_LAKE_TABLE_SNAPSHOT",
    pb.CommitLakeTableSnapshotRequest,
    pb.CommitLakeTableSnapshotResponse,
)
GET_LAKE_SNAPSHOT = Api(
    1032, "GET_LAKE_SNAPSHOT", pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse
)
LIMIT_SCAN = Api(1033, "LIMIT_SCAN", pb.LimitScanRequest, pb.LimitScanResponse)
PREFIX_LOOKUP = Api(1034, "PREFIX_LOOKUP", pb.PrefixLookupRequest, pb.PrefixLookupResponse, 1)
GET_DATABASE_INFO = Api(
    1035, "GET_DATABASE_INFO", pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse
)
CREATE_PARTITION = Api(
    1036, "CREATE_PARTITION", pb.CreatePartitionRequest, pb.CreatePartitionResponse
)
DROP_PARTITION = Api(1037, "DROP_PARTITION", pb.DropPartitionRequest, pb.DropPartitionResponse)
LAKE_TIERING_HEARTBEAT = Api(
    1042, "LAKE_TIERING_HEARTBEAT", pb.LakeTieringHeartbeatRequest, pb.LakeTieringHeartbeatResponse
)
PREPARE_LAKE_TABLE_SNAPSHOT = Api(
    1052,
    "PREPARE_LAKE_TABLE_SNAPSHOT",
    pb.PrepareLakeTableSnapshotRequest,
    pb.PrepareLakeTableSnapshotResponse,
)
ALTER_TABLE = Api(1044, "ALTER_TABLE", pb.AlterTableRequest, pb.AlterTableResponse)
GET_TABLE_STATS = Api(1059, "GET_TABLE_STATS", pb.GetTableStatsRequest, pb.GetTableStatsResponse)
# known to servers of 1.0 and later
ALTER_DATABASE = Api(1060, "ALTER_DATABASE", pb.AlterDatabaseRequest, pb.AlterDatabaseResponse)
AUTHENTICATE = Api(1038, "AUTHENTICATE", pb.AuthenticateRequest, pb.AuthenticateResponse)
ACQUIRE_KV_SNAPSHOT_LEASE = Api(
    1056,
    "ACQUIRE_KV_SNAPSHOT_LEASE",
    pb.AcquireKvSnapshotLeaseRequest,
    pb.AcquireKvSnapshotLeaseResponse,
)
RELEASE_KV_SNAPSHOT_LEASE = Api(
    1057,
    "RELEASE_KV_SNAPSHOT_LEASE",
    pb.ReleaseKvSnapshotLeaseRequest,
    pb.ReleaseKvSnapshotLeaseResponse,
)
DROP_KV_SNAPSHOT_LEASE = Api(
    1058, "DROP_KV_SNAPSHOT_LEASE", pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse
)
CREATE_ACLS = Api(1039, "CREATE_ACLS", pb.CreateAclsRequest, pb.CreateAclsResponse)
LIST_ACLS = Api(1040, "LIST_ACLS", pb.ListAclsRequest, pb.ListAclsResponse)
DROP_ACLS = Api(1041, "DROP_ACLS", pb.DropAclsRequest, pb.DropAclsResponse)
DESCRIBE_CLUSTER_CONFIGS = Api(
    1045,
    "DESCRIBE_CLUSTER_CONFIGS",
    pb.DescribeClusterConfigsRequest,
    pb.DescribeClusterConfigsResponse,
)
ALTER_CLUSTER_CONFIGS = Api(
    1046, "ALTER_CLUSTER_CONFIGS", pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse
)
ADD_SERVER_TAG = Api(1047, "ADD_SERVER_TAG", pb.AddServerTagRequest, pb.AddServerTagResponse)
REMOVE_SERVER_TAG = Api(
    1048, "REMOVE_SERVER_TAG", pb.RemoveServerTagRequest, pb.RemoveServerTagResponse
)
REBALANCE = Api(1049, "REBALANCE", pb.RebalanceRequest, pb.RebalanceResponse)
LIST_REBALANCE_PROGRESS = Api(
    1050,
    "LIST_REBALANCE_PROGRESS",
    pb.ListRebalanceProgressRequest,
    pb.ListRebalanceProgressResponse,
)
CANCEL_REBALANCE = Api(
    1051, "CANCEL_REBALANCE", pb.CancelRebalanceRequest, pb.CancelRebalanceResponse
)
REGISTER_PRODUCER_OFFSETS = Api(
    1053,
    "REGISTER_PRODUCER_OFFSETS",
    pb.RegisterProducerOffsetsRequest,
    pb.RegisterProducerOffsetsResponse,
)
GET_PRODUCER_OFFSETS = Api(
    1054, "GET_PRODUCER_OFFSETS", pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse
)
DELETE_PRODUCER_OFFSETS = Api(
    1055,
    "DELETE_PRODUCER_OFFSETS",
    pb.DeleteProducerOffsetsRequest,
    pb.DeleteProducerOffsetsResponse,
)
GET_CLUSTER_HEALTH = Api(
    1062, "GET_CLUSTER_HEALTH", pb.GetClusterHealthRequest, pb.GetClusterHealthResponse
)
LIST_REMOTE_LOG_MANIFESTS = Api(
    1063,
    "LIST_REMOTE_LOG_MANIFESTS",
    pb.ListRemoteLogManifestsRequest,
    pb.ListRemoteLogManifestsResponse,
)
LIST_KV_SNAPSHOTS = Api(
    1064, "LIST_KV_SNAPSHOTS", pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse
)

# Only servers of 1.0 and later know this request. Log batches of magic 1 have one layout at 0.9.1
# and another from 1.0 on, with the same number: this key tells which of them a server has.
SCAN_KV_KEY = 1061
SCAN_KV = Api(SCAN_KV_KEY, "SCAN_KV", pb.ScanKvRequest, pb.ScanKvResponse)


@dataclass(frozen=True, slots=True)
class ServerApis:
    """The requests that a server knows, from its answer to API_VERSIONS.

    ``address`` is ``host:port``, for errors. ``versions`` has the oldest and the newest version of
    the server, by API key. ``server_type`` is 1 for a coordinator, 2 for a tablet server, None if
    the server did not tell.
    """

    address: str
    versions: dict[int, tuple[int, int]]
    server_type: int | None

    @classmethod
    def from_response(cls, address: str, response: pb.ApiVersionsResponse) -> ServerApis:
        """Read an ApiVersions response."""
        versions = {v.api_key: (v.min_version, v.max_version) for v in response.api_versions}
        server_type = response.server_type if response.HasField("server_type") else None
        return cls(address, versions, server_type)

    @property
    def batch_statistics(self) -> bool:
        """Whether log batches of magic 1 carry statistics (1.0) rather than a leader epoch."""
        return SCAN_KV_KEY in self.versions

    def version_for(self, api: Api[RequestT, ResponseT]) -> int:
        """Return the newest version of a request that both sides support.

        Call it before each request: servers never answer a request that they do not know.

        Raises ``UNSUPPORTED_VERSION`` when there is no such version.
        """
        spoken = self.versions.get(api.key)
        if spoken is None:
            raise FlussError(
                f"the server at {self.address} does not know the request {api.name} ({api.key})",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        oldest, newest = spoken
        version = min(newest, api.max_version)
        if version < oldest:
            raise FlussError(
                f"the server at {self.address} speaks versions {oldest} to {newest} of {api.name};"
                f" this client speaks 0 to {api.max_version}",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return version
