"""Requests that need a right, and what became of them: for tests that ask two servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from fluss_df.errors import ErrorCode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import (
    AccessControlEntry,
    AclBinding,
    FlussPrincipal,
    OperationType,
    PermissionType,
    Resource,
    ResourceType,
    binding_message,
)
from tests.embedded.peers import path, spec, table_json
from tests.embedded.raw import RawClient

DATABASE = "sales"
# beside it, with a right for everyone, and with one that is for nobody though it looks as if
OPEN, STARRED = "open_to_all", "starred"
# never created: to drop it changes nothing
GONE = "gone"
PRODUCER = "producer"

# answered by tablet servers
_ON_TABLETS = {1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059, 1061}

Step = tuple[api.Api[Any, Any], Message]


@dataclass(frozen=True)
class Ids:
    """A server's own ids of the tables that both have."""

    log: int
    keyed: int
    parted: int
    partition: int


STEPS: dict[str, Callable[[Ids], Step]] = {
    "versions": lambda _: (
        api.API_VERSIONS,
        pb.ApiVersionsRequest(client_software_name="t", client_software_version="1"),
    ),
    "token": lambda _: (api.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest()),
    "create database": lambda _: (
        api.CREATE_DATABASE,
        pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=False),
    ),
    "alter database": lambda _: (
        api.ALTER_DATABASE,
        pb.AlterDatabaseRequest(
            database_name=DATABASE,
            ignore_if_not_exists=False,
            config_changes=[pb.AlterConfig(config_key="k", config_value="v", op_type=0)],
        ),
    ),
    "drop database": lambda _: (
        api.DROP_DATABASE,
        pb.DropDatabaseRequest(database_name=DATABASE, ignore_if_not_exists=False, cascade=False),
    ),
    "drop no database": lambda _: (
        api.DROP_DATABASE,
        pb.DropDatabaseRequest(database_name=GONE, ignore_if_not_exists=True, cascade=False),
    ),
    "list databases": lambda _: (api.LIST_DATABASES, pb.ListDatabasesRequest()),
    "database exists": lambda _: (
        api.DATABASE_EXISTS,
        pb.DatabaseExistsRequest(database_name=DATABASE),
    ),
    "default database exists": lambda _: (
        api.DATABASE_EXISTS,
        pb.DatabaseExistsRequest(database_name="fluss"),
    ),
    "describe database": lambda _: (
        api.GET_DATABASE_INFO,
        pb.GetDatabaseInfoRequest(database_name=DATABASE),
    ),
    "describe open database": lambda _: (
        api.GET_DATABASE_INFO,
        pb.GetDatabaseInfoRequest(database_name=OPEN),
    ),
    "describe starred database": lambda _: (
        api.GET_DATABASE_INFO,
        pb.GetDatabaseInfoRequest(database_name=STARRED),
    ),
    "create table": lambda _: (
        api.CREATE_TABLE,
        pb.CreateTableRequest(
            table_path=path("log", DATABASE), table_json=table_json(), ignore_if_exists=False
        ),
    ),
    "drop table": lambda _: (
        api.DROP_TABLE,
        pb.DropTableRequest(table_path=path(GONE, DATABASE), ignore_if_not_exists=False),
    ),
    "alter table": lambda _: (
        api.ALTER_TABLE,
        pb.AlterTableRequest(
            table_path=path("log", DATABASE),
            ignore_if_not_exists=False,
            config_changes=[pb.AlterConfig(config_key="k", config_value="v", op_type=0)],
        ),
    ),
    "alter nothing": lambda _: (
        api.ALTER_TABLE,
        pb.AlterTableRequest(table_path=path("log", DATABASE), ignore_if_not_exists=False),
    ),
    "describe table": lambda _: (
        api.GET_TABLE_INFO,
        pb.GetTableInfoRequest(table_path=path("log", DATABASE)),
    ),
    "describe no table": lambda _: (
        api.GET_TABLE_INFO,
        pb.GetTableInfoRequest(table_path=path(GONE, DATABASE)),
    ),
    "schema": lambda _: (
        api.GET_TABLE_SCHEMA,
        pb.GetTableSchemaRequest(table_path=path("log", DATABASE)),
    ),
    "list tables": lambda _: (api.LIST_TABLES, pb.ListTablesRequest(database_name=DATABASE)),
    "table exists": lambda _: (
        api.TABLE_EXISTS,
        pb.TableExistsRequest(table_path=path("log", DATABASE)),
    ),
    "metadata": lambda _: (
        api.GET_METADATA,
        pb.MetadataRequest(
            table_path=[path("log", DATABASE), path("keyed", DATABASE)],
            partitions_path=[
                pb.PathOfPartition(database_name=DATABASE, table_name="parted", partition_name="x")
            ],
        ),
    ),
    "create partition": lambda _: (
        api.CREATE_PARTITION,
        pb.CreatePartitionRequest(
            table_path=path("parted", DATABASE), partition_spec=spec(b="x"), ignore_if_exists=False
        ),
    ),
    "drop partition": lambda _: (
        api.DROP_PARTITION,
        pb.DropPartitionRequest(
            table_path=path("parted", DATABASE),
            partition_spec=spec(b="none"),
            ignore_if_not_exists=True,
        ),
    ),
    "partitions": lambda _: (
        api.LIST_PARTITION_INFOS,
        pb.ListPartitionInfosRequest(table_path=path("parted", DATABASE)),
    ),
    "latest snapshots": lambda _: (
        api.GET_LATEST_KV_SNAPSHOTS,
        pb.GetLatestKvSnapshotsRequest(table_path=path("keyed", DATABASE)),
    ),
    "lake snapshot": lambda _: (
        api.GET_LAKE_SNAPSHOT,
        pb.GetLakeSnapshotRequest(table_path=path("log", DATABASE)),
    ),
    "writer": lambda _: (
        api.INIT_WRITER,
        pb.InitWriterRequest(table_path=[path(GONE, DATABASE), path("log", DATABASE)]),
    ),
    "writer of nothing": lambda _: (api.INIT_WRITER, pb.InitWriterRequest()),
    "produce": lambda ids: (
        api.PRODUCE_LOG,
        pb.ProduceLogRequest(
            acks=-1,
            table_id=ids.log,
            timeout_ms=1000,
            buckets_req=[pb.ProduceLogRequestForBucket(bucket_id=99, records=b"")],
        ),
    ),
    "put": lambda ids: (
        api.PUT_KV,
        pb.PutKvRequest(
            acks=-1,
            table_id=ids.keyed,
            timeout_ms=1000,
            buckets_req=[pb.PutKvRequestForBucket(bucket_id=99, records=b"")],
        ),
    ),
    "fetch": lambda ids: (
        api.FETCH_LOG,
        pb.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=1000,
            tables_req=[
                pb.FetchLogRequestForTable(
                    table_id=ids.log,
                    projection_pushdown_enabled=False,
                    buckets_req=[
                        pb.FetchLogRequestForBucket(
                            bucket_id=0, fetch_offset=0, max_fetch_bytes=1000
                        )
                    ],
                )
            ],
        ),
    ),
    "lookup": lambda ids: (
        api.LOOKUP,
        pb.LookupRequest(
            table_id=ids.keyed, buckets_req=[pb.LookupRequestForBucket(bucket_id=0, keys=[b"\x01"])]
        ),
    ),
    "prefix lookup": lambda ids: (
        api.PREFIX_LOOKUP,
        pb.PrefixLookupRequest(
            table_id=ids.keyed,
            buckets_req=[pb.PrefixLookupRequestForBucket(bucket_id=0, keys=[b"\x01"])],
        ),
    ),
    "limit scan": lambda ids: (
        api.LIMIT_SCAN,
        pb.LimitScanRequest(table_id=ids.log, bucket_id=0, limit=1),
    ),
    "scan rows": lambda ids: (
        api.SCAN_KV,
        pb.ScanKvRequest(
            bucket_scan_req=pb.ScanKvRequestForBucket(table_id=ids.keyed, bucket_id=0),
            call_seq_id=0,
            batch_size_bytes=100,
        ),
    ),
    "stats": lambda ids: (
        api.GET_TABLE_STATS,
        pb.GetTableStatsRequest(
            table_id=ids.log, buckets_req=[pb.TableStatsRequestForBucket(bucket_id=0)]
        ),
    ),
    "offsets": lambda ids: (
        api.LIST_OFFSETS,
        pb.ListOffsetsRequest(
            follower_server_id=-1, offset_type=1, table_id=ids.log, bucket_id=[0]
        ),
    ),
    "snapshot": lambda ids: (
        api.GET_KV_SNAPSHOT_METADATA,
        pb.GetKvSnapshotMetadataRequest(table_id=ids.keyed, bucket_id=0, snapshot_id=7),
    ),
    "snapshots": lambda ids: (api.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=ids.keyed)),
    "manifests": lambda ids: (
        api.LIST_REMOTE_LOG_MANIFESTS,
        pb.ListRemoteLogManifestsRequest(table_id=ids.log),
    ),
    "acquire lease": lambda ids: (
        api.ACQUIRE_KV_SNAPSHOT_LEASE,
        pb.AcquireKvSnapshotLeaseRequest(
            lease_id="l",
            lease_duration_ms=1000,
            snapshots_to_lease=[pb.KvSnapshotLeaseForTable(table_id=ids.keyed)],
        ),
    ),
    "release lease": lambda ids: (
        api.RELEASE_KV_SNAPSHOT_LEASE,
        pb.ReleaseKvSnapshotLeaseRequest(
            lease_id="l", buckets_to_release=[pb.TableBucketId(table_id=ids.keyed, bucket_id=0)]
        ),
    ),
    "drop lease": lambda _: (
        api.DROP_KV_SNAPSHOT_LEASE,
        pb.DropKvSnapshotLeaseRequest(lease_id="none"),
    ),
    "register producer": lambda ids: (
        api.REGISTER_PRODUCER_OFFSETS,
        pb.RegisterProducerOffsetsRequest(
            producer_id=PRODUCER,
            table_offsets=[
                pb.ProducerTableOffsets(
                    table_id=ids.log,
                    bucket_offsets=[pb.ProducerBucketOffset(bucket_id=0, log_end_offset=0)],
                )
            ],
        ),
    ),
    "offsets of producer": lambda _: (
        api.GET_PRODUCER_OFFSETS,
        pb.GetProducerOffsetsRequest(producer_id=PRODUCER),
    ),
    "delete producer": lambda _: (
        api.DELETE_PRODUCER_OFFSETS,
        pb.DeleteProducerOffsetsRequest(producer_id=PRODUCER),
    ),
    "create acl on table": lambda _: (
        api.CREATE_ACLS,
        pb.CreateAclsRequest(acl=[_acl(Resource.table(DATABASE, "log"))]),
    ),
    "create acl on database": lambda _: (
        api.CREATE_ACLS,
        pb.CreateAclsRequest(acl=[_acl(Resource.database(DATABASE))]),
    ),
    "create acl on cluster": lambda _: (
        api.CREATE_ACLS,
        pb.CreateAclsRequest(acl=[_acl(Resource.cluster())]),
    ),
    "list acls": lambda _: (api.LIST_ACLS, pb.ListAclsRequest(acl_filter=_of_nobody())),
    "drop acls": lambda _: (api.DROP_ACLS, pb.DropAclsRequest(acl_filter=[_of_nobody()])),
    "drop no acls": lambda _: (
        api.DROP_ACLS,
        pb.DropAclsRequest(acl_filter=[_of_nobody(Resource.database(GONE))]),
    ),
    "configs": lambda _: (api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()),
    "alter configs": lambda _: (
        api.ALTER_CLUSTER_CONFIGS,
        pb.AlterClusterConfigsRequest(
            alter_configs=[pb.AlterConfig(config_key="data.dir", config_value="x", op_type=0)]
        ),
    ),
    "alter no configs": lambda _: (api.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest()),
    "add tag": lambda _: (
        api.ADD_SERVER_TAG,
        pb.AddServerTagRequest(server_ids=[77], server_tag=0),
    ),
    "remove tag": lambda _: (
        api.REMOVE_SERVER_TAG,
        pb.RemoveServerTagRequest(server_ids=[], server_tag=0),
    ),
    "rebalance": lambda _: (api.REBALANCE, pb.RebalanceRequest(goals=[99])),
    "rebalance progress": lambda _: (
        api.LIST_REBALANCE_PROGRESS,
        pb.ListRebalanceProgressRequest(rebalance_id="none"),
    ),
    "cancel rebalance": lambda _: (
        api.CANCEL_REBALANCE,
        pb.CancelRebalanceRequest(rebalance_id="none"),
    ),
    "health": lambda _: (api.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest()),
}

