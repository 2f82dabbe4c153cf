"""Types of expressions in SQL, as Polars says that they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss
from fluss_df.polars_adapter.plans import sql_query


def asked_type(value: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> pl.DataType | None:
    """Return the type that Polars says an expression of a SELECT has; None where it cannot say."""
    if isinstance(value, exp.Column):
        known = type_of(value, frames)
        if known is not None:
            return known
    select = value.find_ancestor(exp.Select)
    if select is None:
        return None
    query = exp.Select(expressions=[exp.alias_(value.copy(), "asked")])
    for part in ("from_", "from", "joins", "laterals"):
        found = select.args.get(part)
        if found:
            copied = [f.copy() for f in found] if isinstance(found, list) else found.copy()
            query.set(part, copied)
    common = _in_sight(select)
    if common:
        query.set("with_", exp.With(expressions=common))
    try:
        text = query.sql(Fluss, comments=False)
        schema = sql_query(text, frames).collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # such as a name of an outer query; errors are reported when the whole query runs
        return None
    return schema.get("asked")


def number_in(value: exp.Expr) -> exp.Literal | None:
    """Return the digits of a number, which may be negative; None for another expression."""
    literal = value.unnest()
    if isinstance(literal, exp.Neg):
        literal = literal.this.unnest()
    return literal if isinstance(literal, exp.Literal) and not literal.is_string else None


def columns_of(table: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> list[str] | None:
    """Return the columns of a table or subquery in FROM or JOIN; None where Polars cannot say."""
    frame = frames.get(table.name) if isinstance(table, exp.Table) else None
    if frame is not None:
        return frame.collect_schema().names()
    select = table.find_ancestor(exp.Select)
    query = exp.select("*").from_(table.copy())
    common = _in_sight(select) if select is not None else []
    if common:
        query.set("with_", exp.With(expressions=common))
    try:
        return sql_query(query.sql(Fluss, comments=False), frames).collect_schema().names()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _in_sight(select: exp.Select) -> list[exp.Expr]:
    """Return the common table expressions that a SELECT may name, those of outer queries first."""
    found: list[exp.Expr] = []
    named: set[str] = set()
    for clause in clauses_in_sight(select):
        seen: list[exp.Expr] = [cte.copy() for cte in clause if cte.alias not in named]
        named |= {cte.alias for cte in seen}
        found = seen + found
    return found


def clauses_in_sight(node: exp.Expr) -> Iterator[list[exp.CTE]]:
    """Yield the common table expressions that a part of a query may name, by clause, inner first.

    Of the clause that the part stands in, those before it, and itself where it is recursive.
    """
    above: exp.Expr | None = node
    inside: exp.CTE | None = None
    while above is not None:
        if isinstance(above, exp.CTE):
            inside = above
        elif not isinstance(above, exp.With):
            clause = above.args.get("with_") or above.args.get("with")
            found: list[exp.CTE] = []
            for cte in clause.expressions if clause else ():
                if cte is inside and clause and not clause.args.get("recursive"):
                    break
                found.append(cte)
            yield found
            inside = None
        above = above.parent


def type_of(column: exp.Column, frames: Mapping[str, pl.LazyFrame]) -> pl.DataType | None:
    """Return the type of a column of a table of its SELECT; None where it may be another's."""
    select = column.find_ancestor(exp.Select)
    return None if select is None else _type_in(select, column, frames)


def type_outside(column: exp.Column, frames: Mapping[str, pl.LazyFrame]) -> pl.DataType | None:
    """Return the type of a column of a query around the one that it stands in; None if unknown."""
    inside = column.find_ancestor(exp.Select)
    select = None if inside is None else inside.find_ancestor(exp.Select)
    while select is not None:
        found = _type_in(select, column, frames)
        if found is not None:
            return found
        select = select.find_ancestor(exp.Select)
    return None


def _type_in(
    select: exp.Select, column: exp.Column, frames: Mapping[str, pl.LazyFrame]
) -> pl.DataType | None:
    order = column.find_ancestor(exp.Order, exp.Select)
    if isinstance(order, exp.Order) and not column.table:
        # ORDER BY means what is selected under a name, before a column of the table
        given = (item.alias for item in select.expressions if isinstance(item, exp.Alias))
        if column.name in given:
            return None
    source = select.args.get("from_") or select.args.get("from")
    sources = [source] if source else []
    tables = [part.this for part in [*sources, *(select.args.get("joins") or ())]]
    if column.table:
        tables = [table for table in tables if table.alias_or_name == column.table]
    found = set()
    for table in tables:
        frame = frames.get(table.name) if isinstance(table, exp.Table) else None
        if frame is None:
            return None
        found.add(frame.collect_schema().get(column.name))
    found.discard(None)
    return found.pop() if len(found) == 1 else None
