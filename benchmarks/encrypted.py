"""A scan with TLS beside the same scan without: ``python -m benchmarks.encrypted``.

Two servers with the same rows, in processes of their own, are read in turns. Wall time is that of a
machine that others use, too: so the processor time of both sides is shown as well.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer
from rich.console import Console

import fluss_df as fluss
from tests.certificates import Authority

_TABLE = fluss.TablePath("fluss", "t")


def frame(rows: int) -> pl.DataFrame:
    """Return three columns of numbers, two of them random, which hardly can be compressed."""
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {"a": np.arange(rows), "b": rng.random(rows), "c": rng.integers(0, 1 << 60, rows)}
    )


@contextlib.contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[str, int, str]]:
    """Yield the address and the process id of a server, and its page of metrics ("" without)."""
    command = [sys.executable, "-m", "fluss_df", "serve", "--dir", str(folder), "--port", "0"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            page = process.stdout.readline() if "--metrics-port" in arguments else ""
            address = process.stdout.readline().split()[-1]
            yield address, process.pid, page.split()[-1] if page else ""
        finally:
            process.terminate()


def processor_s(pid: int) -> float:
    """Return the processor time of a process, and of this one, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100 + time.process_time()


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table, of 24 bytes.")] = 8_000_000,
    rounds: Annotated[int, typer.Option(help="Scans of each.")] = 15,
    compression: Annotated[str, typer.Option(help="ZSTD, LZ4_FRAME or NONE.")] = "ZSTD",
) -> None:
    """Compare them."""
    console = Console(highlight=False)
    data = frame(rows)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(folder)
        issued = authority.issue("server")
        options = ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
        settings = {
            "security.ssl.enabled": "true",
            "security.ssl.truststore.path": str(authority.file),
        }
        places = {}
        for name, arguments, more in (("plain", [], {}), ("tls", options, settings)):
            address, pid, _ = stack.enter_context(served(folder / name, *arguments))
            given = {"bootstrap.servers": address, **more}
            connection = stack.enter_context(fluss.connect(given))
            descriptor = fluss.TableDescriptor(
                fluss.Schema(data.head(0).to_arrow().schema),
                bucket_count=4,
                properties={"table.log.arrow.compression.type": compression},
            )
            connection.get_admin().create_table(_TABLE, descriptor)
            fluss.write_fluss(data, "t", connection=connection)
            places[name] = connection, pid
        walls: dict[str, list[float]] = {name: [] for name in places}
        used: dict[str, list[float]] = {name: [] for name in places}
        for number in range(rounds + 1):
            # each is the first one in turn
            for name in sorted(places, reverse=bool(number % 2)):
                connection, pid = places[name]
                began, before = time.perf_counter(), processor_s(pid)
                assert fluss.read_fluss("t", connection=connection).height == rows
                if number:
                    walls[name].append(time.perf_counter() - began)
                    used[name].append(processor_s(pid) - before)
    for name in walls:
        wall = statistics.median(walls[name])
        console.print(
            f"{name}: {wall:.3f} s, {rows * 24 / wall / 1e6:,.0f} MB/s of rows, processor"
            f" {statistics.fmean(used[name]):.3f} s"
        )
    ratio = statistics.median(p / t for p, t in zip(walls["plain"], walls["tls"], strict=True))
    cost = statistics.fmean(used["plain"]) / statistics.fmean(used["tls"])
    console.print(f"throughput with TLS: {ratio:.2f} of that without; by processor time {cost:.2f}")


if __name__ == "__main__":
    typer.run(main)
