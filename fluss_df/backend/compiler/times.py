"""Comparisons of times with all of their digits: Polars cuts off those of the finer one first."""

from __future__ import annotations

import datetime as dtm
import re
from collections.abc import Sequence
from typing import Any

import ibis.common.exceptions as com
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import polars as pl

from fluss_df.backend.compiler.literals import FIRST_YEAR, LAST_YEAR, beside, single
from fluss_df.backend.translation import (
    TIME_AS_TEXT,
    UNITS,
    PolarsType,
    nanoseconds,
    rule,
    translate,
)

_DAY_OF_1970 = dtm.date(1970, 1, 1).toordinal()
_compared = translate.dispatch(ops.Equals)
_identical = translate.dispatch(ops.IdenticalTo)
_in_values = translate.dispatch(ops.InValues)
_COMPARISONS: dict[type, str] = {
    ops.Equals: "eq",
    ops.NotEquals: "ne",
    ops.Less: "lt",
    ops.LessEqual: "le",
    ops.Greater: "gt",
    ops.GreaterEqual: "ge",
}

_MIRRORED: dict[type, type] = {
    ops.Equals: ops.Equals,
    ops.NotEquals: ops.NotEquals,
    ops.Less: ops.Greater,
    ops.LessEqual: ops.GreaterEqual,
    ops.Greater: ops.Less,
    ops.GreaterEqual: ops.LessEqual,
}


def _unit(value: ops.Value) -> int:
    """Return which unit a time is in; of a literal, which it needs."""
    if isinstance(value, ops.Literal):
        moment = value.value
        if moment is None:
            return 0
        if getattr(moment, "nanosecond", 0) and FIRST_YEAR <= moment.year <= LAST_YEAR:
            return 2
        return 1 if moment.microsecond % 1000 else 0
    return _kind(value)[0]


def _of_mixed(operation: type[ops.Value]) -> None:
    """Have an operation choose among times in the finest unit of them, all with a zone or none."""
    found = translate.dispatch(operation)

    @rule(operation)
    def of_mixed(op: Any, **kw: Any) -> pl.Expr:
        times = [
            value
            for argument in op.args
            for value in (argument if isinstance(argument, tuple) else (argument,))
            if isinstance(value, ops.Value) and value.dtype.is_timestamp()
        ]
        if not op.dtype.is_timestamp() or len({_kind(value) for value in times}) < 2:
            plain: pl.Expr = found(op, **kw)
            return plain
        finest, zone = _common(times)
        common = dt.Timestamp(timezone=zone, scale=3 * (finest + 1))

        def same(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(same, value))
            is_time = isinstance(value, ops.Value) and value.dtype.is_timestamp()
            return ops.Cast(value, common) if is_time and value.dtype != common else value

        names = zip(op.argnames, op.args, strict=True)
        made: pl.Expr = found(op.copy(**{name: same(value) for name, value in names}), **kw)
        return made.cast(PolarsType.from_ibis(op.dtype))


def _kind(value: ops.Value) -> tuple[int, str | None]:
    kind = PolarsType.from_ibis(value.dtype)
    assert isinstance(kind, pl.Datetime)
    return UNITS.index(kind.time_unit), kind.time_zone


def _common(values: Sequence[ops.Value]) -> tuple[int, str | None]:
    """Return the finest unit of times, and their zone: UTC where some have one and some none."""
    zones = {value.dtype.timezone for value in values}
    return max(map(_unit, values)), zones.pop() if len(zones) == 1 else "UTC"


@rule(ops.SimpleCase)
def simple_case(op: ops.SimpleCase, **kw: Any) -> pl.Expr:
    """Choose by a value that others are compared with, as ``==`` compares them."""
    cases = tuple(ops.Equals(op.base, case) for case in op.cases)
    found: pl.Expr = translate(ops.SearchedCase(cases, op.results, op.default), **kw)
    return found


for _operation in (
    *(ops.IfElse, ops.SearchedCase, ops.SimpleCase),
    *(ops.Coalesce, ops.Greatest, ops.Least, ops.NullIf),
):
    _of_mixed(_operation)


