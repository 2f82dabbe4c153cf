"""Reads what a task writes: a part of a bucket's log, or the rows of a bucket as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.context import ClientContext
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.lake.rounds.split import Split
from fluss_df.lake.rounds.tasks import Written
from fluss_df.metadata import COMMIT_TIMESTAMP_COLUMN
from fluss_df.schema import TableInfo

_AHEAD_BYTES: Final = 8 << 20


class SplitReader:
    """Reads the splits of one table."""

    def __init__(self, connection: ClientContext, info: TableInfo) -> None:
        self._connection = connection
        self._info = info
        self._metrics = ScanMetrics(parent=connection.metrics)

    def log(self, split: Split, metadata: Sequence[str], result: Written) -> Iterator[pa.Table]:
        """Yield the log of a split, in its order: an empty table first, which has its columns.

        ``metadata`` names the columns of metadata to have beside the table's; the commit's time
        must be one. ``result`` gets the number of rows, and the newest time.
        """
        position = Position(split.bucket, split.partition_name, split.start, split.stop)
        read = ParallelRead[pa.Table](
            self._connection,
            self._info,
            self._info.get_column_names(),
            metadata,
            [position],
            self._metrics,
            lambda table: table,
            ahead_bytes=_AHEAD_BYTES,
        )
        newest = -1
        with read:
            yield pa.Table.from_batches([], read.schema)
            for table in read:
                if table is None or not table.num_rows:
                    continue
                result.rows += table.num_rows
                moment = pc.max(table.column(COMMIT_TIMESTAMP_COLUMN)).cast(
                    pa.timestamp("ms", "UTC")
                )
                newest = max(newest, moment.value)
                result.timestamps[split.key] = newest
                yield table

    def current_rows(self, split: Split, result: Written, *, ends: bool) -> Iterator[pa.Table]:
        """Yield the rows of a primary-key bucket as they are at one offset.

        Of ``split``, only the bucket matters. ``result`` gets the number of rows. With ``ends`` the
        bucket is tiered up to that offset, and ``result`` gets the offset, too.
        """
        scanner = self.scanner(split)
        for batch in scanner.batches():
            result.rows += batch.num_rows
            yield pa.Table.from_batches([batch])
        if ends:
            result.offsets[split.key] = scanner.offsets[split.bucket]

    def scanner(self, split: Split, columns: list[str] | None = None) -> SnapshotScanner:
        """Return a scanner of the current rows of a bucket, for some columns; None for all."""
        name = split.partition_name
        return SnapshotScanner(
            self._connection,
            self._info,
            columns,
            partitions=None if name is None else [name],
            buckets=[split.bucket.bucket_id],
        )
