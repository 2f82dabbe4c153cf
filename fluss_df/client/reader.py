"""Bounded reads: offset ranges of buckets as Arrow, in order, in bounded memory.

A read runs on the thread that iterates it. The next request is sent before what came is decoded,
so that the server works and the network fills while the columns are decompressed; no thread of
its own is needed for that. Several buckets at once are read by several threads, each with a read
of its own (:func:`read_table`, or a dataframe engine that iterates several).
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from fluss_df.client.io_thread import result_of
from fluss_df.client.lanes import Lane, lane_pool
from fluss_df.client.log_decode import TableDecoder
from fluss_df.client.log_fetch import Chunk, LogFetcher, Position, RemoteChunk
from fluss_df.client.metrics import Metrics
from fluss_df.client.remote_log import RemoteRead
from fluss_df.client.server_connection import Endpoint
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.connection import FlussConnection
    from fluss_df.pushdown.plan import ScanPlan, Split

# at most so many buckets in one request
_BUCKETS_PER_REQUEST = 64
# an abort is noticed between waits
_WAIT_S = 0.2


class OrderedRead:
    """Reads positions one after the other; iterate it once.

    Small buckets that follow are fetched along with the first one, and wait their turn: at most
    about ``scanner.log.fetch.max-bytes`` twice are held.

    Parameters
    ----------
    connection, info
        The table.
    decoder
        What turns log batches into Arrow.
    positions
        What to read, each with a stop offset, in the order of the result.
    metrics
        What is counted.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        decoder: TableDecoder,
        positions: Sequence[Position],
        metrics: Metrics,
    ) -> None:
        self._connection = connection
        self._decoder = decoder
        self._metrics = metrics
        self._todo = deque(positions)
        self._fetcher = LogFetcher(
            connection.cluster, info, decoder.projection, metrics, max_wait_ms=0, begin_small=True
        )
        self._held_limit = connection.config.scanner_log_fetch_max_bytes
        self._held = 0
        self._lane: Lane | None = None
        self._asked: list[Position] = []
        self._aborted = False
        for position in positions:
            position.projected = decoder.projection is not None

    def __iter__(self) -> Iterator[pa.Table]:
        try:
            while self._todo:
                if self._aborted:
                    raise FlussError("the read was given up")
                front = self._todo[0]
                if front.ready:
                    chunk = front.ready.popleft()
                    if isinstance(chunk, Chunk):
                        size = len(chunk.records)
                        front.ready_bytes -= size
                        self._held -= size
                        self._send()
                        yield from self._decoder.decode(front, chunk)
                    else:
                        yield from self._read_remote(front, chunk)
                elif front.done:
                    self._todo.popleft()
                else:
                    self._send()
                    self._receive()
        finally:
            self._drop_lane()

    def _read_remote(self, front: Position, chunk: RemoteChunk) -> Iterator[pa.Table]:
        with RemoteRead(self._connection, front, chunk, self._metrics) as remote:
            while not remote.done and not self._aborted:
                piece = remote.take(_WAIT_S)
                if piece is not None:
                    yield from self._decoder.decode(front, piece)

    def abort(self) -> None:
        """End the read, from another thread: its iteration raises."""
        self._aborted = True
        lane = self._lane
        if lane is not None:
            lane.abort()

    def _send(self) -> None:
        """Send the next request, unless one is on its way or enough is held."""
        front = self._todo[0]
        full = self._held > self._held_limit
        if self._asked or (full and front.ready):
            return
        asking: list[Position] = []
        endpoint: Endpoint | None = None
        now = time.monotonic()
        for position in list(self._todo)[: 1 if full else _BUCKETS_PER_REQUEST]:
            # what follows waits until its turn once something of it is here
            if position.done or (position is not front and position.ready):
                continue
            if position.not_before > now:
                continue
            where = self._fetcher.endpoint(position)
            if where is None:
                continue
            if not asking:
                endpoint = where
            elif where != endpoint or position.projected != asking[0].projected or position.starved:
                continue
            asking.append(position)
            if position.starved:
                break
        if not asking or endpoint is None:
            return
        if self._lane is None or self._lane.endpoint != endpoint:
            self._drop_lane()
            self._lane = self._fetcher.lane(endpoint, asking)
            if self._lane is None:
                return
        if self._fetcher.send(self._lane, asking):
            self._asked = asking
        else:
            self._drop_lane()

    def _receive(self) -> None:
        if self._lane is None or not self._asked:
            # all that could be asked for is to be tried later
            pause = min(p.not_before for p in self._todo if not p.done) - time.monotonic()
            time.sleep(max(0.0, pause))
            return
        asked, self._asked = self._asked, []
        self._held += self._fetcher.receive(self._lane, asked)
        if self._lane.failed:
            self._drop_lane()

    def _drop_lane(self) -> None:
        if self._lane is not None:
            lane_pool().give_back(self._lane)
            self._lane = None
        self._asked = []


