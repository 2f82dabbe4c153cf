"""A lazy read of a scanner: it tells from where on it returned nothing, when it does not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.hooks import undoing
from fluss_df.metadata import TableBucket
from fluss_df.pushdown.server_filter import ServerFilter

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
