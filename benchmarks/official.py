"""The official client, driven through an event loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import fluss
import pyarrow as pa

from benchmarks.data import BUCKETS, DATABASE


class Official:
    """The official client, connected."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self.run(self._connect(bootstrap_servers))

    async def _connect(self, bootstrap_servers: str) -> Any:
        config = fluss.Config({"bootstrap.servers": bootstrap_servers})
        return await fluss.FlussConnection.create(config)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        async def work() -> None:
            await self._connection.close()

        self.run(work())
        self._loop.close()

    async def _table(self, name: str) -> Any:
        return await self._connection.get_table(fluss.TablePath(DATABASE, name))

    def scan(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        async def work() -> pa.Table:
            scan = (await self._table(name)).new_scan()
            if columns is not None:
                scan = scan.project_by_name(list(columns))
            scanner = await scan.create_record_batch_log_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            return await scanner.to_arrow()

        return self.run(work())

    def append_arrow(self, name: str, data: pa.Table) -> float:
        async def work() -> float:
            writer = (await self._table(name)).new_append().create_writer()
            began = time.perf_counter()
            writer.write_arrow(data)
            await writer.flush()
            return time.perf_counter() - began

        seconds: float = self.run(work())
        return seconds

    def append_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> float:
        async def work() -> float:
            writer = (await self._table(name)).new_append().create_writer()
            began = time.perf_counter()
            for row in rows:
                writer.append(row)
            await writer.flush()
            return time.perf_counter() - began

        seconds: float = self.run(work())
        return seconds

    def append_awaited(self, name: str, rows: Sequence[dict[str, Any]]) -> float:
        async def work() -> float:
            writer = (await self._table(name)).new_append().create_writer()
            await writer.append(rows[0]).wait()
            began = time.perf_counter()
            for row in rows:
                await writer.append(row).wait()
            return time.perf_counter() - began

        seconds: float = self.run(work())
        return seconds
