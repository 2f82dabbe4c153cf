"""Subqueries in filters and columns, which Ibis's Polars backend refuses or computes at once.

Each becomes a join that adds one column to the rows around it: whether a row has a match, or the
value that belongs to it. So a query stays one lazy frame, and all of its scans are pushed into.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import ibis.common.exceptions as com
import ibis.expr.operations as ops
import polars as pl
from ibis.util import gen_name

from fluss_df.backend.compiler.correlations import (
    Correlation,
    Step,
    correlation,
    free_fields,
    require_own,
)
from fluss_df.backend.compiler.relations import (
    aggregated,
    filled_in,
    in_order,
    projected,
    without_nulls,
)
from fluss_df.backend.key_lookups import joined_alike, keyed_leaf
from fluss_df.backend.translation import rule, translate
from fluss_df.io.base.names import all_exact, exact

_OF_USERS = (ops.ReductionVectorizedUDF, ops.AggUDF)


@rule(ops.Field)
def column(op: ops.Field, *, columns: dict[ops.Node, str] | None = None, **_: Any) -> pl.Expr:
    """Return a column; beside another table's it may have another name."""
    return exact((columns or {}).get(op, op.name))


@rule(ops.Filter)
def filter_rows(op: ops.Filter, **kw: Any) -> pl.LazyFrame:
    """Keep the rows for which all conditions hold."""
    kw, predicates = _with_key_sides(op, kw)
    frame: pl.LazyFrame = translate(op.parent, **kw)
    frame, kw, added = attach(frame, op.parent, predicates, kw)
    for predicate in predicates:
        frame = frame.filter(translate(predicate, **kw))
    return frame.drop(added) if added else frame


def _with_key_sides(op: ops.Filter, kw: dict[str, Any]) -> tuple[dict[str, Any], list[ops.Value]]:
    """Have the table below joined with those subqueries that name its keys.

    Returns what to translate the parent with, and the conditions that are left.
    """
    inner = {name: value for name, value in kw.items() if name != "sides"}
    left = []
    for predicate in op.predicates:
        leaf, rows, keys = None, None, []
        if isinstance(predicate, ops.InSubquery):
            if not free_fields(predicate.rel):
                leaf = keyed_leaf(op.parent, [predicate.needle])
            if leaf is not None:
                rows = translate(predicate.rel, **inner)
                keys = [exact(next(iter(predicate.rel.schema)))]
        elif isinstance(predicate, ops.ExistsSubquery):
            found = correlation(predicate, _any_row(predicate.rel), op.parent)
            if found is not None and not found.residual:
                leaf = keyed_leaf(op.parent, found.keys)
            if leaf is not None and found is not None:
                made = _rows(found, None, inner)
                rows, keys = made.frame, [exact(name) for name in made.names]
        if leaf is None or rows is None:
            left.append(predicate)
        else:
            named = [key.alias(f"key{at}") for at, key in enumerate(keys)]
            kw = leaf.joined(rows.select(named), kw)
    return kw, left


@rule(ops.Project)
def project(op: ops.Project, **kw: Any) -> pl.LazyFrame:
    """Compute columns."""
    frame: pl.LazyFrame = translate(op.parent, **kw)
    # the select also drops the columns that subqueries became
    frame, kw, _ = attach(frame, op.parent, list(op.values.values()), kw)
    return projected(frame, op, (), kw)


@rule(ops.ScalarSubquery, ops.ExistsSubquery, ops.InSubquery)
def subquery(
    op: ops.Subquery, *, subqueries: dict[ops.Node, pl.Expr] | None = None, **kw: Any
) -> pl.Expr:
    """Return the column that a subquery became."""
    found = (subqueries or {}).get(op)
    if found is None:
        raise com.UnsupportedOperationError(
            f"a {type(op).__name__} stands where it cannot be computed: it can be part of a"
            " filter or of a selected column; compute it there first"
        )
    return found


