"""Which right each request needs: one table, and no request without a rule.

Most rules name the rights that a request needs, and it is refused where one is missing. Some
requests are answered for what the asking user may see. A request that is not in the table is
refused to everyone: one that is forgotten lets nobody in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from fluss_df.engine.access.authorizer import Rights, denied
from fluss_df.engine.files.workers import paced
from fluss_df.engine.tables.buckets import unknown_partition, unknown_table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import DEFAULT_DATABASE
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import OperationType, Resource
from fluss_df.protocol.message_parts import answer_to, set_error

_ALTER: Final = OperationType.ALTER
_CREATE: Final = OperationType.CREATE
_DESCRIBE: Final = OperationType.DESCRIBE
_DROP: Final = OperationType.DROP
_READ: Final = OperationType.READ
_WRITE: Final = OperationType.WRITE

Handler = Callable[..., Message]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rights that a request needs.

    ``text`` says them in words, as in the table of ``docs/access.md``. ``check`` raises where a
    right is missing. It is None where everyone may ask, where the rights only change the answer, or
    where the handler checks. ``view`` answers by the handler, for what the asking user may see;
    None for all of it.
    """

    text: str
    check: Callable[[Rights, Any], None] | None = None
    view: Callable[[Rights, Handler, Any], Message] | None = None


def _table(path: pb.PathOfTable) -> Resource:
    return Resource.table(path.database_name, path.table_name)


def _on_cluster(operation: OperationType) -> Rule:
    return Rule(
        f"{operation.name} on the cluster",
        lambda rights, _: rights.require(operation, Resource.cluster()),
    )


def _on_database(operation: OperationType) -> Rule:
    return Rule(
        f"{operation.name} on the database",
        lambda rights, asked: rights.require(operation, Resource.database(asked.database_name)),
    )


def _on_table(operation: OperationType) -> Rule:
    return Rule(
        f"{operation.name} on the table",
        lambda rights, asked: rights.require(operation, _table(asked.table_path)),
    )


def _by_id(operation: OperationType) -> Rule:
    return Rule(
        f"{operation.name} on the table",
        lambda rights, asked: rights.require_table(operation, asked.table_id),
    )


def _each(operation: OperationType, ids: Callable[[Any], Iterable[int]]) -> Rule:
    def check(rights: Rights, asked: Any) -> None:
        for table_id in dict.fromkeys(paced(ids(asked))):
            rights.require_table(operation, table_id)

    return Rule(f"{operation.name} on each table", check)


def _in_handler(text: str) -> Rule:
    """Return the rule of a request that is checked where its bytes are read."""
    return Rule(text)


# ---- rules of their own


def _create_table(rights: Rights, asked: pb.CreateTableRequest) -> None:
    rights.require(_CREATE, Resource.database(asked.table_path.database_name))


def _init_writer(rights: Rights, asked: pb.InitWriterRequest) -> None:
    if not any(rights.may(_WRITE, _table(path)) for path in paced(asked.table_path)):
        raise denied(
            f"Principal {rights.principal} is not authorized: a writer needs the right"
            " WRITE on one of its tables, on a database of them, or on the cluster"
        )


def _register_producer(rights: Rights, asked: pb.RegisterProducerOffsetsRequest) -> None:
    catalog = rights.authorizer.catalog
    for table_id in dict.fromkeys(paced(each.table_id for each in asked.table_offsets)):
        # nobody's rights are looked at for a table that is not there, and offsets are kept
        if catalog.table_by_id(table_id) is None:
            raise unknown_table(table_id)
        rights.require_table(_WRITE, table_id)
    if not asked.table_offsets and not any(
        rights.may(_WRITE, Resource.table(table.path.database_name, table.path.table_name))
        for table in paced(catalog.all_tables())
    ):
        rights.require(_WRITE, Resource.cluster())


def _alter_configs(rights: Rights, asked: pb.AlterClusterConfigsRequest) -> None:
    if asked.alter_configs:
        rights.require(_ALTER, Resource.cluster())


# ---- answers for what may be seen


def _databases(rights: Rights, handler: Handler, asked: pb.ListDatabasesRequest) -> Message:
    answer = handler(asked)
    assert isinstance(answer, pb.ListDatabasesResponse)

    def seen(name: str) -> bool:
        return rights.may(_DESCRIBE, Resource.database(name))

    return pb.ListDatabasesResponse(
        database_name=filter(seen, paced(answer.database_name)),
        database_summary=(one for one in paced(answer.database_summary) if seen(one.database_name)),
    )


def _database_exists(rights: Rights, handler: Handler, asked: pb.DatabaseExistsRequest) -> Message:
    name = asked.database_name
    # catalogs of Flink ask for the default one before anything else
    if name == DEFAULT_DATABASE or rights.may(_DESCRIBE, Resource.database(name)):
        return handler(asked)
    return pb.DatabaseExistsResponse(exists=False)


