"""Numbers and dates in SQL that need wider types than Polars gives their results."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.operands.types import asked_type, number_in

_SMALL = (pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())
_NARROW = (pl.Int8(), pl.Int16())
_SINGLE: dict[tuple[pl.DataType, ...], exp.DType] = {(pl.Float32(),): exp.DType.DOUBLE}
# aggregate -> types of its operand -> the wider type for the result
_ROOM: dict[type[exp.Expr], dict[tuple[pl.DataType, ...], exp.DType]] = {
    exp.Sum: {_SMALL: exp.DType.BIGINT},
    exp.Avg: _SINGLE,
    exp.Stddev: _SINGLE,
    exp.StddevSamp: _SINGLE,
    exp.Variance: _SINGLE,
}
_PARTS_OF_DAYS = re.compile(
    r"hour|min|sec|milli|micro|nano|\d\s*(h|m|s|ms|us|ns)\b|:", re.IGNORECASE
)


def make_room(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast operands to types that have room for what is computed of them.

    Polars sums INT in 32 bits, takes the mean of FLOAT in single precision, raises INT to a power
    in 32 bits, adds a number to a TINYINT in its 8 bits, and of a date and an interval of hours
    leaves the date.
    """
    # inner queries first: the types of outer ones follow from them
    for node in list(tree.find_all(*_ROOM, exp.Pow, exp.Add, exp.Sub, exp.Mul))[::-1]:
        if isinstance(node, exp.Pow):
            node.this.replace(exp.cast(exp.paren(node.this.copy()), exp.DType.DOUBLE))
        elif isinstance(node, exp.Binary):
            _make_room_for_hours(node, frames)
            _make_room_for_literal(node, frames)
        else:
            distinct = isinstance(node.this, exp.Distinct) and len(node.this.expressions) == 1
            value = node.this.expressions[0] if distinct else node.this
            found = asked_type(value, frames)
            wide = next((to for kinds, to in _ROOM[type(node)].items() if found in kinds), None)
            if wide is not None:
                value.replace(exp.cast(value.copy(), wide))


def _make_room_for_hours(node: exp.Binary, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast a date to a time where an interval with parts of a day is added or subtracted."""
    for side, other in ((node.this, node.expression), (node.expression, node.this)):
        interval = other.unnest()
        if not isinstance(interval, exp.Interval) or not _PARTS_OF_DAYS.search(interval.sql()):
            continue
        if asked_type(side, frames) == pl.Date():
            side.replace(exp.cast(exp.paren(side.copy()), exp.DType.TIMESTAMP))
            return


def _make_room_for_literal(node: exp.Binary, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast an operand of a narrower type to INT where the other one is a whole number, an INT."""
    for side, other in ((node.this, node.expression), (node.expression, node.this)):
        literal, value = number_in(other), side.unnest()
        if isinstance(value, exp.Neg):
            value = value.this.unnest()
        if literal is None or not literal.is_int:
            continue
        if not isinstance(value, exp.Literal) and asked_type(value, frames) in _NARROW:
            value.replace(exp.cast(exp.paren(value.copy()), exp.DType.INT))
            return
