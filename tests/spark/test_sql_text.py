# ruff: noqa: E501
"""Queries run as they were written: what Spark makes of them, it makes of them here."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.spark import sql
from fluss_df.spark.queries import stand_ins
from fluss_df.spark.queries.queries import plan_sql
from tests.io.conftest import MakeTable
from tests.spark.test_random_queries import Both, _found, _rows, both

__all__ = ["both"]

# {a}: a table, {qa}: the same with its database; both are plain views where the rows are expected
TEXTS = [
    # stars in functions
    "SELECT count(DISTINCT *) FROM {b}",
    "SELECT sum(hash(*)), max(xxhash64(t.*)), max(md5(to_json(struct(*)))) FROM {qa} t WHERE k = 1",
    "SELECT concat_ws(',', *) FROM {b}",
    "SELECT to_json(struct(* EXCEPT (w))) FROM {b}",
    "SELECT array(named_struct('x', struct(t.*))) FROM {b} t",
    "SELECT k, transform(collect_list(struct(*)), x -> x.w) FROM {b} GROUP BY k",
    # texts
    "SELECT 'it''s', \"it's\", r'a\\b', 'a' 'b', '\\u0041\\101', label FROM {b} WHERE label = 'it''s'",
    "SELECT to_char(w, '99'), date_format(DATE '2024-01-05', \"yyyy'Q'q\") FROM {b} WHERE w > 0",
    "SELECT label /* FROM {b} */ FROM {b} -- {b} '\nWHERE '{b}' <> \"FROM {b}\"",
    "SELECT label FROM {b} WHERE label <> 'a\\u0001' AND label <> '\0' AND w > 0",
    # names
    "WITH {a} AS (SELECT * FROM {b}) SELECT * FROM {a} JOIN (WITH {b} AS (SELECT k FROM {a})"
    " SELECT * FROM {b}) USING (k)",
    "WITH {b} AS (SELECT k + 1 AS k FROM {b}) SELECT * FROM {b} WHERE EXISTS"
    " (WITH {b} AS (SELECT 0 AS k) SELECT * FROM {b} i WHERE i.k < {b}.k)",
    "SELECT `{b}`.`label`, {b}.K FROM `{b}`",
    "SELECT * FROM {b} AS `a b` WHERE `a b`.w IN (SELECT w FROM {b} `a b` WHERE `a b`.k = 1)",
    "WITH RECURSIVE r AS (SELECT k FROM {b} WHERE k = 0 UNION ALL SELECT r.k + 1 FROM r JOIN {b} b"
    " ON b.w = r.k) SELECT * FROM r",
    # relations
    "TABLE {b}",
    "TABLE {b} UNION ALL (TABLE {b}) ORDER BY 3 NULLS LAST LIMIT 3",
    "FROM {b} SELECT label WHERE w > 1",
    "FROM {b} |> WHERE w > 1 |> SELECT label, k |> AGGREGATE count(*) AS n GROUP BY k",
    "VALUES (1, 2), (3, 4) UNION ALL SELECT k, w FROM {b}",
    "SELECT id, label FROM range(1, 4) LEFT JOIN {b} ON k = id",
    "SELECT * FROM {b} PIVOT (max(w) FOR k IN (0 AS zero, 1 AS one))",
    "SELECT * FROM (SELECT k, w FROM {b}) UNPIVOT INCLUDE NULLS (v FOR n IN (k AS kk, w))",
    "SELECT * FROM {b} TABLESAMPLE (100 PERCENT) t WHERE t.k = 1",
    "SELECT k, x FROM {b} LATERAL VIEW explode(array(w, k)) e AS x WHERE k = 1",
    "SELECT b.k, s.n FROM {b} b, LATERAL (SELECT count(*) AS n FROM {qa} a WHERE a.k = b.k) s",
    "SELECT /*+ BROADCAST({b}) */ a.id FROM {qa} a JOIN {b} ON a.k = {b}.k",
    "SELECT k FROM {b} EXCEPT SELECT k FROM {qa} x WHERE x.k > 1",
    "SELECT * FROM {b} NATURAL JOIN {qa} x",
    "SELECT w + 1 AS u, u * 2 AS t FROM {b}",
    "SELECT k, w, count(*) FROM {b} GROUP BY GROUPING SETS ((k), (w), ())",
    "SELECT k AS n FROM {b} GROUP BY ALL HAVING n > 0 ORDER BY n",
    "SELECT k, w FROM {b} DISTRIBUTE BY label SORT BY w",
    "SELECT (SELECT max(label) FROM {qa} x JOIN {b} y ON x.k = y.k WHERE y.w = o.w) FROM {b} o",
    "SELECT k FROM {b} WHERE label NOT LIKE 'n%' OR label LIKE '!%' ESCAPE '!'",
    "SELECT count_if(f NOT IN (0.1, 0.5)), count_if(f IN (0.1, 0.5)) FROM {b} WHERE f NOT IN (0.1)",
    "SELECT * FROM IDENTIFIER('{a}') WHERE k = 2",
    "SELECT max(label) OVER w FROM {b} WINDOW w AS (PARTITION BY k)",
    "SELECT 1 FROM {b} WHERE false",
    "SELECT '\U0001f600é', k FROM {b}",
    # found by Spark from the inside out
    "SELECT * FROM {a} x JOIN (SELECT (SELECT max(w) FROM {b}) AS m, c.k FROM {qb} c) d ON x.k = d.k",
    "(SELECT k FROM {b})",
    "SELECT k FROM {b};",
    "SELECT k FROM {b}; -- {b}",
    "WITH c AS (SELECT k FROM {b}) SELECT * FROM c; -- the end; of it",
    "WITH c AS (SELECT k FROM {b}) SELECT * FROM c ; ; /* a /* b */; */ -- '\n",
    "WITH c AS (SELECT k FROM {b}) SELECT k, ';--', r'\\' AS r FROM c; --'",
    "WITH c AS (SELECT k, ';' AS `;--` FROM {b}) SELECT *, \"\\\";/*\" AS d FROM c -- '\n;;",
    "WITH c AS (SELECT k FROM {b}) SELECT '--;' FROM c",
    "FROM {b} SELECT label; /* all of them */",
    # one scan has a condition, and another of the same table has not
    "WITH c AS (SELECT * FROM {b}) SELECT x.k, y.w FROM c x CROSS JOIN c y WHERE x.w <> 4",
    "WITH c AS (SELECT k FROM {b}) SELECT * FROM c WHERE k = 0 UNION ALL SELECT * FROM c WHERE k = 7",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_query_means_what_spark_says(both: Both, text: str) -> None:
    both.set("spark.sql.session.timeZone", "America/New_York")
    both.set("spark.sql.ansi.enabled", "true")
    theirs = {f"q{key}": f"q_{name}" for key, name in both.names.items()}
    ours = {f"q{key}": f"io.{name}" for key, name in both.names.items()}
    expected = _rows(both.plain.sql(text.format(**both.names, **theirs)))
    assert _found(both, text.format(**both.names, **ours)) == expected


def test_double_quotes_are_names_where_the_session_says_so(both: Both) -> None:
    text = 'SELECT "label" FROM "{b}" WHERE "label" = \'n1\''.format(**both.names)
    both.set("spark.sql.ansi.enabled", "true")
    both.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    try:
        expected = _rows(both.plain.sql(text))
        assert expected == ["('n1',)"]
        assert _found(both, text) == expected
    finally:
        both.set("spark.sql.ansi.doubleQuotedIdentifiers", "false")


class Emptied(dict[Any, Any]):
    """What is kept, where another thread makes room for its own at once."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.clear()


