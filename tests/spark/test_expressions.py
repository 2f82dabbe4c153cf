"""Ibis expressions run by Spark: the rows that Polars finds, and scans of what they need."""

import gc
from collections.abc import Callable

import ibis
import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
import pytest
from ibis import _
from pyspark.sql import SparkSession

from fluss_df.backend import Backend
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.spark.queries.expressions import spark_sql
from fluss_df.spark.queries.queries import plan_sql
from tests.io.conftest import MakeTable
from tests.spark.support import assert_same
from tests.spark.test_queries import A, B

Build = Callable[[ir.Table, ir.Table], ir.Table]
NAMES = ibis.memtable({"name": ["n1", "n3"], "long": ["one", "three"]})
LEAST = ibis.param("int64")

# an expression; of each mention of a table the columns and the condition of its scan
EXPRESSIONS: list[tuple[Build, list[tuple[str, str | None]]]] = [
    (
        lambda a, b: (
            a.filter(_.id > 5).join(b, "k").filter(_.w < 4)
            .group_by("label").agg(n=_.count(), v=_.v.mean()).filter(_.n > 1)
        ),
        [("id k v", "(id > 5)"), ("k label w", "(w < 4)")],
    ),
    (
        lambda a, b: (
            a.filter(_.id > LEAST).left_join(NAMES, "name").mutate(rank=ibis.row_number().over(
                group_by=_.k, order_by=_.v.desc())).filter(_.rank < 2).select("id", "long", "rank")
        ),
        [("id k name v", "(id > 50)")],
    ),
    (
        lambda a, b: a.filter(_.k.isin(b.filter(_.label == "two").k)).agg(total=_.v.sum()),
        [("k v", None), ("k label", "(label = 'two')")],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def tables(
    connection: FlussConnection, make_table: MakeTable
) -> tuple[Backend, ir.Table, ir.Table]:
    con: Backend = Backend().connect(connection, database="io")
    a = make_table(A.to_arrow().schema, A, bucket_count=2)
    b = make_table(B.to_arrow().schema, B)
    return con, con.table(a.table_name), con.table(b.table_name)


@pytest.mark.over_connect
@pytest.mark.parametrize(("build", "scans"), EXPRESSIONS)
def test_spark_finds_what_polars_finds(
    spark: SparkSession,
    tables: tuple[Backend, ir.Table, ir.Table],
    build: Build,
    scans: list[tuple[str, str | None]],
) -> None:
    con, a, b = tables
    expr = build(a, b)
    params = {LEAST: 50}
    expected = expr.to_polars(params=params)
    assert expected.height
    before = {table.name for table in spark.catalog.listTables()}
    # a dataframe that is made of another one needs its views, too
    made = con.to_spark(expr, spark, params=params).where("true")
    gc.collect()
    con.to_spark(expr, spark, params=params)
    assert_same(made, expected)
    del made
    gc.collect()
    # of Spark Connect they are dropped by the next query
    con.to_spark(a.limit(1), spark)
    gc.collect()
    con.to_spark(b.limit(1), spark)
    left = {table.name for table in spark.catalog.listTables()} - before
    assert len(left) == (0 if hasattr(spark, "_jsparkSession") else 1)
    # to be planned, the query needs its memtables again
    memtables = list(expr.op().find(ops.InMemoryTable))
    for memtable in memtables:
        rows = spark.createDataFrame(memtable.data.to_pyarrow(memtable.schema))
        rows.createOrReplaceTempView(memtable.name)
    plan = plan_sql(spark, spark_sql(expr, params), con.connection.config.to_dict())
    for memtable in memtables:
        spark.catalog.dropTempView(memtable.name)
    found = [(" ".join(s.columns), s.filter and s.filter.replace("`", "")) for s in plan.scans]
    assert sorted(found, key=str) == sorted(scans, key=str)


def test_what_spark_cannot_run_is_said(
    spark: SparkSession, tables: tuple[Backend, ir.Table, ir.Table]
) -> None:
    con, a, _b = tables
    local = con.create_table("of_mine", pl.DataFrame({"id": [1]}), temp=True)
    with pytest.raises(FlussError, match="'of_mine' is local to the Ibis connection"):
        con.to_spark(a.join(local, "id"), spark)
    with pytest.raises(FlussError, match=r"changelog'.*changelog.mode"):
        con.to_spark(con.table(f"{a.op().name}$changelog"), spark)
