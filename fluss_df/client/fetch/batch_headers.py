"""Which batches of a writer are in a log: read from the headers of what stands there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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


def landed_batches(
    connection: ClientContext,
    info: TableInfo,
    begins: Mapping[TableBucket, int],
    writers: Collection[int],
) -> dict[TableBucket, list[tuple[int, int]]]:
    """Return writer id and sequence of the batches of some writers, in the order of the log.

    Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` when the log does not go back so far any more.

    Parameters
    ----------
    connection, info
        The table.
    begins
        From which offset on to look, for each bucket; the beginning of a batch.
    writers
        Their ids.
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
    for bucket, ids, sequences in written_by(connection, info, positions, writers):
        found[bucket] += zip(ids, sequences, strict=True)
    return found


def written_by(
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
