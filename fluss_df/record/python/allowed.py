"""Values that their own Arrow type does not allow: Arrow makes arrays without looking at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from fluss_df.errors import SchemaMismatchError
from fluss_df.types import Column

_Values = TypeVar("_Values", pa.Array, pa.ChunkedArray)


def check_allowed(made: pa.Array | pa.ChunkedArray, column: Column, table: str) -> None:
    """Refuse values that their Arrow type does not allow: Arrow makes arrays without looking."""
    try:
        if pa.types.is_string(made.type) and _is_ascii(made):
            return
        # about a millisecond for 100,000 texts; nothing for numbers
        made.validate(full=True)
        return
    except pa.ArrowInvalid:
        pass

    def check(part: pa.Array | pa.ChunkedArray) -> None:
        # of a slice, Arrow validates the whole child arrays of its lists; a copy has only the
        # slice's
        part.take(np.arange(len(part))).validate(full=True)

    try:
        check(made)
        return
    except pa.ArrowInvalid:
        row, error = first_refused(made, check)
    # for nested values and chunks, the message begins with the way to the value that is wrong
    why = str(error).rpartition("Invalid: ")[2]
    raise SchemaMismatchError(
        f"table {table}, column '{column.name}': row {row}: a value that {column.type} cannot hold,"
        f" so that nobody could read its batch ({why}): correct it, or make it null"
    )


def _is_ascii(texts: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether texts are sound and of ASCII: in a twentieth of the time of ``validate``.

    Arrow looks at each text by itself. Here the bytes of all are looked at together.
    """
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        # that the buffers are as long as the array says
        chunk.validate()
        _, offsets, data = chunk.buffers()
        if offsets is None or data is None or not len(chunk):
            return False
        ends = np.frombuffer(offsets, np.int32, len(chunk) + 1, chunk.offset * 4)
        first, last = int(ends[0]), int(ends[-1])
        if not 0 <= first < last <= len(data) or (ends[1:] < ends[:-1]).any():
            return False
        # a byte outside ASCII is negative
        if np.frombuffer(data, np.int8, last - first, first).min() < 0:
            return False
    return True


def first_refused(array: _Values, check: Callable[[_Values], object]) -> tuple[int, Exception]:
    """Return the first row of those that a check refuses, and why: twice the work of one check."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check(array.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    try:
        check(array.slice(low, 1))
    except pa.ArrowInvalid as error:
        return low, error
    raise AssertionError("what is refused as a whole is refused in one of its rows")
