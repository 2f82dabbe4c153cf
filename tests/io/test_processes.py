"""Scans in programs: their exit, interrupts, threads, other processes, memory."""

import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.client.connection import FlussConnection
from fluss_df.cluster import LocalCluster
from fluss_df.io import read_fluss, scan_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable
from tests.programs import command
from tests.waiting import wait_until

SCHEMA = pa.schema({"x": pa.int64(), "text": pa.string()})
ROWS = pl.DataFrame({"x": range(200_000)}).with_columns(text=pl.col("x").cast(pl.String))


@pytest.fixture(scope="module")
def table(make_table: MakeTable) -> TablePath:
    return make_table(SCHEMA, *ROWS.iter_slices(20_000), bucket_keys=["x"], bucket_count=8)


@pytest.fixture
def address(connection: FlussConnection) -> str:
    return connection.config.bootstrap_servers


def run(
    code: str, *arguments: str, timeout: float = 60, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program; a fresh one has imported nothing."""
    python = [sys.executable] if fresh else command("-X", "faulthandler")
    return subprocess.run(
        [*python, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


HEAD = """
import sys
import polars as pl
import fluss_df
from fluss_df.io import scan_fluss
frame = scan_fluss(sys.argv[1], connection=sys.argv[2])
"""


@pytest.mark.parametrize(
    "end",
    [
        "frame.collect()",
        "frame.filter(pl.col('x') >= 0).head(1).collect()",
        "left = frame.collect_batches(chunk_size=10); next(left)",
        "frame.map_batches(lambda f: 1 / 0, no_optimizations=True).collect()",
        "frame.select(pl.col('text').cast(pl.Int8)).collect()",
    ],
)
def test_a_program_may_end_right_after_a_query(table: TablePath, address: str, end: str) -> None:
    # what a query left to be read ends on threads of Polars, also when the interpreter does
    for _ in range(4):
        done = run(HEAD + end, str(table), address)
        assert done.returncode in (0, 1), done.stderr
        assert "Fatal" not in done.stderr
        assert (done.returncode == 1) == ("Error" in done.stderr)


@pytest.mark.parametrize(
    "query",
    [
        "scan_fluss(sys.argv[1], connection=sys.argv[2], follow=True)",
        # the rows of the scan wait for ever for those of the other source
        "scan_fluss(sys.argv[1], connection=sys.argv[2], follow=True).join(endless, on='x')",
    ],
)
def test_a_program_may_end_before_an_endless_query(
    table: TablePath, address: str, query: str
) -> None:
    other = """
def numbers(*_):
    while True:
        yield pl.DataFrame({"x": [1]})
from polars.io.plugins import register_io_source
endless = register_io_source(numbers, schema={"x": pl.Int64})
import time
"""
    end = f"left = {query}.collect_batches(lazy=False); time.sleep(0.3)"
    done = run(HEAD + other + end, str(table), address)
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr


def test_an_interrupt_ends_a_query(table: TablePath, address: str) -> None:
    code = (
        HEAD
        + """
import time
print("ready", flush=True)
frame.sink_batches(lambda batch: time.sleep(0.2), chunk_size=1000)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(table), address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = program.communicate(timeout=30)
    assert time.monotonic() - began < 20
    assert program.returncode in (1, -signal.SIGINT, 130)
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors


SILENT = """
import dataclasses
from fluss_df.client.cluster.metadata import Cluster
from tests.faults.fault_proxy import FETCH_LOG, FaultProxy, Rule

# fetches are answered never, and waited for up to 30 seconds
proxy, direct = FaultProxy(), Cluster.endpoint
proxy.target = lambda: ("127.0.0.1", int(sys.argv[3]))
proxy.rules.append(Rule(FETCH_LOG, "silent", times=1000))

def redirected(cluster, node):
    endpoint = direct(cluster, node)
    if endpoint.port != int(sys.argv[3]):
        return endpoint
    return dataclasses.replace(endpoint, port=proxy.port)

Cluster.endpoint = redirected
print("ready", flush=True)
"""


@pytest.mark.parametrize("query", ["frame.collect()", "next(frame.collect_batches())"])
def test_an_interrupt_ends_the_wait_for_a_silent_server(
    table: TablePath, fluss_cluster: LocalCluster, query: str
) -> None:
    server = fluss_cluster.tablet_servers[0].port
    arguments = [str(table), fluss_cluster.bootstrap_servers, str(server)]
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + SILENT + query, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        time.sleep(1)
        program.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = program.communicate(timeout=60)
    assert time.monotonic() - began < 20
    # Polars may end an iteration as if it were complete
    assert "KeyboardInterrupt" in errors or ("batches" in query and "StopIteration" in errors)
    assert "Fatal" not in errors


def test_threads_share_a_frame(table: TablePath, connection: FlussConnection) -> None:
    frame = scan_fluss(table, connection=connection)
    with ThreadPoolExecutor(6) as pool:
        queries = [frame.filter(pl.col("x") % 6 == i).select(pl.len()) for i in range(6)]
        found = list(pool.map(lambda query: query.collect().item(), queries))
    assert sum(found) == ROWS.height


def test_a_frame_travels_to_another_process(table: TablePath, connection: FlussConnection) -> None:
    data = pickle.dumps(scan_fluss(table, connection=connection).select(pl.col("x").sum()))
    code = """
    import pickle, sys
    print(pickle.loads(bytes.fromhex(sys.argv[1])).collect().item())
    """
    done = run(code, data.hex(), fresh=True)
    assert done.stdout.strip() == str(ROWS["x"].sum()), done.stderr


def _sum(data: bytes) -> int:
    total: int = pickle.loads(data).collect().item()
    return total


def test_a_spawned_worker_reads(table: TablePath, connection: FlussConnection) -> None:
    frame = scan_fluss(table, connection=connection)
    assert frame.select(pl.len()).collect().item() == ROWS.height
    data = pickle.dumps(frame.select(pl.col("x").sum()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_sum, (data,)).get(60) == ROWS["x"].sum()


def test_closing_an_iterator_ends_the_read(table: TablePath, connection: FlussConnection) -> None:
    frame = scan_fluss(table, connection=connection)
    before = threading.active_count()
    for _ in range(5):
        next(iter(frame.collect_batches(chunk_size=100)))
    wait_until(lambda: threading.active_count() <= before + 8, 10)
    assert threading.active_count() <= before + 8
    assert read_fluss(table, connection=connection).height == ROWS.height


CAP = 200_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_a_streaming_query_keeps_memory_bounded(
    make_table: MakeTable, connection: FlussConnection
) -> None:
    schema = pa.schema({"x": pa.int64(), "y": pa.float64(), "text": pa.string()})
    rows = pl.DataFrame({"x": range(1_000_000)}).select(
        pl.col("x").hash(1).reinterpret(signed=True),
        y=pl.col("x").hash(2) / 2**64,
        text=pl.format("a text of {} letters", pl.col("x").hash(3) % 1000),
    )
    copies = -(-10 * CAP // rows.to_arrow().nbytes)
    path = make_table(schema, *([rows] * copies), bucket_count=4)
    code = """
    import sys
    import polars as pl
    from fluss_df.io import scan_fluss
    from tests.memory import PeakMemory

    settings = {
        "bootstrap.servers": sys.argv[2],
        "scanner.log.fetch.max-bytes": 1 << 20,
        "scanner.log.fetch.max-bytes-for-bucket": 1 << 20,
    }
    frame = scan_fluss(sys.argv[1], connection=settings)
    frame.head(1).collect()
    query = frame.filter(pl.col("y") < 0.5).select(pl.len(), pl.col("text").str.len_bytes().sum())
    with PeakMemory() as memory:
        found = query.collect(engine="streaming")
    print(found["len"].item(), memory.grown)
    """
    done = run(code, str(path), connection.config.bootstrap_servers, timeout=120, fresh=True)
    assert done.returncode == 0, done.stderr
    count, growth = map(int, done.stdout.split())
    assert count == copies * rows.filter(pl.col("y") < 0.5).height
    assert growth < CAP
    connection.get_admin().drop_table(path)
