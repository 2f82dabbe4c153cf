"""A bucket's read position: :class:`Position` is a cursor, and :class:`RetryState` its retries."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fluss_df.client.runtime.retry import Backoff
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.layout.headers import Int64s, LogHeaders
from fluss_df.record.log.checked import CheckedColumns

# how many times in a row an answer that cannot be read is asked for again
_MOST_BROKEN = 2

# How many times in a row a fetch that failed on the server for a reason of its own is tried again.
# A server of 0.9.1 that deletes a segment which has moved to remote storage answers -1
# "ClosedChannelException" to readers at this moment; the next fetch is sent to remote storage.
# The official clients go on after -1 for ever.
_MOST_UNKNOWN = 8

# While a segment moves to remote storage, a server of 1.0 calls its offsets out of range for about
# 40 ms. So an offset counts as out of range only when the server says so for this time.
_OUT_OF_RANGE_S = 0.5
_OUT_OF_RANGE_PAUSE_S = 0.02


@dataclass(slots=True)
class Chunk:
    """Log batches of one bucket as they were received.

    Parameters
    ----------
    records
        The bytes; a slice of the receive buffer.
    headers
        Where the batches in it are.
    start
        The offset that was asked for: rows before it are not wanted.
    projected
        Whether the server left out columns.
    checked
        Columns that are known to be valid, if an engine of this process answered; see
        :class:`FetchedBucket`.
    wanted_bytes
        How many of the bytes belong to columns that were asked for; None for all of them.
    """

    records: pa.Buffer
    headers: LogHeaders
    start: int
    projected: bool
    checked: CheckedColumns | None = None
    wanted_bytes: int | None = None

    def wanted(self, stop: int | None) -> tuple[Int64s, Int64s]:
        """Return the first wanted row of each batch, and how many follow, before an offset."""
        base, count = self.headers.base_offset, self.headers.record_count
        low = np.clip(self.start - base, 0, count)
        high = count if stop is None else np.clip(stop - base, 0, count)
        return low, np.maximum(high - low, 0)


@dataclass(slots=True)
class RemoteChunk:
    """Log segments of one bucket that are in remote storage.

    ``statistics`` says whether batches of magic 1 have statistics, see :func:`scan_headers`.
    """

    info: pb.RemoteLogFetchInfo
    statistics: bool


@dataclass(slots=True)
class RetryState:
    """Why a position is asked for again, and when.

    ``not_before`` is the moment before which the position is not asked for, in seconds of the
    monotonic clock.
    """

    not_before: float = 0.0
    _backoff: Backoff | None = None
    _out_since: float | None = None
    _broken: int = 0
    _unknown: int = 0
    _remote_failed_at: int | None = None

    def readable(self) -> None:
        """Take note of an answer that could be read."""
        self._broken = 0

    def progressed(self) -> None:
        """Take note of an answer without an error: the next pause is the shortest again."""
        self._backoff = self._out_since = None
        self._unknown = 0

    def postpone(self, timeout_ms: float) -> bool:
        """Set the next pause, longer than the last; False if ``timeout_ms`` have passed since."""
        if self._backoff is None:
            self._backoff = Backoff(timeout_ms)
        elif self._backoff.expired:
            return False
        self.not_before = time.monotonic() + self._backoff.next_pause()
        return True

    def rest_until(self, moment: float) -> None:
        """Ask no sooner than at a moment, as there was nothing."""
        self.not_before = max(self.not_before, moment)

    def unreadable(self) -> bool:
        """Take note of an answer that cannot be read; return whether to ask again."""
        self._broken += 1
        return self._broken <= _MOST_BROKEN

    def unknown(self) -> bool:
        """Take note that the server failed, and did not say how; return whether to ask again."""
        self._unknown += 1
        return self._unknown <= _MOST_UNKNOWN

    def out_of_range(self) -> bool:
        """Take note that the server does not know the offset; return whether to ask again."""
        now = time.monotonic()
        if self._out_since is None:
            self._out_since = now
        if now - self._out_since < _OUT_OF_RANGE_S:
            self.not_before = now + _OUT_OF_RANGE_PAUSE_S
            return True
        self._out_since = None
        return False

    def remote_failed(self, offset: int) -> bool:
        """Take note that remote storage cannot be read; return whether to ask the server again.

        It is asked once for each offset; a second failure at the same offset is final.
        """
        again = self._remote_failed_at != offset
        self._remote_failed_at = offset
        return again

    def remote_progressed(self) -> None:
        """Take note of rows from remote storage."""
        self._remote_failed_at = None


@dataclass(slots=True, eq=False)
class Position:
    """A bucket, and the offset that is read next.

    Attributes
    ----------
    offset
        The next offset to fetch.
    stop
        The offset to stop before; None to go on for ever.
    log_start
        Where the log began, for a position that is to read all that the log has: where rows expire
        before any was received, it starts where the log begins then. None for a start that was
        named: rows from there on that have expired are an error.
    expired
        How many offsets expired before they could be read, of a position with ``log_start``.
    projected
        Whether to let the server leave out columns.
    starved
        Whether the last answer had no whole batch of this bucket: it is to be asked for alone.
    ready
        What was received and is not decoded.
    retry
        Why it is not asked for just now.
    error
        Why it is not asked for any more. The reader is told after it got the rows before.
    decoded_to
        The offset up to which a polling scanner has decoded it.
    """

    bucket: TableBucket
    partition_name: str | None
    offset: int
    stop: int | None = None
    log_start: int | None = None
    expired: int = 0
    projected: bool = False
    starved: bool = False
    ready: deque[Chunk | RemoteChunk] = field(default_factory=deque)
    retry: RetryState = field(default_factory=RetryState)
    error: FlussError | None = None
    decoded_to: int = field(init=False)

    def __post_init__(self) -> None:
        self.decoded_to = self.offset

    def move(self, offset: int) -> None:
        """Go on from another offset."""
        self.offset = self.decoded_to = offset

    def start_later(self, log_start: int) -> None:
        """Start where the log begins now, as rows have expired that nobody received."""
        start = log_start if self.stop is None else min(log_start, self.stop)
        self.expired += start - self.offset
        self.move(start)
        self.log_start = start

    def advance(self, offset: int) -> None:
        """Go on behind what was received."""
        self.offset = max(self.offset, offset)
        self.retry.progressed()

    @property
    def done(self) -> bool:
        """Whether everything up to the stop offset was fetched."""
        return self.stop is not None and self.offset >= self.stop
