"""A stream of 1 GB by Flight SQL: memory of the server, and throughput beside ``pl.scan_fluss``.

``python -m tests.campaigns.flight_stream [rounds]``. The server has a process of its own, and the
engine in it. Both readers are in another one, and take turns: the machine is not theirs alone.

Two streams are measured, of all rows and with a condition. The processors have more to do than for
a scan: gRPC on both sides, and the driver.
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
from tests.memory import PeakMemory

ROWS, PARTS = 1_000_000, 28
ALLOWED = 64 << 20
LEAST = 0.8
PLAIN, WITH_CONDITION = "SELECT * FROM big", "SELECT * FROM big WHERE a >= 0"


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
    memory = PeakMemory()
    memory.before = memory.peak = 0
    with EmbeddedFluss(folder) as engine, FlightSqlServer(FolderAccess(engine)) as server:
        print(server.url, flush=True)
        for line in sys.stdin:
            if line.strip() == "base":
                memory.__enter__()
            elif line.strip() == "peak":
                # who watches takes processor time, too
                memory.__exit__(None, None, None)
            times = os.times()
            found = memory.before, memory.peak, times.user + times.system
            print(json.dumps(found), flush=True)


def stream(url: str, pause: float, statement: str = PLAIN) -> int:
    """Read all rows; return their bytes."""
    size = 0
    with adbc.connect(url, autocommit=True) as client, client.cursor() as cursor:
        cursor.execute(statement)
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
        for first in (PLAIN, WITH_CONDITION):
            process, url = started(folder)
            # modules and threads are there with the first statement
            for name, statement, pause in (
                ("a few rows", "SELECT * FROM big LIMIT 10", 0.0),
                ("first stream", first, 0.0),
                ("next stream", first, 0.0),
                ("slow reader", first, 0.01),
            ):
                before, _, _ = ask(process, "base")
                size = stream(url, pause, statement)
                _, peak, _ = ask(process, "peak")
                more = peak - before
                failed += more > ALLOWED
                figures = f"{size >> 20} MB, {more >> 20} MB above {before >> 20} MB"
                print(f"{first}: {name}: {figures}", flush=True)
            ended(process)
        process, url = started(folder)
        # the folder is the server's: a scan goes there
        scan = fluss_df.scan_fluss("big", connection=folder)
        filtered = scan.filter(pl.col("a") >= 0)
        readers = (
            (f"scan for {PLAIN}", lambda: scan.collect().to_arrow().nbytes),
            (PLAIN, lambda: stream(url, 0.0)),
            (f"scan for {WITH_CONDITION}", lambda: filtered.collect().to_arrow().nbytes),
            (WITH_CONDITION, lambda: stream(url, 0.0, WITH_CONDITION)),
        )
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in readers}
        for number in range(rounds):
            for name, read in readers:
                _, _, served = ask(process, "now")
                wall, used = time.perf_counter(), time.process_time()
                read()
                wall, used = time.perf_counter() - wall, time.process_time() - used
                seen[name].append((wall, used + ask(process, "now")[2] - served))
            for name, found in seen.items():
                wall, used = found[-1]
                print(
                    f"round {number + 1}: {name}: {wall:.2f} s, {used:.2f} of processors",
                    flush=True,
                )
        ended(process)
    for name in (PLAIN, WITH_CONDITION):
        scans, others = np.array(seen[f"scan for {name}"]), np.array(seen[name])
        wall, used = np.median(scans / others, axis=0)
        best_wall, best_used = scans.min(axis=0) / others.min(axis=0)
        print(
            f"{name}: of the scan {wall:.2f} by the clock, {used:.2f} by the processors; the best"
            f" rounds of both {best_wall:.2f} and {best_used:.2f}"
        )
        failed += max(wall, best_wall) < LEAST
    return int(failed > 0)


def started(folder: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return its process and where it is found."""
    line = [sys.executable, "-m", "tests.campaigns.flight_stream", "serve", folder]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 5))
