"""What stands in a row, as the value of Python that an Arrow table's ``to_pylist`` has for it.

The makers raise ValueError for what is no value of the type, and ValueError or OverflowError for a
value that Python does not have.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from fluss_df.record.rows.single_numbers import EPOCH_DAY, EXACT
from fluss_df.types import DataType, TypeRoot, to_arrow

_R = TypeRoot
_DAY_MS: Final = 86_400_000
_WIDEST_DECIMAL: Final = 16


def number_maker(t: DataType) -> Callable[[int], Any] | None:
    """Return what makes a value of a number; None where the number is the value."""
    if t.root is _R.BOOLEAN:
        return _boolean
    if t.root is _R.DATE:
        return _date
    if t.root is _R.TIME_WITHOUT_TIME_ZONE:
        return _time(1000 if to_arrow(t).unit == "s" else 1)
    return _decimal(t) if t.root is _R.DECIMAL else None


def _boolean(number: int) -> bool:
    if not 0 <= number <= 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return number == 1


def _date(days: int) -> dt.date:
    return dt.date.fromordinal(EPOCH_DAY + days)


def _time(step: int) -> Callable[[int], dt.time]:
    def make(millis: int) -> dt.time:
        if not 0 <= millis < _DAY_MS:
            raise ValueError("a time beyond the day")
        return (dt.datetime.min + dt.timedelta(milliseconds=millis - millis % step)).time()

    return make


def _decimal(t: DataType) -> Callable[[int], Decimal]:
    scale, limit = t.scale or 0, 10 ** (t.precision or 0)

    def make(unscaled: int) -> Decimal:
        if not -limit < unscaled < limit:
            raise ValueError("a decimal of more digits than its precision")
        return Decimal(unscaled).scaleb(-scale, EXACT)

    return make


def blob_maker(t: DataType) -> Callable[[bytes], Any]:
    """Return what makes a value of its bytes: a text, bytes, or a decimal of many digits."""
    if t.root is _R.STRING or t.root is _R.CHAR:
        return bytes.decode
    if t.root is _R.BYTES:
        return bytes
    return _wide_decimal(t) if t.root is _R.DECIMAL else _binary(t.length or 0)


def _binary(size: int) -> Callable[[bytes], bytes]:
    def make(raw: bytes) -> bytes:
        if len(raw) != size:
            raise ValueError("bytes of another length")
        return raw

    return make


def _wide_decimal(t: DataType) -> Callable[[bytes], Decimal]:
    of_number = _decimal(t)

    def make(raw: bytes) -> Decimal:
        if not 1 <= len(raw) <= _WIDEST_DECIMAL:
            raise ValueError("a decimal of so many bytes")
        return of_number(int.from_bytes(raw, "big", signed=True))

    return make


def stamp_maker(t: DataType) -> Callable[[int, int], Any]:
    """Return what makes a timestamp of milliseconds and the nanoseconds of the millisecond."""
    kind = to_arrow(t)
    if kind.unit == "ns":
        return _nanos(kind)
    epoch = dt.datetime(1970, 1, 1, tzinfo=pa.scalar(0, kind).as_py().tzinfo)
    step = 1000 if kind.unit == "s" else 1

    def make(millis: int, nanos: int) -> dt.datetime:
        _require_part(nanos)
        return epoch + dt.timedelta(milliseconds=millis - millis % step, microseconds=nanos // 1000)

    return make


def _nanos(kind: pa.DataType) -> Callable[[int, int], Any]:
    def make(millis: int, nanos: int) -> Any:
        _require_part(nanos)
        # Arrow decides what it is in Python: with pandas, a Timestamp. Where 64 bits do not hold
        # the number, Arrow raises OverflowError.
        return pa.scalar(millis * 1_000_000 + nanos, kind).as_py()

    return make


def _require_part(nanos: int) -> None:
    if not 0 <= nanos <= 999_999:
        raise ValueError("nanoseconds that are no part of a millisecond")
