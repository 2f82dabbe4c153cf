"""What SQL makes of times: seconds since 1970, and texts of times of the day.

Polars counts nanoseconds for ``EXTRACT(EPOCH FROM t)``, which 64 bits do not hold before 1678 and
after 2261, and leaves the fraction of a second out of ``CAST('12:00:00.5' AS TIME)`` as a text.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.operands.types import asked_type
from fluss_df.backend.translation import TIME_AS_TEXT, UNITS

_JOINED = (exp.DPipe, exp.Concat, exp.ConcatWs)


def write_times(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Have seconds since 1970, and texts of times of the day, computed right; in place."""
    # those inside others first: what is replaced takes along what it holds
    for part in list(tree.find_all(exp.Extract))[::-1]:
        if part.name.lower() == "epoch":
            _count_seconds(part, frames)
    if not _has_times_of_day(tree, frames):
        return
    for node in list(tree.find_all(exp.Cast, exp.GroupConcat, *_JOINED))[::-1]:
        if isinstance(node, exp.Cast):
            values = [node.this] if node.to.this in exp.DataType.TEXT_TYPES else []
        elif isinstance(node, exp.GroupConcat):
            values = [node.this]
        elif isinstance(node, exp.DPipe):
            values = [node.this, node.expression]
        else:
            values = list(node.expressions)
        for value in values:
            inner = value.unnest()
            if isinstance(inner, (exp.Literal, exp.Null, *_JOINED)):
                continue
            if asked_type(inner, frames) == pl.Time:
                form = exp.Literal.string(TIME_AS_TEXT)
                value.replace(exp.Anonymous(this="STRFTIME", expressions=[inner.copy(), form]))


def _count_seconds(part: exp.Extract, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Count from the number that a time is in its own unit: a DOUBLE, as Polars has it."""
    value = part.expression
    kind = asked_type(value.unnest(), frames)
    whole = exp.cast(exp.paren(value.copy()), exp.DType.BIGINT)
    number = exp.cast(whole, exp.DType.DOUBLE)
    made: exp.Expr
    if isinstance(kind, pl.Datetime):
        steps = 1000 ** (UNITS.index(kind.time_unit) + 1)
        # both are DOUBLE, so nothing is cut off
        steps_of_second = exp.cast(exp.Literal.number(steps), exp.DType.DOUBLE)
        made = exp.Div(this=number, expression=steps_of_second, typed=True, safe=False)
    elif kind == pl.Date:
        made = exp.Mul(this=number, expression=exp.Literal.number(86_400))
    else:
        return
    part.replace(exp.paren(made, copy=False))


def _has_times_of_day(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> bool:
    if any(cast.to.this == exp.DType.TIME for cast in tree.find_all(exp.Cast)):
        return True
    return any(pl.Time in frame.collect_schema().dtypes() for frame in frames.values())
