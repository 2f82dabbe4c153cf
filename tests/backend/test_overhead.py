"""What the Ibis path costs beyond the same query in Polars, on small tables."""

import time
from collections.abc import Callable

import ibis.expr.types as ir
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection

LIMIT_S = 0.010
TURNS = 15

_Queries = tuple[ir.Table, pl.LazyFrame]


@pytest.fixture(scope="module")
def con() -> Backend:
    made: Backend = Backend().connect(FlussConnection.create(":memory:"))
    for name in ("left_table", "right_table"):
        rows = pl.select(
            id=pl.int_range(1000), g=pl.int_range(1000) % 7, v=pl.int_range(1000) * 1.5
        )
        made.create_table(name, rows, buckets=1)
    return made


def _filter(con: Backend, scan: Callable[[str], pl.LazyFrame]) -> _Queries:
    table, frame = con.table("left_table"), scan("left_table")
    return table.filter(table.id > 500).select("id", "v"), frame.filter(pl.col.id > 500).select(
        "id", "v"
    )


def _aggregate(con: Backend, scan: Callable[[str], pl.LazyFrame]) -> _Queries:
    table, frame = con.table("left_table"), scan("left_table")
    return (
        table.group_by("g").agg(total=table.v.sum(), n=table.count()),
        frame.group_by("g").agg(total=pl.col.v.sum(), n=pl.len()),
    )


def _join(con: Backend, scan: Callable[[str], pl.LazyFrame]) -> _Queries:
    table, other = con.table("left_table"), con.table("right_table")
    frame = scan("left_table").join(scan("right_table"), on="id")
    return table.join(other, "id").select("id", "g", "v"), frame.select("id", "g", "v")


@pytest.mark.parametrize("make", [_filter, _aggregate, _join])
def test_overhead(con: Backend, make: Callable[..., _Queries]) -> None:
    expr, frame = make(con, con.scan_table)
    assert expr.to_polars().height == frame.collect().height
    # The processor's time of this thread, which translates: Polars runs queries in others. In
    # turns, the best of each: other work on the machine slows both.
    through_ibis, through_polars = [], []
    for _ in range(TURNS):
        began = time.thread_time()
        frame.collect()
        middle = time.thread_time()
        expr.to_polars()
        through_polars.append(middle - began)
        through_ibis.append(time.thread_time() - middle)
    assert min(through_ibis) - min(through_polars) < LIMIT_S