# those that servers let everyone ask, and one that 0.9 checks otherwise: of the engine alone
OF_THE_ENGINE: dict[str, Callable[[Ids], Step]] = {
    "lookup with insert": lambda ids: (
        api.LOOKUP,
        pb.LookupRequest(
            table_id=ids.keyed,
            buckets_req=[pb.LookupRequestForBucket(bucket_id=99, keys=[b"\x01"])],
            insert_if_not_exists=True,
            acks=-1,
            timeout_ms=1000,
        ),
    ),
    "heartbeat of tiering": lambda _: (
        api.LAKE_TIERING_HEARTBEAT,
        pb.LakeTieringHeartbeatRequest(),
    ),
    "prepare lake snapshot": lambda ids: (
        api.PREPARE_LAKE_TABLE_SNAPSHOT,
        pb.PrepareLakeTableSnapshotRequest(
            bucket_offsets=[pb.OffsetsOfTable(table_id=ids.log, table_path=path("log", DATABASE))]
        ),
    ),
    "commit lake snapshot": lambda ids: (
        api.COMMIT_LAKE_TABLE_SNAPSHOT,
        pb.CommitLakeTableSnapshotRequest(
            lake_table_snapshot_metadata=[
                pb.LakeTableSnapshotMetadata(
                    table_id=ids.log, snapshot_id=1, tiered_bucket_offsets_file_path="none"
                )
            ]
        ),
    ),
}


