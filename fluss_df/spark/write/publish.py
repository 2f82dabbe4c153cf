"""Publishes a staged batch: each piece is written exactly once, whichever task tries.

A piece is a log batch with the writer id of its manifest and a sequence number, its place among
the pieces for its bucket. A server takes a writer's batches in the order of their sequences, each
once; and what landed is seen in the headers of the log itself, from the place on that the manifest
recorded. So it does not matter how often a batch is published, by how many at a time, or who else
writes to the table.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.batch_headers import landed_batches
from fluss_df.client.runtime.retry import STALE_METADATA, Backoff, is_transient
from fluss_df.client.send.writer_ids import WriterIds
from fluss_df.errors import DeadlineExceededError, ErrorCode, FlussError, NetworkError
from fluss_df.io.runs.losses import Losses, listed
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.protocol.frames import parse_response, server_error
from fluss_df.protocol.produce import ProduceLog
from fluss_df.record.layout.headers import HEADER_SIZE
from fluss_df.record.log.log_batch import EncodedLogBatch
from fluss_df.schema import TableInfo
from fluss_df.spark.write.ledger import Ledger, Manifest, Piece

logger = logging.getLogger(__name__)

# how often the log is read again without progress before the batch is given up
_LOOKS = 6
_PAUSE_S = 0.2
_FAIL = Losses("fail", "start over with another checkpoint")


class _NotInOrderError(FlussError):
    """The server expects another sequence: somebody else published it, or it forgot the writer."""


class Publisher:
    """Publishes the batches of one query to a log table."""

    def __init__(
        self, connection: FlussConnection, info: TableInfo, ledger: Ledger, losses: Losses = _FAIL
    ) -> None:
        self._connection = connection
        self._info = info
        self._ledger = ledger
        self._losses = losses
        self._api = ProduceLog(info.table_id)

    def new_writer_id(self) -> int:
        """Return the id of a writer that nobody is."""
        ids = WriterIds(self._connection.cluster, self._info, idempotent=True)
        return self._connection.io.run(ids.ask())

    def ends(
        self, targets: Sequence[tuple[int | None, int]]
    ) -> tuple[tuple[int | None, int, int], ...]:
        """Return where buckets end now: what will be published is behind."""
        buckets = [TableBucket(self._info.table_id, b, p) for p, b in targets]
        if not buckets:
            return ()
        admin = self._connection.get_admin()
        offsets = admin.get_bucket_offsets(self._info, buckets, OffsetSpec.latest())
        return tuple((b.partition_id, b.bucket_id, offsets[b]) for b in buckets)

    def publish(self, batch: int, manifest: Manifest, *, fresh: bool) -> None:
        """Write what of a batch is not there yet; return when all of it is acknowledged.

        ``fresh`` says that the caller decided the manifest just now, so that nothing of it is
        there.

        Raises FlussError for a table that was made again, when it cannot be said what is there, and
        for partitions that were dropped. Where losses are to be ignored, dropped partitions are
        passed over, and the others get their rows.
        """
        if manifest.table_id != self._info.table_id:
            raise FlussError(
                f"table {self._info.table_path} was dropped and made again while batch {batch} was"
                " written to it: start over with another checkpoint",
                ErrorCode.TABLE_NOT_EXIST,
            )
        gone: frozenset[int] = frozenset() if fresh else self._gone(batch, manifest, frozenset())
        landed: dict[TableBucket, int] = {} if fresh else self._landed(batch, manifest, gone)
        looks = 0
        while True:
            if sum(landed.values()) == manifest.pieces:
                # the staged batches are not needed any more
                return
            try:
                self._send_missing(batch, manifest, landed, gone)
                return
            except _NotInOrderError as error:
                found = self._landed(batch, manifest, gone)
                looks = looks + 1 if found == landed else 0
                if looks == _LOOKS:
                    raise FlussError(
                        f"batch {batch} cannot be completed in table {self._info.table_path}: its"
                        f" server no longer knows the writer of what is there ({error.message});"
                        " it forgets writers that did not write for table.log.ttl or 7 days",
                        error.error_code,
                    ) from None
                landed = found
                # batches that another one sent are seen once their replicas have them
                time.sleep(looks * _PAUSE_S)
            except FlussError as error:
                now = gone
                if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
                    now = self._gone(batch, manifest, gone)
                if now == gone:
                    raise
                gone, landed = now, self._landed(batch, manifest, now)

    def landed(self, batch: int, manifest: Manifest) -> int:
        """Return how many encoded batches of a batch are in the table."""
        return sum(self._landed(batch, manifest, frozenset()).values())

    def _gone(self, batch: int, manifest: Manifest, known: frozenset[int]) -> frozenset[int]:
        """Return the ids of the batch's partitions that were dropped; tell those not known."""
        wanted = {partition for partition, _, _ in manifest.places if partition is not None}
        if not wanted:
            return known
        there = self._connection.get_admin().list_partition_infos(self._info.table_path)
        gone = frozenset(wanted - {partition.partition_id for partition in there})
        if gone - known:
            places = [f"{p}/{b}" for p, b, _ in manifest.places if p in gone]
            self._losses.found(
                f"batch {batch} of table {self._info.table_path}: {len(gone)} of the"
                f" {len(wanted)} partitions that it has rows for were dropped after it was decided,"
                f" and its rows for them are lost: {listed(places)} (partition id/bucket)",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return gone

    def _send_missing(
        self, batch: int, manifest: Manifest, landed: dict[TableBucket, int], gone: frozenset[int]
    ) -> None:
        numbers: dict[TableBucket, int] = defaultdict(int)
        for pieces in self._ledger.staged(batch, manifest):
            by_bucket: dict[TableBucket, list[EncodedLogBatch]] = defaultdict(list)
            for piece in pieces:
                if piece.partition_id in gone:
                    continue
                bucket = TableBucket(self._info.table_id, piece.bucket_id, piece.partition_id)
                sequence = numbers[bucket]
                numbers[bucket] += 1
                if sequence >= landed.get(bucket, 0):
                    by_bucket[bucket].append(_stamped(piece, manifest.writer_id, sequence))
            if by_bucket:
                self._connection.io.run(self._send(by_bucket))

    # ---- what is there

    def _landed(
        self, batch: int, manifest: Manifest, gone: frozenset[int]
    ) -> dict[TableBucket, int]:
        """Return how many pieces of the batch are in each bucket; they are there in order."""
        begins = {
            TableBucket(self._info.table_id, bucket, partition): start
            for partition, bucket, start in manifest.places
            if partition not in gone
        }
        try:
            found = landed_batches(self._connection, self._info, begins, [manifest.writer_id])
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                raise
            raise FlussError(
                f"batch {batch}: {error.message}; start over with another checkpoint",
                error.error_code,
            ) from error
        for bucket, batches in found.items():
            sequences = [sequence for _, sequence in batches]
            if sequences != list(range(len(sequences))):
                raise FlussError(
                    f"batch {batch} is in table {self._info.table_path}, bucket"
                    f" {bucket.bucket_id}, with the sequences {sequences[:20]}: they are not in"
                    " order, which no server allows",
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
                )
        return {bucket: len(batches) for bucket, batches in found.items()}

    # ---- sending

    async def _send(self, by_bucket: dict[TableBucket, list[EncodedLogBatch]]) -> None:
        """Send pieces: one after the other in each bucket, buckets side by side."""
        sends = (self._send_all(b, pieces) for b, pieces in by_bucket.items())
        # where one fails, the others end first, so that nothing is sent after an error
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _send_all(self, bucket: TableBucket, pieces: Sequence[EncodedLogBatch]) -> None:
        for piece in pieces:
            await self._send_one(bucket, piece)

    async def _send_one(self, bucket: TableBucket, piece: EncodedLogBatch) -> None:
        cluster = self._connection.cluster
        backoff = Backoff(self._connection.config.writer_delivery_timeout_ms)
        while True:
            try:
                await self._try(bucket, piece)
                return
            except FlussError as error:
                code = error.error_code
                if code == ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION:
                    return
                if code in (
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
                    ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
                ):
                    raise _NotInOrderError(error.message, code) from None
                passing = is_transient(error) or code in STALE_METADATA
                if not passing or backoff.expired:
                    raise
                if code in STALE_METADATA or isinstance(error, DeadlineExceededError):
                    cluster.forget_leader(bucket)
                cluster.note_retry(error)
                await asyncio.sleep(backoff.next_pause())

    async def _try(self, bucket: TableBucket, piece: EncodedLogBatch) -> None:
        cluster, config = self._connection.cluster, self._connection.config
        node = await cluster.leader(self._info.table_path, bucket)
        connection = await cluster.connection_to(node)
        body = self._api.body(
            acks=-1,
            timeout_ms=max(1, config.request_timeout_ms * 2 // 3),
            buckets=[(bucket.partition_id, bucket.bucket_id, piece.buffers)],
        )
        reply = await connection.exchange(self._api.api, body, config.request_timeout_ms)
        response = parse_response(self._api.api, reply, connection.address)
        for answer in response.buckets_resp:
            if answer.error_code:
                where = f"table {self._info.table_path}, bucket {bucket.bucket_id}"
                raise server_error(answer.error_code, answer.error_message, where)
            return
        raise NetworkError(f"{connection.address} did not answer for the bucket")


def _stamped(piece: Piece, writer_id: int, sequence: int) -> EncodedLogBatch:
    header = bytearray(piece.payload.slice(0, HEADER_SIZE).to_pybytes())
    encoded = EncodedLogBatch(header, piece.payload.slice(HEADER_SIZE), piece.rows)
    encoded.stamp(writer_id, sequence)
    return encoded
