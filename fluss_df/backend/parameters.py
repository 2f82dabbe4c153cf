"""Parameters of statements: values become literals of their types in the tree of a statement."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot, tokens_of
from fluss_df.errors import FlussError

#: Says which type a column of a table has; None where that is not known.
ColumnType = Callable[[exp.Table, str], "pa.DataType | None"]

# how many of each unit make a second
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_S_OF_DAY: Final = 86_400
_MS_OF_DAY: Final = _S_OF_DAY * 1000
_DAY_0: Final = dt.date(1970, 1, 1).toordinal()


def numbered(statement: str) -> str:
    """Return a statement with ``$1``, ``$2``, ... for each ``?``, in the order of the text.

    Raises FlussError where both stand in it.
    """
    try:
        tokens = tokens_of(statement)
    except sqlglot.errors.SqlglotError:
        return statement  # parsing it reports what is wrong
    places = [token.start for token in tokens if token.token_type == sqlglot.TokenType.PLACEHOLDER]
    if not places:
        return statement
    if any(token.token_type == sqlglot.TokenType.PARAMETER for token in tokens):
        raise FlussError("parameters are either ? or $1, $2, ...: this statement has both")
    parts, begin = [], 0
    for number, place in enumerate(places, 1):
        # the space matters: "$1,$" would begin a quoted text of PostgreSQL
        parts += [statement[begin:place], f"${number} "]
        begin = place + 1
    return "".join([*parts, statement[begin:]])


def placeholders(tree: exp.Expr) -> dict[int, list[exp.Expr]]:
    """Return the parameters of a statement by their numbers, without a gap.

    Raises FlussError for one that has a name, and for a gap.
    """
    found: dict[int, list[exp.Expr]] = {}
    for node in tree.find_all(exp.Placeholder, exp.Parameter):
        if not (isinstance(node, exp.Parameter) and node.name.isdigit() and int(node.name)):
            raise FlussError(
                f"parameter {node.sql(Fluss)}: parameters are ?, or $1, $2, ...{spot(node)}"
            )
        found.setdefault(int(node.name), []).append(node)
    for number in range(1, len(found) + 1):
        if number not in found:
            raise FlussError(f"the statement has a parameter ${max(found)} and no ${number}")
    return found


def bind(tree: exp.Expr, values: Sequence[Any]) -> exp.Expr:
    """Return a copy of a statement with values in the places of its parameters.

    No text is put into SQL: the nodes of the parameters are replaced by nodes of literals. The
    values are scalars of Arrow, or values of Python.

    Raises FlussError where the statement has another number of parameters, or where SQL has no
    literal for a value.
    """
    wanted = len(placeholders(tree))
    if wanted != len(values):
        raise FlussError(f"the statement has {wanted} parameters, and {len(values)} values came")
    if not wanted:
        return tree
    bound = tree.copy()
    for number, nodes in placeholders(bound).items():
        for node in nodes:
            node.replace(literal(values[number - 1], number))
    return bound


def literal(value: Any, number: int) -> exp.Expr:
    """Return the literal of a value.

    Raises FlussError for what has none, such as a list, with the number of the parameter.
    """
    scalar = value if isinstance(value, pa.Scalar) else _scalar(value, number)
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid:
        return exp.Null()
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        return _timestamp(scalar, number)
    if pa.types.is_time(kind):
        return _time(scalar, number)
    if pa.types.is_date(kind):
        days = scalar.value // (1 if kind == pa.date32() else _MS_OF_DAY)
        return exp.cast(exp.Literal.string(_day(days, number)), exp.DType.DATE)
    try:
        plain = scalar.as_py()
    except (OverflowError, ValueError):
        plain = None  # Python has no such value, nor has SQL
    if isinstance(plain, bool):
        return exp.Boolean(this=plain)
    if isinstance(plain, int):
        return _signed(str(abs(plain)), plain < 0)
    if isinstance(plain, float):
        if not math.isfinite(plain):
            name = "nan" if math.isnan(plain) else "inf" if plain > 0 else "-inf"
            return exp.cast(exp.Literal.string(name), exp.DType.DOUBLE)
        wanted = exp.DType.FLOAT if kind == pa.float32() else exp.DType.DOUBLE
        if not plain and math.copysign(1, plain) < 0:
            # SQL computes -(0.0), a decimal, which is 0.0
            return exp.cast(exp.Literal.string("-0.0"), wanted)
        return exp.cast(_signed(repr(abs(plain)), plain < 0), wanted)
    if isinstance(plain, Decimal):
        # made of nodes, because parsing the name of a type takes as long as all else
        sizes = (exp.Literal.number(size) for size in (kind.precision, kind.scale))
        decimal = exp.DataType(
            this=exp.DType.DECIMAL,
            expressions=[exp.DataTypeParam(this=size) for size in sizes],
            nested=False,
        )
        return exp.cast(exp.Literal.string(f"{plain:f}"), decimal)
    if isinstance(plain, str):
        if "\0" in plain:
            raise FlussError(f"parameter {number}: a text with the character NUL has no literal")
        return exp.Literal.string(plain)
    if isinstance(plain, bytes):
        return exp.HexString(this=plain.hex())
    raise FlussError(
        f"parameter {number}: a value of type {kind} has no literal in SQL; there are numbers,"
        " texts, bytes, truths, dates and times"
    )


def _signed(digits: str, negative: bool) -> exp.Expr:
    number = exp.Literal.number(digits)
    return exp.paren(exp.Neg(this=number)) if negative else number


def _timestamp(scalar: pa.Scalar, number: int) -> exp.Expr:
    # computed from the number: Python's times have neither nanoseconds nor all years
    days, rest = divmod(scalar.value, _UNITS[scalar.type.unit] * _S_OF_DAY)
    seconds, part = divmod(rest, _UNITS[scalar.type.unit])
    text = f"{_day(days, number)} {_clock(seconds, part * 10**9 // _UNITS[scalar.type.unit])}"
    if scalar.type.tz is not None:
        return exp.cast(exp.Literal.string(f"{text}+00:00"), exp.DType.TIMESTAMPTZ)
    return exp.cast(exp.Literal.string(text), exp.DType.TIMESTAMP)


def _time(scalar: pa.Scalar, number: int) -> exp.Expr:
    seconds, part = divmod(scalar.value, _UNITS[scalar.type.unit])
    nanoseconds = part * 10**9 // _UNITS[scalar.type.unit]
    if not 0 <= seconds < _S_OF_DAY:
        raise FlussError(f"parameter {number}: {seconds:,} seconds are no time of a day")
    text = _clock(seconds, nanoseconds)
    if nanoseconds % 1000:
        raise FlussError(
            f"parameter {number}: the time {text} has no literal in SQL, where times have six"
            " digits of a second"
        )
    return exp.cast(exp.Literal.string(text), exp.DType.TIME)


def _day(days: int, number: int) -> str:
    """Return the text of a day, given its number of days since 1970."""
    try:
        return dt.date.fromordinal(_DAY_0 + days).isoformat()
    except (ValueError, OverflowError):
        raise FlussError(
            f"parameter {number}: the day {days:,} days from 1970-01-01 has no literal in SQL,"
            " where years are 1 to 9999"
        ) from None


def _clock(seconds: int, nanoseconds: int) -> str:
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if nanoseconds % 1000:
        return f"{text}.{nanoseconds:09}"
    return f"{text}.{nanoseconds // 1000:06}" if nanoseconds else text


def _scalar(value: Any, number: int) -> pa.Scalar:
    try:
        return pa.scalar(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FlussError(f"parameter {number}: {value!r:.80} is no value of SQL: {error}") from None


def parameter_types(tree: exp.Expr, column_type: ColumnType) -> list[pa.DataType]:
    """Return of which types the values of a statement's parameters are, as far as it shows.

    That of the column beside it, or of the cast around it; text where nothing shows it.
    """
    found = placeholders(tree)
    return [
        next((t for n in found[number] if (t := _type_beside(n, column_type))), pa.string())
        for number in sorted(found)
    ]


def _type_beside(node: exp.Expr, column_type: ColumnType) -> pa.DataType | None:
    parent = node.parent
    while isinstance(parent, exp.Paren | exp.Neg):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Limit | exp.Offset | exp.Fetch):
        return pa.int64()
    if isinstance(parent, exp.Cast):
        return _CASTS.get(parent.to.this)
    if isinstance(parent, exp.Tuple) and isinstance(parent.parent, exp.Values):
        insert = parent.parent.parent
        return _inserted(insert, parent.expressions.index(node), column_type)
    if not isinstance(parent, exp.Binary | exp.Between | exp.In):
        return None
    for other in (parent.this, parent.args.get("expression")):
        column = other.unnest() if isinstance(other, exp.Expr) else None
        if isinstance(column, exp.Column):
            for table in tree_tables(node):
                if column.table in ("", table.alias_or_name):
                    kind = column_type(table, column.name)
                    if kind is not None:
                        return kind
    return None


def tree_tables(node: exp.Expr) -> list[exp.Table]:
    """Return the tables of the statement that a node is in."""
    return [t for t in node.root().find_all(exp.Table) if isinstance(t.this, exp.Identifier)]


def _inserted(insert: exp.Expr | None, place: int, column_type: ColumnType) -> pa.DataType | None:
    if not isinstance(insert, exp.Insert):
        return None
    target = insert.this
    if isinstance(target, exp.Schema):
        names = [item.name for item in target.expressions]
        return column_type(target.this, names[place]) if place < len(names) else None
    return column_type(target, f"\0{place}")


_CASTS: dict[exp.DType, pa.DataType] = {
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIME: pa.time32("ms"),
    exp.DType.TIMESTAMP: pa.timestamp("us"),
    exp.DType.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
}


def without_catalog(tree: exp.Expr, catalog: str) -> None:
    """Take the name of the one catalog out of names of tables and columns, in place."""
    for node in list(tree.find_all(exp.Table, exp.Column)):
        if node.text("catalog") == catalog:
            node.set("catalog", None)
