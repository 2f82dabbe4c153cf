"""The predicate IR: what a filter means, whichever front end it came from.

A :class:`Predicate` is a frozen, picklable tree over column names and typed literals
(:class:`pyarrow.Scalar`). Polars expressions, Spark filters and :func:`col` are turned into it.

Its value for a row is true, false or null, and a filter keeps the rows for which it is true:

* a comparison, ``in`` or text match is null where its column is null, and a comparison with a null
  literal is always null,
* ``in`` ignores nulls among its values (SQL's ``x IN (1, NULL)`` is therefore not this ``in``),
* ``and``, ``or`` and ``not`` follow Kleene: ``null and false`` is false, ``null or true`` is true,
* NaN equals itself and is greater than every other number; ``-0.0`` equals ``0.0``.

These are the rules of Polars, and of Spark where it has the same operator.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

import pyarrow as pa

from fluss_df.errors import FlussError

T = TypeVar("T")

# how many values of an ``in`` are shown
_SHOWN_VALUES = 8


class UnsupportedExpression(FlussError):  # noqa: N818 - a verdict more than an error
    """An expression that has no predicate; the caller evaluates the expression itself."""


class Op(enum.Enum):
    """Comparison operators."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def negated(self) -> Op:
        """The operator that is true exactly where this one is false."""
        return _NEGATED[self]

    @property
    def mirrored(self) -> Op:
        """The operator with its sides exchanged: ``1 < x`` is ``x > 1``."""
        return _MIRRORED[self]


_NEGATED = {Op.EQ: Op.NE, Op.NE: Op.EQ, Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
_MIRRORED = {Op.EQ: Op.EQ, Op.NE: Op.NE, Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}


class TextOp(enum.Enum):
    """How a text matches."""

    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"
    CONTAINS = "contains"


class NoTruthValueError(FlussError, TypeError):
    """A predicate was taken for true or false: what Python raises for such an object, too."""


class Predicate(ABC):
    """A condition on a row; combine with ``&``, ``|`` and ``~``.

    Examples
    --------
    >>> str((col("origin") == "JFK") & ~col("delay").is_null())
    "origin == 'JFK' and not delay is null"
    """

    __slots__ = ()

    @abstractmethod
    def accept(self, visitor: PredicateVisitor[T]) -> T:
        """Call the visitor's method for this kind of node."""

    def columns(self) -> frozenset[str]:
        """Return the names of the columns that the predicate looks at."""
        return _COLUMNS.visit(self)

    def __and__(self, other: Predicate) -> Predicate:
        return and_((self, _predicate(other)))

    def __or__(self, other: Predicate) -> Predicate:
        return or_((self, _predicate(other)))

    def __invert__(self) -> Predicate:
        return Not(self)

    # the names that the official client has for & and |, which its users may have written

    def and_(self, other: Predicate) -> Predicate:
        """Return whether both are true: ``self & other``."""
        return self & other

    def or_(self, other: Predicate) -> Predicate:
        """Return whether one is true: ``self | other``."""
        return self | other

    def __bool__(self) -> NoReturn:
        raise NoTruthValueError(
            f"the predicate '{self}' has no truth value of its own: combine predicates with"
            " & | ~ instead of and, or, not, and write (x > 1) & (x < 5) instead of 1 < x < 5"
        )

    def __str__(self) -> str:
        return _TEXT.visit(self)


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """A column compared with a literal that is not null."""

    column: str
    op: Op
    literal: pa.Scalar

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.comparison(self)


@dataclass(frozen=True, slots=True, eq=False)
class In(Predicate):
    """A column that equals one of some values; without values it is false, and null for null."""

    column: str
    values: pa.Array

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.in_(self)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, In)
            and self.column == other.column
            and bool(self.values.equals(other.values))
        )

    def __hash__(self) -> int:
        return hash((self.column, self.values.type, len(self.values)))


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """True where a column is null, else false."""

    column: str

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.is_null(self)


@dataclass(frozen=True, slots=True)
class IsNotNull(Predicate):
    """False where a column is null, else true."""

    column: str

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.is_not_null(self)


@dataclass(frozen=True, slots=True)
class TextMatch(Predicate):
    """A string column that starts with, ends with or contains a text, compared by code points."""

    column: str
    op: TextOp
    text: str

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.text_match(self)


@dataclass(frozen=True, slots=True)
class Constant(Predicate):
    """The same for every row: true, false or None (null)."""

    value: bool | None

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.constant(self)


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """All of at least two predicates."""

    operands: tuple[Predicate, ...]

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.and_(self)


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Any of at least two predicates."""

    operands: tuple[Predicate, ...]

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.or_(self)


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The contrary; null stays null."""

    operand: Predicate

    def accept(self, visitor: PredicateVisitor[T]) -> T:  # noqa: D102
        return visitor.not_(self)