def _acl(resource: Resource) -> pb.Acl:
    # of a user who never asks
    return binding_message(AclBinding.allow("granted", OperationType.READ, resource))


def _of_nobody(resource: Resource | None = None) -> pb.AclFilter:
    wanted = pb.AclFilter(
        resource_type=ResourceType.ANY,
        principal_name="granted",
        principal_type="User",
        operation_type=OperationType.ANY,
        permission_type=PermissionType.ANY,
    )
    if resource is not None:
        wanted.resource_type, wanted.resource_name = resource.type, resource.name
    return wanted


def rights() -> dict[str, list[AclBinding]]:
    """Return users with the rights that each of them has."""
    places = {
        "cluster": [Resource.cluster()],
        "database": [Resource.database(DATABASE)],
        "table": [Resource.table(DATABASE, each) for each in ("log", "keyed", "parted", GONE)],
    }
    users = {
        f"{operation.name}_on_{place}".lower(): (operation, resources)
        for operation in OperationType
        for place, resources in places.items()
    }
    more = {
        "on_any_table": (OperationType.READ, [Resource(ResourceType.TABLE, "*")]),
        "on_any_database": (OperationType.READ, [Resource(ResourceType.DATABASE, "*")]),
        "on_any_cluster": (OperationType.ALL, [Resource(ResourceType.CLUSTER, "*")]),
        "on_other_cluster": (OperationType.ALL, [Resource(ResourceType.CLUSTER, "other")]),
        "on_pattern": (
            OperationType.ALL,
            [
                Resource(ResourceType.TABLE, f"{DATABASE}.*"),
                Resource(ResourceType.TABLE, f"{DATABASE}.l%"),
                Resource(ResourceType.DATABASE, "sal*"),
                Resource(ResourceType.DATABASE, ".*"),
                Resource(ResourceType.DATABASE, DATABASE.upper()),
            ],
        ),
        "on_one_table": (OperationType.ALL, [Resource.table(DATABASE, "log")]),
        "on_other_database": (OperationType.ALL, [Resource.database("other")]),
        "on_table_as_database": (OperationType.ALL, [Resource(ResourceType.TABLE, DATABASE)]),
        "on_any_type": (OperationType.ALL, [Resource(ResourceType.ANY, "any")]),
        "on_any_type_starred": (OperationType.ALL, [Resource(ResourceType.ANY, "*")]),
    }
    bindings = {
        user: [AclBinding.allow(user, operation, each) for each in resources]
        for user, (operation, resources) in (users | more).items()
    }
    database = Resource.database(DATABASE)
    bindings["nobody"] = []
    bindings["from_here"] = [
        AclBinding.allow("from_here", OperationType.ALL, database, "127.0.0.1")
    ]
    bindings["from_elsewhere"] = [
        AclBinding.allow("from_elsewhere", OperationType.ALL, database, "10.1.2.3")
    ]
    bindings["of_group"] = [
        AclBinding.allow(FlussPrincipal("of_group", "Group"), OperationType.ALL, database)
    ]
    bindings["In_Capitals"] = [AclBinding.allow("in_capitals", OperationType.ALL, database)]
    return bindings


