"""Questions about buckets that only their leaders can answer: offsets, row counts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fluss_df.client.runtime.retry import STALE_METADATA, Backoff, is_transient
from fluss_df.errors import ErrorCode, FlussError, NetworkError, ProtocolError
from fluss_df.metadata import OffsetSpec, TableBucket, require_bucket
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.frames import server_error
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.cluster.metadata import Cluster

T = TypeVar("T")

# at most this many requests are on their way at once
_PARALLEL_REQUESTS = 16

# Asks the leader of some buckets, which have the same leader and the same partition. Returns for
# each bucket that was answered for: its number, the error code, the error text, the value.
Ask = Callable[[Sequence[TableBucket]], Awaitable[Iterable[tuple[int, int, str, T]]]]


async def ask_leaders(
    cluster: Cluster, info: TableInfo, buckets: Iterable[TableBucket], what: str, ask: Ask[T]
) -> dict[TableBucket, T]:
    """Ask the leader of each bucket; a coroutine of the I/O thread.

    Leaders that moved or are not yet elected are waited for, up to ``retry-timeout``.

    The buckets may be of any partitions of the table. ``what`` is what is asked for, for errors.
    """
    todo = list(buckets)
    for bucket in todo:
        count = cluster.buckets_of(info, bucket.partition_id)
        require_bucket(bucket.bucket_id, count, info.table_path)
    result: dict[TableBucket, T] = {}
    backoff = Backoff(cluster.config.retry_timeout_ms)
    limit = asyncio.Semaphore(_PARALLEL_REQUESTS)

    async def ask_group(group: Sequence[TableBucket]) -> FlussError | None:
        """Put the values of one leader into ``result``; return an error that may pass, if any."""
        try:
            async with limit:
                answers = await ask(group)
        except FlussError as error:
            if not is_transient(error):
                raise
            for bucket in group:
                cluster.forget_leader(bucket)
            return error
        transient: FlussError | None = None
        by_id = {bucket.bucket_id: bucket for bucket in group}
        for bucket_id, code, text, value in answers:
            if bucket_id not in by_id:
                raise ProtocolError(
                    f"a server answered for bucket {bucket_id} of table {info.table_path}, which it"
                    f" was not asked for, or twice, where the {what} was asked for"
                )
            bucket = by_id.pop(bucket_id)
            if not code:
                result[bucket] = value
                continue
            refusal = server_error(
                code, text, f"{what} of bucket {bucket_id} of table {info.table_path}"
            )
            if not is_transient(refusal) and refusal.error_code not in STALE_METADATA:
                raise refusal
            cluster.forget_leader(bucket)
            transient = refusal
        for bucket in by_id.values():
            cluster.forget_leader(bucket)
            transient = NetworkError(
                f"a server did not answer for the {what} of bucket {bucket.bucket_id} of table"
                f" {info.table_path}"
            )
        return transient

    while True:
        await learn_leaders(cluster, info, todo)
        groups: dict[Any, list[TableBucket]] = defaultdict(list)
        for bucket in todo:
            node = cluster.known_leader(bucket)
            groups[None if node is None else node.id, bucket.partition_id].append(bucket)
        problems = await asyncio.gather(*(ask_group(group) for group in groups.values()))
        problem = next((found for found in problems if found is not None), None)
        if problem is None:
            return result
        if backoff.expired:
            raise problem
        cluster.note_retry(problem)
        await asyncio.sleep(backoff.next_pause())
        todo = [bucket for bucket in todo if bucket not in result]


async def learn_leaders(cluster: Cluster, info: TableInfo, buckets: Sequence[TableBucket]) -> None:
    """Ask for all unknown leaders in one request."""
    unknown = [b for b in buckets if cluster.known_leader(b) is None]
    if unknown:
        partitions = {b.partition_id: b for b in unknown if b.partition_id is not None}
        try:
            await cluster.refresh([info.table_path], sorted(partitions))
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            # this request tells which partition is gone, or that its table is gone too
            for bucket in partitions.values():
                await cluster.require_partition(info.table_path, bucket)
            raise


def offsets_request(
    info: TableInfo, group: Sequence[TableBucket], spec: OffsetSpec
) -> pb.ListOffsetsRequest:
    """Return the question for an offset of buckets of one partition."""
    request = pb.ListOffsetsRequest(
        follower_server_id=-1,
        offset_type=spec.type,
        table_id=info.table_id,
        bucket_id=[bucket.bucket_id for bucket in group],
    )
    if group[0].partition_id is not None:
        request.partition_id = group[0].partition_id
    if spec.timestamp_ms is not None:
        request.start_timestamp = spec.timestamp_ms
    return request


async def bucket_offsets(
    cluster: Cluster, info: TableInfo, buckets: Iterable[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Return an offset of each bucket, of any partitions; a coroutine of the I/O thread."""

    async def ask(group: Sequence[TableBucket]) -> Iterable[tuple[int, int, str, int]]:
        response = await _ask_offsets(cluster, info, group, spec)
        return [
            (b.bucket_id, b.error_code, b.error_message, b.offset) for b in response.buckets_resp
        ]

    return await ask_leaders(cluster, info, buckets, "offset", ask)


async def offsets_by_clock(
    cluster: Cluster, info: TableInfo, buckets: Iterable[TableBucket], timestamp_ms: int
) -> dict[TableBucket, int | None]:
    """Return the first offset of each bucket from a moment on; a coroutine of the I/O thread.

    It is None where the moment is still to come by the clock of the bucket's server: that of one
    server says nothing of the others.
    """
    spec = OffsetSpec.timestamp(timestamp_ms)
    to_come = ErrorCode.INVALID_TIMESTAMP_EXCEPTION

    async def ask(group: Sequence[TableBucket]) -> Iterable[tuple[int, int, str, int | None]]:
        try:
            response = await _ask_offsets(cluster, info, group, spec)
        except FlussError as error:
            if error.error_code != to_come:
                raise
            return [(bucket.bucket_id, 0, "", None) for bucket in group]
        return [
            (b.bucket_id, 0, "", None)
            if b.error_code == to_come
            else (b.bucket_id, b.error_code, b.error_message, b.offset)
            for b in response.buckets_resp
        ]

    return await ask_leaders(cluster, info, buckets, "offset", ask)


async def _ask_offsets(
    cluster: Cluster, info: TableInfo, group: Sequence[TableBucket], spec: OffsetSpec
) -> pb.ListOffsetsResponse:
    request = offsets_request(info, group, spec)
    count = cluster.told_count(group[0])
    if count is not None:
        request.bucket_count = count
    return await cluster.request_leader(info.table_path, group[0], api.LIST_OFFSETS, request)


async def bucket_row_counts(
    cluster: Cluster, info: TableInfo, buckets: Iterable[TableBucket]
) -> dict[TableBucket, int | None]:
    """Return the rows of each bucket, None where its server does not count them."""

    async def ask(group: Sequence[TableBucket]) -> Iterable[tuple[int, int, str, int | None]]:
        asked = [
            pb.TableStatsRequestForBucket(
                partition_id=b.partition_id,
                bucket_id=b.bucket_id,
                bucket_count=cluster.told_count(b),
            )
            for b in group
        ]
        request = pb.GetTableStatsRequest(table_id=info.table_id, buckets_req=asked)
        response = await cluster.request_leader(
            info.table_path, group[0], api.GET_TABLE_STATS, request
        )
        return [
            (
                answer.bucket_id,
                answer.error_code,
                answer.error_message,
                answer.row_count if answer.HasField("row_count") else None,
            )
            for answer in response.buckets_resp
        ]

    return await ask_leaders(cluster, info, buckets, "row count", ask)
