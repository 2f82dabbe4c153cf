"""Run the declarative pipeline: ``python -m examples.declarative_pipeline``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

import fluss_df as fluss
from examples.flights_pipeline.data import table
from fluss_df.cluster import LocalCluster
from fluss_df.io import scan_fluss, write_fluss

_ROOT = Path(__file__).parents[2]
_SPEC = """\
name: flights
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations.py
configuration:
  spark.sql.shuffle.partitions: "2"
"""


def main() -> None:
    """Fill a table, run the pipeline, and hold its sink against Polars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connection", help="a cluster; by default one is started for the run")
    parser.add_argument("--events", type=int, default=20_000)
    options = parser.parse_args()
    if options.connection is not None:
        run(options.connection, options.events)
        return
    with LocalCluster() as cluster:
        run(cluster.bootstrap_servers, options.events)


def run(address: str, count: int) -> None:
    """Run it on a cluster."""
    flights = table("flights").head(count).select("carrier", "flight", "origin", "arr_delay")
    with fluss.connect(address) as connection, tempfile.TemporaryDirectory() as folder:
        connection.get_admin().create_database("declarative", ignore_if_exists=True)
        for name, rows in (("flights", flights), ("late_flights", flights.head(0))):
            write_fluss(rows, f"declarative.{name}", connection=connection,
                        create_if_not_exists=True, bucket_count=2)  # fmt: skip
        Path(folder, "spark-pipeline.yml").write_text(_SPEC.format(folder=folder))
        source = Path(__file__).with_name("transformations.py")
        Path(folder, source.name).write_text(source.read_text())
        environment = os.environ | {
            "FLUSS_BOOTSTRAP_SERVERS": address,
            "PYTHONPATH": str(_ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        command = Path(sys.executable).with_name("spark-pipelines")
        # spark-submit behind it puts everything on one of the two, which one depends
        done = subprocess.run([command, "run"], cwd=folder, env=environment, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=600)  # fmt: skip
        # The command of Spark 4.3 fails over what Python workers report, once a run has completed.
        harmless = "Run is COMPLETED" in done.stdout and "__python_accumulator__" in done.stdout
        if done.returncode and not harmless:
            raise SystemExit(done.stdout)
        found = scan_fluss("declarative.late_flights", connection=connection).collect()
        # the view is a table of Spark, in Parquet
        view = pl.read_parquet(f"{folder}/spark-warehouse/by_carrier/*.parquet")
    late = flights.filter(pl.col("arr_delay") > 0)
    _require_same("the sink late_flights", found, late)
    counts = flights.group_by("carrier").agg(pl.len().cast(pl.Int64).alias("count"))
    _require_same("the view by_carrier", view, counts)
    print(
        f"the sink has the {found.height:,} late flights of {flights.height:,}, the view has"
        f" {view.height} carriers: equal to Polars"
    )


def _require_same(name: str, found: pl.DataFrame, expected: pl.DataFrame) -> None:
    columns = expected.columns
    if not found.select(columns).sort(columns).equals(expected.sort(columns)):
        raise SystemExit(
            f"{name} is not what Polars computes: {found.height} rows, {expected.height} expected"
        )


if __name__ == "__main__":
    main()
