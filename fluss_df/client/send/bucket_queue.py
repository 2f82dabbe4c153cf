"""The batches of one bucket on their way, and which of them may be sent, or sent again."""

from __future__ import annotations

import time
from collections import deque

from fluss_df.client.runtime.retry import Backoff, is_transient
from fluss_df.client.send.batch import WriteBatch
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

# the server may have written the batch before it, or the connection, failed
UNCERTAIN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIME_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class BucketQueue:
    """The batches of one bucket; what a writer knows of them is here, on the I/O thread.

    Parameters
    ----------
    bucket, partition_name
        Which bucket.
    config
        Retries and limits.
    """

    def __init__(self, bucket: TableBucket, partition_name: str | None, config: Config) -> None:
        self._config = config
        self.bucket = bucket
        self.partition_name = partition_name
        self.waiting: deque[WriteBatch] = deque()
        self.in_flight: dict[int, WriteBatch] = {}
        self.failed: list[WriteBatch] = []  # to be sent again, once nothing is in flight
        self.recovering = False  # between a failure and the next success
        self.paused = False  # until the back-off is over, or the leader known
        self.moving = False  # until it is known which partition has the name now
        self.writer_id = -1
        self.next_sequence = 0
        self.last_acked = -1
        self.renew_writer = False
        self.writer_epoch = 0
        self.acked_place = (0, -1)
        self.acked_end = 0
        self.backoff = Backoff(config.writer_delivery_timeout_ms)
        # a server refused this one for certain: nothing from it on was or will be written under
        # the writer id of now
        self.refused_from: int | None = None
        self.rest_until = 0.0  # a server under pressure asked for a rest

    def start_sequences(self, writer_id: int, first: int) -> None:
        """Begin to number batches, under a writer id of which the server has none yet."""
        self.writer_id = writer_id
        self.next_sequence = first
        self.last_acked = first - 1

    def move(self, bucket: TableBucket) -> None:
        """Have what waits go to the bucket of another partition of this name; none is in flight.

        The one that it was for is gone, with all that may have been written there.
        """
        self.bucket = bucket
        self.renew_writer = False
        self.refused_from = None
        self.acked_place = (self.writer_epoch, -1)
        self.acked_end = 0
        self.start_sequences(self.writer_id, 0)
        for batch in self.waiting:
            batch.bucket = bucket
            batch.sequence, batch.refused, batch.uncertain = -1, False, False

    def sendable(self) -> WriteBatch | None:
        """Return the next batch that may go now."""
        if self.paused or self.moving or self.failed or not self.waiting:
            return None
        if self.rest_until and time.monotonic() < self.rest_until:
            return None
        # after a failure one batch at a time, until one gets through
        limit = 1 if self.recovering else self._config.writer_max_inflight_requests_per_bucket
        if len(self.in_flight) >= limit or (self.renew_writer and self.in_flight):
            return None
        batch = self.waiting[0]
        return batch if batch.encoded is not None else None

    def is_first(self, batch: WriteBatch) -> bool:
        """Whether nothing that was sent before a batch is outstanding; it may be in flight."""
        return not any(b.sequence < batch.sequence for b in self.failed) and not any(
            sequence < batch.sequence for sequence in self.in_flight
        )

    def unwritten(self, batch: WriteBatch) -> bool:
        """Whether a batch is not written for certain, and will never be under its writer id.

        Servers take the batches of a writer id in the order of their sequences. So none is
        written behind one that was refused, however late a request of it arrives.
        """
        if self.refused_from is not None and batch.sequence >= self.refused_from:
            return True
        return not batch.uncertain

    def expired(self, batch: WriteBatch) -> bool:
        """Whether a batch is older than the time in which it should have been delivered."""
        age_ms = (time.monotonic() - batch.created) * 1000
        return age_ms > self._config.writer_delivery_timeout_ms

    def may_retry(self, batch: WriteBatch, error: FlussError) -> bool:
        """Whether a batch that failed is to be sent again; may ask for a new writer id."""
        if batch.attempts > self._config.writer_retries or self.expired(batch):
            return False
        if error.error_code in (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
            ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
        ):
            # refused because an earlier one failed: goes again behind it, or under a new id
            if self.renew_writer or not self.is_first(batch):
                return self.unwritten(batch) or not self.renew_writer
            # Asked once more, a server that has the batch after all says so. Else it lost what it
            # knew of the writer: what it refused for certain goes again.
            if not batch.refused:
                batch.refused = True
                return True
            self.renew_writer = not batch.uncertain
            return not batch.uncertain
        if error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return False
        if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
            # another one may have its name
            return self.bucket.partition_id is not None
        # without idempotence, what may have got through must not be sent twice
        if batch.uncertain and not self._config.writer_enable_idempotence:
            return False
        return is_transient(error)