def _tables(rights: Rights, handler: Handler, asked: pb.ListTablesRequest) -> Message:
    database = asked.database_name
    try:
        answer = handler(asked)
    except FlussError as error:
        # a database that may not be seen has no tables, whether it exists or not
        missing = error.error_code == ErrorCode.DATABASE_NOT_EXIST
        if missing and not rights.may(_DESCRIBE, Resource.database(database)):
            return pb.ListTablesResponse()
        raise
    assert isinstance(answer, pb.ListTablesResponse)
    names = paced(answer.table_name)
    seen = [name for name in names if rights.may(_DESCRIBE, Resource.table(database, name))]
    return pb.ListTablesResponse(table_name=seen)


def _table_exists(rights: Rights, handler: Handler, asked: pb.TableExistsRequest) -> Message:
    if rights.may(_DESCRIBE, _table(asked.table_path)):
        return handler(asked)
    return pb.TableExistsResponse(exists=False)


def _metadata(rights: Rights, handler: Handler, asked: pb.MetadataRequest) -> Message:
    for partition_id in paced(asked.partitions_id):
        found = rights.authorizer.catalog.partition_by_id(partition_id)
        if found is not None and rights.refusal(_DESCRIBE, found[0]) is not None:
            # the same error as for a partition that does not exist
            raise unknown_partition(partition_id)
    seen = pb.MetadataRequest()
    seen.CopyFrom(asked)
    del seen.table_path[:]
    del seen.partitions_path[:]
    tables = paced(asked.table_path)
    seen.table_path.extend(path for path in tables if rights.may(_DESCRIBE, _table(path)))
    seen.partitions_path.extend(
        part
        for part in paced(asked.partitions_path)
        if rights.may(_DESCRIBE, Resource.table(part.database_name, part.table_name))
    )
    return handler(seen)


def _prefix_lookup(rights: Rights, handler: Handler, asked: pb.PrefixLookupRequest) -> Message:
    refusal = rights.refusal_by_id(_READ, asked.table_id)
    if refusal is None:
        return handler(asked)
    # Fluss's servers give the error for each bucket
    answer = pb.PrefixLookupResponse()
    for part in paced(asked.buckets_req):
        set_error(answer_to(answer, part), refusal)
    return answer


def _scan_kv(scanned_table: Callable[[bytes], int | None]) -> Rule:
    def view(rights: Rights, handler: Handler, asked: pb.ScanKvRequest) -> Message:
        # a scan goes on only while it may be begun
        table_id: int | None
        if asked.HasField("bucket_scan_req"):
            table_id = asked.bucket_scan_req.table_id
        else:
            table_id = scanned_table(asked.scanner_id)
        refusal = None if table_id is None else rights.refusal_by_id(_READ, table_id)
        if refusal is None:
            return handler(asked)
        return pb.ScanKvResponse(error_code=refusal.error_code, error_message=refusal.message)

    return Rule("READ on the table", view=view)


def _producer_offsets(
    rights: Rights, handler: Handler, asked: pb.GetProducerOffsetsRequest
) -> Message:
    answer = handler(asked)
    assert isinstance(answer, pb.GetProducerOffsetsResponse)
    table_of = rights.authorizer.catalog.table_by_id
    seen = [
        table
        for table in paced(answer.table_offsets)
        if table_of(table.table_id) is not None
        and rights.refusal_by_id(_READ, table.table_id) is None
    ]
    kept = pb.GetProducerOffsetsResponse(table_offsets=seen)
    if answer.HasField("producer_id"):
        kept.producer_id = answer.producer_id
        kept.expiration_time = answer.expiration_time
    return kept


EVERYONE: Final = Rule("none")


