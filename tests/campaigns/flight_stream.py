"""A stream of 1 GB by Flight SQL: memory of the server, and throughput beside ``pl.scan_fluss``.

``python -m tests.campaigns.flight_stream [rounds]``. The server has a process of its own, and the
engine in it. Both readers are in another one, and take turns: the machine is not theirs alone.

The first stream of a server takes more memory, once: allocators keep what it needed. The processors
have more to do than for a scan: gRPC on both sides, and the driver, take about as much as the scan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import IO

import adbc_driver_flightsql.dbapi as adbc
import numpy as np
import polars as pl

import fluss_df
from fluss_df.embedded import EmbeddedFluss
from fluss_df.flight import FlightSqlServer, FolderAccess
from tests.memory import PeakMemory, anonymous_memory

ROWS, PARTS = 1_000_000, 28
ALLOWED = 64 << 20
LEAST = 0.8


def fill(folder: str) -> None:
    """Write about 1 GB, as Arrow has it."""
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        for part in range(PARTS):
            chance = np.random.default_rng(part)
            rows = pl.DataFrame(
                {
                    "a": np.arange(ROWS) + part * ROWS,
                    "b": chance.random(ROWS),
                    "c": chance.integers(0, 1 << 40, ROWS),
                    "s": pl.Series(chance.integers(0, 10**9, ROWS)).cast(pl.String),
                }
            )
            fluss_df.write_fluss(
                rows, "big", connection=connection, create_if_not_exists=True, bucket_count=2
            )


def serve(folder: str) -> None:
    """Answer each line of the input with the memory and the processor time of the process."""
    with (
        EmbeddedFluss(folder) as engine,
        FlightSqlServer(FolderAccess(engine)) as server,
        PeakMemory() as memory,
    ):
        print(server.url, flush=True)
        for line in sys.stdin:
            if line.strip() == "base":
                memory.before = memory.peak = anonymous_memory()
            times = os.times()
            print(json.dumps([memory.before, memory.peak, times.user + times.system]), flush=True)


def stream(url: str, pause: float) -> int:
    """Read all rows; return their bytes."""
    size = 0
    with adbc.connect(url, autocommit=True) as client, client.cursor() as cursor:
        cursor.execute("SELECT * FROM big")
        for batch in cursor.fetch_record_batch():
            size += batch.nbytes
            time.sleep(pause)
    return size


def ask(process: subprocess.Popen[str], word: str) -> tuple[int, int, float]:
    pipes: tuple[IO[str] | None, IO[str] | None] = process.stdin, process.stdout
    assert pipes[0] is not None
    assert pipes[1] is not None
    pipes[0].write(word + "\n")
    pipes[0].flush()
    before, peak, seconds = json.loads(pipes[1].readline())
    return before, peak, seconds


def main(rounds: int) -> int:
    """Return 0 where all was within its limits."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        fill(folder)
        line = [sys.executable, "-m", "tests.campaigns.flight_stream", "serve", folder]
        pipe = subprocess.PIPE
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        for name, pause in (("first stream", 0.0), ("next stream", 0.0), ("slow reader", 0.01)):
            before, _, _ = ask(process, "base")
            size = stream(url, pause)
            _, peak, _ = ask(process, "now")
            more = peak - before
            failed += name != "first stream" and more > ALLOWED
            print(f"{name}: {size >> 20} MB, {more >> 20} MB above {before >> 20} MB", flush=True)
        scan = fluss_df.scan_fluss("big", connection=folder)
        ratios = []
        for _ in range(rounds):
            figures = []
            for read in (lambda: scan.collect().to_arrow().nbytes, lambda: stream(url, 0.0)):
                _, _, served = ask(process, "now")
                wall, used = time.perf_counter(), time.process_time()
                read()
                wall, used = time.perf_counter() - wall, time.process_time() - used
                figures.append((wall, used + ask(process, "now")[2] - served))
            (scan_wall, scan_cpu), (flight_wall, flight_cpu) = figures
            ratios.append((scan_wall / flight_wall, scan_cpu / flight_cpu))
            print(
                f"scan {scan_wall:.2f} s ({scan_cpu:.2f} s of processors), Flight SQL"
                f" {flight_wall:.2f} s ({flight_cpu:.2f} s)",
                flush=True,
            )
        wall, used = np.median(np.array(ratios), axis=0)
        print(f"Flight SQL: {wall:.2f} of the scan by the clock, {used:.2f} by the processors")
        failed += wall < LEAST
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 5))
