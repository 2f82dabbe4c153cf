"""Values of a column between Arrow and what all row formats share.

A value stands in a row as a number of up to 64 bits, as a timestamp (milliseconds, and nanoseconds
of the millisecond), or as bytes. Rows of Fluss hold a TIME as milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.layout.bytes_columns import (
    big_endian_decimals,
    booleans,
    numbers,
    of_binary,
    time_millis,
    timestamp_parts,
    unscaled_int64,
)
from fluss_df.record.layout.unaligned import (
    SLACK,
    Blobs,
    Bools,
    Int64s,
    UInt8s,
    UInt64s,
    copy_blobs,
    gather_blobs,
    padded,
    word_view,
)
from fluss_df.types import DataType, TypeRoot, to_arrow

_R = TypeRoot
TIMESTAMPS: Final = frozenset({_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE})
NESTED: Final = frozenset({_R.ARRAY, _R.MAP, _R.ROW})
TEXTS: Final = frozenset({_R.STRING, _R.CHAR})
BYTES: Final = frozenset({_R.STRING, _R.CHAR, _R.BYTES, _R.BINARY})
_DAY_MS: Final = 86_400_000
_WIDTHS: Final = {
    _R.BOOLEAN: 1,
    _R.TINYINT: 1,
    _R.SMALLINT: 2,
    _R.INTEGER: 4,
    _R.BIGINT: 8,
    _R.FLOAT: 4,
    _R.DOUBLE: 8,
    _R.DATE: 4,
    _R.TIME_WITHOUT_TIME_ZONE: 4,
    _R.DECIMAL: 8,
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers as the unsigned 64 bits that their ``width`` bytes widen to with zeros."""

    values: UInt64s
    width: int


@dataclass(frozen=True, slots=True)
class Stamps:
    """Timestamps; ``nanos`` is zero up to a precision of 3."""

    millis: Int64s
    nanos: Int64s


Values = Numbers | Stamps | Blobs


def is_number(t: DataType) -> bool:
    """Whether values of a type stand in a row as numbers of a fixed width."""
    return t.root in _WIDTHS and not is_wide_decimal(t)


def is_wide_decimal(t: DataType) -> bool:
    """Whether values are decimals of more digits than 64 bits hold."""
    return t.root is _R.DECIMAL and (t.precision or 0) > 18


def is_stamp(t: DataType) -> bool:
    """Whether values are timestamps."""
    return t.root in TIMESTAMPS


def has_nanos(t: DataType) -> bool:
    """Whether timestamps of this type are stored with their nanoseconds."""
    return (t.precision or 0) > 3


def width_of(t: DataType) -> int:
    """Return the bytes of a number."""
    return _WIDTHS[t.root]


def validity(array: pa.Array) -> Bools | None:
    """Return which values are not null, or None where all are."""
    if not array.null_count:
        return None
    valid: Bools = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return valid


NestedEncoder = Callable[[pa.Array, DataType, str], Blobs]


def extract(array: pa.Array, t: DataType, path: str, nested: NestedEncoder) -> Values:
    """Return the values of an Arrow array of the type's Arrow type; under nulls, any or empty ones.

    Raises SchemaMismatchError for a TIME with digits below the millisecond, a timestamp beyond what
    rows can hold, or an array of another type.
    """
    if array.type != to_arrow(t) and t.root not in NESTED:
        raise SchemaMismatchError(f"column '{path}' is {array.type}, not {to_arrow(t)} of type {t}")
    root = t.root
    valid = validity(array)
    if root in BYTES or is_wide_decimal(t):
        return _extract_bytes(array, t, valid)
    if root in NESTED:
        return nested(array, t, path)
    if root in TIMESTAMPS:
        if valid is not None:
            array = _zero_nulls(array, np.int64)
        if array.type.unit == "s" and len(array):
            seconds = numbers(array, np.int64)
            over = np.flatnonzero((seconds > 2**63 // 1000 - 1) | (seconds < -(2**63 // 1000)))
            if len(over):
                raise SchemaMismatchError(
                    f"column '{path}' ({t}): the timestamp in row {over[0]} is beyond 64 bits of "
                    "milliseconds"
                )
        millis, nanos = timestamp_parts(array)
        return Stamps(millis, nanos.astype(np.int64))
    width = _WIDTHS[root]
    if root is _R.BOOLEAN:
        raw = booleans(pc.fill_null(array, False))
    elif root is _R.TIME_WITHOUT_TIME_ZONE:
        raw = _times(array, t, path).view(np.uint32)
    elif root is _R.DECIMAL:
        raw = np.ascontiguousarray(unscaled_int64(array)).view(np.uint64)
    else:
        raw = numbers(array, np.dtype(f"<u{width}").type)
    return Numbers(raw.astype(np.uint64), width)


def _zero_nulls(array: pa.Array, kind: type[np.generic]) -> pa.Array:
    values = numbers(array, kind).copy()
    values[~pc.is_valid(array).to_numpy(zero_copy_only=False)] = 0
    return pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(values)])


