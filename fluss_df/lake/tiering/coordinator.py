"""What a tiering service asks of the coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fluss_df.client.context import ClientContext
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.offsets import Offsets
from fluss_df.metadata import TablePath
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import partition_of, path_message, path_of


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: the coordinator's permission to tier a table, until that is finished or failed.

    Every report repeats both epochs. The coordinator refuses reports with older epochs.
    """

    table_id: int
    path: TablePath
    coordinator_epoch: int
    tiering_epoch: int


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """The newest lake snapshot that Fluss knows of a table, with its end offset of each bucket."""

    snapshot_id: int
    offsets: Offsets


class Coordinator:
    """Heartbeats, prepared offsets and commits, each one request."""

    def __init__(self, connection: ClientContext) -> None:
        self._connection = connection

    def heartbeat(
        self,
        *,
        tiering: Collection[Lease] = (),
        finished: Collection[Lease] = (),
        continued: Collection[Lease] = (),
        failed: Collection[Lease] = (),
        request: bool = False,
    ) -> tuple[Lease | None, dict[int, str]]:
        """Report the state of tables; return a lease, and the refusals.

        The lease is of a table that is due, None where none is or none was requested. The refusals
        are the reports that the coordinator did not accept: its reason by table id.

        Parameters
        ----------
        tiering
            Tables that are being tiered: keeps them this service's.
        finished
            Tables that are tiered; they are due again after their freshness.
        continued
            Tables of which a part is tiered; they are due again at once.
        failed
            Tables that could not be tiered; they are due again at once.
        request
            Whether to ask for a table.
        """
        message = pb.LakeTieringHeartbeatRequest(
            tiering_tables=[_report(lease) for lease in tiering],
            finished_tables=[_report(lease) for lease in [*finished, *continued]],
            failed_tables=[_report(lease) for lease in failed],
            force_finished_tables=[lease.table_id for lease in continued],
            request_table=request,
        )
        cluster = self._connection.cluster
        answer = self._connection.io.run(
            cluster.request_coordinator(api.LAKE_TIERING_HEARTBEAT, message)
        )
        refused = {
            entry.table_id: f"{entry.error.error_message} ({entry.error.error_code})"
            for entries in (
                answer.tiering_table_resp,
                answer.finished_table_resp,
                answer.failed_table_resp,
            )
            for entry in entries
            if entry.HasField("error") and entry.error.error_code
        }
        if not answer.HasField("tiering_table"):
            return None, refused
        table = answer.tiering_table
        path = path_of(table.table_path)
        lease = Lease(table.table_id, path, answer.coordinator_epoch, table.tiering_epoch)
        return lease, refused

    def known_snapshot(self, path: TablePath) -> KnownSnapshot | None:
        """Return the newest lake snapshot of a table that Fluss knows; None before the first."""
        cluster = self._connection.cluster
        request = pb.GetLakeSnapshotRequest(table_path=path_message(path))
        try:
            answer = self._connection.io.run(cluster.request_any(api.GET_LAKE_SNAPSHOT, request))
        except FlussError as error:
            if error.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                return None
            raise
        offsets = {
            (partition_of(entry), entry.bucket_id): entry.log_offset
            for entry in answer.bucket_snapshots
            if entry.HasField("log_offset")
        }
        return KnownSnapshot(answer.snapshot_id, offsets)

    def prepare(self, table_id: int, path: TablePath, offsets: Offsets) -> str:
        """Have the coordinator write offsets to remote storage; return the path of the file.

        ``offsets`` has every bucket of the table, also those that this round did not tier.
        """
        message = pb.PrepareLakeTableSnapshotRequest(
            bucket_offsets=[
                pb.OffsetsOfTable(
                    table_id=table_id,
                    table_path=path_message(path),
                    bucket_offsets=[
                        pb.OffsetOfBucket(
                            partition_id=partition, bucket_id=bucket, log_end_offset=offset
                        )
                        for (partition, bucket), offset in sorted(
                            offsets.items(), key=lambda item: (item[0][0] or 0, item[0][1])
                        )
                    ],
                )
            ],
            ignore_previous_table_offsets=True,
        )
        cluster = self._connection.cluster
        answer = self._connection.io.run(
            cluster.request_coordinator(api.PREPARE_LAKE_TABLE_SNAPSHOT, message)
        )
        [result] = answer.prepare_lake_table_resp
        if result.error_code:
            raise FlussError(
                f"table {path}: the coordinator did not store the offsets of a lake snapshot:"
                f" {result.error_message}",
                result.error_code,
            )
        return result.lake_table_offsets_path

    def commit(
        self,
        table_id: int,
        path: TablePath,
        snapshot_id: int,
        offsets_path: str,
        offsets: Offsets,
        timestamps: Mapping[tuple[int | None, int], int],
    ) -> None:
        """Tell Fluss of a snapshot that is in the lake; repeating it does no harm.

        ``offsets_path`` is the file that :meth:`prepare` returned. ``offsets`` and ``timestamps``
        have the end and the newest timestamp, in milliseconds, of the buckets that the snapshot
        moved.
        """
        info = pb.LakeTableSnapshotInfo(
            table_id=table_id,
            snapshot_id=snapshot_id,
            buckets_req=[
                pb.LakeTableOffsetForBucket(
                    partition_id=partition,
                    bucket_id=bucket,
                    log_end_offset=offset,
                    max_timestamp=timestamps.get((partition, bucket)),
                )
                for (partition, bucket), offset in offsets.items()
            ],
        )
        metadata = pb.LakeTableSnapshotMetadata(
            table_id=table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=offsets_path,
            readable_bucket_offsets_file_path=offsets_path,
        )
        message = pb.CommitLakeTableSnapshotRequest(
            tables_req=[info] if offsets else [], lake_table_snapshot_metadata=[metadata]
        )
        cluster = self._connection.cluster
        answer = self._connection.io.run(
            cluster.request_coordinator(api.COMMIT_LAKE_TABLE_SNAPSHOT, message)
        )
        [result] = answer.table_resp
        if result.error_code:
            raise FlussError(
                f"table {path}: the coordinator did not take lake snapshot {snapshot_id}:"
                f" {result.error_message}",
                result.error_code,
            )


def _report(lease: Lease) -> pb.HeartbeatForTable:
    return pb.HeartbeatForTable(
        table_id=lease.table_id,
        coordinator_epoch=lease.coordinator_epoch,
        tiering_epoch=lease.tiering_epoch,
    )
