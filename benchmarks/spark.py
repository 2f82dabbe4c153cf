"""Spark over Fluss beside Spark over its own Parquet files, in one session.

``python -m benchmarks.spark``: reads and writes of 5 M rows of five columns, and a narrow aggregate
over a table of twenty columns, by ``fluss_df.spark.sql`` and through a plain view. Reads stand
beside a source, too, that hands Spark the same rows from memory: what no Python source can beat.
Tables are compressed with ZSTD, Fluss' default; of reads also with LZ4 or not at all, as Spark's
Parquet files are with Snappy, which is as quick as LZ4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.io import write_fluss
from fluss_df.spark import fluss_views, register, sql

_ROOT = str(Path(__file__).parents[1])

# where batches of a write are bounded by bytes, Spark adds up a batch's size before each row
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNBOUNDED = str(2**31 - 1)

_CODEC = "table.log.arrow.compression.type"

# Java compiles what it does often while it runs
_WARM_UP_ROUNDS = 6


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


class ReadyRows(DataSource):
    """A source of rows that are there as Arrow: each task maps a file and hands its batches on."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "ready"

    def schema(self) -> StructType:
        """Return the schema of the files."""
        first = min(Path(self.options["path"]).iterdir())
        with pa.ipc.open_file(pa.memory_map(str(first))) as reader:
            return from_arrow_schema(reader.schema)

    def reader(self, schema: StructType) -> ReadyReader:
        """Return what reads the files."""
        return ReadyReader(self.options["path"])


class ReadyReader(DataSourceReader):
    """Reads a file for each task."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each file."""
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file."""
        reader = pa.ipc.open_file(pa.memory_map(partition.value))
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def write_ready(frame: pl.DataFrame, folder: Path) -> None:
    """Write four files of batches as large as those of a Fluss table."""
    folder.mkdir()
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    table = table.cast(pa.schema([_small(field) for field in table.schema]))
    rows = -(-table.num_rows // 4)
    for i in range(4):
        with pa.ipc.new_file(folder / f"{i}.arrow", table.schema) as writer:
            writer.write_table(table.slice(i * rows, rows), max_chunksize=65_536)


def _small(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field


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
    spark.dataSource.register(ReadyRows)
    return spark


def compare(what: str, runs: int, contenders: Mapping[str, Callable[[], object]]) -> None:
    """Run all in turns, first to warm up; print medians, ranges, and ratios to the last one."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_WARM_UP_ROUNDS + runs):
        for name, function in contenders.items():
            began = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - began)
    counted = {name: taken[_WARM_UP_ROUNDS:] for name, taken in seconds.items()}
    *_, last = map(statistics.median, counted.values())
    print(what)
    for name, taken in counted.items():
        median = statistics.median(taken)
        spread = f"({min(taken):.2f} to {max(taken):.2f})"
        print(f"  {name:<28}{median:6.2f} s {spread}   ratio {median / last:.2f}", flush=True)


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
        files, out, ready = f"{folder}/rows", f"{folder}/out", f"{folder}/ready"

        def fill(name: str, frame: pl.DataFrame, codec: str = "ZSTD") -> None:
            write_fluss(frame, f"fluss.{name}", connection=connection, create_if_not_exists=True,
                        bucket_count=4, properties={_CODEC: codec})  # fmt: skip

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
            write_ready(narrow_rows(options.rows), Path(ready))
            for codec in ("LZ4_FRAME", "NONE"):
                fill(f"rows_{codec}", narrow_rows(options.rows), codec)
            reads = {
                "fluss_df": lambda: drain(table("fluss.rows")),
                "fluss_df, LZ4_FRAME": lambda: drain(table("fluss.rows_LZ4_FRAME")),
                "fluss_df, NONE": lambda: drain(table("fluss.rows_NONE")),
                "rows ready in memory": lambda: drain(spark.read.format("ready").load(ready)),
                "Parquet": lambda: drain(spark.read.parquet(files)),
            }
            compare("read, all columns", options.runs, reads)
        query = "SELECT sum(c3) FROM {} WHERE c7 < 100000"
        if options.only in (None, "sql"):
            queries = {
                "fluss_df.spark.sql": lambda: sql(
                    spark, query.format("fluss.wide"), connection=address
                ).collect(),
                "plain view": lambda: spark.sql(query.format("plain_wide")).collect(),
            }
            compare("aggregate over 20 columns", options.runs, queries)
        if options.only in (None, "write"):

            def write() -> None:
                writer = spark.read.parquet(files).write.format("fluss").mode("append")
                writer.option("connection", address).save("fluss.out")

            def write_parquet() -> None:
                spark.read.parquet(files).write.mode("overwrite").parquet(out)

            writes = {"fluss_df": write, "Parquet": write_parquet}
            compare("write", options.runs, writes)
            spark.conf.set(_BATCH_BYTES, "64m")  # as Spark has it
            compare("write, batches bounded by bytes", options.runs, writes)
    spark.stop()


if __name__ == "__main__":
    main()