def _null(value: ops.Value, values: Sequence[ops.Value]) -> ops.Value:
    """Return a null without a type as one of a time, where a time is among the values."""
    time = next((v.dtype for v in values if v.dtype.is_timestamp()), None)
    return ops.Literal(None, time) if value.dtype.is_null() and time is not None else value


def _aligned(values: Sequence[ops.Value], kw: dict[str, Any]) -> list[pl.Expr] | None:
    """Return times as Polars compares them right: in the finest unit, or as numbers.

    None where others than times and days are among them, or days alone, and where Polars does it
    right as they are.
    """
    values = [_null(value, values) for value in values]
    times = [value for value in values if value.dtype.is_timestamp()]
    computed = [value for value in values if not isinstance(value, ops.Literal)]
    if not computed or not times or any(not _is_moment(value) for value in values):
        return None
    if max(map(_unit, times)) == 2:
        if any(value.dtype.is_date() or _unit(value) < 2 for value in computed):
            # a year such as 9999 does not fit into the unit
            return [_number(value, kw) for value in values]
        values = [_midnight(value) for value in values]
    elif len(times) < len(values):
        return None
    finest, zone = _common(values)
    made = []
    for value in values:
        kind = pl.Datetime(UNITS[finest], zone)  # type: ignore[arg-type]
        if isinstance(value, ops.Literal) and value.value is not None:
            moment = pl.lit(value.value)
            if value.dtype.timezone != zone:
                moment = moment.cast(pl.Datetime("us", zone))
            if finest == 2 and not FIRST_YEAR <= value.value.year <= LAST_YEAR:
                # far from all that it is compared with, so its nanoseconds do not matter
                made.append(moment)
            else:
                made.append(moment.cast(kind))
        else:
            expression: pl.Expr = translate(value, **kw)
            same = _unit(value) == finest and value.dtype.timezone == zone
            made.append(expression if same else expression.cast(kind))
    return made


def _is_moment(value: ops.Value) -> bool:
    return bool(value.dtype.is_timestamp() or value.dtype.is_date())


def _midnight(value: ops.Value) -> ops.Value:
    """Return a day that is a literal as the time at which it begins."""
    if not value.dtype.is_date():
        return value
    day = value.value
    begin = None if day is None else dtm.datetime(day.year, day.month, day.day)
    return ops.Literal(begin, dt.timestamp)


def _number(value: ops.Value, kw: dict[str, Any]) -> pl.Expr:
    """Return a time or a day as a number of nanoseconds."""
    if not isinstance(value, ops.Literal):
        kind = PolarsType.from_ibis(value.dtype)
        expression: pl.Expr = translate(value, **kw)
        return nanoseconds(expression.cast(kind), kind)
    moment = value.value
    if moment is None:
        return pl.lit(None, pl.Int128)
    if not isinstance(moment, dtm.datetime):
        moment = dtm.datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        moment = moment.astimezone(dtm.UTC)
    seconds = (moment.toordinal() - _DAY_OF_1970) * 86_400
    seconds += moment.hour * 3600 + moment.minute * 60 + moment.second
    # a time of pandas has three digits more
    fraction = moment.microsecond * 1000 + getattr(moment, "nanosecond", 0)
    return pl.lit(seconds * 10**9 + fraction, pl.Int128)


@rule(ops.Comparison)
def compare(op: ops.Comparison, **kw: Any) -> pl.Expr:
    """Compare two values; a literal stands behind what it is compared with.

    In front of a column of texts, bytes or floating-point numbers whose first chunk has one row,
    Polars 2.1 compares it with this row alone.
    """
    mirrored = _MIRRORED.get(type(op))
    if mirrored is not None and isinstance(op.left, ops.Literal):
        op = mirrored(op.right, op.left)
    if type(op) in _COMPARISONS:
        literal = beside(op.right, op.left)
        op = op.copy(left=single(op.left, literal), right=literal)
    sides = _aligned((op.left, op.right), kw) if type(op) in _COMPARISONS else None
    if sides is None:
        found: pl.Expr = _compared(op, **kw)
        return found
    made: pl.Expr = getattr(sides[0], _COMPARISONS[type(op)])(sides[1])
    return made


