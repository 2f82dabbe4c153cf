"""Arrow's expressions: which columns they look at, and the conjuncts that can be pushed down.

Arrow has no interface to the inside of an expression. What pickling writes of it has all of it: a
record batch with its literals, whose metadata names fields and functions in their order. Of this,
only what is fully understood is used; Arrow itself evaluates the whole expression on the rows that
come, so that what is pushed changes how much is read and never the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.io.base.names import exact
from fluss_df.pushdown.predicate import UnsupportedExpression

_LINE: Final = re.compile(
    "(call|end|field_ref|nested_field_ref|literal|options): '(.*)'", re.DOTALL
)
# a deeper expression is left to Arrow: Polars would go down into it on the stack
_MOST_DEEP: Final = 200

_OPS: Final = {
    "equal": pl.Expr.eq,
    "not_equal": pl.Expr.ne,
    "less": pl.Expr.lt,
    "less_equal": pl.Expr.le,
    "greater": pl.Expr.gt,
    "greater_equal": pl.Expr.ge,
}
_MIRRORED: Final = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_TEXT_OPS: Final = {
    "starts_with": lambda column, text: column.str.starts_with(text),
    "ends_with": lambda column, text: column.str.ends_with(text),
    "match_substring": lambda column, text: column.str.contains(text, literal=True),
}
# the options of is_in for nulls
_NULL_MATCHES, _NULL_SKIPPED, _NULL_GIVES_NULL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a field within one."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments, and its options by name."""

    name: str
    arguments: tuple[Node, ...]
    options: dict[str, Any] | None


Node: TypeAlias = "Field | Literal | Call"


def nodes_of(expression: pc.Expression, schema: pa.Schema) -> Node:
    """Return the inside of an expression.

    Raises UnsupportedExpression for one that cannot be pickled, is very deep, or is written in a
    way that is not known.
    """
    if any("\n" in name for name in _names(schema)):
        # it could not be told where a name ends
        raise UnsupportedExpression("a name with a line break")
    try:
        _, (buffer,) = expression.__reduce__()
        literals = pa.ipc.open_file(buffer).get_batch(0)
        # without the columns, what is left is the metadata
        text = literals.select([]).schema.to_string(truncate_metadata=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UnsupportedExpression(f"{type(error).__name__}: {error}") from None
    # before the heading there are the columns: a line without any
    lines = text.removeprefix("\n").split("\n")
    if lines[0] != "-- schema metadata --":
        raise UnsupportedExpression("an expression that is written in an unknown way")
    reader = _Reader(lines[1:], literals)
    found = reader.node(0)
    if not reader.at_end:
        raise UnsupportedExpression("an expression that is written in an unknown way")
    return found


def _names(fields: Any) -> Iterator[str]:
    for field in fields:
        yield field.name
        kind = field.type
        if pa.types.is_nested(kind):
            yield from _names(kind.field(i) for i in range(kind.num_fields))


class _Reader:
    """Reads the lines that an expression is written in."""

    def __init__(self, lines: list[str], literals: pa.RecordBatch) -> None:
        self._lines = lines
        self._literals = literals
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._lines)

    def _next(self) -> tuple[str, str]:
        if self.at_end:
            raise UnsupportedExpression("an expression that ends too soon")
        found = _LINE.fullmatch(self._lines[self._at])
        if found is None:
            raise UnsupportedExpression("an expression that is written in an unknown way")
        self._at += 1
        return found[1], found[2]

    def _literal(self, number: str) -> pa.Scalar:
        if not number.isdecimal() or int(number) >= self._literals.num_columns:
            raise UnsupportedExpression("an expression that is written in an unknown way")
        return self._literals.column(int(number))[0]

    def node(self, depth: int) -> Node:
        """Read a node, and what it is made of."""
        if depth > _MOST_DEEP:
            raise UnsupportedExpression("a very deep expression")
        kind, text = self._next()
        if kind == "field_ref":
            return Field((text,))
        if kind == "literal":
            return Literal(self._literal(text))
        if kind == "nested_field_ref" and text.isdecimal():
            path = [self._next() for _ in range(int(text))]
            if all(kind == "field_ref" for kind, _ in path):
                return Field(tuple(name for _, name in path))
        if kind == "call":
            return self._call(text, depth)
        raise UnsupportedExpression("an expression that is written in an unknown way")

    def _call(self, name: str, depth: int) -> Call:
        arguments: list[Node] = []
        options = None
        while True:
            before = self._at
            kind, text = self._next()
            if kind == "end":
                if text != name:
                    raise UnsupportedExpression("an expression that is written in an unknown way")
                return Call(name, tuple(arguments), options)
            if kind == "options":
                given = self._literal(text)
                options = {key: given[key] for key in given if key != "_type_name"}
            else:
                self._at = before
                arguments.append(self.node(depth + 1))


