"""Scanners whose calls ended before all was returned: the next call goes on with the first row."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as core
import fluss_df.aio as fluss
import fluss_df.aio.bridge as bridge
import fluss_df.aio.scanner as aio_scanner
import fluss_df.client.fetch.parallel as parallel
import fluss_df.client.scan.batch_scanner as batch_scanner
from fluss_df.client.send.bucket_queue import Hold
from fluss_df.embedded import EmbeddedFluss

ROWS = pa.schema([("x", pa.int64())])


@pytest.fixture(scope="module")
def table() -> Iterator[core.FlussTable]:
    """A table of two buckets with 50 rows each, 10 in a log batch."""
    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = core.TablePath("fluss", "t")
        descriptor = core.TableDescriptor(core.Schema(ROWS), bucket_count=2, bucket_keys=["x"])
        connection.get_admin().create_table(path, descriptor, False)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            for start in range(0, 100, 20):
                writer.write_arrow(pa.table({"x": pa.array(range(start, start + 20))}))
                writer.flush()
        yield table


EMPTY = core.TablePath("fluss", "empty")


@pytest.fixture
def empty() -> Iterator[core.FlussConnection]:
    """A connection, and a table of one bucket."""
    with EmbeddedFluss() as engine, engine.connection() as connection:
        descriptor = core.TableDescriptor(core.Schema(ROWS), bucket_count=1)
        connection.get_admin().create_table(EMPTY, descriptor, False)
        yield connection


def run(
    table: core.FlussTable, records: bool, work: Callable[[fluss.LogScanner], Awaitable[None]]
) -> None:
    scan = table.new_scan()
    made = scan.create_log_scanner() if records else scan.create_record_batch_log_scanner()

    async def main() -> None:
        scanner = fluss.LogScanner(made)
        scanner.subscribe_buckets({0: 0, 1: 0})
        async with asyncio.timeout(20):
            await work(scanner)
        await scanner.close()

    asyncio.run(main())


def test_records_behind_a_break_come_with_the_next_call(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        seen: list[int] = []
        # iterations that end within a batch, at its end, and in the next one
        for stop in (1, 14, 20, 33):
            async for record in scanner:
                assert isinstance(record, fluss.ScanRecord)
                seen.append(record.row["x"])
                if len(seen) == stop:
                    break
        while len(seen) < 100:
            seen += [record.row["x"] for record in await scanner.poll(1000)]
        assert sorted(seen) == list(range(100))

    run(table, True, work)


async def cancel_at_once(call: Coroutine[Any, Any, object]) -> None:
    """Begin a call, and cancel it."""
    begun = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


async def first_batch(scanner: fluss.LogScanner) -> list[int]:
    async for batch in scanner:
        assert isinstance(batch, fluss.RecordBatch)
        rows: list[int] = batch.batch["x"].to_pylist()
        return rows
    raise AssertionError("an iteration does not end")


def test_batches_behind_a_break_come_with_the_next_call(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        first = await first_batch(scanner)
        rest = (await scanner.to_arrow())["x"].to_pylist()
        assert len(first) > 0
        assert sorted(first + rest) == list(range(100))

    run(table, False, work)


def test_a_call_within_an_iteration_takes_its_rows(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        seen: list[int] = []
        async for record in scanner:
            assert isinstance(record, fluss.ScanRecord)
            seen.append(record.row["x"])
            if len(seen) < 50:
                seen += [record.row["x"] for record in await scanner.poll(1000)]
            if len(seen) >= 100:
                break
        assert sorted(seen) == list(range(100))

    run(table, True, work)


def test_a_reader_has_the_batches_behind_a_break(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        first = await first_batch(scanner)
        reader = scanner.to_arrow_batch_reader()
        rest = (await asyncio.to_thread(reader.read_all))["x"].to_pylist()
        assert sorted(first + rest) == list(range(100))

    run(table, False, work)


@pytest.mark.parametrize("records", [True, False])
def test_a_bucket_that_is_subscribed_again_begins_there(
    table: core.FlussTable, records: bool
) -> None:
    async def read(scanner: fluss.LogScanner) -> list[int]:
        if not records:
            return [
                x for b in await scanner.poll_record_batch(1000) for x in b.batch["x"].to_pylist()
            ]
        return [record.row["x"] for record in await scanner.poll(1000)]

    async def work(scanner: fluss.LogScanner) -> None:
        async for _ in scanner:
            break
        scanner.unsubscribe(1)
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        seen: list[int] = []
        while more := await read(scanner):
            seen += more
        only = table.new_scan().create_record_batch_log_scanner()
        only.subscribe(0, fluss.EARLIEST_OFFSET)
        assert sorted(seen) == sorted(only.to_arrow()["x"].to_pylist())

    run(table, records, work)


def test_rows_that_were_not_made_a_frame_come_again(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        with monkeypatch.context() as patched:
            # as where pandas is not installed
            patched.setitem(sys.modules, "pandas", None)
            with pytest.raises(ImportError):
                await scanner.to_pandas()
        rows = (await scanner.to_arrow())["x"].to_pylist()
        assert sorted(rows) == list(range(100))

    run(table, False, work)


def test_a_subscription_that_failed_does_not_keep_sockets_open(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        # the table has no such partition
        scanner._soon([], scanner.core._subscribe, {(7, 0): 0})
        await scanner.close()
        with pytest.raises(fluss.FlussError):
            await scanner.poll(10)
        with pytest.raises(fluss.FlussError, match="closed"):
            await scanner.poll(10)

    run(table, True, work)


@pytest.mark.parametrize(
    "cancelled", ["next_batch", "collect_all_batches", "to_arrow", "to_pandas"]
)
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_of_rows_in_several_batches_none_comes_twice(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch, before: int, cancelled: str
) -> None:
    """As where a column is larger than 2 GiB: a cancelled call is made up for, and no other."""

    def in_threes(rows: pa.Table) -> list[pa.RecordBatch]:
        size = -(-rows.num_rows // 3)
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches(max_chunksize=size)
        return batches

    monkeypatch.setattr(batch_scanner, "_as_few_batches", in_threes)
    bucket = core.TableBucket(table.get_table_info().table_id, 0)
    made = table.new_scan().limit(1000).create_bucket_batch_scanner(bucket)
    wanted = table.new_scan().limit(1000).create_bucket_batch_scanner(bucket).to_arrow()
    scanner = fluss.BatchScanner(made)
    seen = []
    for _ in range(before):
        batch = await scanner.next_batch()
        assert batch is not None
        seen.append(batch)
    for _ in range(2):
        await cancel_at_once(getattr(scanner, cancelled)())
    while (batch := await scanner.next_batch()) is not None:
        seen.append(batch)
    assert [batch.batch["x"].to_pylist() for batch in seen] == [
        batch["x"].to_pylist() for batch in in_threes(wanted)
    ]
    offsets = [batch.base_offset for batch in seen]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("first", ["next_batch", "to_arrow", "collect_all_batches"])
async def test_the_last_rows_of_a_bucket_are_read_again_after_a_cancelled_call(
    table: core.FlussTable, first: str
) -> None:
    bucket = core.TableBucket(table.get_table_info().table_id, 0)
    scanner = fluss.BatchScanner(table.new_scan().limit(7).create_bucket_batch_scanner(bucket))

    for _ in range(3):
        await cancel_at_once(getattr(scanner, first)())
    batch = await scanner.next_batch()
    assert batch is not None
    assert batch.batch.num_rows == 7
    # a call behind the last row has none to lose
    await cancel_at_once(getattr(scanner, first)())
    assert await scanner.next_batch() is None


def test_the_last_rows_of_a_bucket_are_read_again_after_an_error(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = core.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(7).create_bucket_batch_scanner(bucket)

    def fail(*_: object) -> None:
        raise core.FlussError("no server answers")

    with monkeypatch.context() as patch:
        patch.setattr(type(scanner), "_offset", fail)
        with pytest.raises(core.FlussError, match="no server answers"):
            scanner.next_batch()
    assert scanner.to_arrow().num_rows == 7


@pytest.fixture(scope="module")
def keyed() -> Iterator[core.FlussTable]:
    """A primary-key table of four buckets with 100 rows."""
    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = core.TablePath("fluss", "k")
        schema = core.Schema(pa.schema([pa.field("x", pa.int64(), nullable=False)]), ["x"])
        connection.get_admin().create_table(path, core.TableDescriptor(schema, bucket_count=4))
        table = connection.get_table(path)
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"x": pa.array(range(100))}))
        yield table


def test_a_cancelled_read_of_current_rows_ends(keyed: core.FlussTable) -> None:
    made = keyed.new_scan().create_snapshot_scanner()
    scanner = fluss.SnapshotScanner(made)
    reading, cancelled = threading.Event(), threading.Event()
    decoded = 0
    count = made._count

    def counting(rows: int, size: int = 0) -> None:
        nonlocal decoded
        decoded += 1
        reading.set()
        assert cancelled.wait(20)
        count(rows, size)
        # nothing of what comes behind a cancelled call is kept
        raise AssertionError("the read went on")

    async def main() -> None:
        made._count = counting  # type: ignore[method-assign]
        call = asyncio.ensure_future(scanner.to_arrow())
        assert await asyncio.to_thread(reading.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled.set()
        made._count = count  # type: ignore[method-assign]
        assert sorted((await scanner.to_arrow())["x"].to_pylist()) == list(range(100))
        assert sum(scanner.offsets.values()) == 100
        with pytest.raises(fluss.FlussError, match="reads once"):
            await scanner.to_arrow()

    asyncio.run(main())
    assert decoded


def test_an_iteration_over_current_rows_that_is_left_ends_beside_the_loop(
    keyed: core.FlussTable,
) -> None:
    """Servers are told, which takes as long as they like."""
    made = keyed.new_scan().create_snapshot_scanner()
    begin, closed = made.batches, threading.Event()
    closers = []

    def batches() -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from begin()
        finally:
            closers.append(threading.current_thread())
            closed.set()

    made.batches = batches  # type: ignore[method-assign]

    async def main() -> None:
        scanner = fluss.SnapshotScanner(made)
        async for _ in scanner:
            break
        assert await asyncio.to_thread(closed.wait, 20)

    asyncio.run(main())
    assert closers != [threading.main_thread()]


async def test_errors_of_rows_are_told_whenever_flushes_are_cancelled(
    empty: core.FlussConnection,
) -> None:
    """Each is told by one flush, and by none that was cancelled."""
    writer = fluss.AppendWriter(empty.get_table(EMPTY).new_append().create_writer())
    empty.get_admin().drop_table(EMPTY)
    told = []

    async def flush() -> None:
        try:
            await writer.flush()
        except core.FlussError as error:
            told.append(int(re.findall(r"(\d+) rows", error.message)[0]))

    for turns in range(60):
        writer.append([turns])
        call = asyncio.ensure_future(flush())
        for _ in range(turns % 20):
            await asyncio.sleep(0 if turns % 2 else 0.0005)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    with contextlib.suppress(core.FlussError):
        await flush()
    assert sum(told) == 60
    await writer.close()


async def test_flushes_that_were_cancelled_are_not_kept(empty: core.FlussConnection) -> None:
    writer = fluss.AppendWriter(empty.get_table(EMPTY).new_append().create_writer())
    await writer.append([1]).wait()
    sender = writer.core._accumulator.sender
    assert sender is not None
    (queue,) = sender._queues.values()
    io = writer.core._connection.io

    def hold() -> None:
        queue.hold(Hold.LEADER)

    def release() -> None:
        queue.release(Hold.LEADER)
        sender.wake()

    # as if no server answered
    io.call(hold)
    writer.append([2])
    with pytest.raises(TimeoutError):
        await writer.flush(50)
    for _ in range(200):
        call = asyncio.ensure_future(writer.flush())
        await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    with pytest.raises(TimeoutError):
        await writer.flush(50)
    assert sum(len(each.waiting) for each in sender._open._rounds) <= 1
    # none of them takes a thread
    assert not bridge._threads.busy
    io.call(release)
    await writer.flush()
    await writer.close()
    assert writer.unflushed_rows == 0


@pytest.mark.parametrize("closes", [True, False])
def test_a_read_that_was_cancelled_ends_with_its_scanner(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    made = table.new_scan().create_record_batch_log_scanner()
    ended = threading.Event()

    def pieces(self: parallel.ParallelRead[pa.Table]) -> Iterator[None]:
        # of a log that has no end
        try:
            while True:
                yield None
        finally:
            ended.set()

    monkeypatch.setattr(parallel.ParallelRead, "__iter__", pieces)

    async def main() -> None:
        scanner = fluss.LogScanner(made)
        scanner.subscribe(0, 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scanner.to_arrow(), 0.2)
        assert not ended.is_set()
        if closes:
            await asyncio.wait_for(scanner.close(), 20)
        else:
            aio_scanner._give_up_all()

    asyncio.run(main())
    assert ended.wait(20)


def test_a_read_that_is_awaited_goes_on_to_its_end_before_a_close(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = table.new_scan().create_record_batch_log_scanner()
    begun, may = threading.Event(), threading.Event()
    real = parallel.ParallelRead.__iter__

    def late(self: parallel.ParallelRead[pa.Table]) -> Iterator[pa.Table | None]:
        begun.set()
        assert may.wait(20)
        yield from real(self)

    monkeypatch.setattr(parallel.ParallelRead, "__iter__", late)

    async def main() -> int:
        scanner = fluss.LogScanner(made)
        scanner.subscribe(0, 0)
        read = asyncio.ensure_future(scanner.to_arrow())
        assert await asyncio.to_thread(begun.wait, 20)
        close = asyncio.ensure_future(scanner.close())
        # it has told the read what it has to tell it
        await asyncio.sleep(0)
        may.set()
        await close
        return len(await read)

    assert asyncio.run(main()) > 0


def test_a_snapshot_is_read_again_after_an_iteration_that_did_not_begin() -> None:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        path = core.TablePath("fluss", "k")
        schema = core.Schema(ROWS, primary_keys=["x"])
        connection.get_admin().create_table(path, core.TableDescriptor(schema), False)
        keys = connection.get_table(path)
        with keys.new_upsert().create_writer() as writer:
            writer.write_arrow(pa.table({"x": pa.array(range(10))}))
        made = keys.new_scan().create_snapshot_scanner()
        begin, may = made.batches, threading.Event()

        def late() -> Generator[pa.RecordBatch, None, None]:
            may.wait(20)
            return begin()

        async def main() -> None:
            scanner = fluss.SnapshotScanner(made)
            made.batches = late  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(scanner)), 0.2)
            may.set()
            assert (await scanner.to_arrow()).num_rows == 10

        asyncio.run(main())
