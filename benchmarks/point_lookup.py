"""One row by its key through Polars: ``python -m benchmarks.point_lookup``.

Beside the client's own lookup, and beside what Polars takes for a query of a frame in memory and
for one that reads a scan of Python's: contenders take turns.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer
from rich.console import Console

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

AIM_MS = 5.0
_PART = 1_000_000


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 10_000_000,
    rounds: Annotated[int, typer.Option(help="Lookups of each kind.")] = 300,
    engine: Annotated[str, typer.Option(help="embedded or cluster.")] = "embedded",
    data: Annotated[str, typer.Option(help="A folder that keeps an embedded table.")] = "",
) -> None:
    """Fill a table, and look up random keys in it."""
    console = Console(highlight=False)
    cluster = None
    with tempfile.TemporaryDirectory() as temporary:
        try:
            if engine == "cluster":
                cluster = LocalCluster(heap="2g").start()
            address = cluster.bootstrap_servers if cluster else Path(data or temporary)
            with fluss.connect(address) as connection:
                measure(connection, rows, rounds, console)
        finally:
            if cluster is not None:
                cluster.stop()


def measure(connection: fluss.FlussConnection, rows: int, rounds: int, console: Console) -> None:
    path = fluss.TablePath("fluss", f"keyed_{rows}")
    if not connection.get_admin().table_exists(path):
        fill(connection, path, rows)
    scan = fluss.scan_fluss(path, connection=connection)
    lookuper = connection.get_table(path).new_lookup().create_lookuper()
    memory = pl.LazyFrame({"id": range(1000), "value": 0.5, "kind": 1})

    def through_polars(key: int) -> None:
        found = scan.filter(pl.col("id") == key).collect()
        if found.rows() != [(key, key * 0.5, key % 1000)]:
            raise SystemExit(f"key {key}: found {found}")

    contenders: dict[str, Callable[[int], object]] = {
        "pl.scan_fluss(...).filter(id == key).collect()": through_polars,
        "lookuper.lookup": lambda key: lookuper.lookup({"id": key}),
        "a filter of a frame in memory": lambda key: memory.filter(pl.col("id") == key).collect(),
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    with fluss.track_scans() as scans:
        for _ in range(rounds):
            for name, contender in contenders.items():
                key = random.randrange(rows)
                began = time.perf_counter()
                contender(key)
                taken[name].append(time.perf_counter() - began)
    if any(scan.lookups != 1 or scan.requests != 1 for scan in scans):
        raise SystemExit("there was more than one lookup, or a scan")
    for name, times in taken.items():
        quarter, median, three = (value * 1e3 for value in statistics.quantiles(times, n=4))
        console.print(
            f"{name}: median {median:.2f} ms (least {min(times) * 1e3:.2f}, quartiles"
            f" {quarter:.2f} and {three:.2f})"
        )
    ours = statistics.median(taken[next(iter(taken))]) * 1e3
    console.print(f"aim {AIM_MS} ms: {'met' if ours <= AIM_MS else 'missed'}")


def fill(connection: fluss.FlussConnection, path: fluss.TablePath, rows: int) -> None:
    for start in range(0, rows, _PART):
        ids = np.arange(start, min(rows, start + _PART))
        fluss.write_fluss(
            pl.DataFrame({"id": ids, "value": ids * 0.5, "kind": ids % 1000}),
            path,
            connection=connection,
            create_if_not_exists=True,
            primary_keys=["id"],
            bucket_count=4,
        )


if __name__ == "__main__":
    typer.run(main)
