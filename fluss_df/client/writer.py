"""What writers of log tables and of primary-key tables share: :class:`TableWriter`."""

from __future__ import annotations

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
from fluss_df.record.row_collector import RowCollector, RowGate
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
        self._closed = False
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

    def _take_rows(self) -> pa.RecordBatch:
        """Return the rows that were added one by one, in the form of ``frame_schema``."""
        return self._rows.take()

    def _row_count(self) -> int:
        """Return how many rows were added one by one."""
        return len(self._rows)

    def _lone_row(self) -> tuple[Sequence[Any], EncodedBatch] | None:
        """Return the values, by column, and the bytes of a row that was added and is the only one.

        None where there are others, or its values are not plain: it goes the way of many then,
        which costs a row 0.2 ms.
        """
        raise NotImplementedError

    def _forget_rows(self) -> None:
        """Forget the rows that were added one by one."""
        self._rows.clear()

    def _reset(self) -> None:
        """Set up what belongs to one process."""
        # the order in which rows enter the buckets is the order in which this lock was held
        self._lock = threading.RLock()
        self._rows = RowCollector(self._columns, self._name)
        # its handle is that of what waits for more; None when nothing does
        self._gate = RowGate()
        self._limit_rows(_FIRST_ROWS)
        self._put_row: Callable[[Row], WriteResultHandle] = self._rows.taker(
            self._lock, self._gate, self._drain, self._put
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
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
        with self._lock:
            if self._closed:
                raise self._closed_error()
            count = self._rows.add(row)
            handle = self._handle or self._new_handle()
            if count >= self._rows_limit:
                self._drain()
        return handle

    @property
    def _handle(self) -> WriteResultHandle | None:
        """The handle of what waits for more."""
        handle: WriteResultHandle | None = self._gate.handle
        return handle

    def _limit_rows(self, rows: int) -> None:
        """Set how many rows, added one by one, are a batch."""
        self._rows_limit = rows
        self._gate.limit = rows * len(self._columns)

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
                with self._lock:
                    if self._closed:
                        raise self._closed_error()
                    self._drain()
                    self._outgoing.send(data, handle, self._frame_bytes)
                taken += batch.num_rows
        finally:
            handle.seal(error)
        return handle

    def _write(self, data: pa.Table) -> WriteResultHandle:
        """Take a frame that was checked."""
        with self._lock:
            if self._closed:
                raise self._closed_error()
            size = data.nbytes
            if (
                size + self._pending_bytes < self._target_bytes
                and self._config.writer_batch_timeout_ms
            ):
                # little: let it wait for more
                handle = self._handle or self._new_handle()
                self._rows_to_pending()
                self._pending += data.to_batches()
                self._pending_bytes += size
                return handle
            self._drain()
            handle = WriteResultHandle()
            try:
                self._outgoing.send(data, handle, self._frame_bytes)
            except BaseException as error:
                handle.seal(error if isinstance(error, FlussError) else None)
                raise
            handle.seal()
            return handle

    def _closed_error(self) -> FlussError:
        return FlussError(f"the writer of table {self._name} is closed: create a new one")

    # ---- what waits for more

    def _new_handle(self) -> WriteResultHandle:
        handle = self._gate.handle = WriteResultHandle(self._send_pending)
        if not self._timer_set:
            self._set_timer(self._config.writer_batch_timeout_ms / 1000)
        return handle

    def _set_timer(self, delay_s: float) -> None:
        self._timer_set = True
        io = self._connection.io
        io.call(lambda: io.loop.call_later(delay_s, self._lingered))

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
        if not self._lock.acquire(blocking=False):
            self._set_timer(_LOCK_BUSY_PAUSE_S)
            return
        try:
            self._drain(wait_for_room=False)
        finally:
            self._lock.release()

    def _send_pending(self, may_block: bool) -> bool:
        """Send what waits; where that must not block, only a row that takes next to no time."""
        if not self._lock.acquire(blocking=may_block):
            return False
        try:
            if may_block:
                self._drain(wait_for_room=False)
                return True
            return self._handle is None or self._drain_lone_row(self._handle, wait_for_room=False)
        finally:
            self._lock.release()

    def _rows_to_pending(self) -> None:
        rows = self._row_count()
        if rows:
            batch = self._take_rows()
            self._pending.append(batch)
            size = batch.nbytes
            self._pending_bytes += size
            self._adapt(rows, size)

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

    def _drain(self, *, wait_for_room: bool = True) -> None:
        """Send what is pending; the lock is held."""
        handle = self._handle
        if handle is None:
            return
        data: pa.Table | None = None
        given_rows = self._outgoing.given_rows
        try:
            if self._drain_lone_row(handle, wait_for_room=wait_for_room):
                return
            self._gate.handle = None
            self._rows_to_pending()
            batches, self._pending, self._pending_bytes = self._pending, [], 0
            data = pa.Table.from_batches(batches, self._frame_schema)
            self._outgoing.send(data, handle, self._target_bytes, wait_for_room=wait_for_room)
        except FlussError as error:
            rows = self._waiting_rows if data is None else data.num_rows
            self._gate.handle = None
            self._forget_rows()
            self._pending, self._pending_bytes = [], 0
            # raised where the caller asks for the outcome: it may be another row's caller here
            self._outgoing.failed(error, rows - (self._outgoing.given_rows - given_rows))
            handle.seal(error)
        else:
            handle.seal()

    def _drain_lone_row(self, handle: WriteResultHandle, *, wait_for_room: bool) -> bool:
        """Send what is pending where it is one row of plain values; return whether it was."""
        found = None if self._pending else self._lone_row()
        if found is None:
            return False
        row, encoded = found
        place = self._outgoing.place(row)
        if place is None:
            return False
        # until there is room, Ctrl-C leaves the row where it is
        self._outgoing.take_room(encoded.nbytes, 1, wait=wait_for_room)
        self._gate.handle = None
        self._forget_rows()
        self._outgoing.send_row(place, encoded, handle)
        handle.seal()
        return True

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
        with self._lock:
            self._outgoing.send_as(writer_id, sequences, batches)
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
        with self._lock:
            self._drain()
        self._outgoing.settle(timeout_ms)
        return self._outgoing.failure

    def offsets(self) -> list[BucketResult]:
        """Return what was acknowledged so far, for each bucket."""
        return self._outgoing.results()

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        return self._waiting_rows + self._outgoing.open_rows

    @property
    def _waiting_rows(self) -> int:
        pending: int = sum(batch.num_rows for batch in self._pending)
        return self._row_count() + pending

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
        if self._closed:
            return ready(None)
        try:
            self.flush()
        finally:
            self._closed = True
            needs_no_flush(self)
        return ready(None)

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
