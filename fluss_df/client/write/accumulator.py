"""The accumulator of a writer: rows wait until they make a batch, then they are sent."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.routing.row_router import RowRouter
from fluss_df.client.runtime.encoders import encode_pool
from fluss_df.client.runtime.interrupts import abandoned, shielded
from fluss_df.client.send.batch import BufferMemory, RoutedBatch, WriteBatch, WriteResultHandle
from fluss_df.client.send.sender import Sender
from fluss_df.client.write.codec import RowCodec
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.hooks import undoing
from fluss_df.metadata import TableBucket
from fluss_df.record.python.row_collector import Gathered, Row, RowGate

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

# rows of a batch that are added one by one, until the bytes of a row are known
_FIRST_ROWS = 8192
# batches up to this size are encoded on the caller's thread: a thread switch costs as much
_ENCODE_AT_ONCE_BYTES = 32 * 1024
# how long an encoder waits for the lock, and after how long it tries again
_LOCK_BUSY_WAIT_S = 0.001
_LOCK_BUSY_PAUSE_S = 0.01


class Accumulator:
    """Holds rows and small frames of a writer until they make batches, and sends these.

    Ctrl-C may come between any two steps of the main thread. So one list says which rows and frames
    wait, and each of them enters it by a single step. They are sent on threads without Ctrl-C.

    ``new_sender`` makes the sender when there is a first batch. ``owner`` is the writer. It is kept
    alive while batches are open, so that the end of the program can report rows that were not
    written.

    Attributes
    ----------
    lock
        Held while rows are sent: rows enter their bucket queues in the order in which threads had
        the lock.
    put_row
        Takes a row; returns the handle of the rows that wait.
    target_bytes
        About how many bytes a batch has.
    memory
        The bytes of batches that are open.
    sender
        Who sends the batches; None until there is one.
    given_rows
        How many rows the sender has received.
    """

    def __init__(
        self,
        connection: ClientContext,
        name: str,
        codec: RowCodec,
        router: RowRouter,
        new_sender: Callable[[BufferMemory], Sender],
        owner: object,
    ) -> None:
        self._connection = connection
        self._config = connection.config
        self._name = name
        self._codec = codec
        self._router = router
        self._new_sender = new_sender
        self._owner = owner
        self._width = codec.rows.width
        self.lock = threading.RLock()
        # what waits, in order; and how many bytes of it are frames
        self._waiting: list[Gathered | pa.RecordBatch] = []
        self._frame_bytes = 0
        # how many of the rows that were added one by one wait in front of a frame
        self._rows_before_frames = 0
        self._handle: WriteResultHandle | None = None
        self._closed = False
        self._timer_set = False
        self.target_bytes = self._config.writer_batch_size
        self.memory = BufferMemory(self._config.writer_buffer_memory_size)
        self.sender: Sender | None = None
        self.given_rows = 0
        self._gate = RowGate()
        self._limit_rows(_FIRST_ROWS)
        self.put_row: Callable[[Row], WriteResultHandle] = codec.rows.taker(
            self._gate, self._drain_full, self._late, self.put
        )

    def started_sender(self) -> Sender:
        """Return who sends the batches."""
        if self.sender is None:
            self.sender = self._new_sender(self.memory)
        return self.sender

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return self._count(self._waiting)

    def close(self) -> None:
        """Refuse further rows."""
        with self.lock:
            self._gate.open = None
            self._closed = True

    def require_open(self) -> None:
        """Raise FlussError once it is closed."""
        if self._closed:
            raise FlussError(f"the writer of table {self._name} is closed: create a new one")

    # ---- rows and frames come in

    def put(self, row: Row) -> WriteResultHandle:
        """Take a row; raise an error at once if it does not fit the table."""
        values = self._codec.rows.values(row)
        with self.lock:
            gathered = self._gathered()
            gathered.extend(values)
            handle = self._join(gathered)
        if gathered.rows(self._width) >= self._rows_limit:
            self._drain_full()
        return handle

    def delete(self, key: Sequence[Any]) -> WriteResultHandle:
        """Take the checked key of a row to delete."""
        with self.lock:
            gathered = self._gathered()
            gathered.deletes.append((gathered.rows(self._width), key))
            handle = self._join(gathered)
        if gathered.rows(self._width) >= self._rows_limit:
            self._drain_full()
        return handle

    def _late(self, gathered: Gathered, values: Sequence[Any], row: Row) -> WriteResultHandle:
        """Make sure that a row is sent whose rows may have been drained while it joined them."""
        with self.lock:
            # the rows still wait, or the row was drained with them
            if gathered.taken is None or not gathered.take_back(values):
                handle: WriteResultHandle = gathered.handle
                return handle
        return self.put(row)

    def _gathered(self) -> Gathered:
        """Return the rows that the next row joins; the lock is held."""
        self.require_open()
        gathered = self._last_rows()
        if gathered is None:
            gathered = Gathered()
            self._waiting.append(gathered)
        return gathered

    def _last_rows(self) -> Gathered | None:
        """Return the last rows that wait; None if nothing waits, or the last is a frame."""
        last = self._waiting[-1] if self._waiting else None
        return last if isinstance(last, Gathered) else None

    def _join(self, gathered: Gathered) -> WriteResultHandle:
        """Let the next rows join these; return the handle of what waits. The lock is held."""
        handle = gathered.handle = self._handle or self._new_handle()
        self._gate.open = gathered
        return handle

    def _limit_rows(self, rows: int) -> None:
        """Set how many rows that are added one by one make a batch."""
        self._rows_limit = rows
        self._gate.limit = rows * self._width

    def add_frame(self, data: pa.Table, size: int) -> WriteResultHandle | None:
        """Let a small frame wait; return None, and take nothing, if there is enough for a batch."""
        with self.lock:
            self.require_open()
            last = self._last_rows()
            rows = self._rows_before_frames + (0 if last is None else last.rows(self._width))
            if size + self._frame_bytes >= self.target_bytes or rows >= self._rows_limit:
                return None
            # the next row must not join the rows in front of the frame
            self._gate.open = None
            handle = self._handle or self._new_handle()
            self._waiting += data.to_batches()
            self._frame_bytes += size
            self._rows_before_frames = rows
            return handle

    # ---- sending it

    def _new_handle(self) -> WriteResultHandle:
        if not self._timer_set:
            self._set_timer(self._config.writer_batch_timeout_ms / 1000)
        handle = self._handle = WriteResultHandle(self._send_waiting)
        return handle

    def _set_timer(self, delay_s: float) -> None:
        io = self._connection.io

        def set_timer() -> None:
            # set on the I/O thread, where no Ctrl-C comes; a second timer does no harm
            self._timer_set = True
            io.loop.call_later(delay_s, self._lingered)

        io.call(set_timer)

    def _lingered(self) -> None:
        """Have an encoder send what waits: the time to linger is over. Runs on the I/O thread."""
        self._timer_set = False
        try:
            encode_pool().submit(self._send_lingering)
        except RuntimeError:  # the interpreter is ending; its exit hook flushes
            logger.debug("no thread to send lingering rows with")

    def _send_lingering(self) -> None:
        # who holds the lock may wait for room, which encoders make: they must not all wait for it
        if not self.lock.acquire(timeout=_LOCK_BUSY_WAIT_S):
            self._set_timer(_LOCK_BUSY_PAUSE_S)
            return
        try:
            self.drain(wait_for_room=False)
        finally:
            self.lock.release()

    def _send_waiting(self, may_block: bool) -> None:
        if may_block and not self._waits_alone():
            shielded(functools.partial(self.drain, wait_for_room=False))
        else:
            # the I/O thread sends a single row itself, so no encoder is needed
            self._connection.io.call(self._send_soon)

    def _send_soon(self) -> None:
        """Send what waits. Runs on the I/O thread, which encodes a single row and nothing more."""
        if self.lock.acquire(blocking=False):
            try:
                if self._waits_alone() and self._drain_lone_row(wait_for_room=False):
                    return
            finally:
                self.lock.release()
        self._lingered()

    def _drain_full(self) -> None:
        """Send what waits if the rows make a batch; wait for room in the buffer."""
        shielded(self._drain_if_full)

    def _drain_if_full(self) -> None:
        with self.lock:
            last = self._last_rows()
            if last is not None and last.rows(self._width) >= self._rows_limit:
                self.drain()

    def drain_within(self, timeout_s: float | None) -> None:
        """Send what waits; raise TimeoutError where another thread does not end its write."""
        if not self.lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            raise TimeoutError(f"another thread is writing to table {self._name}")
        try:
            self.drain(wait_for_room=False)
        finally:
            self.lock.release()

    def drain(self, *, wait_for_room: bool = True) -> None:
        """Send what waits. Must run where no Ctrl-C comes in between, see ``shielded``."""
        with self.lock:
            if self._waits_alone() and self._drain_lone_row(wait_for_room=wait_for_room):
                return
            if not self._waiting and self._handle is None:
                return
            self._gate.open = None
            waiting, self._waiting = self._waiting, []
            handle, self._handle = self._handle or WriteResultHandle(), None
            self._frame_bytes = self._rows_before_frames = 0
            values = [item.take() if isinstance(item, Gathered) else [] for item in waiting]

            def send() -> None:
                batches = [
                    self._rows_batch(item, of) if isinstance(item, Gathered) else item
                    for item, of in zip(waiting, values, strict=True)
                    if self._count([item])
                ]
                data = pa.Table.from_batches(batches, self._codec.frame_schema)
                self._send(data, handle, self.target_bytes, wait_for_room=wait_for_room)

            self._send_or_note(send, handle, self._count(waiting))

    def _send_or_note(self, send: Callable[[], None], handle: WriteResultHandle, rows: int) -> None:
        """Send rows; an error is not raised, as the caller may be that of another row.

        Their handle and the next flush report it.
        """
        given_rows = self.given_rows
        error: FlussError | None = None
        try:
            send()
        except FlussError as failure:
            error = failure
        except Exception as failure:
            logger.exception("rows of table %s cannot be sent", self._name)
            error = FlussError(f"rows of table {self._name} cannot be sent: {failure!r}")
        if error is not None:
            self.started_sender().failures.note(error, rows - (self.given_rows - given_rows))
        handle.seal(error)

    def _rows_batch(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        batch = self._codec.frame_of_rows(gathered, values)
        self._adapt(batch.num_rows, batch.nbytes)
        return batch

    def _adapt(self, rows: int, size: int) -> None:
        """Raise the target size of batches while they come filled, and lower it otherwise."""
        config = self._config
        if config.writer_dynamic_batch_size_enabled:
            filled = size / self.target_bytes
            smallest = min(config.writer_dynamic_batch_size_min, config.writer_batch_size)
            if filled > 0.8:
                self.target_bytes = min(int(self.target_bytes * 1.1), config.writer_batch_size)
            elif filled < 0.5:
                self.target_bytes = max(int(self.target_bytes * 0.95), smallest)
        self._limit_rows(max(1, min(self.target_bytes * rows // max(1, size), 1 << 20)))

    def _waits_alone(self) -> bool:
        """Whether a single row waits, and nothing else."""
        only = self._waiting[0] if len(self._waiting) == 1 else None
        return isinstance(only, Gathered) and only.rows(self._width) == 1

    def _drain_lone_row(self, *, wait_for_room: bool) -> bool:
        """Send a single row that waits, if its values are plain; return whether it was sent."""
        gathered = self._waiting[0]
        assert isinstance(gathered, Gathered)
        self._gate.open = None
        values = gathered.take()
        # another row may have joined it just before
        alone = gathered.rows(self._width) == 1
        found = place = None
        # an error is met again, and noted, where the row is sent as a frame of one
        with contextlib.suppress(FlussError):
            found = self._codec.one_row(gathered, values) if alone else None
            place = None if found is None else self._router.place(found[0])
        if found is None or place is None:
            gathered.taken = None
            return False
        encoded = found[1]
        bucket, partition_name = place
        self._waiting = []
        handle, self._handle = self._handle or WriteResultHandle(), None

        def send() -> None:
            self._take_room(encoded.nbytes, 1, wait=wait_for_room)
            batch = WriteBatch(bucket, partition_name, 1, encoded.nbytes, handle)
            batch.encoded = encoded
            self._hand_over(batch)

        self._send_or_note(send, handle, 1)
        return True

    def _count(self, waiting: Sequence[Gathered | pa.RecordBatch]) -> int:
        return sum(
            item.rows(self._width) if isinstance(item, Gathered) else item.num_rows
            for item in waiting
        )

    # ---- frames become batches; callers hold the lock

    def send_frame(self, data: pa.Table, handle: WriteResultHandle) -> None:
        """Send a frame, behind what waits."""
        with self.lock:
            self.require_open()
            self.drain()
            size = self._codec.frame_bytes(self.target_bytes)
            self._send(data, handle, size, may_stop=True)

    def _send(
        self,
        data: pa.Table,
        handle: WriteResultHandle,
        target_bytes: int,
        *,
        wait_for_room: bool = True,
        may_stop: bool = False,
    ) -> None:
        """Cut rows into batches of about ``target_bytes``, and send them.

        ``may_stop`` says whether Ctrl-C may end this before the next batch: the rows are not
        accepted yet.
        """
        if not data.num_rows:
            return
        try:
            batches = self._router.routes(data, target_bytes)
        except SchemaMismatchError as error:
            # the error counts rows from the first row of this frame, users from their first row
            error.rows_before = self.given_rows
            raise
        for routed in batches:
            if may_stop and abandoned():
                raise FlussError(f"writing to table {self._name} was interrupted")
            self._enqueue(routed, handle, wait_for_room=wait_for_room)

    def send_as(
        self, writer_id: int, sequences: Mapping[TableBucket, int], batches: Iterable[RoutedBatch]
    ) -> None:
        """Send batches as they are, in order; see :meth:`TableWriter.send_as`."""
        with self.lock:
            self._connection.io.call(self.started_sender().ids.fix, writer_id, sequences)
            handle = WriteResultHandle()
            for batch in batches:
                self._enqueue(batch, handle, wait_for_room=True)
            handle.seal()

    def _take_room(self, size: int, rows: int, *, wait: bool) -> None:
        """Take bytes of the writer's buffer for rows.

        Without ``wait``, or after Ctrl-C, the limit is exceeded. Raises ``REQUEST_TIME_OUT`` when
        there is no room within ``writer.buffer.wait-timeout``.
        """
        if wait and self.memory.take(size, self._config.writer_buffer_wait_timeout_ms):
            return
        if wait and not abandoned():
            raise FlussError(
                f"no room for {rows} rows of table {self._name} in the"
                f" writer's buffer of {self._config.writer_buffer_memory_size} bytes"
                f" within {self._config.writer_buffer_wait_timeout_ms} ms",
                ErrorCode.REQUEST_TIME_OUT,
            )
        self.memory.take_at_once(size)

    def _enqueue(
        self, routed: RoutedBatch, handle: WriteResultHandle, *, wait_for_room: bool
    ) -> None:
        sender = self.started_sender()
        rows = routed.rows
        size = rows.nbytes
        self._take_room(size, rows.num_rows, wait=wait_for_room)
        batch = WriteBatch(routed.bucket, routed.partition_name, rows.num_rows, size, handle)
        batch.data = rows
        if size <= _ENCODE_AT_ONCE_BYTES:
            # no sender has the batch, and so nobody else would give its room back
            with undoing(lambda: self.memory.give_back(batch.memory)):
                self._encode(batch, None)
            self._hand_over(batch)
            return
        self._hand_over(batch)
        try:
            encode_pool().submit(self._encode, batch, sender)
        except RuntimeError:  # the interpreter is ending
            self._encode(batch, sender)

    def _hand_over(self, batch: WriteBatch) -> None:
        """Give a batch to the sender; its rows are open from now on."""
        batch.handle.expect(1)
        # counted here: at the end of the program, the sender's thread may not reach the batch any
        # more, and its rows have to be reported
        self.given_rows += batch.rows
        self._connection.io.call(self.started_sender().enqueue, [batch], self._owner)

    def _encode(self, batch: WriteBatch, sender: Sender | None) -> None:
        """Encode a batch; tell the sender, if it has the batch already."""
        data = batch.data
        if data is None:  # the sender gave the batch up meanwhile
            return
        try:
            encoded = self._codec.encode(data)
        except Exception as error:
            if not isinstance(error, FlussError):
                logger.exception("a batch of table %s could not be encoded", self._name)
            failure = FlussError(f"a batch of table {self._name} cannot be encoded: {error}")
            if sender is None:
                raise failure from error
            self._connection.io.call(sender.refuse, batch, failure)
            return
        batch.data = None
        saved = batch.memory - encoded.nbytes
        if saved > 0:
            batch.memory = encoded.nbytes
            self.memory.give_back(saved)
        batch.encoded = encoded
        if sender is not None:
            self._connection.io.call(sender.wake)
