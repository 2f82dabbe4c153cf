"""UNNEST: an empty or null list gives no row in SQL; Polars gives a row with a null."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.clauses import from_of
from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.backend.sql.operands.types import columns_of
from fluss_df.errors import FlussError

# the parts that a SELECT's rows come from, not what is done with its rows
_BELOW = ("from_", "from", "joins", "laterals", "where", "group", "having", "windows")


def drop_empty_lists(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Leave out the rows whose list is empty or null, before UNNEST sees them.

    Raises FlussError where a list is selected beside its UNNEST, and where it is not known which
    table has the list.
    """
    for select in list(tree.find_all(exp.Select)):
        unnested = _unnested(select)
        if any(node.find(exp.AggFunc) for node in unnested):
            _aggregate_within(select, unnested)
            unnested = _unnested(select)
        if unnested:
            _require_alone(select, unnested, frames)
            lists = (_has_values(node.this) for node in unnested)
            select.where(exp.or_(*lists), copy=False)
        for at, join in enumerate(select.args.get("joins") or ()):
            # a LEFT JOIN keeps the rows
            if isinstance(join.this, exp.Unnest) and not join.side:
                _drop_from_source(select, at, join.this, frames)


def _unnested(select: exp.Select) -> list[exp.Explode]:
    return [
        node
        for item in select.expressions
        for node in item.find_all(exp.Explode)
        if node.find_ancestor(exp.Select) is select and node.find(exp.Column)
    ]


def _has_values(value: exp.Expr) -> exp.Expr:
    length = exp.ArraySize(this=value.copy())
    return exp.GT(this=length, expression=exp.Literal.number(0))


def _aggregate_within(select: exp.Select, unnested: list[exp.Explode]) -> None:
    """Compute the aggregates that UNNEST takes its lists from in a subquery.

    The subquery has a row for each group, or one row where there is no GROUP BY.
    """
    inner = []
    for at, node in enumerate(unnested):
        name = f"__fluss_list_{at}"
        inner.append(exp.alias_(node.this.copy(), name, quoted=True))
        node.this.replace(exp.column(name, quoted=True))
    outer = []
    for item in select.expressions:
        if any(item is node or item in _above(node) for node in unnested):
            outer.append(item.copy())
            continue
        name = item.alias_or_name
        if item.is_star or not isinstance(item, (exp.Alias, exp.Column)):
            raise FlussError(
                f"SQL cannot be run: {item.sql(Fluss, comments=False)[:80]} stands beside UNNEST of"
                f" an aggregate: give it a name with AS{spot(unnested[0])}"
            )
        inner.append(exp.alias_(item.unalias().copy(), name, quoted=True))
        outer.append(exp.column(name, quoted=True))
    # the inner query has what rows are ordered by, except results of the outer one
    names = {item.alias_or_name for item in select.expressions}
    order = select.args.get("order")
    for at, ordered in enumerate(order.expressions if order else ()):
        value = ordered.this
        columns = value.find_all(exp.Column)
        if value.find(exp.AggFunc) or any(c.table or c.name not in names for c in columns):
            name = f"__fluss_order_{at}"
            inner.append(exp.alias_(value.copy(), name, quoted=True))
            value.replace(exp.column(name, quoted=True))
    within = exp.Select(expressions=inner)
    for part in _BELOW:
        found = select.args.get(part)
        if found:
            select.set(part, None)
            within.set(part, found)
    select.set("expressions", outer)
    select.from_(within.subquery("__fluss_lists"), copy=False)


def _above(node: exp.Expr) -> list[exp.Expr]:
    above = []
    while node.parent is not None and not isinstance(node.parent, exp.Select):
        node = node.parent
        above.append(node)
    return above


