"""Python rows (dict, list or tuple) into Arrow, column by column.

Writers collect rows and convert them in bulk: a row at a time would cost more than the rest of an
append. :class:`RowChecker` checks the kind, the names and the length of a row when it is appended.
:func:`rows_to_batch` checks the values, and its errors name column and row.

What a column takes follows the official client:

======================= ===========================================================================
Fluss type              Python values
======================= ===========================================================================
TINYINT .. BIGINT       int in range (no bool)
FLOAT, DOUBLE           float, int that is exact; FLOAT rounds a float to the nearest it can hold
BOOLEAN                 bool
CHAR, STRING            str
BINARY, BYTES           bytes, bytearray, memoryview
DECIMAL                 Decimal, int, that fit without loss
DATE                    date (no datetime)
TIME                    time without a time zone
TIMESTAMP               datetime without a time zone
TIMESTAMP_LTZ           datetime; one without a time zone means UTC
ARRAY                   list, tuple, one-dimensional NumPy array
MAP                     dict, or list or tuple of (key, value)
ROW                     dict by field name, or list or tuple by position
======================= ===========================================================================

NumPy scalars stand for their Python values, pandas timestamps and ``datetime64`` for datetimes,
None for null. A dict may leave out nullable columns and fields. Digits that do not fit are an
error.
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import SchemaMismatchError
from fluss_df.metadata import nearest
from fluss_df.record.python.coerce import coerce
from fluss_df.record.python.fits import MOST_DIGITS
from fluss_df.record.rows.single_numbers import in_seconds
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_NONE: Final = type(None)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)

# root -> exact types of values that Arrow takes as they are, then classes whose subclasses it takes
_Kinds = tuple[frozenset[type], tuple[type, ...]]
_INT: Final[_Kinds] = (frozenset({int, _NONE}), (int, np.integer))
_FLOAT: Final[_Kinds] = (frozenset({float, int, _NONE}), (float, int, np.floating, np.integer))
_TEXT: Final[_Kinds] = (frozenset({str, _NONE}), (str,))
_BYTES: Final[_Kinds] = (frozenset({bytes, _NONE}), (bytes, bytearray, memoryview))
_SCALARS: Final[dict[TypeRoot, _Kinds]] = {
    _R.TINYINT: _INT,
    _R.SMALLINT: _INT,
    _R.INTEGER: _INT,
    _R.BIGINT: _INT,
    _R.FLOAT: _FLOAT,
    _R.DOUBLE: _FLOAT,
    _R.BOOLEAN: (frozenset({bool, _NONE}), (bool, np.bool_)),
    _R.STRING: _TEXT,
    _R.CHAR: _TEXT,
    _R.BYTES: _BYTES,
    _R.BINARY: _BYTES,
    _R.DECIMAL: (frozenset({Decimal, int, _NONE}), (Decimal, int, np.integer)),
    _R.DATE: (frozenset({dt.date, _NONE}), (dt.date,)),
    _R.TIME_WITHOUT_TIME_ZONE: (frozenset({dt.time, _NONE}), (dt.time,)),
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: (frozenset({dt.datetime, _NONE}), (dt.datetime, np.datetime64)),
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: (
        frozenset({dt.datetime, _NONE}),
        (dt.datetime, np.datetime64),
    ),
}
_TIMESTAMPS = frozenset({_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE})

Row = Mapping[str, Any] | Sequence[Any]


class RowChecker:
    """The cheap checks of a row, for the moment it is appended: its kind, its names, its length.

    Examples
    --------
    >>> check = RowChecker([Column("id", DataType(TypeRoot.BIGINT))], "db.t")
    >>> check({"id": 1})
    """

    __slots__ = ("_columns", "_count", "_names", "_required", "_table")

    def __init__(self, columns: Sequence[Column], table: str) -> None:
        self._columns = columns
        self._table = table
        self._names = frozenset(column.name for column in columns)
        self._required = frozenset(c.name for c in columns if not c.type.nullable)
        self._count = len(columns)

    def __call__(self, row: Any) -> None:
        """Raise SchemaMismatchError where the row cannot be one of the table."""
        if isinstance(row, Mapping):
            if row.keys() == self._names:
                return
            for name in row:
                if name not in self._names:
                    names = [column.name for column in self._columns]
                    hint = nearest(name, names) if isinstance(name, str) else ""
                    raise SchemaMismatchError(
                        f"table {self._table}: column {name!r} is none of {', '.join(names)}{hint}"
                    )
            for name in self._required:
                if name not in row:
                    raise SchemaMismatchError(
                        f"table {self._table}: a row has no value for column '{name}', which is "
                        "NOT NULL"
                    )
        elif isinstance(row, list | tuple):
            if len(row) != self._count:
                wanted = ", ".join(column.name for column in self._columns)
                raise SchemaMismatchError(
                    f"table {self._table}: {len(row)} values for {self._count} columns: {wanted}"
                )
        else:
            raise SchemaMismatchError(
                f"table {self._table}: a row is a dict, list or tuple, not {type(row).__name__}"
            )


def rows_to_batch(rows: Sequence[Row], columns: Sequence[Column], table: str) -> pa.RecordBatch:
    """Convert rows to a batch of exactly the table's Arrow types.

    Rows are dicts by column name, or lists or tuples in column order; mixed if need be.

    Raises SchemaMismatchError for a row or a value that does not fit, naming column and row (from
    0).
    """
    return columns_to_batch(_columns_of(rows, columns, table), columns, table)


def columns_to_batch(
    values: Iterable[Sequence[Any]], columns: Sequence[Column], table: str
) -> pa.RecordBatch:
    """Convert the values of each column as :func:`rows_to_batch` converts rows."""
    arrays = [
        column_of(of_column, column, table)
        for of_column, column in zip(values, columns, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
    result: pa.RecordBatch = coerce(batch, columns, table=table)
    return result


def column_of(values: Sequence[Any], column: Column, table: str) -> pa.Array:
    """Convert values of Python, for ``coerce`` to check; raises SchemaMismatchError for others."""
    return _Builder(table, column.name).array(values, column.type)


def _columns_of(
    rows: Sequence[Row], columns: Sequence[Column], table: str
) -> Iterable[Sequence[Any]]:
    kinds = set(map(type, rows))
    if kinds == {dict} and set(map(len, rows)) == {len(columns)}:
        try:
            # as many names as columns, and each column there: no name is unknown
            return [[row[column.name] for row in rows] for column in columns]  # type: ignore[call-overload]
        except KeyError:
            pass
    elif kinds <= {list, tuple} and set(map(len, rows)) == {len(columns)}:
        return [list(map(operator.itemgetter(i), rows)) for i in range(len(columns))]
    check = RowChecker(columns, table)
    for number, row in enumerate(rows):
        try:
            check(row)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(f"row {number}: {error.message}") from None
    return [
        [row.get(c.name) if isinstance(row, Mapping) else row[i] for row in rows]
        for i, c in enumerate(columns)
    ]


class _Builder:
    """Builds one column, or a level of a nested one; ``locate`` finds the row of an index here."""

    def __init__(
        self, table: str, path: str, locate: Callable[[int], int] = operator.index
    ) -> None:
        self.table = table
        self.path = path
        self.locate = locate

    def bad(self, index: int, value: Any, t: DataType, why: str) -> SchemaMismatchError:
        try:
            shown = repr(value)
        except Exception:
            # pandas cannot show a moment with a zone beyond the years of Python
            shown = f"a {type(value).__name__}"
        if len(shown) > 100:
            shown = shown[:97] + "..."
        return SchemaMismatchError(
            f"table {self.table}, column '{self.path}': row {self.locate(index)}: {shown} "
            f"({type(value).__name__}) does not fit {t}: {why}"
        )

    def array(self, values: Sequence[Any], t: DataType) -> pa.Array:
        if t.element is not None:
            return self._list(values, t)
        if t.key is not None:
            return self._map(values, t)
        if t.root is _R.ROW:
            return self._row(values, t)
        plain, classes = _SCALARS[t.root]
        kinds = set(map(type, values))
        if not kinds <= plain:
            self._check_kinds(values, kinds - plain, classes, t)
        if t.root in _TIMESTAMPS:
            return self._timestamps(values, kinds, t)
        if t.root is _R.TIME_WITHOUT_TIME_ZONE:
            self._check_zones(values, t)
            return self._arrow(values, pa.time64("us"), t)
        if t.root is _R.FLOAT:
            return self._floats(values, t)
        if t.root is _R.DECIMAL:
            self._check_digits(values, t)
        if memoryview in kinds:
            values = [bytes(v) if isinstance(v, memoryview) else v for v in values]
        # coerce() refuses binaries of another length, and names them
        return self._arrow(values, pa.binary() if t.root is _R.BINARY else to_arrow(t), t)

    def _check_kinds(
        self, values: Sequence[Any], kinds: set[type], classes: tuple[type, ...], t: DataType
    ) -> None:
        for kind in kinds:
            good = issubclass(kind, classes)
            # in Python a bool is an int, and a datetime a date; in a table they are not
            good = good and not (kind is bool and t.root is not _R.BOOLEAN)
            good = good and not (t.root is _R.DATE and issubclass(kind, dt.datetime))
            if not good:
                index = next(i for i, v in enumerate(values) if type(v) is kind)
                wanted = ", ".join(c.__name__ for c in classes)
                raise self.bad(index, values[index], t, f"it takes {wanted}")

    def _arrow(self, values: Sequence[Any], kind: pa.DataType, t: DataType) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            for index, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
                    raise self.bad(index, value, t, str(error)) from None
            raise

    def _floats(self, values: Sequence[Any], t: DataType) -> pa.Array:
        wide = self._arrow(values, pa.float64(), t)
        narrow = pc.cast(wide, pa.float32(), safe=False)
        over = pc.and_(pc.is_inf(narrow), pc.invert(pc.is_inf(wide)))
        if pc.any(over).as_py():
            index = pc.index(over, True).as_py()
            raise self.bad(index, values[index], t, "it is too large")
        for index, (value, found) in enumerate(zip(values, narrow.to_pylist(), strict=True)):
            if isinstance(value, (int, np.integer)) and value != found:
                raise self.bad(index, value, t, "it has more digits than a FLOAT")
        return narrow

    def _check_digits(self, values: Sequence[Any], t: DataType) -> None:
        for index, value in enumerate(values):
            if isinstance(value, Decimal) and value.is_finite():
                _, digits, exponent = value.as_tuple()
                # Arrow makes 0 of some of them
                if len(digits) > MOST_DIGITS or int(exponent) < -MOST_DIGITS:
                    raise self.bad(index, value, t, f"it has more than {MOST_DIGITS} digits")

    def _check_zones(self, values: Sequence[Any], t: DataType) -> None:
        for index, value in enumerate(values):
            if value is not None and value.tzinfo is not None:
                raise self.bad(index, value, t, "it has a time zone, the column has none")

    def _timestamps(self, values: Sequence[Any], kinds: set[type], t: DataType) -> pa.Array:
        zoned = t.root is _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE
        zone = "UTC" if zoned else None
        if kinds <= {dt.datetime, _NONE} and not (zoned and any(map(_is_odd, values))):
            if not zoned:
                self._check_zones(values, t)
            return self._arrow(values, pa.timestamp("us", zone), t)
        numbers = []
        for index, value in enumerate(values):
            if not zoned and getattr(value, "tzinfo", None) is not None:
                raise self.bad(index, value, t, "it has a time zone, the column has none")
            try:
                numbers.append(_nanoseconds(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise self.bad(index, value, t, str(error)) from None
        if all(number is None or not number % 1000 for number in numbers):
            # whole microseconds: they hold years that an int64 of nanoseconds cannot hold
            micros = [None if number is None else number // 1000 for number in numbers]
            return self._arrow(micros, pa.int64(), t).cast(pa.timestamp("us", zone))
        return self._arrow(numbers, pa.int64(), t).cast(pa.timestamp("ns", zone))

    def _list(self, values: Sequence[Any], t: DataType) -> pa.Array:
        assert t.element is not None
        kinds = set(map(type, values))
        if not kinds <= {list, tuple, _NONE, np.ndarray}:
            self._check_kinds(values, kinds - {_NONE}, (list, tuple, np.ndarray), t)
        offsets, mask, inner = self._spread(values, "[]")
        flat = list(itertools.chain.from_iterable(v for v in values if v is not None))
        items = inner.array(flat, t.element)
        kind = pa.list_(pa.field("item", items.type, nullable=True))
        return pa.ListArray.from_arrays(offsets, items, kind, mask=mask)

    def _spread(self, values: Sequence[Any], suffix: str) -> tuple[pa.Array, pa.Array, _Builder]:
        """Return offsets, nulls and the builder of the level below."""
        lengths = [0 if v is None else len(v) for v in values]
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        mask = pa.array([v is None for v in values], pa.bool_())
        locate = self.locate

        def inner(index: int) -> int:
            return locate(int(np.searchsorted(offsets, index, side="right")) - 1)

        builder = _Builder(self.table, self.path + suffix, inner)
        return pa.array(offsets, pa.int32()), mask, builder

    def _map(self, values: Sequence[Any], t: DataType) -> pa.Array:
        assert t.key is not None
        assert t.value is not None
        kinds = set(map(type, values))
        if not kinds <= {dict, list, tuple, _NONE}:
            self._check_kinds(values, kinds - {_NONE}, (dict, list, tuple), t)
        offsets, mask, inner = self._spread(values, "[]")
        pairs: list[tuple[Any, Any]] = []
        for index, value in enumerate(values):
            if value is None:
                continue
            for pair in value.items() if isinstance(value, dict) else value:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise self.bad(index, pair, t, "an entry is a pair of key and value")
                pairs.append((pair[0], pair[1]))
        key = _Builder(self.table, inner.path + ".key", inner.locate)
        keys = key.array([pair[0] for pair in pairs], t.key)
        item = _Builder(self.table, inner.path + ".value", inner.locate)
        items = item.array([pair[1] for pair in pairs], t.value)
        # a list of structs, as a map could not hold the null key that coerce() is to name
        entries = pa.StructArray.from_arrays([keys, items], names=["key", "value"])
        kind = pa.list_(pa.field("item", entries.type))
        return pa.ListArray.from_arrays(offsets, entries, kind, mask=mask)

    def _row(self, values: Sequence[Any], t: DataType) -> pa.Array:
        columns = [Column(f.name, f.type) for f in t.fields]
        check = RowChecker(columns, self.table)
        for index, value in enumerate(values):
            if value is not None:
                try:
                    check(value)
                except SchemaMismatchError as error:
                    raise self.bad(index, value, t, error.message) from None
        children = []
        for i, column in enumerate(columns):
            name = column.name
            flat = [
                None if v is None else v.get(name) if isinstance(v, Mapping) else v[i]
                for v in values
            ]
            builder = _Builder(self.table, f"{self.path}.{name}", self.locate)
            children.append(builder.array(flat, column.type))
        mask = pa.array([v is None for v in values], pa.bool_())
        fields = [pa.field(c.name, a.type) for c, a in zip(columns, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


# NumPy's units of time: how many nanoseconds one has, or how many a nanosecond has
_NANOSECONDS: Final = {
    "D": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3,
    "ns": 1,
}  # fmt: skip
_IN_A_NANOSECOND: Final = {"ps": 10**3, "fs": 10**6, "as": 10**9}


def _of_numpy(value: np.datetime64) -> int:
    """Return nanoseconds since the epoch, as an int of Python: NumPy's would wrap around."""
    unit, step = np.datetime_data(value.dtype)
    if unit in ("Y", "M", "W"):
        value, unit, step = value.astype("datetime64[D]"), "D", 1
    number = int(value.astype(np.int64)) * step
    if unit in _NANOSECONDS:
        return number * _NANOSECONDS[unit]
    whole, rest = divmod(number, _IN_A_NANOSECOND[unit])
    if rest:
        raise ValueError("it has digits below a nanosecond")
    return whole


def _is_odd(moment: dt.datetime | None) -> bool:
    """Whether a moment is of a time zone that may be away from UTC by fractions of a second."""
    zone = None if moment is None else moment.tzinfo
    return zone is not None and zone is not dt.UTC and not in_seconds(zone)


def _nanoseconds(value: Any) -> int | None:
    """Return nanoseconds since the epoch of a datetime, a pandas timestamp or a datetime64."""
    if value is None:
        return None
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else _of_numpy(value)
    nanosecond = int(getattr(value, "nanosecond", 0))
    # the moment in UTC may be of a year that Python does not have, so only the difference is made
    offset = None if value.tzinfo is None else value.utcoffset()
    value = value.replace(tzinfo=None)
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime(warn=False)
    since = value - _EPOCH if offset is None else value - _EPOCH - offset
    return int(since // _MICROSECOND) * 1000 + nanosecond
