"""TPC-H on Fluss tables beside Parquet files: ``python -m benchmarks.tpch``; see ``--help``."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

import fluss_df as fluss
from benchmarks.tpch.data import generate, load, on_files, on_fluss
from benchmarks.tpch.queries import QUERIES
from fluss_df.client.fetch.chunk_read import positions_of
from fluss_df.client.fetch.parallel import ParallelRead, default_ahead_bytes
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.cluster import LocalCluster
from fluss_df.io.base.arrow import to_polars
from fluss_df.io.polars_reader import LogRead, planned_scans

# of the embedded engine, in total: of a log, and of tables that are in the lake
AIM = 1.5
LAKE_AIM = 1.15
SETTLE_S = 15.0


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return how long something took, and of processors of this process."""
    began, began_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - began_cpu


def read(connection: fluss.FlussConnection, scans: Sequence[LogRead], metrics: ScanMetrics) -> None:
    """Read what a query's scans read, and do nothing with it."""
    for scan in scans:
        positions = positions_of(scan.info.table_id, scan.plan.splits)
        with ParallelRead(
            connection,
            scan.info,
            scan.plan.columns,
            (),
            positions,
            metrics,
            to_polars,
            ahead_bytes=default_ahead_bytes(),
            views=True,
        ) as frames:
            for _ in frames:
                pass


class Race:
    """The times of the queries, on a server and on files, taken in turn.

    Parameters
    ----------
    connection
        The server.
    files, tables
        The lazy frames.
    """

    def __init__(
        self,
        connection: fluss.FlussConnection,
        files: dict[str, pl.LazyFrame],
        tables: dict[str, pl.LazyFrame],
    ) -> None:
        self._connection = connection
        self._files = files
        self._tables = tables
        self._memory = {name: frame.collect().lazy() for name, frame in files.items()}

    def query(self, number: int, rounds: int) -> dict[str, tuple[float, float]]:
        """Return medians of a query and of its parts: seconds, and of processors."""
        query = QUERIES[number]
        scans: list[LogRead] = []
        waited: list[float] = []

        def planning() -> None:
            scans[:] = planned_scans(query(self._tables))

        def reading() -> None:
            metrics = ScanMetrics()
            read(self._connection, scans, metrics)
            waited.append(metrics.wait_seconds)

        work: dict[str, Callable[[], object]] = {
            "files": lambda: query(self._files).collect(engine="streaming"),
            "fluss": lambda: query(self._tables).collect(engine="streaming"),
            "plan": planning,
            "read": reading,
            "query": lambda: query(self._memory).collect(engine="streaming"),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
        for at in range(rounds + 1):
            for name, contender in work.items():
                found = seconds(contender)
                # the first round warms up
                if at:
                    taken[name].append(found)
        medians = {
            name: (statistics.median(s for s, _ in pairs), statistics.median(c for _, c in pairs))
            for name, pairs in taken.items()
        }
        medians["wait"] = (statistics.median(waited[1:]), 0.0)
        for name in ("files", "fluss"):
            pairs = taken[name]
            medians[f"least {name}"] = min(s for s, _ in pairs), min(c for _, c in pairs)
        return medians


def main(
    scale: Annotated[float, typer.Option(help="TPC-H's scale factor; 1 is 6 M lines.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Rounds that count, after one that does not.")] = 3,
    engine: Annotated[str, typer.Option(help="embedded, cluster, or host:port.")] = "embedded",
    codec: Annotated[str, typer.Option(help="Of record batches: ZSTD, LZ4_FRAME, NONE.")] = "ZSTD",
    buckets: Annotated[int, typer.Option(help="Of each table.")] = 2,
    only: Annotated[str, typer.Option(help="Numbers of queries, with commas between.")] = "",
    lake: Annotated[bool, typer.Option(help="Tier the tables into the lake first.")] = False,
    lake_codec: Annotated[str, typer.Option(help="Of the lake's files: zstd, lz4, ...")] = "zstd",
    data: Annotated[str, typer.Option(help="A folder that keeps the data.")] = "",
) -> None:
    """Compare the 22 queries on Fluss tables with the same on Parquet files."""
    console = Console(highlight=False)
    numbers = [int(n) for n in only.split(",")] if only else list(QUERIES)
    cluster = None
    with tempfile.TemporaryDirectory() as temporary:
        try:
            folder = Path(data or temporary) / f"tpch-{scale:g}"
            folder.mkdir(parents=True, exist_ok=True)
            files = generate(folder, scale)
            if engine == "cluster":
                console.print("starting a Fluss server ...")
                cluster = LocalCluster(heap="2g").start()
            address = {
                "embedded": Path(temporary) / "fluss",
                "cluster": cluster and cluster.bootstrap_servers,
            }.get(engine, engine)
            with fluss.connect(address) as connection:
                console.print("writing the tables ...")
                database = f"tpch_{time.time_ns()}"
                tables = load(
                    connection, files, database, buckets, codec, lake=lake, lake_codec=lake_codec
                )
                if engine != "embedded":
                    os.sync()
                    time.sleep(SETTLE_S)
                race = Race(connection, on_files(files), on_fluss(connection, tables))
                about = f"{engine}, {codec}{f', lake ({lake_codec})' if lake else ''}"
                ratio = report(race, numbers, rounds, console, about)
        finally:
            if cluster is not None:
                cluster.stop()
    aim = LAKE_AIM if lake else AIM
    if engine == "embedded" and ratio > aim:
        console.print(f"{ratio:.2f} times as long as files: the aim of {aim:g} was missed")
        sys.exit(1)


def report(race: Race, numbers: list[int], rounds: int, console: Console, about: str) -> float:
    """Run and print; return how many times as long as files the tables take in total."""
    shown = Table(
        title=f"TPC-H, {about}: seconds, medians of {rounds} rounds (cpu: of this process)"
    )
    parts = ("plan", "read", "wait", "query")
    headings = ("query", "files", "fluss", "ratio", *parts, "cpu files", "cpu fluss", "cpu ratio")
    for heading in headings:
        shown.add_column(heading, justify="right")

    def row(name: str, medians: dict[str, tuple[float, float]]) -> None:
        (files, files_cpu), (ours, ours_cpu) = medians["files"], medians["fluss"]
        times = [files, ours, ours / files, *(medians[part][0] for part in parts)]
        times += [files_cpu, ours_cpu, ours_cpu / files_cpu]
        shown.add_row(name, *(f"{time:.3f}" if time < 10 else f"{time:.1f}" for time in times))

    total: dict[str, tuple[float, float]] = {}
    for number in numbers:
        console.print(f"[dim]query {number} ...[/dim]")
        medians = race.query(number, rounds)
        row(str(number), medians)
        for name, (wall, cpu) in medians.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = before[0] + wall, before[1] + cpu
    shown.add_section()
    row("total", total)
    console.print(shown)
    (files, files_cpu), (ours, ours_cpu) = total["least files"], total["least fluss"]
    console.print(
        f"sums of least times: files {files:.2f} s, fluss {ours:.2f} s, ratio {ours / files:.2f};"
        f" of processors: ratio {ours_cpu / files_cpu:.2f}"
    )
    return total["fluss"][0] / total["files"][0]


if __name__ == "__main__":
    typer.run(main)
