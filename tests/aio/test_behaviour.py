"""The asynchronous façade: it does not block the loop, and loses nothing to cancelled calls."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Generator

import pyarrow as pa
import pytest

import fluss_df as core
import fluss_df.aio as fluss
from fluss_df.aio import col
from tests.client.support import Tables

ROWS = pa.schema([("x", pa.int64()), ("name", pa.string())])


def data(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    names = [None if i % 5 == 0 else f"n{i}" for i in numbers]
    return pa.table({"x": list(numbers), "name": names}, schema=ROWS)


def run(
    address: str, work: Callable[[fluss.FlussConnection], Awaitable[None]], **settings: object
) -> None:
    async def main() -> None:
        config = fluss.Config({"bootstrap.servers": address}).copy(**settings)
        async with asyncio.timeout(60):
            async with await fluss.FlussConnection.create(config) as connection:
                await work(connection)

    asyncio.run(main())


async def batch_scanner(
    connection: fluss.FlussConnection, table: core.FlussTable
) -> fluss.LogScanner:
    opened = await connection.get_table(table.get_table_path())
    scanner = await opened.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    return scanner


def test_the_loop_turns_while_calls_wait(address: str, tables: Tables) -> None:
    table = tables(ROWS)

    async def work(connection: fluss.FlussConnection) -> None:
        scanner = await batch_scanner(connection, table)
        opened = await connection.get_table(table.get_table_path())
        polling = asyncio.create_task(scanner.poll_arrow(60_000))
        for _ in range(10):
            await asyncio.sleep(0.01)
        # a poll that blocks the loop is over now, without a row
        assert not polling.done()
        async with opened.new_append().create_writer() as writer:
            await asyncio.gather(*(writer.append([i, "a"]).wait() for i in range(50)))
        assert (await asyncio.wait_for(polling, 20)).num_rows > 0

    run(address, work)


def test_what_a_cancelled_poll_read_comes_with_the_next(address: str, tables: Tables) -> None:
    table = tables(ROWS)

    async def work(connection: fluss.FlussConnection) -> None:
        scanner = await batch_scanner(connection, table)
        opened = await connection.get_table(table.get_table_path())
        writer = opened.new_append().create_writer()
        seen: list[int] = []
        cancelled = 0
        for step in itertools.count():
            if step < 40:
                writer.write_arrow(data(step * 10, step * 10 + 10))
            try:
                # ends at every moment of a poll: before, while and after rows come
                async with asyncio.timeout(0.002 * (step % 30)):
                    seen += (await scanner.poll_arrow(400))["x"].to_pylist()
            except TimeoutError:
                cancelled += 1
            if step == 40:
                await writer.flush()
            if len(seen) >= 400 or step > 400:
                break
        assert seen == list(range(400))
        assert cancelled > 3

    run(address, work)


def test_a_cancelled_to_arrow_is_returned_by_the_next(address: str, tables: Tables) -> None:
    table = tables(ROWS)
    tables.write(table, data(0, 1000))

    async def work(connection: fluss.FlussConnection) -> None:
        for pause in (0.0, 0.001, 0.01, 0.05):
            scanner = await batch_scanner(connection, table)
            task = asyncio.create_task(scanner.to_arrow())
            await asyncio.sleep(pause)
            task.cancel()
            try:
                rows = (await task)["x"].to_pylist()
            except asyncio.CancelledError:
                rows = (await scanner.to_arrow())["x"].to_pylist()
            assert rows == list(range(1000)), pause

    run(address, work)


def test_async_for(address: str, tables: Tables) -> None:
    table = tables(ROWS)
    tables.write(table, data(0, 700))

    async def work(connection: fluss.FlussConnection) -> None:
        opened = await connection.get_table(table.get_table_path())
        scanner = await opened.new_scan().create_log_scanner()
        scanner.subscribe(0, 10)
        offsets = []
        async for record in scanner:
            assert isinstance(record, fluss.ScanRecord)
            assert record.row["x"] == record.offset
            offsets.append(record.offset)
            if len(offsets) == 690:
                break
        assert offsets == list(range(10, 700))
        await scanner.close()
        batches = await batch_scanner(connection, table)
        rows = 0
        async for batch in batches:
            assert isinstance(batch, fluss.RecordBatch)
            rows += batch.batch.num_rows
            if rows == 700:
                break

    run(address, work)


def test_filters(address: str, tables: Tables) -> None:
    table = tables(ROWS)
    rows = data(0, 100)
    tables.write(table, rows)

    async def work(connection: fluss.FlussConnection) -> None:
        opened = await connection.get_table(table.get_table_path())
        predicate = (col("x") >= 90) & col("name").is_not_null()
        wanted = [i for i in range(90, 100) if i % 5]
        scan = opened.new_scan().filter(predicate).project_by_name(["name"])
        names = [f"n{i}" for i in wanted]

        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        table_read = await scanner.to_arrow()
        assert table_read.column_names == ["name"]
        assert table_read["name"].to_pylist() == names

        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        reader = scanner.to_arrow_batch_reader()
        assert reader.schema.names == ["name"]
        assert (await asyncio.to_thread(reader.read_all))["name"].to_pylist() == names

        scanner = await scan.create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        records = list(await scanner.poll(5000))
        assert [(r.offset, r.row) for r in records] == [
            (i, {"name": name}) for i, name in zip(wanted, names, strict=True)
        ]

        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        batches = await scanner.poll_record_batch(5000)
        assert (batches[0].base_offset, batches[-1].last_offset) == (wanted[0], wanted[-1])

        alike = [col("x").equal(3) | (col("x") == 4), col("x").is_in([3, 4])]
        alike += [col("x").greater_than(2).and_(col("x").less_than(5))]
        for same in alike:
            scanner = await opened.new_scan().filter(same).create_record_batch_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            assert (await scanner.to_arrow())["x"].to_pylist() == [3, 4]
        with pytest.raises(fluss.FlussError, match="'y' does not exist"):
            opened.new_scan().filter(col("y") == 1)
        with pytest.raises(fluss.FlussError, match="col"):
            opened.new_scan().filter(True)  # type: ignore[arg-type]

    run(address, work)


def test_limit(address: str, tables: Tables) -> None:
    table = tables(ROWS)
    tables.write(table, data(0, 100))
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)

    async def work(connection: fluss.FlussConnection) -> None:
        scan = (await connection.get_table(table.get_table_path())).new_scan()
        batch = await scan.limit(3).project([0]).create_bucket_batch_scanner(bucket).next_batch()
        assert batch is not None
        assert batch.batch.to_pydict() == {"x": [97, 98, 99]}
        assert (batch.base_offset, batch.last_offset) == (97, 99)
        everything = scan.limit(1000).create_bucket_batch_scanner(bucket)
        assert (await everything.to_arrow()).equals(data(0, 100))
        assert await everything.next_batch() is None
        with pytest.raises(fluss.FlussError, match="limit"):
            scan.create_bucket_batch_scanner(bucket)
        with pytest.raises(fluss.FlussError, match="no limit"):
            await scan.limit(1).create_log_scanner()
        with pytest.raises(fluss.FlussError, match="no bucket 1"):
            scan.limit(1).create_bucket_batch_scanner(fluss.TableBucket(bucket.table_id, 1))

    run(address, work)


def test_current_rows_and_tables_of_changes(address: str, tables: Tables) -> None:
    table = tables(ROWS, ["x"])
    path = table.get_table_path()

    async def changes(connection: fluss.FlussConnection, kind: str) -> pa.Table:
        opened = await connection.get_table(f"{path}{kind}")
        scanner = await opened.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        return await scanner.to_arrow()

    async def work(connection: fluss.FlussConnection) -> None:
        opened = await connection.get_table(path)
        async with opened.new_upsert().create_writer() as writer:
            writer.write_arrow(data(0, 3))
            await writer.flush()
            writer.upsert({"x": 1, "name": "new"})
            writer.delete([2])
        scan = opened.new_scan()
        scanner = scan.create_snapshot_scanner()
        assert (await scanner.to_arrow()).sort_by("x").to_pylist() == [
            {"x": 0, "name": None},
            {"x": 1, "name": "new"},
        ]
        assert list(scanner.offsets.values()) == [6]
        some = scan.filter(col("x") == 1).project_by_name(["name"]).create_snapshot_scanner()
        batches = [batch async for batch in some]
        assert pa.Table.from_batches(batches, some.schema).to_pydict() == {"name": ["new"]}
        changed = await changes(connection, "$changelog")
        assert changed.column("_change_type").to_pylist() == [
            *["insert"] * 3,
            *("update_before", "update_after", "delete"),
        ]
        logged = await changes(connection, "$binlog")
        assert logged.column("_change_type").to_pylist() == [*["insert"] * 3, "update", "delete"]
        assert logged.column("after").to_pylist()[3] == {"x": 1, "name": "new"}

    run(address, work)


def test_iterating_current_rows_begins_beside_the_loop(address: str, tables: Tables) -> None:
    table = tables(ROWS, ["x"])
    path = table.get_table_path()

    async def work(connection: fluss.FlussConnection) -> None:
        opened = await connection.get_table(path)
        scanner = opened.new_scan().create_snapshot_scanner()
        begin = scanner.core.batches
        threads = []

        def batches() -> Generator[pa.RecordBatch, None, None]:
            # asks servers, which may be silent
            threads.append(threading.current_thread())
            return begin()

        scanner.core.batches = batches  # type: ignore[method-assign]
        assert [batch async for batch in scanner] == []
        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()

    run(address, work)


def test_wrong_subscriptions(address: str, tables: Tables) -> None:
    table = tables(ROWS)

    async def work(connection: fluss.FlussConnection) -> None:
        scanner = await batch_scanner(connection, table)
        with pytest.raises(fluss.FlussError, match="no bucket 7"):
            scanner.subscribe(7, 0)
        with pytest.raises(fluss.FlussError, match="no partitions"):
            scanner.subscribe_partition(1, 0, 0)
        with pytest.raises(fluss.FlussError, match="record scanner"):
            await scanner.poll(10)
        # only the cluster knows how far the log goes
        scanner.subscribe(0, 10)
        with pytest.raises(fluss.FlussError, match="out of range"):
            await scanner.to_arrow()

    run(address, work)


async def test_close_reports_what_was_not_written(address: str, tables: Tables) -> None:
    table = tables(ROWS, partition_keys=["name"])

    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address}))
    opened = await connection.get_table(table.get_table_path())
    with pytest.raises(fluss.FlussError, match="nowhere") as raised:
        async with opened.new_append().create_writer() as writer:
            handle = writer.append([1, "nowhere"])
    assert raised.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
    with pytest.raises(fluss.FlussError, match="nowhere"):
        await handle.wait()
    opened.new_append().create_writer().append([1, "nowhere"])
    with pytest.raises(fluss.FlussError, match="nowhere"):
        await connection.close()
    await connection.close()


async def test_sync_with_and_closed_connection(address: str) -> None:
    with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as c:
        admin = c.get_admin()
        assert type(await admin.database_exists("fluss")) is bool
    with pytest.raises(fluss.FlussError, match="closed"):
        await admin.list_databases()
