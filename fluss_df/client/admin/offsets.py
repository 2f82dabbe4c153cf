"""Offsets of buckets, and those that producers register: the part of the admin about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluss_df.client.admin.checks import bucket_ids_of, numbers_of_buckets, text, whole
from fluss_df.client.admin.results import ProducerOffsetsResult, RegisterResult, answered
from fluss_df.client.admin.tables import TableAdmin
from fluss_df.client.cluster.table_requests import offset_spec_of
from fluss_df.client.runtime.awaitable import blocking, blocking_only
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, TableBucket, TablePath
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of


class OffsetAdmin(TableAdmin):
    """Tells offsets of buckets, and keeps those of producers."""

    @blocking
    async def list_offsets(
        self,
        table_path: TablePath,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | int | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Return an offset of each bucket of a table without partitions.

        Parameters
        ----------
        table_path
            The table.
        bucket_ids
            Buckets, from 0.
        offset_spec
            Which offset.
        offset_type, timestamp
            The older way to say it: "earliest", "latest" or "timestamp", the time in ms.
        """
        info = await self.table_info(table_path)
        if info.is_partitioned():
            raise FlussError(
                f"table {info.table_path} has partitions: use list_partition_offsets"
                " and name the partition",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        spec = offset_spec_of(offset_spec, offset_type, timestamp)
        buckets = [TableBucket(info.table_id, bucket) for bucket in bucket_ids_of(bucket_ids)]
        offsets = await self.bucket_offsets(info, buckets, spec)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    @blocking
    async def list_partition_offsets(
        self,
        table_path: TablePath,
        partition_name: str,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | int | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Return an offset of each bucket of a partition; like :meth:`list_offsets`."""
        info = await self.table_info(table_path)
        partition = await self._partition(info, partition_name)
        spec = offset_spec_of(offset_spec, offset_type, timestamp)
        buckets = [
            TableBucket(info.table_id, bucket, partition.partition_id)
            for bucket in bucket_ids_of(bucket_ids)
        ]
        offsets = await self.bucket_offsets(info, buckets, spec)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    # ---- producers

    @blocking_only
    async def register_producer_offsets(
        self, producer_id: str, offsets: Mapping[TableBucket, int], *, ttl_ms: int | None = None
    ) -> RegisterResult:
        """Keep where logs end at the moment when a producer begins, unless it began before.

        A producer that fails before its first checkpoint asks for them when it starts again
        (:meth:`get_producer_offsets`), and undoes what it wrote since then.

        Parameters
        ----------
        producer_id
            Names the producer: letters, digits, ``_``, ``-`` and ``.``.
        offsets
            The offset of each bucket, of any tables.
        ttl_ms
            How long servers keep them (ms); None for what the servers are configured with, a day by
            default.

        Returns
        -------
        RegisterResult
            ``ALREADY_EXISTS`` where there are offsets of this producer, which stay as they are. It
            may also mean that the answer of a first try was lost: compare the offsets.

        Raises
        ------
        FlussError
            ``INVALID_PRODUCER_ID_EXCEPTION``; ``UNSUPPORTED_VERSION`` when the coordinator does not
            know this request.

        Examples
        --------
        >>> bucket = fluss_df.TableBucket(info.table_id, 0)  # doctest: +SKIP
        >>> admin.register_producer_offsets("job-1", {bucket: 120})  # doctest: +SKIP
        <RegisterResult.CREATED: 0>
        """
        request = pb.RegisterProducerOffsetsRequest(producer_id=text(producer_id, "producer id"))
        if ttl_ms is not None:
            request.ttl_ms = whole(ttl_ms, "ttl_ms")
        tables: dict[int, pb.ProducerTableOffsets] = {}
        for bucket, offset in numbers_of_buckets(offsets, "offsets").items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = request.table_offsets.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        answer = await self._cluster.request_coordinator(api.REGISTER_PRODUCER_OFFSETS, request)
        # an answer that says nothing means that they were created, as for Fluss's own client
        return answered(RegisterResult, answer.result)

    @blocking_only
    async def get_producer_offsets(self, producer_id: str) -> ProducerOffsetsResult | None:
        """Return what a producer registered; None where there is nothing.

        Parameters
        ----------
        producer_id
            The producer.
        """
        answer = await self._cluster.request_coordinator(
            api.GET_PRODUCER_OFFSETS,
            pb.GetProducerOffsetsRequest(producer_id=text(producer_id, "producer id")),
        )
        if not answer.HasField("producer_id"):
            return None
        offsets = {
            bucket_of(table.table_id, entry): entry.log_end_offset
            for table in answer.table_offsets
            for entry in table.bucket_offsets
        }
        return ProducerOffsetsResult(answer.producer_id, offsets, answer.expiration_time)

    @blocking
    async def delete_producer_offsets(self, producer_id: str) -> None:
        """Forget what a producer registered; nothing to forget is no error."""
        await self._cluster.request_coordinator(
            api.DELETE_PRODUCER_OFFSETS,
            pb.DeleteProducerOffsetsRequest(producer_id=text(producer_id, "producer id")),
        )
