"""Fetch responses, read and written by hand: the records stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from fluss_df.errors import ProtocolError
from fluss_df.memory import allocate
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import partition_of
from fluss_df.protocol.wire import (
    BYTES,
    VARINT,
    Buffer,
    bytes_header,
    fields,
    int32,
    parsed,
    signed,
    varint_field,
)
from fluss_df.record.layout.headers import LogHeaders
from fluss_df.record.log.checked import CheckedColumns


@dataclass(slots=True)
class FetchedBucket:
    """The result of a fetch for one bucket.

    Parameters
    ----------
    table_id, partition_id, bucket_id
        Which bucket; the partition id is None where the table has no partitions.
    error_code, error_message
        0 and "" when all is well.
    high_watermark
        The offset behind the last record that readers may see; -1 where the server did not say.
    records
        Log batches, the last one possibly cut off; None when there are none.
    remote
        Where older segments are, when the offset lies in remote storage.
    filtered_end_offset
        The offset up to which the server skipped batches, or None.
    checked
        What of the records is known to be valid, where a server in this process answered; else
        None. Such a server compared the checksums, and the memory of the records never changes as
        long as anything refers to it.
    projected_bytes
        The bytes of the columns that were asked for, where a server in this process answered with
        all columns: its reader picks them where they lie. Else None.
    headers
        The headers of ``records``, where a server in this process read them. Else None.
    """

    table_id: int
    partition_id: int | None = None
    bucket_id: int = -1
    error_code: int = 0
    error_message: str = ""
    high_watermark: int = -1
    records: pa.Buffer | None = None
    remote: pb.RemoteLogFetchInfo | None = None
    filtered_end_offset: int | None = None
    checked: CheckedColumns | None = None
    projected_bytes: int | None = None
    headers: LogHeaders | None = None


@dataclass(slots=True)
class ReplyBucket:
    """The answer of a server in this process for one bucket.

    Attributes
    ----------
    answer
        The answer but for its records.
    records
        Log batches, in pieces; None in an error.
    checked, projected_bytes, headers
        As of :class:`FetchedBucket`.
    """

    table_id: int
    answer: pb.FetchLogResponseForBucket
    records: Sequence[Buffer] | None = None
    checked: CheckedColumns | None = None
    projected_bytes: int | None = None
    headers: LogHeaders | None = None


class FetchReply(list[Buffer]):
    """The answer of a server in this process to a fetch: no buffers, as it is never sent."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets: list[ReplyBucket] = []

    @property
    def size(self) -> int:
        """The bytes of what was asked for."""
        return sum(
            bucket.answer.ByteSize()
            + (
                sum(map(len, bucket.records or ()))
                if bucket.projected_bytes is None
                else bucket.projected_bytes
            )
            for bucket in self.buckets
        )

    def received(self) -> list[FetchedBucket]:
        """Return what :func:`parse_fetch_response` does, with records that are not copied.

        Those of a projection are put together where they lie apart.
        """
        received = []
        for bucket in self.buckets:
            answer = bucket.answer
            filtered_end = None
            if answer.HasField("filtered_end_offset"):
                filtered_end = answer.filtered_end_offset
            fetched = FetchedBucket(
                bucket.table_id,
                partition_of(answer),
                answer.bucket_id,
                answer.error_code,
                answer.error_message,
                answer.high_watermark if answer.HasField("high_watermark") else -1,
                _joined(bucket.records) if bucket.records else None,
                filtered_end_offset=filtered_end,
                checked=bucket.checked,
                projected_bytes=bucket.projected_bytes,
                headers=bucket.headers,
            )
            received.append(fetched)
        return received


def _joined(parts: Sequence[Buffer]) -> pa.Buffer | None:
    if len(parts) == 1:
        return pa.py_buffer(parts[0]) if len(parts[0]) else None
    size = sum(map(len, parts))
    if not size:
        return None
    joined = allocate(size)
    out = memoryview(joined).cast("B")
    at = 0
    for part in parts:
        end = at + len(part)
        out[at:end] = part
        at = end
    return joined


def parse_fetch_response(body: pa.Buffer, most: int | None = None) -> list[FetchedBucket]:
    """Return the buckets of a ``FetchLogResponse``.

    Raises ProtocolError when the bytes are not such a response, or name more buckets than ``most``:
    two bytes make an object that takes a hundred times as many.
    """
    data = memoryview(body).cast("B")
    buckets: list[FetchedBucket] = []
    for field, kind, start, length in fields(data, 0, len(data)):
        if field == 1 and kind == BYTES:
            _parse_table(body, data, start, start + length, buckets, most)
    return buckets


def _parse_table(
    body: pa.Buffer,
    data: memoryview,
    start: int,
    end: int,
    buckets: list[FetchedBucket],
    most: int | None,
) -> None:
    table_id = None
    spans: list[tuple[int, int]] = []
    for field, kind, value, length in fields(data, start, end):
        if field == 1 and kind == VARINT:
            table_id = signed(value)
        elif field == 2 and kind == BYTES:
            spans.append((value, value + length))
            if most is not None and len(buckets) + len(spans) > most:
                raise ProtocolError(
                    f"a fetch response names more buckets than the {most} asked for"
                )
    if table_id is None:
        raise ProtocolError("a fetch response names no table")
    buckets.extend(_parse_bucket(body, data, table_id, first, last) for first, last in spans)


def _parse_bucket(
    body: pa.Buffer, data: memoryview, table_id: int, start: int, end: int
) -> FetchedBucket:
    bucket = FetchedBucket(table_id)
    for field, kind, value, length in fields(data, start, end):
        if kind == VARINT:
            number = signed(value)
            if field == 1:
                bucket.partition_id = number
            elif field == 2:
                bucket.bucket_id = int32(value)
            elif field == 3:
                bucket.error_code = int32(value)
            elif field == 5:
                bucket.high_watermark = number
            elif field == 9:
                bucket.filtered_end_offset = number
        elif kind == BYTES:
            if field == 4:
                bucket.error_message = bytes(data[value : value + length]).decode(
                    "utf-8", "replace"
                )
            elif field == 7:
                info = data[value : value + length]
                bucket.remote = parsed(pb.RemoteLogFetchInfo, info, "remote log info")
            elif field == 8 and length:
                bucket.records = body.slice(value, length)
    if bucket.bucket_id < 0:
        raise ProtocolError("a fetch response names no bucket")
    return bucket


def fetch_response_bucket(
    bucket: pb.FetchLogResponseForBucket, records: Sequence[Buffer] | None
) -> list[Buffer]:
    """Return the buffers of one bucket in a fetch response.

    ``bucket`` has all but the records. ``records`` are log batches, passed on as they are; None for
    no such field.
    """
    head = bucket.SerializeToString()
    size = sum(len(part) for part in records or ())
    if records is not None:
        head += bytes_header(8, size)
    return [bytes_header(2, len(head) + size) + head, *(records or ())]


def fetch_response_table(table_id: int, buckets: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers of one table in a fetch response, of those of its buckets."""
    head = varint_field(1, table_id)
    size = len(head) + sum(len(part) for part in buckets)
    return [bytes_header(1, size) + head, *buckets]
