"""The way from the name of a column to Polars, which takes some names for patterns.

``pl.col("*")`` and ``frame.select("*")`` are all columns, and ``"^a.*$"`` those that match. A Fluss
table may have columns that are called so.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import polars.selectors as cs


def is_pattern(name: str) -> bool:
    """Whether Polars takes a name for more than the column of that name."""
    return name == "*" or (name.startswith("^") and name.endswith("$"))


def exact(name: str) -> pl.Expr:
    """Return the column of exactly this name.

    Examples
    --------
    >>> pl.DataFrame({"*": [1], "a": [2]}).select(exact("*")).columns
    ['*']
    """
    return cs.by_name(name).as_expr() if is_pattern(name) else pl.col(name)


def all_exact(names: Iterable[str]) -> list[pl.Expr]:
    """Return the columns of exactly these names, in this order."""
    return [exact(name) for name in names]
