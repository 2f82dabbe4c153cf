"""Rows of Fluss as rows of the lake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fluss_df.errors import FlussError
from fluss_df.lake.options import BUCKET, OFFSET, TIMESTAMP
from fluss_df.metadata import COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN

SYSTEM_COLUMNS = (BUCKET, OFFSET, TIMESTAMP)
_BEFORE_LOG = -1
_LEAST_MICROSECOND = -(2**63 // 1000)
FIELD_ID = b"PARQUET:field_id"
# a row group is written when it has this number of rows, or of bytes
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 16 << 20
# Of how many rows a column's values are counted, and up to which share of different ones it has a
# dictionary. Measured with the columns of TPC-H, row groups of 56,000 rows and LZ4: a column with
# more is read in 60 to 85 % of the time without one, and takes 55 to 95 % of the bytes; with less,
# a dictionary makes it faster and smaller (of 18 %: 9.7 ms for 13.2, 7.5 MB for 11.6).
_COUNTED_ROWS = 1 << 16
_DICTIONARY_SHARE = 0.2


def to_lake(rows: pa.Table, schema: pa.Schema, bucket: int, path: object) -> pa.Table:
    """Return rows with the columns of the lake table.

    ``rows`` have ``_log_offset`` and ``_commit_timestamp`` beside the table's columns, or neither
    where they stand for no change: both are -1 in the lake then. ``path`` is the table's, for
    errors.
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
        return lake_cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FlussError(
            f"column {field.name!r} of table {path} has type {column.type}, which cannot be"
            f" written as the lake's {field.type}: {error}"
        ) from error


def lake_cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values as the lake has them: of nanoseconds the microseconds that they are within.

    Raises pyarrow.ArrowInvalid for a moment that is too far away to be counted in microseconds.
    """
    if has_nanoseconds(column.type):
        chunks = [_in_microseconds(chunk, kind) for chunk in column.chunks]
        if chunks:
            column = pa.chunked_array(chunks)
    # a time of day is never negative, so that cutting off digits rounds down
    options = pc.CastOptions(target_type=kind, allow_time_truncate=True)
    return column.cast(options=options)


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type is one of moments in nanoseconds, or has such a part."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(has_nanoseconds(kind.field(at).type) for at in range(kind.num_fields))


def _in_microseconds(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values whose timestamps are in microseconds where ``kind`` has these.

    A cast cuts off towards 1970, and so gives a moment before it that of another one.
    """
    own = values.type
    if pa.types.is_timestamp(own):
        if own.unit != "ns" or kind.unit != "us":
            return values
        whole = pc.divide(values.view(pa.int64()), 1000)
        back = pc.less(pc.subtract(values.view(pa.int64()), pc.multiply(whole, 1000)), 0)
        floor = pc.subtract(whole, back.cast(pa.int64()))
        # an earlier moment could not be turned back to nanoseconds
        floor = pc.max_element_wise(floor, _LEAST_MICROSECOND, skip_nulls=False)
        return floor.view(pa.timestamp("us", own.tz))
    if not has_nanoseconds(own):
        return values
    # copied, because the arrays may be slices of others, and their parts would not be
    values = values.take(pa.array(np.arange(len(values))))
    missing = values.is_null()
    if pa.types.is_struct(own):
        parts = [
            _in_microseconds(values.field(at), kind.field(at).type) for at in range(own.num_fields)
        ]
        named = [own.field(at).with_type(part.type) for at, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=named, mask=missing)
    if pa.types.is_map(own):
        keys = _in_microseconds(values.keys, kind.key_type)
        items = _in_microseconds(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, mask=missing)
    made = pa.LargeListArray if pa.types.is_large_list(own) else pa.ListArray
    return made.from_arrays(
        values.offsets, _in_microseconds(values.values, kind.value_type), mask=missing
    )


def viewed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values with other names of nested fields; nothing else may differ.

    A cast would find nested fields by their names, and fill those that it does not find with null.
    """
    if column.type == kind:
        return column
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)


def named_by_ids(kind: pa.DataType, name_of: Callable[[int], str | None]) -> pa.DataType:
    """Return a type of a Parquet file with the names that nested fields have in the table.

    In files they may be called otherwise: Iceberg writers replace what Avro does not allow. The
    fields of ``kind`` have their ids in their metadata. ``name_of`` returns the name of an id, None
    where the table has no such field.
    """

    def renamed(field: pa.Field) -> pa.Field:
        inner = field.with_type(named_by_ids(field.type, name_of))
        text = (field.metadata or {}).get(FIELD_ID)
        name = None if text is None else name_of(int(text))
        return inner if name is None else inner.with_name(name)

    if pa.types.is_struct(kind):
        return pa.struct([renamed(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, renamed(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(renamed(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(renamed(kind.value_field))
    return kind


def is_a_group(rows: int, size: int) -> bool:
    """Return whether these are enough rows, or bytes, for a row group."""
    return rows >= _GROUP_ROWS or size >= _GROUP_BYTES


def write_groups(parquet: pq.ParquetWriter, rows: pa.Table, schema: pa.Schema) -> None:
    """Write rows with the columns of a file: readers skip row groups, and read them side by side.

    There must be a row. ``schema`` has the types of the file's columns.
    """
    groups = max(-(-rows.num_rows // _GROUP_ROWS), -(-rows.nbytes // _GROUP_BYTES))
    columns = [viewed(rows.column(at), field.type) for at, field in enumerate(schema)]
    parquet.write_table(
        pa.Table.from_arrays(columns, schema=schema), row_group_size=-(-rows.num_rows // groups)
    )


def dictionary_columns(rows: pa.Table, schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that get dictionaries, as its writer names them.

    These are the columns whose values repeat among ``rows``, the first rows of the file, and all
    nested ones, whose values are not counted.
    """
    found: list[str] = []
    for at, field in enumerate(schema):
        paths = _leaves(field)
        if paths == [field.name] and not pa.types.is_boolean(field.type):
            values = rows.column(at).slice(0, _COUNTED_ROWS).combine_chunks()
            # types that no column of Fluss becomes stay uncounted: somebody added them by hand
            with contextlib.suppress(pa.ArrowNotImplementedError):
                different = len(values.dictionary_encode().dictionary)
                if different > _DICTIONARY_SHARE * len(values):
                    continue
        found += paths
    return found


def _leaves(field: pa.Field) -> list[str]:
    """Return the paths of what a column has values of, as Parquet has them."""
    kind, name = field.type, field.name
    if pa.types.is_struct(kind):
        inner = [kind.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        name += ".key_value"
        inner = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        name += ".list"
        inner = [kind.value_field.with_name("element")]
    else:
        return [name]
    return [f"{name}.{path}" for each in inner for path in _leaves(each)]
