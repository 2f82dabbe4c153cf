"""Numbers in the types that Ibis says of results: Polars computes them in the types of operands.

In Polars the sum of an Int32 column, ``a * b`` and ``a ** 2`` of whole numbers wrap around in the
type of the columns, a mean of Float32 has seven digits, and a decimal is divided to the digits that
it has itself.
"""

from __future__ import annotations

from typing import Any

import ibis.common.exceptions as com
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import polars as pl

from fluss_df.backend.compiler.digits import scale_of
from fluss_df.backend.compiler.literals import beside
from fluss_df.backend.results import DIGITS
from fluss_df.backend.translation import PolarsType, in_type_of_ibis, rule, translate

_binary = translate.dispatch(ops.Add)
_floor_divide = translate.dispatch(ops.FloorDivide)
_sum = translate.dispatch(ops.Sum)
_array_mean = translate.dispatch(ops.ArrayMean)
_null_if = translate.dispatch(ops.NullIf)
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


@rule(ops.Multiply)
def multiply(op: ops.Multiply, **kw: Any) -> pl.Expr:
    """Multiply; of decimals all digits are kept, which Polars rounds to those of one of them."""
    if op.dtype.is_integer():
        return arithmetic(op, **kw)
    left: pl.Expr = translate(op.left, **kw)
    right: pl.Expr = translate(op.right, **kw)
    scale = scale_of(op.left) + scale_of(op.right)
    if op.dtype.is_decimal() and scale <= DIGITS:
        left = left.cast(pl.Decimal(DIGITS, scale))
    return left * right


@rule(ops.Divide)
def divide(op: ops.Divide, **kw: Any) -> pl.Expr:
    """Divide as floating-point numbers of the type that Ibis says, decimals too."""
    left, right = (
        side if side.dtype.is_integer() or side.dtype == op.dtype else ops.Cast(side, op.dtype)
        for side in (op.left, op.right)
    )
    found: pl.Expr = translate(left, **kw) / translate(right, **kw)
    return found


# to Ibis a FloorDivide is a Divide, too; here it has a rule of its own
@rule(ops.FloorDivide)
def floor_divide(op: ops.FloorDivide, **kw: Any) -> pl.Expr:
    """Divide, and round down to a whole number; Polars leaves one of the operands' type.

    A division by zero is null, of floating-point numbers and decimals too.
    """
    wide = op.copy(left=_integers_as(op.left, op.dtype), right=_integers_as(op.right, op.dtype))
    if op.left.dtype.is_integer() and op.right.dtype.is_integer():
        found: pl.Expr = _floor_divide(wide, **kw)
        return found.cast(PolarsType.from_ibis(op.dtype))
    quotient = translate(wide.left, **kw) // _divisor(wide, **kw)
    return _fitting(quotient, op, op.left, op.right)


def _divisor(op: ops.Binary, **kw: Any) -> pl.Expr:
    """Return the divisor; null in place of a decimal 0, for which Polars raises an error.

    There is one where either side is a decimal and the other no floating-point number.
    """
    right: pl.Expr = translate(op.right, **kw)
    kinds = (op.left.dtype, op.right.dtype)
    exact = any(kind.is_decimal() for kind in kinds) and not any(k.is_floating() for k in kinds)
    return pl.when(right != 0).then(right) if exact else right


def _fitting(value: pl.Expr, op: ops.Value, *operands: ops.Value) -> pl.Expr:
    """Return numbers in the type of an operation; null for floats that the type cannot hold.

    Infinity and 1e300 are such values: one of them would end the whole query.
    """
    strict = not any(operand.dtype.is_floating() for operand in operands)
    return value.cast(PolarsType.from_ibis(op.dtype), strict=strict)


@rule(ops.Modulus)
def modulus(op: ops.Modulus, **kw: Any) -> pl.Expr:
    """Return the rest of a division, with the sign of what is divided, as SQL has it."""
    left: pl.Expr = translate(op.left, **kw)
    right = _divisor(op, **kw)
    rest = left % right
    # Polars' remainder has the sign of the divisor
    signed = pl.when((rest != 0) & ((left < 0) != (right < 0))).then(rest - right).otherwise(rest)
    if not op.right.dtype.is_floating():
        return signed
    # infinity is in no number, not even once: all of it is the rest, of which Polars makes NaN
    finite = left.is_finite() if op.left.dtype.is_floating() else left.is_not_null()
    return pl.when(right.is_infinite() & finite).then(left).otherwise(signed)


def _of_floats(operation: type[ops.Value]) -> None:
    found = translate.dispatch(operation)

    @rule(operation)
    def of_floats(op: Any, **kw: Any) -> pl.Expr:
        """Compute with floating-point numbers, where the operands are decimals too."""
        floats = {
            name: ops.Cast(value, dt.float64)
            for name, value in zip(op.argnames, op.args, strict=True)
            if isinstance(value, ops.Value)
            and (value.dtype.is_decimal() or value.dtype.is_floating())
        }
        made: pl.Expr = found(op.copy(**floats) if floats else op, **kw)
        return made


for _operation in (
    *(ops.Sin, ops.Cos, ops.Tan, ops.Asin, ops.Acos, ops.Atan, ops.Atan2, ops.Cot),
    *(ops.Exp, ops.Ln, ops.Log, ops.Log2, ops.Log10, ops.Sqrt, ops.Degrees, ops.Radians),
):
    _of_floats(_operation)


