"""A batch of a writer until it is acknowledged, and the handle that its caller gets."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from fluss_df.client.runtime.awaitable import ready
from fluss_df.client.runtime.interrupts import abandoned
from fluss_df.client.runtime.io_thread import WAIT_SLICE_S, result_of
from fluss_df.client.send.open_batches import Round
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.record.layout.stamped import StampedBatch


class WriteResultHandle:
    """The fate of rows given to a writer.

    Rows that were appended one by one and travel together share a handle.
    """

    def __init__(self, drain: Callable[[bool], object] | None = None) -> None:
        self._drain = drain
        self._lock = threading.Lock()
        self._open = 1  # batches that are not done, and 1 until sealed
        self._error: FlussError | None = None
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Callers have the future, and rows that were taken cannot be called back: one that runs
        # cannot be cancelled. A cancelled one would raise on the I/O thread when it is settled,
        # and the sender would never be done with its batch.
        self._future.set_running_or_notify_cancel()

    def expect(self, batches: int) -> None:
        """Expect a number of further batches."""
        with self._lock:
            self._open += batches

    def batch_done(self, error: FlussError | None = None) -> None:
        """Take note of a batch that was acknowledged or failed."""
        with self._lock:
            self._open -= 1
            self._error = self._error or error
            if self._open:
                return
        if self._error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(self._error)

    def seal(self, error: FlussError | None = None) -> None:
        """Say that no more batches are expected, or that none were made because of an error."""
        self._drain = None
        self.batch_done(error)

    @property
    def future(self) -> concurrent.futures.Future[None]:
        """Done when the rows are acknowledged, failed when some are not; cannot be cancelled."""
        return self._future

    def send_now(self, *, may_block: bool = True) -> None:
        """Send what waits for more rows, without lingering.

        Parameters
        ----------
        may_block
            Whether that may take its time; else it is done soon, by another thread.
        """
        drain = self._drain
        if drain is not None:
            drain(may_block)

    def wait(self, timeout_ms: float | None = None) -> None:
        """Wait until the server has acknowledged the rows; nothing lingers meanwhile.

        Parameters
        ----------
        timeout_ms
            How long to wait at the most; None to wait for the outcome.

        Raises
        ------
        FlussError
            When rows could not be written, with the server's code.
        TimeoutError
            When the outcome is still open after ``timeout_ms``.
        """
        # with a timeout, another thread sends: a thread that waits for room may hold it up
        self.send_now(may_block=timeout_ms is None)
        result_of(self._future, None if timeout_ms is None else timeout_ms / 1000)
        return ready(None)

    def __repr__(self) -> str:
        if not self._future.done():
            return "WriteResultHandle(pending)"
        return f"WriteResultHandle({'failed' if self._error else 'acknowledged'})"


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """Rows that go to one bucket together."""

    bucket: TableBucket
    partition_name: str | None
    rows: pa.RecordBatch


class WriteBatch:
    """One batch on its way to one bucket."""

    __slots__ = (
        "attempts",
        "bucket",
        "created",
        "data",
        "encoded",
        "handle",
        "memory",
        "partition_name",
        "refused",
        "round",
        "rows",
        "sequence",
        "uncertain",
        "writer_id",
    )

    def __init__(
        self,
        bucket: TableBucket,
        partition_name: str | None,
        rows: int,
        memory: int,
        handle: WriteResultHandle,
    ) -> None:
        self.bucket = bucket
        self.partition_name = partition_name
        self.rows = rows
        # what is still to be encoded
        self.data: pa.RecordBatch | None = None
        self.memory = memory
        self.handle = handle
        self.created = time.monotonic()
        self.encoded: StampedBatch | None = None
        self.attempts = 0
        self.writer_id = -1
        self.sequence = -1
        # an attempt got no answer: the server may have written the batch, or not
        self.uncertain = False
        # a server refused the batch, as it did not know its writer or its sequence
        self.refused = False
        # with which others it is waited for; since a sender has it
        self.round: Round

    @property
    def place(self) -> tuple[str | None, int]:
        """The partition's name and the bucket: what stays where the partition is created again."""
        return self.partition_name, self.bucket.bucket_id


@dataclass(frozen=True, slots=True)
class BucketResult:
    """The acknowledged rows of a bucket.

    Parameters
    ----------
    partition_name, bucket_id
        Which bucket.
    base_offset, end_offset
        The first offset that was written, and the one behind the last. Other writers' rows may
        lie between. Of primary-key tables only the end of the changelog is known, and the first
        is -1.
    rows
        How many rows were written.
    """

    partition_name: str | None
    bucket_id: int
    base_offset: int
    end_offset: int
    rows: int

    def __str__(self) -> str:
        name = "" if self.partition_name is None else f"{self.partition_name}/"
        return f"{name}{self.bucket_id}[{self.base_offset}:{self.end_offset}]"


class BufferMemory:
    """Bytes that wait in a writer, and callers that wait for room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._room = threading.Condition()

    @property
    def used(self) -> int:
        """How many are taken."""
        return self._used

    def take(self, size: int, timeout_ms: float) -> bool:
        """Take bytes, waiting for room; False when there was none within the timeout.

        One piece larger than the limit is let through alone. The wait ends early where nobody
        waits for it any more, see :func:`~fluss_df.client.runtime.interrupts.abandoned`.
        """
        end = time.monotonic() + timeout_ms / 1000

        def room() -> bool:
            return self._used == 0 or self._used + size <= self._limit

        with self._room:
            while not room():
                left = end - time.monotonic()
                if left <= 0 or abandoned():
                    return False
                self._room.wait(min(left, WAIT_SLICE_S))
            self._used += size
            return True

    def take_at_once(self, size: int) -> None:
        """Take bytes without waiting, for what must not wait."""
        with self._room:
            self._used += size

    def give_back(self, size: int) -> None:
        """Give bytes back."""
        with self._room:
            self._used -= size
            self._room.notify_all()
