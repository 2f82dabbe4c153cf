"""Building predicates: :func:`col`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.pushdown.predicate import (
    IsNotNull,
    IsNull,
    NoTruthValueError,
    Op,
    Predicate,
    TextMatch,
    TextOp,
    UnsupportedExpression,
    between,
    compare,
    in_,
)


def col(name: str) -> ColumnRef:
    """Return a reference to a column, to build a predicate with.

    Examples
    --------
    >>> str((col("x") >= 1) | col("name").starts_with("a"))
    "x >= 1 or name starts_with 'a'"
    """
    return ColumnRef(name)


class ColumnRef:
    """A column in a predicate that is being built; see :func:`col`."""

    __slots__ = ("name",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise FlussError(f"col() takes the name of a column, not {name!r}")
        self.name = name

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return compare(self.name, Op.EQ, literal(value))

    def __ne__(self, value: Any) -> Predicate:  # type: ignore[override]
        return compare(self.name, Op.NE, literal(value))

    def __bool__(self) -> NoReturn:
        raise NoTruthValueError(
            f"column '{self.name}' has no truth value of its own: compare it, as in"
            f" col({self.name!r}) == True"
        )

    def __lt__(self, value: Any) -> Predicate:
        return compare(self.name, Op.LT, literal(value))

    def __le__(self, value: Any) -> Predicate:
        return compare(self.name, Op.LE, literal(value))

    def __gt__(self, value: Any) -> Predicate:
        return compare(self.name, Op.GT, literal(value))

    def __ge__(self, value: Any) -> Predicate:
        return compare(self.name, Op.GE, literal(value))

    def __repr__(self) -> str:
        return f"col({self.name!r})"

    def is_in(self, values: Iterable[Any]) -> Predicate:
        """Return whether the column equals one of some values."""
        try:
            array = values if isinstance(values, pa.Array) else pa.array(list(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise UnsupportedExpression(f"the values for column '{self.name}': {error}") from None
        return in_(self.name, array)

    def between(self, low: Any, high: Any, *, closed: str = "both") -> Predicate:
        """Return whether the column lies between two values."""
        if closed not in ("both", "left", "right", "none"):
            raise FlussError(f"invalid closed={closed!r}: expected both, left, right or none")
        return between(self.name, literal(low), literal(high), closed=closed)

    def not_in(self, values: Iterable[Any]) -> Predicate:
        """Return whether the column equals none of some values."""
        return ~self.is_in(values)

    # the official client's names of the operators

    equal, not_equal = __eq__, __ne__
    less_than, less_or_equal = __lt__, __le__
    greater_than, greater_or_equal = __gt__, __ge__

    def is_null(self) -> Predicate:
        """Return whether the column is null."""
        return IsNull(self.name)

    def is_not_null(self) -> Predicate:
        """Return whether the column is not null."""
        return IsNotNull(self.name)

    def starts_with(self, prefix: str) -> Predicate:
        """Return whether a string column starts with a text."""
        return TextMatch(self.name, TextOp.STARTS_WITH, prefix)

    def ends_with(self, suffix: str) -> Predicate:
        """Return whether a string column ends with a text."""
        return TextMatch(self.name, TextOp.ENDS_WITH, suffix)

    def contains(self, infix: str) -> Predicate:
        """Return whether a string column contains a text."""
        return TextMatch(self.name, TextOp.CONTAINS, infix)


def literal(value: Any) -> pa.Scalar:
    """Return a Python value, or an Arrow scalar, as a literal."""
    if isinstance(value, pa.Scalar):
        return value
    try:
        return pa.scalar(value)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedExpression(f"{value!r} is no literal: {error}") from None
