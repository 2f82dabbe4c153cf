"""Spark's types of a table's columns, and Arrow data in exactly the form that Spark takes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.metadata import TablePath


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types that Arrow data of a schema is handed to Spark with."""
    fields = [pa.field(field.name, _spark_form(field.type)) for field in schema]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)


def arrow_schema(schema: StructType, what: str) -> pa.Schema:
    """Return the Arrow types of Spark's own, all of them nullable.

    Raises SchemaMismatchError for a type that has none; it begins with ``what``, as ``table d.t``.
    """
    fields = []
    for field in schema.fields:
        try:
            (made,) = to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException:
            raise SchemaMismatchError(
                f"{what}: column '{field.name}' is {field.dataType.simpleString()}, which cannot be"
                " written: cast it first, or leave it out"
            ) from None
        fields.append(made.with_nullable(True))
    return pa.schema(fields)


def _spark_form(t: pa.DataType) -> pa.DataType:
    """Return the type among those that Spark knows which holds all values, but for nanoseconds."""
    if pa.types.is_dictionary(t):
        return t.value_type
    if pa.types.is_fixed_size_binary(t) and not pa.types.is_decimal(t):
        return pa.binary()
    if pa.types.is_time(t):
        return pa.time64("us")
    if pa.types.is_timestamp(t):
        return pa.timestamp("us", t.tz)
    if pa.types.is_map(t):
        return pa.map_(_spark_form(t.key_type), _spark_form(t.item_type))
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return pa.list_(_spark_form(t.value_type))
    if pa.types.is_struct(t):
        return pa.struct([pa.field(f.name, _spark_form(f.type)) for f in t])
    return t


class SparkCast:
    """Turns decoded rows into what Spark takes; never changes a value.

    The result has the columns of ``schema``, in its order. ``path`` is the table's, for errors.
    Spark has six digits of a second: with ``truncate``, further digits may be cut off.
    """

    def __init__(self, schema: StructType, path: TablePath, *, truncate: bool = False) -> None:
        # a schema given by the user may say NOT NULL, and then Spark expects it in the data
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._path = path
        self._truncate = truncate
        self._required = [field.name for field in self._schema if requires_values(field.type)]

    def __call__(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Return rows as record batches of Spark's form."""
        columns = [self._column(table.column(f.name), f.name, f.type) for f in self._schema]
        for field, column in zip(self._schema, columns, strict=True):
            if column.null_count and not field.nullable:
                raise SchemaMismatchError(
                    f"table {self._path}: column '{field.name}' has nulls, and the schema says"
                    " NOT NULL"
                )
            if field.name in self._required and any(map(has_hidden_nulls, column.chunks)):
                # Spark's own error is 'Value at index is null', and names no column
                raise SchemaMismatchError(
                    f"table {self._path}: column '{field.name}' has nulls in its lists or maps, and"
                    f" the schema says that there are none: {field.type}"
                )
        if not columns:
            # a count needs no column, but the number of rows has to be kept
            table = table.select([])
        else:
            table = pa.Table.from_arrays(columns, schema=self._schema)
        made: list[pa.RecordBatch] = table.to_batches()
        return made

    def _column(self, column: pa.ChunkedArray, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
        if column.type == wanted and not _has_time(wanted):
            return column
        try:
            # by way of Spark's precision: its times come as nanoseconds, and hold microseconds,
            # within lists, maps and rows as well
            return column.cast(_spark_form(column.type)).cast(wanted)
        except pa.ArrowInvalid as error:
            if self._truncate:
                return earlier(column).cast(_spark_form(column.type)).cast(wanted)
            raise FlussError(
                f"table {self._path}: column '{name}' ({column.type}) has a value that Spark"
                f" cannot hold as {wanted}: {error}; option 'truncate.nanoseconds' cuts off the"
                " digits that do not fit, option 'columns' leaves the column out",
                ErrorCode.UNSUPPORTED_VERSION,
            ) from None
        except pa.ArrowException as error:
            raise FlussError(
                f"table {self._path}: column '{name}' ({column.type}) cannot be handed to Spark as"
                f" {wanted}: {error}; leave it out by option 'columns'",
                ErrorCode.UNSUPPORTED_VERSION,
            ) from None


def _has_time(kind: pa.DataType) -> bool:
    """Whether values of a type are times of day, or have some within."""
    return pa.types.is_time(kind) or any(
        _has_time(kind.field(i).type) for i in range(kind.num_fields)
    )


def requires_values(kind: pa.DataType) -> bool:
    """Whether a type says, of what lists, maps and rows have within, that it is never null."""
    if pa.types.is_map(kind):
        # keys of maps are never null, whatever the schema says
        return not kind.item_field.nullable or any(
            map(requires_values, (kind.key_type, kind.item_type))
        )
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any(not field.nullable or requires_values(field.type) for field in fields)


def has_hidden_nulls(array: pa.Array) -> bool:
    """Whether lists or maps have nulls where their type says that there are none.

    Casts see to it that the fields of rows have none.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        return any(map(has_hidden_nulls, array.drop_null().flatten()))
    if pa.types.is_map(kind):
        fields = [kind.key_field.with_nullable(True), kind.item_field.with_nullable(True)]
        values, field = array.cast(pa.list_(pa.struct(fields))).flatten().field(1), kind.item_field
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values, field = array.flatten(), kind.value_field
    else:
        return False
    return bool(values.null_count and not field.nullable) or has_hidden_nulls(values)


def earlier(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose times have microseconds, cut off towards the past.

    A cast rounds times before 1970 to later ones.
    """
    chunks = [_earlier(chunk) for chunk in column.chunks]
    return pa.chunked_array(chunks, chunks[0].type) if chunks else column


def _earlier(array: pa.Array) -> pa.Array:
    kind = array.type
    if not has_nanoseconds(kind):
        return array
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        whole = array.cast(pa.int64())
        if not pa.types.is_time(kind):
            # a time of day is never negative
            numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
            made = pa.array(np.floor_divide(numbers, 1000), mask=whole.is_null().to_numpy(False))
            return made.cast(pa.timestamp("us", kind.tz))
        return array.cast(pa.time64("us"), safe=False)
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [_earlier(array.field(i)) for i in range(kind.num_fields)]
        fields = [field.with_type(c.type) for field, c in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if pa.types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        values = _earlier(entries.flatten())
        offsets = _offsets(entries, pa.int32())
        return pa.MapArray.from_arrays(offsets, values.field(0), values.field(1), mask=nulls)
    large = pa.types.is_large_list(kind)
    offsets = _offsets(array, pa.int64() if large else pa.int32())
    made = pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(offsets, _earlier(array.flatten()), mask=nulls)


def _offsets(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return where each list begins and ends among the values of all that are there."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), kind)


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether values of a type have, or may have within, times with nanoseconds."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return bool(kind.unit == "ns")
    return any(has_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
