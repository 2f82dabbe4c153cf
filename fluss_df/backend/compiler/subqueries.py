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

from fluss_df.backend.key_lookups import common_type, keyed_leaf
from fluss_df.backend.translation import rule, translate
from fluss_df.io.base.names import exact


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
            leaf = keyed_leaf(op.parent, [predicate.needle])
            if leaf is not None:
                rows = translate(predicate.rel, **inner)
                keys = [exact(next(iter(predicate.rel.schema)))]
        elif isinstance(predicate, ops.ExistsSubquery):
            found = _correlation(predicate.rel, op.parent)
            if found.keys and not found.residual:
                leaf = keyed_leaf(op.parent, [key for key, _ in found.keys])
            if leaf is not None:
                rows, keys = found.rows(inner), [translate(key, **inner) for _, key in found.keys]
        if leaf is None or rows is None:
            left.append(predicate)
        else:
            named = [key.alias(f"key{at}") for at, key in enumerate(keys)]
            kw = leaf.joined(rows.select(named), kw)
    return kw, left


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
    # what is known of the tables around a subquery is nothing to those in it
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
class _Correlation:
    """What a subquery's conditions say about the rows around it."""

    base: ops.Relation
    inner: list[ops.Value] = field(default_factory=list)
    keys: list[tuple[ops.Value, ops.Value]] = field(default_factory=list)
    residual: list[ops.Value] = field(default_factory=list)

    def rows(self, kw: dict[str, Any]) -> pl.LazyFrame:
        """Return the rows of the subquery for which its own conditions hold."""
        frame: pl.LazyFrame = translate(self.base, **kw)
        frame, kw, added = attach(frame, self.base, self.inner, kw)
        for predicate in self.inner:
            frame = frame.filter(translate(predicate, **kw))
        return frame.drop(added) if added else frame


def _correlation(relation: ops.Relation, outer: ops.Relation) -> _Correlation:
    predicates: list[ops.Value] = []
    own: set[ops.Relation] = set()
    while isinstance(relation, (ops.Filter, ops.Project)):
        if isinstance(relation, ops.Filter):
            predicates += relation.predicates
            own.add(relation.parent)
        elif not _mentions(relation, outer):
            break
        relation = relation.parent
    found = _Correlation(relation)
    if outer in own:
        # both speak of one table: what a condition says of it, it says of the rows it filters
        found.inner = predicates
        return found
    while predicates:
        predicate = predicates.pop()
        if isinstance(predicate, ops.And):
            predicates += [predicate.left, predicate.right]
        elif not _outer_fields(predicate, outer):
            found.inner.append(predicate)
        elif isinstance(predicate, ops.Equals) and (pair := _pair(predicate, outer)):
            found.keys.append(pair)
        else:
            found.residual.append(predicate)
    return found


def _mentions(relation: ops.Relation, outer: ops.Relation) -> bool:
    """Whether conditions further in speak of the rows around the subquery."""
    inner: ops.Relation = relation
    while isinstance(inner, (ops.Filter, ops.Project)):
        if isinstance(inner, ops.Filter) and any(_outer_fields(p, outer) for p in inner.predicates):
            return True
        inner = inner.parent
    return False


def _outer_fields(value: ops.Value, outer: ops.Relation) -> list[ops.Field]:
    return [f for f in value.find(ops.Field, filter=ops.Value) if f.rel == outer]


def _pair(predicate: ops.Equals, outer: ops.Relation) -> tuple[ops.Value, ops.Value] | None:
    sides = [predicate.left, predicate.right]
    fields = [list(side.find(ops.Field, filter=ops.Value)) for side in sides]
    theirs = [len(_outer_fields(side, outer)) for side in sides]
    for at, other in ((0, 1), (1, 0)):
        if theirs[at] == len(fields[at]) and theirs[at] and not theirs[other]:
            return sides[at], sides[other]
    return None


def _alike(
    frame: pl.LazyFrame, keys: list[pl.Expr], rows: pl.LazyFrame, inner_keys: list[pl.Expr]
) -> tuple[list[pl.Expr], list[pl.Expr]]:
    """Return the keys of two frames in types in which they can be joined."""
    kinds = zip(
        frame.select(k.alias(f"{at}") for at, k in enumerate(keys)).collect_schema().dtypes(),
        rows.select(k.alias(f"{at}") for at, k in enumerate(inner_keys)).collect_schema().dtypes(),
        strict=True,
    )
    types = [common_type(*pair) for pair in kinds]
    one, other = (
        [k if to is None else k.cast(to) for k, to in zip(side, types, strict=True)]
        for side in (keys, inner_keys)
    )
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


