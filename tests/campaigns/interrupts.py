"""A storm of Ctrl-C over writers and scanners: what was accepted is written, once, and all is read.

``python -m tests.campaigns.interrupts --seconds 20``: a hundred interrupts a second, at random
moments, while rows are written in each way, and polled. A row whose call returned is in the table
afterwards; one whose call was interrupted may be. A poll that was interrupted has taken nothing.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, Any

import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
BUCKETS = 3
# so little that writers wait for room
LITTLE = {"writer.buffer.memory-size": 3 << 20, "writer.batch-size": 200_000}

_MOST_S = 20.0

Step = Callable[[int], object]


class Storm:
    """Interrupts the main thread at random moments, twice in a row now and then."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = 0
        self.interrupts = 0
        self.errors: list[str] = []

    def over(self, step: Step, seconds: float) -> None:
        """Do a step after another, each with its number, for so long, until an interrupt came."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        ended = threading.Event()
        thread = threading.Thread(target=self._send, args=[ended], daemon=True)
        thread.start()
        began, interrupts = time.monotonic(), self.interrupts
        numbers = itertools.count()

        def goes_on() -> bool:
            took = time.monotonic() - began
            # on a machine with other work, a short storm may have none
            return took < seconds or (self.interrupts == interrupts and took < _MOST_S)

        while goes_on():
            self._left = 2
            try:
                _repeat(step, numbers, goes_on)
            except KeyboardInterrupt:
                pass
            except RuntimeError as error:
                # as of a lock of Python's own that an interrupt let go of
                self.errors.append(repr(error))
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # the second interrupt may come while the first one is caught, and not where it was
        if self._left and _repeats(frame):
            self._left -= 1
            self.interrupts += 1
            raise KeyboardInterrupt

    def _send(self, ended: threading.Event) -> None:
        while not ended.is_set():
            time.sleep(self._rng.random() * 0.02)
            for _ in range(self._rng.choice((1, 1, 1, 2))):
                os.kill(os.getpid(), signal.SIGINT)


def _repeat(step: Step, numbers: Iterator[int], goes_on: Callable[[], bool]) -> None:
    # a function of its own: Python 3.13 does not have the jump to the beginning of a loop covered
    # by a try around the loop, and this is where it raises interrupts
    while goes_on():
        step(next(numbers))


def _repeats(frame: FrameType | None) -> bool:
    """Whether steps are being done where a frame is."""
    while frame is not None and frame.f_code is not _repeat.__code__:
        frame = frame.f_back
    return frame is not None


def put_of(writer: Any) -> Callable[[Any], fluss.WriteResultHandle]:
    """Return the writer's method that takes a row."""
    method: Callable[[Any], fluss.WriteResultHandle]
    method = writer.upsert if isinstance(writer, fluss.UpsertWriter) else writer.append
    return method


def rows(writer: Any) -> Step:
    """One by one, without a wait."""
    put = put_of(writer)
    return lambda n: put({"id": n, "text": "one"})


def waited(writer: Any) -> Step:
    """One by one, each awaited."""
    put = put_of(writer)
    return lambda n: put({"id": n, "text": "one"}).wait()


def flushed(writer: Any) -> Step:
    """One by one, with many flushes."""
    put = put_of(writer)

    def step(n: int) -> None:
        put((n, "one"))
        if n % 1000 == 0:
            writer.flush()

    return step


def mixed(writer: Any) -> Step:
    """Rows, small frames and large ones."""
    put = put_of(writer)
    large = pa.table({"id": [-1] * 100_000, "text": ["large"] * 100_000})

    def step(n: int) -> None:
        if n % 1000 == 500:
            writer.write_arrow(large)
        if n % 5 == 3:
            writer.write_arrow(pa.table({"id": [n], "text": ["frame"]}))
        else:
            put({"id": n, "text": "one"})

    return step


def deletes(writer: Any) -> Step:
    """Rows, and deletes of every other one."""

    def step(n: int) -> None:
        writer.upsert({"id": n, "text": "one"})
        if n % 2:
            writer.delete({"id": n})

    return step


