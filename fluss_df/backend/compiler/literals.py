"""Literals in the type of the other operand.

Beside a FLOAT, Ibis has a DOUBLE, which few numbers with a point are equal to; beside a time or a
date, a text, which Polars refuses. As literals of the other's type they are pushed down, too.
"""

from __future__ import annotations

import contextlib
import datetime as dtm
import math
import re
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import numpy as np

from fluss_df.errors import FlussError

#: Years of which 64 bits hold the nanoseconds.
FIRST_YEAR, LAST_YEAR = 1678, 2261
_FRACTION = re.compile(r"[.,](\d+)")
_ONE_DIGIT = re.compile(r"(?<![\d.,])\d(?!\d)")


def beside(value: ops.Value, other: ops.Value) -> ops.Value:
    """Return a value as it is compared with another: literals are made ones of the other's type.

    Raises FlussError for a text that is no time, beside one.
    """
    if not isinstance(value, ops.Literal) or value.value is None or isinstance(other, ops.Literal):
        return value
    kind, given = other.dtype, value.dtype
    if isinstance(kind, dt.Float32) and given.is_numeric() and not given.is_boolean():
        with np.errstate(over="ignore"):
            single = float(np.float32(value.value))
        # numbers that a FLOAT cannot hold stay (1e300), and whole numbers, which are not to be
        # rounded
        rounded = given.is_integer() and single != value.value
        return value if rounded or math.isinf(single) else ops.Literal(single, dt.float32)
    if given.is_string() and (kind.is_date() or kind.is_time() or kind.is_timestamp()):
        return _time_of(value.value, kind, other.name)
    return value


def single(value: ops.Value, literal: ops.Value) -> ops.Value:
    """Return the value beside a literal; as a FLOAT where the literal is one, as in Ibis."""
    is_single = isinstance(value.dtype, dt.Float32) and isinstance(literal.dtype, dt.Float32)
    if is_single and not isinstance(value, (ops.Field, ops.Literal)):
        return ops.Cast(value, dt.float32)
    return value


def _time_of(text: str, kind: dt.DataType, name: str) -> ops.Value:
    """Return a text as the date or time that it means, with all of its digits."""
    parsed = dtm.time.fromisoformat if kind.is_time() else dtm.datetime.fromisoformat
    found: Any = None
    # Polars also reads slashes, and parts of one digit
    for written in (text.strip(), _ONE_DIGIT.sub(r"0\g<0>", text.strip().replace("/", "-"))):
        with contextlib.suppress(ValueError):
            found = parsed(written)
            break
    if found is None:
        raise FlussError(
            f"'{name}' is {kind}, and is compared with the text {text!r}, which is none: write it"
            " as '2024-01-31', '12:34:56' or '2024-01-31 12:34:56'"
        )
    if kind.is_time():
        return ops.Literal(found, kind)
    moment: dtm.datetime = found
    if kind.is_date():
        return ops.Literal(moment.date(), kind)
    zone = kind.timezone
    if zone is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=dtm.UTC)
    if zone is None and moment.tzinfo is not None:
        moment = moment.astimezone(dtm.UTC).replace(tzinfo=None)
    fraction = _FRACTION.search(text)
    digits = fraction[1][:9] if fraction else ""
    if not digits[6:].strip("0") or not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return ops.Literal(moment, kind)
    # a literal of Ibis has microseconds at most: more digits are read from a text, in UTC
    if zone is not None:
        moment = moment.astimezone(dtm.UTC)
    whole = moment.replace(tzinfo=None, microsecond=0).isoformat(" ")
    made = ops.Cast(
        ops.Literal(f"{whole}.{digits.ljust(9, '0')}", dt.string),
        dt.Timestamp(timezone=None if zone is None else "UTC", scale=9),
    )
    return made if zone in (None, "UTC") else ops.Cast(made, dt.Timestamp(timezone=zone, scale=9))
