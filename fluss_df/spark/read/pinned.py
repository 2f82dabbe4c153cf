"""Current rows of a primary-key table as they were when a query was planned.

A task reads its bucket as it is at a moment of its own. From there the changelog leads to the
offset that was the bucket's end at planning: back, by the first change of each key since, whose old
row is in the changelog; or forward, by the last change of each key, where the scan is behind. So
all tasks of a query, and those that Spark repeats, read the same moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.scan.change_fold import ChangeFold
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import CHANGE_TYPE_COLUMN, ChangeType, TableBucket
from fluss_df.pushdown.plan import Split
from fluss_df.record.kv.primary_key import key_columns, key_lake_format
from fluss_df.schema import TableInfo

_IMAGE = "table.changelog.image"
_OLD_ROWS = (ChangeType.UpdateBefore.value, ChangeType.Delete.value)


def can_pin(info: TableInfo) -> bool:
    """Whether the changelog of a table has the rows that changes replaced."""
    return info.get_properties().get(_IMAGE, "").upper() != "WAL"


def pinned_rows(
    connection: FlussConnection, info: TableInfo, columns: Sequence[str], split: Split
) -> Iterator[pa.Table]:
    """Yield the rows of a bucket as it was where its changelog had the offset ``split.stop``.

    Tables that :func:`can_pin` says no of are read as they are. Memory is that of what changed
    since.

    Raises ``PARTITION_NOT_EXISTS`` where the partition was dropped since, or created again.
    """
    keys = [column.name for column in key_columns(info)]
    names = list(dict.fromkeys([*columns, *keys]))
    partition = None if split.partition_name is None else [split.partition_name]
    scanner = SnapshotScanner(
        connection, info, names, partitions=partition, buckets=[split.bucket_id]
    )
    bucket = split.bucket.of(info.table_id)
    batches = scanner.batches()
    first = list(itertools.islice(batches, 1))
    # the offset is known once the scan has begun
    at = scanner.offset_of(bucket)
    if at is None:
        # the scanner looks for partitions by their names
        raise FlussError(
            f"table {info.table_path}: partition '{split.partition_name}' (id {split.partition_id})"
            " was dropped and created again since the query was planned; run the query again",
            ErrorCode.PARTITION_NOT_EXISTS,
        )
    moved = Moved(connection, info, names, bucket, split.partition_name)
    if can_pin(info):
        moved.read(at, split.stop)
    for batch in itertools.chain(first, batches):
        yield moved.kept(pa.Table.from_batches([batch])).select(list(columns))
    if moved.rows.num_rows:
        yield moved.rows.select(list(columns))


class Moved:
    """The differences of a bucket between two offsets of its changelog.

    ``changed`` has the keys whose rows at the two offsets differ. ``rows`` has the rows of these
    keys at the second offset.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        names: Sequence[str],
        bucket: TableBucket,
        partition_name: str | None,
    ) -> None:
        self._connection = connection
        self._info = info
        self._bucket = bucket
        self._partition_name = partition_name
        self._metrics = Metrics(parent=connection.metrics)
        self._decoder = TableDecoder(
            connection, info, list(names), (CHANGE_TYPE_COLUMN,), self._metrics
        )
        self._schema = pa.schema(list(self._decoder.schema)[:-1])
        self._fold = ChangeFold(key_columns(info), key_lake_format(info), self._schema)
        self.changed = pa.array([], pa.large_binary())
        self.rows = self._schema.empty_table()

    def read(self, at: int, to: int) -> None:
        """Read the changes that lead from rows at one offset to those at another."""
        if at < to:
            for rows, kinds in self._changes(at, to):
                self._fold.add(rows, kinds)
            self.changed, self.rows = self._fold.finish()
        elif at > to:
            self._undo(list(self._changes(to, at)))

    def kept(self, table: pa.Table) -> pa.Table:
        """Return those of the rows at the first offset that are there at the second, unchanged."""
        if not len(self.changed) or not table.num_rows:
            return table
        return table.filter(pc.invert(pc.is_in(self._fold.encode(table), self.changed)))

    def _undo(self, changes: Sequence[tuple[pa.Table, pa.ChunkedArray]]) -> None:
        """Take for each key what was before its first change."""
        if not changes:
            return
        rows = pa.concat_tables([table for table, _ in changes])
        kinds = np.concatenate([codes.to_numpy() for _, codes in changes])
        numbered = pa.table(
            {"key": self._fold.encode(rows), "at": pa.array(np.arange(rows.num_rows))}
        )
        found = numbered.group_by("key", use_threads=False).aggregate([("at", "min")])
        first = found.column("at_min").to_numpy()
        self.changed = found.column("key").combine_chunks()
        self.rows = rows.take(pa.array(first[np.isin(kinds[first], _OLD_ROWS)]))

    def _changes(self, start: int, stop: int) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
        position = Position(self._bucket, self._partition_name, start, stop)
        last = len(self._schema)
        for table in self._decoder.read([position]):
            codes = [chunk.indices for chunk in table.column(last).chunks]
            yield table.select(range(last)), pa.chunked_array(codes, pa.int8())
