"""What cancelled calls had read: rows of subscriptions as they are, each once, in their order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as core
import fluss_df.aio as fluss
from fluss_df.embedded import EmbeddedFluss

ROWS = pa.schema([("x", pa.int64()), ("p", pa.string())])


@pytest.fixture(scope="module")
def connection() -> Iterator[core.FlussConnection]:
    with EmbeddedFluss() as engine, engine.connection() as connection:
        yield connection


@pytest.fixture(scope="module")
def table(connection: core.FlussConnection) -> core.FlussTable:
    """A table of two buckets with 100 rows, in several log batches."""
    path = core.TablePath("fluss", "t")
    descriptor = core.TableDescriptor(core.Schema(ROWS), bucket_count=2, bucket_keys=["x"])
    connection.get_admin().create_table(path, descriptor, False)
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
        for start in range(0, 100, 20):
            writer.write_arrow(_rows(start, 20, "a"))
            writer.flush()
    return table


def _rows(start: int, count: int, name: str) -> pa.Table:
    return pa.table({"x": pa.array(range(start, start + count)), "p": [name] * count})


def bucket_rows(table: core.FlussTable, bucket: int) -> list[int]:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(bucket, 0)
    return values(scanner.to_arrow())


def values(table: pa.Table) -> list[int]:
    found: list[int] = table["x"].to_pylist()
    return found


async def cancelled(call: Coroutine[Any, Any, object]) -> None:
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(
    scan: core.TableScan, work: Callable[[fluss.LogScanner], Awaitable[None]], *buckets: int
) -> None:
    async def main() -> None:
        scanner = fluss.LogScanner(scan.create_record_batch_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(buckets or (0, 1), 0))
        async with asyncio.timeout(20):
            await work(scanner)
        await scanner.close()

    asyncio.run(main())


def test_a_new_subscription_has_no_rows_of_a_cancelled_read(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        await cancelled(scanner.to_arrow())
        scanner.subscribe_buckets({0: 0, 1: 0})
        assert sorted(values(await scanner.to_arrow())) == list(range(100))

    run(table.new_scan(), work)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_bucket_without_a_subscription_has_no_rows_of_a_cancelled_read(
    table: core.FlussTable, filtered: bool
) -> None:
    scan = table.new_scan()
    expected = bucket_rows(table, 1)
    if filtered:
        scan = scan.filter(core.col("x") >= 50)
        expected = [x for x in expected if x >= 50]

    async def work(scanner: fluss.LogScanner) -> None:
        await cancelled(scanner.to_arrow())
        scanner.unsubscribe(0)
        assert values(await scanner.to_arrow()) == expected
        await cancelled(scanner.to_arrow())
        scanner.unsubscribe(1)
        assert values(await scanner.to_arrow()) == []

    run(scan, work)


def test_a_read_that_is_cancelled_behind_a_new_subscription_keeps_no_rows(
    table: core.FlussTable,
) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        read = asyncio.create_task(scanner.to_arrow())
        await asyncio.sleep(0)
        scanner.unsubscribe(0)
        # the scanner's thread has done both
        scanner._thread.submit(lambda: None).result(20)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        assert values(await scanner.to_arrow()) == bucket_rows(table, 1)

    run(table.new_scan(), work)


def test_partitions_are_parted(connection: core.FlussConnection) -> None:
    path = core.TablePath("fluss", "parted")
    schema = core.Schema(ROWS)
    descriptor = core.TableDescriptor(schema, partition_keys=["p"], bucket_count=1)
    connection.get_admin().create_table(path, descriptor, False)
    table = connection.get_table(path)
    for name in ("a", "b", "c"):
        connection.get_admin().create_partition(path, {"p": name}, False)
    with table.new_append().create_writer() as writer:
        for start, name in ((0, "a"), (10, "b"), (20, "c")):
            writer.write_arrow(_rows(start, 10, name))
    ids = {
        info.partition_name: info.partition_id
        for info in connection.get_admin().list_partition_infos(path)
    }

    async def main() -> None:
        made = table.new_scan().create_record_batch_log_scanner()
        scanner = fluss.LogScanner(made)
        # rows before the start are received, and are not of the result
        starts = {(number, 0): 3 if name == "a" else 0 for name, number in ids.items()}
        scanner.subscribe_partition_buckets(starts)
        await cancelled(scanner.to_arrow())
        scanner.unsubscribe_partition(ids["b"], 0)
        assert values(await scanner.to_arrow()) == [*range(3, 10), *range(20, 30)]
        await scanner.close()

    asyncio.run(main())


def test_a_reader_that_is_dropped_leaves_kept_rows(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        await cancelled(scanner.to_arrow())
        reader = scanner.to_arrow_batch_reader()
        del reader
        assert sorted(values(await scanner.to_arrow())) == list(range(100))

    run(table.new_scan(), work)


def test_a_reader_that_is_closed_leaves_what_it_did_not_yield(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        await cancelled(scanner.to_arrow())
        reader = scanner.to_arrow_batch_reader()
        first = (await asyncio.to_thread(reader.read_next_batch))["x"].to_pylist()
        reader.close()
        del reader
        rest = values(await scanner.to_arrow())
        assert 0 < len(first) < 100
        assert first + rest == [x for bucket in (0, 1) for x in bucket_rows(table, bucket)]

    run(table.new_scan(), work)


def test_a_reader_that_is_closed_leaves_polled_rows(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        await cancelled(scanner.poll_arrow(1000))
        reader = scanner.to_arrow_batch_reader()
        reader.close()
        del reader
        seen: list[int] = []
        while more := values(await scanner.poll_arrow(500)):
            seen += more
        assert sorted(seen) == list(range(100))

    run(table.new_scan(), work)


def test_polls_that_are_cancelled_again_keep_their_order(table: core.FlussTable) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        first = bucket_rows(table, 0)
        await cancelled(scanner.poll_arrow(1000))
        scanner._thread.submit(lambda: None).result(20)
        # a second kept read, so that an order can be wrong
        await cancelled(scanner.to_arrow())
        await cancelled(scanner.poll_arrow(1000))
        assert values(await scanner.to_arrow()) == first

    run(table.new_scan(), work, 0)


def test_rows_of_a_frame_that_was_not_made_are_parted(
    table: core.FlussTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scanner: fluss.LogScanner) -> None:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "pandas", None)
            with pytest.raises(ImportError):
                await scanner.to_pandas()
        scanner.unsubscribe(0)
        assert values(await scanner.to_arrow()) == bucket_rows(table, 1)

    run(table.new_scan(), work)
