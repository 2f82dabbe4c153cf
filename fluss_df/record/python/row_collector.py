"""Python rows, checked at the moment they are appended and gathered by column.

Rows become Arrow by the thousand, long after ``append`` returned: a row that does not fit must be
refused before, alone, by its own caller. So each collector has functions of its own, compiled from
the table's columns, that check a plain row of plain values and put it away in a fraction of a
microsecond; whatever they do not know is converted on the spot, which raises the error that names
column and value.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.python.fits import NAMES, NO_LIMITS, Limits, condition
from fluss_df.record.python.rows import RowChecker, columns_to_batch, rows_to_batch
from fluss_df.record.rows.row_formats import require_milliseconds, require_padded
from fluss_df.record.rows.single_numbers import in_seconds
from fluss_df.types import Column, TypeRoot, arrow_schema

_R = TypeRoot

Row = Mapping[str, Any] | Sequence[Any]


@functools.lru_cache(maxsize=256)
def _code(source: str) -> types.CodeType:
    """Compile a function, once for all writers of tables with such columns."""
    return compile(source, "<row collector>", "exec")


# whose values in Python can be changed, and are converted by more than one call into Arrow
_NESTED: Final = (_R.ARRAY, _R.MAP, _R.ROW)
_BYTES: Final = (_R.BYTES, _R.BINARY)
_FIXED: Final = {int, float, str, bool, bytes, type(None)}


def _kept(value: Any) -> Any:
    """Return a value that its owner cannot change: rows are converted later than they are given."""
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        return kind(value) if set(map(type, value)) <= _FIXED else kind(map(_kept, value))
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None and not in_seconds(value.tzinfo):
        # Arrow leaves out the fractions of a second by which some time zones are away from UTC
        # in UTC it may be of a year that Python does not have
        with contextlib.suppress(OverflowError):
            return value.astimezone(dt.UTC)
        return value
    return value.copy() if isinstance(value, np.ndarray) else value


class Gathered:
    """Rows that wait for more, value after value in one list.

    A row enters it by one call, which nothing interrupts, not even Ctrl-C.

    Attributes
    ----------
    values
        The values of all rows, in one list.
    extend
        Adds the values of a row.
    deletes
        For each row to delete: how many rows were added before it, and the values of its key.
    handle
        What the caller of a row gets.
    taken
        How many of the values were taken away; None while all wait. Values behind them came too
        late: who added them notices, see :meth:`RowCollector.taker`.
    """

    __slots__ = ("deletes", "extend", "handle", "taken", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.extend = self.values.extend
        self.deletes: list[tuple[int, Sequence[Any]]] = []
        self.handle: Any = None
        self.taken: int | None = None

    def rows(self, width: int) -> int:
        """Return how many rows these are, deletes included, given the number of values of each."""
        values = len(self.values) if self.taken is None else self.taken
        return values // width + len(self.deletes)

    def take(self) -> list[Any]:
        """Return the values of rows; those that come later do not belong to them."""
        self.taken = len(self.values)
        return self.values[: self.taken]

    def take_back(self, values: Sequence[Any]) -> bool:
        """Take a row that came too late out again; return whether it did."""
        assert self.taken is not None
        for start in range(self.taken, len(self.values), len(values)):
            found = self.values[start : start + len(values)]
            # another thread may have added the same objects as its row: either of the two may be
            # taken
            if all(a is b for a, b in zip(found, values, strict=True)):
                del self.values[start : start + len(values)]
                return True
        return False


class RowGate:
    """The gate by which rows join others without a lock; see :meth:`RowCollector.taker`.

    ``open`` has the rows to join; None while each row is to be looked at one by one. From ``limit``
    values on (rows times columns), ``full`` is called.
    """

    __slots__ = ("limit", "open")

    def __init__(self) -> None:
        self.open: Gathered | None = None
        self.limit = 0


def _tests(
    columns: Sequence[Column], keys: Sequence[object], limits: Limits
) -> tuple[list[str], str, list[str], str, dict[str, Any]]:
    """Return Python source that checks and takes a row, in four parts, and the names it needs.

    The first part reads the values of ``row``, which is indexed by ``keys``. Of a dict, ``nulls``
    are the values that are left out. The second is the
    condition under which the row surely fits. The third copies values that the caller may change
    while they wait. The fourth is the tuple of the values.
    """
    conditions = [f"len(row) == {len(columns)}"]
    reads = []
    keeps: list[str] = []
    nulls = {key: None for key, column in zip(keys, columns, strict=True) if column.type.nullable}
    namespace: dict[str, Any] = {**NAMES, "kept": _kept, "nulls": nulls}
    for i, column in enumerate(columns):
        reads.append(f"v{i} = row[{keys[i]!r}]")
        fits = condition(column.type, f"v{i}", namespace, limits)
        if column.type.root in _NESTED:
            element = column.type.element
            flat = element is not None and element.root not in (*_NESTED, *_BYTES)
            # items of such a list cannot be changed: a copy of the list is enough
            copied = f"list(v{i}) if type(v{i}) is list else " if flat else ""
            keeps.append(f"v{i} = {copied}kept(v{i})")
        elif column.type.root in _BYTES:
            keeps.append(f"v{i} = bytes(v{i}) if type(v{i}) is bytearray else v{i}")
        null = column.type.nullable and column.name not in limits.required
        conditions.append(f"({fits}{f' or v{i} is None' if null else ''})")
    values = f"({''.join(f'v{i}, ' for i in range(len(columns)))})"
    # a table without columns is refused by the writer, by name, and not by Python's compiler
    return reads or ["pass"], " and ".join(conditions), keeps, values, namespace


def _completed(columns: Sequence[Column], keys: Sequence[object]) -> list[str]:
    """Return Python source that gives a dict the nullable columns that it leaves out."""
    if isinstance(keys, range) or not any(column.type.nullable for column in columns):
        return []
    return [f"    if len(row) < {len(columns)}:", "        row = {**nulls, **row}"]


def _compile(
    columns: Sequence[Column], keys: Sequence[object], limits: Limits
) -> Callable[[Any], Sequence[Any] | None]:
    """Return a function that returns the values of a row, or None where they may not fit."""
    reads, fits, keeps, values, namespace = _tests(columns, keys, limits)
    source = "\n".join(
        [
            "def read(row):",
            *_completed(columns, keys),
            "    try:",
            *(f"        {line}" for line in reads),
            "    except (KeyError, IndexError, TypeError):",
            "        return None",
            f"    if not ({fits}):",
            "        return None",
            *(f"    {line}" for line in keeps),
            f"    return {values}",
        ]
    )
    exec(_code(source), namespace)
    compiled: Callable[[Any], Sequence[Any] | None] = namespace["read"]
    return compiled


def limits_of_rows(row_format: str) -> Limits:
    """Return what rows of a format take less than their types."""
    indexed = row_format.lower() == "indexed"

    def check(data: pa.RecordBatch, columns: Sequence[Column], table: str) -> None:
        require_milliseconds(data, columns, table)
        if indexed:
            require_padded(data, columns, table)

    return Limits(digits=3, padded=indexed, check=check)


class RowCollector:
    """Checks rows, and makes batches of those that were gathered.

    ``limits`` are what the table takes less than its columns' types. ``width`` is the number of
    columns.

    Examples
    --------
    >>> rows = RowCollector([Column("id", DataType(TypeRoot.BIGINT))], "db.t")
    >>> rows.values({"id": 1})
    (1,)
    >>> rows.batch([1, 2]).num_rows
    2
    """

    def __init__(self, columns: Sequence[Column], table: str, limits: Limits = NO_LIMITS) -> None:
        self.width = len(columns)
        self._limits = limits
        self._columns = columns
        self._table = table
        self._names = [column.name for column in columns]
        self._schema = arrow_schema(columns)
        self._plain = all(column.type.root not in _NESTED for column in columns)
        self._check_form = RowChecker(columns, table)
        self._read_dict = _compile(columns, self._names, self._limits)
        self._read_sequence = _compile(columns, range(len(columns)), self._limits)

    def values(self, row: Row) -> Sequence[Any]:
        """Return the values of a row, by column.

        Raises SchemaMismatchError when it does not fit, naming column and value.
        """
        kind = type(row)
        values = None
        if kind is dict or isinstance(row, Mapping):
            # another mapping may make values up, or change
            values = self._read_dict(row if kind is dict else dict(row))
        elif isinstance(row, (tuple, list)):
            values = self._read_sequence(row if kind is tuple or kind is list else tuple(row))
        if values is None:
            self._check_form(row)
            batch = rows_to_batch([row], self._columns, self._table)
            if self._limits.check is not None:
                self._limits.check(batch, self._columns, self._table)
            for name in self._limits.required:
                if batch.column(name).null_count:
                    raise SchemaMismatchError(
                        f"table {self._table}: bucket key column '{name}' is null: it says which"
                        " bucket a row is in, so rows need a value for it"
                    )
            given = [row.get(name) for name in self._names] if isinstance(row, Mapping) else row
            values = tuple(map(_kept, given))
        return values

    def taker(
        self,
        gate: RowGate,
        full: Callable[[], object],
        late: Callable[[Gathered, Any, Any], Any],
        otherwise: Callable[[Any], Any],
    ) -> Callable[[Any], Any]:
        """Return a function that takes a row and returns the handle of those that it joined.

        For most rows nothing else runs than this function, which is compiled as one: calls by way
        of methods took a third of the time of an append, and a lock another third. It holds no
        lock. A row joins the rows that the gate shows, and is in them for good if the gate still
        shows them afterwards.

        Parameters
        ----------
        gate
            Tells what to join, and how many values are enough.
        full
            Called when there are enough.
        late
            Called with what the row joined, its values, and the row, where the values may have been
            taken away in between.
        otherwise
            Called for rows that are not dicts or may not fit, and while the gate is closed.
        """
        reads, fits, keeps, values, namespace = _tests(self._columns, self._names, self._limits)
        source = "\n".join(
            [
                "def take(row):",
                "    gathered = gate.open",
                "    if gathered is None or type(row) is not dict:",
                "        return otherwise(row)",
                *_completed(self._columns, self._names),
                "    try:",
                *(f"        {line}" for line in reads),
                "    except KeyError:",
                "        return otherwise(row)",
                f"    if not ({fits}):",
                "        return otherwise(row)",
                *(f"    {line}" for line in keeps),
                f"    gathered.extend({values})",
                "    if gate.open is not gathered:",
                f"        return late(gathered, {values}, row)",
                "    if len(gathered.values) >= gate.limit:",
                "        full()",
                "    return gathered.handle",
            ]
        )
        namespace |= {"gate": gate, "full": full, "late": late, "otherwise": otherwise}
        exec(_code(source), namespace)
        taker: Callable[[Any], Any] = namespace["take"]
        return taker

    def batch(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows, value after value, as a batch of exactly the table's Arrow types."""
        columns = [values[i :: self.width] for i in range(self.width)]
        if self._plain:
            # what only passed by being converted may be of a kind that Arrow does not take
            with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
                arrays = [
                    pa.array(column, field.type)
                    for column, field in zip(columns, self._schema, strict=True)
                ]
                return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return columns_to_batch(columns, self._columns, self._table)
