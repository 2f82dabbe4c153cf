import datetime as dt
import json
import os
import time

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import ReadTask, TableScan
from fluss_df.spark.read.reading import read_task
from tests.client.test_types import everything
from tests.io.conftest import MakeTable, write
from tests.spark.support import assert_same, frame, load, upsert

SCHEMA = pa.schema({"origin": pa.string(), "x": pa.int64(), "ratio": pa.float64()})
FRAME = pl.DataFrame(
    {
        "origin": [("EWR", "JFK", "LGA")[i % 3] for i in range(1500)],
        "x": list(range(1500)),
        "ratio": [i / 4 if i % 7 else None for i in range(1500)],
    }
)
KEYED = pa.schema({"id": pa.int64(), "name": pa.string(), "value": pa.int32()})


@pytest.fixture(scope="module")
def flights(make_table: MakeTable) -> TablePath:
    layout = {"partition_keys": ["origin"], "bucket_keys": ["x"], "bucket_count": 2}
    return make_table(SCHEMA, FRAME[:700], FRAME[700:], **layout)


@pytest.fixture(scope="module")
def keyed(make_table: MakeTable, connection: FlussConnection) -> TablePath:
    """100 rows, of which 10 are changed and 5 deleted."""
    path = make_table(KEYED, primary_keys=["id"], bucket_count=2)
    rows = {"id": range(100), "name": [f"n{i % 7}" for i in range(100)], "value": range(100)}
    upsert(connection, path, pl.DataFrame(rows, schema_overrides={"value": pl.Int32}))
    changed = pl.DataFrame({"id": range(10), "name": ["new"] * 10, "value": range(10)})
    deleted = pl.DataFrame({"id": range(95, 100)})
    upsert(connection, path, changed.cast({"value": pl.Int32}), delete=deleted)
    return path


@pytest.mark.parametrize(
    "rows_per_task", ["7000", pytest.param("100", marks=pytest.mark.spark_full)]
)
def test_rows_equal_those_of_polars(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    flights: TablePath,
    rows_per_task: str,
) -> None:
    metadata = ["_partition", "_bucket", "_log_offset", "_commit_timestamp"]
    found = load(
        spark,
        fluss_cluster,
        flights,
        rows_per_task=rows_per_task,
        metadata_columns=",".join(metadata),
    )
    expected = scan_fluss(flights, connection=connection, include_metadata=metadata).collect()
    tasks = found.select(spark_partition_id()).distinct().count()
    assert tasks == (6 if rows_per_task == "7000" else 18)
    assert expected.height == 1500
    assert_same(found, expected)


def test_many_small_splits_share_tasks(fluss_cluster: LocalCluster, flights: TablePath) -> None:
    options = {"path": str(flights), "bootstrap.servers": fluss_cluster.bootstrap_servers}
    tasks = TableScan(ReadOptions.parse(options | {"rows.per.task": "3"})).tasks()
    assert len(tasks) > 64
    assert sum(split.rows for task in tasks for split in task.splits) == 1500
    options["rows.per.task"] = "17"
    tasks = TableScan(ReadOptions.parse(options)).tasks()
    assert all(sum(split.rows for split in task.splits) <= 17 for task in tasks)


