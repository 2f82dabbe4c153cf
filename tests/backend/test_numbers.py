"""Numbers at the ends of what their columns hold: results have the types that Ibis and SQL say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import ibis.expr.types as ir
import numpy as np
import polars as pl
import pytest

from fluss_df.backend import Backend

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
