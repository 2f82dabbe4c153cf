"""Three tablet servers whose leaders and coordinator are killed, under writers and readers.

``python -m tests.campaigns.failover --minutes 10``: every row that was acknowledged is read exactly
once by every reader, in the order of its writer within a bucket. Reports how long writers and
readers stood still after the kills.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

BUCKETS = 6
SCHEMA = pa.schema([("writer", pa.int32()), ("number", pa.int64()), ("text", pa.string())])
ROWS_PER_BATCH = 100
PAUSE_S = 0.02
RESTART_AFTER_S = 4.0


class Writer(threading.Thread):
    """Appends batches, each awaited; remembers what was acknowledged."""

    def __init__(self, table: fluss.FlussTable, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.number = number
        self.acked: list[tuple[int, int]] = []
        self.uncertain: list[tuple[int, int]] = []
        self.stalls: list[float] = []
        self._table = table
        self._stop_event = stop

    def run(self) -> None:
        at = 0
        writer = self._table.new_append().create_writer()
        while not self._stop_event.is_set():
            numbers = np.arange(at, at + ROWS_PER_BATCH)
            batch = pa.record_batch(
                {
                    "writer": pa.array(np.full(len(numbers), self.number), pa.int32()),
                    "number": numbers,
                    "text": [f"{self.number}-{n}" for n in numbers],
                },
                schema=SCHEMA,
            )
            began = time.monotonic()
            span = (at, at + ROWS_PER_BATCH)
            try:
                writer.write_arrow_batch(batch).wait()
                self.acked.append(span)
            except fluss.FlussError as error:
                print(f"writer {self.number}: {error}", flush=True)
                self.uncertain.append(span)
                writer = self._table.new_append().create_writer()
            self.stalls.append(time.monotonic() - began)
            at += ROWS_PER_BATCH
            time.sleep(PAUSE_S)
        writer.close()


class Reader(threading.Thread):
    """Polls all buckets; checks that offsets go on without a gap or a repetition."""

    def __init__(self, table: fluss.FlussTable, stop: threading.Event) -> None:
        super().__init__()
        self.rows: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        self.count = 0
        self.problems: list[str] = []
        self.stalls: list[float] = [0.0]
        self._table = table
        self._stop_event = stop

    def run(self) -> None:
        scanner = self._table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        expected = [0] * BUCKETS
        last = time.monotonic()
        while not self._stop_event.is_set():
            for batch in scanner.poll_record_batch(200):
                bucket = batch.bucket.bucket_id
                if batch.base_offset != expected[bucket]:
                    self.problems.append(
                        f"bucket {bucket}: offset {batch.base_offset}, not {expected[bucket]}"
                    )
                expected[bucket] = batch.last_offset + 1
                self.rows[bucket].append(batch.batch.select(["writer", "number"]))
                self.count += batch.batch.num_rows
                now = time.monotonic()
                self.stalls.append(now - last)
                last = now
        scanner.close()

    def check(self, writers: list[Writer]) -> None:
        """Compare what was read with what was acknowledged."""
        found: dict[int, list[np.ndarray]] = defaultdict(list)
        for bucket, batches in self.rows.items():
            table = pa.Table.from_batches(batches)
            owner, number = table["writer"].to_numpy(), table["number"].to_numpy()
            for writer in writers:
                own = number[owner == writer.number]
                if not (np.diff(own) > 0).all():
                    self.problems.append(f"bucket {bucket}: writer {writer.number} out of order")
                found[writer.number].append(own)
        for writer in writers:
            seen = np.sort(np.concatenate(found[writer.number]))
            if len(np.unique(seen)) != len(seen):
                self.problems.append(f"writer {writer.number}: rows doubled")
            acked = np.concatenate([np.arange(*span) for span in writer.acked])
            lost = np.setdiff1d(acked, seen)
            if len(lost):
                self.problems.append(f"writer {writer.number}: {len(lost)} acknowledged rows lost")
            sent = np.concatenate([acked, *(np.arange(*s) for s in writer.uncertain)])
            if len(np.setdiff1d(seen, sent)):
                self.problems.append(f"writer {writer.number}: rows that were never written")


def disturb(
    cluster: LocalCluster, seconds: float, kill_every: float, coordinator_every: float
) -> tuple[int, int]:
    """Kill servers until the time is over; return how many times."""
    rng = random.Random(11)
    began = time.monotonic()
    kills = coordinators = 0
    next_coordinator = began + coordinator_every
    while time.monotonic() - began < seconds:
        time.sleep(kill_every - RESTART_AFTER_S)
        server = rng.randrange(3)
        cluster.kill_tablet_server(server)
        kills += 1
        time.sleep(RESTART_AFTER_S)
        cluster.start_tablet_server(server)
        print(f"{time.monotonic() - began:6.1f} s: tablet server {server} killed", flush=True)
        if time.monotonic() >= next_coordinator:
            next_coordinator += coordinator_every
            cluster.kill_coordinator()
            coordinators += 1
            time.sleep(2)
            cluster.start_coordinator()
            print(f"{time.monotonic() - began:6.1f} s: coordinator killed", flush=True)
    return kills, coordinators


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    writers: Annotated[int, typer.Option(help="How many writers.")] = 4,
    readers: Annotated[int, typer.Option(help="How many readers.")] = 4,
    kill_every: Annotated[float, typer.Option(help="Seconds between kills.")] = 15.0,
    coordinator_every: Annotated[float, typer.Option(help="The same, coordinator.")] = 60.0,
) -> None:
    """Kill servers under load and check every row."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder, "cluster"), tablet_servers=3) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        path = fluss.TablePath("fluss", "failover")
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS)
        connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        stop_writing, stop_reading = threading.Event(), threading.Event()
        write_threads = [Writer(table, n, stop_writing) for n in range(writers)]
        read_threads = [Reader(table, stop_reading) for _ in range(readers)]
        for thread in (*write_threads, *read_threads):
            thread.start()
        kills, coordinators = disturb(cluster, minutes * 60, kill_every, coordinator_every)
        stop_writing.set()
        for writer in write_threads:
            writer.join()
        rows = sum(stop - start for w in write_threads for start, stop in w.acked)
        deadline = time.monotonic() + 60
        while min(r.count for r in read_threads) < rows and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)
        stop_reading.set()
        for reader in read_threads:
            reader.join()
            reader.check(write_threads)
    problems = [problem for reader in read_threads for problem in reader.problems]
    uncertain = sum(len(w.uncertain) for w in write_threads)
    print(f"{kills} tablet servers and {coordinators} coordinators killed; {rows:,} rows")
    print(f"acknowledged, {uncertain} batches uncertain; {len(problems)} problems")
    for name, threads in (("writers", write_threads), ("readers", read_threads)):
        stalls = sorted((s for t in threads for s in t.stalls if s > 1.0), reverse=True)
        shown = ", ".join(f"{s:.1f}" for s in stalls[:20])
        print(f"{name} stood still longer than 1 s {len(stalls)} times: {shown} s")
    for problem in problems[:20]:
        print(problem)
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
