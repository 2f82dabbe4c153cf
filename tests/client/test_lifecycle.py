"""Programs that end, are interrupted, or run in a notebook: each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.client.support import Tables
from tests.client.table_programs import ROOT, SCHEMA, filled_table, numbers, run, start


@pytest.fixture
def table(tables: Tables) -> fluss.FlussTable:
    return tables(SCHEMA)


@pytest.fixture
def filled(tables: Tables) -> fluss.FlussTable:
    return filled_table(tables)


# ---- exit


@pytest.mark.parametrize(
    ("write", "rows"),
    [
        ("writer.append({'n': 0, 'text': 'a'})", 1),
        ("writer.write_arrow(frame(10))", 10),
        ("writer.write_arrow(frame(300_000))", 300_000),
        ("for i in range(1000): writer.append((i, 'x'))", 1000),
    ],
)
def test_exit_without_close_flushes(
    address: str, tables: Tables, table: fluss.FlussTable, write: str, rows: int
) -> None:
    began = time.monotonic()
    run(f"writer = table.new_append().create_writer()\n{write}", address, table)
    assert time.monotonic() - began < 15
    assert numbers(tables, table) == list(range(rows))


def test_exit_flushes_what_the_io_thread_has_not_seen_yet(
    address: str, tables: Tables, table: fluss.FlussTable
) -> None:
    code = """
    writer = table.new_append().create_writer()
    handle = writer.write_arrow(frame(10))
    connection.io.call(time.sleep, 0.5)
    threading.Thread(target=handle.send_now).start()
    """
    run(code, address, table)
    assert numbers(tables, table) == list(range(10))


@pytest.mark.parametrize("end", ["sys.exit(0)", "del writer", "del writer, table, connection"])
def test_exit_with_less_left(
    address: str, tables: Tables, table: fluss.FlussTable, end: str
) -> None:
    code = f"writer = table.new_append().create_writer()\nwriter.append((7, 'x'))\n{end}"
    run(code, address, table)
    assert numbers(tables, table) == [7]


@pytest.mark.parametrize(
    "end",
    ["pass", "while writer.unflushed_rows: time.sleep(0.1)"],
    ids=["at once", "failed by then"],
)
def test_exit_with_rows_that_cannot_be_written_names_them(
    address: str, tables: Tables, table: fluss.FlussTable, end: str
) -> None:
    code = f"""
    writer = table.new_append().create_writer()
    writer.append((0, 'x')).wait()
    connection.get_admin().drop_table(table.get_table_path())
    # a busy server takes rows for a while
    for _ in range(1000):
        try: writer.append((0, 'x')).wait()
        except fluss.FlussError: break
        time.sleep(0.1)
    for i in range(5): writer.append((i, 'x'))
    {end}
    """
    _, err = run(code, address, table, timeout=150)
    errors = [line for line in err.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    assert "the program ended without close()" in errors[0]
    # with the one before, whose failure the program took no note of
    assert "6 rows" in errors[0]
    assert str(table.get_table_path()) in errors[0]


@pytest.mark.parametrize(
    "code",
    [
        "s = scanner(); s.poll_arrow(1000)",
        "s = scanner(); s.poll_arrow(1000); s.poll_arrow(0)",
        "s = scanner(); reader = s.to_arrow_batch_reader(); reader.read_next_batch()",
        "s = scanner(); threading.Thread(target=s.poll_arrow, args=(60_000,), daemon=True).start()"
        "; time.sleep(0.3)",
        "fluss.set_default_connection(connection)",
        "connection.close()",
    ],
)
def test_exit_in_the_middle_of_a_scan(address: str, filled: fluss.FlussTable, code: str) -> None:
    began = time.monotonic()
    run(code, address, filled)
    assert time.monotonic() - began < 10


# ---- Ctrl-C

INTERRUPTED = """
    s = scanner()
    s.poll_arrow(2000)
    writer = table.new_append().create_writer()
    began = []
    def soon():
        time.sleep(0.5)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=soon).start()
    try:
        {call}
    except KeyboardInterrupt:
        took = time.monotonic() - began[0]
        assert took < 5, took
    else:
        raise AssertionError("not interrupted")
    assert connection.get_admin().table_exists(table.get_table_path())
    writer.append((10, 'after')).wait()
    assert s.poll_arrow(5000).column("n").to_pylist()[-1] == 10
    writer.close()
    connection.close()
