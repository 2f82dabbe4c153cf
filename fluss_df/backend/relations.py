"""Operations on whole tables that Ibis's Polars backend gives names of columns to.

Polars takes some names for patterns (:mod:`fluss_df.io.names`), so that these would mean other
columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import polars as pl
from ibis.formats.polars import PolarsType
from ibis.util import gen_name

from fluss_df.backend.compiler import rule, translate
from fluss_df.io.names import all_exact, exact


@rule(ops.Aggregate)
def aggregate(op: ops.Aggregate, **kw: Any) -> pl.LazyFrame:
    """Group, and aggregate.

    Groups have names of their own until the end: one that has the name of a column would hide this
    column from the aggregates.
    """
    frame: pl.LazyFrame = translate(op.parent, **kw)
    metrics = [
        translate(value, in_group_by=bool(op.groups), **kw).alias(name)
        for name, value in op.metrics.items()
    ]
    if not op.groups:
        return frame.select(metrics)
    names = {gen_name("group"): name for name in op.groups}
    groups = [
        translate(value, **kw).alias(name)
        for name, value in zip(names, op.groups.values(), strict=True)
    ]
    return frame.with_columns(groups).group_by(list(names)).agg(metrics).rename(names)


@rule(ops.DropColumns)
def drop_columns(op: ops.DropColumns, **kw: Any) -> pl.LazyFrame:
    """Keep the other columns."""
    frame: pl.LazyFrame = translate(op.parent, **kw)
    return frame.select(all_exact(op.schema))


@rule(ops.DropNull)
def drop_null(op: ops.DropNull, **kw: Any) -> pl.LazyFrame:
    """Keep rows without a null in some columns, or with a value in one of them."""
    frame: pl.LazyFrame = translate(op.parent, **kw)
    names = list(op.schema) if op.subset is None else [column.name for column in op.subset]
    if not names:
        return frame.clear() if op.how == "all" else frame
    there = (exact(name).is_not_null() for name in names)
    return frame.filter(pl.any_horizontal(there) if op.how == "all" else pl.all_horizontal(there))


@rule(ops.FillNull)
def fill_null(op: ops.FillNull, **kw: Any) -> pl.LazyFrame:
    """Put values in the place of nulls, and of NaN; each column keeps its type."""
    frame: pl.LazyFrame = translate(op.parent, **kw)
    given = op.replacements
    filled = []
    for name, kind in op.parent.schema.items():
        value = given.get(name) if isinstance(given, Mapping) else given
        if value is None:
            continue
        fill = translate(value, **kw) if isinstance(value, ops.Node) else pl.lit(value)
        fill = fill.cast(PolarsType.from_ibis(kind))
        column = exact(name)
        if isinstance(kind, dt.Floating):
            column = column.fill_nan(fill)
        filled.append(column.fill_null(fill))
    return frame.with_columns(filled)
