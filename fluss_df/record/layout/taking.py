"""Rows by their places, also of columns that are larger than an Arrow array can be.

A string or binary array holds 2 GiB at the most, and so do arrays of lists and structs of them. A
column of several chunks can be larger, and Arrow's own ``take`` joins its chunks first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# the bytes of a column, from which on its chunks are not joined
_MOST_BYTES: Final = 1 << 30


def take_rows(table: pa.Table, places: pa.Array) -> pa.Table:
    """Return the rows of a table at some places; a row of nulls where a place is null.

    Examples
    --------
    >>> take_rows(pa.table({"x": ["a", "b"]}), pa.array([1, None])).to_pylist()
    [{'x': 'b'}, {'x': None}]
    """
    columns = [take_values(column, places) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def take_values(column: pa.ChunkedArray, places: pa.Array) -> pa.ChunkedArray:
    """Return the values of a column at some places, each at most once; null where one is null."""
    if column.nbytes <= _MOST_BYTES or not len(places):
        return column.take(places)
    pieces = -(-column.nbytes // _MOST_BYTES)
    rows = -(-len(places) // pieces)
    begins = np.cumsum([0, *map(len, column.chunks)])
    taken: list[pa.Array] = []
    for start in range(0, len(places), rows):
        taken += _piece(column.chunks, begins, places.slice(start, rows))
    return pa.chunked_array(taken, column.type)


def _piece(
    chunks: list[pa.Array], begins: npt.NDArray[np.int64], places: pa.Array
) -> list[pa.Array]:
    """Return the values at some places, as few arrays as can hold them."""
    try:
        return [_gathered(chunks, begins, places)]
    except pa.ArrowInvalid:
        # Too many bytes for one array. Halves can be uneven, as rows are of different sizes: each
        # is tried the same way.
        half = len(places) // 2
        if not half:
            raise
        return [
            *_piece(chunks, begins, places.slice(0, half)),
            *_piece(chunks, begins, places.slice(half)),
        ]


def _gathered(chunks: list[pa.Array], begins: npt.NDArray[np.int64], places: pa.Array) -> pa.Array:
    """Return the values at some places as one array: chunk by chunk, and then in their order."""
    found = places.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(found, kind="stable")
    ascending = found[order]
    cuts = np.searchsorted(ascending, begins)
    parts = [
        chunk.take(pa.array(ascending[first:last] - begin))
        for chunk, begin, first, last in zip(chunks, begins, cuts, cuts[1:], strict=False)
        if last > first
    ]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    if places.null_count:
        missing = places.is_null().to_numpy(zero_copy_only=False)
        whole = np.zeros(len(places), np.int64)
        whole[~missing] = back
        index = pa.array(whole, mask=missing)
    else:
        index = pa.array(back)
    joined = pa.concat_arrays(parts) if parts else chunks[0].slice(0, 0)
    return joined.take(index)