"""


@pytest.mark.parametrize(
    "call",
    [
        "s.poll_arrow(60_000)",
        "s.poll_record_batch(60_000)",
        "connection.io.run(__import__('asyncio').sleep(60))",
    ],
)
def test_interrupt(address: str, filled: fluss.FlussTable, call: str) -> None:
    run(INTERRUPTED.format(call=call), address, filled)


INTERRUPTED_CONNECT = """
    import asyncio, socket
    silent = socket.create_server(("127.0.0.1", 0))
    connection.close()
    def soon():
        peer.append(silent.accept()[0])
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    peer = []
    threading.Thread(target=soon).start()
    try:
        fluss.connect("127.0.0.1:%d" % silent.getsockname()[1])
    except KeyboardInterrupt as error:
        kept = error  # as a notebook does, with all that its frames hold
    else:
        raise AssertionError("not interrupted")
    peer[0].settimeout(5)
    while peer[0].recv(1000):
        pass
    end = time.monotonic() + 5
    while asyncio.all_tasks(connection.io.loop):
        assert time.monotonic() < end
        time.sleep(0.01)
    with fluss.connect(address) as again:
        assert again.get_admin().table_exists(table.get_table_path())
    peer[0].close()
    silent.close()
"""


def test_interrupted_connect_leaves_nothing(address: str, filled: fluss.FlussTable) -> None:
    run(INTERRUPTED_CONNECT, address, filled)


# Each is interrupted while the tablet server is stopped; `started()` lets that happen.
SILENT = """
    connection.close()
    connection = fluss.connect(
        {
            "bootstrap.servers": address,
            "scanner.log.fetch.max-bytes-for-bucket": 20_000,
            "writer.buffer.memory-size": 1 << 20,
            "writer.batch-size": 1 << 16,
        }
    )
    table = connection.get_table(table_name)
    s = table.new_scan().create_record_batch_log_scanner()
    s.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    writer = table.new_append().create_writer()
    writer.append((-1, 'first')).wait()
    def started():
        print("started", flush=True)
        assert sys.stdin.readline() == "stopped\\n"
    def interrupt():
        time.sleep(0.5)
        global began
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    def watch():
        while s.metrics.rows < 1000:
            time.sleep(0.001)
        started()
        interrupt()
    accepted = []
    def append_forever():
        while True:
            n = -10 - len(accepted)
            writer.append((n, "x" * 100))
            accepted.append(n)
    try:
        CALL
    except KeyboardInterrupt:
        took = time.monotonic() - began
    else:
        raise AssertionError("not interrupted")
    # nothing is in the way of the next row
    began = time.monotonic()
    writer.append((-4, 'meanwhile'))
    took = max(took, time.monotonic() - began)
    print("took", took, "accepted", len(accepted), flush=True)
    assert sys.stdin.readline() == "continued\\n"
    assert connection.get_admin().table_exists(table.get_table_path())
    writer.append((-2, 'last')).wait()
    writer.close()
    connection.close()
