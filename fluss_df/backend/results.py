"""The types of results: as Ibis says them, but for numbers that have more digits."""

from __future__ import annotations

from collections.abc import Mapping

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
from ibis.expr.schema import Schema

#: The most digits that Polars and Fluss have.
DIGITS = 38
#: How many digits Polars gives a decimal behind the point where Ibis does not say it.
USUAL_SCALE = 9


def with_digits(expr: ir.Expr, found: Mapping[str, pl.DataType]) -> Schema:
    """Return the types of a result, with the digits that its numbers have.

    To Ibis a product of decimals has as many digits as one of its factors, and the values would be
    rounded to them, 0.05 * 0.05 to 0.00. Here a decimal has the scale of the computed column where
    that is larger. Seconds since 1970 are 32 bits to Ibis, which end in 2038: here they have 64.
    ``found`` has the types of the computed columns.
    """
    schema, seconds = expr.as_table().schema(), counts_seconds(expr)
    return Schema({name: _with_digits(kind, found[name], seconds) for name, kind in schema.items()})


def counts_seconds(expr: ir.Expr) -> bool:
    """Whether seconds since 1970 are part of what is computed."""
    return bool(expr.op().find(ops.ExtractEpochSeconds))


def _with_digits(kind: dt.DataType, found: object, seconds: bool) -> dt.DataType:
    if isinstance(kind, dt.Array) and isinstance(found, pl.List):
        return kind.copy(value_type=_with_digits(kind.value_type, found.inner, seconds))
    if isinstance(kind, dt.Struct) and isinstance(found, pl.Struct):
        inner = zip(kind.items(), found.fields, strict=True)
        fields = {name: _with_digits(of, field.dtype, seconds) for (name, of), field in inner}
        return kind.copy(fields=fields)
    if seconds and isinstance(kind, dt.Int32) and found == pl.Int64:
        return dt.Int64(nullable=kind.nullable)
    if not isinstance(kind, dt.Decimal) or not isinstance(found, pl.Decimal):
        return kind
    if kind.scale is not None and found.scale <= kind.scale:
        return kind
    return kind.copy(precision=DIGITS, scale=found.scale)
