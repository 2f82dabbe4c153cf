"""The range of numbers outside of which a predicate cannot be true."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

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
)

#: The largest offset there can be; a range to it has no upper end.
MAX_VALUE = 2**63 - 1
_MIN_VALUE = -(2**63)


@dataclass(frozen=True, slots=True)
class Window:
    """Whole numbers from ``low`` up to, not including, ``high``.

    ``exact`` says that the predicate is true for each of them, and speaks of nothing else.
    """

    low: int = _MIN_VALUE
    high: int = MAX_VALUE
    exact: bool = False

    def __and__(self, other: Window) -> Window:
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Window(low, high, self.exact and other.exact)

    def __or__(self, other: Window) -> Window:
        return Window(min(self.low, other.low), max(self.high, other.high))

    def __str__(self) -> str:
        low = "" if self.low == _MIN_VALUE else str(self.low)
        high = "" if self.high == MAX_VALUE else str(self.high)
        return f"[{low}:{high}]"


ANY = Window()


def window_of(predicate: Predicate, column: str) -> Window:
    """Return the window of a column that is never null, of integers or of UTC timestamps in ms.

    Examples
    --------
    >>> from fluss_df.pushdown.column import col
    >>> window_of(col("_log_offset").between(5, 9), "_log_offset")
    Window(low=5, high=10, exact=True)
    """
    return _Windows(column).visit(predicate)


class _Windows(PredicateVisitor[Window]):
    def __init__(self, column: str) -> None:
        self._column = column

    def comparison(self, node: Comparison) -> Window:
        if node.column != self._column:
            return ANY
        floor, whole = _floor(node.literal)
        above = floor + 1
        at_least = floor if whole else above
        if node.op is Op.EQ:
            return Window(floor, above, True) if whole else Window(0, 0, True)
        found = {
            Op.LT: Window(high=at_least, exact=True),
            Op.LE: Window(high=above, exact=True),
            Op.GT: Window(low=above, exact=True),
            Op.GE: Window(low=at_least, exact=True),
        }
        return found.get(node.op, ANY)

    def in_(self, node: In) -> Window:
        if node.column != self._column:
            return ANY
        floors = [_floor(value)[0] for value in node.values]
        return Window(min(floors), max(floors) + 1) if floors else Window(0, 0, True)

    def is_null(self, node: IsNull) -> Window:
        return Window(0, 0) if node.column == self._column else ANY

    def is_not_null(self, node: IsNotNull) -> Window:
        return Window(exact=True) if node.column == self._column else ANY

    def text_match(self, node: TextMatch) -> Window:
        return ANY

    def constant(self, node: Constant) -> Window:
        return Window(exact=True) if node.value else Window(0, 0)

    def and_(self, node: And) -> Window:
        found = Window(exact=True)
        for operand in node.operands:
            found &= self.visit(operand)
        return found

    def or_(self, node: Or) -> Window:
        found = self.visit(node.operands[0])
        for operand in node.operands[1:]:
            found |= self.visit(operand)
        return found

    def not_(self, node: Not) -> Window:
        return ANY


def _floor(value: pa.Scalar) -> tuple[int, bool]:
    """Return a literal as a whole number, rounded down, and whether it is one."""
    if not pa.types.is_timestamp(value.type):
        return int(value.as_py()), True
    per_ms = {"s": 0, "ms": 1, "us": 1000, "ns": 1_000_000}[value.type.unit]
    raw = value.cast(pa.int64()).as_py()
    if not per_ms:
        return raw * 1000, True
    return raw // per_ms, raw % per_ms == 0
