"""The common part of writers, :class:`TableWriter`; those that stay open are flushed at exit."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.routing.row_router import RowRouter
from fluss_df.client.runtime.awaitable import Ready, ready
from fluss_df.client.runtime.interrupts import shielded
from fluss_df.client.runtime.io_thread import reset_after_fork, result_of
from fluss_df.client.send.batch import BucketResult, BufferMemory, RoutedBatch, WriteResultHandle
from fluss_df.client.send.sender import Sender
from fluss_df.client.transport.folders import served_here
from fluss_df.client.write.accumulator import Accumulator
from fluss_df.client.write.codec import RowCodec
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.hooks import Closing, ExitStep, at_exit
from fluss_df.metadata import TableBucket
from fluss_df.observe import spans
from fluss_df.record.python.pandas_columns import frame_to_arrow
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

# seconds for rows to a cluster, which may be out of reach: the end of a program must not hang
_EXIT_FLUSH_S = 3.0
# seconds for rows to an engine of this process: only its disk can be slow
_EXIT_FLUSH_HERE_S = 60.0

# the writers that are flushed when the program ends, each with the settings of its connection
_open_writers: weakref.WeakKeyDictionary[TableWriter, Config] = weakref.WeakKeyDictionary()


class TableWriter(Ready, Closing):
    """Checks what it is given at once, and sends it in the background, in order.

    Rows and small frames wait up to ``writer.batch-timeout`` for more; :meth:`flush` waits until
    all is acknowledged. When ``writer.buffer.memory-size`` bytes are on their way, the caller
    waits. For any number of threads.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        codec: RowCodec,
        *,
        create_partitions: bool,
    ) -> None:
        self._connection = connection
        self._info = info
        self._config = connection.config
        self._codec = codec
        self._name = str(info.table_path)
        if not codec.columns:
            # servers create such tables
            raise FlussError(
                f"table {self._name} has no columns: there is nothing to write",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._create_partitions = create_partitions
        self._ended = False
        self._reset()
        reset_after_fork(self)
        connection.register_writer(self)
        _open_writers[self] = self._config

    def _reset(self) -> None:
        """Set up what belongs to one process."""
        connection, info, codec = self._connection, self._info, self._codec
        self._router = RowRouter(
            connection,
            info,
            codec.columns,
            most_rows=codec.most_rows,
            create_partitions=self._create_partitions,
        )
        self._accumulator = Accumulator(
            connection, self._name, codec, self._router, self._new_sender, owner=self
        )
        if self._ended:
            self._accumulator.close()
        self._put_row = self._accumulator.put_row

    def _new_sender(self, memory: BufferMemory) -> Sender:
        return Sender(
            self._connection.cluster,
            self._info,
            self._config,
            self._connection.metrics,
            memory,
            self._codec.api,
            create_partitions=self._create_partitions,
            partition_moved=self._router.learn,
        )

    def after_fork(self) -> None:
        """Start empty in a forked child: what was pending is for the parent to write."""
        self._reset()

    @property
    def info(self) -> TableInfo:
        """The table."""
        return self._info

    # ---- writing

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write an Arrow record batch, or whatever has ``__arrow_c_array__``."""
        if not isinstance(batch, pa.RecordBatch):
            with self._importing(batch):
                batch = pa.record_batch(batch)
        return self._take(batch, self._codec.frame)

    def write_arrow(self, table: Any) -> WriteResultHandle:
        """Write an Arrow table, or whatever has ``__arrow_c_stream__`` (Polars, DuckDB, ...).

        A table is checked as a whole before any of it is sent. A stream is checked and sent batch
        by batch; an error says how many rows were taken before it.
        """
        return self._take(table, self._codec.frame)

    def _take(
        self,
        data: Any,
        to_frame: Callable[[pa.Table], pa.Table],
        verb: str = "write",
        where: str = "to",
    ) -> WriteResultHandle:
        """Write Arrow data of any kind; ``to_frame`` checks each table and makes a frame of it."""
        if isinstance(data, pa.Table):
            return self._write(to_frame(data))
        if isinstance(data, pa.RecordBatch):
            return self._write(to_frame(pa.Table.from_batches([data])))
        if hasattr(data, "__arrow_c_stream__"):
            with self._importing(data):
                reader = pa.RecordBatchReader.from_stream(data)
            return self._write_stream(reader, to_frame)
        if hasattr(data, "__arrow_c_array__"):
            with self._importing(data):
                batch = pa.record_batch(data)
            return self._write(to_frame(pa.Table.from_batches([batch])))
        raise SchemaMismatchError(
            f"cannot {verb} {type(data).__name__} {where} table {self._name}: expected a pyarrow"
            " Table or RecordBatch, or anything that exports __arrow_c_stream__"
        )

    def write_pandas(self, df: pd.DataFrame) -> WriteResultHandle:
        """Write a pandas DataFrame; its index is not written.

        Columns go in as those of Arrow do, and objects as the values of rows. Besides, floats go
        into integers where they are whole numbers, whole days into dates, and NaN is null.
        """
        if not (hasattr(df, "columns") and hasattr(df, "iloc")):
            raise SchemaMismatchError(
                f"cannot write {type(df).__name__} to table {self._name} as a data frame of pandas:"
                " write_arrow takes whatever exports __arrow_c_stream__"
            )
        table = frame_to_arrow(df, self._codec.columns, self._name)
        return self._write(self._codec.frame(table))

    @contextlib.contextmanager
    def _importing(self, data: object) -> Iterator[None]:
        """Raise SchemaMismatchError where data, such as a series, cannot be read as rows."""
        try:
            yield
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaMismatchError(
                f"cannot write {type(data).__name__} to table {self._name}: it cannot be read as"
                f" rows of Arrow: {error}"
            ) from error

    def _write_stream(
        self, reader: pa.RecordBatchReader, to_frame: Callable[[pa.Table], pa.Table]
    ) -> WriteResultHandle:
        handle = WriteResultHandle()
        taken = 0
        error: FlussError | None = None
        try:
            for batch in reader:
                try:
                    data = to_frame(pa.Table.from_batches([batch]))
                except SchemaMismatchError as mismatch:
                    error = SchemaMismatchError(
                        f"{mismatch.message}; {taken} rows before this batch were taken",
                        mismatch.error_code,
                    )
                    raise error from None
                shielded(functools.partial(self._accumulator.send_frame, data, handle))
                taken += batch.num_rows
        except Exception:
            handle.seal(error)
            raise
        # not after Ctrl-C, which some of the batch may survive
        handle.seal()
        return handle

    def _write(self, data: pa.Table) -> WriteResultHandle:
        """Take a frame that was checked."""
        size = data.nbytes
        if self._config.writer_batch_timeout_ms and size < self._accumulator.target_bytes:
            handle = self._accumulator.add_frame(data, size)
            if handle is not None:
                return handle
        handle = WriteResultHandle()
        try:
            shielded(functools.partial(self._accumulator.send_frame, data, handle))
        except Exception as error:
            handle.seal(error if isinstance(error, FlussError) else None)
            raise
        # not after Ctrl-C, which some of the frame may survive
        handle.seal()
        return handle

    # ---- batch by batch, under a writer id that is known beforehand

    @property
    def frame_schema(self) -> pa.Schema:
        """The schema of routed batches: the columns, and what the table's requests need."""
        return self._codec.frame_schema

    def route(self, table: pa.Table) -> list[RoutedBatch]:
        """Check a frame, and return its rows as the batches that are to be sent; none is."""
        data = self._codec.frame(table)
        with self._accumulator.lock:
            return list(self._router.routes(data, self._accumulator.target_bytes))

    def ask_writer_id(self) -> int:
        """Have a server give a writer id that nobody else has."""
        return self._connection.io.run(self._accumulator.started_sender().ids.ask())

    def send_as(
        self, writer_id: int, sequences: Mapping[TableBucket, int], batches: Iterable[RoutedBatch]
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
        shielded(functools.partial(self._accumulator.send_as, writer_id, sequences, batches))
        self.flush()

    # ---- the end

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything, and wait until it is acknowledged.

        What other threads write after it was called is not waited for.

        Raises
        ------
        FlussError
            When rows written since the last flush could not be written: how many, and why.
        TimeoutError
            When acknowledgements are outstanding after ``timeout_ms``.
        """
        with self._flush_span():
            self.wait_acknowledged(timeout_ms)
            self._raise_failures()
        return ready(None)

    def _flush_span(self) -> contextlib.AbstractContextManager[object]:
        """Have a flush traced, where somebody traces."""
        if spans.tracer is None:
            return contextlib.nullcontext()
        attributes = spans.log_attributes("send", self._name)
        attributes["messaging.batch.message_count"] = self.unflushed_rows
        return spans.current(f"send {self._name}", "producer", attributes)

    def _raise_failures(self) -> None:
        """Raise what failed since the last flush: one error for all of it, with its rows."""
        sender = self._accumulator.sender
        failed = None if sender is None else sender.failures.take()
        if failed is None:
            return
        first = failed.first
        if failed.batches == 1:
            raise first
        raise FlussError(
            f"{failed.batches} batches with {failed.rows} rows of table {self._name} were not"
            f" written; the first: {first.message}",
            first.error_code,
        ) from first

    def wait_acknowledged(self, timeout_ms: float | None) -> FlussError | None:
        """Send everything, and wait as :meth:`flush` does; return what it would raise first.

        Raises TimeoutError when acknowledgements are outstanding after ``timeout_ms``.
        """
        began = time.monotonic()
        self._send_all(timeout_ms)
        future = self._when_done()
        try:
            left_s = None
            if timeout_ms is not None:
                left_s = timeout_ms / 1000 - (time.monotonic() - began)
            result_of(future, left_s)
        except BaseException:
            future.cancel()
            raise
        sender = self._accumulator.sender
        return None if sender is None else sender.failures.first

    def _send_all(self, timeout_ms: float | None) -> None:
        """Send what waits; raise TimeoutError where another thread does not end its write."""
        # Java's clients pass the largest number of milliseconds for ever; locks cannot wait as long
        timeout_s = None if timeout_ms is None else min(timeout_ms / 1000, threading.TIMEOUT_MAX)
        shielded(functools.partial(self._accumulator.drain_within, timeout_s))

    def _when_done(self) -> concurrent.futures.Future[None]:
        """Return what ends once all that was sent so far is acknowledged or has failed."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        sender = self._accumulator.sender
        if sender is None:
            future.set_result(None)
        else:
            self._connection.io.call(sender.tell_when_all_done, future)
        return future

    def offsets(self) -> list[BucketResult]:
        """Return what was acknowledged so far, for each bucket."""
        sender = self._accumulator.sender
        return [] if sender is None else sender.acknowledged.results()

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        sender = self._accumulator.sender
        done = 0 if sender is None else sender.done_rows
        return self._accumulator.rows + self._accumulator.given_rows - done

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffer (``writer.buffer.memory-size``) that batches on their way take."""
        return self._accumulator.memory.used

    @property
    def failed_rows(self) -> int:
        """Rows that could not be written since the last flush."""
        sender = self._accumulator.sender
        return 0 if sender is None else sender.failures.rows

    def close(self) -> None:
        """Flush, then refuse further rows; a second call does nothing.

        Raises
        ------
        FlussError
            As :meth:`flush`.
        """
        self._refuse_rows()
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

    def _refuse_rows(self) -> None:
        self._accumulator.close()

    def _end(self) -> None:
        self._ended = True
        _open_writers.pop(self, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, unflushed_rows={self.unflushed_rows})"


def _flush_all() -> None:
    """Send the rows of writers that were not closed; log an error for rows that were not written.

    All writers send at the same time, so that the program's end takes one wait and not one for
    each writer.
    """
    began = time.monotonic()
    writers = list(_open_writers.items())
    for writer, _ in writers:
        # it only begins to send; errors are met again below
        with contextlib.suppress(Exception):
            writer.wait_acknowledged(0)
    for writer, config in writers:
        wait_s = _EXIT_FLUSH_HERE_S if served_here(config) else _EXIT_FLUSH_S
        left_s = max(0.0, began + wait_s - time.monotonic())
        try:
            failure = writer.wait_acknowledged(left_s * 1000)
        except TimeoutError:
            reason = f"no acknowledgement within {wait_s:g} s"
        except Exception as error:
            # the writers behind this one still have a chance
            reason = repr(error)
        else:
            if failure is None:
                continue
            reason = failure.message
        logger.error(
            "the program ended without close(): %d rows of table %s were not acknowledged (%s)",
            writer.unflushed_rows + writer.failed_rows,
            writer.info.table_path,
            reason,
        )


at_exit(ExitStep.WRITERS, _flush_all)