def test_threads_share_what_is_kept(
    classic_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_ins._of(classic_spark), "relations", Emptied())
    schema = StructType([StructField("c", LongType())])
    prefix, made = stand_ins._relation(classic_spark, schema, schema.json(), 0)
    assert prefix
    assert made.columns == ["c"]


def test_columns_that_differ_by_case(both: Both, make_table: MakeTable) -> None:
    rows = pa.table({"id": pa.array([1, 2]), "ID": pa.array([2, 1]), "v": pa.array([5, 6])})
    table = make_table(rows.schema, pl.DataFrame(rows))
    both.set("spark.sql.caseSensitive", "true")
    try:
        assert _found(both, f"SELECT id, v FROM {table} WHERE ID = 1") == ["(2, 6)"]
        assert _found(both, f"SELECT * FROM {table} WHERE id = 1") == ["(1, 2, 5)"]
    finally:
        both.set("spark.sql.caseSensitive", "false")
    reader = both.fluss.read.format("fluss").options(**both.options).option("filter", "id = 1")
    with pytest.raises(Exception, match="column 'id' is ambiguous: it may be id or ID"):
        reader.load(str(table)).collect()


def test_nothing_but_queries_is_run(both: Both) -> None:
    for text in [
        "DROP TABLE {b}", "INSERT INTO {b} SELECT * FROM {b}", "SET x = 1", "", "/* SELECT */ CACHE TABLE {b}",
    ]:  # fmt: skip
        with pytest.raises(FlussError, match="expected a query"):
            sql(both.fluss, text.format(**both.names), **both.options)
    for text in ["FROM {b} INSERT INTO y SELECT 1", "WITH c AS (SELECT 1) INSERT INTO y TABLE c",
                 "SELECT * FROM {b} VERSION AS OF 3", "SELECT * FROM {b} WITH ('a' = 'b')",
                 "SELECT 1 +"]:  # fmt: skip
        with pytest.raises(FlussError, match=r"cannot be read|what follows its name"):
            sql(both.fluss, text.format(**both.names), **both.options)
    text = "SELECT '${spark.app.name}' FROM " + both.names["b"]
    with pytest.raises(FlussError, match="values in the place of"):
        sql(both.fluss, text, **both.options)


def test_the_database_may_have_the_name_of_the_format(
    spark: SparkSession, fluss_cluster: LocalCluster
) -> None:
    address = fluss_cluster.bootstrap_servers
    with FlussConnection.create(address) as connection:
        path = TablePath("fluss", "of_the_default_database")
        schema = Schema(pa.schema({"x": pa.int32()}))
        connection.get_admin().create_table(path, TableDescriptor(schema), ignore_if_exists=True)
        try:
            plan = plan_sql(spark, f"SELECT x FROM {path}", {"connection": address})
            assert [scan.table for scan in plan.scans] == [str(path)]
        finally:
            connection.get_admin().drop_table(path)


