"""``VALUES`` of an INSERT: literals are read as the types of the columns they go into.

Polars' SQL takes plain literals only, and types them by themselves. Here ``'2024-01-31'`` is a date
for a column of dates, and arrays, maps and rows can be written; other expressions are computed.
Times without a zone are of UTC where a column holds instants.
"""

from __future__ import annotations

import contextlib
import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.backend.sql.operands.casts import UNKNOWN, folded
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.record.python.coerce import NANOSECONDS
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

#: Computes an expression that is no literal.
Compute = Callable[[exp.Expr], Any]
#: Computes expressions by one query; it may raise where one of them alone is computed.
ComputeAll = Callable[[Sequence[exp.Expr]], Sequence[Any]]

_R = TypeRoot
_INTEGERS = (_R.TINYINT, _R.SMALLINT, _R.INTEGER, _R.BIGINT)
_FLOATS = (_R.FLOAT, _R.DOUBLE)
_INF = math.inf
# the largest number that a FLOAT can be
_LARGEST = 3.4028234663852886e38
_PARSED: dict[TypeRoot, tuple[str, Callable[[str], Any]]] = {
    _R.DATE: ("'2024-01-31'", date.fromisoformat),
    _R.TIME_WITHOUT_TIME_ZONE: (
        "'12:34:56', with at most six digits of a second",
        lambda text: _time(text),
    ),
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: ("'2024-01-31 12:34:56'", lambda text: _timestamp(text, None)),
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: (
        "'2024-01-31 12:34:56', with its zone if that is not UTC",
        lambda text: _timestamp(text, "UTC"),
    ),
}
#: Types whose values SQL writes as a text, such as '2024-01-31' for a date.
READ_FROM_TEXT = frozenset(_PARSED)
_TYPED = (exp.DType.DATE, exp.DType.TIME, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPLTZ)
# how many expressions one query computes; a query for a single one takes two milliseconds
_TOGETHER = 200
# an expression that has one of these may mean something else beside other expressions
_APART = (
    *(exp.Query, exp.Column, exp.Star, exp.AggFunc, exp.Window, exp.UDTF, exp.Explode, exp.Rand),
    *(exp.Anonymous, exp.Placeholder, exp.Parameter),
)

# types of Fluss that a computed value of a Python type can be; a time without a zone is in UTC
_NAIVE = (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE)
_AWARE = (_R.TIMESTAMP_WITH_LOCAL_TIME_ZONE,)
_OF_PYTHON: dict[type, tuple[TypeRoot, ...]] = {
    bool: (_R.BOOLEAN,),
    str: (_R.STRING, _R.CHAR),
    bytes: (_R.BYTES, _R.BINARY),
    date: (_R.DATE,),
    time: (_R.TIME_WITHOUT_TIME_ZONE,),
}

_FRACTION = re.compile(r"\.(\d+)")
# a time with seven digits of a second or more, and its zone
_NINE_DIGITS = re.compile(r"(.*\.\d{7,9})(Z|[+-]\d\d(?::?\d\d)?)?")
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class _MisfitError(Exception):
    """A literal does not fit a type; the message says what is expected."""


def typed_rows(
    values: exp.Values, columns: Sequence[Column], path: TablePath, compute: ComputeAll
) -> pa.Table:
    """Return the rows of VALUES with the types of columns.

    ``columns`` are those of the values in each row, in their order. ``path`` is the table's, for
    errors. ``compute`` returns the values of expressions that are not literals.

    Raises FlussError for a row of another length, or a value that does not fit its column's type:
    for the first one of the first column that has some.
    """
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise FlussError(
                f"table {path}: row {number} of VALUES has {len(row)} values for {len(columns)}"
                f" columns ({', '.join(c.name for c in columns)}){spot(row[0]) if row else ''}"
            )
    computed = _Computed(compute)
    found: list[list[Any]] = []
    # by column, the rows whose values have to be computed first
    waiting: list[list[int]] = []
    failed: FlussError | None = None
    for at, column in enumerate(columns):
        found.append([])
        waiting.append([])
        for number, row in enumerate(rows):
            before = len(computed.wanted)
            try:
                found[at].append(_value(row[at], column, path, computed.later))
            except FlussError as error:
                failed = error
            if len(computed.wanted) > before:
                waiting[at].append(number)
            if failed is not None:
                break
        if failed is not None:
            break
    computed.run()
    made = []
    for at, column in enumerate(columns[: len(found)]):
        for number in waiting[at]:
            value = _value(rows[number][at], column, path, computed.value)
            found[at][number : number + 1] = [value]
        if failed is not None and at == len(found) - 1:
            raise failed
        made.append(_array(found[at], [row[at] for row in rows], column, path))
    return pa.table(made, names=[c.name for c in columns])


