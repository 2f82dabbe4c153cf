"""Keys of joins, and truths of texts, whose types Polars does not bring together."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from sqlglot import exp

from fluss_df.backend.sql.dialect import Fluss, spot
from fluss_df.backend.sql.operands.types import asked_type, type_outside
from fluss_df.errors import FlussError

_DIGITS = 38
# how many digits a BIGINT has
_OF_BIGINT = 19
_TRUE = ("true", "t", "yes", "y", "on", "1")
_FALSE = ("false", "f", "no", "n", "off", "0")
_TEXTS = (pl.String(), pl.Categorical())


def join_alike(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast numbers of different types that ON compares to one type, in place.

    Raises FlussError for times of different precision that a subquery compares with the row around
    it: Polars would cut the digits of the finer one off.
    """
    for join in tree.find_all(exp.Join):
        # Polars takes columns alone for SEMI and ANTI
        condition = None if join.kind in ("SEMI", "ANTI") else join.args.get("on")
        for equal in list(condition.find_all(exp.EQ)) if condition is not None else ():
            sides = (equal.this, equal.expression)
            kinds = [asked_type(side.unnest(), frames) for side in sides]
            wanted = None if None in kinds else _common(*kinds)  # type: ignore[arg-type]
            if wanted is None:
                continue
            for side in sides:
                kind = exp.DataType.build(wanted, dialect="postgres")
                side.replace(exp.Cast(this=exp.paren(side.copy()), to=kind))
    for equal in tree.find_all(exp.EQ):
        _require_one_precision(equal, frames)


def _common(one: pl.DataType, other: pl.DataType) -> str | None:
    """Return the type in which numbers of two types are joined; None where Polars finds it."""
    if one == other or not (one.is_numeric() and other.is_numeric()):
        return None
    if (one.is_integer() and other.is_integer()) or (one.is_float() and other.is_float()):
        return None
    if one.is_float() or other.is_float():
        return "DOUBLE PRECISION"
    scale = max(kind.scale for kind in (one, other) if isinstance(kind, pl.Decimal))
    # a whole number beside a decimal of many digits may not fit into one of as many
    fits = scale + _OF_BIGINT <= _DIGITS or not (one.is_integer() or other.is_integer())
    return f"DECIMAL({_DIGITS}, {scale})" if fits else None


def _require_one_precision(equal: exp.EQ, frames: Mapping[str, pl.LazyFrame]) -> None:
    sides = [side.unnest() for side in (equal.this, equal.expression)]
    if not all(isinstance(side, exp.Column) for side in sides):
        return
    found = [asked_type(side, frames) for side in sides]
    if found.count(None) != 1:
        return
    at = found.index(None)
    outer = type_outside(sides[at], frames)
    inner = found[1 - at]
    if not isinstance(outer, pl.Datetime) or not isinstance(inner, pl.Datetime):
        return
    if outer.time_unit != inner.time_unit:
        raise FlussError(
            f"SQL cannot be run: {equal.sql(Fluss, comments=False)[:80]}: a subquery compares times"
            " of different precision with the row around it: write IN (SELECT ...), or a JOIN ...,"
            f" which compare all of their digits{spot(equal)}"
        )


def cast_truths(tree: exp.Expr, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Have texts cast to BOOLEAN as PostgreSQL reads them, in place: Polars refuses such a cast."""
    for cast in list(tree.find_all(exp.Cast))[::-1]:
        if cast.to.this != exp.DType.BOOLEAN:
            continue
        value = cast.this.unnest()
        literal = isinstance(value, exp.Literal) and value.is_string
        if not literal and asked_type(value, frames) not in _TEXTS:
            continue
        word = exp.Lower(this=exp.Trim(this=value.copy()))
        # what is none of them fails as a number, or is null of TRY_CAST
        wrong = exp.DPipe(
            this=exp.Literal.string("no BOOLEAN: "), expression=exp.paren(value.copy())
        )
        digit = (
            exp.Case()
            .when(_among(word, _TRUE), exp.Literal.string("1"))
            .when(_among(word, _FALSE), exp.Literal.string("0"))
            .else_(wrong)
        )
        number = type(cast)(this=digit, to=exp.DataType.build("INT"), **_strictness(cast))
        cast.set("this", number)


def _strictness(cast: exp.Cast) -> dict[str, object]:
    return {key: value for key, value in cast.args.items() if key not in ("this", "to")}


def _among(word: exp.Expr, texts: tuple[str, ...]) -> exp.Expr:
    return exp.In(this=word.copy(), expressions=[exp.Literal.string(text) for text in texts])
