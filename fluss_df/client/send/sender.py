"""Sends encoded batches in order, several at once, until the server has them exactly once.

For each bucket at most ``writer.max-inflight-requests-per-bucket`` batches are on their way, each
with a sequence number by which the server knows it again. Where one fails in a way that may pass,
the bucket stops, waits until the answers of all others are in, and starts again with the lowest
sequence: so the order within a bucket holds, and nothing is lost or doubled.

Everything here runs on the I/O thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.runtime.retry import STALE_METADATA, is_transient
from fluss_df.client.send.acknowledged import Acknowledged
from fluss_df.client.send.batch import BufferMemory, WriteBatch
from fluss_df.client.send.batch_parts import BatchParts
from fluss_df.client.send.bucket_queue import UNCERTAIN, BucketQueue, Hold
from fluss_df.client.send.failures import Failures
from fluss_df.client.send.open_batches import OpenBatches
from fluss_df.client.send.partition_moves import PartitionMoves
from fluss_df.client.send.writer_ids import WriterIds
from fluss_df.client.transport.multiplexed import CountedConnection
from fluss_df.config import Config
from fluss_df.errors import (
    DeadlineExceededError,
    ErrorCode,
    FlussError,
    NetworkError,
    ProtocolError,
)
from fluss_df.metadata import ServerNode, TableBucket, bucket_text
from fluss_df.protocol.frames import Response, parse_response, server_error
from fluss_df.protocol.message_parts import partition_of
from fluss_df.protocol.produce import UNKNOWN, WriteApi, Written
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

# an upper limit of the bytes that a request takes for each batch besides the batch itself
_REQUEST_OVERHEAD = 64
# the codes of a server that does not know the writer id, or not the sequence before this one
_NO_TRACE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)
# servers hang up on larger requests (netty.server.max-request-size, by default), with no answer
_LARGEST_REQUEST = 100 << 20


class Sender:
    """Sends the batches of one writer."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        config: Config,
        metrics: Metrics,
        memory: BufferMemory,
        api: WriteApi,
        *,
        create_partitions: bool,
        partition_moved: Callable[[str, int | None], object],
    ) -> None:
        self.cluster = cluster
        self.info = info
        self._config = config
        self._metrics = metrics
        self._of_table = metrics.of_table(info.table_path)
        self._memory = memory
        self._api = api
        self._acks = {"all": -1, "1": 1, "0": 0}[config.writer_acks]
        # by the name of the partition, as its id changes when it is created again
        # a queue stays for as long as the writer: it has the sequence number of the next batch
        self._queues: dict[tuple[str | None, int], BucketQueue] = {}
        # those of them that have batches to send, now or later
        self._busy: dict[tuple[str | None, int], BucketQueue] = {}
        self._open = OpenBatches()
        self._pump_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.acknowledged = Acknowledged()
        self.ids = WriterIds(cluster, info, idempotent=config.writer_enable_idempotence)
        self.failures = Failures()
        self.done_rows = 0
        self._parts = BatchParts(self.ids, self._count_one_more)
        self._moves = PartitionMoves(self, create=create_partitions, moved=partition_moved)
        self._owner: object | None = None

    # ---- from the writer

    def enqueue(self, batches: Iterable[WriteBatch], owner: object) -> None:
        """Take batches whose order within their bucket is settled; they may still be encoding.

        The owner is kept alive until they are done with, for the report at the program's end.
        """
        self._owner = owner
        idle = not self._open.count
        for batch in batches:
            queue = self._queues.get(batch.place)
            if queue is None:
                queue = BucketQueue(batch.bucket, batch.partition_name, self._config)
                self._queues[batch.place] = queue
            elif batch.bucket != queue.bucket:
                self._moves.meet(queue, batch)
            queue.waiting.append(batch)
            self._busy[batch.place] = queue
            batch.round = self._open.enter()
        if idle:
            # no other batch is waiting or in flight: there is none to send in the same request
            self._pump()
        else:
            self.wake()

    def wake(self) -> None:
        """Have :meth:`_pump` called in the next turn of the event loop; many calls are one."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def refuse(self, batch: WriteBatch, error: FlussError) -> None:
        """Fail a batch of the waiting ones that was never sent, as no server would take it."""
        queue = self._queues[batch.place]
        queue.waiting.remove(batch)
        # with a fixed writer id, no later batch may get its sequence number: later ones fail, too
        queue.renew_writer |= self.ids.fixed
        self._finish(batch, error)
        self.wake()

    def tell_when_all_done(self, future: concurrent.futures.Future[None]) -> None:
        """Set the result of a future once every batch so far is acknowledged or failed."""
        self._open.tell_when_done(future)

    # ---- sending

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task, and keep a reference until it ends: asyncio itself keeps only weak ones."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pump(self) -> None:
        """Group what may be sent by leader, and send it.

        A request carries at most one batch of a bucket: answers are per bucket.
        """
        self._pump_scheduled = False
        while True:
            groups: dict[ServerNode, list[WriteBatch]] = defaultdict(list)
            sizes: dict[ServerNode, int] = defaultdict(int)
            # a writer may have written to many thousand partitions, and to few of them lately
            for place, queue in list(self._busy.items()):
                if not queue.waiting:
                    del self._busy[place]
                    continue
                batch = self._parts.next_of(queue)
                if batch is None:
                    continue
                if not self._prepare_writer(queue):
                    continue
                node = self.cluster.known_leader(queue.bucket)
                if node is None:
                    self.hold_for(queue, Hold.LEADER, self._find_leader(queue))
                    continue
                assert batch.encoded is not None
                size = batch.encoded.nbytes + _REQUEST_OVERHEAD
                if size > max(_LARGEST_REQUEST, self._config.writer_request_max_size):
                    self.refuse(batch, self._too_large(size))
                    continue
                if groups[node] and sizes[node] + size > self._config.writer_request_max_size:
                    continue  # a later request takes it
                groups[node].append(queue.take())
                sizes[node] += size
            if not any(groups.values()):
                return
            for node, batches in groups.items():
                if not batches:
                    continue
                connection = self.cluster.open_connection_to(node)
                if connection is None:
                    self.spawn(self._connect_and_send(node, batches))
                else:
                    self._send(connection, batches)

    def _too_large(self, size: int) -> FlussError:
        return FlussError(
            f"they take {size} bytes, more than servers accept in a request"
            " (netty.server.max-request-size, by default 100mb): write smaller rows, or raise it"
            " there and writer.request-max-size here",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )

    def _prepare_writer(self, queue: BucketQueue) -> bool:
        """Give a bucket its writer id; False while the id is still asked for."""
        try:
            asked = self.ids.prepare(queue)
        except FlussError as error:
            self.fail_queue(queue, error)
            return False
        if asked is None:
            return True
        self.hold_for(queue, Hold.WRITER_ID, self._await_writer_id(queue, asked))
        return False

    def hold_for(self, queue: BucketQueue, reason: Hold, work: Coroutine[Any, Any, None]) -> None:
        """Let no batch of a bucket be sent until some work is done."""
        queue.hold(reason)
        self.spawn(self._held(queue, reason, work))

    async def _held(
        self, queue: BucketQueue, reason: Hold, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        except Exception as error:
            # batches must be done with after any error: callers wait for them
            logger.exception("no way to send the batches of %s", queue.bucket)
            failed = FlussError(f"{reason.value} is not known: {error!r} ({self.where(queue)})")
            self.fail_queue(queue, failed)
        finally:
            queue.release(reason)
            self.wake()

    async def _await_writer_id(self, queue: BucketQueue, asked: asyncio.Task[int]) -> None:
        try:
            await self.ids.wait(asked)
        except FlussError as error:
            self.fail_queue(queue, error)

    async def _find_leader(self, queue: BucketQueue) -> None:
        try:
            await self.cluster.leader(self.info.table_path, queue.bucket)
        except FlussError as error:
            gone = error.error_code == ErrorCode.PARTITION_NOT_EXISTS
            if gone and queue.partition_name is not None and not self.ids.fixed:
                self._moves.start(queue)
            else:
                await self.rest_or_fail(queue, error)

    async def rest_or_fail(self, queue: BucketQueue, error: FlussError) -> None:
        """Pause where an error may pass; else fail the waiting batches."""
        oldest = queue.waiting[0] if queue.waiting else None
        expired = oldest is not None and queue.expired(oldest)
        if (not is_transient(error) and error.error_code not in STALE_METADATA) or expired:
            self.fail_queue(queue, error)
        else:
            self.cluster.note_retry(error)
            await asyncio.sleep(queue.backoff.next_pause())

    def fail_queue(
        self, queue: BucketQueue, error: FlussError, of: TableBucket | None = None
    ) -> None:
        """Fail the waiting batches; if ``of`` is given, only those for that bucket."""
        waiting, queue.waiting = queue.waiting, deque()
        for batch in waiting:
            # Two kinds of batches are kept: those that are still being encoded, which fail in their
            # turn, and those for another bucket than ``of``.
            if batch.encoded is None or (of is not None and batch.bucket != of):
                queue.waiting.append(batch)
            else:
                # with a fixed writer id, no later batch may get its sequence number
                queue.renew_writer |= self.ids.fixed
                self._finish(batch, error)

    async def _connect_and_send(self, node: ServerNode, batches: list[WriteBatch]) -> None:
        try:
            connection = await self.cluster.connection_to(node)
        except FlussError as error:
            self._all_failed(batches, error, sent=False)
        except Exception as error:
            # batches must be done with after any error: callers wait for them
            logger.exception("no connection to %s", node)
            failed = FlussError(f"no connection to {node}: {error!r}")
            self._all_failed(batches, failed, sent=False)
        else:
            self._send(connection, batches)

    def _send(self, connection: CountedConnection, batches: list[WriteBatch]) -> None:
        config = self._config
        body = self._api.body(
            acks=self._acks,
            # the server gives up before this client does, so that its answer is heard
            timeout_ms=max(1, config.request_timeout_ms * 2 // 3),
            buckets=[
                (b.bucket.partition_id, b.bucket.bucket_id, b.encoded.buffers)
                for b in batches
                if b.encoded is not None
            ],
            counts=self.cluster.bucket_counts,
        )
        # a callback gets the answer: a task would need further turns of the event loop
        answered = functools.partial(self._answered, connection.address, batches)
        try:
            connection.send(self._api.api, body, config.request_timeout_ms, answered)
        except FlussError as error:
            self._all_failed(batches, error, sent=False)

    def _answered(
        self, address: str, batches: list[WriteBatch], outcome: Response | FlussError
    ) -> None:
        """Handle the answer to a request, or the error that came in its place."""
        try:
            if isinstance(outcome, FlussError):
                raise outcome
            response = parse_response(self._api.api, outcome, address)
        except ProtocolError as error:
            # an answer that cannot be read counts as lost, as when the connection breaks
            lost = NetworkError(f"an answer cannot be read: {error.message}")
            self._all_failed(batches, lost)
            return
        except FlussError as error:
            self._all_failed(batches, error)
            return
        of_buckets = {(partition_of(each), each.bucket_id): each for each in response.buckets_resp}
        for batch in batches:
            of_bucket = of_buckets.get((batch.bucket.partition_id, batch.bucket.bucket_id))
            if of_bucket is None:
                self._batch_failed(batch, NetworkError(f"{address} did not answer for all buckets"))
            elif of_bucket.error_code:
                refusal = server_error(
                    of_bucket.error_code, of_bucket.error_message, self.where(batch)
                )
                self._batch_failed(batch, refusal)
            else:
                written = self._api.written(of_bucket, batch.rows)
                self._throttle(self._queues[batch.place], written.pressure)
                self._batch_acked(batch, written)
        if self._open.count:
            self.wake()

    def _all_failed(
        self, batches: Iterable[WriteBatch], error: FlussError, *, sent: bool = True
    ) -> None:
        for batch in batches:
            self._batch_failed(batch, error, sent=sent)
        self.wake()

    def where(self, of: WriteBatch | BucketQueue) -> str:
        """Name a bucket for errors."""
        return bucket_text(self.info.table_path, of.partition_name, of.bucket)

    # ---- answers

    def _batch_acked(self, batch: WriteBatch, written: Written) -> None:
        queue = self._queues[batch.place]
        queue.acknowledged(batch)
        lost = self.acknowledged.note(queue, batch, written, self.where(batch))
        if lost is not None:
            self.failures.note(lost, 0)  # these rows were acknowledged
        self._finish(batch, None)
        self._resume_when_idle(queue)

    def _throttle(self, queue: BucketQueue, pressure: float) -> None:
        """Let a bucket rest where its server is under pressure: the higher it is, the longer."""
        # the square of the pressure, which is limited to 0 to 1 before
        share = min(max(pressure, 0.0), 1.0) ** 2
        pause_ms = self._config.writer_kv_backpressure_max_throttle_ms * share
        if pause_ms >= 1 and queue.rest(pause_ms / 1000):
            asyncio.get_running_loop().call_later(pause_ms / 1000, self.wake)

    def _batch_failed(self, batch: WriteBatch, error: FlussError, *, sent: bool = True) -> None:
        queue = self._queues[batch.place]
        code = error.error_code
        if queue.was_written(batch, error):
            self._batch_acked(batch, UNKNOWN)
            return
        if code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION:
            self._throttle(queue, 1.0)
        too_many = sent and self._api.refuses_rows(error)
        if sent and code in UNCERTAIN and not too_many:
            batch.uncertain = True
        if too_many and self._parts.send_again(queue, batch, error):
            self._resume_when_idle(queue)
            return
        if too_many:
            error = self._parts.refusal(batch, error, self.where(batch))
        stale = code in STALE_METADATA or code == ErrorCode.PARTITION_NOT_EXISTS
        if stale or isinstance(error, DeadlineExceededError):
            self.cluster.forget_leader(batch.bucket)
        if queue.failed_once(batch, error):
            self.cluster.note_retry(error)
        elif batch.uncertain and code in _NO_TRACE:
            lost = FlussError(
                f"{batch.rows} rows may or may not have been written to {self.where(batch)}: the"
                " server lost track of the writer while their acknowledgement was outstanding",
                ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
            )
            self._finish(batch, lost)
        else:
            self._finish(batch, error)
        self._resume_when_idle(queue)

    def _resume_when_idle(self, queue: BucketQueue) -> None:
        """Once all answers are in, pause for a moment, and go on with what failed."""
        if queue.put_failed_back():
            self._busy[queue.place] = queue
            loop = asyncio.get_running_loop()
            loop.call_later(queue.backoff.next_pause(), self._rested, queue)

    def _count_one_more(self, of: WriteBatch) -> None:
        """Count a batch that was made of a part of another one."""
        self._open.enter_with(of.round)

    def _rested(self, queue: BucketQueue) -> None:
        queue.rested()
        self.wake()

    def _finish(self, batch: WriteBatch, error: FlussError | None) -> None:
        self._memory.give_back(batch.memory)
        self.done_rows += batch.rows
        size = 0 if batch.encoded is None else batch.encoded.nbytes
        batch.encoded = None
        batch.data = None
        if error is None:
            self._metrics.add(rows=batch.rows, batches=1)
            self._of_table.add(records_written=batch.rows, batches_written=1, bytes_written=size)
        else:
            where = self.where(batch)
            named = "" if where in error.message else f" ({where})"
            error = FlussError(
                f"{batch.rows} rows were not acknowledged: {error.message}{named}", error.error_code
            )
            self.failures.note(error, batch.rows)
            self._metrics.add(errors=1)
            self._of_table.add(records_failed=batch.rows)
        batch.handle.batch_done(error)
        if self._open.count == 1:
            self._owner = None
        self._open.leave(batch.round)