def attach(
    frame: pl.LazyFrame, outer: ops.Relation, values: Iterable[ops.Value], kw: dict[str, Any]
) -> tuple[pl.LazyFrame, dict[str, Any], list[str]]:
    """Add a column to a frame for each subquery in values.

    Returns the frame, what to translate the values with, and the names of the columns.
    """
    # key sides of the outer tables are not for the tables in a subquery
    kw = {name: value for name, value in kw.items() if name != "sides"}
    there: dict[ops.Node, pl.Expr] = dict(kw.get("subqueries") or {})
    added: list[str] = []
    for value in values:
        for node in value.find(ops.Subquery, filter=ops.Value):
            if node in there:
                continue
            name = gen_name("subquery")
            added.append(name)
            frame, there[node] = _ATTACH[type(node)](frame, outer, node, name, kw)
    return frame, {**kw, "subqueries": there} if added else kw, added


@dataclass
class _Rows:
    """The rows of a subquery, and what joins them with the outer rows.

    Attributes
    ----------
    frame
        The rows, with a column for each key and for each value in a residual condition.
    keys
        Values of the outer rows that the keys are to be equal to.
    names
        The columns of the keys.
    columns
        The column of each value in a residual condition.
    """

    frame: pl.LazyFrame
    keys: list[pl.Expr] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    columns: dict[ops.Node, str] = field(default_factory=dict)


def _rows(found: Correlation, around: pl.LazyFrame | None, kw: dict[str, Any]) -> _Rows:
    """Compute the rows of a subquery, those of each key apart.

    Keys get types in which they can be joined with the rows around, where these are given.
    """
    rows = _Rows(translate(found.base, **kw))
    for step in found.steps:
        _compute(rows, step, around, kw)
    return rows


def _compute(rows: _Rows, step: Step, around: pl.LazyFrame | None, kw: dict[str, Any]) -> None:
    kept = [*rows.names, *rows.columns.values()]
    match step.relation:
        case ops.Filter() as op:
            _apply_filter(rows, op, step, around, kw)
        case ops.Project() as op:
            frame, kw, _ = attach(rows.frame, op.parent, list(op.values.values()), kw)
            rows.frame = projected(frame, op, kept, kw)
        case ops.DropColumns() as op:
            rows.frame = rows.frame.select(all_exact([*kept, *op.schema]))
        case ops.Sort() as op:
            rows.frame = in_order(rows.frame, op, kw)
        case ops.DropNull() as op:
            rows.frame = without_nulls(rows.frame, op)
        case ops.FillNull() as op:
            rows.frame = filled_in(rows.frame, op, kw)
        case ops.Distinct():
            rows.frame = rows.frame.unique()
        case ops.Aggregate() as op:
            rows.frame = aggregated(rows.frame, op, kept, kw)
        case ops.Limit() as op:
            place = pl.int_range(pl.len()).over(all_exact(kept))
            end = None if op.n is None else op.offset + op.n
            rows.frame = rows.frame.filter(
                (place >= op.offset) if end is None else (place >= op.offset) & (place < end)
            )


def _apply_filter(
    rows: _Rows, op: ops.Filter, step: Step, around: pl.LazyFrame | None, kw: dict[str, Any]
) -> None:
    """Keep the rows for which a filter's own conditions hold, and name what is for the others."""
    frame, known, added = attach(rows.frame, op.parent, step.own, kw)
    for predicate in step.own:
        frame = frame.filter(translate(predicate, **known))
    frame = frame.drop(added) if added else frame
    outer = [translate(key, **kw) for key, _ in step.keys]
    inner = [translate(key, **kw) for _, key in step.keys]
    if around is not None and inner:
        outer, inner = _alike(around, outer, frame, inner)
    names = [gen_name("key") for _ in inner]
    rows.keys += outer
    rows.names += names
    made = [key.alias(name) for key, name in zip(inner, names, strict=True)]
    for predicate in step.residual:
        for column in predicate.find(ops.Field, filter=ops.Value):
            if column.rel == op.parent and column not in rows.columns:
                rows.columns[column] = gen_name("beside")
                made.append(exact(column.name).alias(rows.columns[column]))
    rows.frame = frame.with_columns(made)