@rule(ops.Clip)
def clip(op: ops.Clip, **kw: Any) -> pl.Expr:
    """Bring values into bounds, which may lie outside of what their type holds."""
    value: pl.Expr = translate(op.arg, **kw)
    bounds = []
    for bound in (op.lower, op.upper):
        if bound is not None and not isinstance(bound, ops.Literal):
            raise com.UnsupportedOperationError("clip takes literals as its bounds")
        found = None if bound is None else bound.value
        if found is not None and op.dtype.is_integer():
            limits = op.dtype.bounds
            found = min(max(found, limits.lower), limits.upper)
        bounds.append(found)
    return value.clip(*bounds)


def _pairs(op: ops.Correlation, kw: dict[str, Any]) -> tuple[pl.Expr, pl.Expr]:
    """Return two columns of numbers, null in the rows that do not count."""
    sides = []
    for side in (op.left, op.right):
        value = ops.Cast(side, dt.float64) if side.dtype != dt.float64 else side
        sides.append(translate(value, **kw))
    counted = sides[0].is_not_null() & sides[1].is_not_null()
    if op.where is not None:
        counted &= translate(op.where, **kw)
    return sides[0].filter(counted), sides[1].filter(counted)


@rule(ops.Correlation)
def correlation(op: ops.Correlation, **kw: Any) -> pl.Expr:
    """Correlate two columns; without a row that has both it is null."""
    left, right = _pairs(op, kw)
    return pl.when(left.len() > 0).then(pl.corr(left, right))


@rule(ops.Covariance)
def covariance(op: ops.Covariance, **kw: Any) -> pl.Expr:
    """Take the covariance; null where too few rows have both values."""
    left, right = _pairs(op, kw)
    ddof = 0 if op.how == "pop" else 1
    return pl.when(left.len() > ddof).then(pl.cov(left, right, ddof=ddof))


@rule(ops.Power)
def power(op: ops.Power, **kw: Any) -> pl.Expr:
    """Raise to a power; of whole numbers as floating-point numbers."""
    base: pl.Expr = translate(op.left, **kw)
    if op.dtype.is_floating() or op.dtype.is_decimal():
        base = base.cast(pl.Float64 if op.dtype.is_decimal() else PolarsType.from_ibis(op.dtype))
    return base.pow(translate(op.right, **kw))


@rule(ops.Round)
def rounded(op: ops.Round, **kw: Any) -> pl.Expr:
    """Round; a decimal that lies in the middle goes away from zero, as in SQL."""
    digits = getattr(op.digits, "value", None)
    if digits is not None and digits < 0:
        # Polars does not round to digits before the point
        step = 10**-digits
        mode: Any = "half_to_even" if op.arg.dtype.is_floating() else "half_away_from_zero"
        parts: pl.Expr = translate(op.arg, **kw).cast(pl.Float64) / step
        tens: pl.Expr = parts.round(mode=mode) * step
        return tens.cast(PolarsType.from_ibis(op.dtype))
    if op.arg.dtype.is_floating() and op.dtype.is_integer():
        return _fitting(translate(op.arg, **kw).round(), op, op.arg)
    if not op.arg.dtype.is_decimal() or digits is None:
        plain: pl.Expr = _round(op, **kw)
        return plain
    value: pl.Expr = translate(op.arg, **kw)
    return value.round(digits, mode="half_away_from_zero").cast(PolarsType.from_ibis(op.dtype))


@rule(ops.Ceil, ops.Floor)
def whole(op: ops.Ceil, **kw: Any) -> pl.Expr:
    """Round up or down to a whole number, in the type that Ibis says; of infinity null."""
    value: pl.Expr = translate(op.arg, **kw)
    made = value.ceil() if isinstance(op, ops.Ceil) else value.floor()
    return _fitting(made, op, op.arg)


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
    """Sum up; Polars sums booleans as UInt32, of which a difference is never negative."""
    found: pl.Expr = _sum(_wide(op), **kw)
    return found.cast(PolarsType.from_ibis(op.dtype)) if op.arg.dtype.is_boolean() else found


def _of_wide(*operations: type[ops.Reduction]) -> None:
    found = translate.dispatch(operations[0])

    @rule(*operations)
    def of_wide(op: Any, **kw: Any) -> pl.Expr:
        """Reduce numbers of the type that Ibis says of the result."""
        made: pl.Expr = found(_wide(op), **kw)
        return made


_of_wide(ops.Mean)
_of_wide(ops.Median, ops.ApproxMedian)
_of_wide(ops.Quantile, ops.ApproxQuantile)
_of_wide(ops.Variance, ops.StandardDev)


@rule(ops.ArrayMean)
def array_mean(op: ops.ArrayMean, **kw: Any) -> pl.Expr:
    """Take the means of lists."""
    if op.arg.dtype.value_type.is_floating():
        op = op.copy(arg=ops.Cast(op.arg, dt.Array(op.dtype)))
    found: pl.Expr = _array_mean(op, **kw)
    return found


@rule(ops.NullIf)
def null_if(op: ops.NullIf, **kw: Any) -> pl.Expr:
    """Make a null of one value; numbers get the type that both have together."""
    typed = op.copy(null_if_expr=beside(op.null_if_expr, op.arg))
    found: pl.Expr = _null_if(typed, **kw)
    numbers = op.dtype.is_integer() or op.dtype.is_floating()
    return found.cast(PolarsType.from_ibis(op.dtype)) if numbers else found


# differences of Polars' UInt32 are never negative
in_type_of_ibis(ops.ArrayLength)
in_type_of_ibis(ops.Count)
