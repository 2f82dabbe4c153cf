"""Filters that Spark offers a scan, as predicates: every contact with them is here."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from fluss_df.pushdown.evaluate import at_microseconds, bind, exactly
from fluss_df.pushdown.predicate import (
    IsNotNull,
    IsNull,
    Op,
    Predicate,
    TextMatch,
    TextOp,
    UnsupportedExpression,
    and_,
    compare,
    in_,
)

_OPS: dict[type[spark.Filter], Op] = {
    spark.EqualTo: Op.EQ,
    spark.GreaterThan: Op.GT,
    spark.GreaterThanOrEqual: Op.GE,
    spark.LessThan: Op.LT,
    spark.LessThanOrEqual: Op.LE,
}
_TEXTS: dict[type[spark.Filter], TextOp] = {
    spark.StringStartsWith: TextOp.STARTS_WITH,
    spark.StringEndsWith: TextOp.ENDS_WITH,
    spark.StringContains: TextOp.CONTAINS,
}
# days that the old calendar does not have become others: dates in this range are not trusted
_MOVED = (dt.date(1582, 10, 3), dt.date(1582, 10, 27))
_KNOWN_ZONES = dt.date(1900, 1, 3)


def from_spark(
    filters: Iterable[spark.Filter], schema: pa.Schema, *, truncated: bool = False
) -> tuple[Predicate, ...]:
    """Return the predicates of the filters that have one; Spark evaluates all of them again.

    All filters hold for every row of the result. ``truncated`` says that Spark is given times
    without the digits beyond microseconds.
    """
    found = []
    for item in filters:
        try:
            predicate = bind(_convert(item, schema), schema)
            found.append(at_microseconds(predicate, schema) if truncated else predicate)
        except UnsupportedExpression:
            continue
    return tuple(found)


_VALUE = ("attribute", "value")
# for each filter the fields that are read here: with any other field, Spark evaluates it
READ: dict[type[spark.Filter], tuple[str, ...]] = {
    **dict.fromkeys((*_OPS, *_TEXTS), _VALUE),
    spark.EqualNullSafe: _VALUE,
    spark.In: _VALUE,
    spark.IsNull: ("attribute",),
    spark.IsNotNull: ("attribute",),
    spark.Not: ("child",),
}


def _require_read(item: spark.Filter) -> None:
    names = {field.name for field in dataclasses.fields(item)}
    if names != set(READ.get(type(item), ())):
        raise UnsupportedExpression(f"{type(item).__name__} is not understood")


def _convert(item: spark.Filter, schema: pa.Schema) -> Predicate:
    _require_read(item)
    if isinstance(item, spark.Not):
        return ~_convert(item.child, schema)
    column = _column(item, schema)
    if isinstance(item, spark.IsNull):
        return IsNull(column)
    if isinstance(item, spark.IsNotNull):
        return IsNotNull(column)
    op = _OPS.get(type(item))
    if op is not None:
        return compare(column, op, _literal(item.value, schema.field(column).type))  # type: ignore[attr-defined]
    if isinstance(item, spark.EqualNullSafe):
        if item.value is None:
            return IsNull(column)
        value = _literal(item.value, schema.field(column).type)
        return and_((IsNotNull(column), compare(column, Op.EQ, value)))
    if isinstance(item, spark.In):
        kind = schema.field(column).type
        values = [_literal(value, kind) for value in item.value]
        if any(not value.is_valid for value in values):
            raise UnsupportedExpression("a null among the values of IN")
        return in_(column, exactly(column, values, schema))
    text = _TEXTS.get(type(item))
    if text is not None and pa.types.is_string(schema.field(column).type):
        return TextMatch(column, text, item.value)  # type: ignore[attr-defined]
    raise UnsupportedExpression(f"{type(item).__name__} is not understood")


def _column(item: Any, schema: pa.Schema) -> str:
    path = item.attribute
    # a path of several names is a field of a ROW, not a column
    if len(path) != 1 or path[0] not in schema.names:
        raise UnsupportedExpression(f"{path} is no column")
    name: str = path[0]
    return name


def _require_unmoved(value: dt.date) -> None:
    """Refuse days and moments that Spark may have moved on their way.

    Unless ``spark.sql.datetime.java8API.enabled``, Spark hands them on in Java's old calendar. It
    has no days from 5 to 14 October 1582, which become later ones, and its time zones know nothing
    of the years before 1900.
    """
    day = dt.date(value.year, value.month, value.day)
    instant = isinstance(value, dt.datetime) and value.tzinfo is not None
    if _MOVED[0] <= day <= _MOVED[1] or (instant and day < _KNOWN_ZONES):
        raise UnsupportedExpression(f"{value} may be another day or moment in Spark")


def _literal(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, dt.date):
        _require_unmoved(value)
    if isinstance(value, dt.datetime):
        # an instant must have a time zone, and a time without one must not
        if (value.tzinfo is None) != (kind.tz is None if pa.types.is_timestamp(kind) else True):
            raise UnsupportedExpression("a time without a zone")
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
    try:
        return pa.scalar(value)
    except (pa.ArrowException, OverflowError) as error:
        raise UnsupportedExpression(f"{value!r} is no literal: {error}") from None
