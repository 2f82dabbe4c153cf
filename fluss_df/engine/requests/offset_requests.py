"""Requests about offsets: where logs begin and end, and where a time is in them."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from fluss_df.engine.engine import Engine
from fluss_df.engine.files.workers import paced
from fluss_df.engine.tables.buckets import java_name
from fluss_df.engine.tables.tables import now_ms
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import partition_of, set_error

_EARLIEST: Final = 0
_LATEST: Final = 1
_TIMESTAMP: Final = 2


def list_offsets(engine: Engine, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    """Return offsets of buckets."""
    response = pb.ListOffsetsResponse()
    partition = partition_of(request)
    # each once, as in Fluss: a moment is searched for in a log
    buckets = list(
        dict.fromkeys(
            TableBucket(request.table_id, number, partition) for number in request.bucket_id
        )
    )
    there = engine.having_folders(buckets)
    for bucket in paced(buckets):
        answer = response.buckets_resp.add(bucket_id=bucket.bucket_id)
        try:
            answer.offset = _offset(engine, bucket, request, there)
        except FlussError as error:
            set_error(answer, error)
    return response


def _offset(
    engine: Engine,
    bucket: TableBucket,
    request: pb.ListOffsetsRequest,
    having_folders: Container[TableBucket],
) -> int:
    start, end = engine.log_bounds(bucket, having_folders)
    if request.offset_type == _EARLIEST:
        return start
    if request.offset_type == _LATEST:
        return end
    if request.offset_type != _TIMESTAMP:
        raise FlussError(
            f"Invalid list offset type: {request.offset_type}", ErrorCode.UNKNOWN_SERVER_ERROR
        )
    if not request.HasField("start_timestamp"):
        raise FlussError(
            "startTimestamp is not present while list offset by timestamp.",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    now = now_ms()
    if request.start_timestamp > now:
        raise FlussError(
            f"Get offset error for table bucket {java_name(bucket)}, the fetch timestamp"
            f" {request.start_timestamp} is larger than the current timestamp {now}",
            ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
        )
    if start == end:
        return end
    return engine.bucket(bucket)[1].offset_for_time(request.start_timestamp)
