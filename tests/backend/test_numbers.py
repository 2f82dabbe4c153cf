"""Numbers at the ends of what their columns hold: results have the types that Ibis and SQL say."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.backend.query_run import QueryRun
from fluss_df.backend.translation import PolarsType
from fluss_df.errors import FlussError

ROWS = pl.DataFrame(
    {
        "k": [1, 2, 3, 4],
        "g": ["a", "a", "b", "b"],
        "i1": [127, 127, -128, None],
        "i2": [32767, 32767, -32768, None],
        "i4": [2**31 - 1, 2**31 - 1, -(2**31), None],
        "f4": [0.1, 2.5, 3.3, None],
        "n": [Decimal("1.25"), Decimal("-3.75"), Decimal("99.99"), None],
    },
    schema={
        "k": pl.Int32,
        "g": pl.String,
        "i1": pl.Int8,
        "i2": pl.Int16,
        "i4": pl.Int32,
        "f4": pl.Float32,
        "n": pl.Decimal(10, 2),
    },
)
MOST = 2**31 - 1
SINGLES = [float(np.float32(value)) for value in (0.1, 2.5, 3.3)]


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    backend.create_table("t", ROWS)
    yield backend
    backend.disconnect()


@pytest.fixture
def t(con: Backend) -> ir.Table:
    return con.table("t")


def values(table: ir.Table) -> list[Any]:
    rows = table.to_pyarrow().to_pylist()
    return [tuple(row.values()) for row in rows]


def test_ibis_sums_whole_numbers_in_64_bits(t: ir.Table) -> None:
    assert values(t.aggregate(a=t.i4.sum(), b=t.i2.sum(), c=t.i1.sum())) == [(MOST - 1, 32766, 126)]
    grouped = t.group_by("g").agg(s=t.i4.sum()).order_by("g")
    assert values(grouped) == [("a", 2 * MOST), ("b", -(2**31))]
    kept = t.aggregate(s=t.i4.sum(where=t.k < 3))
    assert values(kept) == [(2 * MOST,)]
    over = t.mutate(s=t.i4.sum().over(group_by="g")).order_by("k").select("s")
    assert [s for (s,) in values(over)] == [2 * MOST, 2 * MOST, -(2**31), -(2**31)]


def test_ibis_multiplies_whole_numbers_in_the_type_that_it_says(t: ir.Table) -> None:
    made = t.select("k", a=t.i1 * t.i1, b=t.i2 * t.i1, c=t.i4 * t.i1).order_by("k")
    assert values(made)[:1] == [(1, 127 * 127, 32767 * 127, MOST * 127)]
    assert values(t.aggregate(s=(t.i2 * t.i2).sum())) == [(2 * 32767**2 + 32768**2,)]


def test_ibis_raises_whole_numbers_to_a_power(t: ir.Table) -> None:
    made = t.select("k", a=t.i1**2, b=t.i4**2).order_by("k")
    assert values(made) == [
        (1, 127.0**2, float(MOST) ** 2),
        (2, 127.0**2, float(MOST) ** 2),
        (3, 128.0**2, float(2**31) ** 2),
        (4, None, None),
    ]


def test_ibis_takes_means_of_floats_in_double_precision(t: ir.Table) -> None:
    (row,) = values(t.aggregate(m=t.f4.mean(), s=t.f4.sum(), v=t.f4.var(), d=t.f4.std()))
    expected = (
        statistics.fmean(SINGLES),
        sum(SINGLES),
        statistics.variance(SINGLES),
        statistics.stdev(SINGLES),
    )
    assert row == pytest.approx(expected, rel=1e-14)


# of values of truths, whole and floating-point numbers, a name each
TYPED: dict[str, Callable[[Any], Any]] = {
    "sum of truths": lambda t: (t.k > 2).sum(),
    "sum of some truths": lambda t: (t.k > 2).sum(where=t.k < 3),
    "mean of truths": lambda t: (t.k > 2).mean(),
    "count": lambda t: t.g.count(),
    "different values": lambda t: t.g.nunique(),
    "nearly": lambda t: t.g.approx_nunique(),
    "different rows": lambda t: t.nunique(),
    "bits": lambda t: t.i1.bit_or(),
    "median": lambda t: t.f4.median(),
    "quantile": lambda t: t.f4.quantile(0.3),
    "correlation": lambda t: t.f4.corr(t.f4),
    "covariance": lambda t: t.f4.cov(t.f4),
    "number": lambda t: ibis.row_number().over(order_by=t.k),
    "rank": lambda t: ibis.rank().over(order_by=t.k),
    "dense rank": lambda t: ibis.dense_rank().over(order_by=t.k),
    "part": lambda t: ibis.ntile(2).over(order_by=t.k),
    "running truths": lambda t: (t.k > 2).sum().over(order_by=t.k),
    "truths of groups": lambda t: (t.k > 2).sum().over(group_by=t.g),
    "length": lambda t: t.g.length(),
    "place": lambda t: t.g.find("b"),
    "hash": lambda t: t.g.hash(),
    "of a list": lambda t: ibis.array([t.k, t.k]).length(),
    "mean of a list": lambda t: ibis.array([t.f4, t.f4]).means(),
    "day": lambda t: ibis.date(2024, 1, t.k).day(),
    "day of the week": lambda t: ibis.date(2024, 1, t.k).day_of_week.index(),
    "days": lambda t: ibis.date(2024, 1, t.k).delta(ibis.date(2024, 1, 2), unit="day"),
    "quotient": lambda t: t.f4 / 3,
    "whole quotient": lambda t: t.i4 // 1,
    "of small ones": lambda t: t.i1 // t.i2,
    "of floats": lambda t: t.f4 // 2,
    "unless": lambda t: t.i1.nullif(t.i4),
    "power": lambda t: t.i4**2,
    "sign": lambda t: t.i1.sign(),
}


@pytest.mark.parametrize("name", TYPED)
def test_ibis_computes_in_the_type_that_it_says(con: Backend, t: ir.Table, name: str) -> None:
    value = TYPED[name](t).name("v")
    said = PolarsType.from_ibis(value.type())
    frame = con.compile(value)
    assert frame.collect_schema().dtypes() == frame.collect().dtypes == [said]


def test_ibis_subtracts_counts_of_truths(t: ir.Table) -> None:
    assert values(t.aggregate(d=(t.i4 < 0).sum() - (t.i4 > 0).sum())) == [(-1,)]
    grouped = t.group_by("g").agg(d=(t.i4 < 0).sum() - (t.i4 > 0).sum()).order_by("g")
    assert values(grouped) == [("a", -2), ("b", 1)]
    one, other = (t.aggregate(n=value) for value in ((t.i4 > 0).sum(), t.count()))
    assert sorted(values(one.union(other))) == [(2,), (4,)]


def test_ibis_divides_to_whole_numbers_of_64_bits(t: ir.Table) -> None:
    assert values(t.aggregate(s=(t.i4 // 1).sum())) == [(MOST - 1,)]
    made = t.select("k", a=t.i4 // -1, b=t.f4 // 1, c=t.f4 // 0, d=t.i4 // 0).order_by("k")
    assert values(made)[1:3] == [(2, -MOST, 2, None, None), (3, 2**31, 3, None, None)]


def test_ibis_has_null_for_what_fits_no_whole_number(con: Backend) -> None:
    large = pl.DataFrame(
        {
            "d": [1e300, 5.0, -5.0, float("nan"), float("inf")],
            "m": pl.Series(["5.5", "-5.5", "0", None, "1"]).cast(pl.Decimal(10, 2)),
            "z": pl.Series(["0", "2", "0", "1", None]).cast(pl.Decimal(10, 2)),
            "i": pl.Series([0, 2, 0, 1, None], dtype=pl.Int32),
        }
    )
    t = con.create_table("large", large, temp=True)
    made = t.select(
        quotient=t.d // 2,
        floor=t.d.floor(),
        ceil=t.d.ceil(),
        round=t.d.round(),
        decimal=t.m // t.z,
        whole=t.m // t.i,
        none=t.m // 0,
        rest=t.m % t.z,
        divided=t.i // t.z,
    )
    found = con.compile(made).collect().to_dict(as_series=False)
    assert found == {
        "quotient": [None, 2, -3, None, None],
        **{name: [None, 5, -5, None, None] for name in ("floor", "ceil", "round")},
        **{name: [None, -3, None, None, None] for name in ("decimal", "whole")},
        "none": [None] * 5,
        "rest": [None, Decimal("-1.50"), None, None, None],
        "divided": [None, 1, None, 1, None],
    }


def test_ibis_rounds_no_bound_of_between(t: ir.Table) -> None:
    for condition, wanted in (
        (t.k.between(1.5, 2.5), [2]),
        (t.k.between(Decimal("1.5"), Decimal("2.5")), [2]),
        (t.i1.between(0, 300), [1, 2]),
        (t.n.between(1.251, 99.9901), [3]),
        (t.f4.between(t.k, 3), [2]),
    ):
        assert t.filter(condition).k.to_pyarrow().to_pylist() == wanted


def test_ibis_divides_and_rounds_decimals_as_sql_does(t: ir.Table) -> None:
    thirds = [a for (a,) in values(t.order_by("k").select(a=t.n / 3))]
    assert thirds == [pytest.approx(1.25 / 3), -1.25, pytest.approx(33.33), None]
    made = t.select("k", b=t.n.round(1), c=t.n.ceil(), d=t.n.floor()).order_by("k")
    assert values(made) == [
        (1, Decimal("1.3"), Decimal("2.00"), Decimal("1.00")),
        (2, Decimal("-3.8"), Decimal("-3.00"), Decimal("-4.00")),
        (3, Decimal("100.0"), Decimal("100.00"), Decimal("99.00")),
        (4, None, None, None),
    ]
    assert values(t.select("k", a=t.n // 2).order_by("k"))[:2] == [(1, 0), (2, -2)]


def test_ibis_describes_columns_of_floats_and_decimals(t: ir.Table) -> None:
    described = t.filter(t.k < 3).select("k", "f4", "n", "g").describe().to_pyarrow().to_pylist()
    means = {row["name"]: row["mean"] for row in described}
    assert means == {"k": Decimal("1.50"), "f4": Decimal("1.30"), "n": Decimal("-1.25"), "g": None}
    assert {row["name"]: row["max"] for row in described}["f4"] == 2.5


def test_ibis_sums_decimals_over_frames(t: ir.Table) -> None:
    frame = t.n.sum().over(rows=(-1, 0), order_by="k")
    assert [s for (s,) in values(t.mutate(s=frame).order_by("k").select("s"))] == [
        Decimal("1.25"),
        Decimal("-2.50"),
        Decimal("96.24"),
        Decimal("99.99"),
    ]


def test_ibis_takes_no_characters_from_the_right_for_0(t: ir.Table) -> None:
    made = t.select("k", a=t.g.right(0), b=t.g.right(1), c=t.g.right(5)).order_by("k")
    assert values(made)[0] == (1, "", "a", "a")


def ask(con: Backend, query: str) -> list[tuple[Any, ...]]:
    return con.raw_sql(query).rows()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT SUM(i4) AS a, SUM(i2) AS b, SUM(i1) AS c FROM t", [(MOST - 1, 32766, 126)]),
        ("SELECT g, SUM(i4) AS s FROM t GROUP BY g ORDER BY g", [("a", 2 * MOST), ("b", -(2**31))]),
        ("SELECT g FROM t GROUP BY g HAVING SUM(i4) > 0", [("a",)]),
        ("SELECT SUM(i4) FILTER (WHERE k < 3) AS s FROM t", [(2 * MOST,)]),
        ("SELECT SUM(DISTINCT i4) AS s FROM t WHERE k < 3 OR k = 3", [(-1,)]),
        ("SELECT DISTINCT SUM(i4) OVER (PARTITION BY g) AS s FROM t WHERE k < 3", [(2 * MOST,)]),
        # of derived tables, common table expressions, joins, cases and set operations
        ("SELECT SUM(q.x) AS s FROM (SELECT i4 AS x FROM t WHERE k < 3) q", [(2 * MOST,)]),
        (
            "WITH q AS (SELECT i4 AS x FROM t), r AS (SELECT x FROM q WHERE x > 0)"
            " SELECT SUM(r.x) AS s FROM r",
            [(2 * MOST,)],
        ),
        ("SELECT SUM(x.i4) AS s FROM t x JOIN t y ON x.g = y.g WHERE x.k < 3", [(4 * MOST,)]),
        ("SELECT SUM(CASE WHEN k < 3 THEN i4 END) AS s FROM t", [(2 * MOST,)]),
        (
            "SELECT k FROM t WHERE k = 1 AND 4294967294 = (SELECT SUM(i4) FROM t WHERE k < 3)",
            [(1,)],
        ),
        (
            "SELECT SUM(q.i4) AS s FROM (SELECT i4 FROM t WHERE k = 1 UNION ALL"
            " SELECT i4 FROM t WHERE k = 1) q",
            [(2 * MOST,)],
        ),
        (
            "SELECT POWER(i4, 2) AS a, POW(i1, 2) AS b FROM t WHERE k = 1",
            [(MOST**2 * 1.0, 16129.0)],
        ),
        (
            "SELECT i1 + 100 AS a, 2 * i1 AS b, i2 - -1 AS c, -i1 - 2 + 1 AS d FROM t WHERE k = 1",
            [(227, 254, 32768, -128)],
        ),
        ("SELECT ABS(i1) + 100 AS a, COALESCE(i1, 0) * 2 AS b FROM t WHERE k = 1", [(227, 254)]),
        ("SELECT MAX(i1) + 100 AS a FROM t", [(227,)]),
        ("SELECT k FROM t WHERE i1 + 1 > 0 ORDER BY k", [(1,), (2,)]),
        (
            "SELECT i1 + i1 AS a, i2 * i2 AS b, i4 * i4 AS c, -i4 - i4 AS d FROM t WHERE k = 1",
            [(254, 32767**2, MOST**2, -2 * MOST)],
        ),
        (
            "SELECT i4 * 1000000000 AS a, (i4 + 1) * 2 AS b, i4 * k * k AS c FROM t WHERE k = 1",
            [(MOST * 10**9, (MOST + 1) * 2, MOST)],
        ),
        ("SELECT SUM(i4 * 2) AS a, SUM(i4) * 2 AS b FROM t WHERE k = 1", [(2 * MOST, 2 * MOST)]),
        ("WITH q AS (SELECT i4 * 2 AS z FROM t WHERE k = 1) SELECT z * 2 FROM q", [(4 * MOST,)]),
        ("SELECT COUNT(*) AS n FROM t GROUP BY i4 + 1 HAVING i4 + 1 = 2147483648", [(2,)]),
        ("SELECT k FROM t WHERE i4 * 2 > 4294967293 ORDER BY i4 + 1, k", [(1,), (2,)]),
        ("SELECT -CAST(-128 AS TINYINT) AS a, ABS(CAST(-128 AS TINYINT)) AS b", [(128, 128)]),
        # PostgreSQL needs a decimal to round to digits, and a decimal has no such numbers
        ("SELECT ROUND(CAST(i4 AS DOUBLE) * 1e30, 1) > 1e39 AS a FROM t WHERE k = 1", [(True,)]),
        ("SELECT ROUND(CAST(k AS DOUBLE) / 3, 12) AS a FROM t WHERE k = 1", [(0.333333333333,)]),
    ],
)
def test_sql_has_room_for_numbers(con: Backend, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert ask(con, query) == rows


def test_sql_writes_no_number_that_came_round(con: Backend) -> None:
    con.raw_sql("CREATE TABLE small (k INT, v TINYINT, PRIMARY KEY (k) NOT ENFORCED)")
    con.raw_sql("INSERT INTO small VALUES (1, 100)")
    con.raw_sql("UPDATE small SET v = v + 20")
    with pytest.raises(FlussError, match=r"220 \(int64\) would lose data as tinyint"):
        con.raw_sql("UPDATE small SET v = v + 100")
    assert ask(con, "SELECT v FROM small") == [(120,)]
    con.drop_table("small")


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("b + 1", 2**63),
        ("b * i", (2**63 - 1) * MOST),
        ("-b - i", -(2**63 - 1) - MOST),
        ("b + 1 - 1", 2**63),
        ("-(-b - 1)", 2**63),
        ("ABS(-b - 1)", 2**63),
        ("SUM(b)", 2**64 - 2),
        ("SUM(b) FILTER (WHERE i > 0)", 2**64 - 2),
    ],
)
def test_sql_refuses_numbers_beyond_bigint(con: Backend, expression: str, number: int) -> None:
    frame = pl.DataFrame({"b": [2**63 - 1] * 2, "i": pl.Series([MOST] * 2, dtype=pl.Int32)})
    con.create_table("large", frame, temp=True, overwrite=True)
    query = f"SELECT {expression} AS x FROM large"
    with pytest.raises(FlussError, match=f"{number} is beyond BIGINT: CAST an operand"):
        con.raw_sql(query)
    with pytest.raises(FlussError, match=f"{number} is beyond BIGINT: CAST an operand"):
        QueryRun(con, query).read_all()


def test_sql_writes_no_result_beyond_a_column(con: Backend) -> None:
    con.raw_sql("CREATE TABLE filled (k INT, n INT, b BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
    con.raw_sql(f"INSERT INTO filled VALUES (1, {MOST}, {2**63 - 1})")
    for change in (
        "UPDATE filled SET n = n + 1",
        "UPDATE filled SET n = n * k + k",
        "UPDATE filled SET b = b + 1",
        "MERGE INTO filled USING (VALUES (1, 5)) AS s(k, c) ON filled.k = s.k"
        " WHEN MATCHED THEN UPDATE SET n = filled.n + s.c",
    ):
        with pytest.raises(FlussError, match=r"would lose data as int|is beyond BIGINT"):
            con.raw_sql(change)
    con.raw_sql("UPDATE filled SET n = n - 1, b = b - 1")
    assert ask(con, "SELECT n, b FROM filled") == [(MOST - 1, 2**63 - 2)]
    con.drop_table("filled")


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("x.i4 = y.d", [(2,)]),
        ("y.d = x.i4", [(2,)]),
        ("x.i8 = y.f", [(2,)]),
        ("x.i4 = y.n", [(2,)]),
        ("x.i8 = y.n AND x.i4 = y.i4", [(2,)]),
        ("x.d = y.n", [(1,), (2,)]),
        ("x.f = y.d", [(1,), (2,)]),
    ],
)
def test_sql_joins_numbers_of_different_types(
    con: Backend, condition: str, rows: list[tuple[int]]
) -> None:
    frame = pl.DataFrame(
        {"i4": [1, 2], "i8": [1, 2], "f": [1.5, 2.0], "d": [1.5, 2.0], "n": ["1.50", "2.00"]},
        schema_overrides={"i4": pl.Int32, "f": pl.Float32},
    ).with_columns(pl.col("n").cast(pl.Decimal(10, 2)))
    con.create_table("kinds", frame, temp=True, overwrite=True)
    for join in ("JOIN", "LEFT JOIN"):
        found = ask(con, f"SELECT x.i4 AS a, y.i4 AS b FROM kinds x {join} kinds y ON {condition}")
        assert sorted((a,) for a, b in found if b is not None) == rows


@pytest.mark.parametrize(
    ("text", "truth"),
    [("true", True), (" Yes ", True), ("1", True), ("on", True), ("F", False), ("no", False)],
)
def test_sql_casts_texts_to_truths(con: Backend, text: str, truth: bool) -> None:
    assert ask(con, f"SELECT CAST('{text}' AS BOOLEAN) AS x") == [(truth,)]
    query = f"SELECT CAST(s AS BOOLEAN) AS x FROM (SELECT '{text}' AS s FROM t WHERE k = 1) q"
    assert ask(con, query) == [(truth,)]


def test_sql_refuses_texts_that_are_no_truths(con: Backend) -> None:
    with pytest.raises(FlussError, match="no BOOLEAN: maybe"):
        con.raw_sql("SELECT CAST('maybe' AS BOOLEAN) AS x")
    query = "SELECT TRY_CAST('maybe' AS BOOLEAN) AS x, TRY_CAST(g AS BOOLEAN) IS NULL AS y FROM t"
    assert ask(con, f"{query} WHERE k = 1") == [(None, True)]


def test_update_reads_literals_as_insert_does(con: Backend) -> None:
    con.raw_sql(
        "CREATE TABLE read (k INT, d DATE, s TIMESTAMP(9), m TIME, f FLOAT, n INT,"
        " PRIMARY KEY (k) NOT ENFORCED)"
    )
    literals = "'2024-01-31'", "'2024-01-31 10:00:00.123456789'", "'12:34:56'", "0.1", "2.0"
    con.raw_sql(f"INSERT INTO read VALUES (1, {', '.join(literals)}), (2, {'NULL, ' * 4} NULL)")
    pairs = ", ".join(f"{c} = {v}" for c, v in zip("dsmfn", literals, strict=True))
    con.raw_sql(f"UPDATE read SET {pairs} WHERE k = 2")
    query = "SELECT DISTINCT d, s, m, f, n FROM read"
    assert con.raw_sql(query).height == 1
    con.raw_sql("UPDATE read SET d = NULL, f = -0.1, n = -2.0, m = '01:00:00'")
    assert con.raw_sql(query).row(0)[2:] == (dt.time(1), float(np.float32(-0.1)), -2)
    for change, told in (
        ("d = '2024-02-30'", r"expected '2024-01-31' \(line 1, column 21\)"),
        ("n = 1.5", r"it has a fraction \(line 1, column 21\)"),
        ("m = 'noon'", "does not go into time: expected '12:34:56'"),
    ):
        with pytest.raises(FlussError, match=told):
            con.raw_sql(f"UPDATE read SET {change}")
    con.drop_table("read")


def test_sql_takes_means_of_floats_in_double_precision(con: Backend) -> None:
    (row,) = ask(con, "SELECT AVG(f4) AS m, STDDEV(f4) AS d, VARIANCE(f4) AS v FROM t")
    expected = statistics.fmean(SINGLES), statistics.stdev(SINGLES), statistics.variance(SINGLES)
    assert row == pytest.approx(expected, rel=1e-14)


def test_sql_adds_hours_to_a_date(con: Backend) -> None:
    days = "(SELECT DATE '2024-01-01' AS d FROM t WHERE k = 1) q"
    query = (
        "SELECT q.d + INTERVAL '36 hours' AS a, q.d - INTERVAL '1 second' AS b,"
        f" INTERVAL '90 minutes' + q.d AS c, q.d + INTERVAL '2 days' AS e FROM {days}"
    )
    assert ask(con, query) == [
        (
            dt.datetime(2024, 1, 2, 12),
            dt.datetime(2023, 12, 31, 23, 59, 59),
            dt.datetime(2024, 1, 1, 1, 30),
            dt.date(2024, 1, 3),
        )
    ]


def test_sql_takes_the_first_characters_of_no_text(con: Backend) -> None:
    query = "SELECT LEFT(NULLIF(g, 'a'), 0) AS x, LEFT(g, 0) AS y FROM t ORDER BY k"
    assert ask(con, query) == [(None, ""), (None, ""), ("", ""), ("", "")]
