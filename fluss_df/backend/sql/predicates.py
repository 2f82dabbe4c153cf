"""What Polars' SQL reads otherwise than SQL says, written so that it reads it right.

SQL has three truths: ``b IS NOT TRUE`` holds where ``b`` is null. Polars makes ``NOT b`` of it,
which is null there, and a filter, an UPDATE or a DELETE passes the row over. Here such parts of a
statement are replaced by others that mean the same and that Polars computes as SQL does:

========================= ==============================================
written                   handed to Polars
========================= ==============================================
``b IS [NOT] TRUE``       ``CAST(b AS BOOLEAN) IS [NOT] DISTINCT ...``
``s LIKE 'p' ESCAPE 'e'`` ``s ~ '...'``, a regular expression
``s LIKE NULL``           a null truth
``b AND NULL``            ``b AND CAST(NULL AS BOOLEAN)``
``COALESCE(day, '...')``  ``COALESCE(day, CAST('...' AS DATE))``
``f IN (0.1, 0.5)``        ``f IN (0.10000000149011612, 0.5)``, where f is FLOAT
``a IS DISTINCT FROM 1``  ``NOT (a <=> 1)``
``'a' = s``               ``s = 'a'``
``NOT a = b AND c``       ``(NOT (a = b)) AND c``
``STRPOS(s, 'a')``        null where ``s`` is, of which Polars says 0
``LEFT(s, 0)``            null where ``s`` is, of which Polars says ``''``
``RIGHT(s, 3)``           all of a shorter text, of which Polars takes less
``LENGTH(a) - LENGTH(b)`` ``CAST(LENGTH(a) AS BIGINT) - CAST(LENGTH(b) AS BIGINT)``
``MONTH(d) * 100``        ``CAST(EXTRACT(MONTH FROM d) AS BIGINT) * 100``
``i + 1``                 ``CAST(i AS BIGINT) + 1``, where i is TINYINT, SMALLINT or INT
``b + 1``                 ``CAST(CAST(b AS INT128) + 1 AS BIGINT)``, where b is BIGINT
``LOG(2, x)``, ``LOG(x)`` ``LOG(x, 2)``, ``LOG10(x)``
``SUM(i)``                ``SUM(CAST(i AS BIGINT))``, where i is INT
``AVG(f)``                ``AVG(CAST(f AS DOUBLE))``, where f is FLOAT
``POWER(i, 2)``           ``POWER(CAST(i AS DOUBLE), 2)``
``d + INTERVAL '1 hour'`` ``CAST(d AS TIMESTAMP) + ...``, where d is a date
``EXTRACT(EPOCH FROM d)`` ``CAST(CAST(d AS BIGINT) AS DOUBLE) * 86400``, where d is a date
``CAST(t AS STRING)``     ``STRFTIME(t, '%H:%M:%S%.f')``, where t is a TIME
``CAST(s AS BOOLEAN)``    ``CAST(CAST(CASE ... THEN '1' ... END AS INT) AS BOOLEAN)``
``ON i = d``              ``ON CAST(i AS DOUBLE) = CAST(d AS DOUBLE)``
``SELECT UNNEST(l)``      ``... WHERE ARRAY_LENGTH(l) > 0``
========================= ==============================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from sqlglot import exp

from fluss_df.backend.compiler.patterns import like_parts, regex_of
from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.backend.sql.operands.joined import cast_truths, join_alike
from fluss_df.backend.sql.operands.lists import drop_empty_lists
from fluss_df.backend.sql.operands.numbers import make_room
from fluss_df.backend.sql.operands.times import align_times
from fluss_df.backend.sql.operands.types import asked_type, number_in, type_of
from fluss_df.backend.sql.operands.written_times import write_times
from fluss_df.errors import FlussError

_LIKES = (exp.Like, exp.ILike)
# nodes whose operands have one type; Polars takes it to be text where one of them is a text
_MIXED = (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.NullSafeEQ, exp.NullSafeNEQ)
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
# operators, and other nodes of the same classes of sqlglot
_OPERATORS = (exp.Binary, exp.Not, exp.Neg, exp.BitwiseNot, exp.In, exp.Between)
_NOT_GROUPED = (exp.Dot, exp.Escape, exp.PropertyEQ, exp.Kwarg, exp.Slice)
# functions that Polars computes as UInt32 or Int8, by class or, without a class in sqlglot, by name
_NARROW = (
    exp.Length,
    exp.BitLength,
    exp.StrPosition,
    exp.ArraySize,
    exp.Year,
    exp.Quarter,
    exp.Month,
    exp.Week,
    exp.Day,
    exp.Hour,
    exp.Minute,
    exp.Second,
)
_NARROW_NAMES = ("bit_count", "bitcount", "octet_length")
_WHOLE_PARTS = re.compile(
    r"centur(y|ies)|decades?|millenni(um|ums|a)|(iso)?(years?|weeks?)|quarters?|months?|days?"
    r"|(iso)?dow|dayofweek|doy|dayofyear|hours?|minutes?|seconds?",
    re.IGNORECASE,
)
_ORDERED = (*_COMPARED, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Between)


def prepare(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Rewrite a query in place, before it is written for Polars.

    Raises FlussError for a pattern that ends in its escape character, an escape of several
    characters, a difference of times that is compared with a number, a DECIMAL with a text, and a
    list beside its UNNEST.
    """
    for node in _from_within(tree, exp.Escape):
        node.replace(_escaped(node))
    for node in _from_within(tree, exp.Log):
        node.replace(_logarithm(node))
    for node in _from_within(tree, *_LIKES):
        if isinstance(node.expression.unnest(), exp.Null):
            node.replace(_null())
    for node in _from_within(tree, exp.Is):
        asked = node.expression
        if isinstance(asked, exp.Boolean):
            truth = exp.cast(node.this.unnest().copy(), exp.DType.BOOLEAN)
            same = exp.NullSafeNEQ if node.args.get("negate") else exp.NullSafeEQ
            node.replace(exp.paren(same(this=truth, expression=asked.copy())))
    for node in _from_within(tree, exp.Null):
        if _is_truth(node):
            node.replace(_null())
    for node in _from_within(tree, exp.StrPosition, exp.Left, exp.Right):
        node.replace(_of_texts(node))
    for node in _from_within(tree, *_MIRRORED):
        left, right = node.this, node.expression
        value = left.this if isinstance(left, (exp.Cast, exp.Neg)) else left
        many = isinstance(right, (exp.Any, exp.All))
        if isinstance(value, (exp.Literal, exp.Boolean)) and right.find(exp.Column) and not many:
            # in front of a column Polars 2.1 may compare a literal with the first row alone
            node.replace(_MIRRORED[type(node)](this=right.copy(), expression=left.copy()))
    cast_truths(tree, frames)
    _widen(tree, frames)
    _type_texts(tree, frames)
    for node in _from_within(tree, *_ORDERED, exp.Nullif, exp.Case):
        _type_numbers(node, frames)
    for node in _from_within(tree, exp.NullSafeNEQ):
        # Polars compares a literal in the type of the column for <=> and not for IS DISTINCT
        equal = exp.NullSafeEQ(this=node.this.copy(), expression=node.expression.copy())
        node.replace(exp.Not(this=exp.Paren(this=equal)))
    _group(tree)
    make_room(tree, frames)
    join_alike(tree, frames)
    write_times(tree, frames)
    groups = [
        (node, values)
        for node in _from_within(tree, *_MIXED, exp.Case, exp.If, *_ORDERED)
        for values in _operands(node)
    ]
    align_times(tree, groups, frames)
    drop_empty_lists(tree, frames)


