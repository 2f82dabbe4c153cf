"""Whether a Python row fits its table, told at the moment it is appended.

Rows become Arrow by the thousand, long after ``append`` returned: a row that does not fit must be
refused before, alone, by its own caller. So each table gets a function of its own, compiled from
its columns, that lets a plain row of plain values pass in a fraction of a microsecond; whatever
it does not know is converted on the spot, which raises the error that names column and value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.rows import RowChecker, rows_to_batch
from fluss_df.types import Column, DataType, TypeRoot

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


def _compile(columns: Sequence[Column], keys: Sequence[object]) -> Callable[[Any], bool]:
    """Return a function that tells whether a row, indexed by ``keys``, surely fits."""
    conditions = [f"len(row) == {len(columns)}"]
    lines = []
    for i, column in enumerate(columns):
        lines.append(f"        v{i} = row[{keys[i]!r}]")
        condition = _condition(column.type, f"v{i}") or f"tries[{i}](v{i})"
        if column.type.nullable:
            condition = f"{condition} or v{i} is None"
        conditions.append(f"({condition})")
    source = "\n".join(
        [
            "def fits(row):",
            "    try:",
            *(lines or ["        pass"]),
            "    except (KeyError, IndexError, TypeError):",
            "        return False",
            f"    return {' and '.join(conditions)}",
        ]
    )
    tries = [_tried(column) for column in columns]
    namespace: dict[str, Any] = {"encodes": _encodes, "tries": tries}
    exec(source, namespace)
    compiled: Callable[[Any], bool] = namespace["fits"]
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


class RowGuard:
    """Refuses rows that do not fit; called with each row that is appended.

    Parameters
    ----------
    columns
        The columns of the table.
    table
        Its name, for errors.

    Attributes
    ----------
    dict_fits
        Whether a dict surely fits: False says nothing, the guard itself then does.

    Examples
    --------
    >>> check = RowGuard([Column("id", DataType(TypeRoot.BIGINT))], "db.t")
    >>> check({"id": 1})
    """

    def __init__(self, columns: Sequence[Column], table: str) -> None:
        self._columns = columns
        self._table = table
        self._check_form = RowChecker(columns, table)
        self.dict_fits = _compile(columns, [column.name for column in columns])
        self._sequence_fits = _compile(columns, range(len(columns)))

    def __call__(self, row: Row) -> None:
        """Raise a SchemaMismatchError that names column and value, unless the row fits."""
        kind = type(row)
        if kind is dict:
            if self.dict_fits(row):
                return
        elif (kind is tuple or kind is list) and self._sequence_fits(row):
            return
        self._check_form(row)
        rows_to_batch([row], self._columns, self._table)
