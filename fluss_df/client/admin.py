"""Databases, tables, partitions, offsets: :class:`FlussAdmin`."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fluss_df.client.cluster import path_message
from fluss_df.client.facade import blocking
from fluss_df.client.retry import STALE_METADATA, Backoff, is_transient
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import (
    DatabaseDescriptor,
    DatabaseInfo,
    LakeSnapshot,
    OffsetSpec,
    PartitionInfo,
    ServerNode,
    TableBucket,
    TablePath,
    check_name,
)
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.frames import server_error
from fluss_df.schema import Schema, TableDescriptor, TableInfo

if TYPE_CHECKING:
    from fluss_df.client.cluster import Cluster
    from fluss_df.client.connection import FlussConnection
    from fluss_df.client.io_thread import IOThread

# Servers of 0.9.1 learn of a new table and of its first partition on two ways. Where the partition
# comes first, by a few milliseconds, their coordinator elects no leader for any table any more,
# until it is restarted. So partitions keep this distance from the creation of their table.
_PARTITION_AFTER_TABLE_S = 0.25

# offsets of at most this many partitions are asked for at once
_PARALLEL_OFFSET_REQUESTS = 16


# when this process created partitioned tables, of the last moment
_created: dict[TablePath, float] = {}


def _note_created(path: TablePath) -> None:
    now = time.monotonic()
    for old in [p for p, at in _created.items() if now - at > _PARTITION_AFTER_TABLE_S]:
        _created.pop(old, None)
    _created[path] = now


async def _keep_distance(path: TablePath) -> None:
    at = _created.get(path)
    if at is not None:
        await asyncio.sleep(at + _PARTITION_AFTER_TABLE_S - time.monotonic())


def _checked(path: TablePath) -> TablePath:
    return TablePath.parse(path)


def _partition_spec(spec: Mapping[str, str]) -> pb.PartitionSpec:
    if not isinstance(spec, Mapping):
        raise FlussError(
            f"invalid partition {spec!r}: expected a dict of column to value",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    for value in spec.values():
        check_name(value, "partition")
    return pb.PartitionSpec(
        partition_key_values=[pb.KeyValue(key=key, value=value) for key, value in spec.items()]
    )


def _offset_spec(spec: OffsetSpec | int | None, kind: str | None, ts: int | None) -> OffsetSpec:
    """Return the offset asked for, in each of the ways that clients spell it."""
    if isinstance(spec, OffsetSpec):
        return spec
    name = str(kind if kind is not None else spec).lower()
    if name in ("earliest", "0"):
        return OffsetSpec.earliest()
    if name in ("latest", "1"):
        return OffsetSpec.latest()
    if name in ("timestamp", "2") and ts is not None:
        return OffsetSpec.timestamp(ts)
    raise FlussError(
        f"invalid offset {name!r}: expected OffsetSpec.earliest(), OffsetSpec.latest() or"
        " OffsetSpec.timestamp(ms)"
    )


class FlussAdmin:
    """Administration of a cluster; obtained from :meth:`FlussConnection.get_admin`.

    Every method blocks until the cluster has answered, and what it returns can also be awaited.
    Every method raises a :class:`FlussError` with the server's code when the cluster refuses.
    """

    def __init__(self, connection: FlussConnection) -> None:
        self._connection = connection

    @property
    def io(self) -> IOThread:
        """The I/O thread of this process."""
        return self._cluster.io

    @property
    def _cluster(self) -> Cluster:
        return self._connection.cluster

    def __await__(self):  # type: ignore[no-untyped-def]
        return self
        yield

    # ---- databases

    @blocking
    async def create_database(
        self,
        name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        check_name(name, "database")
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore_if_exists)
        if database_descriptor is not None:
            request.database_json = database_descriptor.to_json()
        await self._cluster.request_coordinator(
            api.CREATE_DATABASE, request, done_by_lost_try=ErrorCode.DATABASE_ALREADY_EXIST
        )

    @blocking
    async def drop_database(
        self, name: str, ignore_if_not_exists: bool = False, cascade: bool = True
    ) -> None:
        """Drop a database; with ``cascade`` its tables too, else it must be empty."""
        await self._cluster.request_coordinator(
            api.DROP_DATABASE,
            pb.DropDatabaseRequest(
                database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade
            ),
            done_by_lost_try=ErrorCode.DATABASE_NOT_EXIST,
        )

    @blocking
    async def list_databases(self) -> list[str]:
        """Return the names of all databases, sorted."""
        response = await self._cluster.request_any(api.LIST_DATABASES, pb.ListDatabasesRequest())
        return sorted(response.database_name)

    @blocking
    async def database_exists(self, name: str) -> bool:
        """Return whether there is such a database."""
        response = await self._cluster.request_any(
            api.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name=name)
        )
        return response.exists

    @blocking
    async def get_database_info(self, name: str) -> DatabaseInfo:
        """Return what is known of a database."""
        response = await self._cluster.request_any(
            api.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=name)
        )
        return DatabaseInfo(
            name,
            DatabaseDescriptor.from_json(response.database_json),
            response.created_time,
            response.modified_time,
        )

    # ---- tables

    @blocking
    async def create_table(
        self,
        table_path: TablePath,
        table_descriptor: TableDescriptor,
        ignore_if_exists: bool | None = False,
    ) -> None:
        """Create a table."""
        request = pb.CreateTableRequest(
            table_path=path_message(_checked(table_path)),
            table_json=table_descriptor.to_json(),
            ignore_if_exists=bool(ignore_if_exists),
        )
        await self._cluster.request_coordinator(
            api.CREATE_TABLE, request, done_by_lost_try=ErrorCode.TABLE_ALREADY_EXIST
        )
        if table_descriptor.partition_keys:
            _note_created(_checked(table_path))

    @blocking
    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its data."""
        await self._cluster.request_coordinator(
            api.DROP_TABLE,
            pb.DropTableRequest(
                table_path=path_message(_checked(table_path)),
                ignore_if_not_exists=ignore_if_not_exists,
            ),
            done_by_lost_try=ErrorCode.TABLE_NOT_EXIST,
        )

    @blocking
    async def get_table_info(self, table_path: TablePath) -> TableInfo:
        """Return what is known of a table."""
        return await self.table_info(table_path)

    @blocking
    async def get_table(self, table_path: TablePath) -> TableInfo:
        """Return what is known of a table; the older name of :meth:`get_table_info`."""
        return await self.table_info(table_path)

    async def table_info(self, table_path: TablePath) -> TableInfo:
        """Coroutine of :meth:`get_table_info`, on the I/O thread."""
        path = _checked(table_path)
        try:
            response = await self._cluster.request_any(
                api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path_message(path))
            )
        except FlussError as error:
            if error.error_code == ErrorCode.TABLE_NOT_EXIST:
                raise await self._no_table(path) from None
            raise
        return TableInfo(
            table_path=path,
            table_id=response.table_id,
            schema_id=response.schema_id,
            descriptor=TableDescriptor.from_json(response.table_json),
            created_time=response.created_time,
            modified_time=response.modified_time,
            remote_data_dir=response.remote_data_dir or None,
        )

    async def _no_table(self, path: TablePath) -> FlussError:
        """Say which of database and table is missing, and what there is instead."""
        exists = await self._cluster.request_any(
            api.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name=path.database_name)
        )
        if not exists.exists:
            response = await self._cluster.request_any(
                api.LIST_DATABASES, pb.ListDatabasesRequest()
            )
            there = ", ".join(sorted(response.database_name)) or "none"
            return FlussError(
                f"table {path} does not exist: there is no database '{path.database_name}'"
                f" (databases: {there})",
                ErrorCode.DATABASE_NOT_EXIST,
            )
        tables = await self._cluster.request_any(
            api.LIST_TABLES, pb.ListTablesRequest(database_name=path.database_name)
        )
        names = sorted(tables.table_name)
        there = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "none"
        return FlussError(
            f"table {path} does not exist (tables of '{path.database_name}': {there})",
            ErrorCode.TABLE_NOT_EXIST,
        )

    @blocking
    async def list_tables(self, database_name: str) -> list[str]:
        """Return the names of a database's tables, sorted."""
        response = await self._cluster.request_any(
            api.LIST_TABLES, pb.ListTablesRequest(database_name=database_name)
        )
        return sorted(response.table_name)

    @blocking
    async def table_exists(self, table_path: TablePath) -> bool:
        """Return whether there is such a table."""
        response = await self._cluster.request_any(
            api.TABLE_EXISTS, pb.TableExistsRequest(table_path=path_message(_checked(table_path)))
        )
        return response.exists

    async def table_schema(self, table_path: TablePath, schema_id: int) -> Schema:
        """Return a schema of a table by its id; a coroutine of the I/O thread."""
        response = await self._cluster.request_any(
            api.GET_TABLE_SCHEMA,
            pb.GetTableSchemaRequest(table_path=path_message(table_path), schema_id=schema_id),
        )
        return Schema.from_json_bytes(response.schema_json)

    # ---- partitions

    @blocking
    async def create_partition(
        self,
        table_path: TablePath,
        partition_spec: Mapping[str, str],
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a partition, given the value of each partition column."""
        await self.make_partition(table_path, partition_spec, ignore_if_exists)

    async def make_partition(
        self, table_path: TablePath, partition_spec: Mapping[str, str], ignore_if_exists: bool
    ) -> None:
        """Coroutine of :meth:`create_partition`, on the I/O thread."""
        await _keep_distance(_checked(table_path))
        await self._cluster.request_coordinator(
            api.CREATE_PARTITION,
            pb.CreatePartitionRequest(
                table_path=path_message(_checked(table_path)),
                partition_spec=_partition_spec(partition_spec),
                ignore_if_exists=ignore_if_exists,
            ),
            done_by_lost_try=ErrorCode.PARTITION_ALREADY_EXISTS,
        )

    @blocking
    async def drop_partition(
        self,
        table_path: TablePath,
        partition_spec: Mapping[str, str],
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Drop a partition with all its data."""
        await self._cluster.request_coordinator(
            api.DROP_PARTITION,
            pb.DropPartitionRequest(
                table_path=path_message(_checked(table_path)),
                partition_spec=_partition_spec(partition_spec),
                ignore_if_not_exists=ignore_if_not_exists,
            ),
            done_by_lost_try=ErrorCode.PARTITION_NOT_EXISTS,
        )

    @blocking
    async def list_partition_infos(
        self, table_path: TablePath, partition_spec: Mapping[str, str] | None = None
    ) -> list[PartitionInfo]:
        """Return the partitions of a table, sorted by name.

        Parameters
        ----------
        table_path
            A partitioned table.
        partition_spec
            Values of some partition columns, to get only the partitions that have them.
        """
        return await self.partition_infos(table_path, partition_spec)

    async def partition_infos(
        self, table_path: TablePath, partition_spec: Mapping[str, str] | None = None
    ) -> list[PartitionInfo]:
        """Coroutine of :meth:`list_partition_infos`, on the I/O thread."""
        request = pb.ListPartitionInfosRequest(table_path=path_message(_checked(table_path)))
        if partition_spec is not None:
            request.partial_partition_spec.CopyFrom(_partition_spec(partition_spec))
        response = await self._cluster.request_any(api.LIST_PARTITION_INFOS, request)
        infos = []
        for partition in response.partitions_info:
            pairs = partition.partition_spec.partition_key_values
            name = "$".join(pair.value for pair in pairs)
            spec = {pair.key: pair.value for pair in pairs}
            infos.append(PartitionInfo(partition.partition_id, name, spec))
        return sorted(infos, key=lambda info: info.partition_name)

    # ---- offsets

    @blocking
    async def list_offsets(
        self,
        table_path: TablePath,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | int | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Return an offset of each bucket of a table without partitions.

        Parameters
        ----------
        table_path
            The table.
        bucket_ids
            Buckets, from 0.
        offset_spec
            Which offset.
        offset_type, timestamp
            The older way to say it: "earliest", "latest" or "timestamp", the time in ms.
        """
        info = await self.table_info(table_path)
        if info.is_partitioned():
            raise FlussError(
                f"table {info.table_path} has partitions: use list_partition_offsets"
                " and name the partition",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        buckets = [TableBucket(info.table_id, bucket) for bucket in bucket_ids]
        offsets = await self.bucket_offsets(info, buckets, spec)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    @blocking
    async def list_partition_offsets(
        self,
        table_path: TablePath,
        partition_name: str,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | int | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Return an offset of each bucket of a partition; like :meth:`list_offsets`."""
        info = await self.table_info(table_path)
        partitions = {p.partition_name: p for p in await self.partition_infos(table_path)}
        partition = partitions.get(partition_name)
        if partition is None:
            there = ", ".join(list(partitions)[:20]) or "none"
            raise FlussError(
                f"table {info.table_path} has no partition '{partition_name}' (there are: {there})",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        buckets = [
            TableBucket(info.table_id, bucket, partition.partition_id) for bucket in bucket_ids
        ]
        offsets = await self.bucket_offsets(info, buckets, spec)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    async def bucket_offsets(
        self, info: TableInfo, buckets: Iterable[TableBucket], spec: OffsetSpec
    ) -> dict[TableBucket, int]:
        """Return an offset of each bucket, of any partitions; a coroutine of the I/O thread.

        Leaders that moved or are not yet elected are waited for, up to ``retry-timeout``.
        """
        todo = list(buckets)
        for bucket in todo:
            if not 0 <= bucket.bucket_id < info.num_buckets:
                raise FlussError(
                    f"table {info.table_path} has no bucket {bucket.bucket_id}:"
                    f" its buckets are 0 to {info.num_buckets - 1}",
                    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
                )
        result: dict[TableBucket, int] = {}
        backoff = Backoff(self._cluster.config.retry_timeout_ms)
        limit = asyncio.Semaphore(_PARALLEL_OFFSET_REQUESTS)
        while True:
            await self._learn_leaders(info, todo)
            groups: dict[tuple[int, int | None], list[TableBucket]] = defaultdict(list)
            for bucket in todo:
                node = self._cluster.known_leader(bucket)
                groups[(-1 if node is None else node.id), bucket.partition_id].append(bucket)
            problems = await asyncio.gather(
                *(self._ask_offsets(info, group, spec, result, limit) for group in groups.values())
            )
            problem = next((found for found in problems if found is not None), None)
            if problem is None:
                return result
            if backoff.expired:
                raise problem
            self._cluster.note_retry(problem)
            await asyncio.sleep(backoff.next_pause())
            todo = [bucket for bucket in todo if bucket not in result]

    async def _learn_leaders(self, info: TableInfo, buckets: Sequence[TableBucket]) -> None:
        """Ask for all unknown leaders in one request."""
        unknown = [b for b in buckets if self._cluster.known_leader(b) is None]
        if unknown:
            partitions = {b.partition_id for b in unknown if b.partition_id is not None}
            await self._cluster.refresh([info.table_path], sorted(partitions))

    async def _ask_offsets(
        self,
        info: TableInfo,
        buckets: Sequence[TableBucket],
        spec: OffsetSpec,
        result: dict[TableBucket, int],
        limit: asyncio.Semaphore,
    ) -> FlussError | None:
        """Fill in the offsets of buckets with one leader; return what may succeed later."""
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=spec.type,
            table_id=info.table_id,
            bucket_id=[bucket.bucket_id for bucket in buckets],
        )
        if buckets[0].partition_id is not None:
            request.partition_id = buckets[0].partition_id
        if spec.timestamp_ms is not None:
            request.start_timestamp = spec.timestamp_ms
        transient: FlussError | None = None
        try:
            async with limit:
                response = await self._cluster.request_leader(
                    info.table_path, buckets[0], api.LIST_OFFSETS, request
                )
        except FlussError as error:
            if not is_transient(error):
                raise
            for bucket in buckets:
                self._cluster.forget_leader(bucket)
            return error
        by_id = {bucket.bucket_id: bucket for bucket in buckets}
        for answer in response.buckets_resp:
            bucket = by_id[answer.bucket_id]
            if not answer.error_code:
                result[bucket] = answer.offset
                continue
            refusal = server_error(
                answer.error_code,
                answer.error_message,
                f"offset of bucket {bucket.bucket_id} of table {info.table_path}",
            )
            if not is_transient(refusal) and refusal.error_code not in STALE_METADATA:
                raise refusal
            self._cluster.forget_leader(bucket)
            transient = refusal
        return transient

    # ---- the rest

    @blocking
    async def get_latest_lake_snapshot(self, table_path: TablePath) -> LakeSnapshot:
        """Return the newest snapshot of a table in the data lake."""
        response = await self._cluster.request_any(
            api.GET_LAKE_SNAPSHOT,
            pb.GetLakeSnapshotRequest(table_path=path_message(_checked(table_path))),
        )
        offsets = {}
        for entry in response.bucket_snapshots:
            partition = entry.partition_id if entry.HasField("partition_id") else None
            bucket = TableBucket(response.table_id, entry.bucket_id, partition)
            offsets[bucket] = entry.log_offset
        return LakeSnapshot(response.snapshot_id, offsets)

    @blocking
    async def get_server_nodes(self) -> list[ServerNode]:
        """Return the servers that are alive, the coordinator first."""
        return await self._cluster.server_nodes()
