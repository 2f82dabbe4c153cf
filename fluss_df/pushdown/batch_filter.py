"""Filters as servers judge log batches by: whether the statistics of a batch rule out every row.

The other side of :mod:`~fluss_df.pushdown.server_filter`, to the letter as servers of 1.0 do it: a
batch that cannot be judged is kept, whatever the reason.
"""

from __future__ import annotations

import bisect
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fluss_df.errors import FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.log.statistics import BatchStatistics, read_statistics, sortable_float
from fluss_df.schema import Schema
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot
_EQ, _NE, _LT, _LE, _GT, _GE, _IS_NULL, _IS_NOT_NULL = range(8)
_STARTS_WITH, _CONTAINS, _ENDS_WITH, _IN, _NOT_IN = range(8, 13)
_LEAF, _COMPOUND = 0, 1
_AND, _OR = 0, 1
_STRINGS: Final = (_R.CHAR, _R.STRING)
_BYTES: Final = (_R.BINARY, _R.BYTES)
# code of a type in literals -> the type
_ROOTS: Final = (
    _R.BOOLEAN,
    _R.TINYINT,
    _R.SMALLINT,
    _R.INTEGER,
    _R.BIGINT,
    _R.FLOAT,
    _R.DOUBLE,
    _R.CHAR,
    _R.STRING,
    _R.DECIMAL,
    _R.DATE,
    _R.TIME_WITHOUT_TIME_ZONE,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE,
    *_BYTES,
)
_FIELDS: Final = {
    _R.BOOLEAN: "boolean_value",
    _R.TINYINT: "int_value",
    _R.SMALLINT: "int_value",
    _R.INTEGER: "int_value",
    _R.BIGINT: "bigint_value",
    _R.DATE: "bigint_value",
    _R.TIME_WITHOUT_TIME_ZONE: "int_value",
}
# what is raised where the statistics of a batch are missing or malformed
_NOT_JUDGED: Final = (LookupError, TypeError, ValueError, struct.error)


class BatchFilter:
    """A filter of a fetch request, ready to judge batches.

    The predicate is as it was sent, and speaks of the schema ``schema_id``. ``schemas`` are all
    schemas of the table.

    Raises FlussError for a filter that makes no sense: servers read without it then.
    """

    def __init__(
        self, predicate: pb.Predicate, schema_id: int, schemas: Mapping[int, Schema]
    ) -> None:
        if schema_id not in schemas:
            raise FlussError(f"a filter on schema {schema_id}, which the table has not")
        self._schemas = schemas
        try:
            self._test = _read(predicate, schemas[schema_id].columns)
        except _NOT_JUDGED as error:
            raise FlussError(f"a filter that cannot be read: {error}") from None
        # the columns of each schema, and where those of the filter stand among them
        self._positions: dict[int, tuple[Sequence[Column], dict[int, int]]] = {}

    def keeps(self, schema_id: int, rows: int, statistics: memoryview) -> bool:
        """Whether a batch may have rows that pass."""
        if not len(statistics):
            return True
        found = self._positions.get(schema_id)
        if found is None:
            schema = self._schemas.get(schema_id)
            columns: Sequence[Column] = schema.columns if schema is not None else ()
            ids = {c.column_id: i for i, c in enumerate(columns) if c.column_id is not None}
            found = self._positions[schema_id] = columns, ids
        known, positions = found
        if not self._test.fields <= positions.keys():
            return True
        try:
            return self._test.passes(_Batch(rows, read_statistics(statistics, known), positions))
        except _NOT_JUDGED:
            return True


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: int
    statistics: BatchStatistics
    positions: Mapping[int, int]


class _Test(ABC):
    """Part of a filter; ``fields`` are the ids of the columns that it looks at."""

    fields: frozenset[int]

    @abstractmethod
    def passes(self, batch: _Batch) -> bool:
        """Whether rows may pass; raises what is among ``_NOT_JUDGED`` where that is not known."""


@dataclass(frozen=True, slots=True)
class _Compound(_Test):
    function: int
    children: Sequence[_Test]
    fields: frozenset[int]

    def passes(self, batch: _Batch) -> bool:
        # one after the other: a later test may raise where an earlier one has decided already
        if self.function == _AND:
            return all(child.passes(batch) for child in self.children)
        return any(child.passes(batch) for child in self.children)


