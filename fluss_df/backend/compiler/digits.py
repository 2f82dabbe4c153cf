"""How many digits decimals have behind the point: to Ibis a product has those of one factor."""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import ibis.expr.operations as ops
import polars as pl

from fluss_df.backend.results import DIGITS, USUAL_SCALE
from fluss_df.backend.translation import PolarsType, rule, translate
from fluss_df.errors import FlussError

# arithmetic that rounds nothing, whatever the caller's thread has set
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
# operations whose result has as many digits behind the point as the longest of their operands
_AS_OPERANDS = (
    *(ops.Add, ops.Subtract, ops.Negate, ops.Abs, ops.Modulus, ops.Alias, ops.WindowFunction),
    *(ops.Sum, ops.Min, ops.Max, ops.First, ops.Last, ops.Arbitrary, ops.Mode, ops.ArgMin),
    *(ops.ArgMax, ops.Least, ops.Greatest, ops.Coalesce, ops.NullIf, ops.IfElse),
    *(ops.SearchedCase, ops.SimpleCase, ops.Lag, ops.Lead, ops.NthValue, ops.Clip),
)


def _sources(relation: ops.Relation, name: str) -> list[ops.Value]:
    """Return the values from which a column of a relation is computed."""
    if isinstance(relation, ops.Set):
        return [ops.Field(side, name) for side in (relation.left, relation.right)]
    if isinstance(relation, ops.Reference):
        return [ops.Field(relation.parent, name)]
    found = relation.values.get(name)
    return [] if found is None or found == ops.Field(relation, name) else [found]


def scale_of(value: ops.Value) -> int:
    """Return how many digits a number has behind the point: a product more than Ibis says."""
    if not value.dtype.is_decimal():
        return 0
    said: int = value.dtype.scale or 0
    if isinstance(value, ops.Literal):
        own = _own_scale(value)
        return said if own is None else own
    if isinstance(value, ops.Multiply):
        scale = scale_of(value.left) + scale_of(value.right)
        return scale if scale <= DIGITS else said
    if isinstance(value, ops.ScalarSubquery):
        return max(said, scale_of(value.value))
    if isinstance(value, ops.Field):
        return max([said, *(scale_of(of) for of in _sources(value.rel, value.name))])
    if isinstance(value, _AS_OPERANDS):
        operands = (child for child in value.__children__ if isinstance(child, ops.Value))
        return max([said, *(scale_of(operand) for operand in operands)])
    return said


def computed_type(value: ops.Value) -> pl.DataType:
    """Return the type of Polars in which a value is computed: no digit of a product is lost."""
    scale = scale_of(value)
    if value.dtype.is_decimal() and scale > (value.dtype.scale or 0):
        return pl.Decimal(DIGITS, scale)
    return PolarsType.from_ibis(value.dtype)


_literal = translate.dispatch(ops.Literal)


def _own_scale(literal: ops.Literal) -> int | None:
    """Return how many digits a literal has behind the point where its type does not say it.

    To Ibis a number of Python's ``decimal`` has a type without digits, of which Polars makes one
    with nine of them behind the point. None where these are enough. Raises FlussError for a number
    that no DECIMAL holds.
    """
    value = literal.value
    if literal.dtype.scale is not None or not isinstance(value, Decimal):
        return None
    _, digits, exponent = value.normalize(_EXACT).as_tuple()
    if isinstance(exponent, int):
        behind, before = max(0, -exponent), max(0, len(digits) + exponent)
        if behind <= USUAL_SCALE and before + USUAL_SCALE <= DIGITS:
            return None
        if behind + before <= DIGITS:
            return behind
    raise FlussError(f"{value} is no DECIMAL, which has up to {DIGITS} digits: write it as a float")


@rule(ops.Literal)
def literal(op: ops.Literal, **kw: Any) -> pl.Expr:
    """Give a number of Python's ``decimal`` all of its digits; other literals are as in Ibis."""
    scale = _own_scale(op) if op.dtype.is_decimal() else None
    if scale is not None:
        return pl.lit(op.value, dtype=pl.Decimal(DIGITS, scale))
    made: pl.Expr = _literal(op, **kw)
    return made
