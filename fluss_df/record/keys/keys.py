"""Keys of rows as bytes, which decide the bucket of a row and name a row in a primary-key table.

Which encoding a table uses depends on its data lake: Fluss's own (also for Lance), Paimon's, or
Iceberg's, so that a row stands in the same bucket of the lake.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.record.keys import keys_iceberg, keys_paimon
from fluss_df.record.layout.bytes_columns import Keys, as_array, refuse_nulls, time_millis
from fluss_df.record.layout.unaligned import Blobs, Part, assemble, join
from fluss_df.record.rows import row_values as rv
from fluss_df.record.rows.compacted import BLOCK_ROWS, field_parts
from fluss_df.types import DataType, TypeRoot, to_arrow

__all__ = ["Keys", "encode_keys"]


def encode_keys(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    lake_format: str | None = None,
    *,
    names: Sequence[str] | None = None,
    table: str | None = None,
) -> Keys:
    """Encode the key of each row.

    ``columns`` are the key columns in key order, of the Arrow types of ``types``. ``lake_format``
    is the table's ``table.datalake.format``: None, ``paimon``, ``iceberg`` or ``lance``. ``names``
    and ``table`` are for errors.

    Raises SchemaMismatchError for a null in a key column, naming column and row (0 based), or a
    column of another type. Raises FlussError for a type that cannot be a key, or a lake format that
    is not supported.
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
        return _compacted(arrays, types, names)
    if lake == "paimon":
        return keys_paimon.encode(arrays, types)
    if lake == "iceberg":
        return keys_iceberg.encode(arrays, types, names, where)
    raise FlussError(f"data lake format {lake_format!r}: its keys are not supported")


def _compacted(arrays: Sequence[pa.Array], types: Sequence[DataType], names: Sequence[str]) -> Keys:
    for array, t, name in zip(arrays, types, names, strict=True):
        if t.root in rv.NESTED:
            no_nested(array, t, name)
    made = []
    for start in range(0, len(arrays[0]), BLOCK_ROWS):
        parts: list[Part] = []
        for array, t, name in zip(arrays, types, names, strict=True):
            block = array.slice(start, BLOCK_ROWS)
            parts += field_parts(_values(block, t, name), t)
        made.append(assemble(parts, min(BLOCK_ROWS, len(arrays[0]) - start)))
    return join(made)


def _values(array: pa.Array, t: DataType, name: str) -> rv.Values:
    if t.root is TypeRoot.TIME_WITHOUT_TIME_ZONE:
        # a key holds milliseconds; a row of a log table may hold finer times, which are cut here
        return rv.Numbers(time_millis(array).view(np.uint32).astype(np.uint64), 4)
    return rv.extract(array, t, name, no_nested)


def no_nested(array: pa.Array, t: DataType, path: str) -> Blobs:
    """Refuse an array, map or row: they cannot be part of a key."""
    raise FlussError(f"column '{path}' of type {t} cannot be part of a key")
