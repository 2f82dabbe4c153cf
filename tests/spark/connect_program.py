"""Everything over Spark Connect, in a process of its own: ``connect_program ADDRESS FOLDER``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ibis
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import fluss_df as fluss
from fluss_df import spark as fluss_spark
from fluss_df.backend import Backend

LOG = pa.schema({"id": pa.int64(), "text": pa.string()})
ROWS = pa.table({"id": range(1000), "text": [f"t{i % 9}" for i in range(1000)]}, schema=LOG)


def table(connection: fluss.FlussConnection, name: str, keys: list[str] | None = None) -> str:
    path = fluss.TablePath("spark_connect", name)
    descriptor = fluss.TableDescriptor(fluss.Schema(LOG, keys), bucket_count=2)
    connection.get_admin().create_table(path, descriptor)
    return str(path)


def main(address: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        # workers are forked from a process that has imported this library
        .config("spark.python.daemon.module", "fluss_df.spark.daemon")
        .getOrCreate()
    )
    assert "connect" in type(spark).__module__
    fluss_spark.register(spark)
    with fluss.connect(address) as connection:
        connection.get_admin().create_database("spark_connect", ignore_if_exists=True)
        log, copy = table(connection, "log"), table(connection, "copy")
        keyed = table(connection, "keyed", ["id"])
        check(spark, address, folder, log, copy, keyed)
    spark.stop()
    print("all is well over Spark Connect")


def check(spark: SparkSession, address: str, folder: Path, log: str, copy: str, keyed: str) -> None:
    def load(name: str) -> DataFrame:
        return spark.read.format("fluss").option("connection", address).load(name)

    def save(rows: DataFrame, name: str) -> None:
        rows.write.format("fluss").mode("append").option("connection", address).save(name)

    save(spark.createDataFrame(ROWS), log)
    assert load(log).where("id < 10").count() == 10
    assert load(log).toArrow().sort_by("id").equals(ROWS)
    found = fluss_spark.sql(
        spark, f"SELECT text, count(*) n FROM {log} WHERE id < 90 GROUP BY text", connection=address
    )
    assert {row.n for row in found.collect()} == {10}
    fluss_spark.fluss_views(spark, log, connection=address)
    assert spark.sql("SELECT max(id) FROM log").collect()[0][0] == 999

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"id": pa.array([2 * x.as_py() for x in batch.column("id")])})

    assert load(log).mapInArrow(twice, "id bigint").agg({"id": "max"}).collect()[0][0] == 1998

    reader = spark.readStream.format("fluss").option("connection", address)
    stream = reader.option("maxOffsetsPerTrigger", "400").load(log)
    writer = stream.writeStream.format("fluss").option("connection", address)
    writer = writer.option("checkpointLocation", str(folder / "copy"))
    query = (
        writer.option("delivery.guarantee", "exactly-once").trigger(availableNow=True).start(copy)
    )
    assert query.awaitTermination(120)
    assert load(copy).toArrow().sort_by("id").equals(ROWS)

    def upsert(batch: DataFrame, number: int) -> None:
        writer = batch.write.format("fluss").mode("append").option("connection", address)
        writer.save(keyed)

    query = (
        stream.writeStream.foreachBatch(upsert)
        .option("checkpointLocation", str(folder / "keyed"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert load(keyed).toArrow().sort_by("id").equals(ROWS)
    check_changes(spark, address, keyed)
    check_ibis(spark, address, log)


def check_changes(spark: SparkSession, address: str, keyed: str) -> None:
    """Change rows of a primary-key table, and read the changes."""
    reader = spark.read.format("fluss").option("connection", address)
    before = reader.load(keyed).count()
    rows = "SELECT * FROM VALUES (1L, 'new', 'upsert'), (2L, NULL, 'delete') AS t (id, text, op)"
    writer = spark.sql(rows).write.format("fluss").mode("append").option("connection", address)
    writer.option("operation.column", "op").save(keyed)
    writer = spark.sql("SELECT 3L AS id").write.format("fluss").mode("append")
    writer.option("connection", address).option("write.mode", "delete").save(keyed)
    assert reader.load(keyed).count() == before - 2
    looked_up = reader.option("filter", "id IN (1, 2, 3)").load(keyed).collect()
    assert [(row.id, row.text) for row in looked_up] == [(1, "new")]
    reader = spark.read.format("fluss").option("connection", address)
    changes = reader.option("changelog.mode", "changelog").option("filter", "id IN (1, 2, 3)")
    kinds = [row._change_type for row in changes.load(keyed).collect()]
    assert sorted(kinds) == ["+I", "+I", "+I", "+U", "-D", "-D", "-U"]


def check_ibis(spark: SparkSession, address: str, log: str) -> None:
    """Run expressions of Ibis, over a cluster and over a folder that this process has open."""
    con = Backend().connect(address)
    name, database = fluss.TablePath.parse(log).table_name, fluss.TablePath.parse(log).database_name
    table = con.table(name, database=database)
    groups = ibis.memtable({"text": ["t1", "t2"], "group": ["a", "b"]})
    expr = table.filter(table.id < 90).join(groups, "text").group_by("group").agg(n=ibis._.count())
    assert sorted(map(tuple, con.to_spark(expr, spark).collect())) == [("a", 10), ("b", 10)]
    with tempfile.TemporaryDirectory() as folder, fluss.connect(folder) as connection:
        here = Backend().connect(connection)
        copied = here.create_table("copied", ROWS, buckets=2)
        assert here.to_spark(copied.id.sum().as_table(), spark).collect()[0][0] == 499500


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
