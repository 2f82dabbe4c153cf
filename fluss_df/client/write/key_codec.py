"""Rows of primary-key tables, and deletes of rows: :class:`KeyCodec`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.write.codec import RowCodec
from fluss_df.config import Config
from fluss_df.errors import SchemaMismatchError
from fluss_df.metadata import CHANGELOG_COLUMNS, METADATA_COLUMNS, ChangeType, require_columns
from fluss_df.protocol.produce import PutKv
from fluss_df.record.change_tables import CHANGELOG_TYPES
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.primary_key import key_columns, key_lake_format
from fluss_df.record.layout.chunks import joined
from fluss_df.record.layout.columns import with_columns
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.row_collector import Gathered, RowCollector, limits_of_rows
from fluss_df.record.rows.row_formats import require_milliseconds
from fluss_df.schema import TableInfo
from fluss_df.types import Column, arrow_schema

_CODES = {kind.short_string(): kind.value for kind in ChangeType}
# and as the virtual table $changelog has them, but for the one of rows that are appended
_CODES |= {name: code for code, name in enumerate(CHANGELOG_TYPES) if code}


class KeyCodec(RowCodec):
    """Key-value batches, of rows and of deletes.

    A frame has one more column, the last, that says which rows are deletes. So rows, deletes and
    frames share one order.

    ``names`` are the columns to write, in the order that rows have. ``deletes`` checks the keys of
    rows to delete that come one by one.
    """

    def __init__(self, info: TableInfo, names: Sequence[str], config: Config) -> None:
        by_name = {column.name: column for column in info.schema.columns}
        keys = set(info.get_primary_keys())
        self._name = str(info.table_path)
        self.columns = [by_name[name] for name in names]
        self._key_columns = [by_name[name] for name in info.get_primary_keys()]
        self._keys = keys
        flag = "_delete"
        while flag in by_name:
            flag += "_"
        fields = [field.with_nullable(True) for field in arrow_schema(self.columns)]
        self.frame_schema = pa.schema([*fields, pa.field(flag, pa.bool_())])
        limits = limits_of_rows(info.kv_format)
        self.rows = RowCollector(self.columns, self._name, limits)
        self.deletes = RowCollector(self._key_columns, self._name, limits)
        self.most_rows = config.writer_batch_rows
        # servers know columns by their place; what is not written is null in what is sent
        place = {name: number for number, name in enumerate(info.get_column_names())}
        targets = sorted(place[name] for name in names)
        partial = set(names) != set(by_name)
        self.api = PutKv(info.table_id, targets if partial else None)
        self._encoder = KvEncoder(
            info.schema_id,
            # nulls of deleted rows are in frames, and not in what is sent
            [c if c.name in keys else _nullable(c) for c in info.schema.columns],
            [column.name for column in key_columns(info)],
            kv_format=info.kv_format,
            target_columns=[info.get_column_names()[i] for i in targets] if partial else None,
            lake_format=key_lake_format(info),
        )

    def frame(self, table: pa.Table) -> pa.Table:
        """Return rows to upsert as a frame."""
        data = coerce(table, self.columns, table=self._name, upserts=True)
        return self._frame(data, pa.repeat(pa.scalar(False), data.num_rows))

    def frame_of_deletes(self, keys: pa.Table) -> pa.Table:
        """Return the keys of rows to delete as a frame."""
        data = coerce(keys, self._key_columns, table=self._name)
        return self._frame(_padded(data, self.frame_schema), _true(data.num_rows))

    def frame_of_changes(self, table: pa.Table, name: str) -> pa.Table:
        """Return a changelog as a frame; a column of this name says what each row does."""
        data, deletes = changed_rows(table, name, self.columns, self._keys, self._name)
        return self._frame(data, pa.array(deletes))

    def _frame(self, data: pa.Table, deletes: pa.Array) -> pa.Table:
        require_milliseconds(data, self.columns, self._name)
        return pa.Table.from_arrays([*data.columns, deletes], schema=self.frame_schema)

    def frame_of_rows(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows, and keys to delete between them, as a frame."""
        upserts = self.rows.batch(values) if values else None
        rows = 0 if upserts is None else upserts.num_rows
        places = [place for place, _ in gathered.deletes]
        if not places:
            assert upserts is not None
            flags = pa.repeat(pa.scalar(False), rows)
            return pa.RecordBatch.from_arrays([*upserts.columns, flags], schema=self.frame_schema)
        keys = list(itertools.chain.from_iterable(key for _, key in gathered.deletes))
        deletes = _padded(self.deletes.batch(keys), self.frame_schema)
        flags = np.zeros(rows + len(places), np.bool_)
        flags[places] = True
        order = np.empty(len(flags), np.int64)
        order[~flags] = np.arange(rows)
        order[flags] = np.arange(rows, len(flags))
        columns = deletes.columns
        if upserts is not None:
            pairs = zip(upserts.columns, columns, strict=True)
            columns = [pa.concat_arrays(pair).take(pa.array(order)) for pair in pairs]
        return pa.RecordBatch.from_arrays([*columns, pa.array(flags)], schema=self.frame_schema)

    def one_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], StampedBatch] | None:
        """Return a key-value batch of one row or one key, made without arrays."""
        deleted = bool(gathered.deletes)
        columns = self._key_columns if deleted else self.columns
        if deleted:
            [(_, values)] = gathered.deletes
        by_name = dict(zip([column.name for column in columns], values, strict=True))
        encoded = self._encoder.encode_values(by_name, deleted=deleted)
        if encoded is None:
            return None
        return [by_name.get(column.name) for column in self.columns], encoded

    def encode(self, frame: pa.RecordBatch) -> StampedBatch:
        """Return a key-value batch."""
        flags = frame.column(frame.num_columns - 1)
        rows = pa.Table.from_batches([frame.select([c.name for c in self._encoder.columns])])
        deletes = flags.to_numpy(zero_copy_only=False) if flags.true_count else None
        return self._encoder.encode(rows, deletes=deletes)