class _Computed:
    """The values of the expressions in a statement, most of them by few queries."""

    def __init__(self, compute: ComputeAll) -> None:
        #: The expressions that wait for a query.
        self.wanted: list[exp.Expr] = []
        self._compute = compute
        self._values: dict[int, Any] = {}

    def later(self, cell: exp.Expr) -> Any:
        """Return the value of an expression where it is known, else None; it is wanted then."""
        value = folded(cell)
        if value is not UNKNOWN:
            return value
        self.wanted.append(cell)
        return None

    def run(self) -> None:
        """Compute what is wanted, as far as that goes together."""
        some = [cell for cell in self.wanted if cell.find(*_APART) is None]
        for begin in range(0, len(some) if len(some) > 1 else 0, _TOGETHER):
            part = some[begin : begin + _TOGETHER]
            # where one of them fails, each is computed alone when its turn comes: so the error is
            # that of the first one
            with contextlib.suppress(FlussError, pa.ArrowException, ValueError, OverflowError):
                values = self._compute(part)
                self._values.update(
                    (id(cell), value) for cell, value in zip(part, values, strict=True)
                )

    def value(self, cell: exp.Expr) -> Any:
        """Return the value of an expression."""
        value = self._values[id(cell)] if id(cell) in self._values else folded(cell)
        return self._compute([cell])[0] if value is UNKNOWN else value


def constant(cell: exp.Expr, column: Column, path: TablePath) -> pa.Array:
    """Return the value of a literal for a column, as an array of one.

    Raises FlussError for a literal that does not fit the column's type, naming both and where it
    stands.
    """
    require_fitting(cell, column, path)
    return _array([_value(cell, column, path, lambda _: None)], [cell], column, path)


def require_fitting(cell: exp.Expr, column: Column, path: TablePath) -> None:
    """Raise for a literal that does not fit a column's type, naming both and where it stands."""

    def refuse(_: exp.Expr) -> None:
        raise _MisfitError("expected a literal")

    _value(cell, column, path, refuse)


def _value(cell: exp.Expr, column: Column, path: TablePath, compute: Compute) -> Any:
    try:
        return _literal(cell, column.type, compute)
    except _MisfitError as misfit:
        raise _refused(cell, column, path, str(misfit)) from None


