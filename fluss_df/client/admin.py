"""Databases, tables, partitions, offsets: :class:`FlussAdmin`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.acl import AclRequests
from fluss_df.client.cluster.leader_requests import bucket_row_counts
from fluss_df.client.cluster.table_creation import create_partition, create_table, drop_table
from fluss_df.client.cluster.table_requests import (
    changing,
    checked,
    columns_to_add,
    config_changes,
    offset_spec_of,
    partition_spec_message,
    path_message,
)
from fluss_df.client.runtime.awaitable import blocking
from fluss_df.client.table_questions import TableQuestions
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
    TableStats,
    check_name,
)
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.schema import Schema, TableDescriptor, TableInfo

if TYPE_CHECKING:
    from fluss_df.types import Column


class FlussAdmin(AclRequests):
    """Administration of a cluster; obtained from :meth:`FlussConnection.get_admin`.

    Every method blocks until the cluster has answered, and what it returns can also be awaited.
    Every method raises a :class:`FlussError` with the server's code when the cluster refuses.
    """

    # what scans ask, too
    get_table_info = TableQuestions.get_table_info
    list_partition_infos = TableQuestions.list_partition_infos
    get_bucket_offsets = TableQuestions.get_bucket_offsets
    get_offsets_by_clock = TableQuestions.get_offsets_by_clock

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
    async def alter_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        set_properties: Mapping[str, object] | None = None,
        reset_properties: Iterable[str] = (),
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Change the comment and the custom properties of a database (servers of 1.0 and later).

        Parameters
        ----------
        name
            The database.
        comment
            A new comment; None to keep the old one.
        set_properties, reset_properties
            Custom properties to set, and to remove.
        ignore_if_not_exists
            Whether a database that does not exist is no error.

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the server does not know this request.
        """
        request = pb.AlterDatabaseRequest(
            database_name=check_name(name, "database"),
            ignore_if_not_exists=ignore_if_not_exists,
            config_changes=config_changes(set_properties, reset_properties),
            comment=comment,
        )
        if comment is None and not request.config_changes:
            raise FlussError(
                f"nothing to change in database {name}: give comment, set_properties or"
                " reset_properties"
            )
        await self._cluster.request_coordinator(api.ALTER_DATABASE, request)

    @blocking
    async def drop_database(
        self, name: str, ignore_if_not_exists: bool = False, cascade: bool = True
    ) -> None:
        """Drop a database; with ``cascade`` its tables too, else it must be empty."""
        request = pb.DropDatabaseRequest(
            database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade
        )
        with changing():
            await self._cluster.request_coordinator(
                api.DROP_DATABASE, request, done_by_lost_try=ErrorCode.DATABASE_NOT_EXIST
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
        """Create a table, and wait until the cluster serves it.

        A table that the coordinator of a server of 0.9 missed, for which it never elects a leader,
        is created again.
        """
        await create_table(
            self._cluster,
            checked(table_path),
            table_descriptor,
            ignore_if_exists=bool(ignore_if_exists),
        )

    @blocking
    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its data."""
        await drop_table(
            self._cluster, checked(table_path), ignore_if_not_exists=ignore_if_not_exists
        )

    def get_table(self, table_path: TablePath) -> TableInfo:
        """Return what is known of a table; the older name of :meth:`get_table_info`."""
        return self.get_table_info(table_path)

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
            api.TABLE_EXISTS, pb.TableExistsRequest(table_path=path_message(checked(table_path)))
        )
        return response.exists

    @blocking
    async def get_table_schema(self, table_path: TablePath, schema_id: int | None = None) -> Schema:
        """Return a schema of a table, also one that it had before columns were added.

        Parameters
        ----------
        table_path
            The table.
        schema_id
            From 1 to the ``schema_id`` of :meth:`get_table_info`; None for the newest.

        Raises
        ------
        FlussError
            ``SCHEMA_NOT_EXIST`` for an id that the table never had, naming those it had.
        """
        path = checked(table_path)
        if schema_id is None:
            return (await self.table_info(path)).schema
        newest = (await self.table_info(path)).schema_id
        if not 1 <= schema_id <= newest:
            raise FlussError(
                f"table {path} has no schema {schema_id!r}: its schemas are 1 to {newest}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        return await self.table_schema(path, schema_id)

    @blocking
    async def alter_table(
        self,
        table_path: TablePath,
        *,
        add_columns: pa.Schema | Sequence[Column] | None = None,
        set_properties: Mapping[str, object] | None = None,
        reset_properties: Iterable[str] = (),
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add columns to a table, and change its properties.

        Tables that are open keep the columns that they were opened with.

        Parameters
        ----------
        table_path
            The table.
        add_columns
            Columns that are added behind the others, as an Arrow schema or as columns with types
            and comments of Fluss; they must be nullable, and are null in the rows that are there.
        set_properties
            Properties to set: those that begin with ``table.`` are Fluss's own, and only some of
            them can be changed; all others are custom properties.
        reset_properties
            Properties to set back to their default, and custom properties to remove.
        ignore_if_not_exists
            Whether a table that does not exist is no error.

        Raises
        ------
        FlussError
            ``INVALID_ALTER_TABLE_EXCEPTION`` or ``INVALID_CONFIG_EXCEPTION`` when the server
            refuses a change; ``UNSUPPORTED_VERSION`` when it does not know this request.

        Examples
        --------
        >>> admin.alter_table(  # doctest: +SKIP
        ...     TablePath("fluss", "events"), add_columns=pa.schema([("source", pa.string())])
        ... )
        """
        path = checked(table_path)
        request = pb.AlterTableRequest(
            table_path=path_message(path),
            ignore_if_not_exists=ignore_if_not_exists,
            config_changes=config_changes(set_properties, reset_properties),
            add_columns=columns_to_add(path, add_columns),
        )
        if not request.config_changes and not request.add_columns:
            raise FlussError(
                f"nothing to change in table {path}: give add_columns, set_properties or"
                " reset_properties"
            )
        with changing():
            await self._cluster.request_coordinator(api.ALTER_TABLE, request)

    @blocking
    async def get_table_stats(
        self, table_path: TablePath, partition_name: str | None = None
    ) -> TableStats:
        """Return how many rows a table has, as its servers count them.

        Parameters
        ----------
        table_path
            The table.
        partition_name
            One partition of it; None for all.

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the servers do not know this request.
        """
        info = await self.table_info(table_path)
        partitions: list[int | None] = [None]
        if partition_name is not None:
            partitions = [(await self._partition(info, partition_name)).partition_id]
        elif info.is_partitioned():
            partitions = [p.partition_id for p in await self.partition_infos(info.table_path)]
        count_of = functools.partial(self._cluster.buckets_of, info)
        buckets = [
            TableBucket(info.table_id, bucket, partition)
            for partition in partitions
            for bucket in range(count_of(partition))
        ]
        return TableStats(await bucket_row_counts(self._cluster, info, buckets))

    # ---- partitions

    @blocking
    async def create_partition(
        self,
        table_path: TablePath,
        partition_spec: Mapping[str, str],
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a partition, given the value of each partition column."""
        await create_partition(
            self._cluster, checked(table_path), partition_spec, ignore_if_exists=ignore_if_exists
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
                table_path=path_message(checked(table_path)),
                partition_spec=partition_spec_message(partition_spec),
                ignore_if_not_exists=ignore_if_not_exists,
            ),
            done_by_lost_try=ErrorCode.PARTITION_NOT_EXISTS,
        )

    async def _partition(self, info: TableInfo, name: str) -> PartitionInfo:
        partitions = {p.partition_name: p for p in await self.partition_infos(info.table_path)}
        partition = partitions.get(name)
        if partition is None:
            there = ", ".join(list(partitions)[:20]) or "none"
            raise FlussError(
                f"table {info.table_path} has no partition '{name}' (there are: {there})",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return partition

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
        spec = offset_spec_of(offset_spec, offset_type, timestamp)
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
        partition = await self._partition(info, partition_name)
        spec = offset_spec_of(offset_spec, offset_type, timestamp)
        buckets = [
            TableBucket(info.table_id, bucket, partition.partition_id) for bucket in bucket_ids
        ]
        offsets = await self.bucket_offsets(info, buckets, spec)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    # ---- the rest

    @blocking
    async def get_latest_lake_snapshot(
        self, table_path: TablePath, *, readable: bool = True
    ) -> LakeSnapshot:
        """Return the newest snapshot of a table in the data lake.

        Parameters
        ----------
        table_path
            The table.
        readable
            False for the newest one even where rows of it lie where no reader looks, as those of a
            Paimon table with deletion vectors do until they are compacted.
        """
        request = pb.GetLakeSnapshotRequest(table_path=path_message(checked(table_path)))
        if readable:
            request.readable = True
        response = await self._cluster.request_any(api.GET_LAKE_SNAPSHOT, request)
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
