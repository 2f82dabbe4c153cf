"""The requests that carry batches: produce for log tables, put for primary-key tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fluss_df.client.send.batch import EncodedBatch
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import PRODUCE_LOG, PUT_KV, Api
from fluss_df.protocol.produce import NO_COUNTS, produce_log_body, put_kv_body
from fluss_df.protocol.wire import Buffer
from fluss_df.record.kv.kv_batch import EncodedKvBatch
from fluss_df.schema import TableInfo

# what servers say where the kinds of a batch's changes do not fit a page, which takes a byte
# was to be put behind the last
_PAGE_IS_FULL = re.compile(r"capacity: (\d+), index: \1\b|change type vector is full")

# how many buckets partitions have, by their ids, where servers let them differ
Counts = Mapping[int | None, int]
Buckets = Sequence[tuple[int | None, int, Sequence[Buffer]]]


@dataclass(frozen=True, slots=True)
class Written:
    """A server's answer for a batch that it took.

    Attributes
    ----------
    base_offset
        The offset of its first row; -1 if the server does not tell.
    end_offset
        The offset behind its last row; -1 if the server does not tell.
    pressure
        From 0 to 1, how much the server asks its writers to slow down.
    """

    base_offset: int
    end_offset: int
    pressure: float = 0.0


UNKNOWN = Written(-1, -1)


class WriteApi(Protocol):
    """A request that carries batches of one table."""

    @property
    def api(self) -> Api[Any, Any]:
        """The request."""
        ...

    def body(
        self, *, acks: int, timeout_ms: int, buckets: Buckets, counts: Counts = NO_COUNTS
    ) -> list[Buffer]:
        """Return the buffers of a request, at most one batch for each bucket."""
        ...

    def written(self, answer: Any, rows: int) -> Written:
        """Return what the answer for one bucket says of its batch, given the number of its rows."""
        ...

    def refuses_rows(self, error: FlussError) -> bool:
        """Whether a server wrote nothing of a batch because it has too many rows."""
        ...

    def halves(self, batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
        """Return a batch of several rows as two."""
        ...


class ProduceLog:
    """Log batches for a log table."""

    api = PRODUCE_LOG

    def __init__(self, info: TableInfo) -> None:
        self._table_id = info.table_id

    def body(
        self, *, acks: int, timeout_ms: int, buckets: Buckets, counts: Counts = NO_COUNTS
    ) -> list[Buffer]:
        """Return the buffers of a produce request."""
        return produce_log_body(
            acks=acks,
            table_id=self._table_id,
            timeout_ms=timeout_ms,
            buckets=buckets,
            counts=counts,
        )

    def written(self, answer: pb.ProduceLogResponseForBucket, rows: int) -> Written:
        """Return the offsets of the batch."""
        if not answer.HasField("base_offset"):
            return UNKNOWN
        return Written(answer.base_offset, answer.base_offset + rows)

    def refuses_rows(self, error: FlussError) -> bool:
        """Return False: a log takes as many rows as fit a request."""
        return False

    def halves(self, batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
        """Refuse to: nothing asks for it."""
        raise NotImplementedError


class PutKv:
    """Key-value batches for a primary-key table.

    Parameters
    ----------
    info
        The table.
    target_columns
        Indexes of the columns that are updated; None for all.
    """

    api = PUT_KV

    def __init__(self, info: TableInfo, target_columns: Sequence[int] | None) -> None:
        self._table_id = info.table_id
        self._target_columns = tuple(target_columns or ())

    def body(
        self, *, acks: int, timeout_ms: int, buckets: Buckets, counts: Counts = NO_COUNTS
    ) -> list[Buffer]:
        """Return the buffers of a put request."""
        return put_kv_body(
            acks=acks,
            table_id=self._table_id,
            timeout_ms=timeout_ms,
            target_columns=self._target_columns,
            buckets=buckets,
            counts=counts,
        )

    def written(self, answer: pb.PutKvResponseForBucket, rows: int) -> Written:
        """Return the end of the changelog behind the batch: how many changes it made is open."""
        end = answer.log_end_offset if answer.HasField("log_end_offset") else -1
        return Written(-1, end, answer.pressure)

    def refuses_rows(self, error: FlussError) -> bool:
        """Whether the changes of a batch are more than the server takes at once.

        Their kinds may exceed the page on which it notes them: servers up to 1.0 have no code for
        that. Or their rows may be too large, for the embedded engine. All make the whole changelog
        of a batch before they write any of it.
        """
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION:
            return True
        unknown = error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        return unknown and _PAGE_IS_FULL.search(error.message) is not None

    def halves(self, batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
        """Return a batch of several rows as two."""
        assert isinstance(batch, EncodedKvBatch)
        return batch.halves()
