"""Numbers and dates in SQL that need wider types than Polars gives their results."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.operands.types import asked_type, number_in

_SMALL = (pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())
# the most bits that a whole number of a type has beside its sign; others are left to Polars
_BITS: dict[pl.DataType, int] = {
    pl.Int8(): 7,
    pl.Int16(): 15,
    pl.Int32(): 31,
    pl.Int64(): 63,
    pl.UInt8(): 8,
    pl.UInt16(): 16,
    pl.UInt32(): 32,
}
_BITS_OF_CASTS = {exp.DType.TINYINT: 7, exp.DType.SMALLINT: 15, exp.DType.INT: 31}
_BITS_OF_BIGINT = 63
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
_REACHING = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs)
_BEYOND = re.compile(r"conversion from `i128` to `i64` failed in column .*?: \[(-?\d+)")


def make_room(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast operands to types that have room for what is computed of them.

    Polars sums INT in 32 bits, takes the mean of FLOAT in single precision, raises INT to a power
    in 32 bits, and of a date and an interval of hours leaves the date. What it computes of whole
    numbers has their type, and wraps around: it is a BIGINT here, or an error.
    """
    # by the id of a node; the list keeps all of them alive, so that no other node gets the id
    bits: dict[int, int | None] = {}
    nodes = list(tree.find_all(*_ROOM, *_REACHING, exp.Pow))
    # inner queries first: the types of outer ones follow from them
    for node in reversed(nodes):
        if isinstance(node, exp.Pow):
            node.this.replace(exp.cast(exp.paren(node.this.copy()), exp.DType.DOUBLE))
        elif isinstance(node, _REACHING):
            if isinstance(node, exp.Binary):
                _make_room_for_hours(node, frames)
            _make_room_for_integers(node, frames, bits)
        else:
            distinct = isinstance(node.this, exp.Distinct) and len(node.this.expressions) == 1
            value = node.this.expressions[0] if distinct else node.this
            found = asked_type(value, frames)
            wide = next((to for kinds, to in _ROOM[type(node)].items() if found in kinds), None)
            if wide is not None:
                value.replace(exp.cast(value.copy(), wide))
            elif isinstance(node, exp.Sum) and found == pl.Int64():
                _sum_exactly(node, value)


def told_beyond(reason: str) -> str:
    """Return what an error of Polars says, so that a number beyond BIGINT is told as one."""
    found = _BEYOND.search(reason)
    if found is None:
        return reason
    return f"{found[1]} is beyond BIGINT: CAST an operand to DOUBLE or to DECIMAL(38, 0)"


def _make_room_for_hours(node: exp.Binary, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast a date to a time where an interval with parts of a day is added or subtracted."""
    for side, other in ((node.this, node.expression), (node.expression, node.this)):
        interval = other.unnest()
        if not isinstance(interval, exp.Interval) or not _PARTS_OF_DAYS.search(interval.sql()):
            continue
        if asked_type(side, frames) == pl.Date():
            side.replace(exp.cast(exp.paren(side.copy()), exp.DType.TIMESTAMP))
            return


def _make_room_for_integers(
    node: exp.Expr, frames: Mapping[str, pl.LazyFrame], bits: dict[int, int | None]
) -> None:
    """Have whole numbers added, subtracted, multiplied or negated as BIGINT.

    ``bits`` has how many bits the result of a node may have. Where that is more than BIGINT has,
    128 bits are computed, and a number that BIGINT cannot hold is an error.
    """
    sides = [node.this] if isinstance(node, (exp.Neg, exp.Abs)) else [node.this, node.expression]
    needed = [_bits_of(side, frames, bits) for side in sides]
    known = [each for each in needed if each is not None]
    constant = all(number_in(side) is not None for side in sides)
    if len(known) < len(sides) or constant:
        bits[id(node)] = None
        return
    # the least number of a type has one bit more than the others
    reached = sum(known) + 1 if isinstance(node, exp.Mul) else max(known) + 1
    bits[id(node)] = min(reached, _BITS_OF_BIGINT)
    if reached <= _BITS_OF_BIGINT:
        node.this.replace(exp.cast(exp.paren(node.this.copy()), exp.DType.BIGINT))
        return
    node.this.replace(exp.cast(exp.paren(node.this.copy()), exp.DType.INT128))
    _as_bigint(node)


def _bits_of(
    value: exp.Expr, frames: Mapping[str, pl.LazyFrame], bits: dict[int, int | None]
) -> int | None:
    """Return how many bits a whole number may have; None for what is none, or not known."""
    inner = value.unnest()
    literal = number_in(inner)
    if literal is not None:
        return int(literal.name).bit_length() if literal.is_int else None
    if id(inner) in bits:
        return bits[id(inner)]
    if isinstance(inner, exp.Cast) and inner.to.this in _BITS_OF_CASTS:
        return _BITS_OF_CASTS[inner.to.this]
    # a subquery keeps its parentheses
    kind = asked_type(value if isinstance(inner, exp.Query) else inner, frames)
    return None if kind is None else _BITS.get(kind)


def _sum_exactly(node: exp.Sum, value: exp.Expr) -> None:
    """Sum BIGINT in 128 bits, where that is no window: sums of rows before are left to Polars."""
    whole: exp.Expr = node
    while isinstance(whole.parent, (exp.Filter, exp.Window)) and whole.parent.this is whole:
        whole = whole.parent
    if not isinstance(whole, exp.Window):
        value.replace(exp.cast(exp.paren(value.copy()), exp.DType.INT128))
        _as_bigint(whole)


def _as_bigint(node: exp.Expr) -> None:
    cast = exp.Cast(to=exp.DataType.build("BIGINT"))
    node.replace(cast)
    cast.set("this", node)
