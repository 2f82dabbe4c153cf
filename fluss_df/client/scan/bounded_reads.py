"""Reads of a log scanner up to the latest offset: where they begin, and of which bucket rows are.

A lazy read tells from where on it returned nothing, when it does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.metadata import EARLIEST_OFFSET, LATEST_OFFSET, TableBucket, require_bucket
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

#: Makes the result of decoded rows of a bucket, and says whether it keeps the last row for later.
Make: TypeAlias = Callable[[pa.Table, TableBucket], tuple[pa.Table, bool]]


def lazy_read(
    decoder: TableDecoder,
    positions: Sequence[Position],
    server_filter: ServerFilter | None,
    make: Make,
    unread: Callable[[Sequence[tuple[Position, int]]], None],
) -> Iterator[pa.RecordBatch]:
    """Return the rows of bounded positions, bucket after bucket.

    Where the read fails, or is dropped before its end, ``unread`` is called with the positions that
    were not read to their end, and the offset of the first row of each that was not returned. That
    may be on any thread, in the middle of anything, as part of a collection of garbage.
    """

    def read() -> Iterator[pa.RecordBatch]:
        # buckets in their order, each with its first row that was not returned
        left = [(position, position.offset) for position in positions]
        with undoing(lambda: unread(left)):
            yield pa.RecordBatch.from_arrays([], [])
            for position, offset_of, table in decoder.read_located(positions, server_filter):
                while left[0][0] is not position:
                    del left[0]
                done = 0
                for batch in table.to_batches():
                    done += batch.num_rows
                    made, kept = make(pa.Table.from_batches([batch]), position.bucket)
                    last = offset_of(done - 1) if done else position.offset
                    left[0] = (position, last if kept else last + 1)
                    yield from made.to_batches()

    batches = read()
    # started here, so that ``unread`` is also called for a read that is dropped before its first
    # row is asked for
    next(batches)
    return batches


def rows_apart(
    table: pa.Table, positions: Sequence[Position], rows: Mapping[TableBucket, int]
) -> list[tuple[Position, pa.Table]]:
    """Return the rows of each bucket that has some, of a table in the order of the positions."""
    found = []
    done = 0
    for position in positions:
        count = rows.get(position.bucket, 0)
        if count:
            found.append((position, table.slice(done, count)))
        done += count
    return found


def require_starts(
    connection: ClientContext, info: TableInfo, starts: Iterable[tuple[int | None, int, int]]
) -> None:
    """Refuse buckets that the table does not have, and start offsets that cannot be.

    ``starts`` has a partition id or None, a bucket and an offset each.
    """
    for partition_id, bucket, offset in starts:
        count = connection.cluster.buckets_of(info, partition_id)
        require_bucket(bucket, count, info.table_path)
        if offset < LATEST_OFFSET and offset != EARLIEST_OFFSET:
            raise FlussError(
                f"invalid start offset {offset}: expected 0 or more, EARLIEST_OFFSET (-2) or"
                " LATEST_OFFSET (-1)",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )


def require_within(
    position: Position,
    named: int | None,
    ends: Mapping[TableBucket, int],
    where: Callable[[Position], str],
) -> None:
    """Refuse a named start offset behind the end of the log, if nothing was read from it yet.

    ``named`` is None where none was; ``where`` returns the name of a bucket.
    """
    end = ends.get(position.bucket)
    if end is not None and named == position.offset > end:
        raise FlussError(
            f"offset {position.offset} is out of range: {where(position)} ends at {end}",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )
