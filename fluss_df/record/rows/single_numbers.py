"""Decimals and timestamps of a single row as integers.

The functions return None for a value that is left to the vectorised codecs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final

import pyarrow as pa

from fluss_df.types import DataType, to_arrow

# The context of the calling thread is the user's: with a precision of 6 digits, 12345.67 would be
# written, and read, as 12345.7.
EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)

Number = Callable[[Any], int | None]


def unscaled_of(t: DataType) -> Number | None:
    """Return a function from a DECIMAL to its unscaled value; None where that exceeds 64 bits."""
    precision, scale = t.precision or 0, t.scale or 0
    if precision > 18:
        return None
    limit = 10**precision

    def number(value: Any) -> int | None:
        if type(value) is not Decimal or not value.is_finite():
            return None
        unscaled = value.scaleb(scale, EXACT)
        # compared first: the integer of 1E+999999 has a million digits
        if not -limit < unscaled < limit:
            return None
        digits = int(unscaled)
        return digits if digits == unscaled else None

    return number


def since_epoch_of(t: DataType) -> Number | None:
    """Return a function from a datetime to ms or us since 1970, whichever the type has.

    None for types of other units.
    """
    kind = to_arrow(t)
    if kind.unit not in ("ms", "us"):
        return None
    epoch = dt.datetime(1970, 1, 1, tzinfo=pa.scalar(0, kind).as_py().tzinfo)
    whole = 1000 if kind.unit == "ms" else 1

    def number(value: Any) -> int | None:
        if type(value) is not dt.datetime or (value.tzinfo is None) != (epoch.tzinfo is None):
            return None
        since = value - epoch
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        units, rest = divmod(micros, whole)
        return None if rest else units

    return number
