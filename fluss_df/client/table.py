"""A table, and the builders of its scans and writers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.fetch.row_filter import RowFilter
from fluss_df.client.lookup.lookuper import TableLookup
from fluss_df.client.runtime.awaitable import Ready
from fluss_df.client.scan.batch_scanner import BatchScanner
from fluss_df.client.scan.change_scanner import ChangeTableScanner
from fluss_df.client.scan.limit_scanner import LimitScanner
from fluss_df.client.scan.log_scanner import LogScanner
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.client.write.append import AppendWriter, check_log_table
from fluss_df.client.write.upsert import TableUpsert
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket, TablePath, names_at, require_columns
from fluss_df.pushdown.predicate import Predicate
from fluss_df.record.change_tables import ChangeTable
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext


class FlussTable(Ready):
    """A table of a cluster; obtained from :meth:`FlussConnection.get_table`.

    Parameters
    ----------
    connection, info
        The table.
    changes
        Which virtual table of it this is, if any: these can be scanned, not written.

    Raises
    ------
    FlussError
        For ``$binlog`` of a table without primary key.
    """

    def __init__(
        self, connection: ClientContext, info: TableInfo, changes: ChangeTable | None = None
    ) -> None:
        if changes is ChangeTable.BINLOG and not info.has_primary_key():
            raise FlussError(
                f"table {info.table_path} has no primary key, and so no $binlog: "
                f"use {info.table_path}$changelog",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._connection = connection
        self._info = info
        self._changes = changes

    def _refuse_virtual(self, what: str) -> None:
        if self._changes is not None:
            raise FlussError(
                f"{self._info.table_path}{self._changes.value} is a virtual table, which can only "
                f"be scanned: {what} table {self._info.table_path}",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )

    def new_scan(self) -> TableScan:
        """Return a builder of scanners."""
        return TableScan(self._connection, self._info, self._changes)

    def new_append(self) -> TableAppend:
        """Return a builder of append writers, for log tables.

        Raises
        ------
        FlussError
            When the table has a primary key.
        """
        self._refuse_virtual("append to")
        check_log_table(self._info)
        return TableAppend(self._connection, self._info)

    def new_append_writer(self) -> AppendWriter:
        """Return an append writer; the older way to say ``new_append().create_writer()``."""
        return self.new_append().create_writer()

    def new_upsert(self, columns: Sequence[str] | None = None) -> TableUpsert:
        """Return a builder of upsert writers, for primary-key tables; itself usable as one.

        Parameters
        ----------
        columns
            The columns of a partial update, the primary key's among them; None for all.

        Raises
        ------
        FlussError
            When the table has no primary key, or the columns cannot be updated in part.
        """
        self._refuse_virtual("upsert into")
        return TableUpsert(self._connection, self._info, columns)

    def new_lookup(self) -> TableLookup:
        """Return a builder of lookupers, for primary-key tables; itself usable as one.

        Raises
        ------
        FlussError
            When the table has no primary key.
        """
        self._refuse_virtual("look up in")
        return TableLookup(self._connection, self._info)

    def get_table_info(self) -> TableInfo:
        """Return what the table was when it was opened."""
        return self._info

    def get_table_path(self) -> TablePath:
        """Return the path."""
        return self._info.table_path

    def has_primary_key(self) -> bool:
        """Whether this is a primary-key table."""
        return self._info.has_primary_key()

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        schema = self._info.schema.arrow_schema
        return schema if self._changes is None else self._changes.schema(schema)

    def __repr__(self) -> str:
        suffix = "" if self._changes is None else self._changes.value
        return f"FlussTable({str(self._info.table_path) + suffix!r})"


class TableScan:
    """Builds scanners; every method returns a new builder."""

    def __init__(
        self, connection: ClientContext, info: TableInfo, changes: ChangeTable | None = None
    ) -> None:
        self._connection = connection
        self._info = info
        self._changes = changes
        self._columns: tuple[str, ...] | None = None
        self._predicate: Predicate | None = None
        self._limit: int | None = None

    def project(self, indices: Sequence[int]) -> TableScan:
        """Read some columns only, by their index, in this order."""
        return self.project_by_name(names_at(indices, self._column_names(), self._info.table_path))

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Read some columns only, by their name, in this order."""
        if isinstance(names, str):
            raise FlussError(f"expected a list of column names, not the string {names!r}")
        if not names:
            raise FlussError("a projection needs at least one column")
        if len(set(names)) != len(names):
            raise FlussError(f"a column stands twice in the projection {list(names)}")
        require_columns(names, self._column_names(), f"table {self._info.table_path}:")
        scan = copy.copy(self)
        scan._columns = tuple(names)
        return scan

    def _column_names(self) -> list[str]:
        if self._changes is None:
            return self._info.get_column_names()
        names: list[str] = self._changes.schema(self._info.schema.arrow_schema).names
        return names

    def filter(self, predicate: Predicate) -> TableScan:
        """Read only rows for which a predicate is true.

        Parameters
        ----------
        predicate
            Built with :func:`fluss_df.col`; a second one holds as well.

        Examples
        --------
        >>> table.new_scan().filter((col("x") >= 1) & col("name").is_not_null())
        ... # doctest: +SKIP
        """
        RowFilter(self._info, (), predicate)  # refuses what does not fit
        scan = copy.copy(self)
        scan._predicate = predicate if self._predicate is None else self._predicate & predicate
        return scan

    def limit(self, n: int) -> TableScan:
        """Read at most ``n`` rows, the newest ones, with :meth:`create_bucket_batch_scanner`."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise FlussError(f"invalid limit {n!r}: expected a positive integer")
        scan = copy.copy(self)
        scan._limit = n
        return scan

    def with_fixed_schema(self, fixed_schema: bool) -> TableScan:
        """Give batches of older schemas the columns that the table was opened with.

        This is what is always done; ``False`` is refused.
        """
        if not fixed_schema:
            raise FlussError(
                "batches always have the columns that the table was opened with:"
                " with_fixed_schema(False) is not supported"
            )
        return copy.copy(self)

    def create_log_scanner(self) -> LogScanner:
        """Return a scanner of single records, for :meth:`LogScanner.poll`."""
        self._refuse_virtual("create_record_batch_log_scanner")
        return self._log_scanner(records=True)

    def create_record_batch_log_scanner(self) -> LogScanner:
        """Return a scanner of Arrow batches, for ``poll_arrow`` and ``to_arrow``.

        Of a primary-key table it reads the changelog, with the columns ``_change_type``,
        ``_log_offset`` and ``_commit_timestamp`` behind those of the table. Of a virtual table it
        reads the rows of that.
        """
        return self._log_scanner(records=False)

    def _refuse_virtual(self, use: str) -> None:
        if self._changes is not None:
            raise FlussError(
                f"{self._info.table_path}{self._changes.value} is a virtual table: use {use}"
            )

    def _log_scanner(self, *, records: bool) -> LogScanner:
        if self._limit is not None:
            raise FlussError(
                f"log scanners have no limit (limit({self._limit}) was called):"
                " use create_bucket_batch_scanner"
            )
        if self._changes is not None:
            return ChangeTableScanner(
                self._connection,
                self._info,
                self._changes,
                self._columns,
                predicate=self._predicate,
            )
        return LogScanner(
            self._connection, self._info, self._columns, records=records, predicate=self._predicate
        )

    def create_snapshot_scanner(
        self, *, partitions: Sequence[str] | None = None
    ) -> SnapshotScanner:
        """Return a scanner of the current rows of a primary-key table.

        Parameters
        ----------
        partitions
            The names of the partitions to read; None for all.

        Raises
        ------
        FlussError
            When the table has no primary key.

        Examples
        --------
        >>> scanner = table.new_scan().create_snapshot_scanner()  # doctest: +SKIP
        >>> rows, offsets = scanner.to_arrow(), scanner.offsets  # doctest: +SKIP
        """
        self._refuse_virtual("create_record_batch_log_scanner")
        return SnapshotScanner(
            self._connection,
            self._info,
            self._columns,
            predicate=self._predicate,
            limit=self._limit,
            partitions=partitions,
        )

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """Return a scanner of the newest rows of one bucket; needs :meth:`limit`."""
        self._refuse_virtual("create_record_batch_log_scanner")
        if self._limit is None:
            raise FlussError("create_bucket_batch_scanner needs a limit: call limit(n) before it")
        if self._predicate is not None:
            raise FlussError("a scan with a limit cannot be filtered: filter its result")
        if self._info.has_primary_key():
            return LimitScanner(self._connection, self._info, self._columns, bucket, self._limit)
        return BatchScanner(self._connection, self._info, self._columns, bucket, self._limit)

    def create_batch_scanner(self) -> LogScanner:
        """Return a scanner of Arrow batches; the older name."""
        return self.create_record_batch_log_scanner()


class TableAppend:
    """Builds append writers."""

    def __init__(self, connection: ClientContext, info: TableInfo) -> None:
        self._connection = connection
        self._info = info

    def create_writer(self, *, create_partitions: bool = False) -> AppendWriter:
        """Return an append writer.

        Parameters
        ----------
        create_partitions
            Whether to create the partitions of the rows where they do not exist.
        """
        return AppendWriter(self._connection, self._info, create_partitions=create_partitions)
