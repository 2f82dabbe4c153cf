"""The 22 queries of TPC-H on Fluss tables, as expressions and as SQL, equal to DuckDB's results."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import duckdb
import ibis
import ibis.expr.types as ir
import polars as pl
import pytest
from ibis.backends.tests.tpc.conftest import add_date
from ibis.backends.tests.tpc.h import test_queries as queries

from benchmarks.tpch.data import generate
from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from tests.tpch import SCALE, check, connect, sql

NUMBERS = range(1, 23)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return generate(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def duck(data: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(data) as made:
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


def expression(con: Backend, number: int) -> ir.Table:
    made = query_10 if number == 10 else getattr(queries, f"test_{number:02}").__wrapped__
    found: ir.Table = made(**{name: con.table(name) for name in inspect.signature(made).parameters})
    return found


@pytest.mark.parametrize("number", NUMBERS)
def test_expression(tpch: Backend, duck: duckdb.DuckDBPyConnection, number: int) -> None:
    check(duck, number, expression(tpch, number).to_polars())


@pytest.mark.parametrize("number", NUMBERS)
def test_sql(tpch: Backend, duck: duckdb.DuckDBPyConnection, number: int) -> None:
    check(duck, number, tpch.raw_sql(sql(number)))