def _group(tree: exp.Expr) -> None:
    """Put every operator that is an operand of another one in parentheses.

    What binds tighter is decided by the parser of the dialect alone: that of Polars takes all of
    ``b AND c`` as the operand in ``a IS DISTINCT FROM b AND c``.
    """
    for node in list(tree.find_all(*_OPERATORS)):
        outer = node.parent
        # a chain of AND means the same in whatever order
        chain = isinstance(node, exp.Connector) and type(node) is type(outer)
        if isinstance(outer, _OPERATORS) and not chain and not isinstance(node, _NOT_GROUPED):
            group = exp.Paren()
            node.replace(group)
            group.set("this", node)


def _from_within(tree: exp.Expr, *kinds: type[exp.Expr]) -> list[Any]:
    """Return nodes, those inside others first: what is replaced takes along what it holds."""
    return list(tree.find_all(*kinds))[::-1]


def _of_texts(node: exp.StrPosition | exp.Left | exp.Right) -> exp.Expr:
    """Return a function of texts within a CASE that answers where Polars 2.1 would be wrong.

    A position in a null, or of one, is 0 to it, the last characters of a text that has fewer are
    some of them, and the first 0 characters of a null are a text.
    """
    text = node.this
    if isinstance(node, exp.Left):
        return exp.Case().when(_is_known(text), node.copy())
    if isinstance(node, exp.StrPosition):
        known = exp.and_(_is_known(text), _is_known(node.args["substr"]))
        return exp.Case().when(known, node.copy())
    short = exp.LTE(this=exp.Length(this=text.copy()), expression=exp.paren(node.expression.copy()))
    return exp.Case().when(short, text.copy()).when(_is_known(text), node.copy())


