"""The streams of the pipeline: Structured Streaming from Fluss, through Spark, into Fluss."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import fluss_df
from examples.flights_pipeline.data import LATE
from examples.flights_pipeline.tables import CLEAN, DATABASE, DELAYS, QUARANTINE, RAW, REFERENCES
from fluss_df import spark as fluss_spark


def session(master: str, remote: str | None = None) -> SparkSession:
    """Return a small session whose workers import this library from where it is here.

    Parameters
    ----------
    master
        The Spark cluster.
    remote
        Where Spark Connect is, instead; ``local[2]`` starts a server of it.
    """
    root = str(Path(fluss_df.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    os.environ["PYTHONPATH"] = path
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    made = (
        (builder.master(master) if remote is None else builder.remote(remote))
        .appName("flights pipeline")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "1g")
        .config("spark.executorEnv.PYTHONPATH", path)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # workers are forked from a process that has imported this library
        .config("spark.python.daemon.module", "fluss_df.spark.daemon")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    fluss_spark.register(made)
    return made


class Streams:
    """Starts the three streams of the pipeline.

    Parameters
    ----------
    spark
        The session.
    connection
        The cluster, as the option ``connection``.
    folder
        Where checkpoints are: streams go on from there.
    per_batch
        How many rows a batch reads at the most.
    """

    def __init__(self, spark: SparkSession, connection: str, folder: Path, per_batch: int) -> None:
        self._spark = spark
        self._connection = connection
        self._folder = folder
        self._per_batch = per_batch

    def start(self) -> list[StreamingQuery]:
        """Start all streams."""
        known = {name: f.broadcast(self._load(f"{DATABASE}.{name}").cache()) for name in REFERENCES}
        once = {"delivery.guarantee": "exactly-once"}
        return [
            self._write("clean", clean(self._stream(RAW), known), CLEAN, once),
            self._write("quarantine", quarantined(self._stream(RAW), known), QUARANTINE, once),
            self._write("delays", delays(self._stream(CLEAN)), DELAYS, {}, mode="complete"),
        ]

    def _load(self, table: str) -> DataFrame:
        return self._spark.read.format("fluss").option("connection", self._connection).load(table)

    def _stream(self, table: str) -> DataFrame:
        return (
            self._spark.readStream.format("fluss")
            .option("connection", self._connection)
            .option("maxOffsetsPerTrigger", self._per_batch)
            .load(table)
        )

    def _write(
        self, name: str, rows: DataFrame, table: str, options: dict[str, str], mode: str = "append"
    ) -> StreamingQuery:
        return (
            rows.writeStream.format("fluss")
            .queryName(name)
            .outputMode(mode)
            .option("connection", self._connection)
            .option("checkpointLocation", str(self._folder / name))
            .options(**options)
            .start(table)
        )


def _judged(raw: DataFrame, known: dict[str, DataFrame]) -> DataFrame:
    """Return events with the name of their airline, and what is wrong with them."""
    late = f.col("sent") > f.col("time_hour") + f.make_dt_interval(f.lit(LATE.days))
    reason = (
        f.when(f.col("airline").isNull(), "unknown carrier")
        .when(f.col("air_time") < 0, "negative air time")
        .when(late, "late")
    )
    return raw.join(known["airlines"], "carrier", "left").withColumn("reason", reason)


def clean(raw: DataFrame, known: dict[str, DataFrame]) -> DataFrame:
    """Return good events with airline, airport and weather."""
    airports = known["airports"].withColumnRenamed("faa", "dest")
    return (
        _judged(raw, known)
        .where("reason IS NULL")
        .drop("reason", "sent")
        .join(airports, "dest", "left")
        .join(known["weather"], ["origin", "time_hour"], "left")
    )


def quarantined(raw: DataFrame, known: dict[str, DataFrame]) -> DataFrame:
    """Return bad and late events."""
    columns = ("event_id", "sent", "time_hour", "carrier", "reason")
    return _judged(raw, known).where("reason IS NOT NULL").select(*columns)


def delays(cleaned: DataFrame) -> DataFrame:
    """Return what is counted for each carrier and origin."""
    return cleaned.groupBy("carrier", "origin").agg(
        f.max("airline").alias("airline"),
        f.count("*").alias("flights"),
        f.count_if(f.col("arr_delay").isNull()).alias("cancelled"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("delay_minutes"),
        f.max("arr_delay").alias("worst_delay"),
        f.min("temp").alias("coldest"),
    )