def positions_of(table_id: int, splits: Sequence[Split]) -> list[Position]:
    """Return the positions that splits of a plan stand for."""
    return [
        Position(
            TableBucket(table_id, split.bucket_id, split.partition_id),
            split.partition_name,
            split.start,
            split.stop,
        )
        for split in splits
        if split.stop > split.start
    ]


def read_splits(
    connection: FlussConnection,
    info: TableInfo,
    plan: ScanPlan,
    splits: Sequence[Split],
    metrics: Metrics,
) -> Iterator[pa.Table]:
    """Read splits of a plan, one after the other in their order and by offset within each.

    Parameters
    ----------
    connection
        An open connection.
    info
        The table of the plan.
    plan
        Which columns and metadata columns.
    splits
        Some of the plan's splits.
    metrics
        What is counted; give it ``parent=connection.metrics``.

    Yields
    ------
    pa.Table
        The columns of the plan, then its metadata columns, a few MB at a time. Closing the
        generator ends the read at once.
    """
    decoder = TableDecoder(connection, info, plan.columns, plan.metadata_columns, metrics)
    read = OrderedRead(connection, info, decoder, positions_of(info.table_id, splits), metrics)
    yield from read


def read_table(
    connection: FlussConnection,
    info: TableInfo,
    columns: Sequence[str],
    positions: Sequence[Position],
    metrics: Metrics,
    metadata_columns: Sequence[str] = (),
) -> pa.Table:
    """Read positions with several threads, into one table in their order."""
    decoder = _SharingDecoder(connection, info, columns, metadata_columns, metrics)
    servers = len({connection.cluster.known_leader(p.bucket) for p in positions})
    threads = max(1, connection.config.scanner_fetch_connections * max(1, servers))
    reads = [
        OrderedRead(connection, info, decoder, group, metrics)
        for group in _groups(list(positions), threads)
    ]
    if len(reads) <= 1:
        parts = [decoder.read(read) for read in reads]
    else:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="fluss-df-read")
        try:
            decoder.reading = len(reads)
            futures = [pool.submit(decoder.read, read) for read in reads]
            for _ in range(threads - 1):
                pool.submit(decoder.help)
            parts = [result_of(future) for future in futures]
        except BaseException:
            decoder.reading = 0
            for read in reads:
                read.abort()
            # Ctrl-C too must not wait for the others: one may be connecting to a silent server
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
    # a piece without rows has no metadata columns: a change of nothing is a batch without rows
    tables = [table for part in parts for piece in part if (table := piece.table()).num_rows]
    # not empty_table(): it would import pandas, where that is installed, for a third of a second
    return pa.concat_tables([pa.Table.from_batches([], decoder.schema), *tables])


class _Piece:
    """A part of a chunk, decoded by the first thread that comes by."""

    def __init__(self, decode: Callable[[], pa.Table]) -> None:
        self._decode: Callable[[], pa.Table] | None = decode
        self._begun = threading.Lock()
        self._decoded: concurrent.futures.Future[pa.Table] = concurrent.futures.Future()

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        decode, self._decode = self._decode, None
        assert decode is not None
        try:
            self._decoded.set_result(decode())
        except BaseException as error:
            self._decoded.set_exception(error)

    @property
    def failed(self) -> bool:
        return self._decoded.done() and self._decoded.exception() is not None

    def table(self) -> pa.Table:
        return result_of(self._decoded)


class _SharingDecoder(TableDecoder):
    """Lets threads that have nothing more to read decode what others received.

    Buckets are never done at the same time: the last one alone took a tenth of a scan.
    """

    reading = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: deque[_Piece] = deque()
        self._changed = threading.Condition()

    def decode(self, position: Position, chunk: Chunk) -> Iterator[Any]:
        """Yield pieces that are still to decode."""
        pieces = [_Piece(piece) for piece in self.pieces(position, chunk)]
        with self._changed:
            self._open.extend(pieces)
            self._changed.notify_all()
        yield from pieces

    def read(self, read: OrderedRead) -> list[_Piece]:
        """Read to the end."""
        pieces = []
        try:
            for piece in cast("Iterator[_Piece]", iter(read)):
                piece.run()
                pieces.append(piece)
                if piece.failed:
                    break
        finally:
            with self._changed:
                self.reading -= 1
                self._changed.notify_all()
        return pieces

    def help(self) -> None:
        """Decode until all reads have ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open or self.reading <= 0, _WAIT_S)
                if not self._open:
                    if self.reading <= 0:
                        return
                    continue
                piece = self._open.pop()
            piece.run()


def _groups(positions: list[Position], threads: int) -> list[list[Position]]:
    """Cut positions into groups for threads: single buckets, or runs where they are many."""
    size = max(1, len(positions) // (threads * 4))
    return [positions[i : i + size] for i in range(0, len(positions), size)]