def rules(
    producer_tables: Callable[[str], Iterable[int]], scanned_table: Callable[[bytes], int | None]
) -> Mapping[int, Rule]:
    """Return the rule of each request, by its API key.

    ``producer_tables`` returns the ids of the tables that a producer has registered offsets of.
    ``scanned_table`` returns the id of the table that a scan of rows is of.
    """
    table: dict[api.Api[Any, Any], Rule] = {
        api.API_VERSIONS: EVERYONE,
        api.AUTHENTICATE: EVERYONE,
        # the token of a local folder is empty
        api.GET_FILESYSTEM_SECURITY_TOKEN: EVERYONE,
        api.CREATE_DATABASE: _on_cluster(_CREATE),
        api.ALTER_DATABASE: _on_database(_ALTER),
        api.DROP_DATABASE: _on_database(_DROP),
        api.LIST_DATABASES: Rule("lists what may be described", view=_databases),
        api.DATABASE_EXISTS: Rule("DESCRIBE on the database, else false", view=_database_exists),
        api.GET_DATABASE_INFO: _on_database(_DESCRIBE),
        api.CREATE_TABLE: Rule("CREATE on the database", _create_table),
        api.DROP_TABLE: _on_table(_DROP),
        api.ALTER_TABLE: _on_table(_ALTER),
        api.GET_TABLE_INFO: _on_table(_DESCRIBE),
        api.LIST_TABLES: Rule("lists what may be described", view=_tables),
        api.TABLE_EXISTS: Rule("DESCRIBE on the table, else false", view=_table_exists),
        api.GET_TABLE_SCHEMA: _on_table(_DESCRIBE),
        api.GET_METADATA: Rule("tells what may be described", view=_metadata),
        api.CREATE_PARTITION: _on_table(_WRITE),
        api.DROP_PARTITION: _on_table(_WRITE),
        api.LIST_PARTITION_INFOS: _on_table(_DESCRIBE),
        api.GET_LATEST_KV_SNAPSHOTS: _on_table(_DESCRIBE),
        api.GET_LAKE_SNAPSHOT: _on_table(_DESCRIBE),
        api.INIT_WRITER: Rule("WRITE on one of the tables", _init_writer),
        api.PRODUCE_LOG: _in_handler("WRITE on the table"),
        api.PUT_KV: _in_handler("WRITE on the table"),
        api.FETCH_LOG: _in_handler("READ on each table, whose buckets are refused else"),
        api.LOOKUP: _in_handler("READ on the table; WRITE where missing keys are inserted"),
        api.PREFIX_LOOKUP: Rule(
            "READ on the table, whose buckets are refused else", view=_prefix_lookup
        ),
        api.LIMIT_SCAN: _by_id(_READ),
        api.SCAN_KV: _scan_kv(scanned_table),
        api.GET_TABLE_STATS: _by_id(_READ),
        api.LIST_OFFSETS: _by_id(_DESCRIBE),
        api.GET_KV_SNAPSHOT_METADATA: _by_id(_DESCRIBE),
        api.LIST_KV_SNAPSHOTS: _by_id(_DESCRIBE),
        api.LIST_REMOTE_LOG_MANIFESTS: _by_id(_DESCRIBE),
        api.ACQUIRE_KV_SNAPSHOT_LEASE: _each(
            _READ, lambda asked: (each.table_id for each in asked.snapshots_to_lease)
        ),
        api.RELEASE_KV_SNAPSHOT_LEASE: _each(
            _READ, lambda asked: (each.table_id for each in asked.buckets_to_release)
        ),
        # READ on the tables of the lease, which are none
        api.DROP_KV_SNAPSHOT_LEASE: EVERYONE,
        api.REGISTER_PRODUCER_OFFSETS: Rule(
            "WRITE on each table; on any one where none is named", _register_producer
        ),
        api.GET_PRODUCER_OFFSETS: Rule("tells those of tables with READ", view=_producer_offsets),
        api.DELETE_PRODUCER_OFFSETS: _each(
            _WRITE, lambda asked: producer_tables(asked.producer_id)
        ),
        api.CREATE_ACLS: _in_handler("ALL on the database or the cluster"),
        api.LIST_ACLS: _in_handler("lists those of what may be described"),
        api.DROP_ACLS: _in_handler("ALL on the database or the cluster"),
        api.DESCRIBE_CLUSTER_CONFIGS: _on_cluster(_DESCRIBE),
        api.ALTER_CLUSTER_CONFIGS: Rule("ALTER on the cluster", _alter_configs),
        api.ADD_SERVER_TAG: _on_cluster(_ALTER),
        api.REMOVE_SERVER_TAG: _on_cluster(_ALTER),
        api.REBALANCE: _on_cluster(_WRITE),
        api.LIST_REBALANCE_PROGRESS: _on_cluster(_DESCRIBE),
        api.CANCEL_REBALANCE: _on_cluster(_WRITE),
        api.GET_CLUSTER_HEALTH: _on_cluster(_DESCRIBE),
        # Fluss's servers want no right here. So whoever may connect can make readers read files of
        # their choice, and learns the names of tables.
        api.LAKE_TIERING_HEARTBEAT: _on_cluster(_WRITE),
        api.PREPARE_LAKE_TABLE_SNAPSHOT: _each(
            _WRITE, lambda asked: (each.table_id for each in asked.bucket_offsets)
        ),
        api.COMMIT_LAKE_TABLE_SNAPSHOT: _each(
            _WRITE, lambda asked: (each.table_id for each in asked.lake_table_snapshot_metadata)
        ),
    }
    return {kind.key: rule for kind, rule in table.items()}


def guarded(rule: Rule | None, name: str, rights: Rights, handler: Handler) -> Handler:
    """Return a handler that answers a request only where the user may make it."""

    def answer(asked: Message, *more: object) -> Message:
        if rule is None:
            raise denied(f"{name} has no rule that says who may ask it: nobody may by TCP")
        if rule.check is not None:
            rule.check(rights, asked)
        if rule.view is not None:
            return rule.view(rights, lambda message: handler(message, *more), asked)
        return handler(asked, *more)

    return answer
