"""A program of Spark that copies tables by streams, to be killed: its orders come as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fluss_df.spark import FlussDataSource


def slow_at_first(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes first attempts of a task slow: Spark starts others, noted in a folder."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() > 0:
            (Path(folder) / f"again-{uuid.uuid4().hex}").touch()
        for batch in batches:
            yield batch
            if task.partitionId() == 0 and task.attemptNumber() == 0:
                time.sleep(4)

    return slow


def start(spark: SparkSession, servers: str, order: dict[str, Any], end: bool) -> StreamingQuery:
    """Start one of the streams; ``end``: it ends where its source ends now."""
    reader = spark.readStream.format("fluss").option("bootstrap.servers", servers)
    stream: DataFrame = reader.options(**order["read"]).load(order["source"])
    if order["columns"]:
        stream = stream.selectExpr(*order["columns"])
    if order["shuffle"]:
        # each run of a batch deals its rows to the tasks in another way
        stream = stream.selectExpr("*", "rand() AS by").repartition(3, "by").drop("by")
    if order["slow"]:
        stream = stream.mapInArrow(slow_at_first(order["slow"]), stream.schema)
    writer = stream.writeStream.format("fluss").option("bootstrap.servers", servers)
    writer = writer.option("checkpointLocation", order["checkpoint"]).options(**order["write"])
    writer = (
        writer.trigger(availableNow=True) if end else writer.trigger(processingTime="0 seconds")
    )
    return writer.start(order["target"])


def main() -> None:
    """Run the streams until they end, or somebody kills the JVM."""
    orders = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(orders["master"])
    for key, value in orders["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FlussDataSource)
    jvm: Any = spark._jvm
    said = Path(orders["pid"])
    said.with_suffix(".part").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    os.replace(said.with_suffix(".part"), said)
    queries = [start(spark, orders["servers"], order, orders["end"]) for order in orders["streams"]]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
