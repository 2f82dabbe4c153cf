"""Dates, decimals and timestamps of a single row as integers.

The functions return None for a value that is left to the vectorised codecs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from fluss_df.types import DataType, to_arrow

# The context of the calling thread is the user's: with a precision of 6 digits, 12345.67 would be
# written, and read, as 12345.7.
EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()

_EPOCH: Final = dt.datetime(1970, 1, 1)
# with the time zone that Arrow gives to moments in UTC, which depends on its version
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=pa.lib.string_to_tzinfo("UTC"))
_UTC: Final = (dt.UTC, _EPOCH_UTC.tzinfo)
#: Years that a time zone does not move out of those of Python.
ZONED_YEARS: Final = (2, 9998)

Number = Callable[[Any], int | None]


def unscaled_of(t: DataType) -> Number:
    """Return a function from a DECIMAL, or an integer for one, to its unscaled value."""
    precision, scale = t.precision or 0, t.scale or 0
    limit, one = 10**precision, 10**scale

    def number(value: Any) -> int | None:
        if type(value) is int:
            return value * one if -limit < value * one < limit else None
        if type(value) is not Decimal:
            return None
        # a letter, where the value is not finite
        exponent = value.as_tuple().exponent
        # Arrow refuses some values that fit and have another exponent, such as 0E+1
        if not isinstance(exponent, int) or not -scale <= exponent <= 0:
            return None
        unscaled = int(value.scaleb(scale, EXACT))
        return unscaled if -limit < unscaled < limit else None

    return number


def since_epoch_of(t: DataType) -> Number:
    """Return a function from a datetime to the time since 1970 in the unit of the Arrow type."""
    kind = to_arrow(t)
    zoned = kind.tz is not None
    step = 10 ** max(0, 6 - (t.precision or 0))
    nanos = kind.unit == "ns"
    whole = {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)

    def number(value: Any) -> int | None:
        if type(value) is not dt.datetime:
            return None
        if value.tzinfo is None:
            # where the type has a zone, a moment without one is in UTC
            since = value - _EPOCH
        elif zoned and (value.tzinfo in _UTC or _moved_by_seconds(value)):
            since = value - _EPOCH_UTC
        else:
            return None
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        if micros % step:
            return None
        if not nanos:
            return micros // whole
        return micros * 1000 if -(1 << 63) <= micros * 1000 < 1 << 63 else None

    return number


def in_seconds(zone: dt.tzinfo) -> bool:
    """Whether a time zone is surely away from UTC by whole seconds: Arrow drops the fractions."""
    if isinstance(zone, dt.timezone):
        return not zone.utcoffset(None).microseconds
    return type(zone) is ZoneInfo


def _moved_by_seconds(value: dt.datetime) -> bool:
    first, last = ZONED_YEARS
    return value.tzinfo is not None and in_seconds(value.tzinfo) and first <= value.year <= last
