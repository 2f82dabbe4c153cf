"""Upserts and deletes that are all known, written as one: what ``MERGE INTO`` does in the end."""

from __future__ import annotations

import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.io.sinks.target import Target, resolve_mode, written_columns
from fluss_df.io.sinks.writing import Writing
from fluss_df.record.keys.partition_names import names_of_rows
from fluss_df.record.python.coerce import coerce
from fluss_df.schema import TableInfo


class Changes:
    """Changes of a table: collected and checked first, then written."""

    def __init__(self, connection: FlussConnection, info: TableInfo) -> None:
        descriptor, path = info.descriptor, info.table_path
        mode = resolve_mode(path, descriptor, "auto", None)
        columns = written_columns(path, descriptor, mode, info.get_column_names())
        self._target = Target(connection, path, descriptor, info, mode, columns)
        self._keys = written_columns(path, descriptor, "delete", ())
        self._written: list[pa.Table] = []
        self._deleted: list[pa.Table] = []

    def write(self, rows: pa.Table) -> pa.Table:
        """Take rows to append or upsert, after the deletes; return them with the table's types.

        Raises SchemaMismatchError for rows that do not fit. Raises FlussError for a partition that
        cannot be.
        """
        made = coerce(rows, self._target.columns, table=str(self._target.path), allow_missing=True)
        parts = self._target.partition_columns()
        if parts and made.num_rows:
            # raises for a value that is no name of a partition
            names_of_rows(made, parts, table=str(self._target.path))
        self._written.append(made)
        return made

    def delete(self, keys: pa.Table) -> pa.Table:
        """Take keys of rows to delete; return them with the table's types."""
        made = coerce(keys, self._keys, table=str(self._target.path))
        self._deleted.append(made)
        return made

    @property
    def rows(self) -> int:
        """How many rows are changed."""
        return sum(table.num_rows for table in (*self._written, *self._deleted))

    def apply(self, *, deletes_first: bool = True) -> None:
        """Write what was taken, by one writer: what is deleted first, then the rows.

        With ``deletes_first=False`` the rows come first. Where both have a key, what comes last
        counts. Raises FlussError when rows could not be written; it says how many were, and where.
        """
        if not self.rows:
            return
        with Writing(self._target, create_partitions=True, progress=None) as writing:
            if not deletes_first:
                self._write(writing)
            for keys in self._deleted:
                writing.delete_arrow(keys)
            if deletes_first:
                self._write(writing)

    def _write(self, writing: Writing) -> None:
        for rows in self._written:
            writing.write_arrow(rows)