def _logarithm(node: exp.Log) -> exp.Expr:
    """Return a logarithm as Polars has it: the base stands behind the number, and is not left out.

    Of one argument it is that to the base of 10, as in PostgreSQL and DuckDB.
    """
    if node.args.get("expression") is None:
        return exp.Anonymous(this="LOG10", expressions=[node.this.copy()])
    return exp.Anonymous(this="LOG", expressions=[node.expression.copy(), node.this.copy()])


def _widen(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Make BIGINT of lengths and parts of times: Fluss, as SQL, has no unsigned types.

    In Polars' UInt32 ``LENGTH(a) - LENGTH(b)`` is never negative, and in its Int8
    ``EXTRACT(MONTH FROM day) * 100`` is no month.
    """
    for node in _from_within(tree, *_NARROW, exp.Extract, exp.Sum, exp.Anonymous):
        if isinstance(node, exp.Anonymous) and node.name.lower() not in _NARROW_NAMES:
            continue
        if isinstance(node, exp.Extract) and not _WHOLE_PARTS.fullmatch(node.name):
            continue
        if isinstance(node, exp.Sum) and not _is_condition(node.this.unnest(), frames):
            continue
        whole = node
        while isinstance(whole.parent, (exp.Filter, exp.Window)) and whole.parent.this is whole:
            whole = whole.parent
        cast = exp.Cast(to=exp.DataType.build("BIGINT"))
        whole.replace(cast)
        cast.set("this", whole)


def _is_condition(value: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> bool:
    if isinstance(value, exp.Column):
        return type_of(value, frames) == pl.Boolean()
    return isinstance(value, (exp.Predicate, exp.Connector, exp.Not, exp.Boolean))


def _is_known(value: exp.Expr) -> exp.Expr:
    return exp.Is(this=exp.paren(value.copy()), expression=exp.null(), negate=True)


def _null() -> exp.Expr:
    return exp.cast(exp.null(), exp.DType.BOOLEAN)


def _is_truth(node: exp.Null) -> bool:
    """Whether a NULL stands where a condition does."""
    inner: exp.Expr = node
    while isinstance(inner.parent, exp.Paren):
        inner = inner.parent
    parent = inner.parent
    if isinstance(parent, (exp.And, exp.Or, exp.Not, exp.Where, exp.Having)):
        return True
    # in CASE a WHEN NULL it is a value
    searched = isinstance(parent, exp.If) and not (
        isinstance(parent.parent, exp.Case) and parent.parent.this is not None
    )
    return searched and parent is not None and parent.this is inner


def _escaped(node: exp.Escape) -> exp.Expr:
    """Return a LIKE with an escape as the match of a regular expression."""
    like, escape = node.this, node.expression
    pattern = like.expression.unnest()
    if isinstance(pattern, exp.Null) or isinstance(escape, exp.Null):
        return _null()
    if not isinstance(like, _LIKES) or not isinstance(pattern, exp.Literal):
        raise FlussError(
            f"SQL cannot be run: {node.sql(Fluss)[:80]}: expected a text as the pattern{spot(node)}"
        )
    if not isinstance(escape, exp.Literal) or len(escape.name) > 1:
        raise FlussError(
            f"SQL cannot be run: {node.sql(Fluss)[:80]}: expected one character behind ESCAPE"
            f"{spot(escape)}"
        )
    parts = like_parts(pattern.name, escape.name or None)
    if parts is None:
        raise FlussError(
            f"SQL cannot be run: {node.sql(Fluss)[:80]}: the pattern ends in its escape character"
            f"{spot(pattern)}"
        )
    flags = "(?is)" if isinstance(like, exp.ILike) else "(?s)"
    match = exp.Literal.string(f"{flags}^{regex_of(parts)}$")
    found: exp.Expr = exp.RegexpLike(this=like.this.copy(), expression=match)
    return exp.paren(exp.Not(this=found)) if like.args.get("negate") else found


# ---- texts beside times


def _type_texts(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast texts to times where the other operand is a time: Polars would cast the time to text."""
    for node in _from_within(tree, *_MIXED, exp.Case, exp.If, *_ORDERED):
        for values in _operands(node):
            kinds = [_kind(value, frames) for value in values]
            if isinstance(node, _ORDERED) and any(kinds):
                _refuse_numbers(node, values, next(kind for kind in kinds if kind))
            times = [kind for kind in kinds if kind is not None and kind != pl.Duration]
            if not times:
                continue
            if _is_plain(node, values):
                continue
            for value in values:
                text = value.unnest()
                if isinstance(text, exp.Literal) and text.is_string:
                    value.replace(exp.cast(text.copy(), _named(times[0])))


def _type_numbers(node: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Round numbers with a point beside a FLOAT to FLOAT; refuse texts beside numbers.

    Polars rounds them for ``=`` and not for ``IN`` and ``BETWEEN``; of a decimal it makes a text.
    """
    groups = list(_operands(node))
    # the results of a CASE are not compared
    for values in groups[1:] if isinstance(node, exp.Case) else groups:
        kinds = [_number_or_text(value.unnest(), frames) for value in values]
        number = next((kind for kind in kinds if kind is not None and kind.is_numeric()), None)
        if number is not None and pl.String in kinds:
            text = values[kinds.index(pl.String())].unnest()
            way_out = "leave the quotes out, or " if isinstance(text, exp.Literal) else ""
            raise FlussError(
                f"SQL cannot be run: {node.sql(Fluss, comments=False)[:80]}: a"
                f" {'DECIMAL' if number == pl.Decimal else 'number'} is compared with a text:"
                f" {way_out}CAST one of both{spot(text)}"
            )
        if any(number_in(value) is not None for value in values):
            asked = (v for v in values if not isinstance(v.unnest(), (exp.Literal, exp.Neg)))
            if pl.String in kinds or any(asked_type(v, frames) == pl.String for v in asked):
                _refuse_numbers(node, values, pl.String())
        if pl.Float32 not in kinds or pl.Float64 in kinds:
            continue
        for value in values:
            literal = number_in(value)
            if literal is not None:
                with np.errstate(over="ignore"):
                    single = float(np.float32(literal.name))
                if literal.is_int and single != int(literal.name):
                    # nobody means to have it rounded
                    literal.replace(exp.cast(literal.copy(), exp.DType.DOUBLE))
                elif math.isfinite(single):
                    literal.set("this", repr(single))


def _number_or_text(value: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> pl.DataType | None:
    """Return the type of a column, a cast or a text where it is FLOAT, DOUBLE, DECIMAL or text."""
    if isinstance(value, exp.Column):
        return type_of(value, frames)
    if isinstance(value, exp.Cast):
        return _NUMBERS.get(value.to.this)
    return pl.String() if isinstance(value, exp.Literal) and value.is_string else None


def _is_plain(node: exp.Expr, values: list[exp.Expr]) -> bool:
    """Whether Polars reads a comparison right, and hands it on to the scan as it stands."""
    if not isinstance(values[0].unnest(), exp.Column):
        return False
    if isinstance(node, exp.In):
        return all(isinstance(value.unnest(), exp.Literal) for value in values[1:])
    return isinstance(node, (*_COMPARED, exp.Between))


def _operands(node: exp.Expr) -> Iterator[list[exp.Expr]]:
    """Give the groups of operands of a node that are of one type each."""
    if isinstance(node, exp.Case):
        ifs = node.args["ifs"]
        results = [branch.args["true"] for branch in ifs]
        default = node.args.get("default")
        yield results if default is None else [*results, default]
        if node.this is not None:
            yield [node.this, *(branch.this for branch in ifs)]
    elif isinstance(node, exp.If):
        if not isinstance(node.parent, exp.Case):
            yield [n for n in (node.args.get("true"), node.args.get("false")) if n is not None]
    elif isinstance(node, exp.Between):
        yield [node.this, node.args["low"], node.args["high"]]
    else:
        expression = [node.expression] if node.args.get("expression") is not None else []
        yield [node.this, *expression, *node.expressions]


def _kind(value: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> pl.DataType | None:
    """Return the type of an expression where it is a time, by its columns and casts; else None."""
    value = value.unnest()
    if isinstance(value, exp.Column):
        found = type_of(value, frames)
        return found if found is not None and found.is_temporal() else None
    if isinstance(value, exp.Cast):
        return _CASTS.get(value.to.this)
    if isinstance(value, exp.Sub):
        sides = [_kind(side, frames) for side in (value.this, value.expression)]
        if None not in sides:
            return pl.Duration()
        return sides[0]
    if isinstance(value, (exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Case, exp.If)):
        for values in _operands(value):
            return next((k for k in (_kind(v, frames) for v in values) if k is not None), None)
    return None


_CASTS: dict[exp.DType, pl.DataType] = {
    exp.DType.DATE: pl.Date(),
    exp.DType.TIME: pl.Time(),
    exp.DType.TIMESTAMP: pl.Datetime("us"),
    exp.DType.TIMESTAMPLTZ: pl.Datetime("us", "UTC"),
    exp.DType.TIMESTAMPTZ: pl.Datetime("us", "UTC"),
}


_NUMBERS: dict[exp.DType, pl.DataType] = {
    exp.DType.FLOAT: pl.Float32(),
    exp.DType.DOUBLE: pl.Float64(),
    exp.DType.DECIMAL: pl.Decimal(),
    exp.DType.TEXT: pl.String(),
    exp.DType.VARCHAR: pl.String(),
}


def _named(kind: pl.DataType) -> exp.DType:
    if isinstance(kind, pl.Datetime):
        return exp.DType.TIMESTAMP if kind.time_zone is None else exp.DType.TIMESTAMPTZ
    return exp.DType.DATE if kind == pl.Date else exp.DType.TIME


def _refuse_numbers(node: exp.Expr, values: list[exp.Expr], kind: pl.DataType) -> None:
    """Raise for a number that is compared with a time, a difference of times, or a text."""
    for value in values:
        literal = number_in(value)
        if literal is None:
            continue
        number = value.unnest().sql(Fluss)
        if kind == pl.Duration:
            why = "a difference of times is an interval, not a number: compare it with INTERVAL"
            why += f" '{number} days'"
        elif kind == pl.String:
            why = f"a text is compared with a number: write '{number}', or CAST one of both"
        else:
            name = _named(kind).value
            why = f"a {name} is compared with a number: write {name} '...', or EXTRACT a part of it"
        raise FlussError(
            f"SQL cannot be run: {node.sql(Fluss, comments=False)[:80]}: {why}{spot(literal)}"
        )