def changed_rows(
    rows: pa.Table, name: str, columns: Sequence[Column], keys: Collection[str], table: str
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return the rows of a changelog that do something, and which of them are deletes.

    ``rows`` is the changelog, and its column ``name`` says what each row does. ``columns`` are
    written; ``keys`` names those of the primary key. ``table`` is for errors.

    Raises SchemaMismatchError for rows that do not fit.
    """
    require_columns([name], rows.schema.names, f"changes of table {table}:")
    kinds = _change_codes(joined(rows.column(name)), f"table {table}, column '{name}'")
    own = {column.name for column in columns}
    metadata = {name, *METADATA_COLUMNS, *CHANGELOG_COLUMNS} - own
    drop = [c for c in rows.schema.names if c in metadata]
    wanted = kinds != ChangeType.UpdateBefore.value
    deletes = kinds == ChangeType.Delete.value
    for column in columns:
        if column.name in keys or column.type.nullable or column.name not in rows.schema.names:
            continue
        nulls = rows.column(column.name).is_null().to_numpy() & ~deletes & wanted
        if nulls.any():
            raise SchemaMismatchError(
                f"table {table}, column '{column.name}' ({column.type}): null in row"
                f" {int(np.flatnonzero(nulls)[0])}"
            )
    # rows that are deleted have nothing but their key
    relaxed = [c if c.name in keys else _nullable(c) for c in columns]
    data = coerce(rows.drop_columns(drop), relaxed, table=table)
    if not wanted.all():
        data, deletes = data.filter(pa.array(wanted)), deletes[wanted]
    return data, deletes


def _nullable(column: Column) -> Column:
    return dataclasses.replace(column, type=dataclasses.replace(column.type, nullable=True))


def _true(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(True), rows)


def _padded(keys: pa.Table | pa.RecordBatch, frame_schema: pa.Schema) -> Any:
    """Return keys with nulls in all other columns of a frame but the last, the flag."""
    return with_columns(keys, pa.schema(list(frame_schema)[:-1]))


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
