"""Which batches of a writer are in a log: read from the headers of what stands there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fluss_df.client.fetch.fetcher import Chunk, Position
from fluss_df.client.fetch.ordered import OrderedRead
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext


class _HeaderDecoder(TableDecoder):
    """Yields writer id and sequence of each batch instead of its rows."""

    def decode(self, position: Position, chunk: Chunk) -> Iterator[pa.Table]:
        """Yield the headers of a chunk."""
        headers = chunk.headers
        begins = headers.base_offset
        wanted = begins >= chunk.start
        if position.stop is not None:
            wanted &= begins < position.stop
        count = int(wanted.sum())
        yield pa.table(
            {
                "partition": pa.repeat(pa.scalar(position.bucket.partition_id, pa.int64()), count),
                "bucket": pa.repeat(pa.scalar(position.bucket.bucket_id, pa.int32()), count),
                "writer": headers.writer_id[wanted].astype(np.int64),
                "sequence": headers.sequence[wanted].astype(np.int64),
            }
        )


def landed_batches(
    connection: ClientContext,
    info: TableInfo,
    begins: Mapping[TableBucket, int],
    writers: Collection[int],
) -> dict[TableBucket, list[tuple[int, int]]]:
    """Return writer id and sequence of the batches of some writers, in the order of the log.

    Parameters
    ----------
    connection, info
        The table.
    begins
        From which offset on to look, for each bucket; the beginning of a batch.
    writers
        Their ids.

    Raises
    ------
    FlussError
        ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` when the log does not go back so far any more.
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
    for table in _headers(connection, info, positions):
        columns = (table.column(i).to_pylist() for i in range(4))
        for partition, number, writer, sequence in zip(*columns, strict=True):
            if writer in writers:
                bucket = TableBucket(info.table_id, number, partition)
                found[bucket].append((writer, sequence))
    return found


def _headers(
    connection: ClientContext, info: TableInfo, positions: Sequence[Position]
) -> Iterator[pa.Table]:
    metrics = ScanMetrics(parent=connection.metrics)
    decoder = _HeaderDecoder(connection, info, info.get_column_names()[:1], (), metrics)
    yield from OrderedRead(connection, info, decoder, positions, metrics)
