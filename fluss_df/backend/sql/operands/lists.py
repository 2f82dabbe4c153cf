"""Lists that SQL makes rows of: an empty list, or null, is none, of which Polars makes a null."""

from __future__ import annotations

from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.errors import FlussError


def drop_empty_lists(tree: exp.Expr) -> None:
    """Leave out the rows of which UNNEST makes none, before it sees them.

    Raises FlussError where a list stands beside its UNNEST, and where the table of a list is not
    known.
    """
    for select in list(tree.find_all(exp.Select)):
        unnested = [
            node
            for item in select.expressions
            for node in item.find_all(exp.Explode)
            if node.find_ancestor(exp.Select) is select and node.find(exp.Column)
        ]
        if unnested:
            _require_alone(select, unnested)
            lists = (_has_values(node.this) for node in unnested)
            select.where(exp.or_(*lists), copy=False)
        for at, join in enumerate(select.args.get("joins") or ()):
            # a LEFT JOIN keeps the rows
            if isinstance(join.this, exp.Unnest) and not join.side:
                _drop_from_source(select, at, join.this)


def _has_values(value: exp.Expr) -> exp.Expr:
    length = exp.ArraySize(this=value.copy())
    return exp.GT(this=length, expression=exp.Literal.number(0))


def _require_alone(select: exp.Select, unnested: list[exp.Explode]) -> None:
    """Raise for a list that is selected too: Polars would have one value of it in each row."""
    names = {node.this.name for node in unnested if isinstance(node.this, exp.Column)}
    for item in select.expressions:
        for part in item.find_all(exp.Column, exp.Star):
            if part.find_ancestor(exp.Explode) or part.find_ancestor(exp.Select) is not select:
                continue
            if isinstance(part, exp.Star) and isinstance(part.parent, exp.Count):
                continue
            if names and (part.name in names or isinstance(part, exp.Star) or part.is_star):
                name = part.name if part.name in names else min(names)
                raise FlussError(
                    f"SQL cannot be run: '{name}' stands beside UNNEST({name}): give the list a"
                    f" second name in a subquery, as (SELECT *, {name} AS items FROM ...), and"
                    f" unnest that{spot(unnested[0])}"
                )


def _drop_from_source(select: exp.Select, at: int, unnest: exp.Unnest) -> None:
    """Have the table of a list in FROM without the rows in which it is empty."""
    value = unnest.expressions[0]
    if not isinstance(value, exp.Column):
        return
    source = select.args.get("from_") or select.args.get("from")
    joins = select.args["joins"][:at]
    tables = [part.this for part in (source, *joins) if part is not None]
    if value.table:
        tables = [table for table in tables if table.alias_or_name == value.table]
    tables = [table for table in tables if not isinstance(table, exp.Unnest)]
    if len(tables) != 1:
        raise FlussError(
            f"SQL cannot be run: {unnest.sql(Fluss, comments=False)[:80]}: write the table of the"
            f" list in front of it, as table.{value.name}{spot(value)}"
        )
    (table,) = tables
    name = table.alias_or_name
    inner = exp.select("*").from_(table.copy())
    inner = inner.where(_has_values(exp.column(value.this.copy(), name, quoted=True)))
    table.replace(inner.subquery(exp.to_identifier(name, quoted=True)))