"""
AT_ONCE = "started(); threading.Thread(target=interrupt).start(); "
CALLS = {
    "flush": AT_ONCE + "writer.append((-3, 'x')); writer.flush()",
    "wait": AT_ONCE + "writer.append((-3, 'x')).wait()",
    "rows that wait for room": AT_ONCE + "append_forever()",
    "a frame that waits for room": AT_ONCE + "writer.write_arrow(frame(500_000, 10**9))",
    "list offsets": AT_ONCE + "s.to_arrow()",
    "admin": AT_ONCE + "[connection.get_admin().list_databases() for _ in range(100)]",
    "to_arrow": "threading.Thread(target=watch).start(); s.to_arrow()",
    "reader": "threading.Thread(target=watch).start(); s.to_arrow_batch_reader().read_all()",
}


@pytest.mark.cluster_only
@pytest.mark.parametrize("call", CALLS)
def test_interrupt_while_a_server_is_silent(
    address: str, tables: Tables, fluss_cluster: LocalCluster, call: str
) -> None:
    table = tables(SCHEMA, bucket_count=2, properties={"table.log.arrow.compression.type": "NONE"})
    with table.new_append().create_writer() as writer:
        for start_at in range(0, 200_000, 1000):
            numbers = range(start_at, start_at + 1000)
            data = pa.table({"n": numbers, "text": [f"{i:020}" for i in numbers]}, schema=SCHEMA)
            writer.write_arrow(data)
            writer.flush()
    server = next(p for p in fluss_cluster.status().processes if p.name.startswith("tablet"))
    assert server.pid is not None
    process = start(SILENT.replace("CALL", CALLS[call]), address, table)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "started\n"
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(0.1)  # until all of its threads are
        print("stopped", file=process.stdin, flush=True)
        took = process.stdout.readline().split()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    try:
        _, err = process.communicate("continued\n", timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert took, err
    assert float(took[1]) < 5
    found = tables.read(table).column("n").to_pylist()
    assert sorted(n for n in found if 0 <= n < 10**9) == list(range(200_000))
    assert {-1, -2, -4} <= set(found)
    accepted = int(took[3])
    assert accepted > 0 or call != "rows that wait for room"
    # the row that was being appended may be there
    rest = sorted((n for n in found if n <= -10), reverse=True)
    assert rest in ([-10 - i for i in range(rows)] for rows in (accepted, accepted + 1))
    of_frame = [n for n in found if n >= 10**9]
    assert len(of_frame) == len(set(of_frame)) < 500_000


# ---- notebooks


def test_inside_a_running_loop(address: str, filled: fluss.FlussTable) -> None:
    code = """
    import asyncio
    async def cell():
        inner = await fluss.FlussConnection.create({"bootstrap.servers": address})
        table = await inner.get_table(table_name)
        made = await table.new_scan().create_log_scanner()
        made.subscribe(0, fluss.EARLIEST_OFFSET)
        assert len(made.poll(2000)) == 10
        s = table.new_scan().create_record_batch_log_scanner()
        s.subscribe(0, fluss.EARLIEST_OFFSET)
        assert s.to_arrow().num_rows == 10
        async with asyncio.timeout(20):
            await table.new_append().create_writer().append((10, 'x')).wait()
        assert s.to_arrow().num_rows == 1
        inner.close()
    asyncio.run(cell())
    connection.close()
    """
    run(code, address, filled)


# ---- import


def import_seconds(modules: str, compiled: Path) -> float:
    """Return the processor seconds of an import: others use the machine too."""
    code = f"import time; t = time.process_time(); import {modules}; print(time.process_time() - t)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(compiled)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=True, timeout=60
    )
    return float(done.stdout)


def test_import_is_quick(tmp_path: Path) -> None:
    import_seconds("polars, fluss_df", tmp_path)  # compiles
    # other programs only ever add to a time
    assert any(
        import_seconds("polars, fluss_df", tmp_path) - import_seconds("polars", tmp_path) < 0.5
        for _ in range(6)
    )


@pytest.mark.parametrize("module", ["fluss_df", "fluss_df.aio", "fluss_df.io.scan"])
def test_import_brings_no_extras_and_starts_nothing(module: str) -> None:
    code = (
        f"import sys, threading, {module}"
        """
heavy = {"typer", "rich", "pandas", "ibis", "pyspark", "duckdb", "matplotlib", "grpc", "sqlglot"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert threading.active_count() == 1
"""
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
