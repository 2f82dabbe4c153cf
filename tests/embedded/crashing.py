"""Engines that are killed while they are written to, and what is found afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
TABLE = "fluss.killed"

# Appends batches of consecutive numbers; prints a number once its batch was acknowledged.
_CHILD = """
import sys
import pyarrow as pa
import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions

folder, first = sys.argv[1], int(sys.argv[2])
schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
engine = EmbeddedFluss(folder, options=EngineOptions(segment_bytes=100_000))
connection = engine.connection()
admin = connection.get_admin()
descriptor = fluss.TableDescriptor(
    fluss.Schema(schema), bucket_count=1, properties={"table.log.arrow.compression.type": "NONE"}
)
admin.create_table("fluss.killed", descriptor, ignore_if_exists=True)
writer = connection.get_table("fluss.killed").new_append().create_writer()
print("ready", flush=True)
n = first
while True:
    rows = range(n, n + 100)
    writer.write_arrow(pa.table({"n": rows, "text": [f"{i:020}" for i in rows]}, schema=schema))
    writer.flush()
    n += 100
    print(n, flush=True)
"""


def kill_once(folder: Path, first: int, batches: int, seconds: float) -> int:
    """Run a writer and kill it some seconds after some acknowledged batches.

    Returns the number below which all rows are acknowledged.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(batches):
            process.stdout.readline()
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    acknowledged = first + 100 * batches
    for line in process.stdout:
        if line.endswith("\n"):
            acknowledged = int(line)
    process.stdout.close()
    return acknowledged


def numbers_in(folder: Path) -> list[int]:
    """Open a folder and return all numbers in its table, in the order of the log."""
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        frame = fluss.scan_fluss(TABLE, connection=connection).collect()
        return [int(n) for n in frame["n"].to_list()]


def campaign(folder: Path, kills: int, seed: int) -> int:
    """Kill a writer again and again; return how many rows there were in the end.

    After each kill the table holds 0, 1, 2, ... without a gap or a double, in whole batches, with
    every acknowledged row.
    """
    choose = random.Random(seed)
    first = 0
    for kill in range(kills):
        acknowledged = kill_once(folder, first, choose.randrange(40), choose.uniform(0.0, 0.02))
        numbers = numbers_in(folder)
        assert numbers == list(range(len(numbers))), f"kill {kill}: rows lost, doubled or moved"
        assert len(numbers) % 100 == 0, f"kill {kill}: part of a batch"
        assert len(numbers) >= acknowledged, f"kill {kill}: acknowledged rows are lost"
        first = len(numbers)
    return first
