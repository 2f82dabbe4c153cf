"""A few current rows of a primary-key table in one request: :class:`LimitScanner`."""

from __future__ import annotations

import pyarrow as pa

from fluss_df.client.cluster.leader_requests import ask_leaders
from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.scan.batch_scanner import BatchScanner
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LIMIT_SCAN


class LimitScanner(BatchScanner):
    """Reads current rows of one bucket of a primary-key table, whichever the server takes first.

    What is read stands for no offset: see
    :class:`~fluss_df.client.scan.snapshot_scanner.SnapshotScanner` for that.
    """

    def _rows(self) -> tuple[int, pa.Table]:
        reader = ValueReader(self._connection, self._info, self._columns)
        answer = self._connection.io.run(self._ask())
        if not answer.records:
            return 0, pa.Table.from_batches([], reader.schema)
        return 0, reader.decode_batch(answer.records).slice(0, self._limit)

    async def _ask(self) -> pb.LimitScanResponse:
        cluster, info, bucket = self._connection.cluster, self._info, self._bucket

        async def ask(_: object) -> list[tuple[int, int, str, pb.LimitScanResponse]]:
            request = pb.LimitScanRequest(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket_id,
                limit=self._limit,
                bucket_count=cluster.told_count(bucket),
            )
            answer = await cluster.request_leader(info.table_path, bucket, LIMIT_SCAN, request)
            return [(bucket.bucket_id, answer.error_code, answer.error_message, answer)]

        return (await ask_leaders(cluster, info, [bucket], "first rows", ask))[bucket]
