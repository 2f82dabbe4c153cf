"""What writers of log tables and of primary-key tables share: :class:`TableWriter`."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from fluss_df.client.encode_pool import encode_pool
from fluss_df.client.exit_flush import flush_at_exit, needs_no_flush
from fluss_df.client.facade import Ready, ready
from fluss_df.client.io_thread import reset_after_fork
from fluss_df.client.outgoing import Outgoing
from fluss_df.client.shield import shielded
from fluss_df.client.write_api import WriteApi
from fluss_df.client.write_batch import (
    BucketResult,
    EncodedBatch,
    RoutedBatch,
    WriteResultHandle,
)
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.metadata import TableBucket
from fluss_df.record.coerce import coerce
from fluss_df.record.row_collector import Gathered, RowCollector, RowGate
from fluss_df.schema import TableInfo
from fluss_df.types import Column, arrow_schema

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.connection import FlussConnection

logger = logging.getLogger(__name__)

Row = Mapping[str, Any] | Sequence[Any]

# first guess of the rows in a batch of rows, until their size is known
_FIRST_ROWS = 8192
_LOCK_BUSY_PAUSE_S = 0.01


class TableWriter(Ready):
    """Checks what it is given at once, and sends it in the background, in order.

    Rows and small frames wait up to ``writer.batch-timeout`` for more; :meth:`flush` waits until
    all is acknowledged. When ``writer.buffer.memory-size`` bytes are on their way, the caller
    waits. For any number of threads. Subclasses say what a frame is and how it is encoded.

    Parameters
    ----------
    connection
        The connection.
    info
        The table.
    columns
        The columns that rows have.
    frame_schema
        The Arrow schema of what waits and is encoded: the columns, and what a subclass adds.
    create_partitions
        Whether to create the partitions of the rows where they do not exist.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        *,
        columns: Sequence[Column],
        frame_schema: pa.Schema,
        create_partitions: bool,
    ) -> None:
        self._connection = connection
        self._info = info
        self._config = connection.config
        self._columns = columns
        self._frame_schema = frame_schema
        self._name = str(info.table_path)
        if not columns:
            # servers create such tables
            raise FlussError(
                f"table {self._name} has no columns: there is nothing to write",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._create_partitions = create_partitions
        self._width = len(columns)
        self._closed = False
        self._ended = False
        self._reset()
        reset_after_fork(self)
        connection.register_writer(self)
        flush_at_exit(self, self._config)

    # ---- for subclasses

    def _write_api(self) -> WriteApi:
        """Return the request that carries the batches."""
        raise NotImplementedError

    def _encode_frame(self, data: pa.RecordBatch) -> EncodedBatch:
        """Return the bytes of a batch; called in any thread."""
        raise NotImplementedError

    @property
    def _frame_bytes(self) -> int:
        """Of about so many bytes are the batches that a frame is cut into."""
        return self._target_bytes

    def _checked(self, table: pa.Table) -> pa.Table:
        """Return a user's frame in the form of ``frame_schema``, or raise SchemaMismatchError."""
        return coerce(table, self._columns, table=self._name)

    def _batch(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows that were added one by one, in the form of ``frame_schema``."""
        return self._rows.batch(values)

    def _lone_row(
        self, gathered: Gathered, values: Sequence[Any]
    ) -> tuple[Sequence[Any], EncodedBatch] | None:
        """Return the values, by column, and the bytes of a row that nothing else waits with.

        None where its values are not plain: it goes the way of many then, which costs a row
        0.2 ms.
        """
        raise NotImplementedError

    def _reset(self) -> None:
        """Set up what belongs to one process."""
        # the order in which rows enter the buckets is the order in which this lock was held
        self._lock = threading.RLock()
        self._rows = RowCollector(self._columns, self._name)
        # What waits for more, in order: rows that were added one by one, and small frames. Ctrl-C
        # may come between any two steps: what is in this list waits, whatever else is not done yet.
        self._waiting: list[Gathered | pa.RecordBatch] = []
        self._waiting_bytes = 0  # of frames
        self._rows_aside = 0  # that a frame follows
        self._handle: WriteResultHandle | None = None
        self._gate = RowGate()
        self._limit_rows(_FIRST_ROWS)
        self._put_row: Callable[[Row], WriteResultHandle] = self._rows.taker(
            self._gate, self._drain_full, self._late, self._put
        )
        self._timer_set = False
        self._target_bytes = self._config.writer_batch_size
        self._outgoing = Outgoing(
            self._connection,
            self._info,
            self._columns,
            self._write_api(),
            self._encode_frame,
            create_partitions=self._create_partitions,
            owner=self,
        )

    def after_fork(self) -> None:
        """Start empty in a forked child: what was pending is for the parent to write."""
        self._reset()

    @property
    def info(self) -> TableInfo:
        """The table."""
        return self._info

    # ---- writing

    def _put(self, row: Row) -> WriteResultHandle:
        """Take any row; it is refused at once where it does not fit."""
        values = self._rows.values(row)
        with self._lock:
            gathered = self._gathered()
            gathered.extend(values)
            handle = self._join(gathered)
        if gathered.rows(self._width) >= self._rows_limit:
            self._drain_full()
        return handle

    def _late(self, gathered: Gathered, values: Sequence[Any], row: Row) -> WriteResultHandle:
        """See to a row that joined others while these were being taken away, perhaps."""
        with self._lock:
            # they wait still, or it was taken away with them
            if gathered.taken is None or not gathered.take_back(values):
                handle: WriteResultHandle = gathered.handle
                return handle
        return self._put(row)

    def _gathered(self) -> Gathered:
        """Return the rows that a row is to join; the lock is held."""
        if self._closed:
            raise self._closed_error()
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Gathered):
            return last
        gathered = Gathered()
        self._waiting.append(gathered)
        return gathered

    def _join(self, gathered: Gathered) -> WriteResultHandle:
        """Let further rows join these; return the handle of what waits; the lock is held."""
        handle = gathered.handle = self._handle or self._new_handle()
        self._gate.open = gathered
        return handle

    def _limit_rows(self, rows: int) -> None:
        """Set how many rows, added one by one, are a batch."""
        self._rows_limit = rows
        self._gate.limit = rows * self._width

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write an Arrow record batch, or whatever has ``__arrow_c_array__``."""
        if not isinstance(batch, pa.RecordBatch):
            batch = pa.record_batch(batch)
        return self._write(self._checked(pa.Table.from_batches([batch])))

    def write_arrow(self, table: Any) -> WriteResultHandle:
        """Write an Arrow table, or whatever has ``__arrow_c_stream__`` (Polars, DuckDB, ...).

        A table is checked as a whole before any of it is sent. A stream is checked and sent batch
        by batch; an error says how many rows were taken before it.
        """
        if isinstance(table, pa.Table):
            return self._write(self._checked(table))
        if isinstance(table, pa.RecordBatch):
            return self.write_arrow_batch(table)
        if hasattr(table, "__arrow_c_stream__"):
            return self._write_stream(pa.RecordBatchReader.from_stream(table), self._checked)
        if hasattr(table, "__arrow_c_array__"):
            return self.write_arrow_batch(table)
        raise SchemaMismatchError(
            f"cannot write {type(table).__name__} to table {self._name}: expected a pyarrow Table"
            " or RecordBatch, or anything that exports __arrow_c_stream__"
        )

    def write_pandas(self, df: pd.DataFrame) -> WriteResultHandle:
        """Write a pandas DataFrame; its index is not written."""
        known = arrow_schema(self._columns)
        schema = pa.schema([field for field in known if field.name in df.columns])
        extra = [name for name in df.columns if name not in known.names]
        try:
            table = pa.Table.from_pandas(
                df[[*schema.names, *extra]], schema=None if extra else schema, preserve_index=False
            )
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(
                f"the data frame does not fit table {self._name}: {error}"
            ) from error
        except pa.ArrowTypeError as error:
            raise SchemaMismatchError(
                f"the data frame does not fit table {self._name}: {error}"
            ) from error
        return self._write(self._checked(table))

    def _write_stream(
        self, reader: pa.RecordBatchReader, check: Callable[[pa.Table], pa.Table]
    ) -> WriteResultHandle:
        handle = WriteResultHandle()
        taken = 0
        error: FlussError | None = None
        try:
            for batch in reader:
                try:
                    data = check(pa.Table.from_batches([batch]))
                except SchemaMismatchError as mismatch:
                    error = SchemaMismatchError(
                        f"{mismatch.message}; {taken} rows before this batch were taken",
                        mismatch.error_code,
                    )
                    raise error from None
                shielded(functools.partial(self._send_frame, data, handle))
                taken += batch.num_rows
        finally:
            handle.seal(error)
        return handle

    def _write(self, data: pa.Table) -> WriteResultHandle:
        """Take a frame that was checked."""
        size = data.nbytes
        if self._config.writer_batch_timeout_ms and size < self._target_bytes:
            handle = self._wait_for_more(data, size)
            if handle is not None:
                return handle
        handle = WriteResultHandle()
        try:
            shielded(functools.partial(self._send_frame, data, handle))
        except BaseException as error:
            handle.seal(error if isinstance(error, FlussError) else None)
            raise
        handle.seal()
        return handle

    def _wait_for_more(self, data: pa.Table, size: int) -> WriteResultHandle | None:
        """Let a small frame wait for more; return None where there is enough already."""
        with self._lock:
            if self._closed:
                raise self._closed_error()
            last = self._waiting[-1] if self._waiting else None
            rows = self._rows_aside
            if isinstance(last, Gathered):
                rows += last.rows(self._width)
            if size + self._waiting_bytes >= self._target_bytes or rows >= self._rows_limit:
                return None
            # a row that comes after the frame is not to join those in front of it
            self._gate.open = None
            handle = self._handle or self._new_handle()
            self._waiting += data.to_batches()
            self._waiting_bytes += size
            self._rows_aside = rows
            return handle

    def _send_frame(self, data: pa.Table, handle: WriteResultHandle) -> None:
        """Send a frame, behind what waits."""
        with self._lock:
            if self._closed:
                raise self._closed_error()
            self._drain()
            self._outgoing.send(data, handle, self._frame_bytes, may_stop=True)

    def _closed_error(self) -> FlussError:
        return FlussError(f"the writer of table {self._name} is closed: create a new one")

    # ---- what waits for more

    def _new_handle(self) -> WriteResultHandle:
        if not self._timer_set:
            self._set_timer(self._config.writer_batch_timeout_ms / 1000)
        handle = self._handle = WriteResultHandle(self._send_waiting)
        return handle

    def _set_timer(self, delay_s: float) -> None:
        io = self._connection.io

        def set_timer() -> None:
            # said here, where no Ctrl-C comes in between; a second timer does no harm
            self._timer_set = True
            io.loop.call_later(delay_s, self._lingered)

        io.call(set_timer)

    def _lingered(self) -> None:
        """Send what waited long enough; on the I/O thread, which must not encode."""
        self._timer_set = False
        try:
            encode_pool().submit(self._send_lingering)
        except RuntimeError:  # the interpreter is ending; its exit hook flushes
            logger.debug("no thread to send lingering rows with")

    def _send_lingering(self) -> None:
        # Who holds the lock may be waiting for room, which encoders make: they must not all wait
        # for the lock.
        if not self._lock.acquire(timeout=_LOCK_BUSY_PAUSE_S):
            self._set_timer(_LOCK_BUSY_PAUSE_S)
            return
        try:
            self._drain(wait_for_room=False)
        finally:
            self._lock.release()

    def _send_waiting(self) -> None:
        """Send what waits, without lingering; soon, on other threads."""
        self._connection.io.call(self._send_soon)

    def _send_soon(self) -> None:
        """Send what waits; on the I/O thread, which must not encode more than a single row."""
        if self._lock.acquire(blocking=False):
            try:
                if self._waits_alone() and self._drain_lone_row(wait_for_room=False):
                    return
            finally:
                self._lock.release()
        self._lingered()

    def _drain_full(self) -> None:
        """Send what waits where rows are enough for a batch; wait for room."""
        shielded(self._drain_if_full)

    def _drain_if_full(self) -> None:
        with self._lock:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, Gathered) and last.rows(self._width) >= self._rows_limit:
                self._drain()

    def _drain(self, *, wait_for_room: bool = True) -> None:
        """Send what waits; where nothing cuts that in two."""
        with self._lock:
            if self._waits_alone() and self._drain_lone_row(wait_for_room=wait_for_room):
                return
            if not self._waiting and self._handle is None:
                return
            self._gate.open = None
            waiting, self._waiting = self._waiting, []
            handle, self._handle = self._handle or WriteResultHandle(), None
            self._waiting_bytes = self._rows_aside = 0
            values = [item.take() if isinstance(item, Gathered) else [] for item in waiting]
            rows = self._count(waiting)
            given_rows = self._outgoing.given_rows
            error: FlussError | None = None
            try:
                batches = [
                    self._rows_batch(item, of) if isinstance(item, Gathered) else item
                    for item, of in zip(waiting, values, strict=True)
                    if self._count([item])
                ]
                data = pa.Table.from_batches(batches, self._frame_schema)
                self._outgoing.send(data, handle, self._target_bytes, wait_for_room=wait_for_room)
            except Exception as failure:
                error = self._as_failure(failure)
                # raised where the caller asks for the outcome: it may be another row's caller here
                self._outgoing.failed(error, rows - (self._outgoing.given_rows - given_rows))
            handle.seal(error)

    def _as_failure(self, error: Exception) -> FlussError:
        if isinstance(error, FlussError):
            return error
        logger.error("rows of table %s cannot be sent", self._name, exc_info=error)
        return FlussError(f"rows of table {self._name} cannot be sent: {error!r}")

    def _rows_batch(self, gathered: Gathered, values: Sequence[Any]) -> pa.RecordBatch:
        batch = self._batch(gathered, values)
        self._adapt(batch.num_rows, batch.nbytes)
        return batch

    def _adapt(self, rows: int, size: int) -> None:
        """Let batches of rows grow while they come filled, and shrink while they do not."""
        config = self._config
        if config.writer_dynamic_batch_size_enabled:
            filled = size / self._target_bytes
            smallest = min(config.writer_dynamic_batch_size_min, config.writer_batch_size)
            if filled > 0.8:
                self._target_bytes = min(int(self._target_bytes * 1.1), config.writer_batch_size)
            elif filled < 0.5:
                self._target_bytes = max(int(self._target_bytes * 0.95), smallest)
        self._limit_rows(max(1, min(self._target_bytes * rows // max(1, size), 1 << 20)))

    def _waits_alone(self) -> bool:
        """Whether a single row waits, and nothing else."""
        only = self._waiting[0] if len(self._waiting) == 1 else None
        return isinstance(only, Gathered) and only.rows(self._width) == 1

    def _drain_lone_row(self, *, wait_for_room: bool) -> bool:
        """Send a row that waits alone, if its values are plain; return whether they were."""
        gathered = self._waiting[0]
        assert isinstance(gathered, Gathered)
        self._gate.open = None
        values = gathered.take()
        # another one may have come in the last moment
        alone = gathered.rows(self._width) == 1
        found = self._lone_row(gathered, values) if alone else None
        place = None if found is None else self._outgoing.place(found[0])
        if found is None or place is None:
            gathered.taken = None
            return False
        self._waiting = []
        handle, self._handle = self._handle or WriteResultHandle(), None
        error: FlussError | None = None
        try:
            self._outgoing.take_room(found[1].nbytes, 1, wait=wait_for_room)
            self._outgoing.send_row(place, found[1], handle)
        except Exception as failure:
            error = self._as_failure(failure)
            self._outgoing.failed(error, 1)
        handle.seal(error)
        return True

    def _count(self, waiting: Sequence[Gathered | pa.RecordBatch]) -> int:
        return sum(
            item.rows(self._width) if isinstance(item, Gathered) else item.num_rows
            for item in waiting
        )

    # ---- batch by batch, under a writer id that is known beforehand

    @property
    def frame_schema(self) -> pa.Schema:
        """The schema of routed batches: the columns, and what the table's requests need."""
        return self._frame_schema

    def route(self, table: pa.Table) -> list[RoutedBatch]:
        """Check a frame, and return its rows as the batches that are to be sent; none is."""
        data = self._checked(table)
        with self._lock:
            return list(self._outgoing.routes(data, self._target_bytes))

    def ask_writer_id(self) -> int:
        """Have a server give a writer id that nobody else has."""
        return self._outgoing.ask_writer_id()

    def send_as(
        self,
        writer_id: int,
        sequences: Mapping[TableBucket, int],
        batches: Iterable[RoutedBatch],
    ) -> None:
        """Send batches as they are, in order and under this writer id, until all are acknowledged.

        The same batch under the same writer id and sequence is written once, however often it is
        sent. A writer is used for one id, and not for anything else besides.

        Parameters
        ----------
        writer_id
            See :meth:`ask_writer_id`.
        sequences
            That of the first batch for each bucket; 0 where there is none.
        batches
            As :meth:`route` returned them.
        """
        config = self._config
        if config.writer_acks != "all" or not config.writer_enable_idempotence:
            raise FlussError(
                f"table {self._name}: writing each row exactly once needs writer_acks='all' and"
                " writer_enable_idempotence=True in the connection's settings",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

        def send() -> None:
            with self._lock:
                self._outgoing.send_as(writer_id, sequences, batches)

        shielded(send)
        self.flush()

    # ---- the end

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything, and wait until it is acknowledged.

        Raises
        ------
        FlussError
            When rows written since the last flush could not be written: how many, and why.
        TimeoutError
            When acknowledgements are outstanding after ``timeout_ms``.
        """
        self.settle(timeout_ms)
        self._outgoing.raise_failures()
        return ready(None)

    def settle(self, timeout_ms: float | None) -> FlussError | None:
        """Send everything, and wait as :meth:`flush` does; return what it would raise first.

        Raises
        ------
        TimeoutError
            When acknowledgements are outstanding after ``timeout_ms``.
        """
        shielded(self._drain)
        self._outgoing.settle(timeout_ms)
        return self._outgoing.failure

    def offsets(self) -> list[BucketResult]:
        """Return what was acknowledged so far, for each bucket."""
        return self._outgoing.results()

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        return self._count(self._waiting) + self._outgoing.open_rows

    @property
    def failed_rows(self) -> int:
        """Rows that could not be written since the last flush."""
        return self._outgoing.failed_rows

    def close(self) -> None:
        """Flush, then refuse further rows; a second call does nothing.

        Raises
        ------
        FlussError
            As :meth:`flush`.
        """
        with self._lock:
            self._gate.open = None
            self._closed = True
        if self._ended:
            return ready(None)
        try:
            self.flush()
        except FlussError:
            self._end()
            raise
        # what Ctrl-C interrupts is for another close, or for the program's end
        self._end()
        return ready(None)

    def _end(self) -> None:
        self._ended = True
        needs_no_flush(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, unflushed_rows={self.unflushed_rows})"
