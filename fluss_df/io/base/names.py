"""Names of columns for Polars, which takes some names for patterns.

``pl.col("*")`` and ``frame.select("*")`` are all columns, and ``"^a.*$"`` those that match. A Fluss
table may have columns that are called so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

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

    The structs must have these fields, all of them and in this order. Each expression has the name
    of its field.
    """
    names = list(names)
    if not any(is_pattern(name) for name in names):
        return [value.struct.field(name) for name in names]
    # Polars panics where a field has such a name, even if taken by index: so fields are renamed
    places = [f"f{at}" for at in range(len(names))]
    renamed = value.struct.rename_fields(places)
    return [renamed.struct.field(p).alias(n) for p, n in zip(places, names, strict=True)]


def with_fields_named(
    value: pl.Expr, kind: pl.DataType, new_name: Callable[[str], str]
) -> pl.Expr | None:
    """Return values whose structs, nested ones too, have fields with other names.

    ``new_name`` returns the new name of a field. Returns None where all names stay, so that nothing
    has to be computed.
    """
    if isinstance(kind, pl.List | pl.Array):
        inner = with_fields_named(pl.element(), cast("pl.DataType", kind.inner), new_name)
        if inner is None:
            return None
        return value.list.eval(inner) if isinstance(kind, pl.List) else value.arr.eval(inner)
    if not isinstance(kind, pl.Struct):
        return None
    names = [field.name for field in kind.fields]
    renamed = [new_name(name) for name in names]
    # nothing within a field of such a name can be taken: so the fields are renamed meanwhile
    places = [f"f{at}" for at in range(len(names))]
    inside = {
        place: made
        for place, field in zip(places, kind.fields, strict=True)
        if (made := with_fields_named(pl.field(place), cast("pl.DataType", field.dtype), new_name))
        is not None
    }
    if inside:
        within = value.struct.rename_fields(places).struct.with_fields(**inside)
        return within.struct.rename_fields(renamed)
    return None if renamed == names else value.struct.rename_fields(renamed)


def all_exact(names: Iterable[str]) -> list[pl.Expr]:
    """Return the columns of exactly these names, in this order."""
    return [exact(name) for name in names]


def without_keys_of(
    rows: pl.LazyFrame, others: pl.LazyFrame, names: Iterable[str], *, nulls_equal: bool = False
) -> pl.LazyFrame:
    """Return the rows whose primary key no row of others has, as Fluss tells keys apart."""
    names = list(names)
    signs = key_signs(names, rows.collect_schema())
    on = [*all_exact(names), *all_exact(signs)]
    found = rows.with_columns(**signs).join(
        others.with_columns(**signs), on=on, how="anti", nulls_equal=nulls_equal
    )
    return found.drop(cs.by_name(*signs)) if signs else found


def key_signs(names: Iterable[str], schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """Return, by new names, what tells the keys apart that are equal to Polars and not to Fluss.

    That is 0.0 and -0.0, which are the keys of two rows: one divided by them is not equal.
    """
    floats = [name for name in names if schema[name].is_float()]
    return {f"__fluss_sign_{at}": 1.0 / exact(name) for at, name in enumerate(floats)}
