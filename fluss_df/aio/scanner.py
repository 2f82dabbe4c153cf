"""Scanners: what they read is awaited, and nothing that was read is lost to a cancelled call."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

import fluss_df.client.scan.batch_scanner as core_batch
import fluss_df.client.scan.log_scanner as core_scanner
import fluss_df.client.scan.snapshot_scanner as core_snapshot
from fluss_df.aio.bridge import Facade, in_thread, on_thread, watched
from fluss_df.client.scan.records import (
    RecordBatch,
    ScanRecord,
    ScanRecords,
    record_batches,
)
from fluss_df.metadata import TableBucket

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.scan.fetch_buffer import Taken

T = TypeVar("T")

# how long one step of ``async for`` waits before it asks again
_ITERATION_MS = 1000


class LogScanner(Facade[core_scanner.LogScanner]):
    """Reads subscribed buckets: what there is (``to_arrow``), or what comes (``poll``).

    Everything that waits runs on a thread of the scanner's own, in the order of the calls. Where
    a call is cancelled, by :func:`asyncio.timeout` or otherwise, what it had read is returned by
    the next one.

    Subscribing does not wait: what only the cluster knows to be wrong (a partition that is gone)
    is raised by the next call that reads.

    Examples
    --------
    >>> async def follow(scanner: LogScanner) -> None:
    ...     async for record in scanner:
    ...         print(record.offset, record.row)
    """

    def __init__(self, core: core_scanner.LogScanner) -> None:
        super().__init__(core)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fluss-df-aio-scan")
        self._problems: deque[BaseException] = deque()
        # what calls had read when they were cancelled
        self._kept: deque[Taken] = deque()
        self._kept_tables: deque[pa.Table] = deque()

    # ---- subscriptions

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a table without partitions."""
        self.subscribe_buckets({bucket_id: start_offset})

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Subscribe to buckets of a table without partitions, ``{bucket: offset}``."""
        self._core.check_buckets(bucket_offsets)
        self._soon(self._core.subscribe_buckets, dict(bucket_offsets))

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a partition."""
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset})

    def subscribe_partition_buckets(
        self, partition_bucket_offsets: Mapping[tuple[int, int], int]
    ) -> None:
        """Subscribe to buckets of partitions, ``{(partition id, bucket): offset}``."""
        self._core.check_partition_buckets(partition_bucket_offsets)
        self._soon(self._core.subscribe_partition_buckets, dict(partition_bucket_offsets))

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._soon(self._core.unsubscribe, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        self._soon(self._core.unsubscribe_partition, partition_id, bucket_id)

    def _soon(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the scanner's thread, after what was asked for before."""

        def work() -> None:
            try:
                function(*args)
            except BaseException as error:
                self._problems.append(error)

        self._thread.submit(work)

    # ---- reading

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """Return records, at most ``scanner.log.max-poll-records``.

        Waits up to ``timeout_ms`` for the first; none is an empty result.
        """
        return ScanRecords(await self._poll(timeout_ms, records=True))

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """Return log batches with their bucket and offsets; waits up to ``timeout_ms``."""
        return record_batches(await self._poll(timeout_ms, records=False))

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Return what came as one table; empty, with the schema, when nothing did."""
        return self._core.as_table(await self._poll(timeout_ms, records=False))

    async def _poll(self, timeout_ms: float, *, records: bool) -> Taken:
        given_up = threading.Event()

        def work() -> Taken:
            if self._kept:
                return self._kept.popleft()
            return self._core.take(timeout_ms, records=records, given_up=given_up)

        def keep(taken: Taken) -> None:
            if taken:
                self._kept.append(taken)

        return await self._run(work, keep, given_up)

    async def to_arrow(self) -> pa.Table:
        """Return all rows of the subscribed buckets up to their latest offset.

        The scanner goes on from there. Rows are ordered by partition, bucket and offset.
        """

        def work() -> pa.Table:
            table = self._core.to_arrow()
            kept = [self._kept_tables.popleft() for _ in range(len(self._kept_tables))]
            return pa.concat_tables([*kept, table]) if kept else table

        return await self._run(work, self._kept_tables.append)

    async def to_pandas(self) -> pd.DataFrame:
        """Return all rows up to the latest offset as a pandas DataFrame."""
        table = await self.to_arrow()
        frame: pd.DataFrame = await self._run(table.to_pandas, lambda _: None)
        return frame

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a lazy reader of all rows up to the latest offset, in bounded memory.

        Reading from it waits in the thread that reads: give it to another thread, or to a library
        that reads it there. What it reads ends where the log ended at this call.
        """
        made = self._thread.submit(self._checked, self._core.to_arrow_batch_reader)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from made.result()

        return pa.RecordBatchReader.from_batches(self._core.schema, batches())

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        while True:
            if self._core.yields_records:
                for record in await self.poll(_ITERATION_MS):
                    yield record
            else:
                for batch in await self.poll_record_batch(_ITERATION_MS):
                    yield batch

    async def close(self) -> None:
        """Give up the sockets; a second call does nothing."""
        await self._run(self._core.close, lambda _: None)

    def _checked(self, work: Callable[[], T]) -> T:
        if self._problems:
            raise self._problems.popleft()
        return work()

    async def _run(
        self,
        work: Callable[[], T],
        keep: Callable[[T], None],
        given_up: threading.Event | None = None,
    ) -> T:
        """Run a call on the scanner's thread; keep its result where nobody waits any more."""
        future = self._thread.submit(self._checked, work)
        try:
            return await watched(future)
        except asyncio.CancelledError:
            if given_up is not None:
                given_up.set()
            future.add_done_callback(partial(_keep_result, keep))
            raise


def _keep_result(keep: Callable[[Any], None], future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        keep(future.result())


class BatchScanner(Facade[core_batch.BatchScanner]):
    """Reads the last rows of one bucket, once."""

    next_batch = on_thread(core_batch.BatchScanner.next_batch)
    collect_all_batches = on_thread(core_batch.BatchScanner.collect_all_batches)
    to_arrow = on_thread(core_batch.BatchScanner.to_arrow)
    to_pandas = on_thread(core_batch.BatchScanner.to_pandas)

    @property
    def bucket(self) -> TableBucket:
        """The bucket."""
        return self._core.bucket


class SnapshotScanner(Facade[core_snapshot.SnapshotScanner]):
    """Reads the current rows of a primary-key table, once; ``async for`` gives batches of them."""

    to_arrow = on_thread(core_snapshot.SnapshotScanner.to_arrow)
    to_pandas = on_thread(core_snapshot.SnapshotScanner.to_pandas)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return self._core.schema

    @property
    def offsets(self) -> dict[TableBucket, int]:
        """The offset of each bucket's changelog at which its rows were read, once all are."""
        return self._core.offsets

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        batches = self._core.batches()
        while (batch := await in_thread(next, batches, None)) is not None:
            yield batch
