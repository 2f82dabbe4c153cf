"""Scanners whose reads are awaited; a cancelled call loses no row."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

import fluss_df.client.scan.batch_scanner as core_batch
import fluss_df.client.scan.change_scanner as core_changes
import fluss_df.client.scan.log_scanner as core_scanner
import fluss_df.client.scan.snapshot_scanner as core_snapshot
from fluss_df.aio.bridge import Facade, like, submit, watched
from fluss_df.aio.kept import Kept, Polled, Whole
from fluss_df.aio.threads import Threads
from fluss_df.client.fetch.row_filter import part_of
from fluss_df.client.runtime.io_thread import reset_after_fork
from fluss_df.client.scan.records import RecordBatch, ScanRecord, ScanRecords, record_batches
from fluss_df.hooks import EndStep, at_end, undoing
from fluss_df.metadata import TableBucket

if TYPE_CHECKING:
    import pandas as pd

C = TypeVar("C")
T = TypeVar("T")

# how long one poll of an ``async for`` waits for rows
_ITERATION_MS = 1000


class LogScanner(Facade[core_scanner.LogScanner]):
    """Reads subscribed buckets: all rows so far (``to_arrow``), or rows as they come (``poll``).

    Each scanner has one thread, on which its calls run in the order in which they were made. No row
    is lost when a call is cancelled, by :func:`asyncio.timeout` or otherwise: rows of a poll are
    returned by the next call that reads, and those of ``to_arrow`` by the next ``to_arrow``. When
    an ``async for`` is left early, the next call begins with the first row that it did not yield.

    Subscribing returns at once. An error that only the cluster can know, such as a partition that
    was dropped, is raised by the next call that reads.

    Examples
    --------
    >>> async def follow(scanner: LogScanner) -> None:
    ...     async for record in scanner:
    ...         print(record.offset, record.row)
    """

    def __init__(self, core: core_scanner.LogScanner) -> None:
        super().__init__(core)
        self._thread = Threads(1, "fluss-df-aio-scan")
        # errors of subscriptions, raised by the next call that reads
        self._problems: deque[BaseException] = deque()
        # the number of calls whose rows somebody waits for
        self._awaited = 0
        # what calls read that were cancelled before they returned it
        self._kept = Kept()
        # how many times subscriptions have changed
        self._changes = 0
        # the poll whose records or batches an ``async for`` yields, and how many it has yielded
        self._iterated: Polled | None = None
        self._yielded = 0
        _scanners.add(self)
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Go on in a forked child: nobody there waits for the calls of the parent."""
        self._awaited = 0
        self._problems.clear()
        self._kept.after_fork()

    # ---- subscriptions

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a table without partitions."""
        self.subscribe_buckets({bucket_id: start_offset})

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Subscribe to buckets of a table without partitions, ``{bucket: offset}``."""
        self._core.check_buckets(bucket_offsets)
        which = [(None, bucket) for bucket in bucket_offsets]
        self._soon(which, self._core.subscribe_buckets, dict(bucket_offsets))

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a partition."""
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset})

    def subscribe_partition_buckets(
        self, partition_bucket_offsets: Mapping[tuple[int, int], int]
    ) -> None:
        """Subscribe to buckets of partitions, ``{(partition id, bucket): offset}``."""
        self._core.check_partition_buckets(partition_bucket_offsets)
        starts = dict(partition_bucket_offsets)
        self._soon(starts, self._core.subscribe_partition_buckets, starts)

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._soon([(None, bucket_id)], self._core.unsubscribe, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        which = [(partition_id, bucket_id)]
        self._soon(which, self._core.unsubscribe_partition, partition_id, bucket_id)

    def _soon(
        self, buckets: Iterable[tuple[int | None, int]], function: Callable[..., None], *args: Any
    ) -> None:
        """Have the scanner's thread subscribe, after the calls that were made before.

        What was kept of these buckets is forgotten, as is what the scanner itself holds of them.
        """
        self._keep_unyielded()
        self._changes += 1
        gone, change = {*buckets}, self._changes

        def work() -> None:
            try:
                function(*args)
            except BaseException as error:
                self._problems.append(error)
                return
            self._kept.forget(gone, change)

        self._thread.submit(work)

    # ---- reading

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """Return records, at most ``scanner.log.max-poll-records``.

        One more where the last two are those of an update. Waits up to ``timeout_ms`` for the
        first; the result is empty when none came.
        """
        return ScanRecords((await self._poll(timeout_ms, records=True)).parts)

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """Return log batches with their bucket and offsets; waits up to ``timeout_ms``."""
        return record_batches((await self._poll(timeout_ms, records=False)).parts)

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Return the rows that came as one table, which is empty when none came."""
        return self._table_of(await self._poll(timeout_ms, records=False))

    async def _poll(self, timeout_ms: float, *, records: bool) -> Polled:
        given_up = threading.Event()
        self._keep_unyielded()
        change = self._changes

        def work() -> Polled:
            kept = self._kept.take_polled()
            if kept is not None:
                return kept
            taken = self._core.take(timeout_ms, records=records, given_up=given_up)
            return Polled(self._kept.next_order(), change, taken)

        return await self._run(work, lambda polled: [polled], given_up)

    async def to_arrow(self) -> pa.Table:
        """Return all rows of the subscribed buckets up to their latest offset.

        The scanner goes on from there. Rows are ordered by partition, bucket and offset; those of
        an earlier call that was cancelled come first.
        """
        return (await self._read_all())[0]

    async def _read_all(self) -> tuple[pa.Table, list[Polled | Whole]]:
        """Return all rows, and the reads that they are of."""
        self._keep_unyielded()
        change = self._changes

        def work() -> tuple[pa.Table, list[Polled | Whole]]:
            parts = self._core.to_tables()
            kept = self._kept.take_all()
            with undoing(lambda: self._kept.put(kept)):
                reads = [*map(self._made, kept), Whole(self._kept.next_order(), change, parts)]
            return pa.concat_tables(map(self._table_of, reads)), reads

        return await self._run(work, lambda result: result[1])

    async def to_pandas(self) -> pd.DataFrame:
        """Return all rows up to the latest offset as a pandas DataFrame."""
        table, reads = await self._read_all()
        # the next call has it where this one is cancelled, or there is no pandas
        with undoing(lambda: self._kept.put(reads)):
            frame: pd.DataFrame = await self._run(table.to_pandas, lambda _: [])
        return frame

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a lazy reader of all rows up to the latest offset, in bounded memory.

        The reader blocks the thread that reads from it: read in a thread other than the event
        loop's. It ends at the offset where the log ended when this method was called. The next call
        that reads has the rows that it did not return.
        """
        self._keep_unyielded()

        def work() -> tuple[list[Polled | Whole], pa.RecordBatchReader]:
            reader = self._core.to_arrow_batch_reader()
            return self._kept.present(), reader

        made = self._thread.submit(self._checked, work)

        def batches() -> Iterator[pa.RecordBatch]:
            kept, reader = made.result()
            for read in kept:
                # taken as they are yielded: what is not stays for the next call
                while (part := self._kept.take_part(read)) is not None:
                    yield from self._table_of(part).to_batches()
            yield from reader

        return pa.RecordBatchReader.from_batches(self._core.schema, batches())

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        records = self._core.yields_records
        while True:
            # grouped by bucket, as ScanRecords has them
            order: dict[TableBucket, int] = {}
            polled = await self._poll(_ITERATION_MS, records=records)
            polled.parts.sort(key=lambda entry: order.setdefault(entry[0].bucket, len(order)))
            taken = polled.parts
            self._iterated, self._yielded = polled, 0
            for item in ScanRecords(taken) if records else record_batches(taken):
                self._yielded += 1
                yield item
                if self._iterated is not polled:
                    break  # another call has returned the rest meanwhile

    def _made(self, read: Polled | Whole) -> Polled | Whole:
        """Return what was read as changes are returned, so that they are made once.

        Of an update whose halves come apart, the scanner remembers the first.
        """
        if isinstance(read, Whole) or not isinstance(self._core, core_changes.ChangeTableScanner):
            return read
        parts = [(part[0], self._core.as_table([part])) for part in read.parts]
        return Whole(read.order, read.change, parts)

    def _table_of(self, read: Polled | Whole) -> pa.Table:
        """Return what a call read as one table."""
        if isinstance(read, Polled):
            return self._core.as_table(read.parts)
        # not schema.empty_table(), which imports pandas
        empty = pa.Table.from_batches([], self._core.schema)
        return pa.concat_tables([empty, *(table for _, table in read.parts)])

    def _keep_unyielded(self) -> None:
        """Keep what an ``async for`` that was left early did not yield, for the next call."""
        polled, self._iterated = self._iterated, None
        if polled is None:
            return
        rest = polled.parts
        if not self._core.yields_records:
            rest = rest[self._yielded :]
        else:
            skipped = self._yielded
            while rest and skipped:
                (position, decoded), rest = rest[0], rest[1:]
                rows = decoded.batch.num_rows
                if rows > skipped:
                    rest = [(position, part_of(decoded, skipped, rows - skipped)), *rest]
                skipped = max(0, skipped - rows)
        self._kept.put([Polled(polled.order, polled.change, rest)])

    async def close(self) -> None:
        """Close the sockets; a second call does nothing.

        A subscription that failed is not reported any more. A read that was cancelled is ended;
        one that is still awaited goes on to its end first.
        """
        if not self._awaited:
            self._core._give_up()
        await watched(self._thread.submit(self._core.close))

    def _checked(self, work: Callable[[], T]) -> T:
        if self._problems:
            raise self._problems.popleft()
        return work()

    async def _run(
        self,
        work: Callable[[], T],
        reads: Callable[[T], Iterable[Polled | Whole]],
        given_up: threading.Event | None = None,
    ) -> T:
        """Run a call on the scanner's thread; the reads of its result are kept if nobody waits."""
        future = self._thread.submit(self._checked, work)
        self._awaited += 1
        try:
            return await watched(future)
        except asyncio.CancelledError:
            if given_up is not None:
                given_up.set()
            future.add_done_callback(partial(_keep_result, self._kept, reads))
            raise
        finally:
            self._awaited -= 1


