"""Times of different precision in SQL, which Polars compares by cutting off the finer ones.

In Polars a TIMESTAMP(3) equals ``TIMESTAMP '2024-01-01 00:00:00.0009'``, because the microseconds
are cut off first, and a TIMESTAMP(9) equals every time within its microsecond. Of a text beside a
TIMESTAMP(9) whose year its 64 bits do not hold it makes a time of another year, and of a day beside
one a null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl
from sqlglot import exp

from fluss_df.backend.compiler.literals import FIRST_YEAR, LAST_YEAR
from fluss_df.backend.sql.operands.types import asked_type, columns_of
from fluss_df.backend.translation import NANOSECONDS_OF_A_DAY, UNITS

_DIGITS = (3, 6, 9)
_NO_PRECISION = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ)
_COMPARISONS = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    *(exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Between, exp.Nullif),
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_FRACTION = re.compile(r"\.(\d+)")
# equals no time that anyone means; stands in lists for a time that is out of range
_UNREACHED = "1678-01-01 00:00:00.000000001"

Groups = Sequence[tuple[exp.Expr, list[exp.Expr]]]


def align_times(tree: exp.Expr, groups: Groups, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast times that are operands of one node to the finest precision among them.

    The query is changed in place. ``groups`` has its nodes whose operands need one type, inner
    nodes first, each with these operands. ``frames`` has the tables by name.
    """
    literals = [node for node in tree.find_all(exp.Literal) if node.is_string]
    fine = any(_digits(literal) > 6 for literal in literals)
    if fine or _has_other_units(frames) or any(c.to.expressions for c in tree.find_all(exp.Cast)):
        for node, values in groups:
            _align(node, values, frames)
        for node in list(tree.find_all(exp.In))[::-1]:
            if isinstance(node.args.get("query"), exp.Subquery):
                _align_query(node.this, node.args["query"], frames)
        for node in list(tree.find_all(exp.Any, exp.All))[::-1]:
            query = node.this.unnest()
            if isinstance(query, exp.Query) and isinstance(node.parent, _COMPARISONS):
                inner = query.subquery()
                node.set("this", inner)
                _align_query(node.parent.this, inner, frames)
                if isinstance(node.this, exp.Subquery):
                    node.set("this", node.this.this if isinstance(node, exp.All) else node.this)
        for operation in list(tree.find_all(exp.SetOperation)):
            if not isinstance(operation.parent, exp.SetOperation):
                _align_columns(operation, frames)
    for cast in list(tree.find_all(exp.Cast)):
        _keep_digits(cast)


def _keep_digits(cast: exp.Cast) -> None:
    """Have a text that is cast to a time keep its nanoseconds, or its year."""
    literal = _literal(cast)
    if literal is not None:
        if _digits(literal) > 6 and _in_reach(literal):
            cast.replace(_cast(literal, _is_zoned(cast), 2))
        return
    literal = _literal(cast.this.unnest())
    if literal is not None and cast.to.this in _NO_PRECISION and not _in_reach(literal):
        # Polars makes a time of another year of such a text; when it casts a time it raises
        literal.replace(_cast(literal, _is_zoned(cast), 1))


