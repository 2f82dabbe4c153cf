"""Counters that a user can read, and what is logged."""

from __future__ import annotations

import logging
import threading

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.runtime.metrics import Metrics
from tests.client.support import Tables, free_address

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
FRAME = pa.table({"n": range(1000), "text": [f"text-{i}" for i in range(1000)]}, schema=SCHEMA)


def test_of_a_connection(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    with fluss.connect(address) as connection:
        assert connection.metrics.requests > 0
        before = dict(connection.metrics.as_dict())
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            writer.write_arrow(FRAME)
        written = dict(connection.metrics.as_dict())
        assert written["rows"] - before["rows"] == 1000
        assert written["batches"] - before["batches"] == 1
        assert written["bytes_sent"] > before["bytes_sent"] + 100
        assert written["requests"] > before["requests"]
        scanner = opened.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        scanner.to_arrow()
        after = connection.metrics.as_dict()
        assert after["rows"] - written["rows"] == scanner.metrics.rows == 1000
        assert after["bytes_received"] - written["bytes_received"] > scanner.metrics.record_bytes
        assert after["errors"] == 0


def test_each_connection_counts_its_own(address: str) -> None:
    """Although they share sockets."""
    with fluss.connect(address) as busy, fluss.connect(address) as idle:
        before, idle_before = dict(busy.metrics.as_dict()), dict(idle.metrics.as_dict())
        for _ in range(10):
            busy.get_admin().list_databases()
        after = busy.metrics.as_dict()
        assert after["requests"] - before["requests"] == 10
        assert after["bytes_sent"] > before["bytes_sent"]
        assert after["bytes_received"] > before["bytes_received"]
        assert idle.metrics.as_dict() == idle_before


def test_of_a_scan(tables: Tables) -> None:
    table = tables(SCHEMA)
    tables.write(table, FRAME)
    scanner = tables.scanner(table)
    scanner.to_arrow()
    metrics = scanner.metrics
    assert (metrics.rows, metrics.batches, metrics.retries, metrics.errors) == (1000, 1, 0, 0)
    assert metrics.requests == 1
    assert 0 < metrics.record_bytes < metrics.bytes_received
    assert metrics.wait_seconds > 0
    assert "rows=1000" in repr(metrics)
    assert "errors" not in repr(metrics)


def test_frames_are_counted_whole(address: str) -> None:
    with fluss.connect(address) as connection:
        before = dict(connection.metrics.as_dict())
        names = connection.get_admin().list_databases()
        after = connection.metrics.as_dict()
    response = sum(2 + len(name) for name in names)  # a tag, a length
    assert after["bytes_sent"] - before["bytes_sent"] == 12
    assert after["bytes_received"] - before["bytes_received"] == 9 + response


def test_refused_writes_count_as_errors(address: str, tables: Tables) -> None:
    table = tables(SCHEMA)
    with fluss.connect(address) as connection:
        writer = connection.get_table(table.get_table_path()).new_append().create_writer()
        connection.get_admin().drop_table(table.get_table_path())
        with pytest.raises(fluss.FlussError):
            writer.append((1, "a")).wait()
        with pytest.raises(fluss.FlussError):
            writer.close()
        assert connection.metrics.errors == 1


def test_additions_of_threads_are_not_lost() -> None:
    parent = Metrics()
    child = Metrics(parent)

    def add() -> None:
        for _ in range(1000):
            child.add(requests=1, wait_seconds=0.5)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for metrics in (child, parent):
        assert metrics.requests == 8000
        assert metrics.wait_seconds == 4000
    assert set(child.as_dict()) == set(Metrics.NAMES)


def test_unknown_counters_are_refused() -> None:
    with pytest.raises(AttributeError):
        Metrics().add(rquests=1)


def test_logging_names(address: str, tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    table = tables(SCHEMA)
    with fluss.connect(f"{free_address()},{address}") as connection:
        opened = connection.get_table(table.get_table_path())
        with opened.new_append().create_writer() as writer:
            writer.append((1, "a value that is nobody's business"))
    # a folder with a lake, which a test before left open, tiers beside
    ours = [
        record
        for record in caplog.records
        if record.name.startswith("fluss_df") and "fluss-df-tier" not in str(record.threadName)
    ]
    assert ours
    assert all(record.name.startswith("fluss_df.client.") for record in ours)
    assert "nobody's business" not in caplog.text
    assert max(record.levelno for record in ours) <= logging.INFO


def test_no_handlers_and_no_levels_are_set() -> None:
    for name in [n for n in logging.root.manager.loggerDict if n.startswith("fluss_df")]:
        logger = logging.getLogger(name)
        assert not [h for h in logger.handlers if not isinstance(h, logging.NullHandler)]
        assert logger.level == logging.NOTSET
        assert logger.propagate
