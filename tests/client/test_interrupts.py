"""Rows that are accepted while others flush, close, or interrupt: each is written, once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.runtime.interrupts import abandoned, shielded
from fluss_df.record.python.row_collector import Gathered
from tests.client.support import Tables

ROOT = Path(fluss.__file__).parent.parent
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def test_a_storm_of_interrupts(address: str) -> None:
    """In a process of its own: rows written in each way, and polled."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "tests.campaigns.interrupts"),
            *("--connection", address, "--seconds", "0.4", "--seed", str(os.getpid())),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(" 0 problems") == 14


# ---- the moment between two steps of a row's way, in which another thread does something


def interleaved(writer: Any, do: Callable[[], object], *, after: bool) -> None:
    """Have something done before or after the next row joins those that wait, and only then."""
    gathered = writer._accumulator._gate.open
    extend = gathered.extend

    def disturbed(values: Sequence[Any]) -> None:
        gathered.extend = extend
        if after:
            extend(values)
        # another thread, which holds the interpreter meanwhile
        thread = threading.Thread(target=do)
        thread.start()
        thread.join()
        if not after:
            extend(values)

    gathered.extend = disturbed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("keyed", [False, True], ids=["append", "upsert"])
def test_a_flush_while_a_row_is_added(tables: Tables, keyed: bool, after: bool) -> None:
    table = tables(SCHEMA, ["n"] if keyed else None)
    builder: Any = table.new_upsert() if keyed else table.new_append()
    with builder.create_writer() as writer:
        put = writer.upsert if keyed else writer.append
        put({"n": 1, "text": "a"})
        interleaved(writer, writer.flush, after=after)
        handle = put({"n": 2, "text": "b"})
        handle.wait()
        assert sorted(tables.read(table).column("n").to_pylist()) == [1, 2]
        assert writer.unflushed_rows == 0
        put({"n": 3, "text": "c"})
    assert sorted(tables.read(table).column("n").to_pylist()) == [1, 2, 3]


