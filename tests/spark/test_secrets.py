"""A password reaches the tasks, and shows in no plan, text or log of Spark or of this library."""

import logging
from collections.abc import Iterator

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

import fluss_df as fluss
from fluss_df.cluster.pytest_plugin import ClusterFactory
from fluss_df.io import write_fluss
from fluss_df.spark import sql
from tests.spark.support import assert_same

PASSWORD = "wonder-land"
ROWS = pl.DataFrame({"id": range(20), "k": [f"k{i % 3}" for i in range(20)]})


@pytest.fixture(scope="module")
def guarded(fluss_cluster_factory: ClusterFactory) -> Iterator[dict[str, str]]:
    """Options for a server that demands a password of alice, and has a table."""
    with fluss_cluster_factory(sasl={"alice": PASSWORD}) as cluster:
        options = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "security.protocol": "sasl",
            "security.sasl.mechanism": "PLAIN",
            "security.sasl.username": "alice",
            "security.sasl.password": PASSWORD,
        }
        with fluss.connect(options) as connection:
            connection.get_admin().create_database("db", ignore_if_exists=True)
            for name in ("rows", "copy"):
                write_fluss(
                    ROWS if name == "rows" else ROWS.head(0),
                    f"db.{name}",
                    connection=connection,
                    create_if_not_exists=True,
                    bucket_count=1,
                )
        yield options


def shown(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    frame.explain(mode="extended")
    return capsys.readouterr().out + repr(frame)


def test_read_written_and_asked_in_sql(
    spark: SparkSession,
    guarded: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    rows = spark.read.format("fluss").options(**guarded).load("db.rows")
    assert_same(rows, ROWS)
    rows.write.format("fluss").mode("append").options(**guarded).save("db.copy")
    named = {key.replace(".", "_"): value for key, value in guarded.items()}
    counted = sql(spark, "SELECT k, count(*) AS n FROM db.copy WHERE id > 4 GROUP BY k", **named)
    assert {row.k: row.n for row in counted.collect()} == {"k0": 5, "k1": 5, "k2": 5}
    for frame in (rows, counted):
        plan = shown(frame, capsys)
        assert "fluss" in plan
        assert PASSWORD not in plan
    # py4j logs what it sends to the JVM, if it is asked to
    mine = [record for record in caplog.records if record.name.startswith("fluss_df")]
    assert mine
    assert not any(PASSWORD in record.getMessage() for record in mine)


def test_a_password_of_the_environment(spark: SparkSession, guarded: dict[str, str]) -> None:
    """Where a process does not have it, the error names the variable, and no other secret."""
    options = guarded | {
        "security.sasl.password": "env:FLUSS_TEST_NO_SUCH_PASSWORD",
        "security.ssl.key.password": PASSWORD,
    }
    with pytest.raises(Exception, match="FLUSS_TEST_NO_SUCH_PASSWORD is not set") as raised:
        spark.read.format("fluss").options(**options).load("db.rows").count()
    assert PASSWORD not in str(raised.value)


def test_a_wrong_password(spark: SparkSession, guarded: dict[str, str]) -> None:
    options = guarded | {"security.sasl.password": "looking-glass"}
    with pytest.raises(Exception, match="AUTHENTICATE_EXCEPTION") as raised:
        spark.read.format("fluss").options(**options).load("db.rows").count()
    assert "looking-glass" not in str(raised.value)