def _align_columns(operation: exp.SetOperation, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Cast times to the finest precision that a column of a UNION and others of its kind has."""
    selects = _selects(operation)
    if selects is None or len({len(select.expressions) for select in selects}) != 1:
        return
    for items in zip(*(select.expressions for select in selects), strict=True):
        found = [asked_type(item.unalias(), frames) for item in items]
        units = [UNITS.index(k.time_unit) for k in found if isinstance(k, pl.Datetime)]
        for item, kind in zip(items, found, strict=True):
            if isinstance(kind, pl.Datetime) and UNITS.index(kind.time_unit) < max(units):
                made = _cast(item.unalias(), kind.time_zone is not None, max(units))
                item.replace(exp.alias_(made, item.alias_or_name, quoted=True))


def _selects(operation: exp.Expr) -> list[exp.Select] | None:
    """Return the SELECTs of set operations; None where one is no SELECT of named columns."""
    operation = operation.unnest()
    if isinstance(operation, exp.SetOperation):
        sides = [_selects(side) for side in (operation.this, operation.expression)]
        return None if None in sides else [s for side in sides if side for s in side]
    if not isinstance(operation, exp.Select) or operation.is_star:
        return None
    return [operation]


def _has_other_units(frames: Mapping[str, pl.LazyFrame]) -> bool:
    """Whether there are times that are not in microseconds."""
    return any(
        isinstance(kind, pl.Datetime) and kind.time_unit != "us"
        for frame in frames.values()
        for kind in frame.collect_schema().dtypes()
    )


def _align(node: exp.Expr, values: list[exp.Expr], frames: Mapping[str, pl.LazyFrame]) -> None:
    if any(isinstance(value, (exp.Any, exp.All)) for value in values):
        return  # see _align_query
    kinds: dict[int, pl.Datetime] = {}
    days: list[int] = []
    literals: dict[int, exp.Literal] = {}
    others = False
    for at, value in enumerate(values):
        inner = value.unnest()
        literal = _literal(inner) or _day(inner)
        if literal is not None:
            literals[at] = literal
        elif not isinstance(inner, (exp.Null, exp.Literal, exp.Boolean)):
            # a subquery keeps its parentheses
            asked = value if isinstance(inner, exp.Query) else inner
            kind = asked_type(asked, frames)
            if isinstance(kind, pl.Datetime):
                kinds[at] = kind
            elif kind == pl.Date:
                days.append(at)
            else:
                others = True
        elif not isinstance(inner, exp.Null):
            others = True
    needed = {at: _needed(literal) for at, literal in literals.items()}
    if not kinds:
        # beside days alone Polars reads a text as a day
        needed = {at: unit for at, unit in needed.items() if _literal(values[at].unnest())}
        if not days or all(isinstance(values[at].unnest(), exp.Literal) for at in needed):
            return
    zoned = any(kind.time_zone is not None for kind in list(kinds.values())[:1])
    units = {at: UNITS.index(kind.time_unit) for at, kind in kinds.items()}
    finest = max([*units.values(), *needed.values()])
    coarse = bool(days) or any(unit < 2 for unit in units.values())
    join = node.find_ancestor(exp.Join, exp.Select)
    if isinstance(join, exp.Join) and join.kind in ("SEMI", "ANTI") and set(units.values()) == {2}:
        # these joins take columns alone
        return
    if finest == 2 and coarse and not others and _compares(node, values):
        _compare_exactly(node, values, {at: (literals[at], zoned) for at in literals}, units)
        return
    if not kinds:
        return
    for at, unit in units.items():
        if unit < finest:
            values[at].replace(_cast(values[at], zoned, finest))
    for at in days if finest == 2 else ():
        # of a day that has no nanoseconds Polars makes a null, and says nothing
        values[at].replace(_cast(values[at], zoned, finest))
    for at, literal in literals.items():
        if finest < 2 and (
            _day(values[at].unnest()) is not None
            or (max(units.values()) == finest and needed[at] <= finest)
        ):
            # as precise as its neighbour: Polars reads the text right, and pushes it into the scan
            continue
        _align_literal(node, values[at], literal, zoned, finest)


def _align_query(value: exp.Expr, query: exp.Subquery, frames: Mapping[str, pl.LazyFrame]) -> None:
    """Have a time compared as a number with those of a query, where one has no nanoseconds."""
    kinds = [asked_type(part, frames) for part in (value.unnest(), query)]
    fine = [isinstance(kind, pl.Datetime) and kind.time_unit == "ns" for kind in kinds]
    differ = fine[0] != fine[1]
    if isinstance(query.parent, (exp.Any, exp.All)):
        # there Polars cuts the digits of any two that differ
        differ = kinds[0] != kinds[1]
    if not differ or not all(isinstance(k, (pl.Date, pl.Datetime)) for k in kinds):
        return
    names = columns_of(query, frames)
    if names is None or len(names) != 1:
        return
    given, asked = (UNITS.index(k.time_unit) if isinstance(k, pl.Datetime) else None for k in kinds)
    number = _nanoseconds(exp.column(names[0], quoted=True), asked)
    inner = query.copy()
    inner.set("alias", exp.TableAlias(this=exp.to_identifier("__fluss_times", quoted=True)))
    numbers = exp.select(exp.alias_(number, names[0], quoted=True)).from_(inner)
    query.replace(numbers.subquery())
    value.replace(_nanoseconds(value, given))


def _compares(node: exp.Expr, values: list[exp.Expr]) -> bool:
    """Whether a node compares its operands, and is no choice among them."""
    if isinstance(node, exp.Case):
        return values[0] is node.this
    return isinstance(node, _COMPARISONS)


def _compare_exactly(
    node: exp.Expr,
    values: list[exp.Expr],
    literals: Mapping[int, tuple[exp.Literal, bool]],
    units: Mapping[int, int],
) -> None:
    """Have times compared as whole numbers of nanoseconds, in 128 bits.

    A time of the year 9999 does not fit into the 64 bits of a TIMESTAMP(9), and this one cut off to
    microseconds loses digits. ``units`` has the units of operands that are no literals; those of
    which it has none are days.
    """
    numbers = []
    for at, value in enumerate(values):
        if at in literals:
            literal, zoned = literals[at]
            unit = max(1, _needed(literal))
            numbers.append(_nanoseconds(_cast(literal, zoned, unit), unit))
        elif isinstance(value.unnest(), exp.Null):
            numbers.append(value.copy())
        else:
            numbers.append(_nanoseconds(value, units.get(at)))
    if isinstance(node, exp.Nullif):
        # its result is the first of them, as it is
        same = exp.EQ(this=numbers[0], expression=numbers[1])
        values[1].replace(exp.Case().when(same, values[0].copy()))
        return
    for value, number in zip(values, numbers, strict=True):
        value.replace(number)


def _nanoseconds(value: exp.Expr, unit: int | None) -> exp.Expr:
    """Return a time in a unit, or a day, as a number of nanoseconds since 1970."""
    number = exp.Cast(this=exp.paren(value.copy()), to=exp.DataType.build("INT128"))
    factor = NANOSECONDS_OF_A_DAY if unit is None else 10 ** (9 - _DIGITS[unit])
    if factor == 1:
        return number
    return exp.paren(exp.Mul(this=number, expression=exp.Literal.number(factor)))


def _align_literal(
    node: exp.Expr, value: exp.Expr, literal: exp.Literal, zoned: bool, finest: int
) -> None:
    if finest < 2:
        value.replace(_cast(literal, zoned, finest))
    elif _in_reach(literal):
        if value.unnest() is literal and isinstance(node.this, exp.Column):
            # Polars reads a text beside a column right, and pushes it into the scan
            return
        value.replace(_cast(literal, zoned, 2))
    elif isinstance(node, exp.In):
        value.replace(_cast(exp.Literal.string(_UNREACHED), zoned, 2))
    else:
        # far from all values that it is compared with, so that its nanoseconds do not matter
        value.replace(_cast(literal, zoned, 1))


def _literal(value: exp.Expr) -> exp.Literal | None:
    """Return the text of a time, which may stand behind TIMESTAMP; None for all else."""
    if isinstance(value, exp.Cast):
        kind = value.to
        if kind.this not in _NO_PRECISION or kind.expressions:
            return None
        value = value.this.unnest()
    if not isinstance(value, exp.Literal) or not value.is_string:
        return None
    return value if _DAY.match(value.name) else None


def _day(value: exp.Expr) -> exp.Literal | None:
    """Return the text of a day behind DATE; None for all else."""
    if not isinstance(value, exp.Cast) or value.to.this != exp.DType.DATE:
        return None
    text = value.this.unnest()
    is_day = isinstance(text, exp.Literal) and text.is_string and _DAY.fullmatch(text.name)
    return text if is_day else None


def _digits(literal: exp.Literal) -> int:
    """Return how many digits of a second a text has, without zeros at their end."""
    found = _FRACTION.search(literal.name)
    return 0 if found is None else len(found[1].rstrip("0"))


def _needed(literal: exp.Literal) -> int:
    """Return the unit that has all digits of a text; of one out of reach, that of any."""
    if not _in_reach(literal):
        return min(1, sum(_digits(literal) > digits for digits in _DIGITS))
    return min(2, sum(_digits(literal) > digits for digits in _DIGITS))


def _in_reach(literal: exp.Literal) -> bool:
    return FIRST_YEAR <= int(literal.name[:4]) <= LAST_YEAR


def _is_zoned(cast: exp.Cast) -> bool:
    return bool(cast.to.this != exp.DType.TIMESTAMP)


def _cast(value: exp.Expr, zoned: bool, unit: int) -> exp.Cast:
    name = "TIMESTAMPTZ" if zoned else "TIMESTAMP"
    inner = (
        value.copy() if isinstance(value, (exp.Literal, exp.Column)) else exp.paren(value.copy())
    )
    kind = exp.DataType.build(f"{name}({_DIGITS[unit]})", dialect="postgres")
    return exp.Cast(this=inner, to=kind)
