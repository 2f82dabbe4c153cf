"""The 22 queries of TPC-H on lazy frames of Fluss tables: as on Parquet files, and as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from benchmarks.tpch.data import generate, on_files, on_fluss
from benchmarks.tpch.queries import QUERIES
from fluss_df.io import sink_fluss
from fluss_df.schema import Schema
from tests.io.conftest import Place
from tests.tpch import SCALE, check, connect


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return generate(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def duck(files: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(files) as made:
        yield made


@pytest.fixture(scope="module")
def tables(place: Place, files: dict[str, Path]) -> dict[str, pl.LazyFrame]:
    made = {}
    for name, file in files.items():
        rows = pl.read_parquet(file)
        made[name] = place.make_table(Schema(rows.to_arrow().schema).arrow_schema, bucket_count=2)
        sink_fluss(rows.lazy(), made[name], connection=place.connection)
    return on_fluss(place.connection, made)


@pytest.mark.parametrize("number", QUERIES)
def test_a_query_answers_as_on_files(
    tables: dict[str, pl.LazyFrame],
    files: dict[str, Path],
    duck: duckdb.DuckDBPyConnection,
    number: int,
) -> None:
    query = QUERIES[number]
    expected = query(on_files(files)).collect()
    assert expected.height
    # that the query is the one of TPC-H
    check(duck, number, expected, empty_sum=0)
    # see the gap of expressions that are used twice
    options = pl.QueryOptFlags(comm_subexpr_elim=False)
    for found in (
        query(tables).collect(),
        query(tables).collect(engine="in-memory", optimizations=options),
    ):
        # averages are sums of floats, in the order in which threads come
        assert_frame_equal(found, expected, rel_tol=1e-12, abs_tol=0)
