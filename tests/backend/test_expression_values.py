"""Expressions over awkward values: the rows of Ibis's DuckDB backend, or a refusal by name."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import ibis
import ibis.common.exceptions as com
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.io.scan import explain

FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)
T = pl.DataFrame(
    {
        "k": [1, 2, 3, 4],
        "i1": [-7, 127, 1, None],
        "f4": [0.1, -14.5, 1e30, None],
        "n": [Decimal("-7.50"), Decimal("2.25"), Decimal("0.00"), None],
        "s": ["aaa", "aXbXa", "", None],
        "s2": ["$1", None, "b", "c"],
        "d": [dt.date(2024, 1, 31), dt.date(2024, 1, 7), dt.date(9999, 12, 31), None],
        "d2": [dt.date(2024, 2, 1), dt.date(2024, 1, 8), dt.date(1, 1, 1), None],
        "m3": [FIRST, LAST, dt.datetime(2024, 1, 1), None],
        "m6": [dt.datetime(2024, 1, 1, 0, 0, 0, 5), dt.datetime(2024, 1, 1), LAST, None],
        "z": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, FIRST.replace(tzinfo=dt.UTC), None],
        "b": [True, False, None, True],
    },
    schema={
        "k": pl.Int32,
        "i1": pl.Int8,
        "f4": pl.Float32,
        "n": pl.Decimal(10, 2),
        "s": pl.String,
        "s2": pl.String,
        "d": pl.Date,
        "d2": pl.Date,
        "m3": pl.Datetime("ms"),
        "m6": pl.Datetime("us"),
        "z": pl.Datetime("us", "UTC"),
        "b": pl.Boolean,
    },
)
U = pl.DataFrame(
    {"u": [Decimal("2.25000"), Decimal("-7.50001")], "at": [dt.datetime(2024, 1, 1)] * 2},
    schema={"u": pl.Decimal(20, 5), "at": pl.Datetime("us")},
)

VALUES = """
t.i1 % 3
t.i1 % -3
t.n % 2
t.f4 % -4.0
t.i1.clip(-1000, 1000)
t.i1.clip(0, 1000)
t.n.cos()
t.n.atan()
t.n.abs().sqrt()
(t.n.abs() + 1).ln()
t.n ** 2
t.f4.radians()
t.f4.round(-1)
(t.i1 // 2 + 70).round(-1)
t.n // 2
t.z.truncate('W') == t.m6.bucket(hours=1)
t.s.replace("a", "zz")
t.s.replace("a", t.s2)
t.s.replace("X", "$1")
t.s.replace("", "z")
t.s.re_replace("a(X)?", r"<\\1>")
t.s.re_replace("a", "$0")
t.s.repeat(0)
t.s.split("X")[1]
ibis.array([t.s, t.s2]).join("-")
ibis.array([t.s.nullif(t.s), t.s.nullif(t.s)]).join("-")
t.m3 != ibis.timestamp("0001-01-01")
t.m3.isin([ibis.timestamp("0001-01-01"), ibis.timestamp("2024-01-01")])
t.z != ibis.timestamp("0001-01-01")
t.z.isin([ibis.timestamp("0001-01-01"), None])
t.z >= t.m6
t.m3 < t.z
t.z.between(t.m3, t.m6)
t.d <= ibis.timestamp("0001-01-01")
t.d.cast("timestamp")
t.m3.truncate("D").cast("timestamp(0)")
ibis.ifelse(t.b, t.m3, t.m6)
ibis.coalesce(t.m3.nullif(t.m3), t.m6)
ibis.greatest(t.m3, t.m6)
ibis.coalesce(t.z, t.m3.cast("timestamp('UTC', 6)"))
ibis.cases((t.b, t.m3), else_=t.m6)
t.d2.delta(t.d, unit="month")
t.d2.delta(t.d, unit="year")
t.d2.delta(t.d, unit="day")
t.m6.delta(t.m3, unit="hour")
t.m6.delta(t.m3, unit="quarter")
t.d.strftime("%H:%M %d")
t.f4 == 0.1
t.f4 != 0.1
t.f4 > 0.1
ibis.literal(0.1) >= t.f4
t.f4 < 1e300
t.f4 == float("nan")
t.f4.isin([0.1, 5.0])
t.f4.notin([0.1])
t.f4.identical_to(0.1)
t.f4.between(0.1, 0.1)
t.f4.nullif(0.1)
t.f4.cases((0.1, 1), else_=0)
t.f4 + 1 == 1.1
t.d > "2024-01-07"
"2024-01-07" >= t.d
t.d.isin(["2024-01-31", "2024-01-07"])
t.d.notin(["2024-01-31", dt.date(2024, 1, 7)])
t.d.identical_to("2024-01-31")
t.d.between("2024-01-07", "2024-01-31")
t.d.cases(("2024-01-31", 1), else_=0)
t.m6 != "2024-01-01 00:00:00.000005"
t.m3 == "2024-01-01"
t.m3.isin(["2024-01-01", "0001-01-01 00:00:00"])
t.z == "2024-01-01"
t.z <= "2024-01-01 01:00:00+01:00"
t.m6.time() == "00:00:00"
ibis.literal('a_b').re_split('_')[0]
t.s.max().over(ibis.window(order_by=t.k, rows=(-1, 0)))
t.k.sum().over(ibis.window(order_by=ibis.literal(1), range=(None, 0)))
ibis.rank().over(order_by=ibis.literal(1))
ibis.cume_dist().over(order_by=ibis.literal(dt.date(2024, 1, 1)))
t.s.collect(where=t.k > 9).over(group_by=t.b)
"""
TABLES = """
t.aggregate(x=t.i1.count() - t.k.count(), y=t.i1.nunique() - t.k.nunique(), z=-t.count())
t.group_by("b").agg(x=t.i1.count() - t.count(), y=t.i1.nunique() - t.k.nunique() - 1)
t.aggregate(x=t.i1.approx_nunique() - t.k.approx_nunique(), y=1 - t.nunique())
t.select(x=t.s.split("X").length() - 9, y=~t.s.split("X").length())
t.filter(t.k > 9).aggregate(x=t.s.collect())
t.group_by("b").agg(x=t.s2.collect(order_by=t.k), y=t.s2.collect(where=t.k == 1))
t.filter(t.k > 9).aggregate(x=t.k.corr(t.i1, how="pop"), y=t.k.cov(t.i1))
t.group_by("b").agg(x=t.k.cov(t.i1, how="pop"), y=t.k.cov(t.i1), z=t.k.cov(t.i1, where=t.b))
t.join(u, t.n == u.u).select("k")
t.join(u, t.z == u["at"]).select("k", "u")
t.filter((t.n == u.u).any())
t.filter((t.z == u["at"]).any())
t.filter(t.n.isin(u.u))
t.mutate(x=u.filter(u.u == t.n).count())
"""


def lines(text: str) -> list[str]:
    return [line for line in text.replace("\\\\", "\\").splitlines() if line]


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    backend.create_table("t", T)
    backend.create_table("u", U)
    yield backend
    backend.disconnect()


@pytest.fixture(scope="module")
def duck() -> Any:
    backend = ibis.duckdb.connect()
    backend.raw_sql("SET TimeZone = 'UTC'")
    for name, frame in (("t", T), ("u", U)):
        backend.con.register("frame", frame.to_arrow())
        backend.con.execute(f"CREATE TABLE {name} AS SELECT * FROM frame")
        backend.con.unregister("frame")
    return backend


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.12g}")
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def found(backend: Any, text: str) -> list[str]:
    scope = {"t": backend.table("t"), "u": backend.table("u"), "ibis": ibis, "dt": dt}
    rows = eval(text, scope).to_pyarrow().to_pylist()
    return sorted(repr(plain(tuple(row.values()))) for row in rows)


# of Ibis, about the release of DuckDB
@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize(
    "text", [*(f"t.select('k', x={value})" for value in lines(VALUES)), *lines(TABLES)]
)
def test_an_expression_is_that_of_duckdb(con: Backend, duck: Any, text: str) -> None:
    assert found(con, text) == found(duck, text)


@pytest.mark.parametrize("form", ["execute", "to_polars", "to_pyarrow"])
def test_far_times_come_in_every_form(con: Backend, form: str) -> None:
    t = con.table("t")
    for value in (t.m3.truncate("D"), t.m3.cast("timestamp"), t.d.cast("timestamp")):
        assert len(getattr(t.select(x=value), form)()) == 4
        assert len(getattr(value, form)()) == 4


@pytest.mark.parametrize(
    "text", ["t.s.lpad(5, 'ab')", "t.s.replace(t.s2, 'x')", "t.m6.delta(t.m3, unit='nanosecond')"]
)
def test_what_is_not_there_is_refused_by_name(con: Backend, text: str) -> None:
    with pytest.raises(com.UnsupportedOperationError, match=r"one character|literal|counts no"):
        found(con, f"t.select(x={text})")


def test_weeks_begin_on_mondays(con: Backend) -> None:
    t = con.table("t").order_by("k").limit(2)
    assert t.select(x=t.d2.delta(t.d, unit="week")).to_polars()["x"].to_list() == [0, 1]


def test_a_literal_in_front_of_a_column_is_compared_with_all_rows(con: Backend) -> None:
    con.create_table(
        "parts",
        pl.DataFrame(
            {"p": ["a", "a", "b", "b"], "id": range(4), "s": list("xyxy"), "n": [1, 2] * 2}
        ),
        primary_key=["id", "p"],
        partition_by="p",
        buckets=2,
    )
    t = con.table("parts")
    t = t.filter(t.n + 0 == 1)
    expression = t.select(c=ibis.literal("x") == t.s)
    query = con.sql("SELECT 'x' = s AS c FROM parts WHERE n + 0 = 1")
    for asked in (expression, query):
        assert asked.to_polars(engine="in-memory")["c"].to_list() == [True, True]


def test_literals_beside_floats_and_times_are_pushed_down(con: Backend) -> None:
    con.create_table("keyed", T.select("f4", "d", "m6", "k"), primary_key="k")
    t = con.table("keyed")
    conditions = {
        "f4 == 0.1": t.f4 == 0.1,
        "f4 == 0.1 or f4 == 0.5": t.f4.isin([0.1, 0.5]),
        "d > 2024-01-07": t.d > "2024-01-07",
        "d == 2024-01-07 or d == 2024-01-08": t.d.isin(["2024-01-07", "2024-01-08"]),
        "d >= 2024-01-07 and d <= 2024-01-08": t.d.between("2024-01-07", "2024-01-08"),
        "m6 == 2024-01-01 00:00:00": t.m6 == "2024-01-01",
    }
    for shown, condition in conditions.items():
        plan = explain(con.compile(t.filter(condition))) or ""
        assert shown in plan.replace("0.10000000149011612", "0.1")


def test_a_text_that_is_no_time_is_told(con: Backend) -> None:
    t = con.table("t")
    for condition in (t.d.isin(["soon"]), t.d.notin(["2024-01-01", "soon"])):
        with pytest.raises(FlussError, match="'d' is date, and is compared with the text 'soon'"):
            t.filter(condition).execute()


def test_the_rest_of_a_division_by_infinity_is_all_of_it() -> None:
    con: Backend = Backend().connect(":memory:")
    rows = pl.DataFrame({"f": [1.5, -8.5, -0.0, float("nan"), float("inf"), None]})
    t = con.create_table("t", rows.with_columns(i=pl.lit(-3)), buckets=1)
    for infinity in (float("inf"), float("-inf")):
        found = t.select(f=t.f % infinity, i=t.i % infinity).to_polars()
        assert str(found["f"].to_list()) == "[1.5, -8.5, -0.0, nan, nan, None]"
        assert found["i"].to_list() == [-3.0] * 6
