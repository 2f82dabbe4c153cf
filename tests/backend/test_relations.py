"""Aggregates over nulls, and values in the place of nulls, beside DuckDB's answers."""

from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pytest
from ibis import _

from fluss_df.backend import Backend
from fluss_df.errors import FlussError

ROWS = pl.DataFrame(
    {
        "g": [1, 1, 2, 2, 3, 3],
        "b": [None, None, True, None, False, None],
        "f": [None, None, 1.0, 1.0, 2.0, None],
        "d": pl.Series([None, Decimal("1.5"), None, None, None, None], dtype=pl.Decimal(10, 1)),
    }
)


@pytest.fixture
def table(con: Backend) -> Any:
    con.raw_sql("CREATE DATABASE IF NOT EXISTS relations")
    con.raw_sql("USE relations")
    return con.create_table("t", ROWS, overwrite=True, buckets=1)


def test_truths_and_modes_of_nulls(table: Any) -> None:
    rows = ROWS.drop("d").to_arrow()  # noqa: F841
    known = (
        duckdb.connect()
        .execute(
            "SELECT g, bool_or(b), bool_and(b), bool_or(b) FILTER (g > 2), mode(f) FROM rows"
            " GROUP BY g ORDER BY g"
        )
        .fetchall()
    )
    found = table.group_by("g").agg(
        one=table.b.any(),
        each=table.b.all(),
        some=table.b.any(where=table.g > 2),
        mode=table.f.mode(),
    )
    assert found.order_by("g").to_polars().rows() == known
    empty = table.filter(table.g == 9)
    none = empty.aggregate(a=empty.b.any(), b=empty.b.all(), c=empty.f.mode())
    assert none.to_polars().rows() == [(None, None, None)]
    over = table.mutate(x=table.b.any().over(group_by="g")).order_by("g").x
    assert over.to_polars().to_list() == [None, None, True, True, False, False]


def test_a_null_is_not_filled_with_another_number(table: Any) -> None:
    filled = table.fill_null({"d": Decimal("2.5")}).d.to_polars()
    assert filled.null_count() == 0
    for column, value in (("d", Decimal("1.23")), ("d", 1.25)):
        with pytest.raises(FlussError, match=f"fill_null: column '{column}' .* hold {value}"):
            table.fill_null({column: value}).to_polars()


def test_a_number_that_is_none_is_not_filled(con: Backend) -> None:
    rows = pl.DataFrame({"f": [float("nan"), None, 1.0]})
    made = con.create_table("numbers", rows, overwrite=True, buckets=1)
    for filled in (
        made.fill_null(0.0),
        made.fill_null({"f": 0.0}),
        made.select(f=_.f.fill_null(0)),
    ):
        found = filled.f.to_polars().to_list()
        assert [str(value) for value in found] == ["nan", "0.0", "1.0"]