# their reads have threads of their own, which the program's end would wait for
_scanners: Final[weakref.WeakSet[LogScanner]] = weakref.WeakSet()


def _give_up_all() -> None:
    for scanner in list(_scanners):
        scanner.core._give_up()


at_end(EndStep.SCANNERS, _give_up_all)


def _keep_result(
    kept: Kept, reads: Callable[[T], Iterable[Polled | Whole]], future: Future[T]
) -> None:
    if not future.cancelled() and future.exception() is None:
        kept.put(reads(future.result()))


class _Read(Facade[C]):
    """A scanner whose rows one call reads; when that is cancelled the next one reads again."""

    def __init__(self, core: C) -> None:
        super().__init__(core)
        # the call that was cancelled, whose rows nobody got, and where it began once it did
        self._lost: tuple[Future[Any], list[Any]] | None = None

    async def _read(self, method: Callable[[C], T]) -> T:
        await self._forget_lost()
        began: list[Any] = []

        def work() -> T:
            began.append(self._mark())
            return method(self._core)

        future = submit(work)
        try:
            return await watched(future)
        except asyncio.CancelledError:
            self._lost = future, began
            self._give_up()
            raise

    async def _forget_lost(self) -> None:
        if self._lost is None:
            return
        future, began = self._lost
        try:
            rows = await watched(future)
        except Exception:
            # nothing was read, or it failed to convert what was read
            reopens = True
        else:
            if isinstance(rows, Generator):
                # the ``async for`` was cancelled before it began
                rows.close()
                reopens = True
            else:
                # a call after the last row had no rows to lose
                reopens = rows is not None and (isinstance(rows, RecordBatch) or len(rows) > 0)
        self._lost = None
        if reopens and began:
            self._go_back(began[0])

    def _give_up(self) -> None:
        """End a read that nobody waits for."""

    def _mark(self) -> Any:
        """Return where a read begins."""

    def _go_back(self, mark: Any) -> None:
        """Have the rows be read again from there."""
        raise NotImplementedError


