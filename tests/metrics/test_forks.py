"""A forked child can be scraped, whatever its parent was doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, threading
import pyarrow as pa
import fluss_df
from fluss_df.embedded import EmbeddedFluss
from prometheus_client import CollectorRegistry, generate_latest
from fluss_df.metrics import FlussCollector

registry = CollectorRegistry()
collector = FlussCollector()
registry.register(collector)
with EmbeddedFluss(sys.argv[1], port=0) as engine, fluss_df.connect(engine.address) as connection:
    schema = fluss_df.Schema(pa.schema([("n", pa.int64())]))
    path = fluss_df.TablePath("fluss", "t")
    connection.get_admin().create_table(path, fluss_df.TableDescriptor(schema, bucket_count=1))
    ended = threading.Event()

    def scrape():
        while not ended.is_set():
            generate_latest(registry)

    thread = threading.Thread(target=scrape)
    thread.start()
    children = 20
    for _ in range(children):
        child = os.fork()
        if not child:
            connection.get_admin().list_databases()
            # the registry of the parent has a lock, which is not ours
            own = CollectorRegistry()
            own.register(collector)
            text = generate_latest(own).decode()
            good = "fluss_server_engines 0.0" in text and "fluss_client_connections 1.0" in text
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
    ended.set()
    thread.join()
    assert "fluss_server_engines 1.0" in generate_latest(registry).decode()
print("ok")
"""


def test_children_of_a_process_that_is_scraped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tmp_path / "d")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "ok", done.stderr


CLOSING = """
import os
import fluss_df
from fluss_df.metrics import start_http_server
with start_http_server() as server:
    child = os.fork()
    if not child:
        server.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    import urllib.request
    assert urllib.request.urlopen(server.url, timeout=10).status == 200
print("ok")
"""


def test_a_child_that_closes_its_parents_server() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CLOSING],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "ok", done.stderr
