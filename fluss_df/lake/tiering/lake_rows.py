"""Rows of Fluss as rows of the lake."""

from __future__ import annotations

import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.metadata import COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN

BUCKET = "__bucket"
OFFSET = "__offset"
TIMESTAMP = "__timestamp"
SYSTEM_COLUMNS = (BUCKET, OFFSET, TIMESTAMP)
_BEFORE_LOG = -1


def to_lake(rows: pa.Table, schema: pa.Schema, bucket: int, path: object) -> pa.Table:
    """Return rows with the columns of the lake table.

    Parameters
    ----------
    rows
        The table's columns; ``_log_offset`` and ``_commit_timestamp`` beside them, or neither for
        rows that stand for no change (-1 in the lake).
    schema
        The lake table's Arrow schema.
    bucket
        The bucket of the rows.
    path
        The table, for errors.
    """
    count = rows.num_rows
    columns = []
    for field in schema:
        if field.name == BUCKET:
            column = pa.repeat(pa.scalar(bucket, field.type), count)
        elif field.name == OFFSET:
            column = _metadata(rows, LOG_OFFSET_COLUMN, field.type)
        elif field.name == TIMESTAMP:
            column = _metadata(rows, COMMIT_TIMESTAMP_COLUMN, field.type)
        else:
            column = _cast(rows, field, path)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _metadata(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    if name in rows.column_names:
        return rows.column(name).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.repeat(
            pa.scalar(_BEFORE_LOG, pa.timestamp("ms", kind.tz)).cast(kind), rows.num_rows
        )
    return pa.repeat(pa.scalar(_BEFORE_LOG, kind), rows.num_rows)


def _cast(rows: pa.Table, field: pa.Field, path: object) -> pa.ChunkedArray:
    index = rows.schema.get_field_index(field.name)
    if index < 0:
        raise FlussError(
            f"column {field.name!r} of the lake table of {path} is not in Fluss; the lake table"
            " was changed by hand"
        )
    column = rows.column(index)
    if column.type == field.type:
        return column
    try:
        # the lake has microseconds, and Flink's service cuts nanoseconds off, too
        safe = not pa.types.is_temporal(column.type)
        return column.cast(field.type, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FlussError(
            f"column {field.name!r} of table {path} has type {column.type}, which cannot be"
            f" written as the lake's {field.type}: {error}"
        ) from error
