"""Translations that Ibis's Polars backend lacks, or that fail with Polars 2.

Window functions have a module of their own, :mod:`fluss_df.backend.compiler.windows`.
"""

from __future__ import annotations

import re
from typing import Any

import ibis.common.exceptions as com
import ibis.expr.operations as ops
import polars as pl
from ibis.backends.polars.rewrites import PandasJoin
from ibis.util import gen_name

from fluss_df.backend.compiler.patterns import like_parts, regex_of
from fluss_df.backend.key_lookups import (
    JoinSide,
    common_type,
    joined_alike,
    joined_sides,
    keyed_leaf,
)
from fluss_df.backend.results import DIGITS
from fluss_df.backend.translation import PolarsType, in_type_of_ibis, rule, translate
from fluss_df.io.base.names import all_exact, exact

_MONTHS = {"Y": 12, "Q": 3, "M": 1}


@rule(PandasJoin)
def join(op: PandasJoin, **kw: Any) -> pl.LazyFrame:
    """Join, with conditions on one side too."""
    if op.how in ("positional", "cross"):
        left: pl.LazyFrame = translate(op.left, **kw)
        right: pl.LazyFrame = translate(op.right, **kw)
        if op.how == "cross":
            return left.join(right, how="cross")
        return pl.concat([left, right], how="horizontal")
    pairs = []
    for one, other in zip(op.left_on, op.right_on, strict=True):
        fields = one.find(ops.Field, filter=ops.Value)
        # Ibis takes a condition on one side for one on the left side
        swapped = fields and all(f.rel == op.right for f in fields)
        pairs.append((other, one) if swapped else (one, other))
    names = [gen_name("on") for _ in pairs]
    of_left, of_right = (
        [translate(side, **kw).alias(name) for side, name in zip(values, names, strict=True)]
        for values in zip(*pairs, strict=True)
    )
    found = keyed_leaf(op.left, [one for one, _ in pairs]) if op.how == "semi" else None
    if found is not None:
        keys = translate(op.right, **kw).select(of_right)
        joined: pl.LazyFrame = translate(op.left, **found.joined(keys, kw))
        return joined
    left, right = joined_sides(
        JoinSide(op.left, [one for one, _ in pairs], of_left),
        JoinSide(op.right, [other for _, other in pairs], of_right),
        op.how,
        kw,
    )
    pairs_of_kinds = zip(
        left.select(of_left).collect_schema().dtypes(),
        right.select(of_right).collect_schema().dtypes(),
        strict=True,
    )
    for at, (one, other) in enumerate(pairs_of_kinds):
        of_left[at] = joined_alike(of_left[at], one, other)
        of_right[at] = joined_alike(of_right[at], other, one)
    left, right = left.with_columns(of_left), right.with_columns(of_right)
    how = {"outer": "full", "right": "left"}.get(op.how, op.how)
    if op.how == "right":
        left, right = right, left
    joined = left.join(right, on=names, how=how, coalesce=False, maintain_order="left")
    return joined.drop(names)


# in Polars' Int8, month * 100 wraps
in_type_of_ibis(ops.ExtractTemporalField)
in_type_of_ibis(ops.DayOfWeekIndex)


def _nulls(value: pl.Expr, kind: type[pl.DataType]) -> pl.Expr:
    """Return as many nulls as there are values: a literal would be one row beside no column."""
    return pl.when(value.is_null()).then(pl.lit(None, kind))


@rule(ops.StringSQLLike, ops.StringSQLILike)
def like(op: ops.StringSQLLike, **kw: Any) -> pl.Expr:
    """Match a pattern of SQL; what begins, ends or contains a text is asked for as that."""
    value: pl.Expr = translate(op.arg, **kw)
    pattern = op.pattern
    if not isinstance(pattern, ops.Literal):
        raise com.UnsupportedOperationError("the pattern of like must be a literal")
    if pattern.value is None:
        return _nulls(value, pl.Boolean)
    escape = getattr(op.escape, "value", op.escape)
    parts = like_parts(pattern.value, escape)
    if parts is None:
        raise com.UnsupportedOperationError(
            f"the pattern {pattern.value!r} of like ends in its escape character"
        )
    if isinstance(op, ops.StringSQLILike):
        return value.str.contains(f"(?is)^{regex_of(parts)}$")
    match parts:
        case [str(text)]:
            return value == text
        case [str(text), None]:
            return value.str.starts_with(text)
        case [None, str(text)]:
            return value.str.ends_with(text)
        case [None, str(text), None]:
            return value.str.contains(text, literal=True)
    return value.str.contains(f"(?s)^{regex_of(parts)}$")


