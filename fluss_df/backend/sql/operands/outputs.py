"""Names of what a SELECT gives: beside those of its tables in ORDER BY, and where two are the same.

``SELECT a AS b FROM t ORDER BY b`` sorts by what is selected as ``b``, and ``ORDER BY t.b`` by the
table's column. Polars takes what is selected for both, and refuses ``SELECT a, a``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.clauses import from_of
from fluss_df.backend.sql.operands.types import columns_of, number_in

_ORDERED = "__fluss_ordered"


def name_apart(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Give items of a SELECT that Polars would name the same names of their own, in place.

    The second ``a`` is ``a:1``, as Polars names columns of a join that have the same name.
    """
    for select in tree.find_all(exp.Select):
        items = select.expressions
        if len(items) < 2:
            continue
        counts: dict[str, int] = {}
        if select.is_star and any(isinstance(item, exp.Column) for item in items):
            counts = dict.fromkeys(_starred(select, frames), 1)
        for item in list(items):
            if isinstance(item, exp.Alias) or item.is_star:
                continue
            inner = item.unnest()
            if isinstance(inner, exp.Column):
                key = inner.name
            else:
                # whatever their values are, to Polars all constants are "literal"
                constant = inner.find(exp.Column, exp.Count, exp.Query) is None
                key = "()" if constant else f"({inner.sql()})"
            same = counts.get(key, 0)
            counts[key] = same + 1
            if same:
                name = f"{_named_by_polars(inner)}:{same}"
                item.replace(exp.alias_(item.copy(), name, quoted=True))


def _starred(select: exp.Select, frames: Mapping[str, pl.LazyFrame]) -> set[str]:
    """Return the names that the stars of a SELECT stand for, as far as they are known."""
    tables: set[str] | None = set()
    for item in select.expressions:
        if isinstance(item, exp.Star):
            tables = None
        elif tables is not None and item.is_star and isinstance(item, exp.Column):
            tables.add(item.table)
    return _columns_of_tables(select, frames, tables) or set()


def _named_by_polars(value: exp.Expr) -> str:
    """Return the name of an expression without alias: that of the first column in it."""
    if isinstance(value, exp.Count) and isinstance(value.this, exp.Star):
        return "len"
    columns = value.find_all(exp.Column, bfs=False)
    return next((column.name for column in columns), "literal")


def order_by_tables(tree: exp.Query, frames: Mapping[str, pl.LazyFrame]) -> exp.Query:
    """Have ORDER BY mean a table's column where it names the table; return the query.

    What hides such a column gets another name, and its own again in a query around this one.
    """
    # inner queries first: what is replaced takes along what it holds
    for select in list(tree.find_all(exp.Select))[::-1]:
        hidden = _hide(select, frames)
        if not hidden:
            continue
        whole = exp.Select(
            expressions=[
                exp.Star(
                    rename=[
                        exp.alias_(exp.column(name, quoted=True), given, quoted=True)
                        for name, given in hidden.items()
                    ]
                )
            ]
        )
        common = select.args.get("with_")
        if common is not None:
            whole.set("with_", common.pop())
        is_whole = select is tree
        if not is_whole:
            select.replace(whole)
        whole.set("from_", exp.From(this=select.subquery(_ORDERED, copy=False)))
        if is_whole:
            tree = whole
    return tree


def type_keys(tree: exp.Expr) -> None:
    """Give whole numbers that a CASE of ORDER BY has as results a type, in place.

    Beside another term Polars refuses to sort by them.
    """
    for order in tree.find_all(exp.Order):
        for choice in list(order.find_all(exp.Case, exp.If)):
            for name in ("true", "false", "default"):
                value = choice.args.get(name)
                if value is None:
                    continue
                literal = number_in(value)
                if literal is not None and literal.is_int and int(literal.name) < 1 << 63:
                    value.replace(exp.cast(exp.paren(value.copy()), exp.DType.BIGINT))


def _hide(select: exp.Select, frames: Mapping[str, pl.LazyFrame]) -> dict[str, str]:
    """Rename what hides columns of tables in ORDER BY; return the names, and what they were."""
    order = select.args.get("order")
    if order is None:
        return {}
    given: dict[str, list[exp.Expr]] = {}
    for item in select.expressions:
        if item.alias_or_name and not item.is_star:
            given.setdefault(item.alias_or_name, []).append(item)
    columns = list(_columns_in(order, select))
    wanted = {
        column.name
        for column in columns
        if column.table and column.name in given and _hides(given[column.name], column)
    }
    hidden: dict[str, str] = {}
    for at, name in enumerate(sorted(wanted)):
        other = f"__fluss_given_{at}"
        hidden[other] = name
        (item,) = given[name]
        item.replace(exp.alias_(item.unalias().copy(), other, quoted=True))
        for column in columns:
            if column.name == name and not column.table:
                column.set("this", exp.to_identifier(other, quoted=True))
    if select.is_star:
        # the star may give the same name, which the item has taken from it
        there = _columns_of_tables(select, frames) or set()
        hidden = {**{n: f"{n}:1" for n in wanted if n in there}, **hidden}
    return hidden


def _columns_in(order: exp.Expr, select: exp.Select) -> Iterator[exp.Column]:
    """Yield the columns of an ORDER BY, but for those of queries and windows in it."""
    for column in order.find_all(exp.Column):
        if column.find_ancestor(exp.Select, exp.Window) is select:
            yield column


def _hides(items: list[exp.Expr], column: exp.Column) -> bool:
    """Whether what a SELECT gives under the name of a column is something else than the column."""
    if len(items) > 1:
        # Polars tells t.b and u.b apart where both are given
        return False
    value = items[0].unalias().unnest()
    if not isinstance(value, exp.Column) or value.name != column.name:
        return True
    return bool(value.table) and value.table != column.table


def _columns_of_tables(
    select: exp.Select, frames: Mapping[str, pl.LazyFrame], named: set[str] | None = None
) -> set[str] | None:
    """Return the columns of the tables of a SELECT, or of some; None where they are not known."""
    source = from_of(select)
    tables = [source.this] if source is not None else []
    tables += [join.this for join in select.args.get("joins") or ()]
    found: set[str] = set()
    for table in tables:
        if named is not None and table.alias_or_name not in named:
            continue
        columns = columns_of(table, frames)
        if columns is None:
            return None
        found.update(columns)
    return found
