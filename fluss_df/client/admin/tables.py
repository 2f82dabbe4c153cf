"""Tables and their partitions: the part of the admin about them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.admin.checks import descriptor_of, unicode, whole
from fluss_df.client.cluster.leader_requests import bucket_row_counts
from fluss_df.client.cluster.table_creation import create_partition, create_table, drop_table
from fluss_df.client.cluster.table_requests import (
    changing,
    checked,
    columns_to_add,
    config_changes,
    partition_spec_message,
)
from fluss_df.client.runtime.awaitable import blocking
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import PartitionInfo, TableBucket, TablePath, TableStats
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import path_message
from fluss_df.schema import Schema, TableDescriptor, TableInfo

if TYPE_CHECKING:
    from fluss_df.types import Column


class TableAdmin(TableQuestions):
    """Creates, changes, drops and lists tables and partitions."""

    @blocking
    async def create_table(
        self,
        table_path: TablePath,
        table_descriptor: TableDescriptor,
        ignore_if_exists: bool | None = False,
    ) -> None:
        """Create a table, and wait until the cluster serves it.

        Coordinators of Fluss 0.9 sometimes miss a new table and never elect leaders for it. Such a
        table is dropped and created again.
        """
        path = checked(table_path)
        await create_table(
            self._cluster,
            path,
            descriptor_of(table_descriptor, path),
            ignore_if_exists=bool(ignore_if_exists),
        )

    @blocking
    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its data."""
        path = checked(table_path)
        async with self._clearer(path):
            await drop_table(self._cluster, path, ignore_if_not_exists=bool(ignore_if_not_exists))

    def get_table(self, table_path: TablePath) -> TableInfo:
        """Return what is known of a table; the older name of :meth:`get_table_info`."""
        return self.get_table_info(table_path)

    @blocking
    async def list_tables(self, database_name: str) -> list[str]:
        """Return the names of a database's tables, sorted."""
        response = await self._cluster.request_any(
            api.LIST_TABLES,
            pb.ListTablesRequest(database_name=unicode(database_name, "database name")),
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
        whole(schema_id, "schema_id")
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
            ignore_if_not_exists=bool(ignore_if_not_exists),
            config_changes=config_changes(set_properties, reset_properties),
            add_columns=columns_to_add(path, add_columns),
        )
        if not request.config_changes and not request.add_columns:
            raise FlussError(
                f"nothing to change in table {path}: give add_columns, set_properties or"
                " reset_properties"
            )
        async with self._clearer(path):
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
        path = checked(table_path)
        async with self._clearer(path, partition_spec):
            await create_partition(
                self._cluster, path, partition_spec, ignore_if_exists=ignore_if_exists
            )

    @blocking
    async def drop_partition(
        self,
        table_path: TablePath,
        partition_spec: Mapping[str, str],
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Drop a partition with all its data."""
        path = checked(table_path)
        request = pb.DropPartitionRequest(
            table_path=path_message(path),
            partition_spec=partition_spec_message(partition_spec),
            ignore_if_not_exists=bool(ignore_if_not_exists),
        )
        async with self._clearer(path, partition_spec):
            await self._cluster.request_coordinator(
                api.DROP_PARTITION, request, done_by_lost_try=ErrorCode.PARTITION_NOT_EXISTS
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