class PredicateVisitor(ABC, Generic[T]):
    """One method for each kind of node: a visitor that lacks one cannot be made."""

    def visit(self, predicate: Predicate) -> T:
        """Return what the method for this kind of node returns."""
        return predicate.accept(self)

    @abstractmethod
    def comparison(self, node: Comparison) -> T:
        """Visit a comparison."""

    @abstractmethod
    def in_(self, node: In) -> T:
        """Visit an ``in``."""

    @abstractmethod
    def is_null(self, node: IsNull) -> T:
        """Visit a test for null."""

    @abstractmethod
    def is_not_null(self, node: IsNotNull) -> T:
        """Visit a test for not null."""

    @abstractmethod
    def text_match(self, node: TextMatch) -> T:
        """Visit a text match."""

    @abstractmethod
    def constant(self, node: Constant) -> T:
        """Visit a constant."""

    @abstractmethod
    def and_(self, node: And) -> T:
        """Visit a conjunction."""

    @abstractmethod
    def or_(self, node: Or) -> T:
        """Visit a disjunction."""

    @abstractmethod
    def not_(self, node: Not) -> T:
        """Visit a negation."""


def compare(column: str, op: Op, literal: pa.Scalar) -> Predicate:
    """Return a comparison; with a null literal it is null for every row."""
    return Comparison(column, op, literal) if literal.is_valid else Constant(None)


def between(column: str, low: pa.Scalar, high: pa.Scalar, *, closed: str = "both") -> Predicate:
    """Return ``low <= column <= high``; ``closed`` is ``both``, ``left``, ``right`` or ``none``."""
    lower = Op.GE if closed in ("both", "left") else Op.GT
    upper = Op.LE if closed in ("both", "right") else Op.LT
    return and_((compare(column, lower, low), compare(column, upper, high)))


def in_(column: str, values: pa.Array) -> Predicate:
    """Return an ``in`` over the distinct values that are not null."""
    return In(column, values.drop_null().unique())


def and_(predicates: Iterable[Predicate]) -> Predicate:
    """Return the conjunction, flattened; true when there are none."""
    operands = tuple(c for p in predicates for c in conjuncts(p) if c != Constant(True))
    if not operands:
        return Constant(True)
    return operands[0] if len(operands) == 1 else And(operands)


def or_(predicates: Iterable[Predicate]) -> Predicate:
    """Return the disjunction, flattened; false when there are none."""
    operands: list[Predicate] = []
    for predicate in predicates:
        if isinstance(predicate, Or):
            operands += predicate.operands
        elif predicate != Constant(False):
            operands.append(predicate)
    if not operands:
        return Constant(False)
    return operands[0] if len(operands) == 1 else Or(tuple(operands))


def conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    """Yield the predicates that a conjunction consists of, or the predicate itself."""
    if isinstance(predicate, And):
        for operand in predicate.operands:
            yield from conjuncts(operand)
    else:
        yield predicate


def _predicate(value: object) -> Predicate:
    if not isinstance(value, Predicate):
        raise FlussError(
            f"expected a predicate, not {value!r}: parenthesise comparisons, as in"
            " (col('x') > 1) & (col('y') < 2)"
        )
    return value


class _Columns(PredicateVisitor[frozenset[str]]):
    def _column(self, node: Comparison | In | IsNull | IsNotNull | TextMatch) -> frozenset[str]:
        return frozenset({node.column})

    comparison = in_ = is_null = is_not_null = text_match = _column

    def constant(self, node: Constant) -> frozenset[str]:
        return frozenset()

    def _together(self, node: And | Or) -> frozenset[str]:
        return frozenset().union(*map(self.visit, node.operands))

    and_ = or_ = _together

    def not_(self, node: Not) -> frozenset[str]:
        return self.visit(node.operand)


class _Text(PredicateVisitor[str]):
    def comparison(self, node: Comparison) -> str:
        return f"{node.column} {node.op.value} {literal_text(node.literal)}"

    def in_(self, node: In) -> str:
        shown = [literal_text(value) for value in node.values[:_SHOWN_VALUES]]
        more = len(node.values) - len(shown)
        if more > 0:
            shown.append(f"... {more} more")
        return f"{node.column} in ({', '.join(shown)})"

    def is_null(self, node: IsNull) -> str:
        return f"{node.column} is null"

    def is_not_null(self, node: IsNotNull) -> str:
        return f"{node.column} is not null"

    def text_match(self, node: TextMatch) -> str:
        return f"{node.column} {node.op.value} {node.text!r}"

    def constant(self, node: Constant) -> str:
        return "null" if node.value is None else str(node.value).lower()

    def and_(self, node: And) -> str:
        return " and ".join(
            f"({self.visit(p)})" if isinstance(p, Or) else self.visit(p) for p in node.operands
        )

    def or_(self, node: Or) -> str:
        return " or ".join(map(self.visit, node.operands))

    def not_(self, node: Not) -> str:
        inner = self.visit(node.operand)
        return f"not ({inner})" if isinstance(node.operand, And | Or) else f"not {inner}"


def literal_text(value: pa.Scalar) -> str:
    """Return a literal as messages show it."""
    if pa.types.is_string(value.type) or pa.types.is_binary(value.type):
        return repr(value.as_py())
    try:
        return str(value).lower() if pa.types.is_boolean(value.type) else str(value)
    except (OverflowError, ValueError):
        # Python's own dates and times do not reach as far, and have no nanoseconds
        return f"{value.type}({value.value})"


_COLUMNS = _Columns()
_TEXT = _Text()
