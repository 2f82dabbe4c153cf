"""Keys as Iceberg's bucket transform hashes them: one column, no lengths.

Integers and dates are widened to 8 bytes, timestamps and times are microseconds, decimals
are big endian.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def encode(arrays: Sequence[pa.Array], types: Sequence[DataType]) -> Keys:
    """Encode columns without nulls; the types are checked.

    Raises FlussError for more than one column, or a type that Fluss does not bucket for Iceberg.
    """
    if len(arrays) != 1:
        raise FlussError(f"a key for Iceberg has exactly one column, not {len(arrays)}")
    return as_keys(_field(arrays[0], types[0]))


def _field(array: pa.Array, t: DataType) -> Field:
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
    raise FlussError(f"a column of type {t} cannot be the bucket key of a table for Iceberg")
