"""Keys as Iceberg's bucket transform hashes them: one column, no lengths.

Integers and dates are widened to 8 bytes, timestamps and times are microseconds, decimals
are big endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.record.layout.bytes_columns import (
    Field,
    Keys,
    as_keys,
    big_endian_decimals,
    numbers,
    of_binary,
    of_numbers,
    time_millis,
    timestamp_parts,
)
from fluss_df.types import DataType, TypeRoot

_R = TypeRoot
#: What may be the bucket key of a table for Iceberg. Fluss, here and in Java, encodes no others but
#: FLOAT and DOUBLE, and of these Iceberg itself makes no buckets.
BUCKETED: Final = frozenset(
    {
        _R.INTEGER,
        _R.BIGINT,
        _R.DATE,
        _R.TIME_WITHOUT_TIME_ZONE,
        _R.TIMESTAMP_WITHOUT_TIME_ZONE,
        _R.DECIMAL,
        _R.STRING,
        _R.CHAR,
        _R.BINARY,
        _R.BYTES,
    }
)


def not_bucketed(where: str, name: str, t: DataType) -> str:
    """Return why a column cannot be the bucket key, and the way out; ``where`` names the table."""
    return (
        f"{where}column '{name}' of type {t.with_nullable(True)} cannot be the bucket key of a"
        " table with a lake in Iceberg; choose a column of INT, BIGINT, DATE, TIME, TIMESTAMP,"
        " DECIMAL, STRING, CHAR, BINARY or BYTES, or make the table without a lake"
    )


def encode(
    arrays: Sequence[pa.Array], types: Sequence[DataType], names: Sequence[str], where: str = ""
) -> Keys:
    """Encode columns without nulls; the types are checked.

    ``names`` are the columns, and ``where`` begins errors: it names the table, or is empty.

    Raises FlussError for more than one column, or a type that Fluss does not bucket for Iceberg.
    """
    if len(arrays) != 1:
        raise FlussError(
            f"{where}a key for Iceberg has exactly one column, not {len(arrays)}:"
            f" {', '.join(names)}"
        )
    field = _field(arrays[0], types[0])
    if field is None:
        raise FlussError(not_bucketed(where, names[0], types[0]))
    return as_keys(field)


def _field(array: pa.Array, t: DataType) -> Field | None:
    """Return the bytes of each value; None for a type that is not bucketed."""
    root = t.root
    if root in (_R.INTEGER, _R.DATE):
        return of_numbers(numbers(array, np.int32).astype(np.int64))
    if root is _R.BIGINT:
        return of_numbers(numbers(array, np.int64))
    if root is _R.FLOAT:
        return of_numbers(numbers(array, np.float32))
    if root is _R.DOUBLE:
        return of_numbers(numbers(array, np.float64))
    if root is _R.TIME_WITHOUT_TIME_ZONE:
        return of_numbers(time_millis(array).astype(np.int64) * 1000)
    if root is _R.TIMESTAMP_WITHOUT_TIME_ZONE:
        millis, nanos = timestamp_parts(array)
        return of_numbers(millis * 1000 + nanos // 1000)
    if root is _R.DECIMAL:
        return big_endian_decimals(array)
    if root in (_R.STRING, _R.CHAR, _R.BYTES, _R.BINARY):
        return of_binary(array)
    return None
