"""Scans without an end: rows as they come, and every way to end them."""

from __future__ import annotations

import datetime as dt
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io import follow
from fluss_df.io.scan import scan_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable, write

SCHEMA = pa.schema({"id": pa.int64(), "kind": pa.string()})


def rows(start: int, stop: int, kind: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"id": range(start, stop)}).with_columns(kind=pl.lit(kind))


@pytest.fixture
def path(make_table: MakeTable) -> TablePath:
    return make_table(SCHEMA, rows(0, 1000), bucket_keys=["id"], bucket_count=3)


@pytest.fixture
def writing(connection: FlussConnection, path: TablePath) -> Iterator[threading.Thread]:
    """Append ten rows every 50 ms, 1000 in all, from a thread."""

    def work() -> None:
        with connection.get_table(path).new_append().create_writer() as writer:
            for start in range(1000, 2000, 10):
                writer.write_arrow(rows(start, start + 10))
                writer.flush()
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    yield thread
    thread.join()


def test_rows_come_as_they_are_written(
    connection: FlussConnection, path: TablePath, writing: threading.Thread
) -> None:
    scan = scan_fluss(path, connection=connection, follow=True)
    query = scan.filter(pl.col("id") % 2 == 0).select(double=pl.col("id") * 2)
    writing.start()
    found: list[int] = []
    for frame in query.collect_batches(chunk_size=1, lazy=True):
        found.extend(frame["double"])
        if len(found) == 1000:
            break
    assert sorted(found) == list(range(0, 4000, 4))


def test_ends(connection: FlussConnection, path: TablePath, tmp_path: Path) -> None:
    scan = scan_fluss(path, connection=connection, follow=True, max_rows=700)
    assert scan.collect().height == 700
    assert scan.select(pl.len()).collect().item() == 700
    both = scan_fluss(path, connection=connection, follow=True, duration="60s", max_rows=1000)
    assert sorted(both.collect()["id"]) == list(range(1000))
    endless = scan_fluss(path, connection=connection, follow=True)
    assert endless.head(10).collect().height == 10
    assert endless.slice(5, 10).collect().height == 10
    assert endless.filter(pl.col("id") > 500).head(3).collect().height == 3
    both.sink_parquet(tmp_path / "out.parquet")
    assert pl.read_parquet(tmp_path / "out.parquet").height == 1000
    seen: list[int] = []

    def take(frame: pl.DataFrame) -> bool:
        seen.append(frame.height)
        return sum(seen) >= 1000

    endless.sink_batches(take, chunk_size=100)
    assert sum(seen) == 1000