def _attach_exists(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.ExistsSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    found = _correlation(op.rel, outer)
    rows = found.rows(kw)
    if not found.keys and not found.residual:
        any_row = rows.select((pl.len() > 0).alias(name))
        return frame.join(any_row, how="cross"), exact(name)
    keys = [translate(key, **kw) for key, _ in found.keys]
    inner_keys = [translate(key, **kw) for _, key in found.keys]
    keys, inner_keys = _alike(frame, keys, rows, inner_keys)
    if not found.residual:
        return _flagged(frame, keys, rows, inner_keys, name), exact(name)
    # pairs of rows with equal keys, of which one at least must pass the other conditions
    number = gen_name("row")
    renamed = {n: gen_name(n) for n in rows.collect_schema().names()}
    names = [gen_name("key") for _ in keys]
    inner = rows.with_columns(k.alias(n) for k, n in zip(inner_keys, names, strict=True))
    inner = inner.rename(renamed)
    numbered = frame.with_row_index(number)
    left = numbered.with_columns(k.alias(n) for k, n in zip(keys, names, strict=True))
    pairs = left.join(inner, on=names) if names else left.join(inner, how="cross")
    columns = {
        f: renamed[f.name]
        for predicate in found.residual
        for f in predicate.find(ops.Field, filter=ops.Value)
        if f.rel != outer
    }
    for predicate in found.residual:
        pairs = pairs.filter(translate(predicate, **{**kw, "columns": columns}))
    row = [exact(number)]
    return _flagged(numbered, row, pairs, row, name).drop(number), exact(name)


def _attach_in(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.InSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    if op.needle.dtype.is_struct():
        raise com.UnsupportedOperationError("isin of a table cannot compare structs")
    needle = translate(op.needle, **kw)
    rows: pl.LazyFrame = translate(op.rel, **kw)
    (column,) = op.rel.schema
    value = exact(column)
    (needle,), (value,) = _alike(frame, [needle], rows, [value])
    found = _flagged(frame, [needle], rows, [value], name)
    if not (op.needle.dtype.nullable or op.rel.schema[column].nullable):
        return found, exact(name)
    # without an equal, a null on either side leaves open whether the value is among them
    some, null = gen_name("some"), gen_name("null")
    sides = rows.select((pl.len() > 0).alias(some), exact(column).is_null().any().alias(null))
    unknown = exact(null) | (exact(some) & needle.is_null())
    known = pl.when(exact(name)).then(statement=True).when(~unknown).then(statement=False)
    found = found.join(sides, how="cross", maintain_order="left")
    return found.with_columns(known.alias(name)).drop(some, null), exact(name)


def _attach_scalar(
    frame: pl.LazyFrame, outer: ops.Relation, op: ops.ScalarSubquery, name: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.Expr]:
    value: ops.Relation = op.rel
    projections: list[ops.Project] = []
    while isinstance(value, ops.Project) and isinstance(value.parent, (ops.Project, ops.Aggregate)):
        projections.append(value)
        value = value.parent
    found = None
    if isinstance(value, ops.Aggregate) and not value.groups:
        found = _correlation(value.parent, outer)
    if found is None or not (found.keys or found.residual):
        rows: pl.LazyFrame = translate(op.rel, **kw)
        (first,) = rows.collect_schema().names()
        return frame.join(rows.select(exact(first).first().alias(name)), how="cross"), exact(name)
    if found.residual:
        raise com.UnsupportedOperationError(
            "a value of a subquery can depend on the rows around it by equal columns only"
        )
    names = [gen_name("key") for _ in found.keys]
    rows = found.rows(kw)
    keys, inner_keys = _alike(
        frame,
        [translate(key, **kw) for key, _ in found.keys],
        rows,
        [translate(key, **kw) for _, key in found.keys],
    )
    rows = rows.with_columns(k.alias(n) for k, n in zip(inner_keys, names, strict=True))
    metrics = [translate(m, in_group_by=True, **kw).alias(n) for n, m in value.metrics.items()]
    values = rows.group_by(names).agg(metrics)
    for projection in reversed(projections):
        made = [translate(v, **kw).alias(n) for n, v in projection.values.items()]
        values = values.select(*names, *made)
    values = values.rename({next(iter(op.rel.schema)): name})
    frame = frame.with_columns(k.alias(n) for k, n in zip(keys, names, strict=True))
    joined = frame.join(values, on=names, how="left", maintain_order="left").drop(names)
    result = exact(name)
    if any(isinstance(m, (ops.Count, ops.CountStar)) for m in value.metrics.values()):
        # no row is a count of 0, where other aggregates are null
        result = result.fill_null(0)
    return joined, result


_ATTACH: dict[type, Any] = {
    ops.ExistsSubquery: _attach_exists,
    ops.InSubquery: _attach_in,
    ops.ScalarSubquery: _attach_scalar,
}
