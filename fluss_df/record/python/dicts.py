"""Arrow rows as dicts of Python values, also where Python's own types cannot hold a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError

# what Arrow raises for a date or a moment beyond the years 1 to 9999
_BEYOND = (OverflowError, ValueError)


def dicts_of(data: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as dicts.

    Dates and moments beyond the years of Python are ``numpy.datetime64``, in UTC.

    Raises FlussError where such a value stands in an array, a map or a row, naming the column.

    Examples
    --------
    >>> dicts_of(pa.table({"n": [1, None]}))
    [{'n': 1}, {'n': None}]
    """
    try:
        rows: list[dict[str, Any]] = data.to_pylist()
        return rows
    except _BEYOND:
        names = data.schema.names
        columns = [_values(data.column(name), name) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except _BEYOND:
        return [_value(item, name, row) for row, item in enumerate(column)]


def _value(item: pa.Scalar, name: str, row: int) -> Any:
    try:
        return item.as_py()
    except _BEYOND as error:
        kind = item.type
        if pa.types.is_date32(kind):
            return np.datetime64(item.value, "D")
        if pa.types.is_timestamp(kind):
            return np.datetime64(item.value, kind.unit)
        raise FlussError(
            f"column '{name}': row {row} of these has a date or a moment within {kind} that Python"
            f" cannot hold ({error}): read it as Arrow data, as by poll_arrow() or to_arrow()"
        ) from None
