"""Columns of many small chunks, whose chunks are put together: each chunk costs much by itself."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: Chunks that have fewer rows than this on average are put together.
SMALL_CHUNK_ROWS: Final = 1000
#: The most rows that are put together.
JOINED_ROWS: Final = 1 << 14
# the most bytes of a column that are put together: the offsets of texts end at 2 GiB
_JOINED_BYTES: Final = 16 << 20


def are_small(rows: int, chunks: int) -> bool:
    """Return whether chunks of some rows in all are worth being put together."""
    return chunks > 1 and rows < chunks * SMALL_CHUNK_ROWS


def joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with its small chunks put together, the rows in their order.

    A column whose chunks are large is returned as it is, and so are chunks that have many bytes:
    at most 16 MiB are copied at a time, and each row once.
    """
    rows = len(column)
    if not are_small(rows, column.num_chunks):
        return column
    # all dictionaries would become one, however few rows refer to them
    dictionaries = column.chunks if pa.types.is_dictionary(column.type) else []
    if sum(len(chunk.dictionary) for chunk in dictionaries) > rows + JOINED_ROWS:
        return column
    chunks: list[pa.Array] = []
    for start in range(0, rows, JOINED_ROWS):
        part = column.slice(start, JOINED_ROWS)
        chunks += part.chunks if _size(part) > _JOINED_BYTES else _as_one(part)
    return pa.chunked_array(chunks, column.type)


def _size(part: pa.ChunkedArray) -> int:
    """Return about how many bytes a part of a column has: `nbytes` asks each chunk slowly."""
    kind, types = part.type, pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind):
        return int(pc.sum(pc.binary_length(part)).as_py() or 0)
    try:
        return int(len(part) * kind.bit_width // 8)
    except ValueError:
        return int(part.nbytes)


def _as_one(part: pa.ChunkedArray) -> list[pa.Array]:
    try:
        made = part.combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # dictionaries that are too many for their indices together, or a type that Arrow of
        # this version cannot put together
        return list(part.chunks)
    return list(made.chunks) if isinstance(made, pa.ChunkedArray) else [made]
