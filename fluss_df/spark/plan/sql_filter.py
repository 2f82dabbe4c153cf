"""Conditions in Spark SQL as predicates.

Only what means in Spark exactly what it means in :mod:`fluss_df.pushdown.predicate` is converted;
everything else is :class:`UnsupportedExpression`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.pushdown.arguments import require_read
from fluss_df.pushdown.evaluate import bind, exactly
from fluss_df.pushdown.predicate import (
    Constant,
    IsNotNull,
    IsNull,
    Op,
    Predicate,
    TextMatch,
    TextOp,
    UnsupportedExpression,
    and_,
    between,
    compare,
    in_,
    or_,
)
from fluss_df.spark.plan.options import time_zone

_OPS: dict[type[exp.Expr], Op] = {
    exp.EQ: Op.EQ,
    exp.NEQ: Op.NE,
    exp.LT: Op.LT,
    exp.LTE: Op.LE,
    exp.GT: Op.GT,
    exp.GTE: Op.GE,
}
_TWO: Final = frozenset({"this", "expression"})
# the nodes that are understood, and the arguments of each that are read; everything else is refused
READ: Final[dict[type[exp.Expr], frozenset[str]]] = {
    **dict.fromkeys(_OPS, _TWO),
    exp.And: _TWO,
    exp.Or: _TWO,
    exp.NullSafeEQ: _TWO,
    exp.StartsWith: _TWO,
    exp.EndsWith: _TWO,
    exp.Contains: _TWO,
    exp.Is: _TWO,
    exp.Like: _TWO | {"negate"},
    exp.Not: frozenset({"this"}),
    exp.Paren: frozenset({"this"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Boolean: frozenset({"this"}),
    exp.Null: frozenset(),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.HexString: frozenset({"this"}),
    exp.Neg: frozenset({"this"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to"}),
    exp.DataType: frozenset({"this"}),
}
_WHOLE: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
# an escape that sqlglot reads as Spark does
_ESCAPES: Final = re.compile(r"\\(?![\\'\"nrt])")
# how long around a moment the offset of a zone must not change
_STEADY: Final = dt.timedelta(hours=36)


class _Instant(dt.datetime):
    """A ``TIMESTAMP '...'``, which is an instant in the zone of the session."""


def parse_filter(text: str, schema: pa.Schema, timezone: str, where: str) -> Predicate:
    """Return the predicate of the option ``filter``, bound to the columns' types.

    Raises FlussError for what is no condition, a column that does not exist, or what cannot be
    pushed down.

    Parameters
    ----------
    text
        A condition in Spark SQL.
    schema
        The columns it may use.
    timezone
        The zone of timestamps that are written without one and compared with an instant.
    where
        The table, for errors.
    """
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        raise _invalid(f"filter {text!r} is no condition in SQL: {parse_message(error)}") from None
    except RecursionError:
        raise _too_deep(text, where) from None
    try:
        if _ESCAPES.search(re.sub(r"\\\\", "", text)):
            raise UnsupportedExpression("it has escapes other than \\\\, \\', \\n, \\r and \\t")
        return SqlConditions(schema, timezone).convert(tree)
    except UnsupportedExpression as error:
        raise _invalid(
            f"{where}: filter {text!r} cannot be evaluated by the scan: {error.message}; use"
            " .where() or fluss_df.spark.sql() for it, which push what they can"
        ) from None
    except RecursionError:
        raise _too_deep(text, where) from None


def _too_deep(text: str, where: str) -> FlussError:
    return _invalid(
        f"{where}: filter '{text[:60]}...' of {len(text)} characters is nested too deeply: name"
        " many values by IN, and give the rest of the condition by .where()"
    )


def parse_message(error: sqlglot.errors.SqlglotError) -> str:
    """Return what sqlglot says, without the codes by which a terminal underlines."""
    return re.sub(r"\x1b\[\d*m", "", str(error))


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


class SqlConditions:
    """Converts conditions on the columns of a schema."""

    def __init__(self, schema: pa.Schema, timezone: str) -> None:
        self._schema = schema
        self._timezone = timezone
        # Spark's names are case insensitive
        self._names: dict[str, list[str]] = {}
        for name in schema.names:
            self._names.setdefault(name.lower(), []).append(name)

    def convert(self, tree: exp.Expr) -> Predicate:
        """Return the predicate that a condition means, bound.

        Raises UnsupportedExpression for whatever has none.
        """
        require_read(tree, READ)
        return bind(self._condition(tree), self._schema)

    def _condition(self, tree: exp.Expr) -> Predicate:
        op = _OPS.get(type(tree))
        if op is not None:
            return self._comparison(op, tree.left, tree.right)  # type: ignore[attr-defined]
        method: Callable[[Any], Predicate] | None = getattr(
            self, f"_on_{type(tree).__name__.lower()}", None
        )
        if method is None:
            raise UnsupportedExpression(f"'{_sql(tree)}' is not understood")
        return method(tree)

    def _on_paren(self, tree: exp.Paren) -> Predicate:
        return self._condition(tree.this)

    def _on_and(self, tree: exp.And) -> Predicate:
        return and_((self._condition(tree.left), self._condition(tree.right)))

    def _on_or(self, tree: exp.Or) -> Predicate:
        return or_((self._condition(tree.left), self._condition(tree.right)))

    def _on_not(self, tree: exp.Not) -> Predicate:
        inner = self._condition(tree.this)
        return IsNotNull(inner.column) if isinstance(inner, IsNull) else ~inner

    def _on_is(self, tree: exp.Is) -> Predicate:
        column = self._name(tree.this)
        if isinstance(tree.expression, exp.Null):
            return IsNull(column)
        raise UnsupportedExpression(f"'{_sql(tree)}' is not understood")

    def _on_boolean(self, tree: exp.Boolean) -> Predicate:
        return Constant(bool(tree.this))

    def _on_column(self, tree: exp.Column) -> Predicate:
        name = self._name(tree)
        if not pa.types.is_boolean(self._schema.field(name).type):
            raise UnsupportedExpression(f"column '{name}' is not boolean")
        return compare(name, Op.EQ, pa.scalar(True))

    def _on_between(self, tree: exp.Between) -> Predicate:
        column = self._name(tree.this)
        low, high = (
            self._literal(tree.args["low"], column),
            self._literal(tree.args["high"], column),
        )
        return between(column, low, high)

    def _on_in(self, tree: exp.In) -> Predicate:
        column = self._name(tree.this)
        values = [self._literal(item, column) for item in tree.expressions]
        if not values:
            raise UnsupportedExpression(f"'{_sql(tree)}' is not understood")
        if any(not value.is_valid for value in values):
            raise UnsupportedExpression("a null among the values of IN")
        kind = self._schema.field(column).type
        if pa.types.is_decimal(kind) and max(kind.precision - kind.scale, 20) + kind.scale > 38:
            # for IN, Spark takes a whole number to have up to 20 digits, however few are written
            written = (_value(item.unnest()) for item in tree.expressions)
            if any(isinstance(value, int) for value in written):
                raise UnsupportedExpression(f"whole numbers in IN, which would round {kind}")
        return in_(column, exactly(column, values, self._schema))

    def _on_nullsafeeq(self, tree: exp.NullSafeEQ) -> Predicate:
        column, other = self._sides(tree.left, tree.right)[:2]
        value = self._literal(other, column)
        if not value.is_valid:
            return IsNull(column)
        return and_((IsNotNull(column), compare(column, Op.EQ, value)))

    def _on_startswith(self, tree: exp.StartsWith) -> Predicate:
        return self._text(tree.this, TextOp.STARTS_WITH, tree.expression)

    def _on_endswith(self, tree: exp.EndsWith) -> Predicate:
        return self._text(tree.this, TextOp.ENDS_WITH, tree.expression)

    def _on_contains(self, tree: exp.Contains) -> Predicate:
        return self._text(tree.this, TextOp.CONTAINS, tree.expression)

    def _on_like(self, tree: exp.Like) -> Predicate:
        found = self._like(tree)
        return ~found if tree.args.get("negate") else found

    def _like(self, tree: exp.Like) -> Predicate:
        pattern = tree.expression
        if isinstance(pattern, exp.Literal) and pattern.is_string:
            text = pattern.this
            inner = text.strip("%")
            if not any(c in inner for c in "%_\\") and inner:
                column, wanted = tree.this, exp.Literal.string(inner)
                if text == inner:
                    # of other types Spark compares the texts
                    self._require_string(column)
                    return self._comparison(Op.EQ, column, wanted)
                if text == f"{inner}%":
                    return self._text(column, TextOp.STARTS_WITH, wanted)
                if text == f"%{inner}":
                    return self._text(column, TextOp.ENDS_WITH, wanted)
                if text == f"%{inner}%":
                    return self._text(column, TextOp.CONTAINS, wanted)
        raise UnsupportedExpression(f"'{_sql(tree)}' is not understood")

    def _text(self, tree: exp.Expr, op: TextOp, text: exp.Expr) -> Predicate:
        column = self._require_string(tree)
        if not isinstance(text, exp.Literal) or not text.is_string:
            raise UnsupportedExpression(f"'{_sql(text)}' is no text")
        return TextMatch(column, op, text.this)

    def _require_string(self, tree: exp.Expr) -> str:
        """Return the name of a column of strings."""
        column = self._name(tree)
        if not pa.types.is_string(self._schema.field(column).type):
            raise UnsupportedExpression(f"column '{column}' is no string")
        return column

    def _comparison(self, op: Op, left: exp.Expr, right: exp.Expr) -> Predicate:
        column, other, turned = self._sides(left, right)
        value = self._literal(other, column)
        return compare(column, op.mirrored if turned else op, value)

    def _sides(self, left: exp.Expr, right: exp.Expr) -> tuple[str, exp.Expr, bool]:
        """Return the column, what it is compared with, and whether it stood on the right."""
        if isinstance(right.unnest(), exp.Column) and not isinstance(left.unnest(), exp.Column):
            return self._name(right), left, True
        return self._name(left), right, False

    def _name(self, tree: exp.Expr) -> str:
        tree = tree.unnest()
        if not isinstance(tree, exp.Column) or len(tree.parts) > 2:
            raise UnsupportedExpression(f"'{_sql(tree)}' is no column")
        if tree.table.lower() in self._names:
            # Spark takes it for the field of a ROW where no table has this name
            raise UnsupportedExpression(f"'{_sql(tree)}' may be a field of column '{tree.table}'")
        names = self._names.get(tree.name.lower(), [])
        if not names:
            raise UnsupportedExpression(
                f"no column '{tree.name}'; there are {', '.join(self._schema.names)}"
            )
        if len(names) > 1:
            raise UnsupportedExpression(
                f"column '{tree.name}' is ambiguous: it may be {' or '.join(names)}"
            )
        return names[0]

    def _literal(self, tree: exp.Expr, column: str) -> pa.Scalar:
        kind = self._schema.field(column).type
        value = _value(tree.unnest())
        try:
            if isinstance(value, str) and not pa.types.is_string(kind):
                value = self._from_text(value, kind)
            if isinstance(value, dt.datetime) and pa.types.is_timestamp(kind):
                value = self._moment(value, kind)
            elif isinstance(value, Decimal | float | int) and not isinstance(value, bool):
                value = _number(value, kind)
            return pa.scalar(value)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise UnsupportedExpression(f"'{_sql(tree)}' for column '{column}': {error}") from None

    def _from_text(self, text: str, kind: pa.DataType) -> dt.date | dt.datetime:
        """Read a text where Spark casts it: ISO dates and times alone, in their usual form."""
        if pa.types.is_date(kind) and _DATE.fullmatch(text):
            return dt.date.fromisoformat(text)
        if pa.types.is_timestamp(kind) and _TIME.fullmatch(text):
            return dt.datetime.fromisoformat(text)
        raise UnsupportedExpression(f"the text {text!r} would be cast to {kind}")

    def _moment(self, value: dt.datetime, kind: pa.DataType) -> dt.datetime:
        """Return a timestamp with a zone exactly where the column has one."""
        if kind.tz is None:
            if value.tzinfo is not None:
                raise UnsupportedExpression("an instant is compared with a time without zone")
            if isinstance(value, _Instant):
                self._require_steady(value)
            return value
        if value.tzinfo is None:
            value = value.replace(tzinfo=self._zone())
        return value.astimezone(dt.UTC)

    def _zone(self) -> dt.tzinfo:
        found = time_zone(self._timezone)
        if found is None:
            raise UnsupportedExpression(f"the time zone {self._timezone!r} is not known")
        return found

    def _require_steady(self, value: dt.datetime) -> None:
        """Refuse a literal around which clocks are changed.

        Spark compares a time without zone with an instant by making an instant of it. That keeps
        the order of times but where clocks go back, and where times are left out.
        """
        zone = self._zone()
        around = (value + step for step in (-_STEADY, dt.timedelta(0), _STEADY))
        offsets = {t.replace(tzinfo=zone, fold=f).utcoffset() for t in around for f in (0, 1)}
        if len(offsets) > 1:
            raise UnsupportedExpression(
                f"TIMESTAMP '{value}' is near a change of the clocks in {self._timezone}, and the"
                " column's times have no zone: write TIMESTAMP_NTZ"
            )


def _number(value: Decimal | float | int, kind: pa.DataType) -> Decimal | float | int:
    """Return a number that Spark compares with a column without rounding one of both."""
    if isinstance(value, float):
        if not pa.types.is_floating(kind):
            raise UnsupportedExpression(f"{kind} would be rounded to DOUBLE")
        return value
    if pa.types.is_floating(kind):
        return float(value) if isinstance(value, Decimal) else value
    digits = Decimal(value).as_tuple()
    scale = max(-int(digits.exponent), 0)
    whole = len(digits.digits) - scale if not isinstance(value, int) else len(digits.digits)
    if pa.types.is_decimal(kind):
        # otherwise Spark casts both to a wider type, which may not have room for all digits
        if scale > kind.scale or whole > kind.precision - kind.scale:
            raise UnsupportedExpression(f"{value} has more digits than {kind}")
        return Decimal(value)
    if isinstance(value, Decimal):
        if max(whole, 20) + scale > 38:
            raise UnsupportedExpression(f"{value} has too many digits")
        if pa.types.is_integer(kind) and value == value.to_integral_value():
            return int(value)
    return value


def _value(tree: exp.Expr) -> Any:
    """Return the Python value of a literal."""
    if isinstance(tree, exp.Neg):
        inner = _value(tree.this.unnest())
        if isinstance(inner, int | Decimal | float) and not isinstance(inner, bool):
            return -inner
    elif isinstance(tree, exp.Literal):
        if tree.is_string:
            return str(tree.this)
        if "e" not in tree.this.lower():
            number = Decimal(tree.this)
            return int(number) if "." not in tree.this else number
        wide = float(tree.this)
        if math.isinf(wide):
            raise UnsupportedExpression(f"{tree.this} is larger than every DOUBLE")
        return wide
    elif isinstance(tree, exp.Boolean):
        return bool(tree.this)
    elif isinstance(tree, exp.Null):
        return None
    elif isinstance(tree, exp.HexString):
        # sqlglot keeps the digits as they were written; Spark puts a 0 before an odd number of them
        try:
            return bytes.fromhex("0" * (len(tree.this) % 2) + tree.this)
        except ValueError:
            pass
    elif isinstance(tree, exp.Cast | exp.TryCast) and isinstance(tree.this, exp.Literal):
        return _typed(tree.this, tree.to.this.name)
    raise UnsupportedExpression(f"'{_sql(tree)}' is no literal")


def _typed(literal: exp.Literal, kind: str) -> Any:
    """Return the value of ``DATE '...'``, ``TIMESTAMP '...'`` or ``5L``."""
    text = literal.this
    try:
        if literal.is_string and kind == "DATE" and _DATE.fullmatch(text):
            return dt.date.fromisoformat(text)
        if literal.is_string and kind.startswith("TIMESTAMP") and _TIME.fullmatch(text):
            # the session says whether TIMESTAMP has a zone: the stricter meaning is taken
            made = dt.datetime if kind == "TIMESTAMPNTZ" else _Instant
            return made.fromisoformat(text)
        if not literal.is_string and kind in _WHOLE:
            number = int(text)
            if number < 1 << (_WHOLE[kind] - 1):
                return number
    except ValueError:
        pass
    raise UnsupportedExpression(f"{text!r} as {kind} is not understood")


def _sql(tree: exp.Expr) -> str:
    return tree.sql(dialect="spark")