@rule(ops.StringLength)
def string_length(op: ops.StringLength, **kw: Any) -> pl.Expr:
    """Count the characters, as positions do; Ibis's rule for Polars counts bytes."""
    value: pl.Expr = translate(op.arg, **kw)
    return value.str.len_chars().cast(pl.Int32)


@rule(ops.StrRight)
def string_right(op: ops.StrRight, **kw: Any) -> pl.Expr:
    """Take the last characters, none for 0, of which Ibis's rule for Polars makes all."""
    if not isinstance(op.nchars, ops.Literal):
        raise com.UnsupportedOperationError("right takes a literal number of characters")
    value: pl.Expr = translate(op.arg, **kw)
    return value.str.tail(op.nchars.value)


@rule(ops.StringFind)
def string_find(op: ops.StringFind, **kw: Any) -> pl.Expr:
    """Return where a text stands in another, -1 where it does not; null in null, and of null."""
    if op.start is not None or op.end is not None or not isinstance(op.substr, ops.Literal):
        raise com.UnsupportedOperationError("find takes a literal, and no start and no end")
    value: pl.Expr = translate(op.arg, **kw)
    text = op.substr.value
    if text is None:
        return _nulls(value, pl.Int64)
    if not text:
        return pl.when(value.is_not_null()).then(0)
    # counted in characters: Polars' own find counts bytes
    before = value.str.splitn(text, 2).struct[0].str.len_chars().cast(pl.Int64)
    return (
        pl.when(value.str.contains(text, literal=True))
        .then(before)
        .when(value.is_not_null())
        .then(-1)
    )


@rule(ops.StringJoin)
def string_join(op: ops.StringJoin, **kw: Any) -> pl.Expr:
    """Join texts, and pass over nulls."""
    if not isinstance(op.sep, ops.Literal):
        raise com.UnsupportedOperationError("texts are joined by a literal")
    texts = [translate(arg, **kw) for arg in op.arg]
    if op.sep.value is None:
        return _nulls(pl.concat_str(texts), pl.String)
    return pl.concat_str(texts, separator=op.sep.value, ignore_nulls=True)


@rule(ops.ArrayIndex)
def array_index(op: ops.ArrayIndex, **kw: Any) -> pl.Expr:
    """Take a value of a list; null behind its end."""
    value: pl.Expr = translate(op.arg, **kw)
    return value.list.get(translate(op.index, **kw), null_on_oob=True)


_collect = translate.dispatch(ops.ArrayCollect)
_pads = {pad: translate.dispatch(pad) for pad in (ops.LPad, ops.RPad)}


@rule(ops.LPad, ops.RPad)
def pad_text(op: ops.LPad, **kw: Any) -> pl.Expr:
    """Fill texts with a character."""
    if not isinstance(op.pad, ops.Literal) or len(op.pad.value or "") != 1:
        raise com.UnsupportedOperationError("lpad and rpad fill with one character, a literal")
    found: pl.Expr = _pads[type(op)](op, **kw)
    return found


@rule(ops.StringReplace)
def string_replace(op: ops.StringReplace, **kw: Any) -> pl.Expr:
    """Replace a text wherever it stands; Ibis's rule for Polars replaces the first one."""
    if not isinstance(op.pattern, ops.Literal):
        raise com.UnsupportedOperationError("replace takes a literal to be replaced")
    value: pl.Expr = translate(op.arg, **kw)
    new: pl.Expr = translate(op.replacement, **kw)
    if not op.pattern.value:
        known = new.is_not_null() if op.pattern.value is not None else pl.lit(value=False)
        return pl.when(known).then(value)
    if isinstance(op.replacement, ops.Literal):
        return value.str.replace_all(op.pattern.value, new, literal=True)
    # Polars takes no column as the replacement of every match
    return pl.when(value.is_not_null() & new.is_not_null()).then(
        value.str.split(op.pattern.value).list.join(new)
    )


