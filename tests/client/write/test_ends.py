"""Writers that end: beside others that fail, by a clock, in a forked child, on the I/O thread."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.aio import writer as aio_writer
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError, NetworkError, SchemaMismatchError

SCHEMA = pa.schema([("id", pa.int64())])
PATHS = [fluss.TablePath("fluss", name) for name in ("a", "b")]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[fluss.FlussConnection]:
    """A connection over TCP, whose rows linger for long."""
    with EmbeddedFluss(tmp_path / "d", port=0) as engine:
        options = {"bootstrap.servers": engine.address, "writer.batch-timeout": "3600000"}
        with fluss.FlussConnection.create(fluss.Config(options)) as made:
            for path in PATHS:
                descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
                made.get_admin().create_table(path, descriptor)
            yield made


def count(connection: fluss.FlussConnection, path: fluss.TablePath) -> int:
    return fluss.read_fluss(path, connection=connection.config.bootstrap_servers).height


def test_a_writer_that_fails_does_not_keep_others_from_being_flushed(
    connection: fluss.FlussConnection,
) -> None:
    writers = [connection.get_table(path).new_append().create_writer() for path in PATHS]
    fluss.connect(connection.config.bootstrap_servers).get_admin().drop_table(PATHS[0])
    for writer in writers:
        writer.append({"id": 1})
    with pytest.raises(FlussError, match=r"fluss\.a"):
        connection.close()
    assert count(connection, PATHS[1]) == 1


def test_a_flush_ends_by_its_clock_while_another_thread_writes(
    connection: fluss.FlussConnection,
) -> None:
    writer = connection.get_table(PATHS[0]).new_append().create_writer()
    handle = writer.append({"id": 1})
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._accumulator.lock:
            holds.set()
            may_end.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(20)
    began = time.monotonic()
    for wait in (writer.flush, handle.wait):
        with pytest.raises(TimeoutError):
            wait(50)
    assert time.monotonic() - began < 10
    may_end.set()
    thread.join()
    writer.flush()
    assert count(connection, PATHS[0]) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_flush_ends_beside_threads_that_go_on_writing(
    connection: fluss.FlussConnection, asynchronous: bool
) -> None:
    writer = connection.get_table(PATHS[0]).new_append().create_writer()
    table, ending = pa.table({"id": range(100_000)}), threading.Event()

    def write() -> None:
        while not ending.is_set():
            writer.write_arrow(table)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            if asynchronous:
                asyncio.run(aio_writer.AppendWriter(writer).flush(20_000))
            else:
                writer.flush(20_000)
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    writer.flush()
    assert writer.unflushed_rows == 0


def test_a_flush_may_wait_for_ever_in_the_words_of_java(connection: fluss.FlussConnection) -> None:
    writer = connection.get_table(PATHS[0]).new_append().create_writer()
    handle = writer.append({"id": 1})
    writer.flush(2**63 - 1)
    handle.wait(2**63 - 1)
    assert count(connection, PATHS[0]) == 1


def test_waiting_on_the_thread_that_would_bring_the_answer_is_an_error(
    connection: fluss.FlussConnection,
) -> None:
    writer = connection.get_table(PATHS[0]).new_append().create_writer()
    other = connection.get_table(PATHS[1]).new_append().create_writer()
    found: Future[str] = Future()

    def flush(_: Future[None]) -> None:
        other.append({"id": 2})
        try:
            other.flush()
            found.set_result("flushed")
        except FlussError as error:
            found.set_result(error.message)

    handle = writer.append({"id": 1})
    handle.future.add_done_callback(flush)
    handle.wait()
    assert "on the I/O thread" in found.result(20)
    other.flush()
    assert count(connection, PATHS[1]) == 1


@pytest.mark.parametrize("address", ["a..b:9123", f"{'x' * 70}.y:9123"])
def test_names_that_no_host_has_are_told(address: str) -> None:
    config = fluss.Config({"bootstrap.servers": address, "client.retry-timeout": "100"})
    with pytest.raises(NetworkError, match="cannot connect to"):
        fluss.FlussConnection.create(config)


def forked(work: Any) -> int:
    """Run something in a forked child that ends without hooks; return its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_rows_of_a_forked_child_are_flushed_by_its_connection(
    connection: fluss.FlussConnection,
) -> None:
    writer = connection.get_table(PATHS[0]).new_append().create_writer()
    writer.append({"id": 1}).wait()

    def work() -> None:
        writer.append({"id": 2})
        connection.close()

    assert forked(work) == 0
    assert count(connection, PATHS[0]) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_lookups_of_a_closed_connection_keep_no_other_from_its_reset(
    connection: fluss.FlussConnection,
) -> None:
    path = fluss.TablePath("fluss", "k")
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, ["id"]), bucket_count=1)
    connection.get_admin().create_table(path, descriptor)
    closed = fluss.FlussConnection.create(connection.config.copy())
    lookuper = closed.get_table(path).new_lookup().create_lookuper()
    assert lookuper.lookup({"id": 1}) is None
    closed.close()
    others = [fluss.FlussConnection.create(connection.config.copy()) for _ in range(20)]
    for other in others:
        other.get_admin().list_databases()

    def work() -> None:
        assert all(other._cluster is None for other in others)
        with pytest.raises(FlussError, match="closed"):
            lookuper.lookup({"id": 1})

    assert forked(work) == 0
    for other in others:
        other.close()


@pytest.mark.parametrize("keys", [["id"], []])
def test_a_time_that_rows_do_not_hold_is_refused_alone(
    connection: fluss.FlussConnection, keys: list[str]
) -> None:
    path = fluss.TablePath("fluss", f"t{len(keys)}")
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("t", pa.time64("us"))]), keys or None)
    properties = {} if keys else {"table.log.format": "indexed"}
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=properties)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    upserts = table.new_upsert().create_writer() if keys else None
    writer = upserts or table.new_append().create_writer()
    write = upserts.upsert if upserts is not None else writer.append  # type: ignore[union-attr]
    write({"id": 1, "t": dt.time(1, 2, 3, 4000)})
    for row in ({"id": 2, "t": dt.time(1, 2, 3, 4)}, {"t": dt.time(1, 2, 3, 4), "id": None}):
        with pytest.raises(SchemaMismatchError):
            write(row)
    write({"id": 3, "t": None})
    writer.flush()
    assert count(connection, path) == 2