def _alike(
    frame: pl.LazyFrame, keys: list[pl.Expr], rows: pl.LazyFrame, inner_keys: list[pl.Expr]
) -> tuple[list[pl.Expr], list[pl.Expr]]:
    """Return the keys of two frames in types in which they can be joined."""
    kinds = zip(
        frame.select(k.alias(f"{at}") for at, k in enumerate(keys)).collect_schema().dtypes(),
        rows.select(k.alias(f"{at}") for at, k in enumerate(inner_keys)).collect_schema().dtypes(),
        strict=True,
    )
    one, other = [], []
    for key, inner, (kind, inner_kind) in zip(keys, inner_keys, kinds, strict=True):
        one.append(joined_alike(key, kind, inner_kind))
        other.append(joined_alike(inner, inner_kind, kind))
    return one, other


def _flagged(
    frame: pl.LazyFrame,
    keys: list[pl.Expr],
    rows: pl.LazyFrame,
    inner_keys: list[pl.Expr],
    name: str,
) -> pl.LazyFrame:
    """Say for each row whether the other rows have its keys; a null key has no equal."""
    names = [gen_name("key") for _ in keys]
    known = rows.select(k.alias(n) for k, n in zip(inner_keys, names, strict=True))
    known = known.unique().with_columns(pl.lit(value=True).alias(name))
    frame = frame.with_columns(k.alias(n) for k, n in zip(keys, names, strict=True))
    joined = frame.join(known, on=names, how="left", maintain_order="left")
    return joined.drop(names).with_columns(exact(name).fill_null(value=False))


def _any_row(relation: ops.Relation) -> ops.Relation:
    """Return the relation that has a row where this one has, without what only makes columns."""
    while True:
        match relation:
            case ops.Sort() | ops.DropColumns() | ops.Distinct():
                pass
            case ops.Project(values=v) if not any(isinstance(n, ops.Unnest) for n in v.values()):
                pass
            case ops.Limit(n=int(n), offset=0) if n > 0:
                pass
            case _:
                return relation
        relation = relation.parent


