"""Window functions equal to DuckDB's, over groups, orders and frames."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import duckdb
import ibis
import ibis.expr.types as ir
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection

ROWS = pl.DataFrame(
    {
        "id": range(60),
        "g": [f"g{n * 7 % 4}" for n in range(60)],
        "x": [None if n % 11 == 5 else n * 37 % 23 for n in range(60)],
        "f": [n * 17 % 29 * 0.25 for n in range(60)],
    },
    schema_overrides={"x": pl.Int64},
)

FRAMES: dict[str, dict[str, Any]] = {
    "whole": {},
    "running": {"preceding": None, "following": 0},
    "to_come": {"preceding": 0, "following": None},
    "trailing": {"preceding": 2, "following": 0},
    "around": {"preceding": 1, "following": 1},
    "behind": {"preceding": (3, 1)},
    "ahead": {"following": (1, 2)},
}
# the first and the last row of a frame, from the row itself
BOUNDS = {
    "whole": (-60, 60),
    "running": (-60, 0),
    "to_come": (0, 60),
    "trailing": (-2, 0),
    "around": (-1, 1),
    "behind": (-3, -1),
    "ahead": (1, 2),
}
REDUCTIONS: dict[str, Callable[[ir.Table], ir.Value]] = {
    "sum": lambda t: t.x.sum(),
    "mean": lambda t: t.x.mean(),
    "min": lambda t: t.x.min(),
    "max": lambda t: t.f.max(),
    "count": lambda t: t.x.count(),
    "rows": lambda t: t.count(),
    "where": lambda t: t.x.sum(where=t.x > 5),
    "std": lambda t: t.x.std(),
    "median": lambda t: t.x.median(),
    "first": lambda t: t.id.first(),
    "last": lambda t: t.id.last(),
}
RANKS: dict[str, Callable[[ir.Table], ir.Value]] = {
    "row_number": lambda t: ibis.row_number(),
    "rank": lambda t: ibis.rank(),
    "dense_rank": lambda t: ibis.dense_rank(),
    "percent_rank": lambda t: ibis.percent_rank(),
    "cume_dist": lambda t: ibis.cume_dist(),
    "ntile": lambda t: ibis.ntile(4),
    "lag": lambda t: t.id.lag(2, -1),
    "lead": lambda t: t.id.lead(),
    "nth": lambda t: t.id.nth(1),
}


@pytest.fixture(scope="module")
def table() -> ir.Table:
    con: Backend = Backend().connect(FlussConnection.create(":memory:"))
    return con.create_table("t", ROWS, buckets=1)


def check(table: ir.Table, made: Callable[[ir.Table], ir.Value]) -> None:
    def query(t: ir.Table) -> ir.Table:
        return t.select("id", result=made(t)).order_by("id")

    found = query(table).to_pyarrow()
    sql = ibis.to_sql(query(ibis.table(table.schema(), name="t")), dialect="duckdb")
    with duckdb.connect() as duck:
        duck.register("t", ROWS.to_arrow())
        expected = duck.sql(str(sql)).to_arrow_table()
    assert_frame_equal(pl.DataFrame(found), pl.DataFrame(expected), check_dtypes=False)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_frames_of_rows(table: ir.Table, name: str, frame: str, grouped: bool) -> None:
    def made(t: ir.Table) -> ir.Value:
        options = FRAMES[frame]
        group = [t.g] if grouped else None
        if not options:
            window = ibis.window(group_by=group)
            if name in ("first", "last"):
                window = ibis.window(group_by=group, order_by=[t.x, t.id])
        else:
            window = ibis.rows_window(group_by=group, order_by=[t.x.desc(), t.id], **options)
        return REDUCTIONS[name](t).over(window)

    check(table, made)


@pytest.mark.parametrize("name", ["sum", "count", "min", "std", "rows"])
@pytest.mark.parametrize("bounds", [(None, 0), (3, 0), (2, 2), (0, None)])
def test_frames_of_values(
    table: ir.Table, name: str, bounds: tuple[int | None, int | None]
) -> None:
    def made(t: ir.Table) -> ir.Value:
        window = ibis.range_window(
            group_by=t.g, order_by=t.x, preceding=bounds[0], following=bounds[1]
        )
        return REDUCTIONS[name](t).over(window)

    check(table, made)


@pytest.mark.parametrize("kind", ["TINYINT", "SMALLINT", "INTEGER", "BIGINT"])
def test_frames_of_values_at_the_bounds_of_their_type(kind: str) -> None:
    most = 2 ** {"TINYINT": 7, "SMALLINT": 15, "INTEGER": 31, "BIGINT": 63}[kind] - 1
    keys = [-most, -most + 20, 0, most - 20, most]
    names = {"TINYINT": pl.Int8, "SMALLINT": pl.Int16, "INTEGER": pl.Int32, "BIGINT": pl.Int64}
    frame = pl.DataFrame({"k": keys, "v": range(1, 6)}, schema={"k": names[kind], "v": pl.Int64})
    con: Backend = Backend().connect(FlussConnection.create(":memory:"))
    t = con.create_table("t", frame, buckets=1)
    window = ibis.range_window(order_by=t.k, preceding=100, following=100)
    expr = t.select("k", total=t.v.sum().over(window)).order_by("k")
    expected = [sum(v for v, k in enumerate(keys, 1) if abs(k - key) <= 100) for key in keys]
    assert expr.to_polars()["total"].to_list() == expected


def test_frames_of_hours_around_dates() -> None:
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 2), dt.date(2024, 1, 4)]
    con: Backend = Backend().connect(FlussConnection.create(":memory:"))
    t = con.create_table("t", pl.DataFrame({"d": days}), buckets=1)
    for hours, expected in ((12, [1, 2, 2, 1]), (24, [1, 3, 3, 1]), (47, [1, 3, 3, 1])):
        window = ibis.range_window(order_by=t.d, preceding=ibis.interval(hours=hours), following=0)
        found = t.select("d", n=t.count().over(window)).order_by("d").to_polars()["n"]
        assert found.to_list() == expected


@pytest.mark.parametrize("name", RANKS)
def test_positions(table: ir.Table, name: str) -> None:
    def made(t: ir.Table) -> ir.Value:
        ties = name in ("rank", "dense_rank", "percent_rank", "cume_dist")
        order = [t.x] if ties else [t.x.desc(), t.id]
        return RANKS[name](t).over(ibis.window(group_by=t.g, order_by=order))

    check(table, made)


@pytest.mark.parametrize("frame", FRAMES)
def test_nan_is_passed_over(table: ir.Table, frame: str) -> None:
    # so does Polars; in DuckDB it is the largest number
    value = (table.id == 9).ifelse(float("nan"), table.f)
    options = FRAMES[frame]
    window = ibis.rows_window(order_by=table.id, **options) if options else ibis.window()
    found = table.select("id", top=value.max().over(window)).order_by("id").to_polars()["top"]
    numbers = [None if n == 9 else number for n, number in enumerate(ROWS["f"])]
    begin, end = BOUNDS[frame]
    for at in range(ROWS.height):
        seen = numbers[max(at + begin, 0) : max(at + end + 1, 0)]
        assert found[at] == max((number for number in seen if number is not None), default=None)