def _times(array: pa.Array, t: DataType, path: str) -> npt.NDArray[np.int32]:
    unit = array.type.unit
    array = _zero_nulls(array, np.int32 if unit in ("s", "ms") else np.int64)
    if unit in ("us", "ns"):
        values = numbers(array, np.int64)
        odd = np.flatnonzero(values % (1_000 if unit == "us" else 1_000_000))
        if len(odd):
            raise SchemaMismatchError(
                f"column '{path}' ({t}): the time in row {odd[0]} has digits below the "
                "millisecond, which rows in this format cannot hold: round it first"
            )
    return time_millis(array)


def _extract_bytes(array: pa.Array, t: DataType, valid: Bools | None) -> Blobs:
    field = big_endian_decimals(array) if t.root is _R.DECIMAL else of_binary(array)
    starts, lengths = field.starts, field.lengths.astype(np.int64)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
        starts = np.where(valid, starts, 0)
    return Blobs(padded(field.data), starts, lengths)


Fail = Callable[[str, Bools], ProtocolError]


def failing(path: str, t: DataType, first_row: int) -> Fail:
    """Return a maker of errors that name column and first bad row."""

    def fail(why: str, bad: Bools) -> ProtocolError:
        row = first_row + int(np.flatnonzero(bad)[0])
        return ProtocolError(f"row {row}, column '{path}' ({t}): {why}")

    return fail


