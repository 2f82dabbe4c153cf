"""Engines that are killed while they are written to, and what is found afterwards.

Two threads write: one appends consecutive numbers to a log table, the other upserts and deletes
rows of a primary-key table, batch by batch, each batch a function of its number alone.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LOG = fluss.TablePath("fluss", "killed")
ROWS = fluss.TablePath("fluss", "killed_rows")
# a row that every batch of changes writes, with the number of the batch
MARK = -1
KEYS = 300


def changes(number: int) -> tuple[pa.Table, pa.Table]:
    """Return the upserts and the deletes of batch ``number``."""
    choose = random.Random(number)
    keys = choose.sample(range(KEYS), 20)
    split = choose.randrange(10, 20)
    upserts = [MARK, *keys[:split]]
    rows = pa.table(
        [upserts, [f"{number}:{choose.random()}" for _ in upserts], [number] * len(upserts)],
        names=["n", "text", "batch"],
    )
    return rows, pa.table({"n": pa.array(keys[split:], pa.int64())})


def rows_after(count: int) -> dict[int, dict[str, Any]]:
    """Return what ``count`` batches of changes leave."""
    found: dict[int, dict[str, Any]] = {}
    for number in range(count):
        upserts, deletes = changes(number)
        found.update({row["n"]: row for row in upserts.to_pylist()})
        for key in deletes["n"].to_pylist():
            found.pop(key, None)
    return found


def write_for_ever(folder: str, first: int, batch: int) -> None:
    """Write to both tables; print what was acknowledged."""
    import threading

    engine = EmbeddedFluss(folder, options=EngineOptions(segment_bytes=100_000))
    connection = engine.connection()
    admin = connection.get_admin()
    plain = {"table.log.arrow.compression.type": "NONE"}
    log = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, properties=plain)
    admin.create_table(LOG, log, ignore_if_exists=True)
    schema = fluss.Schema(SCHEMA.append(pa.field("batch", pa.int64())), ["n"])
    rows_table = fluss.TableDescriptor(schema, bucket_count=1, properties=plain)
    admin.create_table(ROWS, rows_table, ignore_if_exists=True)

    def change() -> None:
        number = batch
        with connection.get_table(ROWS).new_upsert().create_writer() as writer:
            while True:
                upserts, deletes = changes(number)
                both = pa.concat_tables(
                    [
                        upserts.append_column("_change_type", pa.array(["+U"] * len(upserts))),
                        deletes.append_column("_change_type", pa.array(["-D"] * len(deletes))),
                    ],
                    promote_options="default",
                )
                writer.write_changes(both)
                writer.flush()
                number += 1
                print(f"rows {number}\n", end="", flush=True)

    threading.Thread(target=change, daemon=True).start()
    writer = connection.get_table(LOG).new_append().create_writer()
    print("ready\n", end="", flush=True)
    n = first
    while True:
        rows = range(n, n + 100)
        writer.write_arrow(pa.table({"n": rows, "text": [f"{i:020}" for i in rows]}, schema=SCHEMA))
        writer.flush()
        n += 100
        print(f"log {n}\n", end="", flush=True)


@dataclass(slots=True)
class Written:
    """What was acknowledged, or found: numbers in the log, batches of changes."""

    log: int = 0
    rows: int = 0


def kill_once(folder: Path, start: Written, lines: int, seconds: float) -> Written:
    """Run a writer and kill it some seconds after some acknowledgements; return those."""
    program = (
        "import sys; from tests.embedded.crashing import write_for_ever;"
        " write_for_ever(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"
    )
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(start.log), str(start.rows)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout is not None
    found = Written(start.log, start.rows)

    def take(line: str) -> None:
        kind, _, number = line.partition(" ")
        if line.endswith("\n") and kind in ("log", "rows"):
            setattr(found, kind, int(number))

    try:
        assert process.stdout.readline().strip()
        for _ in range(lines):
            take(process.stdout.readline())
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for line in process.stdout:
        take(line)
    process.stdout.close()
    return found


def check(folder: Path, acknowledged: Written) -> Written:
    """Open a folder and check what is in it; return how much that is.

    The log holds 0, 1, 2, ... without a gap or a double, in whole batches. The rows are those
    after some number of whole batches of changes, and the fold of their changelog. Neither lacks
    what was acknowledged.
    """
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        log = fluss.scan_fluss(LOG, connection=connection).collect()["n"].to_list()
        table = connection.get_table(ROWS)
        state = table.new_scan().create_snapshot_scanner().to_arrow()
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        changelog = scanner.to_arrow().to_pylist()
    assert log == list(range(len(log))), "rows of the log lost, doubled or moved"
    assert len(log) % 100 == 0, "part of a batch"
    assert len(log) >= acknowledged.log, "acknowledged rows of the log are lost"
    rows = {row["n"]: row for row in state.to_pylist()}
    assert len(rows) == state.num_rows, "a key twice"
    batches = rows[MARK]["batch"] + 1 if rows else 0
    assert batches >= acknowledged.rows, "acknowledged changes are lost"
    assert rows == rows_after(batches), "not the rows after whole batches"
    folded: dict[int, dict[str, Any]] = {}
    for change in changelog:
        row = {name: change[name] for name in ("n", "text", "batch")}
        kind = change["_change_type"]
        if kind in ("-U", "-D"):
            assert folded[row["n"]] == row, "a change of a row that was another"
        if kind == "-D":
            del folded[row["n"]]
        elif kind != "-U":
            assert (row["n"] in folded) == (kind == "+U"), "a change of the wrong type"
            folded[row["n"]] = row
    assert folded == rows, "the rows are not what the changelog says"
    return Written(len(log), batches)


def campaign(folder: Path, kills: int, seed: int) -> Written:
    """Kill a writer again and again; return what was written in the end."""
    choose = random.Random(seed)
    found = Written()
    for _ in range(kills):
        acknowledged = kill_once(folder, found, choose.randrange(60), choose.uniform(0.0, 0.02))
        found = check(folder, acknowledged)
    return found
