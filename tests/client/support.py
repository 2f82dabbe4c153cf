"""What the tests of the client share: tables of their own, and the official client beside ours."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import itertools
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import fluss_df as fluss
from tests.peer import official

T = TypeVar("T")


def soon(call: Callable[[], T], seconds: float = 20) -> T:
    """Return what a call returns, or raise what it raises; fail where it takes too long.

    That is for calls which, if they are wrong, wait for a minute and more: how fast a right one is
    on a machine that does other things is not asked.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    concurrent.futures.wait([done], seconds)
    assert done.done(), f"it takes more than {seconds} s"
    return done.result()


class Tables:
    """Makes tables with names of their own in one database."""

    def __init__(self, connection: fluss.FlussConnection, database: str) -> None:
        self.connection = connection
        self.database = database
        self._numbers = itertools.count()

    def path(self) -> fluss.TablePath:
        """Return a path that is not in use."""
        return fluss.TablePath(self.database, f"t{next(self._numbers)}")

    def __call__(
        self, schema: pa.Schema, primary_keys: Sequence[str] | None = None, **options: Any
    ) -> fluss.FlussTable:
        """Create a table; the options are those of a TableDescriptor."""
        options.setdefault("bucket_count", 1)
        descriptor = fluss.TableDescriptor(fluss.Schema(schema, primary_keys), **options)
        path = self.path()
        self.connection.get_admin().create_table(path, descriptor)
        return self.connection.get_table(path)

    def partitions(self, table: fluss.FlussTable) -> dict[str, int]:
        """Return name -> id of the partitions."""
        infos = self.connection.get_admin().list_partition_infos(table.get_table_path())
        return {info.partition_name: info.partition_id for info in infos}

    def subscribe_all(
        self,
        scanner: fluss.LogScanner,
        table: fluss.FlussTable,
        offset: int = fluss.EARLIEST_OFFSET,
    ) -> fluss.LogScanner:
        """Subscribe to every bucket of every partition."""
        info = table.get_table_info()
        buckets = range(info.num_buckets)
        if info.is_partitioned():
            ids = self.partitions(table).values()
            pairs = itertools.product(ids, buckets)
            scanner.subscribe_partition_buckets(dict.fromkeys(pairs, offset))
        else:
            scanner.subscribe_buckets(dict.fromkeys(buckets, offset))
        return scanner

    def scanner(
        self, table: fluss.FlussTable, columns: Sequence[str] | None = None
    ) -> fluss.LogScanner:
        """Return a batch scanner of everything from the beginning."""
        scan = table.new_scan()
        if columns is not None:
            scan = scan.project_by_name(columns)
        return self.subscribe_all(scan.create_record_batch_log_scanner(), table)

    def read(self, table: fluss.FlussTable, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows."""
        return self.scanner(table, columns).to_arrow()

    def write(self, table: fluss.FlussTable, data: Any, **options: Any) -> None:
        """Append Arrow data, and wait until it is acknowledged."""
        with table.new_append().create_writer(**options) as writer:
            writer.write_arrow(data)


class Official:
    """The official client, called without a loop of one's own."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._runner = asyncio.Runner()
        config = official.Config({"bootstrap.servers": bootstrap_servers})
        self.connection = self.run(lambda: official.FlussConnection.create(config))
        self.admin = self.connection.get_admin()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for what the official client does, which it starts only inside a loop."""

        async def bounded() -> T:
            async with asyncio.timeout(15):
                return await work()

        return self._runner.run(bounded())

    def close(self) -> None:
        self.run(lambda: self.connection.close())
        self._runner.close()

    def path(self, table: fluss.FlussTable) -> official.TablePath:
        path = table.get_table_path()
        return official.TablePath(path.database_name, path.table_name)

    def table(self, table: fluss.FlussTable) -> official.FlussTable:
        return self.run(lambda: self.connection.get_table(self.path(table)))

    def write(self, table: fluss.FlussTable, data: pa.Table) -> None:
        """Append Arrow data and wait for it."""

        async def work() -> None:
            opened = await self.connection.get_table(self.path(table))
            writer = opened.new_append().create_writer()
            for batch in data.to_batches():
                writer.write_arrow_batch(batch)
            await writer.flush()

        self.run(work)

    def read(
        self, table: fluss.FlussTable, columns: list[str] | None = None, rows: int | None = None
    ) -> pa.Table:
        """Read a table without partitions."""

        async def work() -> pa.Table:
            opened = await self.connection.get_table(self.path(table))
            scan = opened.new_scan()
            if columns is not None:
                scan = scan.project_by_name(columns)
            scanner = await scan.create_record_batch_log_scanner()
            buckets = opened.get_table_info().num_buckets
            scanner.subscribe_buckets(dict.fromkeys(range(buckets), official.EARLIEST_OFFSET))
            return await scanner.to_arrow()

        return self.run(work)

    def read_partition(self, table: fluss.FlussTable, partition_id: int) -> pa.Table:
        """Read bucket 0 of a partition."""

        async def work() -> pa.Table:
            opened = await self.connection.get_table(self.path(table))
            scanner = await opened.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_partition(partition_id, 0, official.EARLIEST_OFFSET)
            return await scanner.to_arrow()

        return self.run(work)


def close_failed(writer: fluss.AppendWriter, match: str | None = None) -> None:
    """Close a writer that has a failure to report."""
    with pytest.raises(fluss.FlussError, match=match):
        writer.close()


def rows_of(records: fluss.ScanRecords) -> list[dict[str, Any]]:
    """Return the rows of a poll."""
    return [record.row for record in records]


def poll_rows(scanner: fluss.LogScanner, count: int) -> list[dict[str, Any]]:
    """Poll until so many rows came."""
    rows: list[dict[str, Any]] = []
    for _ in range(100):
        rows += rows_of(scanner.poll(300))
        if len(rows) >= count:
            break
    return rows


@contextlib.contextmanager
def server_of(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a TCP server on the loopback, one thread for each connection; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def talk(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client hung up
            handle(peer)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                accepted.append(peer)
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # closing alone does not wake the thread that waits in accept
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for peer in accepted:
            peer.close()


def free_address() -> str:
    """Return an address where nobody listens, and where nobody else will until the tests end."""
    reserved = socket.socket()
    # Bound, but not listening: connections are refused, and no other process is given the port.
    reserved.bind(("127.0.0.1", 0))
    atexit.register(reserved.close)
    return f"127.0.0.1:{reserved.getsockname()[1]}"
