"""What the tests of Spark share."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.metadata import TablePath


def load(
    spark: SparkSession, cluster: LocalCluster, table: TablePath, schema: str = "", **options: str
) -> DataFrame:
    """Return a dataframe; underscores in the names of options stand for dots."""
    reader = spark.read.format("fluss").option("bootstrap.servers", cluster.bootstrap_servers)
    for key, value in options.items():
        reader = reader.option(key.replace("_", "."), value)
    return (reader.schema(schema) if schema else reader).load(str(table))


def save(
    found: DataFrame,
    cluster: LocalCluster,
    table: TablePath,
    spark_mode: str = "append",
    **options: str,
) -> None:
    writer = found.write.format("fluss").mode(spark_mode)
    writer = writer.option("bootstrap.servers", cluster.bootstrap_servers)
    for key, value in options.items():
        writer = writer.option(key.replace("_", "."), value)
    writer.save(str(table))


def frame(found: DataFrame) -> pl.DataFrame:
    made = pl.from_arrow(found.toArrow())
    assert isinstance(made, pl.DataFrame)
    return made


def assert_same(found: DataFrame | pl.DataFrame, expected: pl.DataFrame) -> None:
    """Compare rows in any order."""
    got = found if isinstance(found, pl.DataFrame) else frame(found)
    assert_frame_equal(
        got, expected, check_row_order=False, check_dtypes=False, categorical_as_str=True
    )


def upsert(
    connection: FlussConnection,
    table: TablePath,
    rows: pa.Table | pl.DataFrame,
    delete: pa.Table | pl.DataFrame | None = None,
    columns: Sequence[str] | None = None,
) -> None:
    with connection.get_table(table).new_upsert(columns).create_writer() as writer:
        writer.write_arrow(rows)
        if delete is not None:
            writer.delete_arrow(delete)
