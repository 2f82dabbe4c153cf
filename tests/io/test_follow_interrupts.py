"""Ctrl-C while a query waits for rows without an end: it ends, and says that it did not by itself.

In a program whose interrupts are as Polars left them, and in one where Python's own handler was set
again, as a Jupyter kernel does for each cell.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import polars as pl
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.io.scan import scan_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.io.conftest import write

WAYS = {
    "collect": 'scan(duration="60s").collect()',
    "sink_batches": "scan().sink_batches(lambda frame: None)",
    "collect_batches": "list(scan().collect_batches())",
    "begun before it is waited for": (
        "batches = scan().collect_batches(lazy=False); time.sleep(0.5); list(batches)"
    ),
}

PROGRAM = """
import functools, signal, sys, threading, time
import polars as pl, fluss_df

connection = fluss_df.connect(":memory:")
frame = pl.DataFrame({{"id": range(10)}})
frame.write_fluss("t", connection=connection, create_if_not_exists=True)
if {kernel}:
    signal.signal(signal.SIGINT, signal.default_int_handler)
scan = functools.partial(pl.scan_fluss, "t", connection=connection, follow=True)
threading.Timer(1.5, print, ["waiting"], dict(flush=True)).start()
{way}
time.sleep(1)
print("ended", flush=True)
"""


@pytest.mark.parametrize("kernel", [False, True], ids=["script", "kernel"])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_is_raised(way: str, kernel: bool) -> None:
    program = PROGRAM.format(way=WAYS[way], kernel=kernel)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            # one that an interrupt does not end is waited for until the test is ended
            assert process.stdout.read() == ""
            assert process.wait() == -signal.SIGINT
        finally:
            process.kill()


@pytest.fixture
def followed() -> Iterator[tuple[FlussConnection, TablePath]]:
    """A table with a row, in memory."""
    rows = pl.DataFrame({"id": [1]})
    path = TablePath("io", "t")
    with FlussConnection.create(":memory:") as connection:
        connection.get_admin().create_database("io")
        connection.get_admin().create_table(
            path, TableDescriptor(Schema(rows.to_arrow().schema), bucket_count=1)
        )
        write(connection, path, rows)
        yield connection, path


@pytest.mark.skipif(sys.platform == "win32", reason="event loops there have no signal handlers")
async def test_an_event_loop_keeps_its_signals(followed: tuple[FlussConnection, TablePath]) -> None:
    connection, path = followed

    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, came.set)
    scan_fluss(path, connection=connection, follow=True)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 20)
    loop.remove_signal_handler(signal.SIGUSR1)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
def test_an_interrupt_of_a_forked_child_is_its_own(
    followed: tuple[FlussConnection, TablePath],
) -> None:
    connection, path = followed
    scan = scan_fluss(path, connection=connection, follow=True, duration="1500ms")
    child = os.fork()
    if not child:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            os._exit(0)
        os._exit(1)
    # the child has run the hooks of a fork by then, and the scan has begun
    threading.Timer(0.5, os.kill, [child, signal.SIGINT]).start()
    assert scan.collect().height == 1
    assert os.waitpid(child, 0)[1] == 0
