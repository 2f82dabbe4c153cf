"""The batches of one bucket on their way: what may be sent, in which order, and what goes again.

A table of states and events, without I/O: the sender says what happened, and asks what may go.
"""

from __future__ import annotations

import enum
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fluss_df.client.runtime.retry import Backoff, is_transient
from fluss_df.client.send.batch import WriteBatch
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

# after these errors the server may have written the batch all the same
UNCERTAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIME_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class State(enum.Enum):
    """How a bucket's batches go."""

    #: several at once
    SENDING = "sending"
    #: none: one is to be sent again, and the answers of others are not in yet
    DRAINING = "draining"
    #: none: all answers are in, and the server is left alone for a moment
    BACKING_OFF = "backing off"
    #: one at a time, until a server takes one
    PROBING = "probing"


class Event(enum.Enum):
    """The events of a bucket's batches."""

    #: a server has one
    ACKNOWLEDGED = "acknowledged"
    #: one failed, and is to be sent again
    FAILED = "failed"
    #: one failed for good
    GIVEN_UP = "given up"
    #: the last answer is in
    DRAINED = "drained"
    #: the pause is over
    RESTED = "rested"


#: What follows; any other event in a state is a mistake of the sender.
NEXT: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.SENDING, Event.ACKNOWLEDGED): State.SENDING,
        (State.SENDING, Event.FAILED): State.DRAINING,
        (State.SENDING, Event.GIVEN_UP): State.PROBING,
        (State.DRAINING, Event.ACKNOWLEDGED): State.DRAINING,
        (State.DRAINING, Event.FAILED): State.DRAINING,
        (State.DRAINING, Event.GIVEN_UP): State.DRAINING,
        (State.DRAINING, Event.DRAINED): State.BACKING_OFF,
        (State.BACKING_OFF, Event.RESTED): State.PROBING,
        (State.PROBING, Event.ACKNOWLEDGED): State.SENDING,
        (State.PROBING, Event.FAILED): State.DRAINING,
        (State.PROBING, Event.GIVEN_UP): State.PROBING,
    }
)


class Hold(enum.Enum):
    """A reason, besides the state, for which no batch of a bucket may be sent."""

    WRITER_ID = "a writer id"
    LEADER = "the leader of the bucket"
    PARTITION = "the partition that has the name now"


