"""Processes that write and exit at random moments without ``close()``.

``python -m tests.campaigns.exits --processes 200``: none aborts or hangs; rows that were not
acknowledged at the exit are named by a warning, and what was acknowledged is in the table.
"""

from __future__ import annotations

import collections
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

SCHEMA = pa.schema([("process", pa.int64()), ("number", pa.int64())])
PROGRAM = """
import random, sys, threading, time
import fluss_df as fluss

address, process, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
connection = fluss.connect(address)
table = connection.get_table("fluss.exits")
writer = table.new_append().create_writer()
scanner = table.new_scan().create_record_batch_log_scanner()
scanner.subscribe_buckets({b: fluss.EARLIEST_OFFSET for b in range(3)})
way = rng.choice(["end", "sys.exit", "raise", "thread"])
if way == "thread":
    threading.Thread(target=lambda: scanner.poll_arrow(10_000), daemon=True).start()
end = time.monotonic() + rng.random() * 0.5
number = 0
while time.monotonic() < end:
    writer.append({"process": process, "number": number})
    number += 1
    if rng.random() < 0.001:
        scanner.poll_arrow(1)
print(number, flush=True)
if way == "sys.exit":
    sys.exit(0)
if way == "raise":
    raise KeyboardInterrupt
"""


def main(
    processes: Annotated[int, typer.Option(help="How many processes.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the random moments.")] = 1,
) -> None:
    """Run processes that exit without closing anything, and check what they leave."""
    rng = random.Random(seed)
    ends: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    wrote: dict[int, int] = {}
    named: dict[int, int] = {}
    said: dict[int, str] = {}
    slowest = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder, "cluster")) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=3)
        connection.get_admin().create_table(fluss.TablePath("fluss", "exits"), descriptor)
        for process in range(processes):
            arguments = [cluster.bootstrap_servers, str(process), str(rng.randrange(10**9))]
            began = time.monotonic()
            try:
                result = subprocess.run(
                    [sys.executable, "-X", "faulthandler", "-c", PROGRAM, *arguments],
                    capture_output=True, text=True, timeout=60, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                problems.append(f"process {process} hangs")
                continue
            slowest = max(slowest, time.monotonic() - began)
            ends[f"exit code {result.returncode}"] += 1
            said[process] = result.stderr
            # An unhandled KeyboardInterrupt ends a program as the signal does, or with 1 where
            # a thread compiled code meanwhile: CPython's note of it is the whole process's.
            interrupted = result.stderr.rstrip().endswith("KeyboardInterrupt")
            if result.returncode and (result.returncode not in (1, -2) or not interrupted):
                problems.append(
                    f"process {process}: exit code {result.returncode}: {result.stderr}"
                )
            wrote[process] = int(result.stdout or 0)
            lost = re.findall(r"(\d+) rows", result.stderr)
            named[process] = int(lost[0]) if lost else 0
            reasons.update(re.findall(r"were not acknowledged \((.*)\)", result.stderr))
        scanner = connection.get_table("fluss.exits").new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(3), fluss.EARLIEST_OFFSET))
        found = scanner.to_arrow().group_by("process").aggregate([("number", "count")])
    there = dict(zip(found["process"].to_pylist(), found["number_count"].to_pylist(), strict=True))
    for process, rows in wrote.items():
        missing = rows - there.get(process, 0)
        if missing > named[process] or missing < 0:
            problems.append(
                f"process {process}: {rows} rows appended, {there.get(process, 0)} in the table,"
                f" {named[process]} named as not acknowledged; it said: {said[process]}"
            )
    print(f"{processes} processes: {dict(ends)}; slowest {slowest:.1f} s;")
    print(f"{sum(wrote.values()):,} rows appended, {sum(there.values()):,} in the table,")
    print(f"{sum(named.values()):,} named as not acknowledged; {len(problems)} problems")
    for reason, count in reasons.items():
        print(f"{count} times: {reason}")
    for problem in problems[:20]:
        print(problem)
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
