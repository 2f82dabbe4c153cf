"""Log segments that the cluster has moved to remote storage, read as if they were local.

A fetch from an offset that is remote answers with a list of files. They are read in ranges of a
few MB by the threads of a pool, some ranges ahead of the consumer, so that a store of high latency
is no slower than its bandwidth: ``remote-file.download-thread-num`` threads for a connection,
at most ``scanner.remote-log.prefetch-num`` segments beyond the one being consumed, and
``scanner.remote-log.read-concurrency`` ranges of one segment.

Files hold whole batches with all columns: the columns that are not wanted are read, not decoded.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.fetch.position import Chunk, Position, RemoteChunk
from fluss_df.client.fetch.remote_fs import Place, RemoteFileSystems
from fluss_df.client.runtime.io_thread import WAIT_SLICE_S
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.hooks import Closing, ForkStep, after_fork
from fluss_df.memory import joined
from fluss_df.record.layout.headers import LogHeaders, scan_headers

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

# What is read of a segment at once: large enough that the latency of a store does not matter
# beside the transfer, small enough for several to be held.
_RANGE_BYTES = 4 << 20
_FIRST_RANGE_BYTES = 1 << 20
# Ranges on their way or waiting for the consumer, for each thread of the pool.
_RANGES_PER_THREAD = 2
# the magic and the length of a batch stand in its first bytes
_OVERHEAD = 12


class _Segment:
    """One file; its ranges are read by several threads."""

    def __init__(
        self, filesystems: RemoteFileSystems, uri: str, start: int, end: int, size: int
    ) -> None:
        self._filesystems = filesystems
        self.uri = uri
        self.start = start
        self.end = end
        self.size = size
        self._lock = threading.Lock()
        self._file: pa.NativeFile | None = None
        self._place: Place | None = None

    def read(self, at: int, size: int) -> pa.Buffer:
        """Read a range, at most to the end of the file."""
        return pa.py_buffer(self._opened().read_at(size, at))

    def _opened(self) -> pa.NativeFile:
        with self._lock:
            if self._file is None or self._place is None or not self._place.fresh:
                # threads that read from the old file keep it until they are done
                self._place = self._filesystems.locate(self.uri)
                self._file = self._place.filesystem.open_input_file(self._place.path)
            return self._file

    def failure(self, error: Exception) -> FlussError:
        """Return the error for what went wrong in storage, without secrets."""
        place = self._place
        text = str(error).partition("\n")[0]
        if isinstance(error, FlussError):
            return FlussError(f"remote log segment {self.uri}: {error.message}", error.error_code)
        hint = ""
        if place is not None:
            text = place.token.redact(text)
            if place.token.refused:
                hint = f"; the cluster handed out no credentials: {place.token.refused}"
            elif "://" not in self.uri and isinstance(error, FileNotFoundError):
                hint = (
                    "; it is on a disk of the cluster, which must be mounted here at the same path"
                    " (or have the cluster use a remote.data.dir in an object store)"
                )
        return FlussError(
            f"remote log segment {self.uri} cannot be read: {text}{hint}",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def broken(self, why: str) -> FlussError:
        """Return the error for a file that is not what the server says."""
        return ProtocolError(f"remote log segment {self.uri} is damaged: {why}")

    def forget_credentials(self) -> None:
        """Have the segment opened with new credentials next time."""
        if self._place is not None:
            self._filesystems.forget(self._place)


@dataclass(slots=True)
class _Range:
    """A range of a segment on its way."""

    segment: _Segment
    at: int
    size: int
    future: Future[pa.Buffer]

    @property
    def last(self) -> bool:
        """Whether the segment ends with it."""
        return self.at + self.size >= self.segment.size


@dataclass(slots=True)
class _Tail:
    """Bytes of the segment in turn that do not yet make a whole batch."""

    pieces: list[pa.Buffer] = field(default_factory=list)
    size: int = 0
    needed: int = 0

    def join(self, data: pa.Buffer) -> pa.Buffer | None:
        """Return all bytes with ``data`` behind them; None while they cannot be a whole batch."""
        self.pieces.append(data)
        self.size += len(data)
        if self.size < self.needed:
            return None
        whole = joined(self.pieces)
        self.pieces, self.size, self.needed = [], 0, 0
        return whole

    @property
    def lacks(self) -> int:
        """How many bytes are missing at least."""
        return max(0, self.needed - self.size) if self.needed else _OVERHEAD * bool(self.size)

    def keep(self, rest: pa.Buffer) -> None:
        """Keep the beginning of a batch."""
        self.pieces, self.size = ([rest], len(rest)) if len(rest) else ([], 0)
        # a batch of many ranges is joined once, not with each of them
        self.needed = 0
        if len(rest) >= _OVERHEAD:
            length = int.from_bytes(memoryview(rest).cast("B")[8:_OVERHEAD], "little", signed=True)
            self.needed = length + _OVERHEAD


class RemoteRead(Closing):
    """Reads the segments that a fetch answered with; used by one thread at a time.

    The position moves with what :meth:`take` returns, and only then: after the end, and after
    :meth:`close`, the next fetch from its offset goes on exactly there. When storage fails, which
    is what retention does to a reader, the read ends early for the caller to ask the server again;
    when that leads to the same failure at the same offset, it is raised.

    ``done`` is true when there is nothing more to take.

    Raises FlussError when the answer makes no sense.
    """

    def __init__(
        self, connection: ClientContext, position: Position, remote: RemoteChunk, metrics: Metrics
    ) -> None:
        config = connection.config
        self._position = position
        self._metrics = metrics
        self._statistics = remote.statistics
        self._pool = _downloads(connection)
        self._ranges_ahead = _RANGES_PER_THREAD * config.remote_file_download_thread_num
        self._segments_ahead = config.scanner_remote_log_prefetch_num
        self._ranges_per_segment = config.scanner_remote_log_read_concurrency
        # It begins small: who takes a few rows and leaves should not pay for what is read ahead.
        self._window = 1
        self._range_bytes = _FIRST_RANGE_BYTES
        self._segments = deque(_segments(RemoteFileSystems.of(connection), position, remote))
        self._require_covered(position)
        self._next_at = remote.info.first_start_pos
        self._in_flight: deque[_Range] = deque()
        self._tail = _Tail()
        self._current: _Segment | None = None
        self._end = 0
        self.done = not self._segments
        self._plan()

    def _require_covered(self, position: Position) -> None:
        """Have the server be asked again where no segment has the offset; the second time, raise.

        Otherwise it would be asked for ever, as nothing that is read moves the position.
        """
        at = position.offset
        segments = self._segments
        if segments and segments[0].start <= at and any(at < segment.end for segment in segments):
            return
        segments.clear()
        if not position.retry.remote_failed(at):
            raise ProtocolError(
                f"the server names remote log segments for offset {at} of {position.bucket}, and"
                " none of them has it"
            )

    # ---- reading ahead

    def _plan(self) -> None:
        """Have ranges read up to the limits."""
        ranges = self._in_flight
        names = [item.segment for item in ranges]
        while self._segments and len(ranges) < self._window:
            segment = self._segments[0]
            if segment not in names and len(set(names)) > self._segments_ahead:
                return
            if names.count(segment) >= self._ranges_per_segment:
                return
            size = min(self._range_bytes, segment.size - self._next_at)
            future = self._pool.submit(segment.read, self._next_at, size)
            ranges.append(_Range(segment, self._next_at, size, future))
            names.append(segment)
            self._next_at += size
            if self._next_at >= segment.size:
                self._segments.popleft()
                self._next_at = 0

    # ---- taking

    def take(self, timeout_s: float) -> Chunk | None:
        """Return the next log batches; None when none came in time, and at the end.

        Raises ``STORAGE_EXCEPTION``, naming the segment, when storage failed twice;
        ``CORRUPT_MESSAGE`` when a file is not what it should be.
        """
        began = time.monotonic()
        end = began + timeout_s
        try:
            while not self.done:
                left = max(0.0, end - time.monotonic())
                concurrent.futures.wait([self._in_flight[0].future], min(left, WAIT_SLICE_S))
                if not self._in_flight[0].future.done():
                    if left > WAIT_SLICE_S:
                        continue
                    return None
                chunk = self._next()
                if chunk is not None:
                    return chunk
            return None
        except BaseException:
            self.close()
            raise
        finally:
            self._metrics.add(wait_seconds=time.monotonic() - began)

    def _next(self) -> Chunk | None:
        """Take the first range in; return its batches, if they hold anything new."""
        item = self._in_flight.popleft()
        try:
            data = item.future.result()
        except (OSError, FlussError, pa.ArrowException) as error:
            self._failed(item.segment, error)
            return None
        segment = item.segment
        if segment is not self._current:
            self._current = segment
            self._metrics.add(remote_segments=1)
        self._metrics.add(remote_bytes=len(data), record_bytes=len(data))
        if len(data) < item.size:
            raise segment.broken(f"it ends at byte {item.at + len(data)} of {segment.size}")
        joined = self._tail.join(data)
        headers = None if joined is None else self._headers(segment, joined)
        if joined is not None and headers is not None:
            self._tail.keep(joined.slice(headers.consumed))
        if self._tail.lacks > segment.size - item.at - item.size:
            raise segment.broken("it ends within a log batch")
        chunk = None
        if joined is not None and headers is not None and len(headers):
            chunk = self._accept(segment, joined, headers)
        if item.last and self._end < segment.end:
            raise segment.broken(f"it ends at offset {self._end}, not {segment.end}")
        if self._position.done:
            self.close()
            return chunk
        self._window = min(self._window * 2, self._ranges_ahead)
        self._range_bytes = min(self._range_bytes * 2, _RANGE_BYTES)
        self._plan()
        self.done = not self._in_flight
        return chunk

    def _headers(self, segment: _Segment, data: pa.Buffer) -> LogHeaders:
        try:
            return scan_headers(
                data, magic1_has_statistics=self._statistics, require_progress=False
            )
        except FlussError as error:
            raise segment.failure(error) from None

    def _accept(self, segment: _Segment, data: pa.Buffer, headers: LogHeaders) -> Chunk | None:
        position = self._position
        start = position.offset
        first, self._end = int(headers.base_offset[0]), headers.end_offset or 0
        if first > start:
            raise segment.broken(f"offset {start} is missing: it goes on with {first}")
        if headers.missing_offsets:
            raise segment.broken(
                f"{headers.missing_offsets} offsets from {first} to {self._end} are missing"
            )
        if self._end <= start:
            return None
        position.offset = self._end
        position.retry.remote_progressed()
        return Chunk(data, headers, start, projected=False)

    def _failed(self, segment: _Segment, error: Exception) -> None:
        """Give up, for the caller to ask the server again; the second time, for good."""
        failure = segment.failure(error)
        position = self._position
        if isinstance(error, FlussError) or not position.retry.remote_failed(position.offset):
            raise failure from None
        segment.forget_credentials()
        self._metrics.add(retries=1)
        logger.info("asking for the log from offset %d again: %s", position.offset, failure)
        self.close()

    # ---- the end

    def close(self) -> None:
        """Read no further; what is on its way is dropped when it comes."""
        self.done = True
        for item in self._in_flight:
            item.future.cancel()
        self._in_flight.clear()
        self._segments.clear()
        self._tail = _Tail()


def _segments(
    filesystems: RemoteFileSystems, position: Position, remote: RemoteChunk
) -> list[_Segment]:
    """Return the segments that hold what is wanted; refuse those that cannot be."""
    info = remote.info
    segments: list[_Segment] = []
    for item in info.remote_log_segments:
        start, end, size = (
            item.remote_log_start_offset,
            item.remote_log_end_offset,
            item.segment_size_in_bytes,
        )
        name = item.remote_log_segment_id
        if position.stop is not None and start >= position.stop:
            break
        first_byte = 0 if segments else info.first_start_pos
        if not 0 <= start < end or not 0 <= first_byte < size or "/" in name or ".." in name:
            raise ProtocolError(
                f"the server names a remote log segment that cannot be: {name!r}, offsets {start}"
                f" to {end}, {size} bytes from byte {first_byte}"
            )
        uri = f"{info.remote_log_tablet_dir.rstrip('/')}/{name}/{start:020d}.log"
        segments.append(_Segment(filesystems, uri, start, end, size))
    return segments


_pools: weakref.WeakKeyDictionary[ClientContext, ThreadPoolExecutor] = weakref.WeakKeyDictionary()
_pools_lock = threading.Lock()


def _downloads(connection: ClientContext) -> ThreadPoolExecutor:
    """Return the threads of a connection that read segments; they end with the connection."""
    with _pools_lock:
        pool = _pools.get(connection)
        if pool is None:
            pool = _pools[connection] = ThreadPoolExecutor(
                connection.config.remote_file_download_thread_num,
                thread_name_prefix="fluss-df-remote",
            )
        return pool


def _after_fork_in_child() -> None:
    global _pools, _pools_lock
    _pools_lock = threading.Lock()
    _pools = weakref.WeakKeyDictionary()


after_fork(ForkStep.REMOTE_SEGMENTS, _after_fork_in_child)
