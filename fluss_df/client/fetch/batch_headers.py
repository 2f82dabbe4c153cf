"""What the headers of a log say: which batches are a writer's, and when they were committed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import projection_of
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# The bytes of a bucket that are asked for at once to find a time: what a server says of a time is
# rarely far off.
_TIMES_BYTES = 128 << 10


def landed_batches(
    connection: ClientContext,
    info: TableInfo,
    begins: Mapping[TableBucket, int],
    writers: Collection[int],
) -> dict[TableBucket, list[tuple[int, int]]]:
    """Return writer id and sequence of the batches of some writers, in the order of the log.

    ``begins`` has, for each bucket, the offset to look from, which is the beginning of a batch.

    Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` when the log does not go back so far any more.
    """
    tables = TableQuestions(connection)
    buckets = list(begins)
    first, last = (
        connection.io.run(tables.bucket_offsets(info, buckets, spec))
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    for bucket, begin in begins.items():
        if begin < first[bucket]:
            raise FlussError(
                f"table {info.table_path}, bucket {bucket.bucket_id}: what was written from offset"
                f" {begin} on cannot be told any more, the log begins at {first[bucket]}",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
    positions = [
        Position(bucket, None, begin, last[bucket])
        for bucket, begin in begins.items()
        if last[bucket] > begin
    ]
    found: dict[TableBucket, list[tuple[int, int]]] = {bucket: [] for bucket in begins}
    for bucket, ids, sequences in _written_by(connection, info, positions, writers):
        found[bucket] += zip(ids, sequences, strict=True)
    return found


def _written_by(
    connection: ClientContext,
    info: TableInfo,
    positions: Sequence[Position],
    writers: Collection[int],
) -> Iterator[tuple[TableBucket, list[int], list[int]]]:
    """Yield writer ids and sequences of the batches of some writers that begin in a range."""
    metrics = ScanMetrics(parent=connection.metrics)
    # headers come whole whatever is projected: one column is enough
    projection = projection_of(info, info.get_column_names()[:1])
    for position, chunk in ChunkRead(connection, info, projection, positions, metrics):
        headers = chunk.headers
        # a fetch from within a batch returns all of it
        wanted = np.isin(headers.writer_id, list(writers)) & (headers.base_offset >= chunk.start)
        if position.stop is not None:
            wanted &= headers.base_offset < position.stop
        writer_ids, sequences = headers.writer_id[wanted], headers.sequence[wanted]
        yield position.bucket, writer_ids.tolist(), sequences.tolist()


def offsets_from_time(
    connection: ClientContext,
    info: TableInfo,
    ranges: Mapping[TableBucket, tuple[int, int]],
    timestamp_ms: int,
) -> dict[TableBucket, int]:
    """Return the first offset in a range of each bucket that was committed from a moment on.

    Servers answer for a moment in remote storage with what their index of the segment says, which
    may be some batches before it. Where nothing of a range was committed from then on, the answer
    is the end of the range. Nothing is asked for empty ranges. For others, one fetch shows whether
    the server was right.

    ``ranges`` has, for each bucket, the offset to look from and the offset to stop before.
    ``timestamp_ms`` counts from 1970.
    """
    found = {bucket: end for bucket, (_, end) in ranges.items()}
    # the batch at the beginning of a range is asked for, of many buckets at once
    firsts = [
        Position(bucket, None, start, start + 1, start)
        for bucket, (start, end) in ranges.items()
        if start < end
    ]
    known: set[TableBucket] = set()
    for position, at in _committed_from(connection, info, firsts, timestamp_ms):
        if position.bucket not in known:
            known.add(position.bucket)
            found[position.bucket] = min(at, found[position.bucket])
    for first in firsts:
        end = ranges[first.bucket][1]
        if first.bucket in known or first.offset >= end:
            continue
        rest = Position(first.bucket, None, first.offset, end, first.offset)
        with contextlib.closing(_committed_from(connection, info, [rest], timestamp_ms)) as later:
            for _, at in itertools.islice(later, 1):
                found[first.bucket] = min(at, end)
    return found


def _committed_from(
    connection: ClientContext, info: TableInfo, positions: Sequence[Position], timestamp_ms: int
) -> Generator[tuple[Position, int]]:
    """Yield, of each piece of the log that has one, the first offset committed from a moment on."""
    metrics = ScanMetrics(parent=connection.metrics)
    projection = projection_of(info, info.get_column_names()[:1])
    for position, chunk in ChunkRead(
        connection, info, projection, positions, metrics, bucket_bytes=_TIMES_BYTES
    ):
        headers = chunk.headers
        ends = headers.base_offset + headers.last_offset_delta
        # a fetch from within a batch returns all of it, and a file what stands before it
        late = (headers.timestamp >= timestamp_ms) & (ends >= chunk.start)
        if late.any():
            yield position, max(int(headers.base_offset[late][0]), chunk.start)