@contextlib.contextmanager
def jvm_log(spark: SparkSession) -> Iterator[Any]:
    """Give a writer of the JVM that has what is logged there: its stderr is none of Python's."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    writer = jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    make = log4j.core.appender.WriterAppender.createAppender
    appender = make(layout, None, writer, "of the test", False, True)
    appender.start()
    root.addAppender(appender, None, None)
    try:
        yield writer
    finally:
        root.removeAppender("of the test")
        appender.stop()


def test_what_is_expected_is_not_logged(
    both: Both, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with jvm_log(both.fluss) as log:
        plan_sql(both.fluss, "SELECT k FROM {b} WHERE w = 1".format(**both.names), both.options)
        # there, Spark looks for files in the folder of a table's stand-in
        jvm: Any = both.fluss._jvm
        jvm.org.apache.logging.log4j.LogManager.getLogger("test").warn("of the test")
    found = capfd.readouterr()
    assert "TABLE_OR_VIEW_NOT_FOUND" not in found.err + found.out + caplog.text
    assert "of the test" in log.toString()
    assert "All paths were ignored" not in log.toString()


def test_temporary_views_are_gone(both: Both) -> None:
    before = {table.name for table in both.fluss.catalog.listTables()}
    rows = sql(both.fluss, "SELECT k FROM {b}".format(**both.names), **both.options)
    assert {table.name for table in both.fluss.catalog.listTables()} == before
    assert rows.where("k = 1").count() == 2


def test_tables_of_the_database_fluss_are_found_at_once(
    both: Both, fluss_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Spark takes fluss.x for files in a format; a catalog that has the name keeps it."""
    spark, address = both.fluss, fluss_cluster.bootstrap_servers
    options = {"connection": address}
    spark.sql(f"CREATE DATABASE fluss LOCATION '{tmp_path}'")
    with FlussConnection.create(address) as connection:
        admin = connection.get_admin()
        paths = [TablePath("fluss", name) for name in ("found_1", "found_2")]
        try:
            spark.sql("CREATE VIEW fluss.of_spark AS SELECT 7 AS x")
            for path in paths:
                schema = Schema(pa.schema({"x": pa.int32()}))
                admin.create_table(path, TableDescriptor(schema), ignore_if_exists=True)
            for text, tables in [
                ("SELECT 'fluss.found_2' FROM fluss.found_1", ["fluss.found_1"]),
                ("SELECT * FROM `fluss` /* a */ . found_1 NATURAL JOIN fluss.`found_2`",
                 ["fluss.found_1", "fluss.found_2"]),
                ("SELECT fluss.x FROM fluss.found_1 fluss, io.{b} x", ["fluss.found_1", "io.{b}"]),
                ("WITH fluss AS (SELECT x FROM fluss.found_2) SELECT fluss.x FROM fluss",
                 ["fluss.found_2"]),
                ("SELECT * FROM IDENTIFIER('fluss.found_1')", ["fluss.found_1"]),
                ("SELECT x FROM fluss.of_spark", []),
                ("SELECT x FROM fluss.of_spark NATURAL JOIN fluss.found_1", ["fluss.found_1"]),
                ("SELECT x FROM spark_catalog.fluss.of_spark NATURAL JOIN fluss.found_1",
                 ["fluss.found_1"]),
            ]:  # fmt: skip
                plan = plan_sql(spark, text.format(**both.names), options)
                expected = [table.format(**both.names) for table in tables]
                assert sorted(scan.table for scan in plan.scans) == expected, text
            rows = sql(spark, "SELECT x FROM fluss.of_spark", connection=address)
            assert rows.collect()[0][0] == 7
            with pytest.raises(FlussError, match=r"table FLUSS\.found_1 does not exist"):
                plan_sql(spark, "SELECT x FROM FLUSS.found_1", options)
        finally:
            spark.sql("DROP DATABASE fluss CASCADE")
            for path in paths:
                admin.drop_table(path, ignore_if_not_exists=True)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k FROM {qa} WHERE v > 1 AND name = 'n1'",
        "WITH c AS (SELECT k FROM {qb}) SELECT x.id FROM {qa} x JOIN c ON x.k = c.k"
        " WHERE x.k IN (SELECT w FROM {qb} WHERE f > 0)",
    ],
)
def test_a_plan_costs_few_calls_to_java(
    both: Both, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Spark costs 200 calls, and a relation as many; each call costs 0.1 ms."""
    query = text.format(qa=f"io.{both.names['a']}", qb=f"io.{both.names['b']}")
    plan_sql(both.fluss, query, both.options)
    calls = 0
    send = JavaClient.send_command

    def counted(self: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        # objects that Python no longer needs are given back at any time
        calls += not command.startswith("m\nd\n")
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    plan = plan_sql(both.fluss, query, both.options)
    assert calls < 60 + 40 * len(plan.scans)
