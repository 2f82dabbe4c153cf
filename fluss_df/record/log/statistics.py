"""Statistics of log batches: nulls, minimum and maximum of columns, by which servers skip batches.

They stand between the header and the Arrow message: a version (1), the number of columns (int16),
their indexes in the table (int16 each), their null counts (int32 each), and a row of minima and one
of maxima, each behind its length (int32). The rows are in the aligned format: a byte of header and
the null bits, in whole words of 8 bytes; a word for each column; and what does not fit a word, in
whole words. Numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.schema import TableInfo
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot
_PROPERTY: Final = "table.statistics.columns"
_ALL: Final = "*"
_VERSION: Final = 1
_WORD: Final = 8
_HEADER_BITS: Final = 8
_LONGEST_INLINE: Final = 7
_MOST_TEXT: Final = 8192
_DECIMAL_BYTES: Final = 16
_FLOATS: Final = (_R.FLOAT, _R.DOUBLE)
_PACK: Final = {
    _R.BOOLEAN: "<?",
    _R.TINYINT: "<b",
    _R.SMALLINT: "<h",
    _R.INTEGER: "<i",
    _R.BIGINT: "<q",
    _R.FLOAT: "<f",
    _R.DOUBLE: "<d",
    _R.DATE: "<i",
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: "<q",
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: "<q",
}
_STAMPS: Final = (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE)
_COLLECTED: Final = (*_PACK, _R.STRING, _R.DECIMAL)
# other clients collect these too
_READ: Final = _PACK | {_R.TIME_WITHOUT_TIME_ZONE: "<i"}
_STRINGS: Final = (_R.CHAR, _R.STRING)
_SIGN: Final = 1 << 63


def statistics_columns(info: TableInfo) -> list[Column]:
    """Return the columns that a table's batches should have statistics of.

    Those of types without an order, or whose order here and at servers differs, are left out: a
    batch says itself which columns it has them for.
    """
    wanted = info.get_properties().get(_PROPERTY, "").strip()
    names = {name.strip() for name in wanted.split(",")}
    return [
        column
        for column in info.schema.columns
        if (wanted == _ALL or column.name in names) and column.type.root in _COLLECTED
    ]


def encode_statistics(batch: pa.RecordBatch, columns: Sequence[Column]) -> bytes:
    """Return the statistics of a batch; none of a column whose least or greatest text is long."""
    found: list[tuple[Column, int, int, tuple[Any, Any]]] = []
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        array = batch.column(index)
        pair = _bounds(array, column.type)
        # minimum and maximum are not compressed, so long texts would cost more than they save
        if column.type.root is not _R.STRING or sum(len(text or b"") for text in pair) < _MOST_TEXT:
            found.append((column, index, array.null_count, pair))
    if not found:
        return b""
    kept, indexes, nulls, bounds = zip(*found, strict=True)
    rows = [_aligned_row([pair[i] for pair in bounds], kept) for i in (0, 1)]
    n = len(kept)
    head = struct.pack(f"<Bh{n}h{n}i", _VERSION, n, *indexes, *nulls)
    return head + b"".join(struct.pack("<i", len(row)) + row for row in rows)


def _bounds(array: pa.Array, t: DataType) -> tuple[Any, Any]:
    """Return minimum and maximum as numbers or bytes; None for a column of nulls."""
    if t.root in _STAMPS:
        array = array.view(pa.int64())
    elif t.root is _R.DATE:
        array = array.view(pa.int32())
    elif t.root is _R.STRING:
        array = array.view(pa.binary())
    found = pc.min_max(array)
    low, high = found["min"].as_py(), found["max"].as_py()
    if t.root in _FLOATS and array.null_count < len(array):
        # in the order of servers NaN is the largest, and 0.0 is larger than -0.0
        if low is None or low != low:
            return float("nan"), float("nan")
        low = -0.0 if low == 0 else low
        high = 0.0 if high == 0 else high
        if pc.any(pc.is_nan(array)).as_py():
            high = float("nan")
    return low, high


def _aligned_row(values: Sequence[Any], columns: Sequence[Column]) -> bytes:
    n = len(values)
    bits = (n + 63 + _HEADER_BITS) // 64 * _WORD
    fixed = bytearray(bits + _WORD * n)
    variable = bytearray()

    def put(at: int, data: bytes, room: int, size: int) -> None:
        """Store data behind the words, and where it is in the word of its column."""
        struct.pack_into("<q", fixed, at, (len(fixed) + len(variable)) << 32 | size)
        variable.extend(data.ljust(room, b"\0"))

    for i, (value, column) in enumerate(zip(values, columns, strict=True)):
        at, t = bits + _WORD * i, column.type
        precision = t.precision or 0
        if value is None:
            bit = i + _HEADER_BITS
            fixed[bit // 8] |= 1 << bit % 8
        elif t.root is _R.STRING:
            if len(value) <= _LONGEST_INLINE:
                fixed[at : at + len(value)] = value
                fixed[at + _WORD - 1] = len(value) | 0x80
            else:
                put(at, value, -(-len(value) // _WORD) * _WORD, len(value))
        elif t.root is _R.DECIMAL:
            unscaled = unscaled_value(value)
            if precision <= 18:
                struct.pack_into("<q", fixed, at, unscaled)
            else:
                size = (unscaled.bit_length() + 8) // 8
                put(at, unscaled.to_bytes(size, "big", signed=True), _DECIMAL_BYTES, size)
        elif t.root in _STAMPS:
            millis, nanos = _stamp(value, precision)
            if precision <= 3:
                struct.pack_into("<q", fixed, at, millis)
            else:
                put(at, struct.pack("<q", millis), _WORD, nanos)
        else:
            struct.pack_into(_PACK[t.root], fixed, at, value)
    return bytes(fixed + variable)


def unscaled_value(value: Decimal) -> int:
    """Return a decimal of Arrow without its point: 1.50 as 150, exact for all 38 digits.

    Arithmetic of Python's decimals would round to the 28 digits of the default context.
    """
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _stamp(value: int, precision: int) -> tuple[int, int]:
    """Return milliseconds and nanoseconds of the millisecond of a timestamp in its own unit."""
    if precision == 0:
        return value * 1000, 0
    if precision <= 3:
        return value, 0
    per_milli = 1_000 if precision <= 6 else 1_000_000
    return value // per_milli, value % per_milli * (1_000_000 // per_milli)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The statistics of a batch, as they stand in it.

    Attributes
    ----------
    places
        Position of a column in the table -> its number in the rows of minima and maxima.
    nulls
        How many nulls each of these columns has.
    low, high
        The rows of minima and maxima.
    """

    places: dict[int, int]
    nulls: tuple[int, ...]
    low: memoryview
    high: memoryview

    def of(self, position: int, t: DataType) -> tuple[int, Any, Any]:
        """Return nulls, minimum and maximum of a column, which compare as those of servers do.

        Raises LookupError where the batch has no statistics of the column; ValueError or
        struct.error for bytes that are no such values.
        """
        place = self.places[position]
        bits = (len(self.places) + 63 + _HEADER_BITS) // 64 * _WORD
        low, high = (_read_value(row, place, bits, t) for row in (self.low, self.high))
        return self.nulls[place], low, high


