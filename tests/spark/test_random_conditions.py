# ruff: noqa: E501
"""Random conditions: by the option ``filter`` what Spark finds, by Polars what Polars does, in SQL what DuckDB does."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import polars as pl
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.pushdown.evaluate import filter_rows
from fluss_df.spark.plan.sql_filter import parse_filter
from fluss_df.spark.plan.types import spark_schema
from tests.io.conftest import table_maker
from tests.spark.random_sql import COLUMNS, ROWS, SCHEMA, Queries
from tests.spark.test_random_queries import CASES, FIRST, ZONES

CONDITIONS = [Queries(seed).condition(COLUMNS["a"]) for seed in range(FIRST, FIRST + 10 * CASES)]


def _true(spark: SparkSession, conditions: Sequence[str]) -> list[set[int] | None]:
    """Return for each condition the rows for which it is true; None where Spark has an error."""
    if not conditions:
        return []
    made = ", ".join(f"({text}) AS c{i}" for i, text in enumerate(conditions))
    try:
        found = pl.DataFrame(spark.sql(f"SELECT id, {made} FROM local_a").toArrow())
    except PySparkException:
        half = len(conditions) // 2
        if not half:
            return [None]
        return [*_true(spark, conditions[:half]), *_true(spark, conditions[half:])]
    return [set(found.filter(found[f"c{i}"])["id"]) for i in range(len(conditions))]


@pytest.mark.parametrize("zone", ZONES)
def test_the_option_filter(classic_spark: SparkSession, zone: str) -> None:
    spark = classic_spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    rows = ROWS["a"].to_arrow().cast(SCHEMA["a"])
    local = spark.createDataFrame(rows, spark_schema(SCHEMA["a"])).coalesce(1)
    local.createOrReplaceTempView("local_a")
    pushed = {}
    for text in CONDITIONS[ZONES.index(zone) :: len(ZONES)]:
        try:
            predicate = parse_filter(text, SCHEMA["a"], zone, "a")
        except FlussError:
            continue
        pushed[text] = set(filter_rows(predicate, rows).column("id").to_pylist())
    expected = _true(spark, list(pushed))
    wrong = [(text, found, there) for (text, found), there in zip(pushed.items(), expected, strict=True)
             if there is not None and found != there]  # fmt: skip
    print(f"{zone}: {len(pushed)} conditions, {expected.count(None)} with an error of Spark")
    assert wrong == []
    # most conditions have a part that Spark alone evaluates
    assert len(pushed) > len(CONDITIONS) // len(ZONES) // 20


# DuckDB takes a number with an exponent for a DOUBLE; others beside a FLOAT are FLOAT in both
_PLAIN = {"1e-1": "0.1", "1e0": "1.0", "1e30": f"1{30 * '0'}"}
# the text of a time is Polars' own: it has six digits of a second
_OWN = re.compile(r"CAST\(`?[tz]`? AS STRING\)", re.IGNORECASE)


def _for_duckdb(text: str) -> str:
    """Return a condition as DuckDB writes it; it means there what SQL says."""
    text = text.replace("<=>", "IS NOT DISTINCT FROM").replace("`", '"')
    return re.sub(r"\b1e-?\d+\b", lambda found: _PLAIN[found[0]], text)


def test_polars_and_ibis() -> None:
    """By ``pl.scan_fluss`` what Polars finds in a plain frame; in SQL what DuckDB finds."""
    asked = judged = 0
    wrong = []
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("arrow", ROWS["a"].to_arrow().cast(SCHEMA["a"]))
    duck.execute("CREATE TABLE a AS SELECT * FROM arrow")
    with fluss.connect(":memory:") as connection:
        connection.get_admin().create_database("io")
        with table_maker(connection) as make:
            table = make(SCHEMA["a"], ROWS["a"])
            backend: Backend = Backend().connect(connection, database="io")
            for text in CONDITIONS:
                try:
                    condition = pl.sql_expr(text)
                    expected = set(ROWS["a"].filter(condition)["id"])
                    scan = scan_fluss(str(table), connection=connection)
                    found = set(scan.filter(condition).collect()["id"])
                    asked += 1
                    if found != expected:
                        wrong.append((text, found, expected))
                except (pl.exceptions.PolarsError, pl.exceptions.SQLInterfaceError):
                    # not a condition of Polars, or a comparison of two types, which a plain frame
                    # without rows left does not make
                    pass
                try:
                    ours = backend.raw_sql(f"SELECT id FROM {table.table_name} WHERE {text}")["id"]
                    query = f"SELECT id FROM a WHERE {_for_duckdb(text)}"
                    there = {number for (number,) in duck.execute(query).fetchall()}
                except (FlussError, duckdb.Error):
                    continue
                if not _OWN.search(text):
                    judged += 1
                    if set(ours) != there:
                        wrong.append((text, set(ours), there))
    print(f"{len(CONDITIONS)} conditions, {asked} by scan_fluss, {judged} in SQL")
    for case in wrong[:20]:
        print(*case, sep="\n")
    assert wrong == []
    assert asked > len(CONDITIONS) // 20
    assert judged > len(CONDITIONS) // 4
