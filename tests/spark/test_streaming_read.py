from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.io import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import MakeTable, write
from tests.spark.support import assert_same, upsert
from tests.spark.test_batch_read import FRAME, KEYED, SCHEMA


class Streams:
    """Runs a stream of a table until it has read all there is, into Parquet files."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.folder = folder

    def stream(self, table: TablePath, schema: str = "", **options: str) -> DataFrame:
        reader = self.spark.readStream.format("fluss")
        reader = reader.option("bootstrap.servers", self.cluster.bootstrap_servers)
        for key, value in options.items():
            reader = reader.option(key.replace("_", "."), value)
        return (reader.schema(schema) if schema else reader).load(str(table))

    def run(self, stream: DataFrame, name: str = "a") -> StreamingQuery:
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        query = writer.start(str(self.folder / name))
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        return query

    def result(self, name: str = "a") -> pl.DataFrame:
        files = sorted((self.folder / name).glob("*.parquet"))
        frames = [pl.read_parquet(file) for file in files]
        return pl.concat([f for f in frames if f.height] or frames[:1])


@pytest.fixture
def streams(spark: SparkSession, fluss_cluster: LocalCluster, tmp_path: Path) -> Streams:
    return Streams(spark, fluss_cluster, tmp_path)


def test_a_stream_goes_on_where_it_ended(
    streams: Streams, connection: FlussConnection, make_table: MakeTable
) -> None:
    """Over rows, partitions that come, one that goes, and a table that is made again."""
    layout: dict[str, Any] = {"partition_keys": ["origin"], "bucket_count": 2}
    by_origin = [FRAME.filter(pl.col("origin") == name) for name in ("EWR", "JFK", "LGA")]
    table = make_table(SCHEMA, by_origin[0], **layout)
    query = streams.run(streams.stream(table, max_offsets_per_trigger="200"))
    assert [p.numInputRows for p in query.recentProgress][:3] == [200, 200, 100]
    assert_same(streams.result(), by_origin[0])

    write(connection, table, by_origin[1], by_origin[2])
    streams.run(streams.stream(table, max_offsets_per_trigger="400"))
    assert_same(streams.result(), FRAME)

    admin = connection.get_admin()
    admin.drop_partition(table, {"origin": "JFK"})
    with pytest.raises(StreamingQueryException, match=r"is lost.*'fail.on.data.loss'"):
        streams.run(streams.stream(table))
    write(connection, table, by_origin[0][:40])
    streams.run(streams.stream(table, fail_on_data_loss="false"))
    assert streams.result().height == 1500 + 40

    admin.drop_table(table)
    descriptor = TableDescriptor(Schema(SCHEMA), **layout)
    admin.create_table(table, descriptor)
    with pytest.raises(StreamingQueryException, match="dropped and made again"):
        streams.run(streams.stream(table))
    other = make_table(SCHEMA, FRAME[:30])
    with pytest.raises(StreamingQueryException, match="the checkpoint is of table"):
        streams.run(streams.stream(other))


def test_starts_and_projection(
    streams: Streams, connection: FlussConnection, make_table: MakeTable
) -> None:
    table = make_table(SCHEMA, FRAME[:100])
    stream = streams.stream(
        table, "x bigint, _log_offset bigint", start='{"0": 40}', filter="x <> 50"
    )
    streams.run(stream, "b")
    found = streams.result("b")
    assert sorted(found["x"]) == [x for x in range(40, 100) if x != 50]
    assert_same(found.select("x"), found.select(pl.col("_log_offset").alias("x")))
    late = streams.stream(table, starting_offsets="latest")
    streams.run(late, "c")
    write(connection, table, FRAME[100:150])
    streams.run(late, "c")
    assert_same(streams.result("c"), FRAME[100:150])


def test_changes_of_a_primary_key_table(
    streams: Streams, connection: FlussConnection, make_table: MakeTable
) -> None:
    table = make_table(KEYED, primary_keys=["id"], bucket_count=2)
    rows = pl.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"], "value": [1, 2, 3]})
    rows = rows.cast({"value": pl.Int32})
    upsert(connection, table, rows, delete=rows.select("id")[:1])
    upsert(connection, table, rows[1:2])
    streams.run(streams.stream(table, changelog_mode="changelog"))
    kinds = streams.result().group_by("_change_type").len()
    assert dict(kinds.iter_rows()) == {"+I": 3, "-D": 1, "-U": 1, "+U": 1}
    streams.run(streams.stream(table, changelog_mode="upsert"), "b")
    assert streams.result("b").height == 5


@pytest.mark.spark_full
def test_for_each_batch_and_a_query_that_runs(
    streams: Streams, connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(SCHEMA, FRAME[:100])
    target = make_table(KEYED, primary_keys=["id"])
    address = streams.cluster.bootstrap_servers

    def upsert_batch(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("x AS id", "origin AS name", f"{number} AS value")
        rows.write.format("fluss").mode("append").option("bootstrap.servers", address).save(
            str(target)
        )

    query = (
        streams.stream(table, "x bigint, origin string")
        .writeStream.foreachBatch(upsert_batch)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        write(connection, table, FRAME[100:130])
        query.processAllAvailable()
    finally:
        query.stop()
    found = scan_fluss(target, connection=connection).collect()
    assert sorted(found["id"]) == list(range(130))
    assert found["value"].n_unique() == 2
    assert query.lastProgress is not None


@pytest.mark.spark_full
def test_map_in_arrow(streams: Streams, make_table: MakeTable) -> None:
    table = make_table(SCHEMA, FRAME[:100])

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"y": pa.array([2 * x.as_py() for x in batch.column(0)])})

    streams.run(streams.stream(table, "x bigint").mapInArrow(doubled, "y bigint"), "d")
    assert streams.result("d")["y"].sum() == 2 * FRAME[:100]["x"].sum()