class BucketQueue:
    """The batches of one bucket; what a writer knows of them is here, on the I/O thread.

    Parameters
    ----------
    config
        Retries and limits.
    clock
        Returns seconds since any moment. Batches were created by the same clock.

    Attributes
    ----------
    waiting
        What was not sent yet, or is to be sent again, in order.
    in_flight
        Sequence number -> batch.
    failed
        What is to be sent again, once nothing is in flight; in no order.
    renew_writer
        Whether a batch failed for good. Batches that no server can have go under a new writer id
        then.
    """

    def __init__(
        self,
        bucket: TableBucket,
        partition_name: str | None,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        self.bucket = bucket
        self.partition_name = partition_name
        self.state = State.SENDING
        self.waiting: deque[WriteBatch] = deque()
        self.in_flight: dict[int, WriteBatch] = {}
        self.failed: list[WriteBatch] = []
        self._holds: set[Hold] = set()
        self.writer_id = -1
        self._next_sequence = 0
        self._last_acked = -1
        self.renew_writer = False
        self.writer_epoch = 0
        self.acked_place = (0, -1)
        self.acked_end = 0
        # without a deadline: that of each batch says when it is given up
        self.backoff = Backoff(math.inf)
        # a server refused the batch of this sequence for certain: nothing from it on was or will be
        # written under the current writer id
        self._refused_from: int | None = None
        self._rest_until = 0.0  # a server under pressure asked for a rest

    @property
    def place(self) -> tuple[str | None, int]:
        """Where its batches go, as :attr:`WriteBatch.place` says it."""
        return self.partition_name, self.bucket.bucket_id

    def _happened(self, event: Event) -> None:
        following = NEXT.get((self.state, event))
        if following is None:
            raise RuntimeError(
                f"{self.bucket}: a batch was {event.value} while the bucket was {self.state.value}"
            )
        self.state = following

    # ---- what may go

    def hold(self, reason: Hold) -> None:
        """Let no batch be sent until this reason is released."""
        self._holds.add(reason)

    def release(self, reason: Hold) -> None:
        """Do not wait for something any more."""
        self._holds.discard(reason)

    def is_held(self, reason: Hold) -> bool:
        """Whether batches wait for something."""
        return reason in self._holds

    def rest(self, seconds: float) -> bool:
        """Let no batch be sent for a time; return False if the current rest ends no earlier."""
        until = self._clock() + seconds
        if until <= self._rest_until:
            return False
        self._rest_until = until
        return True

    def sendable(self) -> WriteBatch | None:
        """Return the next batch that may go now."""
        if not self.waiting or self._holds:
            return None
        if self.state is State.SENDING:
            limit = self._config.writer_max_inflight_requests_per_bucket
        elif self.state is State.PROBING:
            limit = 1
        else:
            return None
        if len(self.in_flight) >= limit or (self.renew_writer and self.in_flight):
            return None
        if self._rest_until and self._clock() < self._rest_until:
            return None
        batch = self.waiting[0]
        return batch if batch.encoded is not None else None

    def start_sequences(self, writer_id: int, first: int) -> None:
        """Use a writer id from now on; the next batch gets the sequence ``first``."""
        self.writer_id = writer_id
        self._next_sequence = first
        self._last_acked = first - 1

    @property
    def needs_writer_id(self) -> bool:
        """Whether the batch that may go next needs a writer id that is not known yet.

        A batch that a server may have written goes again under the old id: only so can the server
        tell that it has it already. No batch is written behind one that was not.
        """
        if self.writer_id < 0:
            return True
        head = self.waiting[0]
        return self.renew_writer and not (head.uncertain and head.writer_id == self.writer_id)

    def forget_writer(self) -> None:
        """Send nothing more under the current writer id."""
        self.renew_writer = False
        self.writer_epoch += 1
        self.writer_id = -1

    def take(self) -> WriteBatch:
        """Return the batch that may go now; it is in flight, with its writer id and sequence."""
        batch = self.waiting.popleft()
        assert batch.encoded is not None
        if batch.sequence < 0 or batch.writer_id != self.writer_id:
            batch.refused = batch.uncertain = False
            batch.writer_id = self.writer_id
            batch.sequence = self._next_sequence
            self._next_sequence += 1
            batch.encoded.stamp(self.writer_id, batch.sequence if self.writer_id >= 0 else -1)
        batch.attempts += 1
        self.in_flight[batch.sequence] = batch
        return batch

    # ---- what became of it

    def acknowledged(self, batch: WriteBatch) -> None:
        """Take note that the server has a batch."""
        self.in_flight.pop(batch.sequence, None)
        self._last_acked = max(self._last_acked, batch.sequence)
        if self.backoff.used:
            self.backoff.reset(math.inf)
        self._happened(Event.ACKNOWLEDGED)

    def was_written(self, batch: WriteBatch, error: FlussError) -> bool:
        """Whether an error says that an earlier attempt got through, whose answer was lost."""
        return error.error_code == ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION or (
            error.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
            and batch.sequence <= self._last_acked
        )

    def failed_once(self, batch: WriteBatch, error: FlussError) -> bool:
        """Take note that a batch failed; return whether it goes again, else it is given up."""
        self.in_flight.pop(batch.sequence, None)
        if self._may_retry(batch, error):
            self.send_again(batch)
            return True
        # later sequences do not fit behind the gap: they go on under a new writer id
        self.renew_writer = self._config.writer_enable_idempotence
        self._happened(Event.GIVEN_UP)
        return False

    def send_again(self, *batches: WriteBatch) -> None:
        """Have batches that failed sent again, in the order of their sequences."""
        for batch in batches:
            self.in_flight.pop(batch.sequence, None)
        self.failed += batches
        self._happened(Event.FAILED)

    def send_parts(self, batch: WriteBatch, parts: Iterable[WriteBatch]) -> None:
        """Have a batch sent in parts that a server refused for certain.

        Nothing from it on was or will be written under the current writer id. The parts go under a
        new one: under this one, a late request of a batch behind it could take the place of one of
        the parts.
        """
        self.in_flight.pop(batch.sequence, None)
        self._refused_from = batch.sequence
        self.renew_writer = self._config.writer_enable_idempotence
        self.send_again(*parts)

    def put_failed_back(self) -> bool:
        """Once all answers are in, put what failed back in order; return False while some are not.

        Then :meth:`rested` is to be called after the next pause of the back-off.
        """
        if self.in_flight or self.state is not State.DRAINING:
            return False
        again, self.failed = sorted(self.failed, key=lambda batch: batch.sequence), []
        if self._refused_from is not None:
            _forget_sequences(again)
            self._refused_from = None
        self.waiting.extendleft(reversed(again))
        self._happened(Event.DRAINED)
        return True

    def rested(self) -> None:
        """Try again, the pause is over."""
        self._happened(Event.RESTED)

    def move(self, bucket: TableBucket) -> None:
        """Have what waits go to the bucket of another partition of this name; none is in flight.

        The one that it was for is gone, with all that may have been written there.
        """
        self.bucket = bucket
        self.renew_writer = False
        self._refused_from = None
        self.acked_place = (self.writer_epoch, -1)
        self.acked_end = 0
        self.start_sequences(self.writer_id, 0)
        for batch in self.waiting:
            batch.bucket = bucket
        _forget_sequences(self.waiting)

    # ---- what is known of a batch

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
        if self._refused_from is not None and batch.sequence >= self._refused_from:
            return True
        return not batch.uncertain

    def expired(self, batch: WriteBatch) -> bool:
        """Whether a batch is older than the time in which it should have been delivered."""
        age_ms = (self._clock() - batch.created) * 1000
        return age_ms > self._config.writer_delivery_timeout_ms

    def _may_retry(self, batch: WriteBatch, error: FlussError) -> bool:
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
            # another partition may have its name
            return self.bucket.partition_id is not None
        # without idempotence, what may have got through must not be sent twice
        if batch.uncertain and not self._config.writer_enable_idempotence:
            return False
        return is_transient(error)


def _forget_sequences(batches: Iterable[WriteBatch]) -> None:
    """Have batches numbered again: nothing is known of them under their writer id."""
    for batch in batches:
        batch.sequence, batch.refused, batch.uncertain = -1, False, False