def columns_of(node: Node) -> set[str]:
    """Return the names of the columns that a node looks at."""
    if isinstance(node, Field):
        return {node.path[0]}
    if isinstance(node, Call):
        return set().union(*map(columns_of, node.arguments))
    return set()


def pushed(node: Node, schema: pa.Schema) -> list[pl.Expr]:
    """Return those conjuncts of a condition that are understood, as Polars has them.

    Each is true for a row exactly where Arrow's is, and null exactly where Arrow's is. Polars takes
    NaN for the largest number, and for equal to itself: what that would change is written so that
    it means what Arrow means, or is left out.

    ``schema`` has the columns with their Arrow types.
    """
    if isinstance(node, Call) and node.name == "and_kleene" and node.options is None:
        return [found for part in node.arguments for found in pushed(part, schema)]
    try:
        return [_condition(node, schema)]
    except UnsupportedExpression:
        return []


def _condition(node: Node, schema: pa.Schema) -> pl.Expr:
    if isinstance(node, Literal):
        if not pa.types.is_boolean(node.value.type):
            raise UnsupportedExpression(f"a literal that is {node.value.type}")
        return pl.lit(node.value.as_py(), dtype=pl.Boolean)
    if isinstance(node, Field):
        column, kind = _column(node, schema)
        if not pa.types.is_boolean(kind):
            raise UnsupportedExpression(f"{kind} is not boolean")
        return column
    arguments, options = node.arguments, node.options or {}
    match node.name, len(arguments), sorted(options):
        case ("and_kleene" | "or_kleene") as name, 2, []:
            left, right = (_condition(part, schema) for part in arguments)
            return left & right if name == "and_kleene" else left | right
        case "invert", 1, []:
            return ~_condition(arguments[0], schema)
        case "is_valid", 1, []:
            return _column(arguments[0], schema)[0].is_not_null()
        case "is_null", 1, ["nan_is_null"]:
            column, kind = _column(arguments[0], schema)
            if pa.types.is_floating(kind) and options["nan_is_null"].as_py():
                raise UnsupportedExpression("NaN for null")
            return column.is_null()
        case "is_nan", 1, []:
            column, kind = _column(arguments[0], schema)
            if not pa.types.is_floating(kind):
                raise UnsupportedExpression(f"is_nan of {kind}")
            return column.is_nan()
        case "is_in", 1, ["null_matching_behavior", "value_set"]:
            return _is_in(arguments[0], options, schema)
        case "if_else", 3, []:
            return _is_in_or_null(arguments, schema)
        case name, 1, ["ignore_case", "pattern"] if name in _TEXT_OPS:
            return _text(name, arguments[0], options, schema)
        case name, 2, [] if name in _OPS:
            return _comparison(name, arguments, schema)
    raise UnsupportedExpression(f"the function {node.name}")


def _column(node: Node, schema: pa.Schema) -> tuple[pl.Expr, pa.DataType]:
    if not isinstance(node, Field) or len(node.path) != 1 or node.path[0] not in schema.names:
        raise UnsupportedExpression("not a column")
    return exact(node.path[0]), schema.field(node.path[0]).type


