"""Writing to primary-key tables: :class:`UpsertWriter`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.send.batch import EncodedBatch, WriteResultHandle
from fluss_df.client.send.requests import PutKv, WriteApi
from fluss_df.client.write.writer import TableWriter
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.metadata import (
    CHANGE_TYPE_COLUMN,
    CHANGELOG_COLUMNS,
    METADATA_COLUMNS,
    ChangeType,
    require_columns,
)
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.primary_key import check_primary_key, key_columns, key_lake_format
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.row_collector import Gathered, Row, RowCollector
from fluss_df.record.rows.row_formats import require_milliseconds
from fluss_df.schema import TableInfo
from fluss_df.types import Column, arrow_schema

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

_CODES = {kind.short_string(): kind.value for kind in ChangeType}


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
        by_name = {column.name: column for column in info.schema.columns}
        wanted = [by_name[name] for name in names]
        keys = set(info.get_primary_keys())
        self._partial = set(names) != set(by_name)
        self._key_columns = [by_name[name] for name in info.get_primary_keys()]
        # rows that are deleted have nothing but their key
        self._relaxed = [c if c.name in keys else _nullable(c) for c in wanted]
        self._flag = "_delete"
        while self._flag in by_name:
            self._flag += "_"
        fields = [field.with_nullable(True) for field in arrow_schema(wanted)]
        # servers know columns by their place; what is not written is null in what is sent
        place = {name: number for number, name in enumerate(info.get_column_names())}
        targets = sorted(place[name] for name in names)
        self._targets = targets if self._partial else None
        self._encoder = KvEncoder(
            info.schema_id,
            # nulls of deleted rows are in frames, and not in what is sent
            [c if c.name in keys else _nullable(c) for c in info.schema.columns],
            [column.name for column in key_columns(info)],
            kv_format=info.kv_format,
            target_columns=[info.get_column_names()[i] for i in targets] if self._partial else None,
            lake_format=key_lake_format(info),
        )
        super().__init__(
            connection,
            info,
            columns=wanted,
            frame_schema=pa.schema([*fields, pa.field(self._flag, pa.bool_())]),
            create_partitions=create_partitions,
        )

    def _reset(self) -> None:
        super()._reset()
        # in front of the method, which only calls it
        self.upsert = self._put_row  # type: ignore[method-assign,assignment]
        self._deletes = RowCollector(self._key_columns, self._name)

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
        return self._accumulator.delete(self._deletes.values(pk))

    def delete_arrow(self, keys: Any) -> WriteResultHandle:
        """Delete the rows that have the keys of an Arrow table or anything that exports one.

        Parameters
        ----------
        keys
            The key columns, in any order, and no others.
        """
        if isinstance(keys, (pa.Table, pa.RecordBatch)):
            return self._write(self._checked_deletes(_table(keys)))
        if hasattr(keys, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(keys)
            return self._write_stream(reader, self._checked_deletes)
        if hasattr(keys, "__arrow_c_array__"):
            return self._write(self._checked_deletes(_table(pa.record_batch(keys))))
        raise SchemaMismatchError(
            f"cannot delete {type(keys).__name__} from table {self._name}: expected a pyarrow"
            " Table or RecordBatch, or anything that exports __arrow_c_stream__"
        )

    def write_changes(
        self, changes: Any, change_type_column: str = CHANGE_TYPE_COLUMN
    ) -> WriteResultHandle:
        """Apply a changelog: upserts and deletes in the order of its rows.

        Parameters
        ----------
        changes
            An Arrow table, or anything that exports ``__arrow_c_stream__``, with a column that
            says what each row does: ``"+I"`` and ``"+U"`` upsert it, ``"-D"`` deletes it, and
            ``"-U"`` is passed over; or :class:`~fluss_df.ChangeType` as integers. Metadata
            columns of a scan (``_log_offset`` and so on) are passed over.
        change_type_column
            The name of that column.
        """

        def check(table: pa.Table) -> pa.Table:
            return self._checked_changes(table, change_type_column)

        if isinstance(changes, (pa.Table, pa.RecordBatch)):
            return self._write(check(_table(changes)))
        if hasattr(changes, "__arrow_c_stream__"):
            return self._write_stream(pa.RecordBatchReader.from_stream(changes), check)
        raise SchemaMismatchError(
            f"cannot write {type(changes).__name__} to table {self._name}: expected a pyarrow"
            " Table or RecordBatch, or anything that exports __arrow_c_stream__"
        )

    # ---- frames

    def _checked(self, table: pa.Table) -> pa.Table:
        data = coerce(table, self._columns, table=self._name)
        return self._frame(data, pa.repeat(pa.scalar(False), data.num_rows))

    def _checked_deletes(self, keys: pa.Table) -> pa.Table:
        data = coerce(keys, self._key_columns, table=self._name)
        return self._frame(_padded(data, self._frame_schema), _true(data.num_rows))

    def _checked_changes(self, table: pa.Table, name: str) -> pa.Table:
        require_columns([name], table.schema.names, f"changes of table {self._name}:")
        kinds = _change_codes(table.column(name), f"table {self._name}, column '{name}'")
        own = {column.name for column in self._columns}
        metadata = {name, *METADATA_COLUMNS, *CHANGELOG_COLUMNS} - own
        drop = [c for c in table.schema.names if c in metadata]
        wanted = kinds != ChangeType.UpdateBefore.value
        deletes = kinds == ChangeType.Delete.value
        self._require_values(table, deletes | ~wanted)
        data = coerce(table.drop_columns(drop), self._relaxed, table=self._name)
        if not wanted.all():
            data, deletes = data.filter(pa.array(wanted)), deletes[wanted]
        return self._frame(data, pa.array(deletes))

    def _require_values(self, table: pa.Table, unneeded: npt.NDArray[np.bool_]) -> None:
        """Refuse nulls in NOT NULL columns of rows that are upserted."""
        for column, relaxed in zip(self._columns, self._relaxed, strict=True):
            if relaxed is column or column.type.nullable or column.name not in table.schema.names:
                continue
            nulls = table.column(column.name).is_null().to_numpy() & ~unneeded
            if nulls.any():
                raise SchemaMismatchError(
                    f"table {self._name}, column '{column.name}' ({column.type}): null in row"
                    f" {int(np.flatnonzero(nulls)[0])}"
                )

    def _frame(self, data: pa.Table, deletes: pa.Array) -> pa.Table:
        require_milliseconds(data, self._columns, self._name)
        return pa.Table.from_arrays([*data.columns, deletes], schema=self._frame_schema)

    def _batch(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        upserts = super()._batch(gathered, values) if values else None
        rows = 0 if upserts is None else upserts.num_rows
        places = [place for place, _ in gathered.deletes]
        if not places:
            assert upserts is not None
            require_milliseconds(upserts, self._columns, self._name)
            flags = pa.repeat(pa.scalar(False), rows)
            return pa.RecordBatch.from_arrays([*upserts.columns, flags], schema=self._frame_schema)
        keys = list(itertools.chain.from_iterable(key for _, key in gathered.deletes))
        deletes = _padded(self._deletes.batch(keys), self._frame_schema)
        flags = np.zeros(rows + len(places), np.bool_)
        flags[places] = True
        order = np.empty(len(flags), np.int64)
        order[~flags] = np.arange(rows)
        order[flags] = np.arange(rows, len(flags))
        columns = deletes.columns
        if upserts is not None:
            require_milliseconds(upserts, self._columns, self._name)
            pairs = zip(upserts.columns, columns, strict=True)
            columns = [pa.concat_arrays(pair).take(pa.array(order)) for pair in pairs]
        return pa.RecordBatch.from_arrays([*columns, pa.array(flags)], schema=self._frame_schema)

    def _lone_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], EncodedBatch] | None:
        deleted = bool(gathered.deletes)
        columns = self._key_columns if deleted else self._columns
        if deleted:
            [(_, values)] = gathered.deletes
        by_name = dict(zip([column.name for column in columns], values, strict=True))
        encoded = self._encoder.encode_values(by_name, deleted=deleted)
        if encoded is None:
            return None
        return [by_name.get(column.name) for column in self._columns], encoded

    # ---- on its way

    @property
    def _most_rows(self) -> int:
        return self._config.writer_batch_rows

    def _write_api(self) -> WriteApi:
        return PutKv(self._info, self._targets)

    def _encode_frame(self, data: pa.RecordBatch) -> EncodedBatch:
        flags = data.column(data.num_columns - 1)
        rows = pa.Table.from_batches([data.select([c.name for c in self._encoder.columns])])
        deletes = flags.to_numpy(zero_copy_only=False) if flags.true_count else None
        return self._encoder.encode(rows, deletes=deletes)


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
        names = self._info.get_column_names()
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int):
                raise FlussError(f"invalid column index {index!r}: expected an integer")
            if not 0 <= index < len(names):
                raise FlussError(
                    f"table {self._info.table_path} has no column {index}:"
                    f" its columns are 0 to {len(names) - 1}"
                )
        return self.partial_update_by_name([names[index] for index in indices])

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
        if isinstance(columns, str):
            raise FlussError(f"expected a list of column names, not the string {columns!r}")
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


def _nullable(column: Column) -> Column:
    return dataclasses.replace(column, type=dataclasses.replace(column.type, nullable=True))


def _table(data: pa.Table | pa.RecordBatch) -> pa.Table:
    return data if isinstance(data, pa.Table) else pa.Table.from_batches([data])


def _true(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(True), rows)


def _padded(keys: pa.Table | pa.RecordBatch, frame_schema: pa.Schema) -> Any:
    """Return keys with nulls in all other columns of a frame but the last, the flag."""
    names = frozenset(keys.schema.names)
    schema = pa.schema(list(frame_schema)[:-1])
    columns = [
        keys.column(field.name) if field.name in names else pa.nulls(keys.num_rows, field.type)
        for field in schema
    ]
    return type(keys).from_arrays(columns, schema=schema)


def _change_codes(column: pa.ChunkedArray, where: str) -> npt.NDArray[np.int64]:
    """Return a ChangeType for each row of a change type column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if column.null_count:
        raise SchemaMismatchError(
            f"{where}: null in row {pc.index(column.is_null(), True).as_py()}"
        )
    if pa.types.is_integer(kind):
        codes: npt.NDArray[np.int64] = pc.cast(column, pa.int64()).to_numpy()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        texts = pa.array(list(_CODES), pa.string())
        found = pc.index_in(column.cast(pa.string()), value_set=texts)
        table = np.array([*_CODES.values(), 0], np.int64)
        codes = table[pc.fill_null(found, len(_CODES)).to_numpy()]
    else:
        raise SchemaMismatchError(f"{where}: expected strings or integers, not {kind}")
    wrong = np.flatnonzero((codes < 1) | (codes > 4))
    if len(wrong):
        value = column[int(wrong[0])].as_py()
        raise SchemaMismatchError(
            f"{where}: row {int(wrong[0])}: {value!r} is no change of a primary-key table:"
            " expected '+I', '-U', '+U' or '-D' (1 to 4)"
        )
    return codes
