"""What is relied on in Polars' expressions, and that predicates mean what the expressions mean."""

import datetime as dt
import decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.lazyframe.resolver import FilterExpr, LazyFrameResolver

from fluss_df.pushdown.evaluate import evaluate
from fluss_df.pushdown.from_polars import PolarsConjunct, from_polars, matches
from fluss_df.pushdown.predicate import UnsupportedExpression

UTC = dt.UTC
SCHEMA = pa.schema(
    {
        "i64": pa.int64(),
        "i8": pa.int8(),
        "f64": pa.float64(),
        "f32": pa.float32(),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("ms"),
        "tz": pa.timestamp("us", "UTC"),
        "time": pa.time64("us"),
        "dec": pa.decimal128(10, 2),
        "bin": pa.binary(),
    }
)
c = pl.col


class Capture(LazyFrameResolver):
    """Collects the conjuncts that Polars gives to a scan."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self.filters: list[pl.Expr] = []

    def schema(self) -> Any:
        return self.rows.schema

    def resolve_lazyframe(self, *, filters: list[FilterExpr], **_: Any) -> pl.LazyFrame:
        self.filters = [f.expr for f in filters]
        return self.rows.lazy()


def frame(rows: pa.Table) -> pl.DataFrame:
    made = pl.from_arrow(rows)
    assert isinstance(made, pl.DataFrame)
    return made


def normalised(expression: pl.Expr, rows: pa.Table) -> list[pl.Expr]:
    capture = Capture(frame(rows))
    capture.lazy().filter(expression).collect()
    return capture.filters


def empty() -> pa.Table:
    return SCHEMA.empty_table()


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (c.i64 >= 1, "i64 >= 1"),
        (pl.lit(1) < c.i64, "i64 > 1"),
        (~(c.i64 == 1), "i64 != 1"),
        (c.i8 == 7, "i8 == 7"),
        (c.f32 > 1.5, "f32 > 1.5"),
        (c.s == "it's", 's == "it\'s"'),
        (c.b, "b == true"),
        (~c.b, "not b == true"),
        (c.i64.is_null() | (c.s == "x"), "i64 is null or s == 'x'"),
        (c.i64.is_not_null(), "i64 is not null"),
        (c.i64.eq_missing(None), "i64 is null"),
        (c.i64.eq_missing(1), "i64 is not null and i64 == 1"),
        (c.i64.ne_missing(1), "i64 is null or i64 != 1"),
        (c.i64.is_between(1, 5, closed="left"), "i64 >= 1 and i64 < 5"),
        (c.i64.is_in([1, 2, None]), "i64 in (1, 2)"),
        (c.i64.is_in([1, None], nulls_equal=True), "i64 is null or i64 in (1)"),
        (c.i64.is_in([1], nulls_equal=True), "i64 is not null and i64 in (1)"),
        (~c.s.is_in(["a"]), "not s in ('a')"),
        (c.s.str.starts_with("a"), "s starts_with 'a'"),
        (c.s.str.ends_with("a"), "s ends_with 'a'"),
        (c.s.str.contains("a.b", literal=True), "s contains 'a.b'"),
        (c.s.str.contains("a b"), "s contains 'a b'"),
        (c.f64.is_nan(), "f64 == nan"),
        (c.f64.is_not_nan(), "f64 != nan"),
        (c.day == dt.date(2024, 2, 29), "day == 2024-02-29"),
        (c.ts > dt.datetime(2024, 1, 2, 3), "ts > 2024-01-02 03:00:00"),
        (c.tz > dt.datetime(2024, 1, 2, tzinfo=UTC), "tz > 2024-01-02 00:00:00+00:00"),
        (c.time < dt.time(1, 2), "time < 01:02:00"),
        (c.dec == decimal.Decimal("1.50"), "dec == 1.50"),
        (c.bin == b"x", "bin == b'x'"),
    ],
    ids=str,
)
def test_understood(expression: pl.Expr, text: str) -> None:
    found = normalised(expression, empty())
    assert " and ".join(str(from_polars(part, SCHEMA)) for part in found) == text


@pytest.mark.parametrize(
    "expression",
    [
        c.i64 + 1 > 3,
        c.i64 > c.i8,
        c.i64 > 1.5,
        c.i8.is_in([1, 1000]),
        c.f32.is_in([0.1]) & (c.f64.sqrt() > 1),
        c.s.str.contains("^a"),
        c.s.str.len_chars() > 1,
        c.day.dt.year() == 2024,
        c.day > dt.datetime(2024, 1, 1, 5),
        c.i64.cast(pl.Boolean),
        c.b ^ c.b,
        pl.when(c.b).then(c.b).otherwise(False),
        pl.col("unknown") == 1,
    ],
    ids=str,
)
def test_not_understood(expression: pl.Expr) -> None:
    with pytest.raises(UnsupportedExpression):
        from_polars(expression, SCHEMA)


def test_an_expression_with_python_code_is_not_understood() -> None:
    calls: list[Any] = []

    def count(values: pl.Series) -> pl.Series:
        calls.append(values)
        return values > 0

    expression = c.i64.map_batches(count, return_dtype=pl.Boolean)
    with pytest.raises(UnsupportedExpression):
        from_polars(expression, SCHEMA)
    with pytest.raises(UnsupportedExpression):
        matches(expression, pl.DataFrame({"i64": [1]}))
    assert not calls


def test_polars_splits_a_conjunction() -> None:
    found = normalised((c.i64 > 1) & (c.s == "a") & (c.f64 < 2), empty())
    assert sorted(map(str, found)) == [
        '[(col("f64")) < (2.0)]',
        '[(col("i64")) > (1)]',
        '[(col("s")) == ("a")]',
    ]


@pytest.mark.parametrize(
    "expression",
    [
        c.i64 == c.i64.max(),
        c.i64.is_unique(),
        c.i64.is_first_distinct(),
        c.i64.shift(1) == 1,
        c.i64.cum_sum() > 1,
        c.i64.rank() > 1,
        c.i64.sum().over("i8") > 1,
        pl.int_range(pl.len()) > 1,
    ],
    ids=str,
)
def test_polars_keeps_what_is_no_condition_on_a_single_row(expression: pl.Expr) -> None:
    # pruning evaluates conjuncts on the distinct values of their columns, which relies on this
    assert normalised(expression, empty()) == []


def test_matches_evaluates_the_expression_itself() -> None:
    rows = pl.DataFrame({"day": [dt.date(2024, 1, 1), dt.date(2025, 1, 1), None]})
    assert matches(c.day.dt.year() == 2024, rows).to_list() == [True, False, False]
    assert matches(pl.lit(True), rows).to_list() == [True] * 3
    assert matches(pl.lit(False), rows.head(0)).to_list() == []


def test_a_failing_expression_is_not_understood() -> None:
    rows = pl.DataFrame({"s": ["1", "x"]})
    with pytest.raises(UnsupportedExpression, match="conversion"):
        matches(c.s.cast(pl.Int64, strict=True) > 0, rows)


def test_a_conjunct_shows_its_predicate_or_the_expression() -> None:
    assert PolarsConjunct(c.i64 > 1, SCHEMA).text == "i64 > 1"
    other = PolarsConjunct(c.i64 + 1 > 1, SCHEMA)
    assert other.predicate is None
    assert 'col("i64")' in other.text
    assert other.columns == {"i64"}


# ---- any expression ------------------------------------------------------------------------------

EDGES: dict[str, list[Any]] = {
    "i64": [0, 1, -1, 2**63 - 1, -(2**63)],
    "i8": [0, 1, 127, -128],
    "f64": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324],
    "f32": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf")],
    "s": ["", "a", "ab", "b", "\U0001f600", "é", "a\x00b", "%"],
    "b": [True, False],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)],
    "ts": [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4000)],
    "tz": [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
    "time": [dt.time(0), dt.time(23, 59, 59, 999999)],
    "dec": [decimal.Decimal("0.00"), decimal.Decimal("-1.50"), decimal.Decimal("99999999.99")],
    "bin": [b"", b"a", b"ab", b"\xff"],
}
ROWS = st.integers(0, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            name: st.lists(st.none() | st.sampled_from(values), min_size=n, max_size=n)
            for name, values in EDGES.items()
        }
    )
)


@st.composite
def leaves(draw: st.DrawFn) -> pl.Expr:
    name = draw(st.sampled_from(list(EDGES)))
    column = pl.col(name)
    kind = draw(st.sampled_from(["compare", "missing", "null", "in", "between", "own"]))
    value = st.sampled_from(EDGES[name])
    if kind == "compare":
        operator = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__"]))
        made: pl.Expr = getattr(column, operator)(pl.lit(draw(value), SCHEMA_PL[name]))
    elif kind == "missing":
        other = draw(st.none() | value)
        made = column.eq_missing(other) if draw(st.booleans()) else column.ne_missing(other)
    elif kind == "null":
        made = column.is_null() if draw(st.booleans()) else column.is_not_null()
    elif kind == "in":
        choices = pl.Series(draw(st.lists(st.none() | value, max_size=4)), dtype=SCHEMA_PL[name])
        made = column.is_in(choices.implode(), nulls_equal=draw(st.booleans()))
    elif kind == "between":
        closed: Any = draw(st.sampled_from(["both", "left", "right", "none"]))
        low, high = (pl.lit(draw(value), SCHEMA_PL[name]) for _ in range(2))
        made = column.is_between(low, high, closed=closed)
    elif name == "s":
        text = draw(value)
        made = draw(
            st.sampled_from(
                [
                    column.str.starts_with(text),
                    column.str.ends_with(text),
                    column.str.contains(text, literal=True),
                ]
            )
        )
    elif name in ("f64", "f32"):
        made = column.is_nan() if draw(st.booleans()) else column.is_not_nan()
    else:
        made = pl.col("b")
    return made


SCHEMA_PL = frame(SCHEMA.empty_table()).schema
EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda e: ~e),
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values=ROWS, expression=EXPRESSIONS)
def test_a_predicate_means_what_its_expression_means(
    values: dict[str, list[Any]], expression: pl.Expr
) -> None:
    rows = pa.table(values, schema=SCHEMA)
    data = frame(rows)
    for part in normalised(expression, rows):
        expected = data.select(kept=part).get_column("kept")
        if len(expected) != len(data):
            expected = expected.new_from_index(0, len(data))
        found = evaluate(from_polars(part, SCHEMA), rows)
        assert found.to_pylist() == expected.to_list(), str(part)
