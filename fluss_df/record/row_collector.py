"""Python rows, checked at the moment they are appended and gathered by column.

Rows become Arrow by the thousand, long after ``append`` returned: a row that does not fit must be
refused before, alone, by its own caller. So each collector has functions of its own, compiled from
the table's columns, that check a plain row of plain values and put it away in a fraction of a
microsecond; whatever they do not know is converted on the spot, which raises the error that names
column and value.
"""

from __future__ import annotations

import contextlib
import functools
import types
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


@functools.lru_cache(maxsize=256)
def _code(source: str) -> types.CodeType:
    """Compile a function, once for all writers of tables with such columns."""
    return compile(source, "<row collector>", "exec")


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


class RowGate:
    """What rows are let through by; see :meth:`RowCollector.taker`.

    Attributes
    ----------
    handle
        What the caller of a row gets; None to have every row looked at one by one.
    limit
        With so many values (rows times columns) ``full`` is called.
    """

    __slots__ = ("handle", "limit")

    def __init__(self) -> None:
        self.handle: Any = None
        self.limit = 0


def _tests(
    columns: Sequence[Column], keys: Sequence[object]
) -> tuple[list[str], str, str, dict[str, Any]]:
    """Return Python that reads a row indexed by ``keys``, whether it surely fits, its values."""
    conditions = [f"len(row) == {len(columns)}"]
    reads = []
    namespace: dict[str, Any] = {"encodes": _encodes}
    for i, column in enumerate(columns):
        reads.append(f"v{i} = row[{keys[i]!r}]")
        condition = _condition(column.type, f"v{i}")
        if condition is None:
            condition = f"fits{i}(v{i})"
            namespace[f"fits{i}"] = _tried(column)
        if column.type.nullable:
            condition = f"{condition} or v{i} is None"
        conditions.append(f"({condition})")
    values = f"({''.join(f'v{i}, ' for i in range(len(columns)))})"
    return reads, " and ".join(conditions), values, namespace


def _compile(
    columns: Sequence[Column], keys: Sequence[object], gathered: list[Any]
) -> Callable[[Any], bool]:
    """Return a function that puts a row away where it surely fits, and says whether it did."""
    reads, fits, values, namespace = _tests(columns, keys)
    source = "\n".join(
        [
            "def add(row):",
            "    try:",
            *(f"        {line}" for line in reads),
            "    except (KeyError, IndexError, TypeError):",
            "        return False",
            f"    if {fits}:",
            f"        extend({values})",
            "        return True",
            "    return False",
        ]
    )
    namespace["extend"] = gathered.extend
    exec(_code(source), namespace)
    compiled: Callable[[Any], bool] = namespace["add"]
    return compiled


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
        # Row after row in one list: a row enters it by one call, which nothing interrupts, not even
        # Ctrl-C.
        self._values: list[Any] = []
        self._add_dict = _compile(columns, self._names, self._values)
        self._add_sequence = _compile(columns, range(len(columns)), self._values)

    def __len__(self) -> int:
        return len(self._values) // len(self._columns)

    def add(self, row: Row) -> int:
        """Put a row away; return how many rows there are then.

        Raises
        ------
        SchemaMismatchError
            When it does not fit, naming column and value.
        """
        kind = type(row)
        if kind is dict:
            added = self._add_dict(row)
        else:
            added = (kind is tuple or kind is list) and self._add_sequence(row)
        if not added:
            self._check_form(row)
            rows_to_batch([row], self._columns, self._table)
            values = [row.get(name) for name in self._names] if isinstance(row, Mapping) else row
            self._values.extend(values)
        return len(self)

    def taker(
        self,
        lock: contextlib.AbstractContextManager[Any],
        gate: RowGate,
        full: Callable[[], object],
        otherwise: Callable[[Any], Any],
    ) -> Callable[[Any], Any]:
        """Return a function that takes a row and returns the gate's handle.

        It is all that happens to most rows, compiled into one function: calls by way of methods
        took a third of the time of an append.

        Parameters
        ----------
        lock
            Held meanwhile.
        gate
            Tells what to return, and when it is enough.
        full
            Called when it is.
        otherwise
            Called for rows that are no dicts or do not surely fit, and while the gate is closed.
        """
        reads, fits, values, namespace = _tests(self._columns, self._names)
        source = "\n".join(
            [
                "def take(row):",
                "    with lock:",
                "        handle = gate.handle",
                "        if handle is None or type(row) is not dict:",
                "            return otherwise(row)",
                "        try:",
                *(f"            {line}" for line in reads),
                "        except KeyError:",
                "            return otherwise(row)",
                f"        if not ({fits}):",
                "            return otherwise(row)",
                f"        extend({values})",
                "        if len(gathered) >= gate.limit:",
                "            full()",
                "        return handle",
            ]
        )
        namespace |= {"lock": lock, "gate": gate, "full": full, "otherwise": otherwise}
        namespace |= {"gathered": self._values, "extend": self._values.extend}
        exec(_code(source), namespace)
        taker: Callable[[Any], Any] = namespace["take"]
        return taker

    def only(self) -> Sequence[Any] | None:
        """Return the values of the row, as they were added, where there is just one."""
        return self._values[:] if len(self._values) == len(self._columns) else None

    def clear(self) -> None:
        """Forget the rows."""
        self._values.clear()

    def take(self) -> pa.RecordBatch:
        """Return the rows as a batch of exactly the table's Arrow types, and forget them."""
        width = len(self._columns)
        try:
            columns = [self._values[i::width] for i in range(width)]
        finally:
            self._values.clear()
        if self._plain:
            # what only passed by being converted may be of a kind that Arrow does not take
            with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
                arrays = [
                    pa.array(values, field.type)
                    for values, field in zip(columns, self._schema, strict=True)
                ]
                return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        rows = list(zip(*columns, strict=True))
        return rows_to_batch(rows, self._columns, self._table)
