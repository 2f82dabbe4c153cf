"""A few rows of one bucket in one request: :class:`BatchScanner`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss_df.client.facade import Ready, ready
from fluss_df.client.log_decode import TableDecoder
from fluss_df.client.log_fetch import Chunk, Position
from fluss_df.client.metrics import ScanMetrics
from fluss_df.client.retry import STALE_METADATA, retrying
from fluss_df.client.scan_records import RecordBatch
from fluss_df.client.value_reader import ValueReader
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LIMIT_SCAN
from fluss_df.protocol.frames import server_error
from fluss_df.record.headers import scan_headers
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.connection import FlussConnection


class BatchScanner(Ready):
    """Reads at most ``limit`` rows of one bucket, once.

    Of a primary-key table it reads current rows, whichever the server takes first; of a log table
    the last ones. What is read stands for no offset: see
    :class:`~fluss_df.client.kv_scan.SnapshotScanner` for that.

    Obtain one from ``table.new_scan().limit(n).create_bucket_batch_scanner(bucket)``.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns to read, in this order; None for all.
    bucket
        The bucket.
    limit
        The most rows.
    """

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        columns: Sequence[str] | None,
        bucket: TableBucket,
        limit: int,
    ) -> None:
        where = f"table {info.table_path}"
        if bucket.table_id != info.table_id:
            raise FlussError(
                f"{where} has the id {info.table_id}, and the bucket is of table {bucket.table_id}"
            )
        if not 0 <= bucket.bucket_id < info.num_buckets:
            raise FlussError(
                f"{where} has no bucket {bucket.bucket_id}: its buckets are 0 to"
                f" {info.num_buckets - 1}",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )
        if info.is_partitioned() != (bucket.partition_id is not None):
            raise FlussError(
                f"{where} has partitions: name one in the bucket"
                if info.is_partitioned()
                else f"{where} has no partitions, and the bucket names one",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        self._connection = connection
        self._info = info
        self._columns = tuple(info.get_column_names() if columns is None else columns)
        self._bucket = bucket
        self._limit = limit
        self._spent = False
        self.metrics = ScanMetrics(parent=connection.metrics)

    @property
    def bucket(self) -> TableBucket:
        """The bucket."""
        return self._bucket

    def next_batch(self) -> RecordBatch | None:
        """Return the rows the first time, with offsets counted from 0, then None."""
        if self._spent:
            return ready(None)
        batch = self.to_arrow().combine_chunks().to_batches()
        if not batch:
            batch = [pa.RecordBatch.from_pylist([], schema=self._schema())]
        return RecordBatch(batch[0], self._bucket, 0)

    def collect_all_batches(self) -> list[RecordBatch]:
        """Return what :meth:`next_batch` has left, as a list."""
        batch = self.next_batch()
        return ready([batch] if isinstance(batch, RecordBatch) else [])

    def to_arrow(self) -> pa.Table:
        """Return the rows; none once they were returned."""
        if self._spent:
            return pa.Table.from_batches([], self._schema())
        self._spent = True
        answer = self._connection.io.run(self._ask())
        if not answer.records:
            return pa.Table.from_batches([], self._schema())
        if not answer.is_log_table:
            reader = ValueReader(self._connection, self._info, self._columns)
            return reader.decode_batch(answer.records).slice(0, self._limit)
        return self._log_rows(answer.records)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _schema(self) -> pa.Schema:
        arrow = self._info.schema.arrow_schema
        return pa.schema([arrow.field(name).with_nullable(True) for name in self._columns])

    async def _ask(self) -> pb.LimitScanResponse:
        cluster = self._connection.cluster
        bucket = self._bucket
        request = pb.LimitScanRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            limit=self._limit,
        )

        async def attempt(_: int) -> pb.LimitScanResponse:
            try:
                answer = await cluster.request_leader(
                    self._info.table_path, bucket, LIMIT_SCAN, request
                )
            except NetworkError:
                cluster.forget_leader(bucket)
                raise
            if answer.error_code:
                if answer.error_code in STALE_METADATA:
                    cluster.forget_leader(bucket)
                where = f"table {self._info.table_path}, bucket {bucket.bucket_id}"
                raise server_error(answer.error_code, answer.error_message, where)
            return answer

        return await retrying(attempt, cluster.config.retry_timeout_ms, on_retry=cluster.note_retry)

    def _log_rows(self, records: bytes) -> pa.Table:
        statistics = self._connection.io.run(self._statistics())
        headers = scan_headers(records, magic1_has_statistics=statistics, require_progress=False)
        decoder = TableDecoder(self._connection, self._info, self._columns, (), self.metrics)
        position = Position(self._bucket, None, 0)
        chunk = Chunk(pa.py_buffer(records), headers, 0, projected=False)
        parts = [pa.Table.from_batches([], decoder.schema), *decoder.decode(position, chunk)]
        table = pa.concat_tables(parts)
        return table.slice(max(0, table.num_rows - self._limit))

    async def _statistics(self) -> bool:
        """Whether the server's log batches of magic 1 carry statistics."""
        cluster = self._connection.cluster
        node = await cluster.leader(self._info.table_path, self._bucket)
        return (await cluster.connection_to(node)).apis.batch_statistics

    def __repr__(self) -> str:
        return f"BatchScanner({str(self._info.table_path)!r}, {self._bucket}, {self._limit})"
