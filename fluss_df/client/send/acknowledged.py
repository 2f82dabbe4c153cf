"""The acknowledged offsets of one writer, by bucket; used on the I/O thread."""

from __future__ import annotations

from fluss_df.client.send.batch import BucketResult, WriteBatch
from fluss_df.client.send.bucket_queue import BucketQueue
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol.produce import Written


class Acknowledged:
    """Offsets and rows that were acknowledged."""

    def __init__(self) -> None:
        self._results: dict[TableBucket, BucketResult] = {}

    def results(self) -> list[BucketResult]:
        """Return what was acknowledged, by partition and bucket."""
        return sorted(self._results.values(), key=lambda r: (r.partition_name or "", r.bucket_id))

    def forget(self, bucket: TableBucket) -> None:
        """Take note that a bucket is gone, with all that was acknowledged in it."""
        self._results.pop(bucket, None)

    def note(
        self, queue: BucketQueue, batch: WriteBatch, written: Written, where: str
    ) -> FlussError | None:
        """Take note of a batch; return an error where rows from before it must be gone."""
        if written.end_offset < 0:
            return None
        base_offset, end, rows = written.base_offset, written.end_offset, batch.rows
        result = self._results.get(batch.bucket)
        if result is not None:
            base_offset, end = min(result.base_offset, base_offset), max(result.end_offset, end)
            rows += result.rows
        self._results[batch.bucket] = BucketResult(
            batch.partition_name, batch.bucket.bucket_id, base_offset, end, rows
        )
        return self._lost(queue, batch, written, where)

    def _lost(
        self, queue: BucketQueue, batch: WriteBatch, written: Written, where: str
    ) -> FlussError | None:
        """Notice when a log became shorter than what was acknowledged in it.

        A server that is killed, and has no replica to get its data back from, cuts its log to the
        last checkpoint of the high watermark when it starts again (seen on 0.9.1): rows that it
        had acknowledged are gone, and nobody says so.
        """
        place = (queue.writer_epoch, batch.sequence)
        if place < queue.acked_place:
            return None
        # every batch takes an offset, in primary-key tables even one that changes nothing
        known = written.base_offset >= 0
        first = written.base_offset if known else written.end_offset - 1
        lost = None
        if first < queue.acked_end:
            lost = FlussError(
                f"the cluster lost rows that it had acknowledged: {where} was"
                f" written up to offset {queue.acked_end}, and later rows got the offset"
                f" {first}",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
        queue.acked_place = place
        queue.acked_end = written.end_offset
        return lost