@rule(ops.RegexReplace)
def regex_replace(op: ops.RegexReplace, **kw: Any) -> pl.Expr:
    r"""Replace matches of a pattern; ``\1`` is what its first group found, and ``$`` a dollar."""
    if not isinstance(op.pattern, ops.Literal) or not isinstance(op.replacement, ops.Literal):
        raise com.UnsupportedOperationError("re_replace takes literals")
    value: pl.Expr = translate(op.arg, **kw)
    if op.pattern.value is None or op.replacement.value is None:
        return _nulls(value, pl.String)
    new = re.sub(r"\\(\\|\d)", _group, op.replacement.value.replace("$", "$$"))
    return value.str.replace_all(op.pattern.value, new)


def _group(found: re.Match[str]) -> str:
    return "\\" if found[1] == "\\" else f"${{{found[1]}}}"


@rule(ops.ArrayCollect)
def array_collect(op: ops.ArrayCollect, *, in_group_by: bool = False, **kw: Any) -> pl.Expr:
    """Collect values into a list; without a value it is null, as in SQL."""
    found: pl.Expr = _collect(op, in_group_by=False, **kw)
    return pl.when(found.list.len() > 0).then(found)


@rule(ops.Repeat)
def repeat(op: ops.Repeat, **kw: Any) -> pl.Expr:
    """Repeat texts; no times, or fewer, is the empty text."""
    if not isinstance(op.times, ops.Literal):
        raise com.UnsupportedOperationError("repeat takes a literal number of times")
    value: pl.Expr = translate(op.arg, **kw)
    if op.times.value is None:
        return _nulls(value, pl.String)
    if op.times.value <= 0:
        return pl.when(value.is_not_null()).then(pl.lit(""))
    return pl.concat_str([value] * op.times.value)


@rule(ops.ArrayStringJoin)
def array_string_join(op: ops.ArrayStringJoin, **kw: Any) -> pl.Expr:
    """Join the texts of a list, and pass over nulls; of none but nulls it is null."""
    if not isinstance(op.sep, ops.Literal):
        raise com.UnsupportedOperationError("texts are joined by a literal")
    texts: pl.Expr = translate(op.arg, **kw).list.drop_nulls()
    if op.sep.value is None:
        return _nulls(texts, pl.String)
    return pl.when(texts.list.len() > 0).then(texts.list.join(op.sep.value))


@rule(ops.ArrayContains)
def array_contains(op: ops.ArrayContains, **kw: Any) -> pl.Expr:
    """Say whether a list has a value; of null that is not known."""
    value: pl.Expr = translate(op.other, **kw)
    return pl.when(value.is_not_null()).then(translate(op.arg, **kw).list.contains(value))


@rule(ops.DateAdd, ops.TimestampAdd, ops.DateSub, ops.TimestampSub)
def shift_time(op: ops.DateAdd, **kw: Any) -> pl.Expr:
    """Add or subtract an interval, also one of months, which are not equally long."""
    value: pl.Expr = translate(op.left, **kw)
    interval, back = op.right, isinstance(op, (ops.DateSub, ops.TimestampSub))
    months = _MONTHS.get(interval.dtype.unit.short)
    if months is None:
        duration: pl.Expr = translate(interval, **kw)
        return value - duration if back else value + duration
    if not isinstance(interval, ops.Literal):
        raise com.UnsupportedOperationError("an interval of months must be a literal")
    return value.dt.offset_by(f"{interval.value * months * (-1 if back else 1)}mo")


@rule(ops.ArrayFlatten)
def array_flatten(op: ops.ArrayFlatten, **kw: Any) -> pl.Expr:
    """Take one level off nested lists; null lists inside add nothing."""
    value: pl.Expr = translate(op.arg, **kw)
    inner = pl.element().drop_nulls().list.explode(keep_nulls=False, empty_as_null=False)
    empty = pl.lit([], dtype=PolarsType.from_ibis(op.dtype))
    flat = pl.when(value.list.len() == 0).then(empty).otherwise(value.list.eval(inner))
    return pl.when(value.is_not_null()).then(flat)


