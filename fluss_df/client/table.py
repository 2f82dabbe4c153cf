"""A table, and the builders of its scans and writers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluss_df.client.append import AppendWriter
from fluss_df.client.facade import Ready
from fluss_df.client.scanner import LogScanner
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath, require_columns
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection


class FlussTable(Ready):
    """A table of a cluster; obtained from :meth:`FlussConnection.get_table`."""

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
        self._connection = connection
        self._info = info

    def new_scan(self) -> TableScan:
        """Return a builder of scanners."""
        return TableScan(self._connection, self._info)

    def new_append(self) -> TableAppend:
        """Return a builder of append writers, for log tables.

        Raises
        ------
        FlussError
            When the table has a primary key.
        """
        if self._info.has_primary_key():
            raise FlussError(
                f"table {self._info.table_path} has a primary key: it takes upserts, not appends",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return TableAppend(self._connection, self._info)

    def new_append_writer(self) -> AppendWriter:
        """Return an append writer; the older way to say ``new_append().create_writer()``."""
        return self.new_append().create_writer()

    def get_table_info(self) -> TableInfo:
        """Return what the table was when it was opened."""
        return self._info

    def get_table_path(self) -> TablePath:
        """Return the path."""
        return self._info.table_path

    def has_primary_key(self) -> bool:
        """Whether this is a primary-key table."""
        return self._info.has_primary_key()

    def __repr__(self) -> str:
        return f"FlussTable({str(self._info.table_path)!r})"


class TableScan:
    """Builds scanners; every method returns a new builder."""

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
        self._connection = connection
        self._info = info
        self._columns: tuple[str, ...] | None = None

    def project(self, indices: Sequence[int]) -> TableScan:
        """Read some columns only, by their index, in this order."""
        names = self._info.get_column_names()
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int):
                raise FlussError(f"invalid column index {index!r}: expected an integer")
            if not 0 <= index < len(names):
                raise FlussError(
                    f"table {self._info.table_path} has no column {index}:"
                    f" its columns are 0 to {len(names) - 1}",
                    ErrorCode.INVALID_COLUMN_PROJECTION,
                )
        return self.project_by_name([names[index] for index in indices])

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Read some columns only, by their name, in this order."""
        if isinstance(names, str):
            raise FlussError(f"expected a list of column names, not the string {names!r}")
        if not names:
            raise FlussError("a projection needs at least one column")
        if len(set(names)) != len(names):
            raise FlussError(f"a column stands twice in the projection {list(names)}")
        require_columns(names, self._info.get_column_names(), f"table {self._info.table_path}:")
        scan = copy.copy(self)
        scan._columns = tuple(names)
        return scan

    def create_log_scanner(self) -> LogScanner:
        """Return a scanner of single records, for :meth:`LogScanner.poll`."""
        return LogScanner(self._connection, self._info, self._columns, records=True)

    def create_record_batch_log_scanner(self) -> LogScanner:
        """Return a scanner of Arrow batches, for ``poll_arrow``, ``to_arrow`` and the like."""
        return LogScanner(self._connection, self._info, self._columns, records=False)

    def create_batch_scanner(self) -> LogScanner:
        """Return a scanner of Arrow batches; the older name."""
        return self.create_record_batch_log_scanner()


class TableAppend:
    """Builds append writers."""

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
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
