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


def exact_fields(value: pl.Expr, names: Iterable[str]) -> list[pl.Expr]:
    """Return the fields of a struct of exactly these names, in this order.

    Parameters
    ----------
    value
        Structs with these fields, all of them and in this order.
    names
        What the fields are called. Each expression has the name of its field.
    """
    names = list(names)
    if not any(is_pattern(name) for name in names):
        return [value.struct.field(name) for name in names]
    # Polars ends with a panic where it meets such a name, by index too: so no field has it
    places = [f"f{at}" for at in range(len(names))]
    renamed = value.struct.rename_fields(places)
    return [renamed.struct.field(p).alias(n) for p, n in zip(places, names, strict=True)]


def all_exact(names: Iterable[str]) -> list[pl.Expr]:
    """Return the columns of exactly these names, in this order."""
    return [exact(name) for name in names]