def _sides(op: ops.Set, kw: dict[str, Any]) -> list[pl.LazyFrame]:
    """Return the frames of a set operation, whose columns have one type each.

    To Ibis they do; what Polars computes may be another one, as a mean of decimals is.
    """
    frames = [translate(side, **kw).select(all_exact(op.schema)) for side in (op.left, op.right)]
    schemas = [frame.collect_schema() for frame in frames]
    common = {
        name: _common_kind(schemas[0][name], schemas[1][name], PolarsType.from_ibis(kind))
        for name, kind in op.schema.items()
        if schemas[0][name] != schemas[1][name]
    }
    return [
        frame.with_columns(exact(n).cast(k) for n, k in common.items() if schema[n] != k)
        for frame, schema in zip(frames, schemas, strict=True)
    ]


def _common_kind(one: pl.DataType, other: pl.DataType, said: pl.DataType) -> pl.DataType:
    """Return the type of a column of which Ibis says one, and Polars has two."""
    if one == other:
        return one
    match one, other, said:
        case pl.List(), pl.List(), pl.List():
            inner = (kind.inner for kind in (one, other, said))
            return pl.List(_common_kind(*inner))  # type: ignore[arg-type]
        case pl.Struct(), pl.Struct(), pl.Struct():
            fields = zip(one.fields, other.fields, said.fields, strict=True)
            return pl.Struct(
                {f[2].name: _common_kind(*(field.dtype for field in f)) for f in fields}  # type: ignore[arg-type]
            )
    if isinstance(one, pl.Decimal) and isinstance(other, pl.Decimal):
        return pl.Decimal(DIGITS, max(one.scale, other.scale, getattr(said, "scale", 0)))
    if isinstance(one, pl.Datetime) and isinstance(other, pl.Datetime):
        return said
    if one.is_numeric() and other.is_numeric():
        # computed so that no digit is lost; the result then gets the type that Ibis says
        return common_type(one, other) or (pl.Int64() if one.is_integer() else said)
    return said


def _set_operation(op: ops.Set, kw: dict[str, Any], how: str) -> pl.LazyFrame:
    left, right = _sides(op, kw)
    names = list(op.schema)
    if op.distinct:
        left, right = left.unique(maintain_order=True), right.unique()
        return left.join(right, on=all_exact(names), how=how, nulls_equal=True)  # type: ignore[arg-type]
    # numbered, so that the nth of several equal rows meets the nth on the other side
    number = gen_name("row")
    left, right = (
        frame.with_columns(pl.int_range(pl.len()).over(all_exact(names)).alias(number))
        for frame in (left, right)
    )
    both = left.join(right, on=all_exact([*names, number]), how=how, nulls_equal=True)  # type: ignore[arg-type]
    return both.drop(number)


@rule(ops.Union)
def union(op: ops.Union, **kw: Any) -> pl.LazyFrame:
    """Rows of both sides."""
    both = pl.concat(_sides(op, kw))
    return both.unique() if op.distinct else both


@rule(ops.Intersection)
def intersection(op: ops.Intersection, **kw: Any) -> pl.LazyFrame:
    """Rows that both sides have."""
    return _set_operation(op, kw, "semi")


@rule(ops.Difference)
def difference(op: ops.Difference, **kw: Any) -> pl.LazyFrame:
    """Rows of the left side that the right one does not have."""
    return _set_operation(op, kw, "anti")


@rule(ops.ReductionVectorizedUDF)
def reduction_udf(op: ops.ReductionVectorizedUDF, **kw: Any) -> pl.Expr:
    """Call a user's function with whole columns, for one value."""
    arguments = [translate(argument, **kw) for argument in op.func_args]
    dtype = PolarsType.from_ibis(op.return_type)
    return pl.map_batches(
        arguments,
        lambda columns: pl.Series([op.func(*columns)], dtype=dtype),
        return_dtype=dtype,
        returns_scalar=True,
    )


@rule(ops.AnalyticVectorizedUDF)
def analytic_udf(op: ops.AnalyticVectorizedUDF, **kw: Any) -> pl.Expr:
    """Call a user's function with whole columns, for a column."""
    arguments = [translate(argument, **kw) for argument in op.func_args]
    dtype = PolarsType.from_ibis(op.return_type)
    return pl.map_batches(arguments, lambda columns: op.func(*columns), return_dtype=dtype)
