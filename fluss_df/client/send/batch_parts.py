"""Batches that are too many rows for a server, sent in parts: :class:`BatchParts`."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable

from fluss_df.client.send.batch import WriteBatch
from fluss_df.client.send.bucket_queue import BucketQueue
from fluss_df.client.send.writer_ids import WriterIds
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.kv_batch import EncodedKvBatch

logger = logging.getLogger(__name__)

# how many rows the embedded engine advises to write at once where old rows are large
_ADVICE = re.compile(r"write fewer at once \(such as (\d[\d,]{0,10}) rows\)")
# a batch is cut into no more parts at once, whatever is advised
_MOST_PARTS = 64


class BatchParts:
    """Cuts the batches of one writer where servers refuse them; on the I/O thread."""

    def __init__(self, ids: WriterIds, count_one_more: Callable[[WriteBatch], object]) -> None:
        self._ids = ids
        self._count_one_more = count_one_more
        # the most rows of a batch, once a server refused more
        self._rows = sys.maxsize

    def next_of(self, queue: BucketQueue) -> WriteBatch | None:
        """Return the next batch of a bucket that may go now, no larger than servers take."""
        batch = queue.sendable()
        while (
            batch is not None
            and batch.rows > self._rows
            and batch.sequence < 0
            and not self._ids.fixed
        ):
            queue.waiting.popleft()
            queue.waiting.extendleft(reversed(self._cut(batch)))
            batch = queue.waiting[0]
        return batch

    def send_again(self, queue: BucketQueue, batch: WriteBatch, error: FlussError) -> bool:
        """Have a batch sent again that is too many rows for the server; False where it cannot be.

        The server wrote nothing of it.
        """
        if batch.rows == 1 or self._ids.fixed or batch.uncertain or queue.expired(batch):
            return False
        if not queue.is_first(batch) and self._ids.idempotent:
            # the batches before it go first: only then is it certain what was written
            queue.send_again(batch)
        else:
            if error.error_code != ErrorCode.RECORD_TOO_LARGE_EXCEPTION:
                # too many rows are so in later batches as well; rows that are too large are those
                # of this batch alone
                self._rows = min(self._rows, (batch.rows + 1) // 2)
            advice = _ADVICE.search(error.message)
            rows = int(advice[1].replace(",", "")) if advice else batch.rows
            rows = max(rows, -(-batch.rows // _MOST_PARTS))
            queue.send_parts(batch, self._cut_to(batch, min(rows, batch.rows - 1)))
            logger.info("%s takes fewer than %d rows at once", queue.bucket, batch.rows)
        return True

    def _cut_to(self, batch: WriteBatch, rows: int) -> list[WriteBatch]:
        """Return a batch as several of no more rows each, which take its place in its order."""
        parts = [batch]
        while any(part.rows > rows for part in parts):
            parts = [p for part in parts for p in (self._cut(part) if part.rows > rows else [part])]
        return parts

    def _cut(self, batch: WriteBatch) -> list[WriteBatch]:
        """Return a batch as two, which take its place."""
        assert isinstance(batch.encoded, EncodedKvBatch)
        halves = batch.encoded.halves()
        batch.handle.expect(1)
        self._count_one_more(batch)
        made = []
        memory = batch.memory // 2
        for encoded, share in zip(halves, (memory, batch.memory - memory), strict=True):
            half = WriteBatch(
                batch.bucket, batch.partition_name, encoded.num_rows, share, batch.handle
            )
            half.encoded, half.created, half.sequence = encoded, batch.created, batch.sequence
            half.round = batch.round
            made.append(half)
        return made

    def refusal(self, batch: WriteBatch, error: FlussError, where: str) -> FlussError:
        """Return the error for a batch that is too many rows, and cannot be sent in parts."""
        written = ""
        if batch.uncertain:
            written = " (an earlier request with them was lost: they may be written)"
        return FlussError(
            f"{where} does not take {batch.rows} rows at once, whose changes are more than its"
            f" server has room for (server.buffer.page-size){written}: lower writer.batch-rows"
            f" here, or raise it there; the server said: {error.message}",
            error.error_code,
        )
