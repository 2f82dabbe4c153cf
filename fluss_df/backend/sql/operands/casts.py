"""Casts of literals: some have a value that is known without a query.

Clients that bind values write one for each DOUBLE, DECIMAL and instant. A query for each takes two
milliseconds.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
from sqlglot import exp

from fluss_df.backend.sql.operands.types import number_in

#: What :func:`folded` returns where only a query can say the value.
UNKNOWN: Final = object()

_INSTANTS = (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ)
_LARGEST_BIGINT = (1 << 63) - 1
_MOST_DIGITS = 38
_NOT_FINITE = ("nan", "inf", "-inf")
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?\+00:00")


def folded(cell: exp.Expr) -> Any:
    """Return the value that a query gives for the cast of a literal; else :data:`UNKNOWN`.

    Only forms are taken for which Polars computes exactly this value: all else is left to it,
    what it rounds or refuses above all.
    """
    if not isinstance(cell, exp.Cast) or isinstance(cell, exp.TryCast):
        return UNKNOWN
    if cell.args.get("format") or cell.args.get("default"):
        return UNKNOWN
    kind, value = cell.to, cell.this.unnest()
    if kind.this == exp.DType.DECIMAL:
        return _decimal(value, kind)
    if kind.expressions:
        return UNKNOWN
    if kind.this in (exp.DType.DOUBLE, exp.DType.FLOAT):
        return _float(value, single=kind.this == exp.DType.FLOAT)
    if kind.this in _INSTANTS:
        return _instant(value)
    return UNKNOWN


def _float(value: exp.Expr, *, single: bool) -> Any:
    if isinstance(value, exp.Literal) and value.is_string:
        return float(value.name) if value.name in _NOT_FINITE else UNKNOWN
    literal = number_in(value)
    if literal is None:
        return UNKNOWN
    # of a large integer, a FLOAT by way of a DOUBLE would be rounded twice
    if literal.is_int and int(literal.name) > (1 << 53 if single else _LARGEST_BIGINT):
        return UNKNOWN
    found = float(literal.name)
    if not math.isfinite(found):
        return UNKNOWN
    if literal is not value:
        if not found:
            return UNKNOWN  # Polars keeps some signs of zeros, and drops others
        found = -found
    if single:
        with np.errstate(over="ignore"):
            # of a DOUBLE that is rounded to a FLOAT, as Polars rounds it
            found = float(np.float32(found))
    return found


def _decimal(value: exp.Expr, kind: exp.DataType) -> Any:
    sizes = [part.name for part in kind.expressions]
    if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
        return UNKNOWN
    precision, scale = map(int, sizes)
    found = _DECIMAL.fullmatch(value.name) if isinstance(value, exp.Literal) else None
    if found is None or not value.is_string or not max(scale, 1) <= precision <= _MOST_DIGITS:
        return UNKNOWN
    sign, whole, part = found[1], found[2], found[3] or ""
    if len(part) > scale or len(whole.lstrip("0")) > precision - scale:
        return UNKNOWN
    # its scale counts: a whole number without one goes only into a DOUBLE that equals it
    exact = Decimal(f"{sign}{whole}.{part.ljust(scale, '0')}")
    return exact if exact else exact.copy_abs()


def _instant(value: exp.Expr) -> Any:
    if not isinstance(value, exp.Literal) or not value.is_string:
        return UNKNOWN
    if not _INSTANT.fullmatch(value.name):
        return UNKNOWN
    try:
        return datetime.fromisoformat(value.name)
    except ValueError:
        return UNKNOWN  # the query says what is wrong with it
