"""Building rows of bytes column by column: the common ground of the key encoders.

A column becomes a :class:`Field`: bytes of all rows and the length of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import SchemaMismatchError

UInt8s = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_EMPTY: Final = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of all rows: the bytes of the rows behind each other, and how many of each."""

    data: UInt8s
    lengths: Int64s

    @property
    def starts(self) -> Int64s:
        """Where the bytes of each row begin."""
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Bytes of all rows (or keys): those of row i are ``data[offsets[i] : offsets[i + 1]]``."""

    data: UInt8s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))


Keys = EncodedRows


def fixed(matrix: UInt8s) -> Field:
    """Return a field whose rows are the rows of a matrix of bytes."""
    n, width = matrix.shape
    return Field(matrix.reshape(-1), np.full(n, width, np.int64))


def of_numbers(values: npt.NDArray[np.generic]) -> Field:
    """Return the little-endian bytes of numbers."""
    values = np.ascontiguousarray(values)
    return fixed(values.view(np.uint8).reshape(len(values), values.itemsize))


def of_binary(array: pa.Array) -> Field:
    """Return the bytes of a string, binary or fixed-size binary array without nulls."""
    n = len(array)
    if not n:
        return Field(_EMPTY, np.zeros(0, np.int64))
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)
        return Field(data[array.offset * width : (array.offset + n) * width], np.full(n, width))
    _, offsets_buffer, data_buffer = array.buffers()
    raw = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + n + 1]
    data = _EMPTY if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Field(data[raw[0] : raw[-1]], np.diff(raw).astype(np.int64))


def scatter(field: Field, rows: Int64s, out: UInt8s, at: Int64s) -> None:
    """Copy the bytes of some rows of a field to ``out[at[i] :]``."""
    lengths = field.lengths[rows]
    starts = field.starts[rows]
    # one index per byte: the row's start, and the distance into the row
    inner = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    out[np.repeat(at, lengths) + inner] = field.data[np.repeat(starts, lengths) + inner]


def as_keys(field: Field) -> Keys:
    """Return the bytes of each row as its key."""
    offsets = np.zeros(len(field.lengths) + 1, np.int64)
    np.cumsum(field.lengths, out=offsets[1:])
    return Keys(field.data, offsets)


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array of a column in one or many chunks."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks()
    return column


def refuse_nulls(array: pa.Array, name: str, what: str) -> None:
    """Raise where a key column holds a null.

    Raises SchemaMismatchError, naming the column and the first row (0 based).
    """
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise SchemaMismatchError(f"{what} column '{name}' is null in row {row}")


def numbers(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return the values of a fixed-width array without nulls, reading its buffer as ``kind``."""
    if not len(array):
        return np.zeros(0, kind)
    values = np.frombuffer(array.buffers()[1], kind)
    return values[array.offset : array.offset + len(array)]


def big_endian_decimals(array: pa.Array) -> Field:
    """Return the minimal big-endian two's complement of the unscaled values of a decimal128."""
    n = len(array)
    if not n:
        return Field(_EMPTY, np.zeros(0, np.int64))
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    raw = raw[array.offset * 16 : (array.offset + n) * 16].reshape(n, 16)
    big = np.ascontiguousarray(raw[:, ::-1])
    sign = np.where(big[:, 0] & 0x80, 0xFF, 0).astype(np.uint8)
    # the first byte that is not just a repetition of the sign
    differs = big != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15)
    # its top bit must be that of the sign, else one byte more is kept
    top = big[np.arange(n), first] & 0x80
    first = np.maximum(np.where(top != (sign & 0x80), first - 1, first), 0)
    return Field(big[np.arange(16) >= first[:, None]], 16 - first)


_MILLIS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_NANOS: Final = {"s": 0, "ms": 0, "us": 1_000, "ns": 1}


def timestamp_parts(array: pa.Array) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """Return milliseconds (rounded down) and nanoseconds of the millisecond."""
    values = numbers(array, np.int64).astype(np.int64)
    factor, divisor = _MILLIS[array.type.unit]
    if divisor == 1:
        return values * factor, np.zeros(len(values), np.int32)
    millis = values // divisor
    rest = values - millis * divisor
    return millis, (rest * _NANOS[array.type.unit]).astype(np.int32)


def time_millis(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return a TIME as Fluss's rows hold it: int32 milliseconds of the day."""
    unit = array.type.unit
    kind = np.int32 if unit in ("s", "ms") else np.int64
    factor, divisor = _MILLIS[unit]
    return (numbers(array, kind).astype(np.int64) * factor // divisor).astype(np.int32)


def booleans(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 0 or 1 per row."""
    return numbers(pc.cast(array, pa.uint8()), np.uint8).astype(np.uint8)


def unscaled_int64(array: pa.Array) -> Int64s:
    """Return the unscaled values of a decimal128 of at most 18 digits."""
    if not len(array):
        return np.zeros(0, np.int64)
    raw = np.frombuffer(array.buffers()[1], np.int64)
    return raw[array.offset * 2 : (array.offset + len(array)) * 2 : 2]
