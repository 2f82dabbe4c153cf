"""Long lists of literals behind IN: one literal stands for all while a query is rewritten.

Each walk through a tree, and each copy of it, takes as many steps as it has nodes. There are some
thirty for a query. ``a IN (1, 2, ..., 5000)`` has 5,000 nodes that nothing in it tells apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.dialect import Items
from fluss_df.backend.sql.operands.types import type_of

# shorter lists take no time that anybody notices
_FEW = 32
# a text that may be a time with nanoseconds, to which other parts of a query are adapted
_FINE = re.compile(r"\.\d{7}")


def shorten(tree: exp.Expr) -> bool:
    """Leave one literal in each long list of literals of one kind; return whether there are some.

    The query is changed in place, and written as before.
    """
    found = False
    for node in list(tree.find_all(exp.In)):
        literals = node.expressions
        if len(literals) > _FEW and "items" not in node.args and _is_uniform(literals):
            node.set("items", Items(literals))
            node.set("expressions", literals[:1])
            found = True
    return found


def restore(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Put back the lists whose literals may have to be rewritten for their columns, in place.

    Those beside integers, DOUBLE, DECIMAL and STRING are handed to Polars as they stand.
    """
    for node in list(tree.find_all(exp.In)):
        items = node.args.get("items")
        if items is None:
            continue
        column = node.this
        kind = type_of(column, frames) if isinstance(column, exp.Column) else None
        whole = kind is not None and kind.is_integer()
        if not whole and kind not in (pl.Float64(), pl.String()) and kind != pl.Decimal:
            node.set("items", None)
            node.set("expressions", [literal.copy() for literal in items.literals])


def group(tree: exp.Expr) -> None:
    """Write negative numbers of lists in parentheses, as other operands are for Polars."""
    for node in tree.find_all(exp.In):
        items = node.args.get("items")
        if items is not None and any(isinstance(literal, exp.Neg) for literal in items.literals):
            node.set("items", Items(items.literals, grouped=True))


def _is_uniform(literals: list[exp.Expr]) -> bool:
    first = literals[0]
    if isinstance(first, exp.Literal) and first.is_string:
        return all(
            isinstance(literal, exp.Literal)
            and literal.is_string
            and not literal.comments
            and not _FINE.search(literal.name)
            for literal in literals
        )
    return all(_is_number(literal) for literal in literals)


def _is_number(literal: exp.Expr) -> bool:
    if literal.comments:
        return False
    if isinstance(literal, exp.Neg):
        literal = literal.this
    return isinstance(literal, exp.Literal) and not literal.is_string and not literal.comments