def _comparison(name: str, arguments: tuple[Node, ...], schema: pa.Schema) -> pl.Expr:
    left, right = arguments
    if isinstance(left, Literal):
        left, right, name = right, left, _MIRRORED.get(name, name)
    column, kind = _column(left, schema)
    if not isinstance(right, Literal) or not right.value.is_valid:
        raise UnsupportedExpression("not a comparison with a value")
    values = _exactly(pa.repeat(right.value, 1), kind)
    compared = _OPS[name](column, _literal(values))
    if pa.types.is_floating(kind) and name in ("greater", "greater_equal"):
        # no number is less than NaN for Arrow, and each one is for Polars
        return compared & column.is_not_nan()
    return compared


def _literal(values: pa.Array) -> pl.Expr:
    """Return the value of an array of one as a literal of exactly its type."""
    series = pl.Series(values)
    literal = pl.lit(series.item(), dtype=series.dtype)
    # a time in nanoseconds, for example, has no value in Python
    if not pl.select(literal).to_series().equals(series, check_dtypes=True):
        raise UnsupportedExpression(f"a value of {values.type} that Python has not")
    return literal


def _exactly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in the type of their column, where they are the same there."""
    if not _comparable(values.type, kind):
        raise UnsupportedExpression(f"a comparison of {kind} with {values.type}")
    try:
        made = values.cast(kind)
        same = made.cast(values.type).equals(values)
    except pa.ArrowException:
        same = False
    # NaN is not equal to itself
    if not same:
        raise UnsupportedExpression(f"a value that is not of type {kind}")
    return made


def _comparable(value: pa.DataType, column: pa.DataType) -> bool:
    """Whether Arrow compares values of two types as they are, where both have them."""
    of = pa.types
    for is_kind in (
        of.is_integer,
        of.is_floating,
        of.is_decimal,
        of.is_boolean,
        of.is_date32,
        of.is_time,
        lambda t: of.is_string(t) or of.is_large_string(t),
        lambda t: of.is_binary(t) or of.is_large_binary(t),
    ):
        if is_kind(value) and is_kind(column):
            return True
    both_times = of.is_timestamp(value) and of.is_timestamp(column)
    return both_times and (value.tz is None) == (column.tz is None)


def _is_in(argument: Node, options: dict[str, Any], schema: pa.Schema) -> pl.Expr:
    column, kind = _column(argument, schema)
    given = options["value_set"].values
    behaviour = options["null_matching_behavior"].as_py()
    if pa.types.is_floating(kind) or given is None:
        # Arrow tells 0.0 from -0.0 here
        raise UnsupportedExpression(f"is_in of {kind}")
    values = pl.Series(_exactly(given.drop_null(), kind))
    if behaviour == _NULL_GIVES_NULL:
        return column.is_in(values.implode(), nulls_equal=False)
    if behaviour == _NULL_MATCHES and given.null_count:
        return column.is_null() | (column.is_not_null() & column.is_in(values.implode()))
    if behaviour in (_NULL_MATCHES, _NULL_SKIPPED):
        return column.is_not_null() & column.is_in(values.implode())
    raise UnsupportedExpression("is_in with another meaning of null")


def _is_in_or_null(arguments: tuple[Node, ...], schema: pa.Schema) -> pl.Expr:
    """Return what DuckDB means by ``x IN (...)``: null where ``x`` is."""
    valid, found, other = arguments
    is_null = isinstance(other, Literal) and not other.value.is_valid
    if is_null and isinstance(valid, Call) and isinstance(found, Call):
        same = valid == Call("is_valid", found.arguments, None) and len(found.arguments) == 1
        if same and found.name == "is_in" and found.options is not None:
            nulls = pa.scalar(_NULL_GIVES_NULL)
            options = {**found.options, "null_matching_behavior": nulls}
            return _is_in(found.arguments[0], options, schema)
    raise UnsupportedExpression("the function if_else")


def _text(name: str, argument: Node, options: dict[str, Any], schema: pa.Schema) -> pl.Expr:
    column, kind = _column(argument, schema)
    pattern = options["pattern"]
    if not pa.types.is_string(kind) or options["ignore_case"].as_py() or not pattern.is_valid:
        raise UnsupportedExpression(f"{name} of {kind}")
    try:
        text = pattern.as_py()
    except UnicodeDecodeError:
        raise UnsupportedExpression("a pattern that is no text") from None
    made: pl.Expr = _TEXT_OPS[name](column, text)
    return made
