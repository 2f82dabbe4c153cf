"""What is relied on in Polars' expressions, and that predicates mean what the expressions mean."""

import datetime as dt
import decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from polars.lazyframe.resolver import FilterExpr, LazyFrameResolver

from fluss_df.pushdown.evaluate import evaluate
from fluss_df.pushdown.from_polars import PolarsConjunct, _unview, from_polars, matches
from fluss_df.pushdown.predicate import UnsupportedExpression
from tests.pushdown.expressions import EXPRESSIONS, ROWS, SCHEMA, frame

UTC = dt.UTC
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
        c.f32 > pl.lit(0.1, dtype=pl.Float64),
        c.f64 == pl.lit(0.5, dtype=pl.Float32),
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


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (pl.lit(None, pl.Boolean), "null"),
        (pl.lit(True), "true"),
        (pl.lit(5) >= c.i64, "i64 <= 5"),
        (pl.lit(5) != c.i64, "i64 != 5"),
        (c.i64.ne_missing(None), "i64 is not null"),
        (c.i64.eq_missing(pl.lit(None)), "i64 is null"),
        (c.s.str.starts_with(pl.lit(None, pl.String)), "null"),
        (c.i64.is_in([None], nulls_equal=True), "i64 is null or i64 in ()"),
        (c.i64.is_in(pl.Series([1, 2]).implode()), "i64 in (1, 2)"),
        (c.bin.is_in([b"x"]), "bin in (b'x')"),
        (c.i64.is_between(1, 5, closed="right"), "i64 > 1 and i64 <= 5"),
        (c.i64.is_between(1, 5, closed="none"), "i64 > 1 and i64 < 5"),
    ],
    ids=str,
)
def test_rare_forms_are_understood(expression: pl.Expr, text: str) -> None:
    assert str(from_polars(expression, SCHEMA)) == text


@pytest.mark.parametrize(
    "expression",
    [
        pl.lit(5),
        c.i64,
        ~c.i64,
        c.i64.is_nan(),
        (c.i64 + 1).is_null(),
        c.i64.is_in(c.i64.implode()),
        c.i64.is_between(c.i8, 5),
        c.s.str.starts_with(c.s),
        c.s.str.contains("a.b"),
        c.s.str.contains("a+"),
        c.s.str.contains("(a)"),
        c.f32.is_between(0.1, 0.2),
        c.f64.is_in([1, 2]),
        c.i64.is_in([0.5]),
        c.i64.eq_missing(1.5),
        c.s.str.to_lowercase().str.contains("a"),
    ],
    ids=str,
)
def test_what_only_looks_like_a_predicate_is_left(expression: pl.Expr) -> None:
    with pytest.raises(UnsupportedExpression):
        from_polars(expression, SCHEMA)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (c.i64 > 1, [False, True, False]),
        (pl.lit(True), [True, True, True]),
        (pl.lit(None, pl.Boolean), [False, False, False]),
    ],
    ids=str,
)
def test_matching_says_it_for_each_row(expression: pl.Expr, expected: list[bool]) -> None:
    assert matches(expression, pl.DataFrame({"i64": [1, 2, None]})).to_list() == expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (c.i64 + 1, "not boolean"),
        (c.i64.filter(c.i64 > 1) > 0, "not a value for each row"),
        (c.missing > 1, "ColumnNotFoundError"),
    ],
    ids=str,
)
def test_matching_refuses_what_is_no_condition_on_rows(expression: pl.Expr, text: str) -> None:
    with pytest.raises(UnsupportedExpression, match=text):
        matches(expression, pl.DataFrame({"i64": [1, 2, 3]}))


@pytest.mark.parametrize("expression", [c.raw == b"a", c.raw.is_in([b"a", b"b"])])
def test_bytes_are_looked_for(expression: pl.Expr) -> None:
    rows = pa.table({"raw": pa.array([b"a", b"c", None], pa.binary())})
    predicate = from_polars(expression, rows.schema)
    assert evaluate(predicate, rows).to_pylist() == [True, False, None]


def test_every_layout_of_texts_and_bytes_is_made_one() -> None:
    for kinds, one in (
        ((pa.binary_view(), pa.large_binary(), pa.binary()), pa.binary()),
        ((pa.string_view(), pa.large_string(), pa.string()), pa.string()),
    ):
        for kind in kinds:
            made = _unview(pa.array([b"a", None]).cast(one).cast(kind))
            assert (made.type, made.to_pylist()[1]) == (one, None)
    numbers = pa.array([1])
    assert _unview(numbers) is numbers
