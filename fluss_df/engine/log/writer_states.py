"""Writer states of a log: the last batches of each writer, by which duplicates are recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.layout.headers import NO_WRITER_ID, LogHeaders

_REMEMBERED = 5
# The most writers of a log that are remembered: a hostile peer can invent any number of writer ids.
# Writers that are active are among the last ones.
_MOST_WRITERS = 16 << 10
_LAST_SEQUENCE = 2**31 - 1
# milliseconds for which a writer is remembered that writes no more, as in Apache Fluss
EXPIRATION_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """One batch of a writer: its sequence number and where it is in the log."""

    sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class WriterStates:
    """The last five batches of each writer of one log; guarded by the tablet's lock.

    With more than 16,384 writers, those that have not written for the longest time are forgotten.
    """

    def __init__(self) -> None:
        # Writer id -> its batches, the oldest first. The writer that wrote last is the last key.
        self._writers: dict[int, tuple[WrittenBatch, ...]] = {}

    def duplicate(self, writer_id: int, sequence: int) -> WrittenBatch | None:
        """Return the batch that was written under this sequence, if it is remembered."""
        for batch in self._writers.get(writer_id, ()):
            if batch.sequence == sequence:
                return batch
        return None

    def check(self, bucket: str, writer_id: int, sequence: int, last_offset: int) -> None:
        """Refuse a batch that does not follow the writer's last one.

        Raises ``OUT_OF_ORDER_SEQUENCE_EXCEPTION``.
        """
        batches = self._writers.get(writer_id)
        last = batches[-1].sequence if batches else -1
        if sequence == last + 1 or (sequence == 0 and last == _LAST_SEQUENCE):
            return
        raise FlussError(
            f"Out of order batch sequence for writer {writer_id} at offset {last_offset} in "
            f"table-bucket {bucket} : {sequence} (incoming batch seq.), {last} (current batch "
            "seq.)",
            ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
        )

    def duplicate_of(self, bucket: str, headers: LogHeaders, base: int) -> int | None:
        """Return the base offset of a batch that was appended before; None for a new batch.

        ``bucket`` is the name of the bucket, for errors. ``base`` is the offset that the request's
        first batch would get.

        Raises ``OUT_OF_ORDER_SEQUENCE_EXCEPTION``, ``CORRUPT_RECORD_EXCEPTION``.
        """
        writers = headers.writer_id[headers.writer_id != NO_WRITER_ID]
        if not len(writers):
            return None
        writer_id = int(writers[0])
        if len(headers) > 1:
            raise FlussError(
                f"several batches, and one of writer {writer_id}, in one request for {bucket}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        sequence = int(headers.sequence[0])
        known = self.duplicate(writer_id, sequence)
        if known is not None:
            return known.base_offset
        self.check(bucket, writer_id, sequence, base + int(headers.last_offset_delta[0]))
        return None

    def add(self, writer_id: int, batch: WrittenBatch) -> None:
        """Take note of a batch that was appended."""
        before = self._writers.pop(writer_id, ())
        self._writers[writer_id] = (*before[1 - _REMEMBERED :], batch)
        if len(self._writers) > _MOST_WRITERS:
            del self._writers[next(iter(self._writers))]

    def expire(self, now_ms: int) -> None:
        """Forget writers that wrote nothing for seven days."""
        limit = now_ms - EXPIRATION_MS
        silent = [w for w, batches in self._writers.items() if batches[-1].timestamp < limit]
        for writer_id in silent:
            del self._writers[writer_id]

    def copy(self) -> WriterStates:
        """Return a copy that later batches do not change."""
        copied = WriterStates()
        copied._writers = dict(self._writers)
        return copied

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            str(writer_id): [
                [b.sequence, b.base_offset, b.last_offset, b.timestamp] for b in batches
            ]
            for writer_id, batches in self._writers.items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WriterStates:
        """Read what :meth:`to_json` returned."""
        states = cls()
        for writer_id, batches in value.items():
            for batch in batches:
                states.add(int(writer_id), WrittenBatch(*batch))
        return states
