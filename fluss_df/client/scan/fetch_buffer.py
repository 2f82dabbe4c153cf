"""The fetch buffer of a polling scanner: requests on their way, and decoded log batches.

The next request to a leader leaves when its last answer is decoded, so that the leader works while
the caller uses the rows. For each leader the buffer holds one decoded answer at the most, and one
more is on its way.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fluss_df.client.fetch.fetcher import LogFetcher
from fluss_df.client.fetch.position import Chunk, Position, RemoteChunk
from fluss_df.client.fetch.remote_segments import RemoteRead
from fluss_df.client.fetch.row_filter import RowFilter, part_of
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.errors import FlussError
from fluss_df.metadata import ChangeType
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# the longest wait for an answer, after which Ctrl-C and the caller's time are looked at
_WAIT_S = 0.2
# the wait when no answer is expected, or when remote segments are to be looked at too
_PAUSE_S = 0.01
# between two looks at whether another thread's poll has returned
_HANDOVER_S = 0.0005
# how many buckets read remote segments at the same time; each of them reads ahead
_REMOTE_READS = 4

#: Decoded batches, each with the position of its bucket.
Taken: TypeAlias = list[tuple[Position, DecodedBatch]]


@dataclass(slots=True, eq=False)
class Handover:
    """Tells whether the caller of a poll has received its rows.

    Ctrl-C may end a poll at any step before ``handed`` is set, and at no step after that. Python
    looks for signals only when a function begins, after a call, and when a loop starts its next
    turn.

    ``thread`` is the thread that polls. ``withdrawn`` means that the poll was ended before the
    caller had the rows: the next poll returns them.
    """

    thread: int
    handed: bool = False
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class _Offer:
    """Rows that a poll is about to return.

    Where the caller received them, ``rest`` are the decoded batches that are left. Where not,
    ``undo`` is called, which takes back what the poll did with the rows.
    """

    to: Handover
    rest: deque[tuple[Position, DecodedBatch]]
    undo: Callable[[], None]


class FetchBuffer:
    """Fetches log batches for a polling scanner, and holds those that no poll has returned yet.

    While no batch is decoded, each leader has a request to answer. Answers are decoded as they are
    received, and segments in remote storage piece by piece. All methods are called with the
    scanner's lock held.

    ``server_filter`` is the filter by which servers may leave out log batches; None without one.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        decoder: TableDecoder,
        row_filter: RowFilter,
        metrics: ScanMetrics,
    ) -> None:
        self._connection = connection
        self._info = info
        self._decoder = decoder
        self._filter = row_filter
        self._metrics = metrics
        self.server_filter = row_filter.server_filter(info)
        self._lanes: dict[Endpoint, tuple[Lane, list[Position]]] = {}
        self._decoded: deque[tuple[Position, DecodedBatch]] = deque()
        self._remote: dict[Position, RemoteRead] = {}
        self._offer: _Offer | None = None
        self._fill_unfinished = False

    # ---- for the scanner

    def fill(
        self,
        positions: Collection[Position],
        timeout_ms: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until a batch of these positions is decoded, or ``timeout_ms`` have passed.

        When ``given_up`` becomes true, the wait ends within 0.2 s.

        Where a bucket failed, this call raises its error if no rows are decoded. If rows of other
        buckets are decoded, the caller gets these first, and the next call raises the error. The
        call after the error asks for the bucket again.
        """
        # raised before rows of others are waited for, as they may come for ever
        _raise_failed(positions)
        if self._fill_unfinished:
            # an error or Ctrl-C ended the last call at some step: rows may be in no list
            self._go_back(positions)
        self._fill_unfinished = True
        self._fill(positions, timeout_ms, given_up)
        self._fill_unfinished = False
        if not self._decoded:
            _raise_failed(positions)

    def _fill(
        self, positions: Collection[Position], timeout_ms: float, given_up: Callable[[], bool]
    ) -> None:
        end = time.monotonic() + timeout_ms / 1000
        while not self._decoded:
            waiting = self._send_all(positions)
            left = min(max(end - time.monotonic(), 0.0), _WAIT_S)
            if _failed(positions) is not None:
                left = 0.0
            if waiting or not self._remote:
                # while remote segments are read as well, lanes and segments take turns
                self._wait(waiting, min(left, _PAUSE_S) if self._remote else left)
            for position in positions:
                try:
                    self._decode_ready(position)
                except FlussError as error:
                    position.error = error
            self._decode_remote(left if not waiting else 0.0)
            if time.monotonic() >= end or given_up():
                return
            if not self._decoded and _failed(positions) is not None:
                return
        self._send_all(positions)

    def _go_back(self, positions: Collection[Position]) -> None:
        """Drop what is not decoded; it is fetched again."""
        self.stop()
        for position in positions:
            self._drop_remote(position)
            position.offset = position.decoded_to
            position.error = None

    def end_last_poll(self, thread: int, timeout_ms: float) -> bool:
        """Finish the last poll before a thread polls: remove its rows, or keep them for this poll.

        Returns False when a poll of another thread is not over after ``timeout_ms``.
        """
        end = time.monotonic() + timeout_ms / 1000
        while (offer := self._offer) is not None:
            if offer.to.handed:
                self._decoded = offer.rest
            elif offer.to.withdrawn or offer.to.thread == thread:
                offer.undo()
            elif time.monotonic() < end:
                time.sleep(_HANDOVER_S)
                continue
            else:
                return False
            self._offer = None
        return True

    def offer(self, to: Handover, most: int | None, undo: Callable[[], None]) -> Taken:
        """Return decoded batches with ``most`` rows together at the most; the last one may be cut.

        One row more is returned where an update's old and new row would be separated. The batches
        stay in the buffer until the caller has them. If that does not happen, ``undo`` is called.
        """
        rest = self._decoded.copy()
        taken: Taken = []
        room = most
        while rest and room != 0:
            position, decoded = rest.popleft()
            rows = decoded.batch.num_rows
            if room is not None and rows > room:
                if _ends_within_update(decoded, room):
                    room += 1
                    if rows == room:
                        taken.append((position, decoded))
                        break
                taken.append((position, part_of(decoded, 0, room)))
                rest.appendleft((position, part_of(decoded, room, rows - room)))
                break
            taken.append((position, decoded))
            if room is not None:
                room -= rows
        self._offer = _Offer(to, rest, undo)
        return taken

    def forget(self, position: Position) -> None:
        """Drop all batches of a position."""
        self._drop_remote(position)
        self._decoded = deque(entry for entry in self._decoded if entry[0] is not position)
        if self._offer is not None:
            rest = (entry for entry in self._offer.rest if entry[0] is not position)
            self._offer.rest = deque(rest)

    def clear(self, positions: Collection[Position]) -> None:
        """Drop all batches; positions go back to the first row that no caller has."""
        self.end_last_poll(threading.get_ident(), 0.0)
        self._go_back(positions)
        for position, decoded in reversed(self._decoded):
            position.move(decoded.base_offset)
        self._decoded.clear()
        self._offer = None

    def stop(self) -> None:
        """Drop the answers that are on their way; they are asked for again."""
        for lane, _ in self._lanes.values():
            lane_pool().give_back(lane)
        self._lanes.clear()

    def close_sockets(self) -> None:
        """Close the lanes instead of pooling them: the scanner is collected, or forked."""
        for lane, _ in self._lanes.values():
            lane.close()

    def after_fork(self) -> None:
        """Keep what is decoded in a forked child: answers on their way are the parent's.

        What was received and not decoded is asked for again, as after a poll that was interrupted.
        A thread of the parent may have been decoding it, and the child does not have this thread.
        """
        self.close_sockets()
        self._lanes = {}
        # not closed: locks of its downloads may be held by threads that are not here
        self._remote = {}
        self._fill_unfinished = True
        if self._offer is not None and not self._offer.to.handed:
            # the thread that polled is not here, and the next poll does not wait for it
            self._offer.to.withdrawn = True

    def where(self, position: Position) -> str:
        """Return the name of a bucket for error messages."""
        return self._fetcher().where(position)

    # ---- remote storage, and decoding

    def _decode_ready(self, position: Position) -> None:
        while position.ready and position not in self._remote:
            chunk = position.ready[0]
            if isinstance(chunk, RemoteChunk) and len(self._remote) >= _REMOTE_READS:
                return
            # removed before it is decoded: after an error it is asked for again, not tried again
            position.ready.popleft()
            if isinstance(chunk, Chunk):
                self._decode(position, chunk)
            else:
                self._remote[position] = RemoteRead(
                    self._connection, position, chunk, self._metrics
                )

    def _decode_remote(self, timeout_s: float) -> None:
        """Decode one piece of each remote read; wait for the first read, and for no other."""
        for position, remote in list(self._remote.items()):
            try:
                piece = remote.take(timeout_s)
                if piece is not None:
                    self._decode(position, piece)
            except FlussError as error:
                # rows that were taken and not decoded are asked for again
                self._drop_remote(position)
                position.offset = position.decoded_to
                position.error = error
            finally:
                if remote.done:
                    self._remote.pop(position, None)
            timeout_s = 0.0

    def _decode(self, position: Position, chunk: Chunk) -> None:
        try:
            batches = self._decoder.decode_batches(position, chunk)
        except BaseException:
            # the next poll has to ask for these rows again
            self._drop_remote(position)
            self.stop()
            position.offset = chunk.start
            raise
        new = [(position, batch) for batch in self._filter.batches(batches)]
        behind = position.ready[0] if position.ready else None
        end = behind.start if isinstance(behind, Chunk) else position.offset
        # The method is looked up first, so that no call ends between the last two statements. So
        # Ctrl-C cannot come between them: Python looks for signals after a call.
        add = self._decoded.extend
        position.decoded_to = end
        add(new)

    def _drop_remote(self, position: Position) -> None:
        position.ready.clear()
        remote = self._remote.pop(position, None)
        if remote is not None:
            remote.close()

    # ---- requests

    def _fetcher(self) -> LogFetcher:
        return LogFetcher(
            self._connection.cluster,
            self._info,
            self._decoder.projection,
            self._metrics,
            max_wait_ms=self._connection.config.scanner_log_fetch_wait_max_time_ms,
            server_filter=self.server_filter,
        )

    def _send_all(self, positions: Collection[Position]) -> list[Lane]:
        """Send a request to each leader that has none to answer; return the lanes in use."""
        fetcher = self._fetcher()
        now = time.monotonic()
        asked = {id(p) for _, group in self._lanes.values() for p in group}
        groups: dict[Endpoint, list[Position]] = {}
        for position in positions:
            if id(position) in asked or position.retry.not_before > now or position.done:
                continue
            if position.error is not None:
                continue  # the caller is told of it first
            if position.ready or position in self._remote:
                continue  # its next rows are asked for when these are decoded
            where = fetcher.endpoint(position)
            if where is None or where in self._lanes:
                continue
            group = groups.setdefault(where, [])
            if position.starved:
                groups[where] = [position]
            elif not group or (group[0].projected == position.projected and not group[0].starved):
                group.append(position)
        for where, group in groups.items():
            lane = fetcher.lane(where, group)
            if lane is None:
                continue
            if fetcher.send(lane, group):
                self._lanes[where] = (lane, group)
            else:
                lane.close()
        return [lane for lane, _ in self._lanes.values()]

    def _wait(self, lanes: list[Lane], timeout_s: float) -> None:
        """Wait for answers up to a time, and receive those that are there."""
        if not lanes:
            time.sleep(min(timeout_s, _PAUSE_S))
            return
        fetcher = self._fetcher()
        with selectors.DefaultSelector() as selector:
            for lane in lanes:
                selector.register(lane, selectors.EVENT_READ, lane)
            readable = [key.data for key, _ in selector.select(timeout_s)]
        for lane in readable:
            _, positions = self._lanes.pop(lane.endpoint)
            try:
                fetcher.receive(lane, positions)
            finally:
                lane_pool().give_back(lane)
        for lane in lanes:
            if lane not in readable and lane.overdue:
                _, positions = self._lanes.pop(lane.endpoint)
                lane.close()
                fetcher.failed(positions, lane.silence())


def _failed(positions: Collection[Position]) -> Position | None:
    """Return a position that has an error, which the caller is to be told."""
    return next((position for position in positions if position.error is not None), None)


def _raise_failed(positions: Collection[Position]) -> None:
    """Raise the error of a position that has one, and forget it."""
    failed = _failed(positions)
    if failed is not None:
        error, failed.error = failed.error, None
        assert error is not None
        raise error


def _ends_within_update(decoded: DecodedBatch, rows: int) -> bool:
    """Whether the first ``rows`` rows of a batch end between the two rows of an update."""
    changes = decoded.change_types
    return changes is not None and changes[rows - 1].as_py() == ChangeType.UpdateBefore
