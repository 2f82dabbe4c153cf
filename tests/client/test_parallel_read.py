"""Reads of several buckets by several threads, however little they may hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.runtime.retry import Backoff
from fluss_df.client.scan.bucket_reads import BucketReads
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from tests.client.support import Tables

SCHEMA = pa.schema([("id", pa.int64()), ("noise", pa.float64())])
ROWS = 300_000
BATCHES = 8


@pytest.mark.parametrize("ahead_bytes", [0, 4 << 20, None])
def test_a_full_bucket_does_not_hold_up_the_one_before_it(
    tables: Tables, ahead_bytes: int | None
) -> None:
    """What is held of the second bucket waits for the first, which must go on."""
    rng = np.random.default_rng(1)
    table = tables(SCHEMA, bucket_count=2)
    with table.new_append().create_writer() as writer:
        for batch in range(BATCHES):
            ids = np.arange(batch * ROWS, (batch + 1) * ROWS)
            writer.write_arrow(pa.table([ids, rng.random(ROWS)], schema=SCHEMA))
            writer.flush()
    info = table.get_table_info()
    path = table.get_table_path()
    ends = tables.connection.get_admin().list_offsets(path, [0, 1], fluss.OffsetSpec.latest())
    positions = [Position(TableBucket(info.table_id, b), None, 0, ends[b]) for b in (0, 1)]
    config = tables.connection.config.copy(
        scanner_fetch_connections=2, scanner_log_fetch_max_bytes_for_bucket=9 << 20
    )
    with fluss.connect(config) as connection:
        read = ParallelRead[int](
            connection,
            info,
            SCHEMA.names,
            (),
            positions,
            ScanMetrics(),
            lambda part: part.num_rows,
            ahead_bytes=ahead_bytes,
        )
        rows = rows_of(read)
    assert rows == ROWS * BATCHES


def test_who_holds_little_decodes_little_at_once(tables: Tables) -> None:
    rng = np.random.default_rng(1)
    table = tables(SCHEMA, bucket_count=1)
    with table.new_append().create_writer() as writer:
        for _ in range(60):
            writer.write_arrow(pa.table([np.arange(5000), rng.random(5000)], schema=SCHEMA))
            writer.flush()
    info = table.get_table_info()
    largest = []
    for ahead_bytes in (None, 1 << 18):
        read = ParallelRead[int](
            tables.connection,
            info,
            SCHEMA.names,
            (),
            [Position(TableBucket(info.table_id, 0), None, 0, 300_000)],
            ScanMetrics(),
            lambda part: part.nbytes,
            ahead_bytes=ahead_bytes,
        )
        with read:
            sizes = [size for size in read if size is not None]
        assert sum(sizes) == 300_000 * 16
        largest.append(max(sizes))
    assert largest[1] <= 1 << 18 < 1 << 21 < largest[0]


def test_texts_that_are_tiny_on_the_wire_are_decoded_by_few_batches(tables: Tables) -> None:
    """Lines of a log that say the same thing over and over have a thousandth of their size."""
    schema = pa.schema([("line", pa.string())])
    table = tables(schema, bucket_count=1)
    lines = pa.table([["the same words " * 250] * 500], schema=schema)
    with table.new_append().create_writer() as writer:
        for _ in range(30):
            writer.write_arrow(lines)
            writer.flush()
    info = table.get_table_info()
    read = ParallelRead[int](
        tables.connection,
        info,
        schema.names,
        (),
        [Position(TableBucket(info.table_id, 0), None, 0, 15_000)],
        ScanMetrics(),
        lambda part: part.nbytes,
        ahead_bytes=None,
    )
    with read:
        sizes = [size for size in read if size is not None]
    assert sum(sizes) > 30 * 500 * 3750
    # 8 MB and a batch
    assert max(sizes) < (8 << 20) + 500 * 3760


def rows_of(read: ParallelRead[int]) -> int:
    rows, came = 0, time.monotonic()
    with read as parts:
        for part in parts:
            assert time.monotonic() - came < 10, f"nothing came any more after {rows} rows"
            if part is not None:
                rows, came = rows + part, time.monotonic()
    return rows


@pytest.mark.parametrize(
    ("codec", "columns", "alone"),
    [("NONE", ["id"], True), ("NONE", ["id", "name"], False), ("ZSTD", ["id"], False)],
)
def test_what_lies_ready_is_read_on_the_callers_thread(
    tmp_path: Path, codec: str, columns: list[str], alone: bool
) -> None:
    """In this process; threads would wait for each other's GIL where there is nothing to do."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    properties = {"table.log.arrow.compression.type": codec}
    source = pa.table([np.arange(ROWS), pa.array(["x"] * ROWS)], schema=schema)
    with fluss.connect(tmp_path) as connection:
        fluss.write_fluss(
            pl.DataFrame(source),
            "t",
            connection=connection,
            create_if_not_exists=True,
            properties=properties,
        )
        info = connection.get_table("t").get_table_info()
        position = Position(TableBucket(info.table_id, 0), None, 0, ROWS)
        threads: set[str] = set()

        def count(part: pa.Table) -> int:
            threads.add(threading.current_thread().name)
            rows: int = part.num_rows
            return rows

        read = ParallelRead[int](
            connection, info, columns, (), [position], ScanMetrics(), count, ahead_bytes=None
        )
        assert rows_of(read) == ROWS
    assert (threads == {threading.current_thread().name}) == alone


class _NoRoom(threading.Thread):
    """The system has room for one thread of a read, and no more."""

    started: ClassVar[list[_NoRoom]] = []

    def start(self) -> None:
        if self.started:
            raise RuntimeError("can't start new thread")
        self.started.append(self)
        super().start()


def test_threads_end_where_one_more_cannot_be_started(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables(SCHEMA, bucket_count=2)
    rng = np.random.default_rng(1)
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table([np.arange(ROWS), rng.random(ROWS)], schema=SCHEMA))
    info = table.get_table_info()
    path = table.get_table_path()
    ends = tables.connection.get_admin().list_offsets(path, [0, 1], fluss.OffsetSpec.latest())
    positions = [Position(TableBucket(info.table_id, b), None, 0, ends[b]) for b in (0, 1)]
    read = ParallelRead[int](
        tables.connection, info, SCHEMA.names, (), positions, ScanMetrics(), len, ahead_bytes=None
    )
    monkeypatch.setattr(_NoRoom, "started", [])
    with monkeypatch.context() as few:
        few.setattr(threading, "Thread", _NoRoom)
        with pytest.raises(RuntimeError, match="can't start"):
            read.__enter__()
    (thread,) = _NoRoom.started
    thread.join(10)
    assert not thread.is_alive()


def test_threads_of_bucket_reads_end_where_one_more_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tables_of(bucket: int) -> Generator[pa.Table]:
        while True:
            yield pa.table({"bucket": [bucket]})

    def pause(bucket: int, error: FlussError, backoff: Backoff) -> None:
        raise error

    def interrupted(bucket: int, error: FlussError) -> FlussError:
        return error

    reads = BucketReads(range(4), tables_of, pause, interrupted, retry_ms=0, threads=4)
    monkeypatch.setattr(_NoRoom, "started", [])
    with monkeypatch.context() as few:
        few.setattr(threading, "Thread", _NoRoom)
        with pytest.raises(RuntimeError, match="can't start"):
            next(reads.together())
    (thread,) = _NoRoom.started
    thread.join(10)
    assert not thread.is_alive()
    began = time.monotonic()
    reads.end(10)
    assert time.monotonic() - began < 5