def _require_alone(
    select: exp.Select, unnested: list[exp.Explode], frames: Mapping[str, pl.LazyFrame]
) -> None:
    """Raise for a list that is selected too: Polars would have one value of it in each row."""
    lists = [node.this for node in unnested if isinstance(node.this, exp.Column)]
    for item in select.expressions:
        for part in item.find_all(exp.Column, exp.Star):
            if part.find_ancestor(exp.Explode) or part.find_ancestor(exp.Select) is not select:
                continue
            if isinstance(part, exp.Star) and isinstance(part.parent, (exp.Count, exp.Column)):
                continue
            found = next((value for value in lists if _has(part, value, select, frames)), None)
            if found is not None:
                raise FlussError(
                    f"SQL cannot be run: '{found.name}' stands beside UNNEST({found.name}): give"
                    f" the list a second name in a subquery, as (SELECT *, {found.name} AS items"
                    f" FROM ...), and unnest that{spot(unnested[0])}"
                )


def _has(
    part: exp.Expr, value: exp.Column, select: exp.Select, frames: Mapping[str, pl.LazyFrame]
) -> bool:
    """Whether a column, or a star, is a list or has it among others."""
    if isinstance(part, exp.Star) or not (part.is_star or part.name == value.name):
        return isinstance(part, exp.Star)
    tables = _tables(select)
    one, other = (_owners(column, tables, frames) for column in (part, value))
    return any(table is same for table in one for same in other)


def _tables(select: exp.Select, joins: int | None = None) -> list[exp.Expr]:
    """Return the tables that FROM and the first joins name, without UNNEST."""
    parts = [from_of(select), *(select.args.get("joins") or ())[:joins]]
    tables = [part.this for part in parts if part is not None]
    return [table for table in tables if not isinstance(table, exp.Unnest)]


def _owners(
    column: exp.Expr, tables: list[exp.Expr], frames: Mapping[str, pl.LazyFrame]
) -> list[exp.Expr]:
    """Return the tables that a column may be of."""
    if column.text("table"):
        return [table for table in tables if table.alias_or_name == column.text("table")]
    if len(tables) == 1:
        return tables
    columns = [columns_of(table, frames) for table in tables]
    return [
        t for t, names in zip(tables, columns, strict=True) if not names or column.name in names
    ]


def _drop_from_source(
    select: exp.Select, at: int, unnest: exp.Unnest, frames: Mapping[str, pl.LazyFrame]
) -> None:
    """Drop the rows in which a list that FROM unnests is empty or null.

    After an outer join, the list is null where the join found no row.
    """
    value = unnest.expressions[0]
    if not isinstance(value, exp.Column):
        return
    tables = _owners(value, _tables(select, at), frames)
    if len(tables) != 1:
        raise FlussError(
            f"SQL cannot be run: {unnest.sql(Fluss, comments=False)[:80]}: write the table of the"
            f" list in front of it, as table.{value.name}{spot(value)}"
        )
    (table,) = tables
    name = table.alias_or_name or f"__fluss_source_{at}"
    if not table.alias_or_name:
        # a subquery without a name
        table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
    listed = exp.column(value.this.copy(), name, quoted=True)
    # UNNEST replaces the list by its values in Polars: so it gets a copy of the list
    items = f"__fluss_items_{at}"
    inner = exp.select("*", exp.alias_(listed.copy(), items, quoted=True)).from_(table.copy())
    sides = {join.side.upper() for join in select.args["joins"][:at]} - {""}
    source = from_of(select)
    if not sides or (sides == {"LEFT"} and source is not None and source.this is table):
        inner = inner.where(_has_values(listed))
    else:
        # after the joins, because rows without one also decide which rows match
        select.where(_has_values(listed), copy=False)
    for item in list(select.expressions):
        if isinstance(item, exp.Column) and item.is_star and item.table == name:
            # * is written out, because in Polars it would include the copy
            named = [exp.column(c, name, quoted=True) for c in columns_of(table, frames) or ()]
            left_out = {column.name for column in item.this.args.get("except_") or ()}
            item.replace([column for column in named if column.name not in left_out] or item)
    value.replace(exp.column(items, name, quoted=True))
    table.replace(inner.subquery(exp.to_identifier(name, quoted=True)))