def test_a_small_frame_while_a_row_is_added(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.append({"n": 1, "text": "a"})
        frame = pa.table({"n": [3], "text": ["c"]})
        interleaved(writer, lambda: writer.write_arrow(frame), after=False)
        writer.append({"n": 2, "text": "b"})
        writer.append({"n": 4, "text": "d"})
    assert tables.read(table).column("n").to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_close_while_a_row_is_added(tables: Tables, after: bool) -> None:
    """The row is refused, or it is written."""
    table = tables(SCHEMA)
    writer = table.new_append().create_writer()
    writer.append({"n": 1, "text": "a"})
    interleaved(writer, writer.close, after=after)
    if after:
        writer.append({"n": 2, "text": "b"}).wait()
        assert tables.read(table).column("n").to_pylist() == [1, 2]
    else:
        with pytest.raises(fluss.FlussError, match="is closed: create a new one"):
            writer.append({"n": 2, "text": "b"})
        assert tables.read(table).column("n").to_pylist() == [1]
    assert writer.unflushed_rows == 0


def test_two_late_rows_of_the_same_values(tables: Tables) -> None:
    """Each has a place of its own, whichever of them was late."""
    table = tables(SCHEMA)
    row = {"n": 2, "text": "b"}
    with table.new_append().create_writer() as writer:
        writer.append({"n": 1, "text": "a"})
        handles: list[fluss.WriteResultHandle] = []

        def meanwhile() -> None:
            handles.append(writer.append(row))
            writer.flush()

        interleaved(writer, meanwhile, after=False)
        handles.append(writer.append(row))
        for handle in handles:
            handle.wait()
        assert tables.read(table).column("n").to_pylist() == [1, 2, 2]


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "upsert"])
def test_a_row_that_waits_alone_gets_company(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """It is about to be sent alone while another one joins it: both are sent."""
    table = tables(SCHEMA, ["n"] if keyed else None)
    take, joined = Gathered.take, threading.Event()

    def joined_before(gathered: Gathered) -> list[Any]:
        if not joined.is_set():
            joined.set()
            gathered.extend((2, "b"))
        return take(gathered)

    builder: Any = table.new_upsert() if keyed else table.new_append()
    with builder.create_writer() as writer:
        handle = (writer.upsert if keyed else writer.append)({"n": 1, "text": "a"})
        monkeypatch.setattr(Gathered, "take", joined_before)
        handle.wait()
        assert joined.is_set()
        assert sorted(tables.read(table).column("n").to_pylist()) == [1, 2]


# ---- the shield


def test_the_main_thread_has_its_work_done() -> None:
    here = threading.current_thread()
    assert shielded(threading.current_thread) is not here
    assert shielded(lambda: 42) == 42
    assert not abandoned()
    with pytest.raises(ValueError, match="wrong"):
        shielded(lambda: int("wrong"))


def test_other_threads_work_themselves() -> None:
    found: list[object] = []

    def run() -> None:
        found.append(shielded(threading.current_thread))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [thread]


# ---- polls


@contextmanager
def interrupted_at(number: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt once, where Python looks for signals the ``number``-th time.

    That is when a function begins, and behind a call of one that is not Python's. How often it
    looked is counted.
    """
    counted = [0]
    # what the test itself does is not meant
    own = (__file__, contextlib.__file__)

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename not in own:
            counted[0] += 1
            if counted[0] == number:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield counted
    finally:
        sys.setprofile(None)


# a socket that an interrupt met while it was opened is closed by Python, with this warning
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["arrow", "batches", "records", "$changelog", "$binlog"])
def test_an_interrupted_poll_has_taken_nothing(tables: Tables, way: str) -> None:
    """At each moment: the polls after it return every row, once, and in order."""
    keyed = way.startswith("$")
    table = tables(SCHEMA, ["n"] if keyed else None, bucket_count=1)
    builder: Any = table.new_upsert() if keyed else table.new_append()
    with builder.create_writer() as writer:
        for start in range(0, 6, 3):
            writer.write_arrow(pa.table({"n": range(start, start + 3), "text": ["a"] * 3}))
            writer.flush()
        if keyed:
            writer.write_arrow(pa.table({"n": range(6), "text": ["b"] * 6}))
    path = table.get_table_path()
    read = table
    if keyed:
        connection = tables.connection
        read = connection.get_table(f"{path.database_name}.{path.table_name}{way}")

    def poll(scanner: Any) -> Any:
        if way == "records":
            return scanner.poll(1000)
        return scanner.poll_record_batch(1000) if way == "batches" else scanner.poll_arrow(1000)

    def rows_of(polled: Any) -> list[Any]:
        if way == "records":
            return [record.offset for record in polled]
        if way == "batches":
            return [n for found in polled for n in found.batch.column("n").to_pylist()]
        return list(polled.column("n" if way == "arrow" else 1).to_pylist())

    expected: list[Any] = [] if keyed else list(range(6))
    number, looked = 0, 1
    while number <= looked:
        scan = read.new_scan()
        scanner: Any = (
            scan.create_log_scanner()
            if way == "records"
            else scan.create_record_batch_log_scanner()
        )
        scanner.subscribe(0, 0)
        polled: list[Any] = []
        # RuntimeError: of a lock of Python's own that an interrupt let go of
        with interrupted_at(number) as counted, suppress(KeyboardInterrupt, RuntimeError):
            polled.append(poll(scanner))
        rows = [row for found in polled for row in rows_of(found)]
        if not number:
            looked = counted[0]
            while more := rows_of(poll(scanner)):
                rows += more
            expected = expected or rows
        while len(rows) < len(expected):
            more = rows_of(poll(scanner))
            assert more, f"only {rows} after an interrupt at {number}"
            rows += more
        assert rows == expected, f"after an interrupt at {number}"
        scanner.close()
        number += 1
    assert looked > 20


def test_what_an_interrupted_poll_had_is_read_by_to_arrow(tables: Tables) -> None:
    table = tables(SCHEMA)
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"n": range(6), "text": ["a"] * 6}))
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 0)

    def made(taken: Any) -> Any:
        assert taken
        raise KeyboardInterrupt

    scanner.as_table = made  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scanner.poll_arrow(10_000)
    assert scanner.to_arrow().column("n").to_pylist() == list(range(6))
