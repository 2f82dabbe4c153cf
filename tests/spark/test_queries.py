# ruff: noqa: E501
import datetime as dt
import gc
import os
import zoneinfo

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.spark import fluss_views, sql
from fluss_df.spark.queries.queries import SqlScan, plan_sql
from tests.io.conftest import MakeTable
from tests.spark.support import assert_same, frame

A = pl.DataFrame(
    {
        "id": range(60),
        "k": [i % 7 for i in range(60)],
        "name": [f"n{i % 5}" if i % 6 else None for i in range(60)],
        "v": [i / 2 for i in range(60)],
    }
)
B = pl.DataFrame(
    {"k": [0, 1, 2, 3, 9], "label": ["zero", "one", "two", None, "nine"], "w": range(5)}
)


class Database:
    """Two tables in Fluss, and the same as views of Spark."""

    def __init__(self, spark: SparkSession, address: str, a: TablePath, b: TablePath) -> None:
        self.spark = spark
        self.address = address
        self.names = {"a": str(a), "b": str(b)}
        for name, rows in (("a", A), ("b", B)):
            spark.createDataFrame(rows.to_arrow()).createOrReplaceTempView(f"local_{name}")

    def plan(self, query: str) -> tuple[SqlScan, ...]:
        return plan_sql(self.spark, query.format(**self.names), {"connection": self.address}).scans

    def found(self, query: str) -> pl.DataFrame:
        return frame(sql(self.spark, query.format(**self.names), connection=self.address))

    def expected(self, query: str) -> pl.DataFrame:
        return frame(self.spark.sql(query.format(a="local_a", b="local_b")))


@pytest.fixture(scope="module")
def database(spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable) -> Database:
    a = make_table(A.to_arrow().schema.set(2, pa.field("name", pa.string())), A, bucket_count=2)
    b = make_table(B.to_arrow().schema.set(1, pa.field("label", pa.string())), B)
    return Database(spark, fluss_cluster.bootstrap_servers, a, b)


# a query; of each mention the columns and the condition that its scan has
QUERIES = [
    ("SELECT sum(v) FROM {a} WHERE k = 3", [("k v", "(k = 3)")]),
    ("SELECT count(*) FROM {a}", [("id", None)]),
    ("SELECT * FROM {b} WHERE label IS NULL OR w > 2", [("k label w", "(label IS NULL OR w > 2)")]),
    ("SELECT t.NAME, V + 1 AS u FROM {a} AS t WHERE t.v BETWEEN 3 AND 9 AND id % 2 = 0",
     [("id name v", "(v BETWEEN 3 AND 9)")]),
    ("SELECT t.name, x.label FROM {a} t JOIN {b} x ON t.k = x.k AND x.w < 3 WHERE t.v > 5",
     [("k name v", "(v > 5)"), ("k label w", "(w < 3)")]),
    ("SELECT t.id, x.label FROM {a} t LEFT JOIN {b} x ON t.k = x.k AND x.w < 3"
     " WHERE x.label IS NULL AND t.id < 30",
     [("id k", "(id < 30)"), ("k label w", "(w < 3)")]),
    ("SELECT t.id, x.label FROM {a} t FULL JOIN {b} x ON t.k = x.k AND t.id < 9 WHERE x.w = 1",
     [("id k", None), ("k label w", None)]),
    ("SELECT t.id, x.label FROM {a} t RIGHT JOIN {b} x USING (k) WHERE t.id IS NULL",
     [("id k", None), ("k label", None)]),
    ("SELECT id FROM {a} WHERE k IN (SELECT k FROM {b} WHERE label = 'two')",
     [("id k", None), ("k label", "(label = 'two')")]),
    ("SELECT id FROM {a} t WHERE v > 3 AND EXISTS (SELECT 1 FROM {b} x WHERE x.k = t.k AND t.id > 9)",
     [("id k v", "(v > 3)"), ("k", None)]),
    ("SELECT t.id FROM {a} t LEFT ANTI JOIN {b} x ON t.k = x.k AND x.w > 1 AND t.v > 2 WHERE t.id < 50",
     [("id k v", "(id < 50)"), ("k w", "(w > 1)")]),
    ("SELECT t.id FROM {a} t LEFT SEMI JOIN {b} x ON t.k = x.k AND t.v > 2",
     [("id k v", "(v > 2)"), ("k", None)]),
    ("WITH s AS (SELECT k, sum(v) AS total FROM {a} WHERE id > 5 GROUP BY k)"
     " SELECT s.k, total, label FROM s JOIN {b} AS x ON s.k = x.k",
     [("id k v", "(id > 5)"), ("k label", None)]),
    ("SELECT k FROM {a} WHERE id < 3 UNION ALL SELECT k FROM {b} WHERE w = 4",
     [("id k", "(id < 3)"), ("k w", "(w = 4)")]),
    ("SELECT x.id, y.id AS other FROM {a} x, {a} y WHERE x.id = y.id + 1 AND x.k = 1 AND y.v < 20",
     [("id k", "(k = 1)"), ("id v", "(v < 20)")]),
    ("SELECT k, count(*) AS n FROM {a} WHERE name LIKE 'n%' GROUP BY k HAVING count(*) > 5 ORDER BY k",
     [("k name", "(name LIKE 'n%')")]),
    ("SELECT id, rank() OVER (PARTITION BY k ORDER BY v) AS r FROM {a} WHERE NOT k = 2 LIMIT 100",
     [("id k v", "(NOT k = 2)")]),
    ("SELECT t.id, l.label FROM {a} t JOIN local_b l ON t.k = l.k WHERE t.id > 40",
     [("id k", "(id > 40)")]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "scans"), QUERIES)
