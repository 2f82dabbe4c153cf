"""Our tiering service beside Flink's: ``python -m benchmarks.tiering``; see ``--help``.

Rows for each second of processor time, and the largest resident memory of the process, until all
rows of a log table are in the lake of a local cluster: from the start, and of as many more rows.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

_LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
_PART = 250_000
_RATE_AIM, _MEMORY_AIM = 2.0, 0.5


def used(pid: int) -> tuple[float, int]:
    """Return the processor seconds of a process so far, and its largest resident bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak) << 10


def written(connection: fluss.FlussConnection, name: str, rows: int, buckets: int) -> None:
    """Write a log table of five columns."""
    for start in range(0, rows, _PART):
        number = pl.int_range(start, min(start + _PART, rows), eager=True)
        frame = pl.DataFrame({"id": number}).with_columns(
            at=pl.from_epoch("id", time_unit="ms"),
            amount=pl.col("id") * 7919 % 100_003,
            share=pl.col("id") / 3.0,
            text=pl.format("row {}", pl.col("id") % 1000),
        )
        fluss.write_fluss(
            frame,
            name,
            connection=connection,
            create_if_not_exists=True,
            bucket_count=buckets,
            properties=_LAKE,
        )


def until_tiered(connection: fluss.FlussConnection, name: str, rows: int) -> None:
    """Wait until all rows are in the lake."""
    path = fluss.TablePath("fluss", name)
    while True:
        with contextlib.suppress(fluss.FlussError):  # there is no snapshot yet
            snapshot = connection.get_admin().get_latest_lake_snapshot(path)
            if sum(snapshot.table_buckets_offset.values()) == rows:
                return
        time.sleep(0.2)


def main(
    rows: Annotated[int, typer.Option(help="Of the table.")] = 2_000_000,
    buckets: Annotated[int, typer.Option(help="Of the table.")] = 4,
    lake: Annotated[str, typer.Option(help="Its format: iceberg or paimon.")] = "iceberg",
) -> None:
    """Measure both on a table each, of the same rows."""
    console = Console(highlight=False)
    found: dict[str, list[tuple[float, int]]] = {"ours": [], "flink": []}
    for name in ("ours", "flink"):
        with (
            LocalCluster(datalake=lake) as cluster,
            fluss.connect(cluster.bootstrap_servers) as connection,
        ):
            written(connection, name, rows, buckets)
            before = {int(place.name) for place in Path("/proc").glob("[0-9]*")}
            if name == "ours":
                command = "from fluss_df.cli import app; app()"
                arguments = ["tier", "--connection", cluster.bootstrap_servers]
                service = subprocess.Popen([sys.executable, "-c", command, *arguments])
                pid = service.pid
            else:
                cluster.start_flink_tiering()
                pid = next(
                    int(place.name)
                    for place in Path("/proc").glob("[0-9]*")
                    if int(place.name) not in before
                    and "FlinkTiering" in (place / "cmdline").read_text()
                )
            before_s = 0.0
            for part in (1, 2):
                until_tiered(connection, name, part * rows)
                seconds, peak = used(pid)
                found[name].append((rows / (seconds - before_s), peak))
                rate = f"{found[name][-1][0]:,.0f} rows/s of processors"
                console.print(f"{name}, part {part}: {rate}, {peak >> 20} MB")
                if part == 1:
                    # it tiers while this is written
                    before_s = seconds
                    written(connection, name, rows, buckets)
            if name == "ours":
                service.terminate()
                service.wait()
            else:
                cluster.stop_flink_tiering()
    times = [our / its for (our, _), (its, _) in zip(*found.values(), strict=True)]
    memory = found["ours"][-1][1] / found["flink"][-1][1]
    console.print(f"{times[0]:.1f} and {times[1]:.1f} times the rows, {memory:.2f} of the memory")
    if min(times) < _RATE_AIM or memory > _MEMORY_AIM:
        console.print("an aim was missed")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
