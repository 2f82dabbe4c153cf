"""Questions about a table: its schemas, its partitions, and the offsets of its buckets.

The part of :class:`~fluss_df.client.admin.FlussAdmin` that scans and writers ask themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

from fluss_df.client.cluster import in_process_questions as direct_questions
from fluss_df.client.cluster.leader_requests import bucket_offsets, offsets_by_clock
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.table_requests import (
    checked,
    partition_infos_of,
    partition_infos_request,
    table_info_of,
    table_info_request,
)
from fluss_df.client.context import ClientContext
from fluss_df.client.runtime.awaitable import Ready, answered_at_once
from fluss_df.client.runtime.io_thread import IOThread
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, PartitionInfo, TableBucket, TablePath, nearest
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import path_message
from fluss_df.schema import Schema, TableInfo

# what servers answer to values of columns that are none of a table's partition columns
_WRONG_PARTITION = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
    ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
)


@contextlib.contextmanager
def _told_instead(error: FlussError) -> Iterator[None]:
    """Raise an error where a question that is to make it clearer fails itself."""
    try:
        yield
    except FlussError:
        raise error from None


class TableQuestions(Ready):
    """Asks a cluster about tables; coroutines run on the I/O thread, the others block."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    @property
    def io(self) -> IOThread:
        """The I/O thread of this process."""
        return self._cluster.io

    @property
    def _cluster(self) -> Cluster:
        return self._context.cluster

    # ---- tables

    def _known_table(self, table_path: TablePath) -> TableInfo | None:
        return direct_questions.table_info(self._cluster, table_path)

    @answered_at_once(_known_table)
    async def get_table_info(self, table_path: TablePath) -> TableInfo:
        """Return what is known of a table."""
        return await self.table_info(table_path)

    async def table_info(self, table_path: TablePath) -> TableInfo:
        """Coroutine of :meth:`get_table_info`, on the I/O thread."""
        path = checked(table_path)
        try:
            response = await self._cluster.request_any(api.GET_TABLE_INFO, table_info_request(path))
        except FlussError as error:
            if error.error_code == ErrorCode.TABLE_NOT_EXIST:
                raise await self._no_table(path) from None
            raise
        return table_info_of(path, response)

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
                f" (databases: {there}); create it, or correct its name",
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

    @contextlib.asynccontextmanager
    async def _clearer(
        self, path: TablePath, spec: Mapping[str, str] | None = None
    ) -> AsyncIterator[None]:
        """Make clearer what a server says of a table that is missing, or has other partitions.

        Servers answer with words of their own classes, some without the table's name.
        """
        try:
            yield
        except FlussError as error:
            code = error.error_code
            if code == ErrorCode.TABLE_NOT_EXIST:
                with _told_instead(error):
                    told = (await self._no_table(path)).message
                raise FlussError(told, code) from None
            if spec is None or code not in _WRONG_PARTITION:
                raise
            if not all(isinstance(name, str) for name in spec):
                raise
            with _told_instead(error):
                keys = (await self.table_info(path)).get_partition_keys()
            other = next((key for key in spec if key not in keys), None)
            if not keys:
                raise FlussError(f"table {path} has no partitions", code) from None
            missing = [key for key in keys if key not in spec]
            if other is None and missing and code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION:
                raise FlussError(
                    f"table {path}: the partition {dict(spec)} has no value of"
                    f" {', '.join(missing)}; give one of each partition column:"
                    f" {', '.join(keys)}",
                    code,
                ) from None
            if other is None:
                raise
            raise FlussError(
                f"table {path} has no partition column '{other}' (there are: {', '.join(keys)})"
                f"{nearest(other, keys)}",
                code,
            ) from None

    async def table_schema(self, table_path: TablePath, schema_id: int) -> Schema:
        """Return a schema of a table by its id; a coroutine of the I/O thread."""
        response = await self._cluster.request_any(
            api.GET_TABLE_SCHEMA,
            pb.GetTableSchemaRequest(table_path=path_message(table_path), schema_id=schema_id),
        )
        return Schema.from_json_bytes(response.schema_json)

    # ---- partitions

    def _known_partitions(
        self, table_path: TablePath, partition_spec: Mapping[str, str] | None = None
    ) -> list[PartitionInfo] | None:
        infos = direct_questions.partition_infos(self._cluster, table_path, partition_spec)
        self._cluster.learn_partitions(infos or ())
        return infos

    @answered_at_once(_known_partitions)
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
        request = partition_infos_request(table_path, partition_spec)
        async with self._clearer(table_path, partition_spec):
            response = await self._cluster.request_any(api.LIST_PARTITION_INFOS, request)
        infos = partition_infos_of(response)
        self._cluster.learn_partitions(infos)
        return infos

    # ---- offsets

    async def bucket_offsets(
        self, info: TableInfo, buckets: Iterable[TableBucket], spec: OffsetSpec
    ) -> dict[TableBucket, int]:
        """Return an offset of each bucket, of any partitions; a coroutine of the I/O thread."""
        return await bucket_offsets(self._cluster, info, buckets, spec)

    def _known_offsets(
        self, info: TableInfo, buckets: Sequence[TableBucket], spec: OffsetSpec
    ) -> dict[TableBucket, int] | None:
        return direct_questions.bucket_offsets(self._cluster, info, buckets, spec)

    @answered_at_once(_known_offsets)
    async def get_bucket_offsets(
        self, info: TableInfo, buckets: Sequence[TableBucket], spec: OffsetSpec
    ) -> dict[TableBucket, int]:
        """Return an offset of each bucket, of any partitions."""
        return await self.bucket_offsets(info, buckets, spec)

    def _known_by_clock(
        self, info: TableInfo, buckets: Sequence[TableBucket], timestamp_ms: int
    ) -> dict[TableBucket, int | None] | None:
        found = self._known_offsets(info, buckets, OffsetSpec.timestamp(timestamp_ms))
        return None if found is None else dict(found)

    @answered_at_once(_known_by_clock)
    async def get_offsets_by_clock(
        self, info: TableInfo, buckets: Sequence[TableBucket], timestamp_ms: int
    ) -> dict[TableBucket, int | None]:
        """Return the first offset of each bucket from a moment on, in milliseconds.

        None where the moment is still to come by the clock of the bucket's server.
        """
        return await offsets_by_clock(self._cluster, info, buckets, timestamp_ms)
