"""Bounded reads: log batches of offset ranges, in order, in bounded memory.

A read runs on the thread that iterates it. The next request is sent before what came is decoded,
so that the server works and the network fills while the columns are decompressed; no thread of
its own is needed for that. Several buckets at once are read by ``parallel.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from fluss_df.client.fetch.fetcher import LogFetcher
from fluss_df.client.fetch.position import Chunk, Position, RemoteChunk
from fluss_df.client.fetch.remote_segments import RemoteRead
from fluss_df.client.fetch.small_chunks import Room
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.errors import FlussError
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext
    from fluss_df.pushdown.plan import Split
    from fluss_df.pushdown.server_filter import ServerFilter

# the most buckets in one request
_BUCKETS_PER_REQUEST = 64
# the longest wait for an answer; an abort is noticed after it
_WAIT_S = 0.2


class ChunkRead:
    """Fetches positions one after the other; iterate it once. A chunk is yielded with its position.

    Small buckets that follow are fetched along with the first one, and wait their turn: at most
    about twice ``scanner.log.fetch.max-bytes`` are held.

    Parameters
    ----------
    projection
        Indexes of the columns to ask servers for, ascending; None for all.
    positions
        What to read, each with a stop offset, in the order of the result.
    server_filter
        The filter by which servers may leave out log batches.
    bucket_bytes
        The most bytes of a bucket in an answer; see :class:`LogFetcher`.
    apart
        Whether :meth:`steps` gives each chunk alone.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        projection: Sequence[int] | None,
        positions: Sequence[Position],
        metrics: Metrics,
        *,
        server_filter: ServerFilter | None = None,
        bucket_bytes: int | None = None,
        apart: bool = False,
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._todo = deque(positions)
        self._apart = apart
        self._fetcher = LogFetcher(
            connection.cluster,
            info,
            projection,
            metrics,
            max_wait_ms=0,
            begin_small=True,
            server_filter=server_filter,
            bucket_bytes=bucket_bytes,
        )
        self._held_limit = connection.config.scanner_log_fetch_max_bytes
        self._held = 0
        self._lane: Lane | None = None
        self._asked: list[Position] = []
        self._aborted = False
        self._process = os.getpid()
        for position in positions:
            position.projected = projection is not None

    def __iter__(self) -> Iterator[tuple[Position, Chunk]]:
        with contextlib.closing(self.steps()) as steps:
            yield from itertools.chain.from_iterable(steps)

    def steps(self) -> Generator[list[tuple[Position, Chunk]]]:
        """Yield a chunk with the small ones behind it that were received; during a pause, none."""
        try:
            while self._todo:
                if self._aborted:
                    raise FlussError("the read was given up")
                if os.getpid() != self._process:
                    raise FlussError("the read was begun by the parent process: begin it again")
                front = self._todo[0]
                if front.ready:
                    chunk = front.ready.popleft()
                    if isinstance(chunk, Chunk):
                        found = self._with_small(front, chunk)
                        self._send()
                        yield found
                    else:
                        yield from self._read_remote(front, chunk)
                elif front.error is not None:
                    raise front.error
                elif front.done:
                    self._todo.popleft()
                else:
                    self._send()
                    if self._asked:
                        self._receive()
                    else:
                        self._pause()
                        yield []
        finally:
            self._drop_lane()

    def _with_small(self, front: Position, chunk: Chunk) -> list[tuple[Position, Chunk]]:
        """Return a chunk that was taken from the front, and take the small ones behind a small one.

        Only those that were received: no request is waited for.
        """
        found = [(front, chunk)]
        room = Room()
        going_on = not self._apart and room.takes(chunk)
        while going_on:
            front = self._todo[0]
            if front.ready:
                after = front.ready[0]
                going_on = (
                    isinstance(after, Chunk)
                    and after.projected == chunk.projected
                    and room.takes(after)
                )
                if going_on:
                    found.append((front, cast("Chunk", front.ready.popleft())))
            else:
                going_on = front.done and front.error is None and len(self._todo) > 1
                if going_on:
                    self._todo.popleft()
        for _, taken in found:
            wanted = taken.wanted_bytes
            self._held -= len(taken.records) if wanted is None else wanted
        return found

    def _read_remote(
        self, front: Position, chunk: RemoteChunk
    ) -> Iterator[list[tuple[Position, Chunk]]]:
        with RemoteRead(self._connection, front, chunk, self._metrics) as remote:
            while not remote.done and not self._aborted and os.getpid() == self._process:
                piece = remote.take(_WAIT_S)
                if piece is not None:
                    yield [(front, piece)]

    def abort(self) -> None:
        """End the read, from another thread: its iteration raises."""
        self._aborted = True
        lane = self._lane
        if lane is not None:
            lane.abort()

    @property
    def _full(self) -> bool:
        """Whether more bytes are held than the limit: then only the bucket in turn is asked for."""
        return self._held > self._held_limit

    def _wanted(self) -> list[Position]:
        """Return the positions to ask for, whether now or after their pauses."""
        front = self._todo[0]
        near = itertools.islice(self._todo, 1 if self._full else _BUCKETS_PER_REQUEST)
        # a position behind the front one waits for its turn once something of it was received
        return [p for p in near if not p.done and p.error is None and (p is front or not p.ready)]

    def _send(self) -> None:
        """Send the next request, unless one is on its way or enough is held."""
        if self._asked or (self._full and self._todo[0].ready):
            return
        asking: list[Position] = []
        endpoint: Endpoint | None = None
        now = time.monotonic()
        for position in self._wanted():
            if position.retry.not_before > now:
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
        assert self._lane is not None
        asked, self._asked = self._asked, []
        self._held += self._fetcher.receive(self._lane, asked)
        if self._lane.failed:
            self._drop_lane()

    def _pause(self) -> None:
        """Wait, for a moment, as all that could be asked for is to be tried later."""
        # not of one whose rows are here: it waits for the front, and has no pause
        until = min((p.retry.not_before for p in self._wanted()), default=0.0)
        pause = until - time.monotonic()
        time.sleep(max(0.0, min(pause, _WAIT_S)))

    def _drop_lane(self) -> None:
        if self._lane is not None:
            lane_pool().give_back(self._lane)
            self._lane = None
        self._asked = []


def positions_of(
    table_id: int,
    splits: Sequence[Split],
    from_log_start: Callable[[Split], bool] = lambda _: False,
) -> list[Position]:
    """Return the positions that splits of a plan stand for.

    ``from_log_start`` says which are to read all that the log has, from where it begins.
    """
    return [
        Position(
            split.bucket.of(table_id),
            split.partition_name,
            split.start,
            split.stop,
            split.start if from_log_start(split) else None,
        )
        for split in splits
        if split.stop > split.start
    ]