@rule(ops.IdenticalTo)
def identical(op: ops.IdenticalTo, **kw: Any) -> pl.Expr:
    """Compare two values of which null is one."""
    op = op.copy(left=beside(op.left, op.right), right=beside(op.right, op.left))
    sides = _aligned((op.left, op.right), kw)
    found: pl.Expr = _identical(op, **kw) if sides is None else sides[0].eq_missing(sides[1])
    return found


_cast = translate.dispatch(ops.Cast)
# digits of a second that no unit of Polars has, and the step between two such times
_STEPS_OF_DIGITS = {0: "1s", 1: "100ms", 2: "10ms", 4: "100us", 5: "10us", 7: "100ns", 8: "10ns"}


@rule(ops.Cast)
def cast(op: ops.Cast, **kw: Any) -> pl.Expr:
    """Make a value one of another type; a time loses the digits that its type does not have.

    Polars has units of 3, 6 and 9 digits, and cuts off what is less than one of them. Of a time of
    the day it makes a text without its fraction.
    """
    if op.to.is_string() and op.arg.dtype.is_time():
        written: pl.Expr = translate(op.arg, **kw)
        return written.dt.to_string(TIME_AS_TEXT)
    if op.to.is_date() and _has_other_zone(op.arg):
        return part_of_moment(ops.Date(op.arg), **kw)
    step = _STEPS_OF_DIGITS.get(op.to.scale) if op.to.is_timestamp() else None
    if step is None or op.arg.dtype == op.to:
        plain: pl.Expr = _cast(op, **kw)
        return plain
    unit = next(digits for digits in (3, 6, 9) if digits > op.to.scale)
    whole: pl.Expr = _cast(op.copy(to=op.to.copy(scale=unit)), **kw)
    return whole.cast(PolarsType.from_ibis(op.to)).dt.truncate(step)


_bucket = translate.dispatch(ops.TimestampBucket)
_truncate = translate.dispatch(ops.TimestampTruncate)
_strftime = translate.dispatch(ops.Strftime)


@rule(ops.TimestampTruncate, ops.TimestampBucket)
def truncate(op: ops.TimestampTruncate, **kw: Any) -> pl.Expr:
    """Cut off what is less than a unit; the result has the type that Ibis says, without a zone.

    It is what a clock shows in the zone of the time, as ``hour`` is.
    """
    rule_of = _bucket if isinstance(op, ops.TimestampBucket) else _truncate
    found: pl.Expr = rule_of(op, **kw)
    if op.arg.dtype.timezone is not None:
        found = found.dt.replace_time_zone(None)
    return found.cast(PolarsType.from_ibis(op.dtype))


def _has_other_zone(value: ops.Value) -> bool:
    return value.dtype.is_timestamp() and value.dtype.timezone not in (None, "UTC")


_parts = {kind: translate.dispatch(kind) for kind in (ops.Date, ops.Time)}


@rule(ops.Date, ops.Time)
def part_of_moment(op: ops.Date | ops.Time, **kw: Any) -> pl.Expr:
    """Return the day, or the time of the day, in the zone of a time; Polars takes that in UTC."""
    if not _has_other_zone(op.arg):
        plain: pl.Expr = _parts[type(op)](op, **kw)
        return plain
    value: pl.Expr = translate(op.arg, **kw)
    return value.dt.date() if isinstance(op, ops.Date) else value.dt.time()


# a %f that is not part of %%f: two % mean one
_FRACTION = re.compile(r"((?<!%)(?:%%)*)%f")


@rule(ops.Strftime)
def strftime(op: ops.Strftime, **kw: Any) -> pl.Expr:
    """Write a time; a date is its midnight, and ``%f`` are six digits, as in Python."""
    if op.arg.dtype.is_date():
        op = op.copy(arg=ops.Cast(op.arg, dt.timestamp))
    if isinstance(op.format_str, ops.Literal) and op.format_str.value is not None:
        # Polars' %f writes nanoseconds
        form = _FRACTION.sub(r"\g<1>%6f", op.format_str.value)
        op = op.copy(format_str=ops.Literal(form, dt.string))
    found: pl.Expr = _strftime(op, **kw)
    return found


