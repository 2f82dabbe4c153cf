"""Reading the last rows of one bucket: :class:`BatchScanner`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.fetch.parallel import read_table
from fluss_df.client.fetch.position import Position
from fluss_df.client.runtime.awaitable import Ready
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.records import RecordBatch
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, TableBucket, require_bucket
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.context import ClientContext


class BatchScanner(Ready):
    """Reads the last rows of one bucket of a log table, once.

    Obtain one from ``table.new_scan().limit(n).create_bucket_batch_scanner(bucket)``. Which rows
    are the last is decided by the first read that succeeds; after it the scanner is spent.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns to read, in this order; None for all.
    bucket
        The bucket.
    limit
        The most rows, the newest ones.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: tuple[str, ...] | None,
        bucket: TableBucket,
        limit: int,
    ) -> None:
        if bucket.table_id != info.table_id:
            raise FlussError(
                f"{bucket} is no bucket of table {info.table_path}, whose id is {info.table_id}",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )
        count = connection.cluster.buckets_of(info, bucket.partition_id)
        require_bucket(bucket.bucket_id, count, info.table_path)
        if info.is_partitioned() != (bucket.partition_id is not None):
            raise FlussError(
                f"table {info.table_path} has "
                + (
                    "partitions: name one, with TableBucket.with_partition(...)"
                    if info.is_partitioned()
                    else "no partitions"
                ),
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        self._connection = connection
        self._info = info
        self._columns = tuple(info.get_column_names()) if columns is None else columns
        self._bucket = bucket
        self._limit = limit
        self._spent = False
        # batches that were read, and that no call returned
        self._left: deque[RecordBatch] = deque()
        self._lock = threading.Lock()
        self.metrics = ScanMetrics(parent=connection.metrics)

    @property
    def bucket(self) -> TableBucket:
        """The bucket."""
        return self._bucket

    def next_batch(self) -> RecordBatch | None:
        """Return the rows as one batch; None when there are none, or were returned before.

        They are several batches, one with each call, where a column is larger than an array of
        Arrow can be: 2 GiB of strings or bytes.
        """
        if not self._left:
            self._left.extend(self._batches())
        return self._left.popleft() if self._left else None

    def _batches(self) -> Iterator[RecordBatch]:
        read = self._read()
        if read is not None:
            base_offset, table = read
            for batch in _as_few_batches(table):
                yield RecordBatch(batch, self._bucket, base_offset)
                base_offset += batch.num_rows

    def collect_all_batches(self) -> list[RecordBatch]:
        """Return all batches that are left: one or none, and few where rows are large."""
        return list(iter(self.next_batch, None))

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table; empty, with the schema, when there are none."""
        if self._left:
            # of rows in several batches, the batches that no call returned
            left = [self._left.popleft().batch for _ in range(len(self._left))]
            return pa.Table.from_batches(left)
        read = self._read()
        if read is not None:
            return read[1]
        return read_table(self._connection, self._info, self._columns, (), self.metrics)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _read(self) -> tuple[int, pa.Table] | None:
        """Return the offset of the first row, and the rows; None after the first time."""
        with self._lock:
            if self._spent:
                return None
            found = self._rows()
            # what failed may be tried again
            self._spent = True
            return found

    def _mark(self) -> tuple[RecordBatch, ...] | None:
        """Return where a read begins, for :meth:`_go_back`: what is left; None before the first."""
        with self._lock:
            return tuple(self._left) if self._spent else None

    def _go_back(self, mark: tuple[RecordBatch, ...] | None) -> None:
        """Have the rows of a read come again, which nobody got; those of earlier reads do not."""
        with self._lock:
            self._spent = mark is not None
            self._left = deque(mark or ())

    def _rows(self) -> tuple[int, pa.Table]:
        first = self._offset(OffsetSpec.earliest())
        end = self._offset(OffsetSpec.latest())
        start = max(first, end - self._limit)
        positions = []
        if end > start:
            log_start = first if start == first else None
            positions = [Position(self._bucket, self._partition_name(), start, end, log_start)]
        table = read_table(self._connection, self._info, self._columns, positions, self.metrics)
        return start + sum(position.expired for position in positions), table

    def _offset(self, spec: OffsetSpec) -> int:
        tables = TableQuestions(self._connection)
        offsets = self._connection.io.run(tables.bucket_offsets(self._info, [self._bucket], spec))
        return offsets[self._bucket]

    def _partition_name(self) -> str | None:
        if self._bucket.partition_id is None:
            return None
        infos = TableQuestions(self._connection).list_partition_infos(self._info.table_path)
        return next(
            (i.partition_name for i in infos if i.partition_id == self._bucket.partition_id), None
        )

    def __repr__(self) -> str:
        return f"BatchScanner({self._bucket}, limit={self._limit})"


def _as_few_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows of a table: one batch, if its columns can be single arrays."""
    return [batch for batch in table.combine_chunks().to_batches() if batch.num_rows]
