"""Keys as Paimon's binary rows: null bits, 8 bytes for each field, then longer values.

The first 8 bits are the row kind (always insert), the null bits follow; keys hold no nulls, so both
are zero. A string of up to 7 bytes stands in its field, with 0x80 | length in the last byte; a
longer one stands behind, padded to words of 8 bytes, with offset << 32 | length in its field.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.record.layout.bytes_columns import (
    Field,
    Int64s,
    Keys,
    big_endian_decimals,
    booleans,
    numbers,
    of_binary,
    scatter,
    time_millis,
    timestamp_parts,
    unscaled_int64,
)
from fluss_df.types import DataType, TypeRoot

_R = TypeRoot
_INLINE = 7


def encode(arrays: Sequence[pa.Array], types: Sequence[DataType]) -> Keys:
    """Encode columns without nulls; the types are checked.

    Raises FlussError for a type that cannot be in a key for Paimon.
    """
    n, arity = len(arrays[0]), len(arrays)
    bits = (arity + 63 + 8) // 64 * 8
    head = bits + 8 * arity
    fixed: list[npt.NDArray[np.uint64]] = []
    behind: list[tuple[Field, Int64s, Int64s] | None] = []
    cursor = np.full(n, head, np.int64)
    for array, t in zip(arrays, types, strict=True):
        words, tail = _split(array, t)
        if tail is not None:
            # the field holds where its bytes stand and how many (or, for timestamps, nanoseconds)
            field, sizes, room = tail
            at = cursor.copy()
            inline = room == 0
            place = (at.astype(np.uint64) << np.uint64(32)) | sizes.astype(np.uint64)
            words = np.where(inline, words, place)
            behind.append((field, at, room))
            cursor = cursor + room
        else:
            behind.append(None)
        fixed.append(words)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(cursor, out=offsets[1:])
    out = np.zeros(int(offsets[-1]), np.uint8)
    span = np.arange(8)
    for i, part in enumerate(fixed):
        at = offsets[:-1] + bits + 8 * i
        out[at[:, None] + span] = np.ascontiguousarray(part).view(np.uint8).reshape(n, 8)
    for tail in behind:
        if tail is not None:
            field, at, room = tail
            kept = np.flatnonzero(room)
            scatter(field, kept, out, (offsets[:-1] + at)[kept])
    return Keys(out, offsets)


def _split(
    array: pa.Array, t: DataType
) -> tuple[npt.NDArray[np.uint64], tuple[Field, Int64s, Int64s] | None]:
    """Return the words of a column, and what stands behind: bytes, sizes, room taken (0: none)."""
    root = t.root
    n = len(array)
    if root in (_R.STRING, _R.CHAR, _R.BYTES, _R.BINARY):
        field = of_binary(array)
        room = np.where(field.lengths > _INLINE, (field.lengths + 7) // 8 * 8, 0)
        return _inline(field), (field, field.lengths, room)
    if root is _R.DECIMAL and (t.precision or 0) > 18:
        field = big_endian_decimals(array)
        return np.zeros(n, np.uint64), (field, field.lengths, np.full(n, 16, np.int64))
    if root in (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE):
        millis, nanos = timestamp_parts(array)
        if (t.precision or 0) <= 3:
            return millis.view(np.uint64), None
        eight = np.full(n, 8, np.int64)
        field = Field(millis.view(np.uint8), eight)
        return np.zeros(n, np.uint64), (field, nanos.astype(np.int64), eight)
    return _word(array, t), None


def _inline(field: Field) -> npt.NDArray[np.uint64]:
    short = np.flatnonzero(field.lengths <= _INLINE)
    matrix = np.zeros((len(field.lengths), 8), np.uint8)
    flat = matrix.reshape(-1)
    scatter(field, short, flat, short * 8)
    matrix[:, 7] = 0x80 | (field.lengths & 0x7F)
    return matrix.view(np.uint64)[:, 0]


def _word(array: pa.Array, t: DataType) -> npt.NDArray[np.uint64]:
    root = t.root
    if root is _R.BOOLEAN:
        return booleans(array).astype(np.uint64)
    if root is _R.TINYINT:
        return numbers(array, np.uint8).astype(np.uint64)
    if root is _R.SMALLINT:
        return numbers(array, np.uint16).astype(np.uint64)
    if root in (_R.INTEGER, _R.DATE, _R.FLOAT):
        return numbers(array, np.uint32).astype(np.uint64)
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        return time_millis(array).astype(np.uint32).astype(np.uint64)
    if root in (_R.BIGINT, _R.DOUBLE):
        return numbers(array, np.uint64).astype(np.uint64)
    if root is _R.DECIMAL:
        return unscaled_int64(array).astype(np.int64).view(np.uint64)
    raise FlussError(f"a column of type {t} cannot be part of a key for Paimon")
