"""Random queries and conditions find what Spark finds in plain dataframes, and read less."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fluss_df.cluster import LocalCluster
from fluss_df.spark.plan.types import spark_schema
from fluss_df.spark.queries.queries import plan_sql, run_plan
from tests.io.conftest import MakeTable
from tests.spark.random_sql import COLUMNS, ROWS, SCHEMA, Queries

CASES = int(os.environ.get("FLUSS_TEST_SQL_CASES", "24"))
FIRST = int(os.environ.get("FLUSS_TEST_SQL_FIRST", "0"))
# of cases that Spark itself runs, the share in which fewer columns or rows are read
PRUNED = 0.6
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe"]


@dataclass
class Both:
    """A session that reads Fluss, and one that has the same rows under the same names."""

    fluss: SparkSession
    plain: SparkSession
    options: dict[str, str]
    names: dict[str, str]

    def set(self, key: str, value: str) -> None:
        for session in (self.fluss, self.plain):
            session.conf.set(key, value)


@pytest.fixture(scope="module")
def both(
    classic_spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable
) -> Iterator[Both]:
    with pytest.MonkeyPatch.context() as patch:
        # as in a process that has no session of Spark Connect beside
        patch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
        yield _both(classic_spark, fluss_cluster, make_table)


def _both(classic_spark: SparkSession, fluss_cluster: LocalCluster, make_table: MakeTable) -> Both:
    fluss, plain = classic_spark.newSession(), classic_spark.newSession()
    for session in (fluss, plain):
        session.conf.set("spark.sql.session.timeZone", "UTC")
    names = {key: make_table(SCHEMA[key], ROWS[key]).table_name for key in SCHEMA}
    for key, name in names.items():
        local = plain.createDataFrame(_arrow(key), spark_schema(SCHEMA[key])).coalesce(1).cache()
        for view in (name, f"q_{name}"):
            local.createOrReplaceTempView(view)
    for session in (fluss, plain):
        other = session.createDataFrame(_arrow("b"), spark_schema(SCHEMA["b"]))
        other.createOrReplaceTempView("local_c")
    options = {"connection": f"fluss://{fluss_cluster.bootstrap_servers}/io"}
    return Both(fluss, plain, options, names)


def _arrow(key: str) -> pa.Table:
    return ROWS[key].to_arrow().cast(SCHEMA[key])


def _rows(found: DataFrame) -> list[str]:
    table = found.toArrow()
    columns = [column.to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True))) if columns else ["()"] * table.num_rows


def _found(both: Both, query: str) -> list[str]:
    return _rows(run_plan(both.fluss, plan_sql(both.fluss, query, both.options), both.options))


def _refused(both: Both, query: str) -> str | None:
    """Spark's condition of the error with which this query ends, or what it found."""
    try:
        return f"{len(_found(both, query))} rows, and no error"
    except PySparkException as error:
        return error.getCondition()


def test_random_queries(both: Both) -> None:
    """Each query twice: over Fluss, pruned, and over plain dataframes."""
    run = refused = pruned = read = 0
    wrong: list[tuple[object, ...]] = []
    for seed in range(FIRST, FIRST + CASES):
        both.set("spark.sql.session.timeZone", ZONES[seed % len(ZONES)])
        both.set("spark.sql.ansi.enabled", "true" if seed % 3 else "false")
        query = Queries(seed).query()
        theirs = {f"q{key}": f"q_{name}" for key, name in both.names.items()}
        ours = {f"q{key}": f"io.{name}" for key, name in both.names.items()}
        try:
            expected = _rows(both.plain.sql(query.format(**both.names, **theirs)))
        except PySparkException as error:
            refused += 1
            # what Spark refuses is refused here, for the same reason
            said = _refused(both, query.format(**both.names, **ours))
            if said != error.getCondition():
                wrong.append((seed, query, str(error), said))
                print(*wrong[-1], sep="\n", flush=True)
            continue
        run += 1
        plan = plan_sql(both.fluss, query.format(**both.names, **ours), both.options)
        widths = {name: len(COLUMNS[key]) for key, name in both.names.items()}
        for scan in plan.scans:
            read += 1
            less = len(scan.columns) < widths[scan.table.removeprefix("io.")]
            pruned += less or scan.filter is not None
        try:
            found = _rows(run_plan(both.fluss, plan, both.options))
        except PySparkException as error:
            found = [str(error)]
        if found != expected:
            missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
            wrong.append((seed, query, plan, len(expected), missing, len(found), more))
            print(*wrong[-1], sep="\n", flush=True)
    print(f"{run} queries, {refused} refused by Spark, {pruned} of {read} scans pruned")
    assert wrong == []
    assert run > 0.75 * CASES
    assert pruned > PRUNED * read
