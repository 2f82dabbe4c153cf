"""The types of results: as Ibis says them, but for decimals that have more digits."""

from __future__ import annotations

from collections.abc import Mapping

import ibis.expr.datatypes as dt
import polars as pl
from ibis.expr.schema import Schema

#: The most digits that Polars and Fluss have.
DIGITS = 38


def with_digits(schema: Schema, found: Mapping[str, pl.DataType]) -> Schema:
    """Return the types of a result, with the digits that its decimals have behind the point.

    To Ibis a product of decimals has as many digits as one of its factors, and the values would be
    rounded to them, 0.05 * 0.05 to 0.00. A mean keeps the digits that Ibis says, because its digits
    may have no end. ``schema`` has the types by Ibis, and ``found`` those of the computed rows.
    """
    return Schema({name: _with_digits(kind, found[name]) for name, kind in schema.items()})


def _with_digits(kind: dt.DataType, found: object) -> dt.DataType:
    if isinstance(kind, dt.Array) and isinstance(found, pl.List):
        return kind.copy(value_type=_with_digits(kind.value_type, found.inner))
    if isinstance(kind, dt.Struct) and isinstance(found, pl.Struct):
        inner = zip(kind.items(), found.fields, strict=True)
        fields = {name: _with_digits(of, field.dtype) for (name, of), field in inner}
        return kind.copy(fields=fields)
    if not isinstance(kind, dt.Decimal) or not isinstance(found, pl.Decimal):
        return kind
    if kind.scale is None or found.scale <= kind.scale:
        return kind
    return kind.copy(precision=DIGITS, scale=found.scale)