def build(values: Values, t: DataType, valid: Bools | None, fail: Fail) -> pa.Array:
    """Return the Arrow array of values that are no nested ones.

    ``valid`` tells which are not null; the others must be zero or empty.

    Raises ProtocolError for values that the type does not have, ``INVALID_TIMESTAMP_EXCEPTION`` for
    timestamps that Arrow does not have.
    """
    kind = to_arrow(t)
    if isinstance(values, Blobs):
        if t.root is _R.DECIMAL:
            return _wide_decimals(values, kind, valid, fail)
        return _build_bytes(values, t, valid, fail)
    if isinstance(values, Stamps):
        return _build_stamps(values, kind, valid, fail)
    root = t.root
    raw = values.values
    n = len(raw)
    data: npt.NDArray[np.generic]
    if root is _R.BOOLEAN:
        if (raw > 1).any():
            raise fail("a boolean is neither 0 nor 1", raw > 1)
        data = np.packbits(raw.astype(np.uint8), bitorder="little")
    elif root is _R.TIME_WITHOUT_TIME_ZONE:
        # negative numbers are large as unsigned ones
        if (raw >= _DAY_MS).any():
            raise fail("a time beyond the day", raw >= _DAY_MS)
        millis = raw.astype(np.int64)
        data = millis * {"us": 1_000, "ns": 1_000_000}.get(kind.unit, 1)
        if kind.unit in ("s", "ms"):
            data = (millis // (1000 if kind.unit == "s" else 1)).astype(np.int32)
    elif root is _R.DECIMAL:
        signed = raw.view(np.int64)
        limit = 10 ** (t.precision or 0)
        over = (signed >= limit) | (signed <= -limit)
        if over.any():
            raise fail("a decimal of more digits than its precision", over)
        pairs = np.empty((n, 2), np.int64)
        pairs[:, 0] = signed
        pairs[:, 1] = signed >> 63
        data = pairs.reshape(-1)
    else:
        data = raw if values.width == 8 else raw.astype(f"<u{values.width}")
    return _array(kind, n, data, valid)


def _array(
    kind: pa.DataType, n: int, data: npt.NDArray[np.generic], valid: Bools | None
) -> pa.Array:
    return pa.Array.from_buffers(kind, n, [bitmap(valid), pa.py_buffer(np.ascontiguousarray(data))])


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _build_stamps(values: Stamps, kind: pa.DataType, valid: Bools | None, fail: Fail) -> pa.Array:
    millis, nanos = values.millis, values.nanos
    bad = (nanos < 0) | (nanos > 999_999)
    if bad.any():
        raise fail("nanoseconds that are no part of a millisecond", bad)
    unit = kind.unit
    if unit == "s":
        data = millis // 1000
    elif unit == "ms":
        data = millis
    else:
        per = 1_000 if unit == "us" else 1_000_000
        data = millis * per + (nanos // 1_000 if unit == "us" else nanos)
        # a product beyond 64 bits wraps around, and its quotient is another number
        over = data // per != millis
        if over.any():
            # the row is not damaged, so to fetch or send it again would not help
            error = fail(f"a timestamp beyond the {unit} that Arrow can hold", over)
            raise FlussError(error.message, ErrorCode.INVALID_TIMESTAMP_EXCEPTION)
    return _array(kind, len(millis), data, valid)


def _build_bytes(values: Blobs, t: DataType, valid: Bools | None, fail: Fail) -> pa.Array:
    kind = to_arrow(t)
    n = len(values.starts)
    if t.root is _R.BINARY:
        width = t.length or 0
        bad = values.lengths != width
        if valid is not None:
            bad &= valid
        if bad.any():
            raise fail(f"{values.lengths[bad][0]} bytes", bad)
        out = np.zeros(n * width + SLACK, np.uint8)
        rows = np.arange(n) if valid is None else np.flatnonzero(valid)
        copy_blobs(
            values.data, values.starts[rows], values.lengths[rows], out, rows * width, exact=True
        )
        return _array(kind, n, out[: n * width], valid)
    if int(values.lengths.sum()) >= 2**31:
        raise FlussError("values of more than 2 GiB in one block: ask for fewer rows")
    found = gather_blobs(values.data, values.starts, values.lengths)
    buffers = [
        bitmap(valid),
        pa.py_buffer(found.offsets.astype(np.int32)),
        pa.py_buffer(found.data),
    ]
    if kind != pa.string():
        return pa.Array.from_buffers(kind, n, buffers)
    result = pa.Array.from_buffers(pa.string(), n, buffers)
    if len(found.data) and int(found.data.max()) >= 128:
        try:
            result.validate(full=True)
        except pa.ArrowInvalid:
            raise fail("text that is not UTF-8", _not_utf8(found.data, found.offsets)) from None
    return result


def _not_utf8(data: UInt8s, offsets: Int64s) -> Bools:
    bad = np.zeros(len(offsets) - 1, np.bool_)
    for i in range(len(bad)):
        try:
            bytes(data[offsets[i] : offsets[i + 1]]).decode()
        except UnicodeDecodeError:
            bad[i] = True
            break
    return bad if bad.any() else ~bad


def _wide_decimals(values: Blobs, kind: pa.DataType, valid: Bools | None, fail: Fail) -> pa.Array:
    lengths = values.lengths
    bad = (lengths < 1) | (lengths > 16)
    if valid is not None:
        bad &= valid
    if bad.any():
        raise fail(f"a decimal of {lengths[bad][0]} bytes", bad)
    n = len(lengths)
    words = word_view(values.data)
    # big endian: the last eight bytes, and what stands before them
    low = _big_endian(words, values.starts + np.maximum(lengths - 8, 0), np.minimum(lengths, 8))
    rest = np.maximum(lengths - 8, 0)
    high = np.where(rest > 0, _big_endian(words, values.starts, rest), low >> 63)
    pairs = np.stack([low, high], axis=1).reshape(-1)
    result = _array(kind, n, pairs, valid)
    try:
        result.validate(full=True)
    except pa.ArrowInvalid as error:
        raise fail(
            f"a decimal of more digits than its precision: {error}", np.ones(n, np.bool_)
        ) from None
    return result


def _big_endian(words: npt.NDArray[np.unsignedinteger], starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the signed number in the ``lengths`` (0 to 8) bytes from each start."""
    raw = words[starts].astype(np.uint64).byteswap().view(np.int64)
    # the bytes wanted are the upper ones; C does not define a shift by all 64 bits
    return np.where(lengths > 0, raw >> (8 * (8 - np.maximum(lengths, 1))), 0)
