"""The batcher of a writer: routes rows to buckets, takes room in the buffer, encodes, sends."""

from __future__ import annotations

import concurrent.futures
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from fluss_df.client.routing.one_row import PlainPartitions
from fluss_df.client.routing.partitions import PartitionRouter, bucket_assigner
from fluss_df.client.runtime.encoders import encode_pool
from fluss_df.client.runtime.interrupts import abandoned
from fluss_df.client.runtime.io_thread import result_of
from fluss_df.client.send.batch import (
    BucketResult,
    BufferMemory,
    RoutedBatch,
    WriteBatch,
    WriteResultHandle,
)
from fluss_df.client.send.sender import Sender
from fluss_df.client.write.codec import RowCodec
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.metadata import TableBucket
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

# batches up to this size are encoded on the caller's thread: a thread switch costs as much
_ENCODE_AT_ONCE_BYTES = 32 * 1024

# at most this many bytes of rows are assigned to buckets in one step
_SPREAD_BYTES = 16 << 20
# a batch of up to 1.2 times its target size is sent whole: cut, it would be two small batches
_MARGIN = 1.2

#: A bucket, and the name of its partition (None in a table without partitions).
Place: TypeAlias = tuple[TableBucket, str | None]


class Batcher:
    """Makes batches of a writer's rows, and hands them to the sender.

    Callers hold the writer's lock, so that batches enter their bucket queues in the order of the
    calls. :meth:`wait_acknowledged` needs no lock.

    Parameters
    ----------
    connection, info
        The table.
    codec
        The row codec: how the table's rows are encoded.
    create_partitions
        Whether to create partitions of the rows that do not exist.
    owner
        The writer. It is kept alive while batches are open, so that the end of the program can
        report rows that were not written.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        codec: RowCodec,
        *,
        create_partitions: bool,
        owner: object,
    ) -> None:
        self._connection = connection
        self._info = info
        self._config = config = connection.config
        self._name = str(info.table_path)
        self._codec = codec
        self._owner = owner
        self._memory = BufferMemory(config.writer_buffer_memory_size)
        self._create_partitions = create_partitions
        self._partitions = PartitionRouter(connection, info, create=create_partitions)
        self._plain_partitions = (
            PlainPartitions(info, codec.columns) if info.is_partitioned() else None
        )
        self._assign = bucket_assigner(
            info, config, codec.columns, count_of=self._partitions.buckets_of
        )
        self._sender: Sender | None = None
        #: How many rows the sender has received.
        self.given_rows = 0

    def _started_sender(self) -> Sender:
        if self._sender is None:
            self._sender = Sender(
                self._connection.cluster,
                self._info,
                self._config,
                self._connection.metrics,
                self._memory,
                self._codec.api,
                create_partitions=self._create_partitions,
                partition_moved=self._partitions.learn,
            )
        return self._sender

    # ---- rows that were checked

    def send(
        self,
        data: pa.Table,
        handle: WriteResultHandle,
        target_bytes: int,
        *,
        wait_for_room: bool = True,
        may_stop: bool = False,
    ) -> None:
        """Route rows to partitions and buckets in batches of about ``target_bytes``, and send them.

        Parameters
        ----------
        data
            The rows.
        handle
            The handle of the rows, which waits for each batch.
        target_bytes
            About how many bytes of rows make a batch.
        wait_for_room
            Whether to wait for room in the writer's buffer; otherwise the limit is exceeded.
        may_stop
            Whether Ctrl-C may end this before the next batch: the rows are not accepted yet.
        """
        if not data.num_rows:
            return
        for routed in self.routes(data, target_bytes):
            if may_stop and abandoned():
                raise FlussError(f"writing to table {self._name} was interrupted")
            self._enqueue(routed, handle, wait_for_room=wait_for_room)

    def routes(self, data: pa.Table, target_bytes: int) -> Iterator[RoutedBatch]:
        """Iterate over the batches that some rows make, each of one bucket."""
        # a step has several target sizes of rows, so that each bucket gets about one of them
        spread_bytes = max(target_bytes, min(target_bytes * self._assign.spread, _SPREAD_BYTES))
        # before the first batch: if a partition is missing, no row is sent
        try:
            parts = self._partitions.split(data)
        except SchemaMismatchError as error:
            # the error counts rows from the first row of this frame, users from their first row
            error.rows_before = self.given_rows
            raise
        most_rows = self._codec.most_rows
        for partition_name, partition_id, part in parts:
            for piece in _pieces(part, spread_bytes):
                for bucket, rows in self._assign(piece, partition_id):
                    if rows.nbytes <= target_bytes * _MARGIN and rows.num_rows <= most_rows:
                        yield RoutedBatch(bucket, partition_name, rows)
                        continue
                    table = pa.Table.from_batches([rows])
                    for batch in _pieces(table, target_bytes, most_rows):
                        yield RoutedBatch(bucket, partition_name, batch)

    def place(self, row: Sequence[Any]) -> Place | None:
        """Return where a single row goes; None for a row that needs :meth:`routes`."""
        name, partition_id = None, None
        if self._plain_partitions is not None:
            name = self._plain_partitions.name(row)
            partition_id = None if name is None else self._partitions.known_id(name)
            if partition_id is None:
                return None
        bucket = self._assign.of_one(row, partition_id)
        return None if bucket is None else (bucket, name)

    def take_room(self, size: int, rows: int, *, wait: bool) -> None:
        """Take bytes of the writer's buffer for rows.

        Raises ``REQUEST_TIME_OUT`` when there is no room within ``writer.buffer.wait-timeout``.

        Parameters
        ----------
        size
            How many bytes.
        rows
            How many rows they are, for the error.
        wait
            Whether to wait for room. Without it, or after Ctrl-C, the limit is exceeded instead.
        """
        if wait and self._memory.take(size, self._config.writer_buffer_wait_timeout_ms):
            return
        if wait and not abandoned():
            raise FlussError(
                f"no room for {rows} rows of table {self._name} in the"
                f" writer's buffer of {self._config.writer_buffer_memory_size} bytes"
                f" within {self._config.writer_buffer_wait_timeout_ms} ms",
                ErrorCode.REQUEST_TIME_OUT,
            )
        self._memory.take_at_once(size)

    def send_row(self, place: Place, encoded: StampedBatch, handle: WriteResultHandle) -> None:
        """Send a single encoded row; the caller has taken room for it."""
        bucket, partition_name = place
        batch = WriteBatch(bucket, partition_name, 1, encoded.nbytes, handle)
        batch.encoded = encoded
        handle.expect(1)
        self._hand_over(batch)

    def _enqueue(
        self, routed: RoutedBatch, handle: WriteResultHandle, *, wait_for_room: bool
    ) -> None:
        sender = self._started_sender()
        rows = routed.rows
        size = rows.nbytes
        self.take_room(size, rows.num_rows, wait=wait_for_room)
        batch = WriteBatch(routed.bucket, routed.partition_name, rows.num_rows, size, handle)
        batch.data = rows
        if size <= _ENCODE_AT_ONCE_BYTES:
            try:
                self._encode(batch, None)
            except BaseException:
                # no sender has the batch, and so nobody else would give its room back
                self._memory.give_back(batch.memory)
                raise
            handle.expect(1)
            self._hand_over(batch)
            return
        handle.expect(1)
        self._hand_over(batch)
        try:
            encode_pool().submit(self._encode, batch, sender)
        except RuntimeError:  # the interpreter is ending
            self._encode(batch, sender)

    def _hand_over(self, batch: WriteBatch) -> None:
        """Give a batch to the sender; its rows are open from now on."""
        # counted here: at the end of the program, the sender's thread may not reach the batch any
        # more, and its rows have to be reported
        self.given_rows += batch.rows
        self._connection.io.call(self._started_sender().enqueue, [batch], self._owner)

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
            self._memory.give_back(saved)
        batch.encoded = encoded
        if sender is not None:
            self._connection.io.call(sender.wake)

    # ---- batches with a writer id that the caller chose

    def ask_writer_id(self) -> int:
        """Ask a server for a new writer id."""
        return self._connection.io.run(self._started_sender().ids.ask())

    def send_as(
        self,
        writer_id: int,
        sequences: Mapping[TableBucket, int],
        batches: Iterable[RoutedBatch],
    ) -> None:
        """Send batches as they are, in order; see :meth:`TableWriter.send_as`."""
        self._connection.io.call(self._started_sender().ids.fix, writer_id, sequences)
        handle = WriteResultHandle()
        for batch in batches:
            self._enqueue(batch, handle, wait_for_room=True)
        handle.seal()

    # ---- outcomes

    def failed(self, error: FlussError, rows: int) -> None:
        """Take note of rows that could not be sent, for the next :meth:`raise_failures`."""
        self._started_sender().failures.append((error, rows))

    def wait_acknowledged(self, timeout_ms: float | None) -> None:
        """Wait until everything is acknowledged or has failed.

        Raises TimeoutError when acknowledgements are outstanding after ``timeout_ms``.
        """
        sender = self._sender
        if sender is None:
            return
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._connection.io.call(sender.tell_when_drained, future)
        try:
            result_of(future, None if timeout_ms is None else timeout_ms / 1000)
        except BaseException:
            future.cancel()
            raise

    def raise_failures(self) -> None:
        """Raise FlussError when rows could not be written, with their number; once a failure."""
        sender = self._sender
        if sender is None:
            return
        failures, sender.failures = sender.failures, []
        if not failures:
            return
        first = failures[0][0]
        if len(failures) == 1:
            raise first
        rows = sum(rows for _, rows in failures)
        raise FlussError(
            f"{len(failures)} batches with {rows} rows of table {self._name} were not written;"
            f" the first: {first.message}",
            first.error_code,
        ) from first

    def results(self) -> list[BucketResult]:
        """Return the offsets and rows that were acknowledged so far, for each bucket."""
        return [] if self._sender is None else self._sender.results()

    @property
    def open_rows(self) -> int:
        """How many rows are neither acknowledged nor failed yet."""
        done = 0 if self._sender is None else self._sender.done_rows
        return self.given_rows - done

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of the buffer are in use."""
        return self._memory.used

    @property
    def failure(self) -> FlussError | None:
        """The first failure that :meth:`raise_failures` has not raised yet; None without one."""
        sender = self._sender
        return sender.failures[0][0] if sender is not None and sender.failures else None

    @property
    def failed_rows(self) -> int:
        """How many rows the failures have that :meth:`raise_failures` has not raised yet."""
        sender = self._sender
        return 0 if sender is None else sum(rows for _, rows in sender.failures)


def _pieces(
    table: pa.Table, target_bytes: int, most_rows: int = sys.maxsize
) -> Iterable[pa.RecordBatch]:
    """Cut a table into record batches of about ``target_bytes`` and at most ``most_rows`` rows."""
    rows = max(1, int(table.num_rows * target_bytes / max(1, table.nbytes)))
    rows = min(rows, most_rows)
    # pieces of equal size, rather than a small one at the end
    count = max(1, -(-table.num_rows // rows))
    rows = -(-table.num_rows // count)
    for start in range(0, table.num_rows, rows):
        piece = table.slice(start, rows).combine_chunks()
        yield from piece.to_batches()
