"""The 22 queries of TPC-H on lazy frames of Fluss tables: as on Parquet files, and as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import duckdb
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from benchmarks.tpch.data import generate, load, on_files, on_fluss
from benchmarks.tpch.queries import QUERIES
from fluss_df.client.connection import FlussConnection
from fluss_df.io import sink_fluss
from fluss_df.schema import Schema
from tests.io.conftest import MakeTable
from tests.tpch import SCALE, check, connect

ENGINES: list[Literal["streaming", "in-memory"]] = ["streaming", "in-memory"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return generate(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def duck(files: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(files) as made:
        yield made


@pytest.fixture(scope="module", params=["cluster", "embedded"])
def tables(
    request: pytest.FixtureRequest, files: dict[str, Path]
) -> Iterator[dict[str, pl.LazyFrame]]:
    if request.param == "embedded":
        with FlussConnection.create(":memory:") as engine:
            yield on_fluss(engine, load(engine, files, "tpch", 2))
        return
    make_table: MakeTable = request.getfixturevalue("make_table")
    connection: FlussConnection = request.getfixturevalue("connection")
    made = {}
    for name, file in files.items():
        rows = pl.read_parquet(file)
        made[name] = make_table(Schema(rows.to_arrow().schema).arrow_schema, bucket_count=2)
        sink_fluss(rows.lazy(), made[name], connection=connection)
    yield on_fluss(connection, made)


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
    for engine in ENGINES:
        # averages are sums of floats, in the order in which threads come
        found = query(tables).collect(engine=engine)
        assert_frame_equal(found, expected, rel_tol=1e-12, abs_tol=0)
