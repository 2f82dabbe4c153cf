import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.spark.options import ReadOptions
from tests.io.conftest import MakeTable

SCHEMA = pa.schema({"origin": pa.string(), "x": pa.int64(), "ratio": pa.float64()})
FRAME = pl.DataFrame(
    {
        "origin": [("EWR", "JFK", "LGA")[i % 3] for i in range(1500)],
        "x": list(range(1500)),
        "ratio": [i / 4 if i % 7 else None for i in range(1500)],
    }
)


@pytest.fixture(scope="module")
def flights(make_table: MakeTable) -> TablePath:
    layout = {"partition_keys": ["origin"], "bucket_keys": ["x"], "bucket_count": 2}
    return make_table(SCHEMA, FRAME[:700], FRAME[700:], **layout)


def load(
    spark: SparkSession, cluster: LocalCluster, table: TablePath, schema: str = "", **options: str
) -> DataFrame:
    reader = spark.read.format("fluss").option("bootstrap.servers", cluster.bootstrap_servers)
    for key, value in options.items():
        reader = reader.option(key.replace("_", "."), value)
    return (reader.schema(schema) if schema else reader).load(str(table))


def frame(found: DataFrame) -> pl.DataFrame:
    made = pl.from_arrow(found.toArrow())
    assert isinstance(made, pl.DataFrame)
    return made


@pytest.mark.parametrize("rows_per_task", ["7000", "100"])
def test_rows_equal_those_of_polars(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    flights: TablePath,
    rows_per_task: str,
) -> None:
    metadata = ["_partition", "_bucket", "_log_offset"]
    found = load(
        spark,
        fluss_cluster,
        flights,
        rows_per_task=rows_per_task,
        metadata_columns=",".join(metadata),
    )
    expected = scan_fluss(flights, connection=connection, include_metadata=metadata).collect()
    assert found.rdd.getNumPartitions() >= (6 if rows_per_task == "7000" else 15)
    assert expected.height == 1500
    assert_frame_equal(
        frame(found), expected, check_row_order=False, check_dtypes=False, categorical_as_str=True
    )


def test_columns_a_user_schema_partitions_and_filters(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    found = load(spark, fluss_cluster, flights, columns="x,origin", partitions="JFK")
    assert found.columns == ["x", "origin"]
    wanted = FRAME.filter(pl.col("origin") == "JFK", pl.col("x") > 900).select("x", "origin")
    assert_frame_equal(frame(found.where("x > 900")), wanted, check_row_order=False)
    assert load(spark, fluss_cluster, flights, "x bigint").count() == 1500


def test_an_empty_range_has_no_rows(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    assert load(spark, fluss_cluster, flights, start="latest").count() == 0


def test_another_type_in_the_schema_is_refused(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    with pytest.raises(PySparkException, match="column 'x' is bigint"):
        load(spark, fluss_cluster, flights, "x string").count()


def test_bad_options_name_the_way_out() -> None:
    with pytest.raises(FlussError, match="no table given"):
        ReadOptions.parse({})
    with pytest.raises(FlussError, match="a time with its zone"):
        ReadOptions.parse({"path": "a.b", "start": "2024-01-31"})
    with pytest.raises(FlussError, match="whole number from 1"):
        ReadOptions.parse({"path": "a.b", "rows.per.task": "0"})