def _again_if_cancelled(method: Callable[[C], T]) -> Callable[[_Read[C]], Coroutine[Any, Any, T]]:
    """Make a coroutine of a method that reads; when it is cancelled the next one reads again."""

    async def call(self: _Read[C]) -> T:
        return await self._read(method)

    return like(method)(call)


class BatchScanner(_Read[core_batch.BatchScanner]):
    """Reads the last rows of one bucket. It can be read once."""

    next_batch = _again_if_cancelled(core_batch.BatchScanner.next_batch)
    collect_all_batches = _again_if_cancelled(core_batch.BatchScanner.collect_all_batches)
    to_arrow = _again_if_cancelled(core_batch.BatchScanner.to_arrow)
    to_pandas = _again_if_cancelled(core_batch.BatchScanner.to_pandas)

    def _mark(self) -> tuple[RecordBatch, ...] | None:
        return self._core._mark()

    def _go_back(self, mark: tuple[RecordBatch, ...] | None) -> None:
        self._core._go_back(mark)

    @property
    def bucket(self) -> TableBucket:
        """The bucket."""
        return self._core.bucket


class SnapshotScanner(_Read[core_snapshot.SnapshotScanner]):
    """Reads the current rows of a primary-key table; ``async for`` yields them in batches.

    It can be read once. A call that is cancelled ends its read, and the next one reads again. After
    an ``async for`` that was left early, or cancelled, create a new one.
    """

    to_arrow = _again_if_cancelled(core_snapshot.SnapshotScanner.to_arrow)
    to_pandas = _again_if_cancelled(core_snapshot.SnapshotScanner.to_pandas)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return self._core.schema

    @property
    def offsets(self) -> dict[TableBucket, int]:
        """The changelog offset that the rows of each bucket belong to, known after the read."""
        return self._core.offsets

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        # awaited on a thread: it asks where the buckets are, and a silent server does not answer
        batches = await self._read(lambda core: core.batches())
        taking: Future[pa.RecordBatch | None] | None = None
        try:
            while True:
                taking = submit(next, batches, None)
                batch = await watched(taking)
                if batch is None:
                    return
                yield batch
        finally:
            # the server is told that nobody reads on; nobody waits here for that to be done
            if taking is not None:
                taking.add_done_callback(lambda _: _close_soon(batches))

    def _give_up(self) -> None:
        self._core.once.give_up()

    def _go_back(self, mark: object) -> None:
        self._core.once.again()


def _close_soon(batches: Generator[object, None, None]) -> None:
    # a pool takes no more work when the program is ending
    with contextlib.suppress(RuntimeError):
        submit(batches.close)