_to_timestamp = translate.dispatch(ops.StringToTimestamp)
# a %f after a point: Polars reads its digits as a number of nanoseconds, and a fraction by %.f
_PARSED_FRACTION = re.compile(r"((?<!%)(?:%%)*)\.%f")


@rule(ops.StringToTimestamp)
def to_timestamp(op: ops.StringToTimestamp, **kw: Any) -> pl.Expr:
    """Read a time, and the digits behind a point as Python does: ``.5`` is half a second."""
    if isinstance(op.format_str, ops.Literal) and op.format_str.value is not None:
        form = _PARSED_FRACTION.sub(r"\g<1>%.f", op.format_str.value)
        op = op.copy(format_str=ops.Literal(form, dt.string))
    found: pl.Expr = _to_timestamp(op, **kw)
    return found.cast(PolarsType.from_ibis(op.dtype))


_MONTHS = {"year": 12, "quarter": 3, "month": 1}
_STEPS = {"week": "1w", "day": "1d", "hour": "1h", "minute": "1m", "second": "1s"}


@rule(ops.DateDelta, ops.TimestampDelta)
def delta(op: ops.DateDelta, **kw: Any) -> pl.Expr:
    """Count the beginnings of a unit that lie between two times."""
    if not isinstance(op.part, ops.Literal):
        raise com.UnsupportedOperationError("delta takes a literal unit")
    unit = str(op.part.value)
    sides: list[pl.Expr] = [translate(side, **kw) for side in (op.left, op.right)]
    months = _MONTHS.get(unit)
    if months is not None:
        one, other = (
            (side.dt.year().cast(pl.Int64) * 12 + side.dt.month() - 1) // months for side in sides
        )
        return one - other
    if unit not in _STEPS:
        raise com.UnsupportedOperationError(
            f"delta counts no {unit}: take {', '.join([*_MONTHS, *_STEPS])}"
        )
    one, other = (side.cast(pl.Datetime("us")).dt.truncate(_STEPS[unit]) for side in sides)
    apart = one - other
    return apart.dt.total_days() // 7 if unit == "week" else getattr(apart.dt, f"total_{unit}s")()


@rule(ops.InValues)
def in_values(op: ops.InValues, **kw: Any) -> pl.Expr:
    """Say whether a value is one of some."""
    options = tuple(beside(option, op.value) for option in op.options)
    op = op.copy(options=options)
    pairs = [_aligned((op.value, option), kw) for option in op.options]
    if not pairs or None in pairs:
        found: pl.Expr = _in_values(op, **kw)
        return found
    return pl.any_horizontal([pair[0] == pair[1] for pair in pairs if pair is not None])


@rule(ops.Between)
def between(op: ops.Between, **kw: Any) -> pl.Expr:
    """Compare with bounds: texts as values of the argument's type, others as they are."""
    lower, upper = (beside(bound, op.arg) for bound in (op.lower_bound, op.upper_bound))
    op = op.copy(lower_bound=lower, upper_bound=upper)
    low, high = (_aligned((op.arg, bound), kw) for bound in (op.lower_bound, op.upper_bound))
    if low is not None and high is not None:
        return (low[0] >= low[1]) & (high[0] <= high[1])
    kinds = [value.dtype for value in op.args]
    numbers = all(kind.is_numeric() for kind in kinds) and len(set(kinds)) > 1
    mixed = all(map(_is_moment, op.args)) and len({kind.is_date() for kind in kinds}) > 1
    plain = all(isinstance(bound, ops.Literal) for bound in (lower, upper))
    if numbers or (mixed and (kinds[0].is_date() or not plain)):
        # not cast to the argument's type, in which a bound may be rounded, lose its hours, or not
        # fit
        at_least: pl.Expr = translate(ops.GreaterEqual(op.arg, op.lower_bound), **kw)
        at_most: pl.Expr = translate(ops.LessEqual(op.arg, op.upper_bound), **kw)
        return at_least & at_most
    lower, upper = (
        bound if bound.dtype == op.arg.dtype else ops.Cast(bound, op.arg.dtype)
        for bound in (op.lower_bound, op.upper_bound)
    )
    value: pl.Expr = translate(op.arg, **kw)
    return value.is_between(translate(lower, **kw), translate(upper, **kw))
