"""Operations on whole tables, where Ibis's Polars backend hands names of columns to Polars.

Polars takes some names for patterns (:mod:`fluss_df.io.base.names`), so that these would mean other
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import ibis.common.exceptions as com
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import polars as pl

from fluss_df.backend.compiler.digits import computed_type
from fluss_df.backend.translation import PolarsType, rule, translate
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact, exact, exact_fields

_table = translate.dispatch(ops.DatabaseTable)


@rule(ops.DatabaseTable)
def local_table(op: ops.DatabaseTable, **kw: Any) -> pl.LazyFrame:
    """Return the local table of the connection with this name."""
    try:
        found: pl.LazyFrame = _table(op, **kw)
    except KeyError:
        raise FlussError(
            f"the connection has no {op.name!r} any more: it was dropped, or the connection ended"
        ) from None
    return found


def _free_names(of: str, *known: Mapping[str, Any]) -> Iterator[str]:
    """Make names that no column has.

    The names are the same each time. So Polars sees where a query has the same group twice, and
    computes it once.
    """
    names = (f"__fluss_{of}_{i}" for i in itertools.count())
    return (name for name in names if not any(name in columns for columns in known))


def aggregated(
    frame: pl.LazyFrame, op: ops.Aggregate, kept: Sequence[str], kw: dict[str, Any]
) -> pl.LazyFrame:
    """Group a frame by what an aggregate says, and first by columns that are kept.

    Groups have names of their own until the end: one that has the name of a column would hide this
    column from the aggregates.
    """
    grouped = bool(op.groups or kept)
    metrics = [
        translate(value, in_group_by=grouped, **kw).alias(name)
        for name, value in op.metrics.items()
    ]
    if not grouped:
        return frame.select(metrics)
    names = dict(zip(_free_names("group", op.parent.schema, op.metrics), op.groups, strict=False))
    groups = [
        translate(value, **kw).alias(name)
        for name, value in zip(names, op.groups.values(), strict=True)
    ]
    return frame.with_columns(groups).group_by([*kept, *names]).agg(metrics).rename(names)


@rule(ops.Aggregate)
def aggregate(op: ops.Aggregate, **kw: Any) -> pl.LazyFrame:
    """Group, and aggregate."""
    return aggregated(translate(op.parent, **kw), op, (), kw)


def projected(
    frame: pl.LazyFrame, op: ops.Project, kept: Sequence[str], kw: dict[str, Any]
) -> pl.LazyFrame:
    """Compute columns of a frame, beside others that are kept.

    A list that is unnested gives a row for each of its values. An empty or null list gives no row.
    """
    selected, constant, unnested = [exact(name) for name in kept], [], []
    free = _free_names("constant", op.parent.schema)
    for name, value in op.values.items():
        if isinstance(value, ops.Unnest):
            selected.append(translate(value.arg, **kw).alias(name))
            unnested.append(name)
        elif isinstance(value, ops.Value):
            made = translate(value, **kw).alias(name)
            if value.shape.is_scalar():
                # without another column, a constant or the result of a function would be one row
                of_function = value.find(ops.RegexSplit, filter=ops.Value)
                # under a name of its own, because others are computed of the column that has its
                # name
                own = next(free)
                constant.append((made.first() if of_function else made).alias(own))
                made = exact(own).alias(name)
            selected.append(made)
        else:
            raise com.TranslationError(f"a column cannot be a {type(value).__name__}")
    if constant:
        frame = frame.with_columns(constant)
    frame = frame.select(selected)
    if unnested:
        frame = frame.explode(unnested, empty_as_null=False, keep_nulls=False)
    return frame


def in_order(frame: pl.LazyFrame, op: ops.Sort, kw: dict[str, Any]) -> pl.LazyFrame:
    """Sort a frame, and keep the order of rows whose keys are equal: a sort may follow a sort."""
    if not op.keys:
        return frame
    return frame.sort(
        [translate(key.arg, **kw) for key in op.keys],
        descending=[key.descending for key in op.keys],
        nulls_last=[not key.nulls_first for key in op.keys],
        maintain_order=True,
    )


@rule(ops.Sort)
def sort(op: ops.Sort, **kw: Any) -> pl.LazyFrame:
    """Sort."""
    return in_order(translate(op.parent, **kw), op, kw)


@rule(ops.DropColumns)
def drop_columns(op: ops.DropColumns, **kw: Any) -> pl.LazyFrame:
    """Keep the other columns."""
    frame: pl.LazyFrame = translate(op.parent, **kw)
    return frame.select(all_exact(op.schema))


@rule(ops.DropNull)
def drop_null(op: ops.DropNull, **kw: Any) -> pl.LazyFrame:
    """Keep rows without a null in some columns, or with a value in one of them."""
    return without_nulls(translate(op.parent, **kw), op)


def without_nulls(frame: pl.LazyFrame, op: ops.DropNull) -> pl.LazyFrame:
    """Keep the rows of a frame as ``drop_null`` says."""
    names = list(op.schema) if op.subset is None else [column.name for column in op.subset]
    if not names:
        return frame.clear() if op.how == "all" else frame
    there = (exact(name).is_not_null() for name in names)
    return frame.filter(pl.any_horizontal(there) if op.how == "all" else pl.all_horizontal(there))


@rule(ops.FillNull)
def fill_null(op: ops.FillNull, **kw: Any) -> pl.LazyFrame:
    """Put values in the place of nulls, not of NaN, which is a number; columns keep their types."""
    return filled_in(translate(op.parent, **kw), op, kw)


def filled_in(frame: pl.LazyFrame, op: ops.FillNull, kw: dict[str, Any]) -> pl.LazyFrame:
    """Fill the nulls of a frame as ``fill_null`` says."""
    given = op.replacements
    filled = []
    for name, kind in op.parent.schema.items():
        value = given.get(name) if isinstance(given, Mapping) else given
        if value is None:
            continue
        fill = translate(value, **kw) if isinstance(value, ops.Node) else pl.lit(value)
        fill = fill.cast(computed_type(ops.Field(op.parent, name)))
        _require_exact(name, kind, value, fill)
        filled.append(exact(name).fill_null(fill))
    return frame.with_columns(filled)


def _require_exact(name: str, kind: dt.DataType, value: Any, fill: pl.Expr) -> None:
    """Raise for a number that the type of a column cannot hold with all its digits."""
    given = getattr(value, "value", value)
    if not isinstance(kind, dt.Decimal | dt.Integer) or not isinstance(given, float | Decimal):
        return
    if Decimal(str(pl.select(fill).item())) != Decimal(str(given)):
        raise FlussError(
            f"fill_null: column '{name}' is {kind}, which does not hold {given}: cast the column,"
            " or round the value"
        )


@rule(ops.Any, ops.All)
def truth(op: ops.Any | ops.All, **kw: Any) -> pl.Expr:
    """Tell whether one value is true, or all are; of no values but nulls it is null."""
    value: pl.Expr = translate(op.arg, **kw)
    if op.where is not None:
        value = value.filter(translate(op.where, **kw))
    found = value.any() if isinstance(op, ops.Any) else value.all()
    return pl.when(value.count() > 0).then(found)


@rule(ops.Mode)
def mode(op: ops.Mode, **kw: Any) -> pl.Expr:
    """Return a value that is there most often; null where there is none."""
    value: pl.Expr = translate(op.arg, **kw)
    if op.where is not None:
        value = value.filter(translate(op.where, **kw))
    return value.drop_nulls().mode().first()


@rule(ops.CountDistinct, ops.ApproxCountDistinct)
def count_distinct(op: ops.CountDistinct | ops.ApproxCountDistinct, **kw: Any) -> pl.Expr:
    """Count the different values; a null is none."""
    value: pl.Expr = translate(op.arg, **kw)
    if op.where is not None:
        value = value.filter(translate(op.where, **kw))
    value = value.drop_nulls()
    exactly = isinstance(op, ops.CountDistinct)
    found = value.n_unique() if exactly else value.approx_n_unique()
    # a difference of Polars' UInt32 is never negative
    return found.cast(PolarsType.from_ibis(op.dtype))


@rule(ops.CountDistinctStar)
def count_distinct_rows(op: ops.CountDistinctStar, **kw: Any) -> pl.Expr:
    """Count the different rows."""
    row = pl.struct(exact(name).alias(f"f{at}") for at, name in enumerate(op.arg.schema))
    if op.where is not None:
        row = row.filter(translate(op.where, **kw))
    return row.n_unique().cast(PolarsType.from_ibis(op.dtype))


@rule(ops.StructField)
def struct_field(op: ops.StructField, **kw: Any) -> pl.Expr:
    """Take a field of rows."""
    names = op.arg.dtype.names
    field: pl.Expr = exact_fields(translate(op.arg, **kw), names)[names.index(op.field)]
    return field
