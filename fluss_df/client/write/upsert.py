"""Writing to primary-key tables: :class:`UpsertWriter`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.send.batch import WriteResultHandle
from fluss_df.client.write.key_codec import KeyCodec
from fluss_df.client.write.writer import TableWriter
from fluss_df.errors import FlussError
from fluss_df.metadata import CHANGE_TYPE_COLUMN, names_at, require_columns
from fluss_df.record.kv.primary_key import check_primary_key
from fluss_df.record.python.row_collector import Row
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext


class UpsertWriter(TableWriter):
    """Upserts and deletes rows of a primary-key table, for any number of threads.

    What is written is checked at once and sent in the background; :meth:`flush` waits until all
    of it is acknowledged. Changes of the same key count in the order in which they were given,
    whichever methods gave them, and within a frame from the first row to the last. Every change
    is made exactly once; a retry after a lost answer is recognised by the server.

    Obtain one from ``table.new_upsert().create_writer()``; use it in a ``with`` statement, or
    call :meth:`close`: both flush and report what was not acknowledged.

    Parameters
    ----------
    connection
        The connection.
    info
        The table.
    columns
        The columns to write, which rows then have in this order: a partial update. The primary
        key is among them, and all other columns of the table are nullable. None for all columns
        but those that the server numbers (auto increment).
    create_partitions
        Whether to create the partitions of the rows where they do not exist.

    Raises
    ------
    FlussError
        When the table has no primary key, or the columns cannot be updated in part.

    Examples
    --------
    >>> with table.new_upsert().create_writer() as writer:  # doctest: +SKIP
    ...     writer.upsert({"id": 1, "name": "Ada"})
    ...     writer.delete({"id": 2})
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[str] | None = None,
        *,
        create_partitions: bool = False,
    ) -> None:
        check_primary_key(info)
        names = _target_columns(info, columns)
        self._keys = KeyCodec(info, names, connection.config)
        super().__init__(connection, info, self._keys, create_partitions=create_partitions)

    def _reset(self) -> None:
        super()._reset()
        # hides the method, which only calls it: see AppendWriter
        self.upsert = self._put_row  # type: ignore[method-assign,assignment]

    # ---- writing

    def upsert(self, row: Row) -> WriteResultHandle:
        """Insert a row, or update the one that has its key.

        Parameters
        ----------
        row
            A dict of column to value, or a list or tuple of values in the order of the columns.
            A dict may leave out nullable columns, which become null.

        Returns
        -------
        WriteResultHandle
            To wait for the acknowledgement of this row, without lingering.

        Raises
        ------
        SchemaMismatchError
            When the row does not fit; nothing of it is written.
        """
        return self._put_row(row)

    def delete(self, pk: Row) -> WriteResultHandle:
        """Delete the row that has a key; a key without a row is no error.

        Under a partial update the columns that are written become null, and the row goes away
        when nothing else is left of it.

        Parameters
        ----------
        pk
            A dict of key column to value, or a list or tuple of values in the order of the key.
        """
        return self._accumulator.delete(self._keys.deletes.values(pk))

    def delete_arrow(self, keys: Any) -> WriteResultHandle:
        """Delete the rows that have the keys of an Arrow table or anything that exports one.

        Parameters
        ----------
        keys
            The key columns, in any order, and no others.
        """
        return self._take(keys, self._keys.frame_of_deletes, "delete", "from")

    def write_changes(
        self, changes: Any, change_type_column: str = CHANGE_TYPE_COLUMN
    ) -> WriteResultHandle:
        """Apply a changelog: upserts and deletes in the order of its rows.

        Parameters
        ----------
        changes
            An Arrow table, or anything that exports ``__arrow_c_stream__``, with a column that
            says what each row does: ``"+I"`` and ``"+U"`` upsert it, ``"-D"`` deletes it, and
            ``"-U"`` is passed over; or :class:`~fluss_df.ChangeType` as integers, or the words of
            the virtual table ``$changelog``. Metadata columns of a scan (``_log_offset`` and so on)
            are passed over.
        change_type_column
            The name of that column.
        """

        def check(table: pa.Table) -> pa.Table:
            return self._keys.frame_of_changes(table, change_type_column)

        return self._take(changes, check)


