"""Connections, administration, tables and the builders of scanners and writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import fluss_df.client.connection as core_connection
import fluss_df.client.table as core_table
from fluss_df.aio.admin import FlussAdmin
from fluss_df.aio.bridge import Facade, giving, in_thread, io_coroutine, on_io, plain
from fluss_df.aio.keyed import TableLookup, TableUpsert
from fluss_df.aio.scanner import BatchScanner, LogScanner, SnapshotScanner
from fluss_df.aio.writer import AppendWriter
from fluss_df.config import Config
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.pushdown.predicate import Predicate


class TableScan(Facade[core_table.TableScan]):
    """Builds scanners; every method returns a new builder."""

    def project(self, indices: Sequence[int]) -> TableScan:
        """Read some columns only, by their index, in this order."""
        return TableScan(self._core.project(indices))

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Read some columns only, by their name, in this order."""
        return TableScan(self._core.project_by_name(names))

    def filter(self, predicate: Predicate) -> TableScan:
        """Read only rows for which a predicate of :func:`col` is true."""
        return TableScan(self._core.filter(predicate))

    def limit(self, n: int) -> TableScan:
        """Read the last ``n`` rows of a bucket, with :meth:`create_bucket_batch_scanner`."""
        return TableScan(self._core.limit(n))

    def with_fixed_schema(self, fixed_schema: bool) -> TableScan:
        """Give batches of older schemas the columns that the table was opened with.

        This is always done; ``False`` is refused.
        """
        return TableScan(self._core.with_fixed_schema(fixed_schema))

    async def create_log_scanner(self) -> LogScanner:
        """Return a scanner of single records, for :meth:`LogScanner.poll`."""
        return LogScanner(self._core.create_log_scanner())

    async def create_record_batch_log_scanner(self) -> LogScanner:
        """Return a scanner of Arrow batches, for ``poll_arrow`` and ``to_arrow``."""
        return LogScanner(self._core.create_record_batch_log_scanner())

    create_snapshot_scanner = giving(SnapshotScanner, core_table.TableScan.create_snapshot_scanner)

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """Return a scanner of the last rows of one bucket; needs :meth:`limit`."""
        return BatchScanner(self._core.create_bucket_batch_scanner(bucket))


class TableAppend(Facade[core_table.TableAppend]):
    """Builds append writers."""

    create_writer = giving(AppendWriter, core_table.TableAppend.create_writer)


class FlussTable(Facade[core_table.FlussTable]):
    """A table of a cluster; obtained from :meth:`FlussConnection.get_table`."""

    new_scan = giving(TableScan, core_table.FlussTable.new_scan)
    new_append = giving(TableAppend, core_table.FlussTable.new_append)
    new_upsert = giving(TableUpsert, core_table.FlussTable.new_upsert)
    new_lookup = giving(TableLookup, core_table.FlussTable.new_lookup)
    get_table_info = plain(core_table.FlussTable.get_table_info)
    get_table_path = plain(core_table.FlussTable.get_table_path)
    has_primary_key = plain(core_table.FlussTable.has_primary_key)

    @property
    def arrow_schema(self) -> Any:
        """The columns as a :class:`pyarrow.Schema`."""
        return self._core.arrow_schema


class FlussConnection(Facade[core_connection.FlussConnection]):
    """A connection to a Fluss cluster, for any number of tasks, loops and threads.

    Obtain one from :meth:`create`; close it with :meth:`close`, or use it in an ``async with``
    statement, which flushes its writers and reports what was not acknowledged.

    Examples
    --------
    >>> async def count() -> int:
    ...     async with await FlussConnection.create(Config()) as conn:
    ...         return len(await conn.get_admin().list_databases())
    """

    @staticmethod
    async def create(config: Config | Mapping[str, Any] | str) -> FlussConnection:
        """Connect to a cluster.

        Raises
        ------
        FlussError
            ``NETWORK_EXCEPTION`` when no bootstrap server can be reached,
            ``AUTHENTICATE_EXCEPTION`` when user or password are wrong.
        """
        core = core_connection.unconnected(config)
        await io_coroutine(core._bootstrap.coroutine(core))  # type: ignore[attr-defined]
        return FlussConnection(core)

    get_admin = giving(FlussAdmin, core_connection.FlussConnection.get_admin)

    async def get_table(self, table_path: TablePath | str) -> FlussTable:
        """Open a table.

        Raises
        ------
        FlussError
            ``TABLE_NOT_EXIST`` or ``DATABASE_NOT_EXIST``, naming what there is.
        """
        return FlussTable(await _get_table(self, table_path))

    async def close(self) -> None:
        """Flush the writers, then give up the sockets; a second call does nothing.

        Raises
        ------
        FlussError
            When rows could not be written; the connection is closed all the same.
        """
        await in_thread(self._core.close)

    async def __aenter__(self) -> FlussConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # a plain `with` works, too; of all methods here only __exit__ waits in the caller's thread, as
    # it cannot be awaited
    def __enter__(self) -> FlussConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()


_get_table = on_io(core_connection.FlussConnection.get_table)
