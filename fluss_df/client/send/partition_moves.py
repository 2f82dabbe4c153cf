"""Moves batches to the new partition when theirs was dropped and created again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.partition_names import partition_named
from fluss_df.client.send.acknowledged import Acknowledged
from fluss_df.client.send.batch import WriteBatch
from fluss_df.client.send.bucket_queue import BucketQueue, Hold
from fluss_df.client.send.writer_ids import WriterIds
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

# the pause between two looks whether all batches are encoded and answered
_MOVE_PAUSE_S = 0.01


class Moving(Protocol):
    """What this module needs of the sender."""

    cluster: Cluster
    info: TableInfo
    ids: WriterIds
    acknowledged: Acknowledged

    def hold_for(self, queue: BucketQueue, reason: Hold, work: Coroutine[Any, Any, None]) -> None:
        """Let no batch of a bucket be sent until some work is done."""

    def where(self, of: WriteBatch | BucketQueue) -> str:
        """Name a bucket for errors."""

    def fail_queue(
        self, queue: BucketQueue, error: FlussError, of: TableBucket | None = None
    ) -> None:
        """Fail the waiting batches; if ``of`` is given, only those for that bucket."""

    async def rest_or_fail(self, queue: BucketQueue, error: FlussError) -> None:
        """Pause where an error may pass; else fail the waiting batches."""


class PartitionMoves:
    """Has the batches of one writer go to the partitions that have their names now.

    Its methods run on the I/O thread. With ``create``, partitions that were dropped are created
    again. ``moved`` is called with the name of a partition and its new id, or None where it is
    gone.
    """

    def __init__(
        self, sender: Moving, *, create: bool, moved: Callable[[str, int | None], object]
    ) -> None:
        self._sender = sender
        self._create = create
        self._moved = moved

    def meet(self, queue: BucketQueue, batch: WriteBatch) -> None:
        """Take a batch whose partition has another id than the queue has for its name.

        A higher id is that of a partition that was created later: the batches move to it. A lower
        one is that of an older partition: the batch goes to the one that the queue has.
        """
        known, given = queue.bucket.partition_id, batch.bucket.partition_id
        if known is not None and given is not None and given > known and not self._sender.ids.fixed:
            self.start(queue)
        else:
            batch.bucket = queue.bucket

    def start(self, queue: BucketQueue) -> None:
        """Start to move a bucket to the partition that has its name now, unless that has begun."""
        if not queue.is_held(Hold.PARTITION):
            self._sender.hold_for(queue, Hold.PARTITION, self._move(queue))

    async def _move(self, queue: BucketQueue) -> None:
        """Have batches go to the partition that has the name now; they fail where there is none.

        What was sent to the old one and not acknowledged goes again: whether it was written or not,
        it is gone.
        """
        assert queue.partition_name is not None
        while queue.in_flight or _encoding(queue):
            await asyncio.sleep(_MOVE_PAUSE_S)
        old, name = queue.bucket, queue.partition_name
        try:
            found = await partition_named(
                self._sender.cluster, self._sender.info, name, create=self._create
            )
            if found.partition_id == old.partition_id:
                # its leader is not known yet
                raise FlussError(
                    f"partition '{name}' is not known yet", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
                )
            had = self._sender.cluster.buckets_of(self._sender.info, old.partition_id)
            has = self._sender.cluster.buckets_of(self._sender.info, found.partition_id)
            if has != had:
                # what came meanwhile was given its bucket by the old number, too
                while _encoding(queue):
                    await asyncio.sleep(_MOVE_PAUSE_S)
                self._sender.fail_queue(
                    queue,
                    FlussError(
                        f"partition '{name}' was created again with {has} buckets, where it had"
                        f" {had}: these rows, which were given their buckets before, cannot go"
                        " there: write them again",
                        ErrorCode.PARTITION_NOT_EXISTS,
                    ),
                    of=old,
                )
            logger.info("%s was dropped and created again", self._sender.where(queue))
            queue.move(TableBucket(old.table_id, old.bucket_id, found.partition_id))
            self._sender.acknowledged.forget(old)
            self._moved(name, found.partition_id)
        except FlussError as error:
            if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
                self._moved(name, None)  # asked for again with the next rows
            await self._sender.rest_or_fail(queue, error)


def _encoding(queue: BucketQueue) -> bool:
    """Whether a batch that waits is still being encoded."""
    return any(batch.encoded is None for batch in queue.waiting)