def write(
    table: fluss.FlussTable, way: Callable[[Any], Step], storm: Storm, seconds: float
) -> list[str]:
    """Write in a storm; return what is wrong with the table afterwards."""
    builder = table.new_upsert() if table.has_primary_key() else table.new_append()
    writer: Any = builder.create_writer()
    step = way(writer)
    accepted: list[int] = []
    begun = [-1]

    def noted(n: int) -> None:
        begun[0] = n
        step(n)
        accepted.append(n)

    storm.over(noted, seconds)
    writer.flush(60_000)
    writer.close()
    there = [n for n in read(table) if n >= 0]
    expected = {n for n in accepted if way is not deletes or n % 2 == 0}
    problems = []
    if lost := expected - set(there):
        problems.append(f"{len(lost)} of {len(expected)} accepted rows are lost: {min(lost)}, ...")
    if len(there) != len(set(there)):
        problems.append(f"{len(there) - len(set(there))} rows are there twice")
    if writer.unflushed_rows:
        problems.append(f"{writer.unflushed_rows} rows are said to be unflushed")
    if there and max(there) > begun[0]:
        problems.append(f"row {max(there)} was never written")
    print(f"{len(accepted):,} rows accepted, {len(there):,} there", end="; ")
    return problems


def read(table: fluss.FlussTable) -> list[int]:
    """Return the keys that are in a table."""
    if table.has_primary_key():
        scanner: Any = table.new_scan().create_snapshot_scanner()
    else:
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    numbers: list[int] = scanner.to_arrow().column("id").to_pylist()
    return numbers


def poll(table: fluss.FlussTable, storm: Storm, seconds: float) -> list[str]:
    """Poll a table in a storm, over and over; return what is wrong with what was read."""
    expected = sorted(read(table))
    polled: list[pa.Table] = []
    scanner = table.new_scan().create_record_batch_log_scanner()
    everything = dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET)
    scanner.subscribe_buckets(everything)

    def step(_: int) -> None:
        polled.append(scanner.poll_arrow(100))

    storm.over(step, seconds)
    while (rest := scanner.poll_arrow(1000)).num_rows:
        polled.append(rest)
    found = sorted(pa.concat_tables(polled).column("id").to_pylist())
    print(f"{len(found):,} of {len(expected):,} rows read", end="; ")
    return [] if found == expected else [f"{len(found)} rows were read, not {len(expected)}"]


def main(
    seconds: Annotated[float, typer.Option(help="For each way to write or read.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the random moments.")] = 1,
    connection: Annotated[str, typer.Option(help="An address or a folder; else a cluster.")] = "",
) -> None:
    """Write and read in a storm of interrupts."""
    if not connection:
        with LocalCluster(tablet_servers=1) as cluster:
            problems = run(cluster.bootstrap_servers, seconds, seed)
    else:
        problems = run(connection, seconds, seed)
    for problem in problems:
        print(problem)
    # an ended program, whatever the last interrupt left of this one
    sys.exit(1 if problems else 0)


def run(address: str, seconds: float, seed: int) -> list[str]:
    """Go through all ways; return what is wrong."""
    rng = random.Random(seed)
    problems: list[str] = []
    database = f"interrupts_{os.getpid()}"
    ways = [(False, way) for way in (rows, waited, flushed, mixed)]
    ways += [(True, way) for way in (rows, waited, deletes)]
    for number, (keyed, way) in enumerate([*ways, *ways]):
        settings = {"bootstrap.servers": address, **(LITTLE if number >= len(ways) else {})}
        with fluss.connect(settings) as connected:
            admin = connected.get_admin()
            admin.create_database(database, ignore_if_exists=True)
            path = fluss.TablePath(database, f"{way.__name__}_{number}")
            schema = fluss.Schema(SCHEMA, primary_keys=["id"] if keyed else None)
            admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=BUCKETS))
            table = connected.get_table(path)
            storm, began = Storm(rng), time.monotonic()
            name = f"{'upserts' if keyed else 'appends'}, {way.__doc__}"
            print(name, end=" ", flush=True)
            # a server takes longer to store upserts than rows take to be accepted
            found = write(table, way, storm, seconds / 4 if keyed else seconds)
            if way is rows and not keyed:
                found += poll(table, storm, seconds)
            took = time.monotonic() - began
            print(f"{storm.interrupts} interrupts, {took:.1f} s, {len(found)} problems")
            for error in storm.errors:
                print(f"instead of KeyboardInterrupt: {error}")
            problems += [f"{name} {problem}" for problem in found]
            if not storm.interrupts:
                problems.append(f"{name} no interrupt")
    return problems


if __name__ == "__main__":
    typer.run(main)