def _array(
    found: list[Any], cells: Sequence[exp.Expr], column: Column, path: TablePath
) -> pa.Array:
    kind = to_arrow(column.type)
    try:
        return pa.array(found, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for value, cell in zip(found, cells, strict=True):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                reason = str(error)
                if "nanosecond resolution" in reason:
                    reason = f"it is beyond {NANOSECONDS}"
                raise _refused(cell, column, path, reason) from None
        raise


def _refused(cell: exp.Expr, column: Column, path: TablePath, reason: str) -> FlussError:
    return FlussError(
        f"table {path}, column '{column.name}': {cell.sql(Fluss)[:80]} does not go into"
        f" {column.type}: {reason}{spot(cell)}"
    )


def _literal(cell: exp.Expr, kind: DataType, compute: Compute) -> Any:
    """Return a value for a type; Arrow says later whether it fits."""
    cell = cell.unnest()
    if isinstance(cell, exp.Null):
        return None
    root = kind.root
    if kind.element is not None and isinstance(cell, exp.Array):
        return [_literal(item, kind.element, compute) for item in cell.expressions]
    if kind.key is not None and kind.value is not None:
        pairs = _pairs(cell)
        if pairs is not None:
            keys, given = kind.key, kind.value
            return [(_literal(k, keys, compute), _literal(v, given, compute)) for k, v in pairs]
    if root is _R.ROW:
        fields = _fields(cell)
        if fields is not None:
            if len(fields) != len(kind.fields):
                raise _MisfitError(f"{len(fields)} fields given for {len(kind.fields)}")
            return {
                f.name: _literal(item, f.type, compute)
                for f, item in zip(kind.fields, fields, strict=True)
            }
    if isinstance(cell, exp.HexString) and root in (_R.BYTES, _R.BINARY):
        return bytes.fromhex(cell.name)
    value = _scalar(cell, root, compute)
    if root in _PARSED and value is not None:
        _require_digits(value, kind)
    return value


def _require_digits(value: Any, kind: DataType) -> None:
    """Raise for a time with digits of a second that a type cuts off."""
    unit = getattr(to_arrow(kind), "unit", None)
    if unit is None or not isinstance(value, datetime | time | pa.Scalar):
        return
    if isinstance(value, pa.Scalar):
        nanoseconds = value.cast(pa.int64()).as_py()
    else:
        nanoseconds = value.microsecond * 1000
    if nanoseconds % _NANOSECONDS[unit]:
        raise _MisfitError("it has more digits of a second")


def _scalar(cell: exp.Expr, root: TypeRoot, compute: Compute) -> Any:
    if isinstance(cell, exp.Boolean):
        return _of(root, bool(cell.this), _R.BOOLEAN)
    number = _number(cell)
    if number is not None:
        return _numeric(number, root)
    text = _text(cell)
    if text is None:
        if isinstance(cell, exp.Var):
            raise _MisfitError("expected a value, or NULL")
        return _computed(compute(cell), root)
    if root in _PARSED:
        example, parsed = _PARSED[root]
        try:
            return parsed(text)
        except (ValueError, pa.ArrowException):
            raise _MisfitError(f"expected {example}") from None
    return _of(root, text, _R.STRING, _R.CHAR)


def _computed(value: Any, root: TypeRoot) -> Any:
    """Return a value of Python that was computed, where it is one of a type as it is."""
    if isinstance(value, float) and root not in _INTEGERS:
        return _of(root, value, *_FLOATS)
    if isinstance(value, Decimal | int | float) and not isinstance(value, bool):
        return _numeric(Decimal(value), root)
    if isinstance(value, datetime):
        aware = value.tzinfo is not None
        return _of(root, value, *(_AWARE if aware else _NAIVE))
    for kind, roots in _OF_PYTHON.items():
        if isinstance(value, kind):
            return _of(root, value, *roots)
    return value


def _numeric(number: Decimal, root: TypeRoot) -> Any:
    if root in _FLOATS:
        return _float(number, root)
    if root in _INTEGERS:
        if not number.is_finite():
            raise _MisfitError("it is no whole number")
        if number != number.to_integral_value():
            raise _MisfitError("it has a fraction")
        return int(number)
    return _of(root, number, _R.DECIMAL)


def _float(number: Decimal, root: TypeRoot) -> float:
    """Return the nearest number of a type; of digits without a point or exponent this one alone."""
    found = float(number)
    if root is _R.FLOAT and math.isfinite(found):
        found = struct.unpack("f", struct.pack("f", found))[0] if abs(found) <= _LARGEST else _INF
    if math.isinf(found):
        raise _MisfitError("it is too large")
    if number.as_tuple().exponent == 0 and Decimal(found) != number:
        raise _MisfitError(f"it would be {found:.0f}; CAST it to have it rounded")
    return found


def _of(root: TypeRoot, value: Any, *roots: TypeRoot) -> Any:
    if root not in roots:
        raise _MisfitError("it is of another type; cast it")
    return value


def _number(cell: exp.Expr) -> Decimal | None:
    if isinstance(cell, exp.Neg):
        found = _number(cell.this.unnest())
        # A minus sign would round to the digits of the thread's context. Zero has no sign here.
        return found.copy_negate() if found else found
    is_number = isinstance(cell, exp.Literal) and not cell.is_string
    return Decimal(cell.name) if is_number else None


def _text(cell: exp.Expr) -> str | None:
    """Return the text of a literal, such as DATE '2024-01-31' too."""
    if isinstance(cell, exp.Cast) and cell.to.this in _TYPED:
        cell = cell.this
    return str(cell.name) if isinstance(cell, exp.Literal) and cell.is_string else None


def _pairs(cell: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]] | None:
    """Return the keys and values of MAP['a', 1], or of MAP(ARRAY['a'], ARRAY[1])."""
    if isinstance(cell, exp.Bracket) and cell.this.name.upper() == "MAP":
        items = cell.expressions
        if len(items) % 2:
            raise _MisfitError("expected MAP[key, value, ...]")
        return list(zip(items[::2], items[1::2], strict=True))
    if isinstance(cell, exp.Map):
        keys, values = cell.args["keys"].expressions, cell.args["values"].expressions
        if len(keys) != len(values):
            raise _MisfitError("expected as many keys as values")
        return list(zip(keys, values, strict=True))
    return None


def _fields(cell: exp.Expr) -> list[exp.Expr] | None:
    """Return the fields of ROW(1, 'a'), or of (1, 'a')."""
    is_row = isinstance(cell, exp.Anonymous) and cell.name.upper() == "ROW"
    return list(cell.expressions) if is_row or isinstance(cell, exp.Tuple) else None


def _shortest(text: str, most: int) -> str:
    """Return a time without zeros behind its digits of a second, of which Python drops some."""
    digits = _FRACTION.search(text)
    if digits is None:
        return text
    left = digits[1].rstrip("0")
    if len(left) > most:
        raise ValueError("more digits of a second than there are")
    return f"{text[: digits.start()]}.{left or '0'}{text[digits.end() :]}"


def _time(text: str) -> time:
    found = time.fromisoformat(_shortest(text, 6))
    if found.tzinfo is not None:
        raise ValueError("a time of the day has no zone")
    return found


def _timestamp(text: str, zone: str | None) -> datetime | pa.Scalar:
    """Return a time, which with a zone is an instant; it may have nine digits."""
    text = _shortest(text, 9)
    fine = _NINE_DIGITS.fullmatch(text)
    if fine is not None:
        # a datetime of Python has six digits at most
        since = pa.scalar(fine[1]).cast(pa.timestamp("ns")).cast(pa.int64()).as_py()
        if fine[2] is not None:
            if zone is None:
                raise ValueError("a zone, where the column has none")
            # how far the zone is from UTC
            offset = datetime.fromisoformat(f"2000-01-01T00:00:00{fine[2]}").utcoffset()
            assert offset is not None
            since -= int(offset.total_seconds()) * 10**9
        return pa.scalar(since, pa.int64()).cast(pa.timestamp("ns", zone))
    found = datetime.fromisoformat(text)
    if zone is None:
        if found.tzinfo is not None:
            raise ValueError("a zone, where the column has none")
        return found
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
