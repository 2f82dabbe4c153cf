"""Python rows, checked at the moment they are appended and gathered by column.

Rows become Arrow by the thousand, long after ``append`` returned: a row that does not fit must be
refused before, alone, by its own caller. So each collector has functions of its own, compiled from
the table's columns, that check a plain row of plain values and put it away in a fraction of a
microsecond; whatever they do not know is converted on the spot, which raises the error that names
column and value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.rows import RowChecker, rows_to_batch
from fluss_df.types import Column, DataType, TypeRoot, arrow_schema

_R = TypeRoot
_INTEGER_BITS = {_R.TINYINT: 8, _R.SMALLINT: 16, _R.INTEGER: 32, _R.BIGINT: 64}
_LARGEST_FLOAT32 = 3.4028234e38

Row = Mapping[str, Any] | Sequence[Any]


def _encodes(text: str) -> bool:
    """Whether a string has no lone surrogates, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _condition(t: DataType, value: str) -> str | None:
    """Return the Python condition under which a value surely fits; None where only trying tells."""
    root = t.root
    if root in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[root] - 1)
        return f"type({value}) is int and {-limit} <= {value} < {limit}"
    if root is _R.BOOLEAN:
        return f"type({value}) is bool"
    if root is _R.DOUBLE:
        return f"type({value}) is float"
    if root is _R.FLOAT:
        return f"type({value}) is float and -{_LARGEST_FLOAT32} < {value} < {_LARGEST_FLOAT32}"
    if root is _R.STRING:
        return f"type({value}) is str and ({value}.isascii() or encodes({value}))"
    if root is _R.BYTES:
        return f"type({value}) is bytes"
    return None


def _compile(
    columns: Sequence[Column], keys: Sequence[object], lists: Sequence[list[Any]]
) -> Callable[[Any], int]:
    """Return a function that puts a row, indexed by ``keys``, away where it surely fits.

    It returns how many rows there are then, or 0.
    """
    conditions = [f"len(row) == {len(columns)}"]
    reads, puts = [], []
    namespace: dict[str, Any] = {"encodes": _encodes, "undo": _undo, "lists": lists}
    namespace["first"] = lists[0]
    for i, column in enumerate(columns):
        reads.append(f"        v{i} = row[{keys[i]!r}]")
        condition = _condition(column.type, f"v{i}")
        if condition is None:
            condition = f"fits{i}(v{i})"
            namespace[f"fits{i}"] = _tried(column)
        if column.type.nullable:
            condition = f"{condition} or v{i} is None"
        conditions.append(f"({condition})")
        puts.append(f"            put{i}(v{i})")
        namespace[f"put{i}"] = lists[i].append
    source = "\n".join(
        [
            "def add(row):",
            "    try:",
            *(reads or ["        pass"]),
            "    except (KeyError, IndexError, TypeError):",
            "        return 0",
            f"    if {' and '.join(conditions)}:",
            "        try:",
            *(puts or ["            pass"]),
            "        except BaseException:",  # Ctrl-C between two columns
            "            undo(lists)",
            "            raise",
            "        return len(first)",
            "    return 0",
        ]
    )
    exec(source, namespace)
    compiled: Callable[[Any], int] = namespace["add"]
    return compiled


def _undo(lists: Sequence[list[Any]]) -> None:
    """Take out a row that was put away in part: the last column gets its value last."""
    rows = len(lists[-1])
    for values in lists:
        del values[rows:]


def _tried(column: Column) -> Callable[[Any], bool]:
    """Return a check that converts a value to see whether it fits."""
    single = [column]

    def fits(value: Any) -> bool:
        try:
            rows_to_batch([(value,)], single, "")
        except SchemaMismatchError:
            return False
        return True

    return fits


class RowCollector:
    """Gathers rows that fit, and refuses others; not thread safe.

    Parameters
    ----------
    columns
        The columns of the table.
    table
        Its name, for errors.

    Attributes
    ----------
    add_dict
        Puts a dict away where it surely fits and returns the number of rows; 0 where :meth:`add`
        has to look. It is here for callers to whom a call more for each row matters.

    Examples
    --------
    >>> rows = RowCollector([Column("id", DataType(TypeRoot.BIGINT))], "db.t")
    >>> rows.add({"id": 1})
    1
    >>> rows.take().num_rows, len(rows)
    (1, 0)
    """

    def __init__(self, columns: Sequence[Column], table: str) -> None:
        self._columns = columns
        self._table = table
        self._names = [column.name for column in columns]
        self._schema = arrow_schema(columns)
        self._plain = all(_condition(column.type, "") is not None for column in columns)
        self._check_form = RowChecker(columns, table)
        self._lists: list[list[Any]] = [[] for _ in columns]
        self.add_dict = _compile(columns, self._names, self._lists)
        self._add_sequence = _compile(columns, range(len(columns)), self._lists)

    def __len__(self) -> int:
        return len(self._lists[-1])

    def add(self, row: Row) -> int:
        """Put a row away; return how many rows there are then.

        Raises
        ------
        SchemaMismatchError
            When it does not fit, naming column and value.
        """
        kind = type(row)
        if kind is dict:
            count = self.add_dict(row)
        elif kind is tuple or kind is list:
            count = self._add_sequence(row)
        else:
            count = 0
        if count:
            return count
        self._check_form(row)
        rows_to_batch([row], self._columns, self._table)
        values = [row.get(name) for name in self._names] if isinstance(row, Mapping) else row
        try:
            for gathered, value in zip(self._lists, values, strict=True):
                gathered.append(value)
        except BaseException:
            _undo(self._lists)
            raise
        return len(self)

    def take(self) -> pa.RecordBatch:
        """Return the rows as a batch of exactly the table's Arrow types, and forget them."""
        try:
            if self._plain:
                # what only passed by being converted may be of a kind that Arrow does not take
                with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
                    arrays = [
                        pa.array(values, field.type)
                        for values, field in zip(self._lists, self._schema, strict=True)
                    ]
                    return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            rows = list(zip(*self._lists, strict=True))
            return rows_to_batch(rows, self._columns, self._table)
        finally:
            for values in self._lists:
                values.clear()
