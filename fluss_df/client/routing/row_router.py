"""Cuts the rows of a writer into batches, each for one bucket: :class:`RowRouter`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from fluss_df.client.routing.one_row import PlainPartitions
from fluss_df.client.routing.partitions import PartitionRouter, bucket_assigner
from fluss_df.client.send.batch import RoutedBatch
from fluss_df.metadata import TableBucket
from fluss_df.schema import TableInfo
from fluss_df.types import Column

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# at most this many bytes of rows are assigned to buckets in one step
_SPREAD_BYTES = 16 << 20
# a batch of up to 1.2 times its target size is sent whole: cut, it would be two small batches
_MARGIN = 1.2

#: A bucket, and the name of its partition (None in a table without partitions).
Place: TypeAlias = tuple[TableBucket, str | None]


class RowRouter:
    """Gives the rows of a writer their partitions and buckets; one thread at a time.

    Rows have ``columns``, and no batch has more than ``most_rows``. With ``create_partitions``, the
    partitions of rows are created where they do not exist.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[Column],
        *,
        most_rows: int,
        create_partitions: bool,
    ) -> None:
        self._most_rows = most_rows
        self._partitions = PartitionRouter(connection, info, create=create_partitions)
        self._plain_partitions = PlainPartitions(info, columns) if info.is_partitioned() else None
        self._assign = bucket_assigner(
            info, connection.config, columns, count_of=self._partitions.buckets_of
        )
        #: See :meth:`PartitionRouter.learn`.
        self.learn = self._partitions.learn

    def routes(self, data: pa.Table, target_bytes: int) -> Iterator[RoutedBatch]:
        """Return the batches of about ``target_bytes`` that some rows make, each of one bucket.

        A partition that is missing, or a row without one, is an error here: before the first batch.
        """
        return self._batches(self._partitions.split(data), target_bytes)

    def _batches(
        self, parts: Iterable[tuple[str | None, int | None, pa.Table]], target_bytes: int
    ) -> Iterator[RoutedBatch]:
        # a step has several target sizes of rows, so that each bucket gets about one of them
        spread_bytes = max(target_bytes, min(target_bytes * self._assign.spread, _SPREAD_BYTES))
        for partition_name, partition_id, part in parts:
            for piece in _pieces(part, spread_bytes):
                for bucket, rows in self._assign(piece, partition_id):
                    if rows.nbytes <= target_bytes * _MARGIN and rows.num_rows <= self._most_rows:
                        yield RoutedBatch(bucket, partition_name, rows)
                        continue
                    table = pa.Table.from_batches([rows])
                    for batch in _pieces(table, target_bytes, self._most_rows):
                        yield RoutedBatch(bucket, partition_name, batch)

    def place(self, row: Sequence[Any]) -> Place | None:
        """Return where a single row goes; None for a row that needs :meth:`routes`."""
        name, partition_id = None, None
        if self._plain_partitions is not None:
            name = self._plain_partitions.name(row)
            partition_id = None if name is None else self._partitions.known_id(name)
            if partition_id is None:
                return None
        bucket = self._assign.of_one(row, partition_id)
        return None if bucket is None else (bucket, name)


def _pieces(
    table: pa.Table, target_bytes: int, most_rows: int = sys.maxsize
) -> Iterator[pa.RecordBatch]:
    """Cut a table into record batches of about ``target_bytes`` and at most ``most_rows`` rows.

    Without rows there is none.
    """
    if not table.num_rows:
        return
    rows = max(1, int(table.num_rows * target_bytes / max(1, table.nbytes)))
    rows = min(rows, most_rows)
    # pieces of equal size, rather than a small one at the end
    count = max(1, -(-table.num_rows // rows))
    rows = -(-table.num_rows // count)
    for start in range(0, table.num_rows, rows):
        piece = table.slice(start, rows).combine_chunks()
        yield from piece.to_batches()
