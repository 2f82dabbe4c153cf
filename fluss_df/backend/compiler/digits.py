"""How many digits decimals have behind the point: to Ibis a product has those of one factor."""

from __future__ import annotations

import ibis.expr.operations as ops
import polars as pl

from fluss_df.backend.results import DIGITS
from fluss_df.backend.translation import PolarsType

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