def read_statistics(data: memoryview, columns: Sequence[Column]) -> BatchStatistics:
    """Read the statistics of a batch.

    Raises ValueError, struct.error where they cannot be read.
    """
    version, n = struct.unpack_from("<Bh", data)
    if version != _VERSION or n <= 0:
        raise ValueError(f"statistics of version {version} with {n} columns")
    numbers = struct.unpack_from(f"<{n}h{n}i", data, 3)
    places = {position: i for i, position in enumerate(numbers[:n])}
    if len(places) < n or not all(0 <= position < len(columns) for position in places):
        raise ValueError(f"statistics of columns {numbers[:n]}")
    rows = []
    at = 3 + 6 * n
    for _ in range(2):
        size = struct.unpack_from("<i", data, at)[0]
        at += 4
        if not 0 < size <= len(data) - at:
            raise ValueError(f"a row of {size} bytes")
        rows.append(data[at : at + size])
        at += size
    return BatchStatistics(places, numbers[n:], *rows)


def sortable_float(value: float) -> int:
    """Return a number in the order of servers: NaN is the largest, 0.0 is larger than -0.0."""
    if value != value:
        return _SIGN
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -(bits + _SIGN) - 1


def _read_value(row: memoryview, place: int, bits: int, t: DataType) -> Any:
    bit = place + _HEADER_BITS
    if row[bit // 8] >> bit % 8 & 1:
        return None
    at, precision = bits + _WORD * place, t.precision or 0
    if t.root in _STRINGS:
        marked = row[at + _WORD - 1]
        if marked & 0x80:
            return bytes(row[at : at + (marked & 0x7F)])
        return bytes(_elsewhere(row, at))
    if t.root is _R.DECIMAL:
        if precision <= 18:
            return struct.unpack_from("<q", row, at)[0]
        return int.from_bytes(_elsewhere(row, at), "big", signed=True)
    if t.root in _STAMPS:
        if precision <= 3:
            return struct.unpack_from("<q", row, at)[0], 0
        place, nanos = _word(row, at)
        return struct.unpack_from("<q", row, place)[0], nanos
    value = struct.unpack_from(_READ[t.root], row, at)[0]
    return sortable_float(value) if t.root in _FLOATS else int(value)


def _word(row: memoryview, at: int) -> tuple[int, int]:
    """Return the two halves of a word that leads to another place: that place, and a size."""
    size, place = struct.unpack_from("<ii", row, at)
    if place < 0 or size < 0:
        raise ValueError(f"{size} bytes at {place}")
    return place, size


def _elsewhere(row: memoryview, at: int) -> memoryview:
    place, size = _word(row, at)
    if place + size > len(row):
        raise ValueError(f"{size} bytes at {place} of a row of {len(row)}")
    return row[place : place + size]