def test_scans_get_what_a_query_needs(
    database: Database, query: str, scans: list[tuple[str, str | None]]
) -> None:
    planned = database.plan(query)
    found = [
        (" ".join(scan.columns), scan.filter and scan.filter.replace("`", "")) for scan in planned
    ]
    assert sorted(found, key=str) == sorted(scans, key=str)


# those where something could go wrong; all of them in the campaign
RUN = QUERIES if os.environ.get("FLUSS_TEST_SPARK_FULL") else [QUERIES[i] for i in (5, 6, 10, 12)]


@pytest.mark.parametrize("query", [query for query, _ in RUN])
def test_results_stay(database: Database, query: str) -> None:
    expected = database.expected(query)
    assert expected.height > 0
    assert_same(database.found(query), expected)


def test_a_backslash_means_what_the_session_says(
    spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable
) -> None:
    texts = pl.DataFrame(
        {"id": [1, 2, 3], "s": ["a\\b", "a\\\\b", None], "x": [b"\x0f", b"\x1f", None]}
    )
    database = Database(spark, fluss_cluster.bootstrap_servers, make_table(texts.to_arrow().cast(
        pa.schema([("id", pa.int64()), ("s", pa.string()), ("x", pa.binary())])).schema, texts),
        TablePath("none", "none"))  # fmt: skip
    query = r"SELECT id FROM {a} WHERE s = 'a\\b'"
    setting = "spark.sql.parser.escapedStringLiterals"
    assert database.found(query)["id"].to_list() == [1]
    assert database.found("SELECT id FROM {a} WHERE x = X'F'")["id"].to_list() == [1]
    spark.conf.set(setting, "true")
    try:
        assert database.found(query)["id"].to_list() == [2]
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_filter_that_is_given_holds_beside_the_query(
    spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable, zone: str
) -> None:
    moments = [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in range(24)]
    rows = pl.DataFrame({"id": range(24), "at": moments})
    fields = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")})
    table = make_table(fields, rows.to_arrow().cast(fields))

    def found(where: str, **options: str) -> list[int]:
        query = f"SELECT id FROM {table} WHERE {where}"
        address = fluss_cluster.bootstrap_servers
        return sorted(frame(sql(spark, query, connection=address, **options))["id"])

    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert found("id > 3", filter="id < 9 -- those alone") == [4, 5, 6, 7, 8]
        noon = dt.datetime(2026, 1, 1, 12, tzinfo=zoneinfo.ZoneInfo(zone)).astimezone(dt.UTC).hour
        where = "at < '2026-01-01 12:00:00'"
        assert found(where, FILTER="id > 1") == list(range(2, noon))
        # the filter's times are of its own zone, UTC, and the query's of the session's
        both = found(where, filter="at >= '2026-01-01 02:00:00'")
        assert both == list(range(2, noon))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def test_values_of_options_are_those_of_python(
    spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable
) -> None:
    rows = pl.DataFrame({"p": ["a", "b-c", "d"], "id": [1, 2, 3]})
    fields = pa.schema({"p": pa.string(), "id": pa.int64()})
    table = make_table(fields, rows.to_arrow().cast(fields), partition_keys=["p"], bucket_count=1)

    def found(**options: object) -> list[int]:
        where = f"SELECT id FROM {table}"
        made = sql(spark, where, connection=fluss_cluster.bootstrap_servers, **options)
        return sorted(frame(made)["id"])

    assert found(partitions=["a", "b-c"]) == [1, 2]
    assert found(partitions=("d",), buckets=[0], filter=None, lake=False) == [3]
    assert found(starting_offsets={("d", 0): 1, ("a", 0): 0}, rows_per_task=7) == [1, 2]
    views = fluss_views(
        spark,
        {"of_a": str(table)},
        connection=fluss_cluster.bootstrap_servers,
        partitions=["a"],
        filter=None,
    )
    assert frame(views["of_a"])["id"].to_list() == [1]


def test_views(spark: SparkSession, database: Database) -> None:
    views = fluss_views(spark, {"my_a": database.names["a"]}, connection=database.address)
    assert list(views) == ["my_a"]
    assert spark.sql("SELECT count(*) FROM my_a WHERE k = 1").collect()[0][0] == 9


@pytest.mark.over_connect
def test_a_view_of_what_sql_returns_stays(spark: SparkSession, database: Database) -> None:
    """Though the views that ``sql`` made for the query are dropped once its dataframe is gone."""
    query = "SELECT id FROM {a} WHERE k = 3".format(**database.names)
    found = sql(spark, query, connection=database.address)
    found.createOrReplaceTempView("of_query")
    del found
    gc.collect()
    sql(spark, query, connection=database.address)
    try:
        assert spark.sql("SELECT count(*) FROM of_query").collect()[0][0] == 9
    finally:
        spark.catalog.dropTempView("of_query")


def test_what_is_no_query_or_no_table(spark: SparkSession, database: Database) -> None:
    for query, message in [
        ("SELECT 1 +", "cannot be read"),
        ("DROP TABLE x", "expected a query"),
        ("SELECT * FROM io.nothing_like_it", "Spark has no table or view 'io.nothing_like_it'"),
    ]:
        with pytest.raises(FlussError, match=message):
            sql(spark, query, connection=database.address)
