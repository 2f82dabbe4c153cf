"""The 22 queries of TPC-H on Fluss tables, as expressions and as SQL, equal to DuckDB's results."""

import inspect
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import ibis
import ibis.expr.types as ir
import polars as pl
import polars.selectors as cs
import pytest
from ibis.backends.tests.tpc.conftest import add_date
from ibis.backends.tests.tpc.h import test_queries as queries
from polars.testing import assert_frame_equal

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from tests.backend.patience import patient

SCALE = "0.01"
NUMBERS = [f"{number:02}" for number in range(1, 23)]
# Ibis's tests hold the queries as SQL, too
SQL = Path(queries.__file__).parents[1] / "queries" / "duckdb" / "h"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tpch")
    tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    command = [str(tool), "parquet", "-s", SCALE, f"--output-dir={folder}"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return {path.stem: path for path in folder.glob("*.parquet")}


@pytest.fixture(scope="module")
def duck(data: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        for name, path in data.items():
            made.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
        yield made


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def tpch(request: pytest.FixtureRequest, data: dict[str, Path]) -> Backend:
    made: Backend
    if request.param == "embedded":
        made = Backend().connect(FlussConnection.create(":memory:"))
    else:
        connection: FlussConnection = request.getfixturevalue("cluster_connection")
        connection.get_admin().create_database("tpch", ignore_if_exists=True)
        made = Backend().connect(connection, database="tpch")
        made._create = patient(made)  # type: ignore[method-assign]
    for name, path in data.items():
        made.create_table(name, pl.scan_parquet(path), buckets=2)
    return made


def query_10(
    customer: ir.Table, orders: ir.Table, lineitem: ir.Table, nation: ir.Table
) -> ir.Table:
    """Returned items, which Ibis's tests do not run."""
    q = customer.join(orders, customer.c_custkey == orders.o_custkey)
    q = q.join(lineitem, lineitem.l_orderkey == orders.o_orderkey)
    q = q.join(nation, customer.c_nationkey == nation.n_nationkey)
    begin = "1993-10-01"
    late = (q.o_orderdate >= ibis.date(begin)) & (q.o_orderdate < add_date(begin, dm=3))
    q = q.filter(late, q.l_returnflag == "R")
    names = ["c_custkey", "c_name", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment"]
    made = q.group_by(names).agg(revenue=(q.l_extendedprice * (1 - q.l_discount)).sum())
    return made.relocate("revenue", after="c_name").order_by(ibis.desc("revenue")).limit(20)


def expression(con: Backend, number: str) -> ir.Table:
    made = query_10 if number == "10" else getattr(queries, f"test_{number}").__wrapped__
    found: ir.Table = made(**{name: con.table(name) for name in inspect.signature(made).parameters})
    return found


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Give results the same names and types: decimals have other digits in DuckDB."""
    names = [f"c{at}" for at in range(frame.width)]
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return frame.with_columns(
        pl.col(pl.Decimal).cast(pl.Float64),
        cs.integer().cast(pl.Float64),
        cs.datetime().cast(pl.Date),
    )


def check(duck: duckdb.DuckDBPyConnection, number: str, found: pl.DataFrame) -> None:
    rows: Any = duck.sql((SQL / f"{number}.sql").read_text()).to_arrow_table()
    expected = pl.from_arrow(rows)
    assert isinstance(expected, pl.DataFrame)
    assert expected.height
    assert_frame_equal(
        plain(found), plain(expected), check_dtypes=False, abs_tol=0.01, rel_tol=1e-9
    )


@pytest.mark.parametrize("number", NUMBERS)
def test_expression(tpch: Backend, duck: duckdb.DuckDBPyConnection, number: str) -> None:
    check(duck, number, expression(tpch, number).to_polars())


@pytest.mark.parametrize("number", NUMBERS)
def test_sql(tpch: Backend, duck: duckdb.DuckDBPyConnection, number: str) -> None:
    check(duck, number, tpch.raw_sql((SQL / f"{number}.sql").read_text()))
