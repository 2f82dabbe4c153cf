"""Whether a data file of a Paimon table may have rows for which a predicate is true."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from fluss_df.lake.paimon.binary_rows import BYTES, TEXTS, TIMES, value_at
from fluss_df.lake.paimon.manifests import PaimonFile
from fluss_df.lake.paimon.types import FieldType, LakeSchema
from fluss_df.pushdown.predicate import (
    And,
    Comparison,
    Constant,
    In,
    IsNotNull,
    IsNull,
    Not,
    Op,
    Or,
    Predicate,
    PredicateVisitor,
    TextMatch,
    TextOp,
)

_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_SAME: Final = TEXTS | BYTES | {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT"}
_JUDGED: Final = _SAME | TIMES | {"DECIMAL", "DATE", "TIME"}


class _Unknown(Exception):  # noqa: N818 - says that all is possible
    """The statistics do not say."""


class MayHave(PredicateVisitor[bool]):
    """Judges one file; negations must have been moved to the leaves."""

    def __init__(self, file: PaimonFile, written: LakeSchema, schema: LakeSchema) -> None:
        self._file = file
        self._written = written
        self._schema = schema

    def visit(self, predicate: Predicate) -> bool:
        """Judge a part of the predicate; what cannot be told may be."""
        try:
            return super().visit(predicate)
        except (_Unknown, ValueError, TypeError):
            return True

    def comparison(self, node: Comparison) -> bool:  # noqa: D102
        low, high, kind = self._bounds(node.column)
        value = _comparable(node.literal, kind)
        if node.op is Op.EQ:
            return bool(low <= value <= high)
        if node.op is Op.NE:
            return not low == value == high
        if node.op in (Op.LT, Op.LE):
            return bool(low < value or (node.op is Op.LE and low == value))
        return bool(high > value or (node.op is Op.GE and high == value))

    def in_(self, node: In) -> bool:  # noqa: D102
        low, high, kind = self._bounds(node.column)
        return any(low <= _comparable(value, kind) <= high for value in node.values)

    def is_null(self, node: IsNull) -> bool:  # noqa: D102
        return self._nulls(node.column) != 0

    def is_not_null(self, node: IsNotNull) -> bool:  # noqa: D102
        return self._nulls(node.column) != self._file.rows

    def text_match(self, node: TextMatch) -> bool:  # noqa: D102
        if node.op is not TextOp.STARTS_WITH:
            return True
        low, high, _ = self._bounds(node.column)
        return bool(low[: len(node.text)] <= node.text <= high)

    def constant(self, node: Constant) -> bool:  # noqa: D102
        return node.value is True

    def and_(self, node: And) -> bool:  # noqa: D102
        return all(map(self.visit, node.operands))

    def or_(self, node: Or) -> bool:  # noqa: D102
        return any(map(self.visit, node.operands))

    def not_(self, node: Not) -> bool:  # noqa: D102
        return True

    def _place(self, column: str) -> tuple[int, FieldType]:
        """Return where the statistics of a column stand, and its type."""
        wanted = self._schema.position(column)
        if wanted is None:
            raise _Unknown
        number = self._schema.fields[wanted].id
        of = self._file.stats_columns
        for position, field in enumerate(self._written.fields):
            if field.id == number and of is None:
                return position, field.type
            if field.id == number and of is not None and field.name in of:
                return of.index(field.name), field.type
        raise _Unknown

    def _nulls(self, column: str) -> int:
        position, _ = self._place(column)
        nulls = self._file.nulls
        found = nulls[position] if position < len(nulls) else None
        if found is None:
            raise _Unknown
        return found

    def _bounds(self, column: str) -> tuple[Any, Any, FieldType]:
        position, kind = self._place(column)
        if kind.root not in _JUDGED:
            raise _Unknown
        low = value_at(self._file.least, position, kind)
        high = value_at(self._file.greatest, position, kind)
        if low is None or high is None:
            raise _Unknown
        return low, high, kind


def _comparable(literal: pa.Scalar, kind: FieldType) -> Any:
    """Return a literal as statistics have values of a type."""
    given = literal.type
    if kind.root in TIMES and pa.types.is_timestamp(given):
        return literal.value * _NANOSECONDS[given.unit]
    if kind.root == "TIME" and pa.types.is_time(given):
        nanoseconds = literal.value * _NANOSECONDS[given.unit]
        if nanoseconds % _NANOSECONDS["ms"]:
            raise _Unknown
        return nanoseconds // _NANOSECONDS["ms"]
    if kind.root == "DATE" and pa.types.is_date32(given):
        return literal.value
    if kind.root in _SAME or (kind.root == "DECIMAL" and pa.types.is_decimal(given)):
        return literal.as_py()
    raise _Unknown
