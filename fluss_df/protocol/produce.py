"""The requests that write batches: produce for log tables, put for primary-key tables.

They are framed by hand, so that encoded batches are sent from where they are.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import PRODUCE_LOG, PUT_KV, Api
from fluss_df.protocol.wire import Buffer, bytes_header, encode_varint, varint_field

NO_COUNTS: Final[Mapping[int | None, int]] = MappingProxyType({})

# what servers say where a batch makes more changes than fit one page of memory, which has a byte
# for the type of each
_PAGE_IS_FULL = re.compile(r"capacity: (\d+), index: \1\b|change type vector is full")


@dataclass(frozen=True, slots=True)
class Written:
    """A server's answer for a batch that it took.

    ``base_offset`` is that of its first row, ``end_offset`` the one behind its last row; -1 where
    the server does not tell. ``pressure`` is from 0 to 1: how much the server asks its writers to
    slow down.
    """

    base_offset: int
    end_offset: int
    pressure: float = 0.0


UNKNOWN = Written(-1, -1)


class WriteApi(ABC):
    """A request, ``api``, that carries batches of one table."""

    api: ClassVar[Api[Any, Any]]
    # the protobuf number of the repeated field: one entry is one batch and its bucket
    _buckets_field: ClassVar[int]

    def __init__(self, table_id: int) -> None:
        self._table_id = table_id
        # encoded fields that only this kind of request has
        self._more = b""

    def body(
        self,
        *,
        acks: int,
        timeout_ms: int,
        buckets: Sequence[tuple[int | None, int, Sequence[Buffer]]],
        counts: Mapping[int | None, int] = NO_COUNTS,
    ) -> list[Buffer]:
        """Return the buffers of a request.

        Parameters
        ----------
        acks
            -1 for all in-sync replicas, 1 for the leader, 0 for none.
        timeout_ms
            How long the server may wait for its replicas.
        buckets
            For each batch: partition id or None, bucket id, the buffers of the encoded batch. A
            bucket may occur more than once; its batches are appended in this order.
        counts
            Partition id -> number of its buckets, for servers on which partitions may differ in
            that.
        """
        head = varint_field(1, acks) + varint_field(2, self._table_id) + varint_field(3, timeout_ms)
        parts: list[Buffer] = [head + self._more]
        for partition_id, bucket_id, records in buckets:
            head = b"" if partition_id is None else varint_field(1, partition_id)
            head += varint_field(2, bucket_id)
            if partition_id in counts:
                head += varint_field(4, counts[partition_id])
            size = sum(len(part) for part in records)
            head += bytes_header(3, size)
            parts.append(bytes_header(self._buckets_field, len(head) + size) + head)
            parts.extend(records)
        return parts

    @abstractmethod
    def written(self, answer: Any, rows: int) -> Written:
        """Return what the answer for one bucket says of its batch, given the number of its rows."""

    def refuses_rows(self, error: FlussError) -> bool:
        """Whether a server wrote nothing of a batch because it has too many rows."""
        return False


class ProduceLog(WriteApi):
    """Writes log batches to a log table; a batch may have any number of rows."""

    api = PRODUCE_LOG
    _buckets_field = 4

    def written(self, answer: pb.ProduceLogResponseForBucket, rows: int) -> Written:
        """Return the offsets of the batch."""
        if not answer.HasField("base_offset"):
            return UNKNOWN
        return Written(answer.base_offset, answer.base_offset + rows)


class PutKv(WriteApi):
    """Key-value batches for a primary-key table.

    ``target_columns`` are the indexes of the columns to update, key columns included. None or an
    empty list stands for all columns.
    """

    api = PUT_KV
    _buckets_field = 5

    def __init__(self, table_id: int, target_columns: Sequence[int] | None = None) -> None:
        super().__init__(table_id)
        if target_columns:
            packed = b"".join(map(encode_varint, target_columns))
            self._more = bytes_header(4, len(packed)) + packed

    def written(self, answer: pb.PutKvResponseForBucket, rows: int) -> Written:
        """Return the end of the changelog behind the batch; servers do not tell its beginning."""
        end = answer.log_end_offset if answer.HasField("log_end_offset") else -1
        return Written(-1, end, answer.pressure)

    def refuses_rows(self, error: FlussError) -> bool:
        """Whether the changes of a batch are more than the server takes at once.

        There may be more changes than fit the page of memory for their types: servers up to 1.0
        have no code for that. Or the rows may be too large for the embedded engine. All servers
        make the whole changelog of a batch before they write any of it.
        """
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION:
            return True
        unknown = error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        return unknown and _PAGE_IS_FULL.search(error.message) is not None
