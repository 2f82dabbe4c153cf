"""What writers of log tables and of primary-key tables share: :class:`TableWriter`."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from fluss_df.client.encode_pool import encode_pool
from fluss_df.client.exit_flush import flush_at_exit, needs_no_flush
from fluss_df.client.facade import Ready, ready
from fluss_df.client.io_thread import reset_after_fork, result_of
from fluss_df.client.plain_keys import PlainPartitions
from fluss_df.client.routing import PartitionRouter, bucket_assigner
from fluss_df.client.sender import Sender
from fluss_df.client.write_api import WriteApi
from fluss_df.client.write_batch import (
    BucketResult,
    BufferMemory,
    EncodedBatch,
    RoutedBatch,
    WriteBatch,
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
# batches this small are encoded at once by the caller: a thread switch costs as much
_ENCODE_AT_ONCE_BYTES = 32 * 1024
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
        self._memory = BufferMemory(self._config.writer_buffer_memory_size)
        self._partitions = PartitionRouter(
            self._connection, self._info, create=self._create_partitions
        )
        self._plain_partitions = (
            PlainPartitions(self._info, self._columns) if self._info.is_partitioned() else None
        )
        self._assign = bucket_assigner(self._info, self._config, self._columns)
        self._target_bytes = self._config.writer_batch_size
        self._sender: Sender | None = None

    def after_fork(self) -> None:
        """Start empty in a forked child: what was pending is for the parent to write."""
        self._reset()

    def _started_sender(self) -> Sender:
        if self._sender is None:
            self._sender = Sender(
                self._connection.cluster,
                self._info,
                self._config,
                self._connection.metrics,
                self._memory,
                self._write_api(),
            )
        return self._sender

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
                    self._dispatch(data, handle)
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
                self._dispatch(data, handle)
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
        try:
            if self._drain_lone_row(handle, wait_for_room=wait_for_room):
                return
            self._gate.handle = None
            self._rows_to_pending()
            batches, self._pending, self._pending_bytes = self._pending, [], 0
            data = pa.Table.from_batches(batches, self._frame_schema)
            self._dispatch(data, handle, wait_for_room=wait_for_room)
        except FlussError as error:
            self._gate.handle = None
            self._forget_rows()
            self._pending, self._pending_bytes = [], 0
            # raised where the caller asks for the outcome: it may be another row's caller here
            self._started_sender().failures.append(error)
            handle.seal(error)
        else:
            handle.seal()

    # ---- on its way

    def _drain_lone_row(self, handle: WriteResultHandle, *, wait_for_room: bool) -> bool:
        """Send what is pending where it is one row of plain values; return whether it was."""
        found = None if self._pending else self._lone_row()
        if found is None:
            return False
        row, encoded = found
        name, partition_id = None, None
        if self._plain_partitions is not None:
            name = self._plain_partitions.name(row)
            partition_id = None if name is None else self._partitions.known_id(name)
            if partition_id is None:
                return False
        bucket = self._assign.of_one(row, partition_id)
        if bucket is None:
            return False
        # until there is room, Ctrl-C leaves the row where it is
        self._take_room(encoded.nbytes, 1, wait=wait_for_room)
        batch = WriteBatch(bucket, name, 1, encoded.nbytes, handle)
        batch.encoded = encoded
        handle.expect(1)
        self._gate.handle = None
        self._forget_rows()
        self._connection.io.call(self._started_sender().enqueue, [batch], self)
        handle.seal()
        return True

    def _dispatch(
        self, data: pa.Table, handle: WriteResultHandle, *, wait_for_room: bool = True
    ) -> None:
        """Route coerced data to partitions and buckets, and start encoding; the lock is held."""
        if not data.num_rows:
            return
        for routed in self._routes(data):
            self._enqueue(routed, handle, wait_for_room=wait_for_room)

    def _routes(self, data: pa.Table) -> Iterator[RoutedBatch]:
        # every partition is there, or nothing is sent
        for partition_name, partition_id, part in self._partitions.split(data):
            for piece in _pieces(part, self._target_bytes):
                for bucket, rows in self._assign(piece, partition_id):
                    yield RoutedBatch(bucket, partition_name, rows)

    def _enqueue(
        self, routed: RoutedBatch, handle: WriteResultHandle, *, wait_for_room: bool
    ) -> None:
        sender = self._started_sender()
        io = self._connection.io
        rows = routed.rows
        size = rows.nbytes
        self._take_room(size, rows.num_rows, wait=wait_for_room)
        handle.expect(1)
        batch = WriteBatch(routed.bucket, routed.partition_name, rows.num_rows, size, handle)
        batch.data = rows
        if size <= _ENCODE_AT_ONCE_BYTES:
            self._encode(batch, None)
            io.call(sender.enqueue, [batch], self)
            return
        io.call(sender.enqueue, [batch], self)
        try:
            encode_pool().submit(self._encode, batch, sender)
        except RuntimeError:  # the interpreter is ending
            self._encode(batch, sender)

    def _take_room(self, size: int, rows: int, *, wait: bool) -> None:
        """Take bytes of the buffer for rows."""
        if not wait:
            self._memory.take_at_once(size)
        elif not self._memory.take(size, self._config.writer_buffer_wait_timeout_ms):
            raise FlussError(
                f"no room for {rows} rows of table {self._name} in the"
                f" writer's buffer of {self._config.writer_buffer_memory_size} bytes"
                f" within {self._config.writer_buffer_wait_timeout_ms} ms",
                ErrorCode.REQUEST_TIME_OUT,
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
            return list(self._routes(data))

    def ask_writer_id(self) -> int:
        """Have a server give a writer id that nobody else has."""
        return self._connection.io.run(self._started_sender().ask_writer_id())

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
            self._connection.io.call(self._started_sender().fix_writer, writer_id, sequences)
            handle = WriteResultHandle()
            for batch in batches:
                self._enqueue(batch, handle, wait_for_room=True)
            handle.seal()
        self.flush()

    def _encode(self, batch: WriteBatch, sender: Sender | None) -> None:
        """Encode a batch, and tell the sender of it where there is one."""
        data = batch.data
        if data is None:  # given up meanwhile
            return
        try:
            encoded = self._encode_frame(data)
        except Exception as error:
            logger.exception("a batch of table %s could not be encoded", self._name)
            failure = FlussError(f"a batch of table {self._name} cannot be encoded: {error}")
            if sender is None:
                raise failure from error
            self._connection.io.call(sender.encoding_failed, batch, failure)
            return
        batch.data = None
        saved = batch.memory - encoded.nbytes
        if saved > 0:
            batch.memory = encoded.nbytes
            self._memory.give_back(saved)
        batch.encoded = encoded
        if sender is not None:
            self._connection.io.call(sender.wake)

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
        with self._lock:
            self._drain()
            sender = self._sender
        if sender is not None:
            future: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._connection.io.call(sender.tell_when_drained, future)
            try:
                result_of(future, None if timeout_ms is None else timeout_ms / 1000)
            except BaseException:
                future.cancel()
                raise
            self._raise_failures(sender)
        return ready(None)

    def _raise_failures(self, sender: Sender) -> None:
        failures, sender.failures = sender.failures, []
        if not failures:
            return
        rows, sender.failed_rows = sender.failed_rows, 0
        first = failures[0]
        if len(failures) == 1:
            raise first
        raise FlussError(
            f"{len(failures)} batches with {rows} rows of table {self._name} were not written;"
            f" the first: {first.message}",
            first.error_code,
        ) from first

    def offsets(self) -> list[BucketResult]:
        """Return what was acknowledged so far, for each bucket."""
        return [] if self._sender is None else self._sender.results()

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        sending = 0 if self._sender is None else self._sender.open_rows
        pending: int = sum(batch.num_rows for batch in self._pending)
        return self._row_count() + pending + sending

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


def _pieces(table: pa.Table, target_bytes: int) -> Iterable[pa.RecordBatch]:
    """Cut a table into record batches of about ``target_bytes``, chunks put together as needed."""
    rows = max(1, int(table.num_rows * target_bytes / max(1, table.nbytes)))
    # equal pieces rather than a small one at the end
    count = max(1, -(-table.num_rows // rows))
    rows = -(-table.num_rows // count)
    for start in range(0, table.num_rows, rows):
        piece = table.slice(start, rows).combine_chunks()
        yield from piece.to_batches()