def for_everyone() -> list[AclBinding]:
    """Return rights that are nobody's own."""
    return [
        AclBinding(
            Resource.database(OPEN),
            AccessControlEntry(FlussPrincipal.WILD_CARD_PRINCIPAL, "*", OperationType.DESCRIBE),
        ),
        AclBinding(
            Resource.database(STARRED),
            AccessControlEntry(FlussPrincipal("*", "User"), "*", OperationType.DESCRIBE),
        ),
    ]


@dataclass
class User:
    """Who asks a server, on connections of their own.

    Parameters
    ----------
    address
        Of the coordinator.
    name, password
        None for who says no name.
    """

    address: str
    name: str | None
    password: str = ""
    coordinator: RawClient = field(init=False)
    tablet: RawClient = field(init=False)
    known: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = self._connect(self.address)
        self.known = {each.api_key for each in self.coordinator.hello().api_versions}
        node = self.coordinator.call(api.GET_METADATA, pb.MetadataRequest()).tablet_servers[0]
        self.tablet = self._connect(f"{node.host}:{node.port}")
        self.known |= {each.api_key for each in self.tablet.hello().api_versions}

    def _connect(self, address: str) -> RawClient:
        client = RawClient(address)
        client.hello()
        if self.name is not None:
            assert client.authenticate(self.name, self.password).type == 0
        return client

    def client(self, kind: api.Api[Any, Any]) -> RawClient:
        return self.tablet if kind.key in _ON_TABLETS else self.coordinator

    def call(self, kind: api.Api[Any, Any], request: Message) -> Any:
        return self.client(kind).call(kind, request)

    def ids(self) -> Ids:
        def table(name: str) -> int:
            asked = pb.GetTableInfoRequest(table_path=path(name, DATABASE))
            return int(self.call(api.GET_TABLE_INFO, asked).table_id)

        partitions = self.call(
            api.LIST_PARTITION_INFOS,
            pb.ListPartitionInfosRequest(table_path=path("parted", DATABASE)),
        )
        partition = partitions.partitions_info[0].partition_id
        return Ids(table("log"), table("keyed"), table("parted"), partition)

    def decision(self, kind: api.Api[Any, Any], request: Message) -> str:
        """Return what became of a request: refused, or what the user sees."""
        assert request.IsInitialized(), kind.name
        try:
            answer = self.client(kind).ask(kind, request)
        except TimeoutError:
            raise AssertionError(f"no answer to {kind.name}: {request}") from None
        if answer.type != 0:
            return "refused" if answer.error[0] == ErrorCode.AUTHORIZATION_EXCEPTION else "allowed"
        message = kind.response.FromString(answer.body)
        if ErrorCode.AUTHORIZATION_EXCEPTION in _codes(message):
            return "refused"
        seen = _seen(message)
        return "allowed" if seen is None else f"sees {seen}"

    def close(self) -> None:
        self.coordinator.close()
        self.tablet.close()


def _codes(message: Message) -> Iterator[int]:
    """Yield the error codes of a message, at all levels."""
    for descriptor, value in message.ListFields():
        if descriptor.name == "error_code":
            yield value
        elif descriptor.message_type is not None:
            for part in value if descriptor.is_repeated else [value]:
                yield from _codes(part)


def _seen(message: Message) -> object:
    """Return what an answer shows, where it is what may be seen."""
    if isinstance(message, pb.ListDatabasesResponse):
        return sorted(message.database_name)
    if isinstance(message, pb.ListTablesResponse):
        return sorted(message.table_name)
    if isinstance(message, pb.DatabaseExistsResponse | pb.TableExistsResponse):
        return message.exists
    if isinstance(message, pb.MetadataResponse):
        tables = sorted(each.table_path.table_name for each in message.table_metadata)
        return tables, len(message.partition_metadata), len(message.tablet_servers)
    if isinstance(message, pb.GetProducerOffsetsResponse):
        return len(message.table_offsets)
    if isinstance(message, pb.ListAclsResponse):
        return sorted((each.resource_type, each.resource_name) for each in message.acl)
    return None
