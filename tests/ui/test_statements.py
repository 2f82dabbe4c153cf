"""Statements run in processes of their own: whatever they do, they end, and pages stay quick."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.ui.server import ConsoleServer
from fluss_df.ui.settings import Limits, Settings
from tests.ui.visiting import Visitor
from tests.waiting import wait_until

# nothing ends what Polars computes here but the end of its process
ENDLESS = "SELECT count(*) AS n FROM numbers a, numbers b, numbers c WHERE a.n + b.n > c.n"


@pytest.fixture
def numbers(folder: FlussConnection) -> FlussConnection:
    rows = pl.DataFrame({"n": range(20_000)})
    fluss_df.write_fluss(rows, "numbers", connection=folder, create_if_not_exists=True)
    return folder


def served(connection: FlussConnection, limits: Limits) -> Iterator[Visitor]:
    with ConsoleServer(connection, Settings(limits=limits), "folder") as server:
        visitor = Visitor(server)
        visitor.sign_in()
        yield visitor


def begun(visitor: Visitor, statement: str) -> str:
    run = visitor.send("/sql", statement=statement).headers["location"]
    return run.rpartition("/")[2]


def test_it_is_cancelled_and_pages_stay_quick(numbers: FlussConnection) -> None:
    for visitor in served(numbers, Limits(query_memory=8 << 30)):
        run = begun(visitor, ENDLESS)
        query = visitor.server.state.queries.find(run)
        assert "fluss.people" in visitor.page("/").words
        # a page that waits for it would come when it is over
        assert query.status == "running"
        assert "Cancel" in visitor.page(f"/sql/run/{run}").words
        visitor.post("/sql/cancel", run=run)
        assert query.wait(10)
        assert query.status == "cancelled"
        assert "Cancelled" in visitor.page(f"/sql/run/{run}").words
        assert "Ann" in visitor.sql("SELECT * FROM people").words


def test_it_ends_by_the_clock(numbers: FlussConnection) -> None:
    for visitor in served(numbers, Limits(query_seconds=1, query_memory=8 << 30)):
        visitor.server.state.queries.prepare()
        page = visitor.sql(ENDLESS).words
        assert "took longer than 1 second" in page


def test_what_was_written_before_the_end_is_told(numbers: FlussConnection) -> None:
    """It was to be run again, with what it had written in the table."""
    told = "What it had written stays written"
    for visitor in served(numbers, Limits(query_seconds=5, query_memory=8 << 30)):
        visitor.server.state.queries.prepare()
        page = visitor.sql(f"INSERT INTO numbers {ENDLESS}").words
        assert "took longer than 5 seconds" in page
        assert told in page
        # what changes nothing, and what did not begin
        for statement in (ENDLESS, "SELEC 1", "SHOW COLUMNS FROM nothing", "INSERT INTO VALUES"):
            page = visitor.sql(statement).words
            assert "This did not work" in page
            assert told not in page
            assert "Change the statement, and run it again" in page


def test_it_ends_by_its_memory(numbers: FlussConnection) -> None:
    for visitor in served(numbers, Limits(query_memory=400 << 20)):
        page = visitor.sql(
            "SELECT count(DISTINCT a.n * 20000 + b.n) AS n FROM numbers a, numbers b"
        )
        assert "it took more than 400 MB of memory" in page.words
        assert "Ann" in visitor.sql("SELECT * FROM people").words


def test_as_many_run_as_may(numbers: FlussConnection) -> None:
    limits = Limits(queries=2, kept_results=3, query_memory=8 << 30)
    for visitor in served(numbers, limits):
        runs = [begun(visitor, ENDLESS) for _ in range(2)]
        assert "which is as many as may" in visitor.sql("SHOW TABLES").words
        for run in runs:
            visitor.post("/sql/cancel", run=run)
            assert visitor.server.state.queries.find(run).wait(10)
        for _ in range(4):
            assert "people" in visitor.sql("SHOW TABLES").words
        assert len(visitor.server.state.queries.all()) <= 3
        assert "not kept any more" in visitor.get(f"/sql/run/{runs[0]}").words


def test_large_results_are_cut(numbers: FlussConnection) -> None:
    limits = Limits(result_rows=1000)
    for visitor in served(numbers, limits):
        assert "there are more than 1,000 rows" in visitor.sql("SELECT * FROM numbers").words
    for visitor in served(numbers, replace(limits, result_rows=50_000, result_bytes=1000)):
        page = visitor.sql("SELECT * FROM numbers").words
        assert "These are not all: the result is larger than" in page


def test_processes_end_with_the_console(numbers: FlussConnection) -> None:
    for visitor in served(numbers, Limits(query_memory=8 << 30)):
        query = visitor.server.state.queries.find(begun(visitor, ENDLESS))
        process = None
        deadline = time.monotonic() + 10
        while process is None and time.monotonic() < deadline:
            process = query._process
    assert process is not None
    assert process._popen.wait(10) != 0


def test_credentials_reach_the_process_and_nothing_else(tmp_path: Path) -> None:
    secret = "s3cret-of-ann"
    with EmbeddedFluss(tmp_path / "data", port=0, sasl={"ann": secret}) as engine:
        address = f"fluss://ann:{secret}@{engine.address}"
        with fluss_df.connect(address) as connection:
            for visitor in served(connection, Limits()):
                assert "0 rows in" in visitor.sql("SHOW TABLES").words
                for target in ("/", "/sql", "/runs", "/create"):
                    assert secret not in visitor.page(target).text
                seen = []
                for file in Path("/proc").glob("[0-9]*/cmdline"):
                    with contextlib.suppress(OSError):
                        seen.append(file.read_bytes())
                processes = [line for line in seen if b"fluss_df.ui.worker" in line]
                assert processes
                assert not any(secret.encode() in line for line in processes)


def test_processes_end_with_a_console_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, fluss_df\n"
        "from fluss_df.ui.server import ConsoleServer\n"
        "from fluss_df.ui.settings import Settings\n"
        "server = ConsoleServer(fluss_df.connect(sys.argv[1]), Settings(), 'x').start()\n"
        "server.state.queries.prepare()\n"
        "print(server.state.queries._spare[0]._popen.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    ) as console:
        assert console.stdout is not None
        worker = Path("/proc") / console.stdout.readline().strip()
        assert worker.exists()
        console.kill()
    wait_until(lambda: not _runs(worker), 30)
    assert not _runs(worker)


def _runs(process: Path) -> bool:
    """Whether a process runs: nobody may have taken note of the end of one whose parent is gone."""
    try:
        return "Z" not in (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