@dataclass(frozen=True, slots=True)
class _Leaf(_Test):
    function: int
    type: DataType
    field_id: int
    literals: Sequence[Any]
    fields: frozenset[int]
    ordered: Sequence[Any] = field(default=())

    def passes(self, batch: _Batch) -> bool:
        position = batch.positions[self.field_id]
        nulls, low, high = batch.statistics.of(position, self.type)
        all_null = batch.rows == nulls
        if (nulls < 0 or not all_null) and (low is None or high is None):
            return True
        function = self.function
        if function == _IS_NULL:
            return nulls != 0
        if function == _IS_NOT_NULL:
            return nulls < batch.rows
        if all_null:
            return False
        if function == _IN:
            first = bisect.bisect_left(self.ordered, low)
            return first < len(self.ordered) and self.ordered[first] <= high
        if function == _NOT_IN:
            return None not in self.literals and not (low == high and low in self.literals)
        literal = self.literals[0]
        if literal is None:
            if nulls < 0:
                raise TypeError("a comparison with nothing")
            return False
        return self._compare(literal, low, high)

    def _compare(self, literal: Any, low: Any, high: Any) -> bool:
        function = self.function
        if function == _EQ:
            return bool(low <= literal <= high)
        if function == _NE:
            return bool(low != literal or high != literal)
        if function == _LT:
            return bool(low < literal)
        if function == _LE:
            return bool(low <= literal)
        if function == _GT:
            return bool(literal < high)
        if function == _GE:
            return bool(literal <= high)
        if function != _STARTS_WITH:
            return True
        if self.type.root not in _STRINGS:
            raise TypeError("the beginning of what is no text")
        pattern, smallest, largest = (_utf16(text) for text in (literal, low, high))
        return (smallest.startswith(pattern) or smallest <= pattern) and (
            largest.startswith(pattern) or largest >= pattern
        )


def _utf16(text: bytes) -> bytes:
    """Return text in the order of Java's strings, which is another one than that of bytes."""
    return text.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")


def _read(predicate: pb.Predicate, columns: Sequence[Column]) -> _Test:
    if predicate.type == _COMPOUND:
        compound = predicate.compound
        if compound.function not in (_AND, _OR):
            raise ValueError(f"function {compound.function}")
        children = [_read(child, columns) for child in compound.children]
        fields = frozenset[int]().union(*(child.fields for child in children))
        return _Compound(compound.function, children, fields)
    if predicate.type != _LEAF:
        raise ValueError(f"predicate {predicate.type}")
    leaf = predicate.leaf
    if not _EQ <= leaf.function <= _NOT_IN:
        raise ValueError(f"function {leaf.function}")
    column = {c.column_id: c for c in columns}[leaf.field_id]
    literals = [_literal(value, column.type) for value in leaf.literals]
    ordered = sorted(value for value in literals if value is not None)
    fields = frozenset((leaf.field_id,))
    return _Leaf(leaf.function, column.type, leaf.field_id, literals, fields, ordered)


def _literal(value: pb.LiteralValue, t: DataType) -> Any:
    """Return a literal as something that compares as servers do; None for null."""
    if value.is_null:
        return None
    if value.literal_type < 0:
        raise ValueError(f"type {value.literal_type}")
    root = _ROOTS[value.literal_type]
    if root is not t.root and not any(root in k and t.root in k for k in (_STRINGS, _BYTES)):
        raise ValueError(f"a literal of type {root.name} for a column of type {t}")
    if root in _FIELDS:
        return int(getattr(value, _FIELDS[root]))
    if root is _R.FLOAT:
        return sortable_float(value.float_value)
    if root is _R.DOUBLE:
        return sortable_float(value.double_value)
    if root in _STRINGS:
        return value.string_value.encode()
    if root is _R.DECIMAL:
        if value.HasField("decimal_bytes"):
            return int.from_bytes(value.decimal_bytes, "big", signed=True)
        return value.decimal_value
    if root in _BYTES:
        return value.binary_value
    return value.timestamp_millis_value, value.timestamp_nano_of_millis_value
