# ruff: noqa: E501
"""Random conditions: by the option ``filter`` what Spark finds, by Polars and Ibis what Polars does."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.pushdown.evaluate import filter_rows
from fluss_df.spark.sql_filter import parse_filter
from fluss_df.spark.types import spark_schema
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
    assert wrong == []
    # most conditions have a part that Spark alone evaluates
    assert len(pushed) > len(CONDITIONS) // len(ZONES) // 20


# Polars' SQL takes NULL for false in IS NOT TRUE and IS NOT FALSE.
_TRUTH = re.compile(r"\bIS (NOT )?(TRUE|FALSE)\b", re.IGNORECASE)


def _distinct(found: re.Match[str]) -> str:
    """Return a test of truth in a form that Polars' SQL answers right."""
    return f"IS {'' if found[1] else 'NOT '}DISTINCT FROM {found[2]}"


def test_polars_and_ibis() -> None:
    """By ``pl.scan_fluss`` and in SQL of Ibis's backend: what Polars finds in a plain frame."""
    asked = 0
    wrong = []
    with fluss.connect(":memory:") as connection:
        connection.get_admin().create_database("io")
        with table_maker(connection) as make:
            table = make(SCHEMA["a"], ROWS["a"])
            backend: Backend = Backend().connect(connection, database="io")
            for text in CONDITIONS:
                try:
                    condition = pl.sql_expr(text)
                    expected = set(ROWS["a"].filter(condition)["id"])
                except (pl.exceptions.PolarsError, pl.exceptions.SQLInterfaceError):
                    continue
                scan = scan_fluss(str(table), connection=connection)
                try:
                    found = set(scan.filter(condition).collect()["id"])
                except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
                    # a comparison of two types, which a plain frame without rows left does not make
                    continue
                asked += 1
                if found != expected:
                    wrong.append((text, found, expected))
                if "<=>" in text:
                    # the dialect writes it as IS NOT DISTINCT FROM, which Polars compares with
                    # FLOAT in another type
                    continue
                query = f"SELECT id FROM {table.table_name} WHERE {text}"
                try:
                    there = set(
                        pl.SQLContext({table.table_name: ROWS["a"]}).execute(
                            _TRUTH.sub(_distinct, query), eager=True
                        )["id"]
                    )
                    ours = set(backend.raw_sql(query)["id"])
                except (pl.exceptions.PolarsError, FlussError):
                    continue
                if ours != there:
                    wrong.append((query, ours, there))
    assert wrong == []
    assert asked > len(CONDITIONS) // 20
