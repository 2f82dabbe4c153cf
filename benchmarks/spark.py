"""Spark over Fluss beside Spark over its own Parquet files, in one session.

``python -m benchmarks.spark``: reads and writes of 5 M rows of five columns, and a narrow aggregate
over a table of twenty columns, by ``fluss_df.spark.sql`` and through a plain view.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.io import write_fluss
from fluss_df.spark import fluss_views, register, sql

_ROOT = str(Path(__file__).parents[1])

# where batches of a write are bounded by bytes, Spark adds up a batch's size before each row
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNBOUNDED = str(2**31 - 1)

# Java compiles what it does often while it runs
_WARM_UP_ROUNDS = 4


def narrow_rows(count: int) -> pl.DataFrame:
    """Return the five columns."""
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {
            "id": np.arange(count),
            "a": rng.integers(0, 1000, count, dtype=np.int32),
            "x": rng.random(count),
            "s": pl.Series(rng.integers(0, 5000, count)).cast(pl.String) + "-name",
            "t": pl.Series(rng.integers(0, 10**15, count)).cast(pl.Datetime("us")),
        }
    )


def wide_rows(count: int) -> pl.DataFrame:
    """Return the twenty columns."""
    rng = np.random.default_rng(2)
    return pl.DataFrame({f"c{i}": rng.integers(0, 10**6, count) for i in range(20)})


def session() -> SparkSession:
    """Return the session."""
    os.environ["PYTHONPATH"] = _ROOT
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.daemon.module", "fluss_df.spark.daemon")
        .config(_BATCH_BYTES, _UNBOUNDED)
        .getOrCreate()
    )
    register(spark)
    return spark


def compare(
    what: str, runs: int, ours: Callable[[], object], theirs: Callable[[], object], other: str
) -> None:
    """Run both in turns, first to warm up, and print medians and ranges of what counts."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_WARM_UP_ROUNDS + runs):
        for function, taken in zip((ours, theirs), seconds, strict=True):
            began = time.perf_counter()
            function()
            taken.append(time.perf_counter() - began)
    counted = [taken[_WARM_UP_ROUNDS:] for taken in seconds]
    first, second = (
        f"{statistics.median(taken):6.2f} s ({min(taken):.2f} to {max(taken):.2f})"
        for taken in counted
    )
    ratio = statistics.median(counted[0]) / statistics.median(counted[1])
    print(f"{what:<34} {first}   {other:<12} {second}   ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--wide-rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=["read", "sql", "write"], help="one of the comparisons")
    options = parser.parse_args()
    spark = session()
    with (
        LocalCluster() as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
        tempfile.TemporaryDirectory() as folder,
    ):
        address = cluster.bootstrap_servers
        files, out = f"{folder}/rows", f"{folder}/out"

        def fill(name: str, frame: pl.DataFrame) -> None:
            write_fluss(frame, f"fluss.{name}", connection=connection, create_if_not_exists=True,
                        bucket_count=4)  # fmt: skip

        def table(name: str):  # type: ignore[no-untyped-def]
            return spark.read.format("fluss").option("connection", address).load(name)

        def drain(frame) -> None:  # type: ignore[no-untyped-def]
            frame.write.format("noop").mode("overwrite").save()

        if options.only != "sql":
            fill("rows", narrow_rows(options.rows))
            fill("out", narrow_rows(0))
            table("fluss.rows").repartition(4).write.mode("overwrite").parquet(files)
        if options.only in (None, "sql"):
            fill("wide", wide_rows(options.wide_rows))
            fluss_views(spark, {"plain_wide": "fluss.wide"}, connection=address)
        if options.only in (None, "read"):
            compare("read, all columns", options.runs, lambda: drain(table("fluss.rows")),
                lambda: drain(spark.read.parquet(files)), "Parquet")  # fmt: skip
        query = "SELECT sum(c3) FROM {} WHERE c7 < 100000"
        if options.only in (None, "sql"):
            compare("aggregate over 20 columns, by sql()", options.runs,
                lambda: sql(spark, query.format("fluss.wide"), connection=address).collect(),
                lambda: spark.sql(query.format("plain_wide")).collect(), "plain view")  # fmt: skip
        if options.only in (None, "write"):

            def write() -> None:
                writer = spark.read.parquet(files).write.format("fluss").mode("append")
                writer.option("connection", address).save("fluss.out")

            def write_parquet() -> None:
                spark.read.parquet(files).write.mode("overwrite").parquet(out)

            compare("write", options.runs, write, write_parquet, "Parquet")
            spark.conf.set(_BATCH_BYTES, "64m")  # as Spark has it
            compare(
                "write, batches bounded by bytes", options.runs, write, write_parquet, "Parquet"
            )
    spark.stop()


if __name__ == "__main__":
    main()
