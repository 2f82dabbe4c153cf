"""Comparisons of times with all of their digits: Polars cuts off those of the finer one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ibis.expr.operations as ops
import polars as pl
from ibis.formats.polars import PolarsType

from fluss_df.backend.translation import rule, translate

#: Units of times, the coarsest first.
UNITS = ("ms", "us", "ns")
#: Years of which 64 bits hold the nanoseconds.
FIRST_YEAR, LAST_YEAR = 1678, 2261

_compared = translate.dispatch(ops.Equals)
_identical = translate.dispatch(ops.IdenticalTo)
_in_values = translate.dispatch(ops.InValues)
_COMPARISONS: dict[type, str] = {
    ops.Equals: "eq",
    ops.NotEquals: "ne",
    ops.Less: "lt",
    ops.LessEqual: "le",
    ops.Greater: "gt",
    ops.GreaterEqual: "ge",
}


def _unit(value: ops.Value) -> int:
    """Return which unit a time is in; of a literal, which it needs."""
    if isinstance(value, ops.Literal):
        moment = value.value
        if moment is None:
            return 0
        if getattr(moment, "nanosecond", 0) and FIRST_YEAR <= moment.year <= LAST_YEAR:
            return 2
        return 1 if moment.microsecond % 1000 else 0
    return UNITS.index(PolarsType.from_ibis(value.dtype).time_unit)


def _aligned(values: Sequence[ops.Value], kw: dict[str, Any]) -> list[pl.Expr] | None:
    """Return times in the finest unit of them; None where others than times are among them."""
    if not all(value.dtype.is_timestamp() for value in values):
        return None
    if all(isinstance(value, ops.Literal) for value in values):
        return None
    finest = max(map(_unit, values))
    zone = next(
        (value.dtype.timezone for value in values if not isinstance(value, ops.Literal)), None
    )
    made = []
    for value in values:
        kind = pl.Datetime(UNITS[finest], zone)  # type: ignore[arg-type]
        if isinstance(value, ops.Literal) and value.value is not None:
            if value.dtype.timezone != zone:
                return None
            moment = pl.lit(value.value)
            if finest == 2 and not FIRST_YEAR <= value.value.year <= LAST_YEAR:
                # far from all that it is compared with, whose nanoseconds do not matter then
                made.append(moment)
            else:
                made.append(moment.cast(kind))
        else:
            expression: pl.Expr = translate(value, **kw)
            made.append(expression if _unit(value) == finest else expression.cast(kind))
    return made


@rule(ops.Comparison)
def compare(op: ops.Comparison, **kw: Any) -> pl.Expr:
    """Compare two values."""
    sides = _aligned((op.left, op.right), kw) if type(op) in _COMPARISONS else None
    if sides is None:
        found: pl.Expr = _compared(op, **kw)
        return found
    made: pl.Expr = getattr(sides[0], _COMPARISONS[type(op)])(sides[1])
    return made


@rule(ops.IdenticalTo)
def identical(op: ops.IdenticalTo, **kw: Any) -> pl.Expr:
    """Compare two values of which null is one."""
    sides = _aligned((op.left, op.right), kw)
    found: pl.Expr = _identical(op, **kw) if sides is None else sides[0].eq_missing(sides[1])
    return found


@rule(ops.InValues)
def in_values(op: ops.InValues, **kw: Any) -> pl.Expr:
    """Say whether a value is one of some."""
    pairs = [_aligned((op.value, option), kw) for option in op.options]
    if not pairs or None in pairs:
        found: pl.Expr = _in_values(op, **kw)
        return found
    return pl.any_horizontal([pair[0] == pair[1] for pair in pairs if pair is not None])


@rule(ops.Between)
def between(op: ops.Between, **kw: Any) -> pl.Expr:
    """Compare with bounds as values of the argument's type, texts too."""
    low, high = (_aligned((op.arg, bound), kw) for bound in (op.lower_bound, op.upper_bound))
    if low is not None and high is not None:
        return (low[0] >= low[1]) & (high[0] <= high[1])
    lower, upper = (
        bound if bound.dtype == op.arg.dtype else ops.Cast(bound, op.arg.dtype)
        for bound in (op.lower_bound, op.upper_bound)
    )
    value: pl.Expr = translate(op.arg, **kw)
    return value.is_between(translate(lower, **kw), translate(upper, **kw))
