"""Log batches on their way to a scanner: asked for, received, decoded."""

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
from fluss_df.metadata import ChangeType
from fluss_df.record.log.log_decode import DecodedBatch
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# Ctrl-C is noticed between waits
_WAIT_S = 0.2
_PAUSE_S = 0.01
# another thread hands over what it polled
_HANDOVER_S = 0.0005
# buckets whose remote segments are read at the same time: each reads ahead
_REMOTE_READS = 4

#: Decoded batches, each with the position that it is of.
Taken: TypeAlias = list[tuple[Position, DecodedBatch]]


@dataclass(slots=True, eq=False)
class Handover:
    """Says whether the caller of a poll has what was polled.

    Ctrl-C may end a poll at any of its steps but the last one, which sets ``handed``: Python looks
    for signals where a function begins, behind a call, and where a loop goes on.

    Parameters
    ----------
    thread
        The number of the thread that polls.
    handed
        It has the rows.
    withdrawn
        It never will: the next poll returns them.
    """

    thread: int
    handed: bool = False
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class _Offer:
    """What a poll returns: ``rest`` is what is left once it is handed over, else ``undo``."""

    to: Handover
    rest: deque[tuple[Position, DecodedBatch]]
    undo: Callable[[], None]


class FetchBuffer:
    """What a scanner has asked for and not yet given to its caller, who holds the scanner's lock.

    A request is on its way to every leader while there is nothing decoded; an answer is decoded
    once it is looked at, and what is in remote storage piece by piece.

    Parameters
    ----------
    connection, info
        The table.
    decoder, row_filter
        What is made of what was received.
    metrics
        What is counted.

    Attributes
    ----------
    server_filter
        By what servers may leave out log batches.
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
        self._reset()

    def _reset(self) -> None:
        self._lanes: dict[Endpoint, tuple[Lane, list[Position]]] = {}
        self._decoded: deque[tuple[Position, DecodedBatch]] = deque()
        self._remote: dict[Position, RemoteRead] = {}
        self._offer: _Offer | None = None
        self._cut = False

    # ---- for the scanner

    def fill(
        self,
        positions: Collection[Position],
        timeout_ms: float,
        given_up: threading.Event | None = None,
    ) -> None:
        """Wait until something of these positions is decoded, or the time is over.

        ``given_up`` ends the wait within a fifth of a second when it is set.
        """
        if self._cut:
            # an error, or Ctrl-C, ended the last one at any of its steps
            self._go_back(positions)
        self._cut = True
        self._fill(positions, timeout_ms, given_up)
        self._cut = False

    def _fill(
        self,
        positions: Collection[Position],
        timeout_ms: float,
        given_up: threading.Event | None,
    ) -> None:
        end = time.monotonic() + timeout_ms / 1000
        while not self._decoded:
            waiting = self._send_all(positions)
            left = min(max(end - time.monotonic(), 0.0), _WAIT_S)
            if waiting or not self._remote:
                # where segments are on their way too, both are looked at in turn
                self._wait(waiting, min(left, _PAUSE_S) if self._remote else left)
            for position in positions:
                self._decode_ready(position)
            self._decode_remote(left if not waiting else 0.0)
            if time.monotonic() >= end or (given_up is not None and given_up.is_set()):
                return
        self._send_all(positions)

    def _go_back(self, positions: Collection[Position]) -> None:
        """Give up what is not decoded: it is asked for again."""
        self.stop()
        for position in positions:
            self._drop_remote(position)
            position.offset = position.decoded_to

    def settle(self, thread: int, timeout_ms: float) -> bool:
        """Take out what was handed over before a thread polls; False while another one is at it."""
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
        """Return decoded batches, up to a number of rows; a batch is cut where it is too long.

        They are taken out once they were handed over; where they were not, ``undo`` is called.
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
        """Give up what there is of a position."""
        self._drop_remote(position)
        self._decoded = deque(entry for entry in self._decoded if entry[0] is not position)
        if self._offer is not None:
            rest = (entry for entry in self._offer.rest if entry[0] is not position)
            self._offer.rest = deque(rest)

    def clear(self, positions: Collection[Position]) -> None:
        """Give up everything; positions go back to the first rows that nobody has."""
        self.settle(threading.get_ident(), 0.0)
        self._go_back(positions)
        for position, decoded in reversed(self._decoded):
            position.move(decoded.base_offset)
        self._decoded.clear()
        self._offer = None

    def stop(self) -> None:
        """Give up answers that are on their way: they are asked for again."""
        for lane, _ in self._lanes.values():
            lane_pool().give_back(lane)
        self._lanes.clear()

    def close_sockets(self) -> None:
        """Close what nobody else may use: of a scanner that is collected, or of the parent."""
        for lane, _ in self._lanes.values():
            lane.close()

    def after_fork(self) -> None:
        """Go on in a forked child; what the parent was sent stays there."""
        self.close_sockets()
        self._reset()

    def where(self, position: Position) -> str:
        """Return the name of a bucket for error messages."""
        return self._fetcher().where(position)

    # ---- remote storage, and decoding

    def _decode_ready(self, position: Position) -> None:
        while position.ready and position not in self._remote:
            chunk = position.ready[0]
            if isinstance(chunk, RemoteChunk) and len(self._remote) >= _REMOTE_READS:
                return
            # taken first: after an error the server is asked again rather than believed again
            position.ready.popleft()
            if isinstance(chunk, Chunk):
                self._decode(position, chunk)
            else:
                self._remote[position] = RemoteRead(
                    self._connection, position, chunk, self._metrics
                )

    def _decode_remote(self, timeout_s: float) -> None:
        """Take one piece of each remote read, waiting for the first one only."""
        for position, remote in list(self._remote.items()):
            try:
                piece = remote.take(timeout_s)
                if piece is not None:
                    self._decode(position, piece)
            finally:
                if remote.done:
                    self._remote.pop(position, None)
            timeout_s = 0.0

    def _decode(self, position: Position, chunk: Chunk) -> None:
        try:
            batches = self._decoder.decode_batches(position, chunk)
        except BaseException:
            # whoever polls again must not miss what is in it
            self._drop_remote(position)
            self.stop()
            position.offset = chunk.start
            raise
        new = [(position, batch) for batch in self._filter.batches(batches)]
        behind = position.ready[0] if position.ready else None
        end = behind.start if isinstance(behind, Chunk) else position.offset
        # Ctrl-C cannot come between the two: Python looks for signals behind a call
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
        """Have a request on its way to every leader; return the lanes that will answer."""
        fetcher = self._fetcher()
        now = time.monotonic()
        asked = {id(p) for _, group in self._lanes.values() for p in group}
        groups: dict[Endpoint, list[Position]] = {}
        for position in positions:
            if id(position) in asked or position.retry.not_before > now or position.done:
                continue
            if position.ready or position in self._remote:
                continue  # what comes after remote segments is asked for after them
            where = fetcher.endpoint(position)
            if where is None or where in self._lanes:
                continue
            group = groups.setdefault(where, [])
            if position.starved:
                groups[where] = [position]
            elif not group or _can_join(group[0], position):
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
        """Wait for answers and take them."""
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


def _can_join(first: Position, other: Position) -> bool:
    return first.projected == other.projected and not first.starved


def _ends_within_update(decoded: DecodedBatch, rows: int) -> bool:
    """Whether the first rows of a batch end between the old and the new row of an update."""
    changes = decoded.change_types
    return changes is not None and changes[rows - 1].as_py() == ChangeType.UpdateBefore
