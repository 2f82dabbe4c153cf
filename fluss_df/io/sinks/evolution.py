"""Columns that a frame has and its table has not: added by the sink, before the first row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.metadata import METADATA_COLUMNS, TablePath
from fluss_df.schema import TableInfo
from fluss_df.types import Column, from_arrow

# how often columns are added again when another writer added some of them meanwhile
_TRIES = 5


def require_schema_mode(schema_mode: str | None, path: TablePath, mode: str) -> None:
    """Raise for a ``schema_mode`` that there is not, or that a mode has no use for."""
    if schema_mode == "overwrite":
        raise FlussError(
            f"schema_mode='overwrite': columns of table {path} cannot be taken away or changed,"
            " because Fluss only adds columns; schema_mode='merge' adds those that are missing"
        )
    if schema_mode not in (None, "merge"):
        raise FlussError(f"schema_mode={schema_mode!r}: expected 'merge' or None")
    if schema_mode is not None and mode == "delete":
        raise FlussError(
            f"schema_mode='merge': mode='delete' writes only the primary key of table {path}; leave"
            " schema_mode out"
        )


def new_columns(
    path: TablePath, types: pa.Schema, schema: pl.Schema, existing: Collection[str]
) -> tuple[Column, ...]:
    """Return the columns of a frame that its table does not have, as they are to be added.

    ``types`` and ``schema`` are the frame's columns, in Arrow's types and in Polars'. ``existing``
    names the columns that need not be added.

    Raises SchemaMismatchError for a type that Fluss does not have, and for a name that scans give
    to something else than columns of the table.
    """
    found = []
    known = frozenset(existing)
    for field in types:
        if field.name in known:
            continue
        if field.name in METADATA_COLUMNS:
            raise SchemaMismatchError(
                f"table {path}: column '{field.name}' is none of a table, but what a scan says of a"
                " row: drop it from the frame"
            )
        try:
            found.append(Column(field.name, from_arrow(field.type, True, coerce=True)))
        except FlussError as error:
            raise SchemaMismatchError(
                f"table {path}: column '{field.name}' ({schema[field.name]}) cannot be added:"
                f" {error.message}"
            ) from None
    return tuple(found)


def add_columns(
    connection: FlussConnection, info: TableInfo, columns: Sequence[Column]
) -> TableInfo:
    """Add columns to a table, nullable and behind the others; return the table as it is then.

    Another writer may add the same columns at the same time: they are then there, once.

    Raises SchemaMismatchError when another writer added such a column with another type. Raises
    FlussError when the server adds no columns to this table. No row was written then.
    """
    admin, path = connection.get_admin(), info.table_path
    for attempt in range(1, _TRIES + 1):
        missing = _missing(info, columns)
        if not missing:
            break
        try:
            admin.alter_table(path, add_columns=missing)
        except FlussError as error:
            now = connection.get_table(path).get_table_info()
            if now.schema_id == info.schema_id or attempt == _TRIES:
                names = ", ".join(f"'{column.name}'" for column in missing)
                raise FlussError(
                    f"table {path}: the columns {names} of the frame cannot be added to it, and"
                    f" nothing was written: {error.message}",
                    error.error_code,
                ) from error
        info = connection.get_table(path).get_table_info()
    return info


def _missing(info: TableInfo, columns: Sequence[Column]) -> list[Column]:
    there = {column.name: column.type for column in info.schema.columns}
    for column in columns:
        kind = there.get(column.name)
        if kind is not None and kind != column.type:
            raise SchemaMismatchError(
                f"table {info.table_path}: column '{column.name}' was added by another writer as"
                f" {kind}, and the frame has {column.type}: nothing was written; cast the column"
            )
    return [column for column in columns if column.name not in there]


def with_missing(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return rows with nulls for the nullable columns of a table that they do not have."""
    there = frozenset(rows.column_names)
    for column in columns:
        if column.name not in there and column.type.nullable:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows))
    return rows
