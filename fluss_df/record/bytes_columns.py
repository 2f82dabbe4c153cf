"""Building rows of bytes column by column: the common ground of the key encoders.

A column becomes a :class:`Field`: bytes of all rows and the length of each. :func:`concat` puts
the fields of a row behind each other.
"""

from __future__ import annotations

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
    """One field of all rows: ``data[starts[i] : starts[i] + lengths[i]]`` is that of row i."""

    data: UInt8s
    starts: Int64s
    lengths: Int64s


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of all rows: key i is ``data[offsets[i] : offsets[i + 1]]``."""

    data: UInt8s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def fixed(matrix: UInt8s) -> Field:
    """Return a field whose rows are the rows of a matrix of bytes."""
    n, width = matrix.shape
    starts = np.arange(n, dtype=np.int64) * width
    return Field(matrix.reshape(-1), starts, np.full(n, width, np.int64))


def of_numbers(values: npt.NDArray[np.generic]) -> Field:
    """Return the little-endian bytes of numbers."""
    values = np.ascontiguousarray(values)
    return fixed(values.view(np.uint8).reshape(len(values), values.itemsize))


def varint(values: npt.NDArray[np.integer], width: int) -> Field:
    """Return unsigned LEB128 of the two's complement of ``width`` (32 or 64) bits."""
    unsigned = values.astype(np.int64).view(np.uint64)
    if width == 32:
        unsigned = unsigned & np.uint64(0xFFFFFFFF)
    most = 5 if width == 32 else 10
    # only as many byte columns as the largest value takes
    top = int(unsigned.max()) if len(unsigned) else 0
    most = min(most, max(1, -(-top.bit_length() // 7)))
    matrix = np.empty((len(values), most), np.uint8)
    lengths = np.ones(len(values), np.int64)
    rest = unsigned
    for i in range(most):
        more = rest >> np.uint64(7)
        follows = more != 0
        matrix[:, i] = (rest & np.uint64(0x7F)) | (follows.astype(np.uint64) << np.uint64(7))
        lengths += follows
        rest = more
    starts = np.arange(len(values), dtype=np.int64) * most
    return Field(matrix.reshape(-1), starts, lengths)


def of_binary(array: pa.Array) -> Field:
    """Return the bytes of a string, binary or fixed-size binary array without nulls."""
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * width
        return Field(data, starts, np.full(len(array), width, np.int64))
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    kind = np.int64 if large else np.int32
    if not len(array):
        return Field(_EMPTY, np.zeros(0, np.int64), np.zeros(0, np.int64))
    raw = np.frombuffer(offsets_buffer, kind)[array.offset : array.offset + len(array) + 1]
    offsets = raw.astype(np.int64)
    data = _EMPTY if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Field(data, offsets[:-1], np.diff(offsets))


def gather(source: UInt8s, starts: Int64s, lengths: Int64s, out: UInt8s, at: Int64s) -> None:
    """Copy ``source[starts[i] : +lengths[i]]`` to ``out[at[i] :]`` for all rows."""
    total = int(lengths.sum())
    if not total:
        return
    width = int(lengths[0])
    if (lengths == width).all():
        span = np.arange(width)
        out[at[:, None] + span] = source[starts[:, None] + span]
        return
    # one index per byte: the row's start, and the distance into the row
    first = np.cumsum(lengths) - lengths
    inner = np.arange(total, dtype=np.int64) - np.repeat(first, lengths)
    out[np.repeat(at, lengths) + inner] = source[np.repeat(starts, lengths) + inner]


def concat(fields: list[Field], n: int) -> Keys:
    """Put the fields of each row behind each other."""
    offsets = np.zeros(n + 1, np.int64)
    if not fields:
        return Keys(_EMPTY, offsets)
    total = np.sum([field.lengths for field in fields], axis=0)
    np.cumsum(total, out=offsets[1:])
    if len(fields) == 1 and _is_dense(fields[0]):
        field = fields[0]
        first = int(field.starts[0]) if n else 0
        return Keys(field.data[first : first + int(offsets[-1])], offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for field in fields:
        gather(field.data, field.starts, field.lengths, out, at)
        at += field.lengths
    return Keys(out, offsets)


def _is_dense(field: Field) -> bool:
    ends = field.starts + field.lengths
    return bool((ends[:-1] == field.starts[1:]).all())


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array of a column in one or many chunks."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks()
    return column


def refuse_nulls(array: pa.Array, name: str, what: str) -> None:
    """Raise where a key column holds a null.

    Raises
    ------
    SchemaMismatchError
        Naming the column and the first row (0 based).
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
        return Field(_EMPTY, np.zeros(0, np.int64), np.zeros(0, np.int64))
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    raw = raw[array.offset * 16 : (array.offset + n) * 16].reshape(n, 16)
    big = np.ascontiguousarray(raw[:, ::-1])
    sign = np.where(big[:, 0] & 0x80, 0xFF, 0).astype(np.uint8)
    # the first byte that says more than the sign
    differs = big != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15).astype(np.int64)
    # its top bit must be the sign
    top = big[np.arange(n), first] & 0x80
    first = np.maximum(np.where(top != (sign & 0x80), first - 1, first), 0)
    return Field(big.reshape(-1), np.arange(n, dtype=np.int64) * 16 + first, 16 - first)


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
