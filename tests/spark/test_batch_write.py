import time
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.spark import FlussDataSource
from fluss_df.spark.write.all_or_nothing import write_name
from fluss_df.spark.write.writing import _operations
from tests.client.test_types import everything
from tests.io.conftest import MakeTable
from tests.spark.support import assert_same, load, save
from tests.spark.test_batch_read import KEYED

ROWS = pl.DataFrame(
    {"id": range(1000), "name": [f"n{i % 7}" for i in range(1000)], "value": range(1000)},
    schema={"id": pl.Int64, "name": pl.String, "value": pl.Int32},
)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS.to_arrow()).repartition(3)


def test_appended_rows(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
    rows: DataFrame,
) -> None:
    table = make_table(KEYED, bucket_count=2)
    # columns are found by their names
    save(rows.select("value", "id", "name"), fluss_cluster, table)
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)
    rows.createOrReplaceTempView("rows_to_write")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW written USING fluss OPTIONS"
        f" (`bootstrap.servers` '{fluss_cluster.bootstrap_servers}', `table` '{table}')"
    )
    spark.sql("INSERT INTO written SELECT * FROM rows_to_write WHERE id < 10")
    assert scan_fluss(table, connection=connection).collect().height == 1010


@pytest.mark.over_connect
def test_upserts_deletes_and_partial_updates(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, rows: DataFrame
) -> None:
    table = make_table(KEYED, primary_keys=["id"], bucket_count=2)
    # a repeated task changes nothing
    for _ in range(2):
        save(rows, fluss_cluster, table)
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)
    # a delete needs the key alone, and passes over other columns
    save(rows.where("id >= 900"), fluss_cluster, table, write_mode="delete")
    given = {"path": str(table), "bootstrap.servers": fluss_cluster.bootstrap_servers}
    with pytest.raises(FlussError, match=r"all columns of the primary key .* add 'id'"):
        FlussDataSource(given | {"write.mode": "partial-update"}).writer(
            rows.select("name").schema, overwrite=False
        )
    named = rows.where("id < 5").selectExpr("id", "'changed' AS name")
    save(named, fluss_cluster, table, write_mode="partial-update")
    changed = pl.when(pl.col("id") < 5).then(pl.lit("changed")).otherwise("name").alias("name")
    expected = ROWS.filter(pl.col("id") < 900).with_columns(changed)
    assert_same(scan_fluss(table, connection=connection).collect(), expected)


def test_an_operation_column(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, rows: DataFrame
) -> None:
    table = make_table(KEYED, primary_keys=["id"], bucket_count=2)
    save(rows, fluss_cluster, table)
    changes = rows.where("id < 40").selectExpr(
        "id",
        "'x' AS name",
        "value",
        "CASE id % 4 WHEN 0 THEN 'delete' WHEN 1 THEN '+U' WHEN 2 THEN '-U' ELSE 'Insert' END op",
    )
    save(changes, fluss_cluster, table, operation_column="op")
    low = pl.col("id") < 40
    changed = pl.when(low & (pl.col("id") % 2 == 1)).then(pl.lit("x")).otherwise("name")
    expected = ROWS.filter(~(low & (pl.col("id") % 4 == 0))).with_columns(changed.alias("name"))
    assert_same(scan_fluss(table, connection=connection).collect(), expected)
    with pytest.raises(PySparkException, match=r"'op' has 'replace'.*expected insert"):
        save(changes.selectExpr("id", "name", "value", "'replace' op"), fluss_cluster, table,
             operation_column="op")  # fmt: skip


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_operations_are_texts_of_any_size(kind: pa.DataType) -> None:
    # as spark.sql.execution.arrow.useLargeVarTypes has them
    given = pa.chunked_array([pa.array(["Insert", "upsert"]).cast(kind)])
    found = _operations(given, TablePath("fluss", "t"), "op")
    assert found.to_pylist() == ["+I", "+U"]


def test_partitions_are_created_when_asked(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, rows: DataFrame
) -> None:
    table = make_table(KEYED, partition_keys=["name"])
    save(rows, fluss_cluster, table, create_partitions="true")
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)


def test_every_type(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
) -> None:
    rows = everything()
    names = [n for n in rows.schema.names if getattr(rows.schema.field(n).type, "unit", "") != "ns"]
    rows = rows.select(names)
    first, second = (make_table(rows.schema) for _ in range(2))
    with connection.get_table(first).new_append().create_writer() as writer:
        writer.write_arrow(rows)
    save(load(spark, fluss_cluster, first), fluss_cluster, second)
    scan = connection.get_table(second).new_scan().create_record_batch_log_scanner()
    scan.subscribe(0, 0)
    found = scan.to_arrow().sort_by("row")
    for name in names:
        assert found.column(name).equals(rows.column(name)), name


