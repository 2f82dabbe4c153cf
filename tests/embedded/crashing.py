"""Engines that are killed while they are written to, and what is found afterwards.

Two threads write: one appends consecutive numbers to a log table, the other upserts and deletes
rows of a primary-key table, batch by batch, each batch a function of its number alone. Engines run
in forks of a process that has imported everything: an engine starts in a fraction of a second.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.embedded.forking import ForkingProcess

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


@dataclass(slots=True)
class Model:
    """What batches of changes leave, one after the other."""

    count: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def after(self, count: int) -> dict[int, dict[str, Any]]:
        """Return the rows after so many batches; it never goes back."""
        assert count >= self.count, "changes that were there before are lost"
        for number in range(self.count, count):
            upserts, deletes = changes(number)
            self.rows.update({row["n"]: row for row in upserts.to_pylist()})
            for key in deletes["n"].to_pylist():
                self.rows.pop(key, None)
        self.count = count
        return self.rows


def write_for_ever(folder: str, first: int, batch: int) -> None:
    """Write to both tables; print what was acknowledged."""
    import threading

    # about every second time, each bucket rests while another is used
    open_files = (None, 1)[first // 100 % 2]
    options = EngineOptions(segment_bytes=100_000, open_files=open_files)
    engine = EmbeddedFluss(folder, options=options)
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


class Killed(ForkingProcess):
    """Writers that are killed, each a fork of one process."""

    def __init__(self) -> None:
        super().__init__("tests.embedded.crashing")

    def kill_once(self, folder: Path, start: Written, lines: int, seconds: float) -> Written:
        """Run a writer and kill it some seconds after some acknowledgements; return those."""
        said = self._tell(f"{folder}\t{start.log}\t{start.rows}")
        kind, _, number = said.readline().partition(" ")
        assert kind == "pid"
        pid = int(number)
        found = Written(start.log, start.rows)

        def take(line: str) -> None:
            kind, _, number = line.partition(" ")
            if kind in ("log", "rows"):
                setattr(found, kind, int(number))

        try:
            assert said.readline().strip() == "ready"
            for _ in range(lines):
                take(said.readline())
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGKILL)
        for line in iter(said.readline, "dead\n"):
            assert line, "the process that forks has ended"
            take(line)
        return found


def serve_forks() -> None:
    """Fork a writer for each line of the input, and say when it was killed."""
    for line in sys.stdin:
        folder, first, batch = line.rstrip("\n").split("\t")
        pid = os.fork()
        if not pid:
            try:
                # by the writer, whose other lines come after it, however late the parent runs
                print(f"pid {os.getpid()}\n", end="", flush=True)
                write_for_ever(folder, int(first), int(batch))
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "the writer ended by itself"
        print("dead\n", end="", flush=True)


def check(folder: Path, acknowledged: Written, model: Model) -> Written:
    """Open a folder and check what is in it; return how much that is.

    The log holds 0, 1, 2, ... without a gap or a double, in whole batches. The rows are those
    after some number of whole batches of changes, and the fold of their changelog. Neither lacks
    what was acknowledged.
    """
    with EmbeddedFluss(folder) as engine, engine.connection() as connection:
        log = fluss.scan_fluss(LOG, connection=connection).collect()["n"]
        table = connection.get_table(ROWS)
        state = table.new_scan().create_snapshot_scanner().to_arrow()
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        changelog = pl.DataFrame(scanner.to_arrow())
    assert log.equals(pl.Series(range(len(log)), dtype=pl.Int64)), "rows lost, doubled or moved"
    assert len(log) % 100 == 0, "part of a batch"
    assert len(log) >= acknowledged.log, "acknowledged rows of the log are lost"
    rows = {row["n"]: row for row in state.to_pylist()}
    assert len(rows) == state.num_rows, "a key twice"
    batches = rows[MARK]["batch"] + 1 if rows else 0
    assert batches >= acknowledged.rows, "acknowledged changes are lost"
    assert rows == model.after(batches), "not the rows after whole batches"
    assert folded(changelog) == rows, "the rows are not what the changelog says"
    return Written(len(log), batches)


def folded(changelog: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """Return the rows that changes leave; each change must fit the one before it of its key."""
    if changelog.is_empty():
        return {}
    kind, row = pl.col("_change_type").cast(pl.String), pl.struct("n", "text", "batch")
    steps = changelog.sort("_log_offset").select(
        "n", kind=kind, row=row, before=kind.shift(1).over("n"), row_before=row.shift(1).over("n")
    )
    before = pl.col("before")
    there = before.is_in(["+I", "+U"]).fill_null(False)
    fits = (
        pl.when(pl.col("kind") == "+I")
        .then(before.is_null() | (before == "-D"))
        .when(pl.col("kind") == "+U")
        .then(before == "-U")
        .otherwise(there & (pl.col("row") == pl.col("row_before")))
    )
    wrong = steps.filter(~fits.fill_null(False))
    assert wrong.is_empty(), f"changes that do not fit the one before: {wrong}"
    last = steps.group_by("n", maintain_order=True).last()
    assert not (last["kind"] == "-U").any(), "half an update"
    return {found["n"]: found for found in last.filter(pl.col("kind") != "-D")["row"].to_list()}


def campaign(
    folder: Path, kills: int, seed: int, report: Callable[[int, Written], None] | None = None
) -> Written:
    """Kill a writer again and again; return what was written in the end.

    Parameters
    ----------
    folder
        What is written to, from the first writer to the last.
    kills, seed
        How often, and what decides when.
    report
        Called after each check.
    """
    choose = random.Random(seed)
    found, model = Written(), Model()
    with Killed() as writers:
        for number in range(kills):
            lines, seconds = choose.randrange(60), choose.uniform(0.0, 0.02)
            acknowledged = writers.kill_once(folder, found, lines, seconds)
            found = check(folder, acknowledged, model)
            if report is not None:
                report(number + 1, found)
    return found