def _attach_exists(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.ExistsSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    relation = _any_row(op.rel)
    found = correlation(op, relation, outer)
    if found is None:
        any_row = translate(relation, **kw).select((pl.len() > 0).alias(name))
        return frame.join(any_row, how="cross"), exact(name)
    rows = _rows(found, frame, kw)
    named = [exact(key) for key in rows.names]
    if not found.residual:
        return _flagged(frame, rows.keys, rows.frame, named, name), exact(name)
    # pairs of rows with equal keys, of which one at least must pass the other conditions
    number, mark = gen_name("row"), gen_name("mark")
    kept = all_exact([mark, *rows.names, *rows.columns.values()])
    inner = rows.frame.with_columns(pl.lit(value=True).alias(mark)).select(kept)
    numbered = frame.with_row_index(number)
    left = numbered.with_columns(k.alias(n) for k, n in zip(rows.keys, rows.names, strict=True))
    pairs = left.join(inner, on=rows.names) if rows.names else left.join(inner, how="cross")
    for predicate in found.residual:
        pairs = pairs.filter(translate(predicate, **{**kw, "columns": rows.columns}))
    row = [exact(number)]
    return _flagged(numbered, row, pairs, row, name).drop(number), exact(name)


def _attach_in(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.InSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    if op.needle.dtype.is_struct():
        raise com.UnsupportedOperationError("isin of a table cannot compare structs")
    found = correlation(op, op.rel, outer)
    if found is None:
        rows = _Rows(translate(op.rel, **kw))
    elif found.residual:
        raise com.UnsupportedOperationError(
            "isin of a subquery can depend on the rows around it by equal columns only: write it"
            " as any(...) of the condition, or as a join"
        )
    else:
        rows = _rows(found, frame, kw)
    needle = translate(op.needle, **kw)
    (column,) = op.rel.schema
    value = exact(column)
    (needle,), (value,) = _alike(frame, [needle], rows.frame, [value])
    named = [exact(key) for key in rows.names]
    flagged = _flagged(frame, [*rows.keys, needle], rows.frame, [*named, value], name)
    if not (op.needle.dtype.nullable or op.rel.schema[column].nullable):
        return flagged, exact(name)
    # without an equal, a null on either side leaves open whether the value is among them
    some, null = gen_name("some"), gen_name("null")
    there = [pl.lit(value=True).alias(some), exact(column).is_null().any().alias(null)]
    if found is None:
        sides = rows.frame.select((pl.len() > 0).alias(some), there[1])
        joined = flagged.join(sides, how="cross", maintain_order="left")
    else:
        # computed for the rows of each key; where a key has no rows, the value is not among them
        sides = rows.frame.group_by(rows.names).agg(there)
        joined = _beside(flagged, rows, sides)
        joined = joined.with_columns(exact(n).fill_null(value=False) for n in (some, null))
    unknown = exact(null) | (exact(some) & needle.is_null())
    known = pl.when(exact(name)).then(statement=True).when(~unknown).then(statement=False)
    return joined.with_columns(known.alias(name)).drop(some, null), exact(name)


def _beside(frame: pl.LazyFrame, rows: _Rows, values: pl.LazyFrame) -> pl.LazyFrame:
    """Join the rows around a subquery with a row for each of its keys."""
    frame = frame.with_columns(k.alias(n) for k, n in zip(rows.keys, rows.names, strict=True))
    joined = frame.join(values, on=rows.names, how="left", maintain_order="left")
    return joined.drop(rows.names)


def _attach_scalar(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.ScalarSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    (first,) = op.rel.schema
    if not free_fields(op.rel):
        rows = translate(op.rel, **kw).select(exact(first).first().alias(name))
        return frame.join(rows, how="cross"), exact(name)
    value: ops.Relation = op.rel
    projections: list[ops.Project] = []
    while isinstance(value, ops.Project):
        projections.insert(0, value)
        value = value.parent
    if isinstance(value, ops.Aggregate) and not value.groups:
        require_own(op, [value, *projections])
        return _attach_aggregate(frame, outer, op, name, kw, value, projections)
    require_own(op, projections)
    if not (isinstance(value, ops.Limit) and value.n in (0, 1)):
        raise com.UnsupportedOperationError(
            "a scalar subquery (as_scalar) that refers to the rows around it may have many values"
            " for one of them: end it with an aggregate as max(), or with limit(1)"
        )
    found = _of_equal_columns(op, op.rel, outer)
    made = _rows(found, frame, kw)
    values = made.frame.select(*all_exact(made.names), exact(first).alias(name))
    return _beside(frame, made, values), exact(name)


def _of_equal_columns(op: ops.Subquery, relation: ops.Relation, outer: ops.Relation) -> Correlation:
    found = correlation(op, relation, outer)
    # what refers to the outer rows does so below, or was refused
    assert found is not None
    if found.residual:
        raise com.UnsupportedOperationError(
            "a value of a subquery can depend on the rows around it by equal columns only"
        )
    return found


def _attach_aggregate(
    frame: pl.LazyFrame,
    outer: ops.Relation,
    op: ops.ScalarSubquery,
    name: str,
    kw: dict[str, Any],
    aggregate: ops.Aggregate,
    projections: list[ops.Project],
) -> tuple[pl.LazyFrame, pl.Expr]:
    """Add what is an aggregate of the rows of each key, and what it is of no rows."""
    rows = _rows(_of_equal_columns(op, aggregate.parent, outer), frame, kw)
    (column,) = op.rel.schema

    def values(of: pl.LazyFrame, kept: list[str]) -> pl.LazyFrame:
        made = aggregated(of, aggregate, kept, kw)
        for projection in projections:
            made = projected(made, projection, kept, kw)
        return made.select(*all_exact(kept), exact(column).alias(name))

    found = values(rows.frame, rows.names)
    joined = _beside(frame, rows, found)
    if any(m.find(_OF_USERS, filter=ops.Value) for m in aggregate.metrics.values()):
        # a user's function may not accept zero rows
        return joined, exact(name)
    none = values(pl.LazyFrame(schema=rows.frame.collect_schema()), []).collect()[name]
    if none.item() is None:
        return joined, exact(name)
    # A count of no rows is not null, for example. A value that is null for some rows stays null.
    there = gen_name("there")
    joined = _beside(frame, rows, found.with_columns(pl.lit(value=True).alias(there)))
    chosen = pl.when(exact(there)).then(exact(name)).otherwise(pl.lit(none).first())
    return joined.with_columns(chosen.alias(name)).drop(there), exact(name)


_ATTACH: dict[type, Any] = {
    ops.ExistsSubquery: _attach_exists,
    ops.InSubquery: _attach_in,
    ops.ScalarSubquery: _attach_scalar,
}