def test_columns_a_user_schema_and_partitions(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    found = load(spark, fluss_cluster, flights, columns="x,origin", partitions="JFK")
    assert found.columns == ["x", "origin"]
    wanted = FRAME.filter(pl.col("origin") == "JFK").select("x", "origin")
    assert_same(found, wanted)
    assert load(spark, fluss_cluster, flights, "x bigint").count() == 1500
    offsets = load(spark, fluss_cluster, flights, "_log_offset bigint, _bucket int")
    assert offsets.agg({"_log_offset": "count"}).collect()[0][0] == 1500


CONDITIONS = [
    "x > 900 and origin = 'JFK'",
    "origin in ('JFK', 'LGA') and x between 10 and 20",
    "x in (1, 7, 1400)",
    "not (x in (1, 7)) and x < 9",
    "ratio is null and x < 100",
    "ratio >= 12.5 and ratio is not null and ratio < 20",
    "origin like 'J%' and x <= 30",
    "origin <=> 'EWR' and x < 30",
    "startswith(origin, 'L') and contains(origin, 'G') and x < 50",
    "x < 5 or (origin = 'LGA' and x > 1490)",
    "origin <> 'EWR' and not (x > 12)",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_in_tasks_equal_those_of_spark(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath, condition: str
) -> None:
    expected = frame(spark.createDataFrame(FRAME.to_arrow()).where(condition))
    assert 0 < expected.height < 1500
    options = {
        "path": str(flights),
        "bootstrap.servers": fluss_cluster.bootstrap_servers,
        "filter": condition,
    }
    # as a task does it, without Spark, which would take a second for each
    parsed = ReadOptions.parse(options)
    scan = TableScan(parsed)
    batches = [b for task in scan.tasks() for b in read_task(parsed, scan.schema, task)]
    found = pl.from_arrow(pa.Table.from_batches(batches))
    assert isinstance(found, pl.DataFrame)
    assert_same(found, expected)


# all of them in the campaign
PUSHED = CONDITIONS if os.environ.get("FLUSS_TEST_SPARK_FULL") else CONDITIONS[:1]


@pytest.mark.parametrize("condition", PUSHED)
def test_filters_equal_those_of_spark_itself(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath, condition: str
) -> None:
    local = spark.createDataFrame(FRAME.to_arrow())
    expected = frame(local.where(condition))
    assert 0 < expected.height < 1500
    by_option = load(spark, fluss_cluster, flights, filter=condition)
    assert_same(by_option, expected)
    for pushed in ("false", "true"):
        found = load(spark, fluss_cluster, flights, push_filters=pushed).where(condition)
        assert_same(found, expected)
    key = "spark.sql.python.filterPushdown.enabled"
    try:
        spark.conf.set(key, "false")
        assert_same(load(spark, fluss_cluster, flights).where(condition), expected)
    finally:
        spark.conf.set(key, "true")


def test_scans_of_one_dataframe_do_not_share_their_filters(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    """Spark pushes the filters of each, and plans all of them with those of the last."""
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    rows = load(spark, fluss_cluster, flights, "x bigint, origin string")
    both = rows.where("x = 1").union(rows.where("x = 2"))
    assert sorted(row.x for row in both.collect()) == [1, 2]
    a, b = rows.alias("a"), rows.where("origin = 'JFK' and x < 20").alias("b")
    expected = FRAME.filter(pl.col("origin").eq("JFK") & (pl.col("x") < 20)).height * FRAME.height
    assert expected > 0
    assert a.crossJoin(b).count() == expected


@pytest.mark.parametrize(
    ("condition", "splits"),
    [
        ("origin = 'JFK'", 2),
        ("x = 7", 3),
        ("origin = 'JFK' and x = 7", 1),
        ("_log_offset < 10 and _bucket = 1", 3),
        ("origin = 'nowhere'", 0),
    ],
)
def test_a_filter_prunes_what_is_read(
    fluss_cluster: LocalCluster, flights: TablePath, condition: str, splits: int
) -> None:
    options = {
        "path": str(flights),
        "bootstrap.servers": fluss_cluster.bootstrap_servers,
        "filter": condition,
    }
    tasks = TableScan(ReadOptions.parse(options)).tasks()
    found = [split for task in tasks for split in task.splits]
    assert len(found) == splits
    if "_log_offset" in condition:
        assert all(split.stop <= 10 for split in found)


def plan(cluster: LocalCluster, table: TablePath, **options: str) -> list[ReadTask]:
    """Plan a read in this process, as Spark does in one that it starts for each."""
    where = {"path": str(table), "bootstrap.servers": cluster.bootstrap_servers}
    return TableScan(ReadOptions.parse(where | options)).tasks()


def test_a_filter_that_cannot_be_pushed_is_refused(
    fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    for condition, message in [
        ("x % 2 = 0", "cannot be evaluated by the scan"),
        ("y = 0", "no column 'y'"),
        ("x = ", "no condition in SQL"),
        ("x = 'seven'", "cannot be evaluated by the scan"),
    ]:
        with pytest.raises(FlussError, match=message):
            plan(fluss_cluster, flights, filter=condition)


def test_offsets_and_times(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
) -> None:
    table = make_table(SCHEMA, FRAME[:100])
    # servers count milliseconds
    time.sleep(0.01)
    between = dt.datetime.now(dt.UTC)
    write(connection, table, FRAME[100:250])
    assert load(spark, fluss_cluster, table, start="latest").count() == 0
    assert_same(load(spark, fluss_cluster, table, start="40", stop="110"), FRAME[40:110])
    assert_same(load(spark, fluss_cluster, table, start='{"0": 240}'), FRAME[240:250])
    assert_same(load(spark, fluss_cluster, table, start=between.isoformat()), FRAME[100:250])
    assert_same(load(spark, fluss_cluster, table, stop=between.isoformat()), FRAME[:100])
    # what comes after the plan is not part of the result
    pinned = load(spark, fluss_cluster, table)
    assert pinned.count() == 250


def test_current_rows_of_a_primary_key_table(
    spark: SparkSession, fluss_cluster: LocalCluster, connection: FlussConnection, keyed: TablePath
) -> None:
    expected = scan_fluss(keyed, connection=connection).collect()
    assert expected.height == 95
    assert_same(load(spark, fluss_cluster, keyed), expected)
    found = load(spark, fluss_cluster, keyed, "name string, _bucket int").where("name = 'new'")
    assert found.count() == 10
    assert_same(
        load(spark, fluss_cluster, keyed, filter="id = 3"), expected.filter(pl.col("id") == 3)
    )
    options = {"path": str(keyed), "bootstrap.servers": fluss_cluster.bootstrap_servers}
    (task,) = TableScan(ReadOptions.parse(options | {"filter": "id IN (3, 5, 99)"})).tasks()
    assert (task.keys, task.splits) == (pa.table({"id": [3, 5, 99]}), ())
    (task,) = plan(fluss_cluster, keyed, filter="id = 3", metadata_columns="_bucket")
    assert task.keys is None


def test_the_changelog_of_a_primary_key_table(
    spark: SparkSession, fluss_cluster: LocalCluster, keyed: TablePath
) -> None:
    found = load(spark, fluss_cluster, keyed, changelog_mode="changelog")
    assert found.columns[-3:] == ["_change_type", "_log_offset", "_commit_timestamp"]
    counts = {row[0]: row[1] for row in found.groupBy("_change_type").count().collect()}
    assert counts == {"+I": 100, "-U": 10, "+U": 10, "-D": 5}
    later = load(spark, fluss_cluster, keyed, "id bigint", changelog_mode="upsert")
    assert later.count() == 115
    with pytest.raises(PySparkException, match="is read as it is now"):
        load(spark, fluss_cluster, keyed, start="5").count()


def test_modes_that_a_table_has_not(
    fluss_cluster: LocalCluster, flights: TablePath, keyed: TablePath
) -> None:
    with pytest.raises(FlussError, match="has no primary key"):
        plan(fluss_cluster, flights, mode="snapshot")
    with pytest.raises(FlussError, match="'snapshot' reads"):
        plan(fluss_cluster, keyed, mode="log")


def test_every_type(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
) -> None:
    rows = everything()
    path = make_table(rows.schema, pl.DataFrame())
    with connection.get_table(path).new_append().create_writer() as writer:
        writer.write_arrow(rows)
    names = [n for n in rows.schema.names if not _has_nanoseconds(rows.schema.field(n).type)]
    assert len(names) < len(rows.schema)
    found = load(spark, fluss_cluster, path, columns=json.dumps(names)).toArrow()
    expected = rows.select(names)
    for name in names:
        assert found.column(name).cast(expected.field(name).type).equals(expected.column(name)), (
            name
        )
    # Spark has six digits of a second
    with pytest.raises(PySparkException, match=r"'truncate.nanoseconds' cuts"):
        load(spark, fluss_cluster, path).toArrow()
    whole = load(spark, fluss_cluster, path, truncate_nanoseconds="true").toArrow()
    assert whole.num_rows == rows.num_rows


def _has_nanoseconds(t: pa.DataType) -> bool:
    return getattr(t, "unit", None) == "ns"


def test_a_table_made_anew_is_noticed(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
) -> None:
    table = make_table(SCHEMA, FRAME[:10])
    found = load(spark, fluss_cluster, table)
    connection.get_admin().drop_table(table)
    with pytest.raises(PySparkException, match="does not exist"):
        found.count()


@pytest.mark.spark_full
def test_temporary_views_and_sql(
    spark: SparkSession, fluss_cluster: LocalCluster, flights: TablePath
) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW view_of_flights USING fluss OPTIONS"
        f" (`bootstrap.servers` '{fluss_cluster.bootstrap_servers}', `table` '{flights}')"
    )
    assert spark.table("view_of_flights").where("x < 7").count() == 7
