"""The HTTP server of metrics: while writers run, in its bounds, as a command, without its extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import fluss_df as fluss
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.metrics import FlussCollector, start_http_server
from fluss_df.observe import counters
from fluss_df.observe.counters import OTHER, Group, Names
from tests.client.support import Tables
from tests.metrics.support import Scraper, parsed

SCHEMA = pa.schema([("n", pa.int64())])


def test_scrapes_while_writers_run(tables: Tables) -> None:
    table = tables(SCHEMA)
    name = str(table.get_table_path())
    frame = pa.table({"n": range(50)}, schema=SCHEMA)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with table.new_append().create_writer() as writer:
                for _ in range(100):
                    writer.write_arrow(frame).wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(3)]
    seen = [0.0]
    with start_http_server() as server:
        scrape = Scraper(url=server.url)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            seen.append(scrape()("fluss_client_writer_records_total", table=name))
        for thread in threads:
            thread.join()
        assert failures == []
        assert seen == sorted(seen)
        assert scrape()("fluss_client_writer_records_total", table=name) == 15_000
        assert scrape()("process_cpu_seconds_total") > 0
    assert len(set(seen)) > 2
    with pytest.raises(urllib.error.URLError):
        scrape()


def test_ten_thousand_tables_do_not_make_ten_thousand_labels() -> None:
    registry = CollectorRegistry()
    registry.register(FlussCollector(max_tables=20))
    owner = type("Owner", (), {"buffered_bytes": staticmethod(lambda: 0)})()
    metrics = Metrics()
    counters.clients.enter(owner, metrics)
    rows, written = "fluss_client_writer_records_total", 0.0
    try:
        for first in range(0, 10_000, 2_500):
            for number in range(first, first + 2_500):
                metrics.of_table(f"many.t{number}").add(records_written=1)
            scrape = parsed(generate_latest(registry).decode())
            labels = scrape.labels(rows, "table")
            assert len(labels) <= 21
            assert OTHER in labels
            assert scrape(rows, table=OTHER) > written
            written = scrape(rows, table=OTHER)
    finally:
        counters.clients.leave(metrics)
    assert sum(key[0] == "records_written" for key in metrics.counts()) <= 1001
    assert sum(v for k, v in metrics.counts().items() if k[0] == "records_written") == 10_000
    # which tables have a label does not change as connections come and go
    assert parsed(generate_latest(registry).decode()).labels(rows, "table") == labels


def test_names_have_a_bound() -> None:
    names = Names(2)
    assert [names.label(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]


def test_members_of_a_group_leave_once() -> None:
    group, metrics = Group(), Metrics()
    owner = type("Owner", (), {})()
    group.enter(owner, metrics)
    group.enter(owner, metrics)
    metrics.add(requests=3)
    assert list(group.owners()) == [owner]
    group.leave(metrics)
    group.leave(metrics)
    del owner
    assert list(group.owners()) == []
    assert group.counts()["requests",] == 3


def test_a_port_that_is_taken_and_one_that_is_none() -> None:
    with (
        start_http_server() as server,
        pytest.raises(fluss.FlussError, match=f"cannot serve metrics on 127.0.0.1:{server.port}"),
    ):
        start_http_server(server.port)
    for port in (-1, 65536, True, "9249"):
        with pytest.raises(fluss.FlussError, match=re.escape(f"port={port!r}: expected a number")):
            start_http_server(port)  # type: ignore[arg-type]
    for most in (-1, 1001, True, "5", None, 5.0):
        with pytest.raises(fluss.FlussError, match=f"max_tables={most!r}: expected"):
            FlussCollector(most)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", [None, 1, "\udce9", "a..b", "x" * 64])
def test_a_host_that_is_none(host: Any) -> None:
    with pytest.raises(fluss.FlussError, match=re.escape(f"host={host!r}: expected an address")):
        start_http_server(0, host)


def test_without_the_extra(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["prometheus_client"] = None
import fluss_df.metrics
try:
    fluss_df.metrics.start_http_server()
except fluss_df.FlussError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'fluss-df[metrics]'" in done.stdout


def test_serve_with_metrics(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "from fluss_df.cli.main import app; app()", "serve"]
    line += ["--dir", str(tmp_path / "d"), "--port", "0", "--metrics-port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            found = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", first)
            listening = re.fullmatch(r"listening on (\S+)\n", server.stdout.readline())
            assert found is not None
            assert listening is not None
            with fluss.connect(listening[1]) as connection:
                descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
                connection.get_admin().create_table(fluss.TablePath("fluss", "t"), descriptor)
                with connection.get_table("t").new_append().create_writer() as writer:
                    writer.write_arrow(pa.table({"n": [1, 2, 3]}))
                after = Scraper(url=found[1])()
            assert after("fluss_server_table_messages_in_total", table="fluss.t") == 3
            assert after("fluss_server_connections", transport="tcp") >= 1
        finally:
            server.terminate()
    assert server.returncode == 0


def test_serve_without_a_port_for_metrics_opens_nothing(tmp_path: Path) -> None:
    with start_http_server() as taken:
        line = [sys.executable, "-c", "from fluss_df.cli.main import app; app()", "serve"]
        line += ["--dir", str(tmp_path / "d"), "--port", "0", "--metrics-port", str(taken.port)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "cannot serve metrics on" in done.stderr
    assert not (tmp_path / "d").exists()
