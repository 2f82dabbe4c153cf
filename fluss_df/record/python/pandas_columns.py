"""Columns of pandas as Arrow's, for :func:`~fluss_df.record.python.coerce.coerce` to check.

pandas has no integers with missing values by default, no dates, and objects of any kind in one
column. Arrow's own conversion to a given type takes more than that: bytes of a number's memory for
a binary, days of a time, the whole part of a decimal, UTC for another zone. So a column is
converted by what it is, and objects as the values of rows are:

=================== ==========================================================================
Column of pandas    goes into
=================== ==========================================================================
floats              whole numbers into integers, those of 64 bits rounded into FLOAT; NaN is null
datetime64          whole days into DATE; without a zone it is UTC to TIMESTAMP_LTZ, as in rows
objects             what a row's value goes into; None, NaN, NaT and pandas.NA are null
others              what the same column of Arrow goes into
=================== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.rows import column_of
from fluss_df.types import Column, TypeRoot, to_arrow


def frame_to_arrow(frame: Any, columns: Sequence[Column], table: str) -> pa.Table:
    """Return a data frame of pandas without its index, each column of a kind that may go in.

    Columns that the table has not are there without their values: their names are what is wrong.
    Raises SchemaMismatchError for a column or a value that cannot be converted.
    """
    known = {column.name: column for column in columns}
    there = frozenset(frame.columns)
    for name in frame.index.names:
        if name in known and name not in there:
            raise SchemaMismatchError(
                f"table {table}: column '{name}' is the index of the data frame, which is not"
                " written: reset_index() makes a column of it"
            )
    names, arrays = [], []
    for at, label in enumerate(frame.columns):
        column = known.get(label)
        names.append(str(label))
        if column is None:
            arrays.append(pa.nulls(len(frame)))
        else:
            arrays.append(_column(frame.iloc[:, at], column, table))
    return pa.Table.from_arrays(arrays, names=names)


def _column(series: Any, column: Column, table: str) -> pa.Array | pa.ChunkedArray:
    if series.dtype == object:
        values = [
            value if there else None
            for value, there in zip(series.tolist(), series.notna().tolist(), strict=True)
        ]
        return column_of(values, column, table)
    if isinstance(series.dtype, np.dtype):
        # pandas' own memory, which the caller may change before it is sent
        series = series.copy()
    try:
        made = pa.array(series, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise SchemaMismatchError(
            f"table {table}, column '{column.name}': a column of pandas of type {series.dtype} does"
            f" not go into {column.type}: {error}"
        ) from error
    root, kind = column.type.root, made.type
    if pa.types.is_floating(kind):
        if pa.types.is_integer(to_arrow(column.type)):
            return _if_same(made, pa.int64())
        if root is TypeRoot.FLOAT:
            return _rounded(made)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        if root is TypeRoot.DATE:
            return _if_same(made, pa.date32())
        if root is TypeRoot.TIMESTAMP_WITH_LOCAL_TIME_ZONE:
            return made.cast(pa.timestamp(kind.unit, "UTC"))
    return made


def _rounded(values: pa.Array) -> pa.Array:
    """Return floats as those of 32 bits: pandas has no others by default than those of 64.

    They stay as they are, to be refused, where one is beyond what 32 bits have.
    """
    made = values.cast(pa.float32())
    beyond = pc.and_(pc.is_inf(made), pc.is_finite(values))
    return values if pc.any(beyond).as_py() else made


def _if_same(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values as another type; as they are where one is not the same, to be refused."""
    try:
        made = values.cast(kind)
    except pa.ArrowInvalid:
        return values
    return made if made.cast(values.type).equals(values) else values
