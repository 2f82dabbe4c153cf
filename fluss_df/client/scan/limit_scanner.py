"""A few current rows of a primary-key table in one request: :class:`LimitScanner`."""

from __future__ import annotations

import pyarrow as pa

from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.runtime.retry import STALE_METADATA, retrying
from fluss_df.client.scan.batch_scanner import BatchScanner
from fluss_df.errors import FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LIMIT_SCAN
from fluss_df.protocol.frames import server_error


class LimitScanner(BatchScanner):
    """Reads current rows of one bucket of a primary-key table, whichever the server takes first.

    What is read stands for no offset: see
    :class:`~fluss_df.client.scan.snapshot_scanner.SnapshotScanner` for that.
    """

    def _read(self) -> tuple[int, pa.Table] | None:
        if self._spent:
            return None
        self._spent = True
        reader = ValueReader(self._connection, self._info, self._columns)
        answer = self._connection.io.run(self._ask())
        if not answer.records:
            return 0, pa.Table.from_batches([], reader.schema)
        return 0, reader.decode_batch(answer.records).slice(0, self._limit)

    async def _ask(self) -> pb.LimitScanResponse:
        cluster = self._connection.cluster
        bucket = self._bucket
        request = pb.LimitScanRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            limit=self._limit,
        )

        def counted() -> pb.LimitScanRequest:
            count = cluster.told_count(bucket)  # known with the leader
            if count is not None:
                request.bucket_count = count
            return request

        async def attempt(_: int) -> pb.LimitScanResponse:
            try:
                await cluster.leader(self._info.table_path, bucket)
                answer = await cluster.request_leader(
                    self._info.table_path, bucket, LIMIT_SCAN, counted()
                )
            except FlussError as error:
                # NOT_LEADER_OR_FOLLOWER comes from the client itself, too: see request_leader
                if error.error_code in STALE_METADATA or isinstance(error, TimeoutError):
                    cluster.forget_leader(bucket)
                raise
            if answer.error_code:
                if answer.error_code in STALE_METADATA:
                    cluster.forget_leader(bucket)
                where = f"table {self._info.table_path}, bucket {bucket.bucket_id}"
                raise server_error(answer.error_code, answer.error_message, where)
            return answer

        return await retrying(attempt, cluster.config.retry_timeout_ms, on_retry=cluster.note_retry)
