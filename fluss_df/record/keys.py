"""Keys of rows as bytes, which decide the bucket of a row and name a row in a primary-key table.

Which encoding a table uses depends on its data lake: Fluss's own (also for Lance), Paimon's, or
Iceberg's, so that a row stands in the same bucket of the lake.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record import keys_iceberg, keys_paimon
from fluss_df.record.bytes_columns import (
    Field,
    Keys,
    as_array,
    big_endian_decimals,
    booleans,
    concat,
    numbers,
    of_binary,
    of_numbers,
    refuse_nulls,
    time_millis,
    timestamp_parts,
    unscaled_int64,
    varint,
)
from fluss_df.types import DataType, TypeRoot, to_arrow

__all__ = ["Keys", "encode_keys"]

_R = TypeRoot


def encode_keys(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    lake_format: str | None = None,
    *,
    names: Sequence[str] | None = None,
    table: str | None = None,
) -> Keys:
    """Encode the key of each row.

    Parameters
    ----------
    columns
        The key columns in key order, of the Arrow types of ``types``.
    types
        Their Fluss types.
    lake_format
        The table's ``table.datalake.format``: None, ``paimon``, ``iceberg`` or ``lance``.
    names, table
        Their names and that of the table, for errors.

    Returns
    -------
    Keys
        One key per row.

    Raises
    ------
    SchemaMismatchError
        For a null in a key column, naming column and row (0 based), or a column of another type.
    FlussError
        For a type that cannot be a key, or a lake format that is not supported.
    """
    names = [f"#{i}" for i in range(len(columns))] if names is None else names
    if not columns or len(columns) != len(types):
        raise FlussError("a key needs at least one column, and a type for each")
    where = f"table {table}, " if table else ""
    arrays = [as_array(column) for column in columns]
    for array, t, name in zip(arrays, types, names, strict=True):
        if array.type != to_arrow(t):
            raise SchemaMismatchError(
                f"{where}key column '{name}' is {array.type}, not {to_arrow(t)} of type {t}"
            )
        refuse_nulls(array, name, f"{where}key")
    lake = (lake_format or "").lower()
    if lake in ("", "lance"):
        parts: list[Field] = []
        for array, t in zip(arrays, types, strict=True):
            parts += compacted(array, t)
        return concat(parts, len(arrays[0]))
    if lake == "paimon":
        return keys_paimon.encode(arrays, types)
    if lake == "iceberg":
        return keys_iceberg.encode(arrays, types)
    raise FlussError(f"data lake format {lake_format!r}: its keys are not supported")


def compacted(array: pa.Array, t: DataType) -> list[Field]:
    """Return a column without nulls as the fields of Fluss's compacted rows."""
    root = t.root
    if root in (_R.INTEGER, _R.DATE):
        return [varint(numbers(array, np.int32), 32)]
    if root is _R.BIGINT:
        return [varint(numbers(array, np.int64), 64)]
    if root in (_R.STRING, _R.CHAR, _R.BYTES, _R.BINARY):
        field = of_binary(array)
        return [varint(field.lengths, 32), field]
    if root is _R.BOOLEAN:
        return [of_numbers(booleans(array))]
    if root is _R.TINYINT:
        return [of_numbers(numbers(array, np.int8))]
    if root is _R.SMALLINT:
        return [of_numbers(numbers(array, np.int16))]
    if root is _R.FLOAT:
        return [of_numbers(numbers(array, np.float32))]
    if root is _R.DOUBLE:
        return [of_numbers(numbers(array, np.float64))]
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        return [varint(time_millis(array), 32)]
    if root is _R.DECIMAL:
        if (t.precision or 0) <= 18:
            return [varint(unscaled_int64(array), 64)]
        field = big_endian_decimals(array)
        return [varint(field.lengths, 32), field]
    if root in (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        millis, nanos = timestamp_parts(array)
        if (t.precision or 0) <= 3:
            return [varint(millis, 64)]
        return [varint(millis, 64), varint(nanos, 32)]
    raise FlussError(f"a column of type {t} cannot be part of a key")
