"""Literals in the type of what they stand beside.

Beside a FLOAT, Ibis has a DOUBLE, which few numbers with a point are equal to; beside a time or a
date, a text, which Polars refuses. As literals of the other's type they are pushed down, too.
"""

from __future__ import annotations

import datetime as dtm
import math
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import numpy as np

from fluss_df.errors import FlussError


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
        # what no FLOAT is, as 1e300, stays
        return value if math.isinf(single) else ops.Literal(single, dt.float32)
    if given.is_string() and (kind.is_date() or kind.is_time() or kind.is_timestamp()):
        return ops.Literal(_time_of(value.value, kind, other.name), kind)
    return value


def single(value: ops.Value, literal: ops.Value) -> ops.Value:
    """Return what a literal stands beside; as a FLOAT where the literal is one, as Ibis says."""
    is_single = isinstance(value.dtype, dt.Float32) and isinstance(literal.dtype, dt.Float32)
    if is_single and not isinstance(value, (ops.Field, ops.Literal)):
        return ops.Cast(value, dt.float32)
    return value


def _time_of(text: str, kind: dt.DataType, name: str) -> Any:
    try:
        if kind.is_time():
            return dtm.time.fromisoformat(text.strip())
        moment = dtm.datetime.fromisoformat(text.strip())
    except ValueError:
        raise FlussError(
            f"'{name}' is {kind}, and is compared with the text {text!r}, which is none: write it"
            " as '2024-01-31', '12:34:56' or '2024-01-31 12:34:56'"
        ) from None
    if kind.is_date():
        return moment.date()
    zone = kind.timezone
    if zone is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=dtm.UTC)
    if zone is None and moment.tzinfo is not None:
        moment = moment.astimezone(dtm.UTC).replace(tzinfo=None)
    fraction = text.partition(".")[2]
    digits = "".join(c for c in fraction[:9] if c.isdigit())
    if len(digits) > 6 and 1678 <= moment.year <= 2261:
        # it takes a moment to import, and few literals have nanoseconds
        import pandas as pd

        return pd.Timestamp(moment) + pd.Timedelta(int(digits[6:].ljust(3, "0")), "ns")
    return moment