@pytest.mark.parametrize(
    ("statement", "options", "message"),
    [
        ("id, name, 1 AS valeu", {}, "column 'valeu' is none of .*; did you mean 'value'"),
        ("id, name, value, 1 AS more", {}, "'more'"),
        ("id, name, 'x' AS value", {}, "column 'value': string does not go into int"),
        ("id, name, interval 1 day AS value", {}, "duration.* does not go into int"),
        ("id, name, value, value", {}, "column 'value' is in the data twice"),
        ("id, name, value", {"write_mode": "delete"}, "has no primary key"),
        ("id, name, value", {"delivery_guarantee": "exactly-once"}, "is for streams"),
        ("id, name, value", {"spark_mode": "overwrite"}, "cannot be overwritten"),
        (
            "id, name, value",
            {"spark_mode": "overwrite", "all_or_nothing": "true"},
            "cannot be overwritten",
        ),
        ("id, name, value", {"operation_column": "op"}, "changes are written to primary-key"),
        ("id, name, value", {"write_mod": "append"}, "did you mean 'write.mode'"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_row(
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    plain_table: TablePath,
    rows: DataFrame,
    statement: str,
    options: dict[str, str],
    message: str,
) -> None:
    overwrite = options.get("spark_mode") == "overwrite"
    given = {"path": str(plain_table), "bootstrap.servers": fluss_cluster.bootstrap_servers}
    given |= {k.replace("_", "."): v for k, v in options.items() if k != "spark_mode"}
    schema = rows.selectExpr(*statement.split(", ")).schema
    # as Spark does it, in a process that it starts for each
    with pytest.raises(FlussError, match=message):
        FlussDataSource(given).writer(schema, overwrite)
    assert scan_fluss(plain_table, connection=connection).collect().is_empty()


def failing(rows: DataFrame) -> DataFrame:
    """Return rows of which one task fails behind the others."""
    text = "CASE WHEN id = 999 THEN raise_error('no') ELSE name END AS name"
    return rows.orderBy("id").repartitionByRange(4, "id").selectExpr("id", text, "value")


STAGED = TablePath("fluss_df_ledger", "staged")


def staged(connection: FlussConnection) -> list[str]:
    return [p.partition_name for p in connection.get_admin().list_partition_infos(STAGED)]


def test_all_or_nothing(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, rows: DataFrame
) -> None:
    table, plain = make_table(KEYED, bucket_count=2), make_table(KEYED, bucket_count=2)
    with pytest.raises(PySparkException):
        save(failing(rows), fluss_cluster, plain)
    assert 0 < scan_fluss(plain, connection=connection).collect().height < 1000
    with pytest.raises(PySparkException):
        save(failing(rows), fluss_cluster, table, all_or_nothing="true")
    assert scan_fluss(table, connection=connection).collect().is_empty()
    for _ in range(2):
        save(rows, fluss_cluster, table, all_or_nothing="true")
    found = scan_fluss(table, connection=connection).collect()
    assert found.height == 2000
    assert_same(found.unique(), ROWS)
    # what is staged of streams is called by their names, which have hyphens
    left = [name for name in staged(connection) if name.count("-") == 1]
    # a task may have staged after its write had failed
    assert len(left) <= 1
    old, new = write_name(time.time() - 3 * 24 * 3600), write_name(time.time())
    for name in (old, new):
        partition = {"epoch": f"{name}-0"}
        connection.get_admin().create_partition(STAGED, partition)
    save(rows, fluss_cluster, table, all_or_nothing="true")
    assert sorted(set(staged(connection)) & {f"{old}-0", f"{new}-0"}) == [f"{new}-0"]
    connection.get_admin().drop_partition(STAGED, {"epoch": f"{new}-0"})


def test_all_or_nothing_into_partitions(
    fluss_cluster: LocalCluster, connection: FlussConnection, make_table: MakeTable, rows: DataFrame
) -> None:
    table = make_table(KEYED, partition_keys=["name"])
    whole = {"all_or_nothing": "true", "create_partitions": "true"}
    save(rows.where("id < 0"), fluss_cluster, table, **whole)
    save(rows, fluss_cluster, table, **whole)
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)
    # how partitions are replaced: dropped, and written again
    for number in (0, 3):
        connection.get_admin().drop_partition(table, {"name": f"n{number}"})
    save(rows.where("name IN ('n0', 'n3')"), fluss_cluster, table, **whole)
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)


@pytest.mark.parametrize("way", ["save", "insert", "overwritePartitions", "overwrite"])
def test_nothing_is_overwritten(
    spark: SparkSession,
    fluss_cluster: LocalCluster,
    connection: FlussConnection,
    make_table: MakeTable,
    rows: DataFrame,
    way: str,
) -> None:
    table = make_table(KEYED, partition_keys=["name"])
    save(rows, fluss_cluster, table, create_partitions="true")
    rows.createOrReplaceTempView("rows_over")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW overwritten USING fluss OPTIONS"
        f" (`bootstrap.servers` '{fluss_cluster.bootstrap_servers}', `table` '{table}')"
    )
    few = rows.where("id < 10")
    insert = "INSERT OVERWRITE overwritten SELECT * FROM rows_over WHERE id < 10"
    ways: dict[str, Callable[[], object]] = {
        "save": lambda: save(few, fluss_cluster, table, spark_mode="overwrite"),
        "insert": lambda: spark.sql(insert),
        "overwritePartitions": lambda: few.writeTo("overwritten").overwritePartitions(),
        "overwrite": lambda: few.writeTo("overwritten").overwrite(few["name"] == "n0"),
    }
    with pytest.raises(PySparkException, match=r"(?i)overwr|not found|cannot be|TABLE_OR_VIEW"):
        ways[way]()
    assert_same(scan_fluss(table, connection=connection).collect(), ROWS)


@pytest.fixture(scope="module")
def plain_table(make_table: MakeTable) -> TablePath:
    return make_table(KEYED)