def test_a_scan_ends_after_its_time(
    connection: FlussConnection, path: TablePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that the test sets: an hour is over when all rows have come, not before."""
    late, looks = 0.0, 0

    def clock() -> float:
        nonlocal looks
        looks += late > 0
        assert looks < 50, "it goes on after its time"
        return time.monotonic() + late

    monkeypatch.setattr(follow, "time", types.SimpleNamespace(monotonic=clock))
    scan = scan_fluss(path, connection=connection, follow=True, duration="1h")
    found: list[int] = []
    for frame in scan.collect_batches(chunk_size=1, lazy=True):
        found.extend(frame["id"])
        if len(found) == 1000:
            late = 3601.0
    assert sorted(found) == list(range(1000))


def test_an_endless_collect_is_refused(connection: FlussConnection, path: TablePath) -> None:
    endless = scan_fluss(path, connection=connection, follow=True)
    for query in (endless, endless.filter(pl.col("id") > 3).select("id")):
        with pytest.raises(FlussError, match=r"has no end.*collect_batches\(\)"):
            query.collect()
        with pytest.raises(FlussError, match="has no end"):
            query.collect(engine="streaming")


def test_only_new_rows(
    connection: FlussConnection,
    path: TablePath,
    writing: threading.Thread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscribe = follow._Subscriptions.__enter__

    def subscribe_and_write(subscriptions: follow._Subscriptions) -> follow._Subscriptions:
        found = subscribe(subscriptions)
        # from here on every row is a new one; before, none may be written
        writing.start()
        return found

    monkeypatch.setattr(follow._Subscriptions, "__enter__", subscribe_and_write)
    scan = scan_fluss(path, connection=connection, follow=True, start="latest", max_rows=1000)
    assert sorted(scan.collect()["id"]) == list(range(1000, 2000))
    writing.join()
    recent = scan_fluss(path, connection=connection, start=dt.timedelta(hours=1))
    assert recent.collect().height == 2000
    none = scan_fluss(path, connection=connection, start=dt.timedelta(0))
    assert none.collect().height == 0


def test_new_partitions_join(connection: FlussConnection, make_table: MakeTable) -> None:
    path = make_table(SCHEMA, partition_keys=["kind"], bucket_count=2)
    scan = scan_fluss(path, connection=connection, follow=True, include_metadata=True, max_rows=300)

    def work() -> None:
        for i, kind in enumerate("xyz"):
            time.sleep(0.3)
            write(connection, path, rows(i * 100, i * 100 + 100, kind))

    thread = threading.Thread(target=work)
    thread.start()
    found = scan.collect()
    thread.join()
    assert sorted(found["id"]) == list(range(300))
    assert found["kind"].equals(found["_partition"].rename("kind"))
    for _, bucket in found.group_by("_partition", "_bucket"):
        assert bucket["_log_offset"].to_list() == list(range(bucket.height))
    assert found["_commit_timestamp"].null_count() == 0


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "created again"])
@pytest.mark.parametrize("what", ["table", "partition"])
def test_what_is_dropped_ends_it(
    connection: FlussConnection, make_table: MakeTable, what: str, again: bool
) -> None:
    path = make_table(SCHEMA, rows(0, 10), partition_keys=["kind"])
    admin = connection.get_admin()
    descriptor = connection.get_table(path).get_table_info().descriptor
    frames = scan_fluss(path, connection=connection, follow=True, duration="60s").collect_batches()
    seen = 0

    def follow_on() -> None:
        nonlocal seen
        for frame in frames:
            seen += frame.height
            if seen == 10:
                return

    follow_on()
    if what == "table":
        admin.drop_table(path)
        if again:
            admin.create_table(path, descriptor)
    else:
        admin.drop_partition(path, {"kind": "a"})
    if again:
        write(connection, path, rows(10, 20))
    began = time.monotonic()
    seen = -1
    with pytest.raises(FlussError, match=r"does not exist|was dropped") as caught:
        follow_on()
    assert time.monotonic() - began < 30
    way_out = "To go on with the other partitions, follow the table again: with start="
    assert (way_out in caught.value.message) == (what == "partition")


def test_filters_choose_partitions(connection: FlussConnection, make_table: MakeTable) -> None:
    path = make_table(SCHEMA, rows(0, 50, "x"), rows(50, 90, "y"), partition_keys=["kind"])
    scan = scan_fluss(path, connection=connection, follow=True, max_rows=40)
    assert sorted(scan.filter(pl.col("kind") == "y").collect()["id"]) == list(range(50, 90))


def test_a_row_does_not_wait_for_the_next(
    connection: FlussConnection, path: TablePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_POLL_MS", 60_000)
    scan = scan_fluss(path, connection=connection, follow=True, max_rows=1003)
    came = threading.Semaphore(0)

    def work() -> None:
        for frame in scan.select("id").collect_batches(lazy=True):
            for _ in range(frame.height):
                came.release()

    thread = threading.Thread(target=work)
    thread.start()
    with connection.get_table(path).new_append().create_writer() as writer:
        for row in range(1003):
            if row >= 1000:
                writer.append({"id": row, "kind": "z"}).wait()
            # long before the wait for more rows is over
            assert came.acquire(timeout=20), row
    thread.join()


def test_it_can_be_pickled(path: TablePath, connection: FlussConnection) -> None:
    scan = scan_fluss(path, connection=connection, follow=True, max_rows=10)
    assert pickle.loads(pickle.dumps(scan)).collect().height == 10
    assert "fluss follow" in scan.explain()
    assert "after 10 rows" in scan.explain()


def test_what_cannot_be_followed(connection: FlussConnection, path: TablePath) -> None:
    with pytest.raises(FlussError, match="stop=5 means nothing"):
        scan_fluss(path, connection=connection, follow=True, stop=5)
    with pytest.raises(FlussError, match="pass follow=True"):
        scan_fluss(path, connection=connection, max_rows=5)
    with pytest.raises(FlussError, match="max_rows=0"):
        scan_fluss(path, connection=connection, follow=True, max_rows=0)
    with pytest.raises(FlussError, match="duration='soon'"):
        scan_fluss(path, connection=connection, follow=True, duration="soon")
    with pytest.raises(FlussError, match="not a time to come"):
        scan_fluss(path, connection=connection, start=dt.timedelta(seconds=-1))


INTERRUPTED = """
import sys, time
import polars as pl, fluss_df
scan = fluss_df.scan_fluss(sys.argv[2], connection=sys.argv[1], follow=True)
kept = 0
try:
    for frame in scan.collect_batches(chunk_size=1, lazy=True):
        kept += frame.height
        if kept == 1000:
            print("waiting", flush=True)
    # Polars ends the iteration, and Python is interrupted then or a moment later
    print("kept", kept, flush=True)
    time.sleep(1)
except KeyboardInterrupt:
    print("kept", kept, flush=True)
"""


def test_an_interrupt_ends_it(connection: FlussConnection, path: TablePath) -> None:
    program = textwrap.dedent(INTERRUPTED)
    command = [sys.executable, "-c", program, connection.config.bootstrap_servers, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "kept 1000\n"
            assert time.monotonic() - began < 10
        finally:
            process.kill()