class TableUpsert:
    """Builds upsert writers; may also be used as one itself.

    Obtain one from ``table.new_upsert()``. The methods of a writer (``upsert``, ``delete``,
    ``write_arrow``, ``flush`` and so on) go to one that is created on first use.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns of a partial update, or None.
    """

    def __init__(
        self, connection: ClientContext, info: TableInfo, columns: Sequence[str] | None = None
    ) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        self._columns = None if columns is None else _target_columns(info, columns)
        self._writer: UpsertWriter | None = None

    def partial_update_by_name(self, columns: Sequence[str]) -> TableUpsert:
        """Return a builder whose writers update some columns only.

        Parameters
        ----------
        columns
            Their names, the primary key's among them; rows have their values in this order.

        Raises
        ------
        FlussError
            For a key column that is left out, or another column that cannot be null.
        """
        return TableUpsert(self._connection, self._info, columns)

    def partial_update_by_index(self, indices: Sequence[int]) -> TableUpsert:
        """As :meth:`partial_update_by_name`, with indexes of columns, from 0."""
        names = names_at(indices, self._info.get_column_names(), self._info.table_path)
        return self.partial_update_by_name(names)

    def create_writer(self, *, create_partitions: bool = False) -> UpsertWriter:
        """Return an upsert writer.

        Parameters
        ----------
        create_partitions
            Whether to create the partitions of the rows where they do not exist.
        """
        return UpsertWriter(
            self._connection, self._info, self._columns, create_partitions=create_partitions
        )

    def __getattr__(self, name: str) -> Any:
        # what is not of the builder is of the writer that it stands for
        if name.startswith("_") or not hasattr(UpsertWriter, name):
            raise AttributeError(f"'TableUpsert' has no attribute '{name}'")
        return getattr(self._own_writer(), name)

    def _own_writer(self) -> UpsertWriter:
        if self._writer is None:
            self._writer = self.create_writer()
        return self._writer

    def __enter__(self) -> UpsertWriter:
        return self._own_writer().__enter__()

    def __exit__(self, *args: Any) -> None:
        self._own_writer().__exit__(*args)

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns}"
        return f"TableUpsert({str(self._info.table_path)!r}{columns})"


def _target_columns(info: TableInfo, columns: Sequence[str] | None) -> list[str]:
    """Return the columns that are written, in the order that rows have."""
    schema = info.schema
    numbered = set(schema.auto_increment)
    where = f"table {info.table_path}"
    if columns is None:
        names = [column.name for column in schema.columns if column.name not in numbered]
        if not numbered:
            return names
    else:
        listed = isinstance(columns, Iterable) and not isinstance(columns, str)
        if not listed or not all(isinstance(name, str) for name in columns):
            kind = "the string " if isinstance(columns, str) else ""
            raise FlussError(f"expected a list of column names, not {kind}{columns!r}")
        names = list(columns)
        require_columns(names, info.get_column_names(), f"{where}:")
        if len(set(names)) != len(names):
            raise FlussError(f"{where}: a column stands twice in the partial update of {names}")
    for name in names:
        if name in numbered:
            raise FlussError(
                f"{where}: column '{name}' is numbered by the server (auto increment) and cannot"
                " be written"
            )
    keys = info.get_primary_keys()
    missing = [key for key in keys if key not in names]
    if missing:
        raise FlussError(
            f"{where}: a partial update needs all columns of the primary key ({', '.join(keys)}):"
            f" add '{missing[0]}'"
        )
    if set(names) == set(info.get_column_names()):
        return names
    for column in schema.columns:
        if column.name not in keys and column.name not in numbered and not column.type.nullable:
            raise FlussError(
                f"{where}: column '{column.name}' is NOT NULL; rows can be updated in part only"
                " where all columns outside of the primary key are nullable"
            )
    return names
