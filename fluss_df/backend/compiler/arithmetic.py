"""Numbers in the types that Ibis says of results: Polars computes them in the types of operands.

In Polars the sum of an Int32 column, ``a * b`` and ``a ** 2`` of whole numbers wrap around in the
type of the columns, a mean of Float32 has seven digits, and a decimal is divided to the digits that
it has itself.
"""

from __future__ import annotations

from typing import Any

import ibis.expr.operations as ops
import polars as pl
from ibis.formats.polars import PolarsType

from fluss_df.backend.translation import rule, translate

# the most that Polars and Fluss have
_DIGITS = 38

_binary = translate.dispatch(ops.Add)
_floor_divide = translate.dispatch(ops.FloorDivide)
_sum = translate.dispatch(ops.Sum)
_mean = translate.dispatch(ops.Mean)
_spread = translate.dispatch(ops.Variance)
_round = translate.dispatch(ops.Round)


def _integers_as(value: ops.Value, kind: Any) -> ops.Value:
    """Return a whole number as one of another type; other values as they are."""
    return ops.Cast(value, kind) if value.dtype.is_integer() and value.dtype != kind else value


@rule(ops.Add, ops.Subtract)
def arithmetic(op: ops.NumericBinary, **kw: Any) -> pl.Expr:
    """Compute whole numbers in the type that Ibis says of the result, not in a narrower one."""
    if op.dtype.is_integer():
        op = op.copy(left=_integers_as(op.left, op.dtype), right=_integers_as(op.right, op.dtype))
    found: pl.Expr = _binary(op, **kw)
    return found


def _scale(value: ops.Value) -> int:
    return (value.dtype.scale or 0) if value.dtype.is_decimal() else 0


@rule(ops.Multiply)
def multiply(op: ops.Multiply, **kw: Any) -> pl.Expr:
    """Multiply; of decimals all digits are kept, which Polars rounds to those of one of them."""
    if op.dtype.is_integer():
        return arithmetic(op, **kw)
    left: pl.Expr = translate(op.left, **kw)
    right: pl.Expr = translate(op.right, **kw)
    scale = _scale(op.left) + _scale(op.right)
    if op.dtype.is_decimal() and scale <= _DIGITS:
        left = left.cast(pl.Decimal(_DIGITS, scale))
    return left * right


@rule(ops.Divide)
def divide(op: ops.Divide, **kw: Any) -> pl.Expr:
    """Divide as floating-point numbers, decimals too."""
    left, right = (
        ops.Cast(side, op.dtype) if side.dtype.is_decimal() else side
        for side in (op.left, op.right)
    )
    found: pl.Expr = translate(left, **kw) / translate(right, **kw)
    return found


# what is a Divide to Ibis, and has its own rule
rule(ops.FloorDivide)(_floor_divide)


@rule(ops.Power)
def power(op: ops.Power, **kw: Any) -> pl.Expr:
    """Raise to a power; of whole numbers as floating-point numbers."""
    base: pl.Expr = translate(op.left, **kw)
    if op.dtype.is_floating():
        base = base.cast(PolarsType.from_ibis(op.dtype))
    return base.pow(translate(op.right, **kw))


@rule(ops.Round)
def rounded(op: ops.Round, **kw: Any) -> pl.Expr:
    """Round; a decimal that lies in the middle goes away from zero, as in SQL."""
    digits = getattr(op.digits, "value", None)
    if not op.arg.dtype.is_decimal() or digits is None or digits < 0:
        found: pl.Expr = _round(op, **kw)
        return found
    value: pl.Expr = translate(op.arg, **kw)
    return value.round(digits, mode="half_away_from_zero").cast(PolarsType.from_ibis(op.dtype))


@rule(ops.Ceil, ops.Floor)
def whole(op: ops.Ceil, **kw: Any) -> pl.Expr:
    """Round up or down to a whole number, in the type that Ibis says."""
    value: pl.Expr = translate(op.arg, **kw)
    made = value.ceil() if isinstance(op, ops.Ceil) else value.floor()
    return made.cast(PolarsType.from_ibis(op.dtype))


def _wide(op: ops.Reduction) -> ops.Reduction:
    """Return a reduction over numbers of the type that Ibis says of its result."""
    kind = op.arg.dtype
    if op.dtype.is_integer() and kind.is_integer():
        return op.copy(arg=_integers_as(op.arg, op.dtype))
    if op.dtype.is_floating() and kind.is_floating() and kind != op.dtype:
        return op.copy(arg=ops.Cast(op.arg, op.dtype))
    return op


@rule(ops.Sum)
def total(op: ops.Sum, **kw: Any) -> pl.Expr:
    """Sum up."""
    found: pl.Expr = _sum(_wide(op), **kw)
    return found


@rule(ops.Mean)
def mean(op: ops.Mean, **kw: Any) -> pl.Expr:
    """Take the mean."""
    found: pl.Expr = _mean(_wide(op), **kw)
    return found


@rule(ops.Variance, ops.StandardDev)
def spread(op: ops.Variance, **kw: Any) -> pl.Expr:
    """Take the variance, or the standard deviation."""
    found: pl.Expr = _spread(_wide(op), **kw)
    return found
