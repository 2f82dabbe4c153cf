"""The threads of calls that block: at the program's end, in forked children, and in a trace."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as core
import fluss_df.aio as fluss
from fluss_df.aio.threads import Threads
from fluss_df.embedded import EmbeddedFluss
from tests.programs import command

_ENDS = """
import asyncio, contextlib, socket, sys, time
from concurrent.futures import Future
from fluss_df.aio.bridge import in_thread
from fluss_df.client.runtime.interrupts import abandoned, shielded
from fluss_df.client.runtime.io_thread import result_of

ours, theirs = socket.socketpair()

def answer():
    # of a server that is silent for ever
    try:
        result_of(Future())
    finally:
        print("interrupted")

def bytes_of_a_server():
    ours.recv(1)

def whole():
    def work():
        while not abandoned():
            time.sleep(0.01)
        time.sleep(0.3)
        print("whole")
    shielded(work)
    print("no interrupt")

async def main():
    calls = [asyncio.ensure_future(in_thread(globals()[name])) for name in sys.argv[1:]]
    await asyncio.wait(calls, timeout=0.2)
    for call in calls:
        call.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("call", "printed"), [("answer", "interrupted"), ("bytes_of_a_server", ""), ("whole", "whole")]
)
def test_the_end_of_the_program_does_not_wait_for_calls(call: str, printed: str) -> None:
    program = [*command("-W", "error"), "-c", _ENDS, call]
    done = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_rows_of_a_flush_that_was_cancelled_are_written_at_the_end(tmp_path: Path) -> None:
    """The flush is interrupted at the end of the program, which sends what is left."""
    code = """
    import asyncio, contextlib, sys
    import pyarrow as pa
    import fluss_df.aio as fluss
    async def main():
        connection = await fluss.FlussConnection.create(sys.argv[1])
        table = await connection.get_table("fluss.t")
        writer = table.new_append().create_writer()
        for number in range(1000):
            writer.append([number])
        flush = asyncio.ensure_future(writer.flush())
        await asyncio.sleep(0)
        flush.cancel()
    asyncio.run(main())
    """
    with EmbeddedFluss(tmp_path, port=0) as engine, engine.connection() as connection:
        path = core.TablePath("fluss", "t")
        descriptor = core.TableDescriptor(core.Schema(pa.schema([("x", pa.int64())])))
        connection.get_admin().create_table(path, descriptor, False)
        program = [*command("-W", "error"), "-c", textwrap.dedent(code), engine.address]
        subprocess.run(program, check=True, timeout=60)
        scanner = connection.get_table(path).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        assert scanner.to_arrow()["x"].to_pylist() == list(range(1000))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_uses_a_scanner_of_its_parent(tmp_path: Path) -> None:
    code = """
    import asyncio, os, sys, warnings
    import pyarrow as pa
    import fluss_df.aio as fluss
    warnings.simplefilter("ignore", DeprecationWarning)
    async def setup():
        connection = await fluss.FlussConnection.create(sys.argv[1])
        path = fluss.TablePath("fluss", "t")
        schema = fluss.Schema(pa.schema([("x", pa.int64())]))
        descriptor = fluss.TableDescriptor(schema, bucket_count=1)
        await connection.get_admin().create_table(path, descriptor)
        table = await connection.get_table(path)
        async with table.new_append().create_writer() as writer:
            writer.append([1])
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        assert (await scanner.poll_arrow(5000)).num_rows == 1
        return connection, table, scanner
    async def reads(table, scanner):
        async with asyncio.timeout(30):
            async with table.new_append().create_writer() as writer:
                writer.append([2])
            assert (await scanner.poll_arrow(5000))["x"].to_pylist() == [2]
            await scanner.close()
    connection, table, scanner = asyncio.run(setup())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(reads(table, scanner))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    async def rest():
        assert (await scanner.poll_arrow(5000))["x"].to_pylist() == [2]
        await scanner.close()
        await connection.close()
    asyncio.run(rest())
    """
    with EmbeddedFluss(tmp_path, port=0) as engine:
        program = [*command("-W", "error"), "-c", textwrap.dedent(code), engine.address]
        subprocess.run(program, check=True, timeout=60)


def test_calls_have_the_context_of_who_makes_them() -> None:
    where = contextvars.ContextVar("where", default="nowhere")

    async def main() -> None:
        with EmbeddedFluss() as engine, engine.connection() as connection:
            path = core.TablePath("fluss", "t")
            descriptor = core.TableDescriptor(core.Schema(pa.schema([("x", pa.int64())])))
            connection.get_admin().create_table(path, descriptor, False)
            table = connection.get_table(path)
            seen: list[str] = []
            writer = fluss.AppendWriter(table.new_append().create_writer())
            scanner = fluss.LogScanner(table.new_scan().create_record_batch_log_scanner())
            where.set("in the trace")
            with pytest.MonkeyPatch.context() as patched:
                send, tables = type(writer.core)._send_all, type(scanner.core).to_tables

                def sending(*args: object) -> None:
                    seen.append(where.get())
                    send(*args)  # type: ignore[arg-type]

                def reading(core: core.LogScanner) -> object:
                    seen.append(where.get())
                    return tables(core)

                patched.setattr(type(writer.core), "_send_all", sending)
                patched.setattr(type(scanner.core), "to_tables", reading)
                await writer.flush()
                scanner.subscribe(0, 0)
                await scanner.to_arrow()
            assert seen == ["in the trace"] * 2
            await writer.close()
            await scanner.close()

    asyncio.run(main())


def test_threads_end_with_their_pool() -> None:
    threads = Threads(2, "of-a-test")
    shared = threads._shared
    assert threads.submit(lambda: 1).result(20) == 1
    del threads
    # what ends one thread ends the next
    assert shared.work.get(timeout=20) is None
