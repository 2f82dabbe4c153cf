"""Snapshots of primary-key tables, remote logs, the data lake: the part of the admin about them."""

from __future__ import annotations

from collections import defaultdict

from fluss_df.client.admin.checks import buckets_of, whole
from fluss_df.client.admin.leases import KvSnapshotLease
from fluss_df.client.admin.results import (
    ActiveKvSnapshots,
    KvSnapshotMetadata,
    KvSnapshots,
    RemoteLogManifestInfo,
)
from fluss_df.client.admin.tables import TableAdmin
from fluss_df.client.cluster import in_process_questions as direct_questions
from fluss_df.client.cluster.snapshot_leases import snapshot_request
from fluss_df.client.cluster.table_requests import checked, lake_snapshot_of, lake_snapshot_request
from fluss_df.client.runtime.awaitable import answered_at_once, blocking
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import LakeSnapshot, TableBucket, TablePath
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of, partition_of, path_message
from fluss_df.schema import TableInfo


class SnapshotAdmin(TableAdmin):
    """Tells of snapshots and remote logs, and keeps snapshots that somebody reads."""

    # ---- snapshots of primary-key tables

    @blocking
    async def get_latest_kv_snapshots(
        self, table_path: TablePath, partition_name: str | None = None
    ) -> KvSnapshots:
        """Return the newest snapshot of each bucket of a primary-key table.

        Servers write snapshots to remote storage every ten minutes by default; an embedded Fluss
        has none, since its rows are in the folder already.

        Parameters
        ----------
        table_path
            The table.
        partition_name
            The partition of a partitioned table.

        Raises
        ------
        FlussError
            ``NON_PRIMARY_KEY_TABLE_EXCEPTION``, ``TABLE_NOT_EXIST``, ``PARTITION_NOT_EXISTS``;
            ``PARTITION_SPEC_INVALID_EXCEPTION`` where a partition is not named or the table has
            none.
        """
        info = await self.table_info(table_path)
        _require_partition(info, partition_name)
        answer = await self._cluster.request_any(
            api.GET_LATEST_KV_SNAPSHOTS,
            pb.GetLatestKvSnapshotsRequest(
                table_path=path_message(info.table_path), partition_name=partition_name
            ),
        )
        newest = sorted(answer.latest_snapshots, key=lambda each: each.bucket_id)
        return KvSnapshots(
            answer.table_id,
            partition_of(answer),
            {s.bucket_id: s.snapshot_id if s.HasField("snapshot_id") else None for s in newest},
            {s.bucket_id: s.log_offset if s.HasField("log_offset") else None for s in newest},
        )

    @blocking
    async def get_kv_snapshot_metadata(
        self, bucket: TableBucket, snapshot_id: int
    ) -> KvSnapshotMetadata:
        """Return the files of a snapshot, and where the changelog goes on behind it.

        Parameters
        ----------
        bucket
            The bucket.
        snapshot_id
            One of :meth:`get_latest_kv_snapshots` or :meth:`list_kv_snapshots`.

        Raises
        ------
        FlussError
            ``KV_SNAPSHOT_NOT_EXIST``, also for one that newer ones took the place of.
        """
        buckets_of([bucket], "bucket")
        answer = await self._cluster.request_any(
            api.GET_KV_SNAPSHOT_METADATA,
            snapshot_request(bucket, whole(snapshot_id, "snapshot_id")),
        )
        files = {each.local_file_name: each.remote_path for each in answer.snapshot_files}
        return KvSnapshotMetadata(answer.log_offset, files)

    @blocking
    async def list_kv_snapshots(
        self, table_path: TablePath, partition_name: str | None = None
    ) -> ActiveKvSnapshots:
        """Return all snapshots that servers keep of a table (servers of 1.0 and later).

        Parameters
        ----------
        table_path
            The table.
        partition_name
            The partition of a partitioned table.

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the coordinator does not know this request; else as
            :meth:`get_latest_kv_snapshots`.
        """
        table_id, partition_id = await self._ids(table_path, partition_name)
        answer = await self._cluster.request_coordinator(
            api.LIST_KV_SNAPSHOTS,
            pb.ListKvSnapshotsRequest(table_id=table_id, partition_id=partition_id),
        )
        found: dict[int, set[int]] = defaultdict(set)
        for snapshot in answer.active_snapshots:
            found[snapshot.bucket_id].add(snapshot.snapshot_id)
        return ActiveKvSnapshots(
            table_id, partition_id, {each: frozenset(found[each]) for each in sorted(found)}
        )

    def create_kv_snapshot_lease(self, lease_id: str, lease_duration_ms: int) -> KvSnapshotLease:
        """Return a lease, by which servers keep snapshots that somebody reads.

        Parameters
        ----------
        lease_id
            Names the lease. Of an id that is known already it is the same lease.
        lease_duration_ms
            How long it lasts after it was acquired or renewed last (ms).

        Examples
        --------
        >>> lease = admin.create_kv_snapshot_lease("nightly-export", 600_000)  # doctest: +SKIP
        >>> newest = admin.get_latest_kv_snapshots(path).snapshot_ids  # doctest: +SKIP
        >>> lease.acquire_snapshots({bucket: newest[0]})  # doctest: +SKIP
        >>> lease.drop_lease()  # doctest: +SKIP
        """
        return KvSnapshotLease(self._context, lease_id, lease_duration_ms)

    # ---- remote logs

    @blocking
    async def list_remote_log_manifests(
        self, table_path: TablePath, partition_name: str | None = None
    ) -> list[RemoteLogManifestInfo]:
        """Return what remote storage has of the logs of a table (servers of 1.0 and later).

        Parameters
        ----------
        table_path
            The table.
        partition_name
            The partition of a partitioned table.

        Returns
        -------
        list[RemoteLogManifestInfo]
            One for each bucket that has segments there, in the order of the buckets.

        Raises
        ------
        FlussError
            ``UNSUPPORTED_VERSION`` when the coordinator does not know this request;
            ``TABLE_NOT_EXIST``, ``PARTITION_NOT_EXISTS``; ``PARTITION_SPEC_INVALID_EXCEPTION``
            where a partition is not named or the table has none.
        """
        table_id, partition_id = await self._ids(table_path, partition_name)
        answer = await self._cluster.request_coordinator(
            api.LIST_REMOTE_LOG_MANIFESTS,
            pb.ListRemoteLogManifestsRequest(table_id=table_id, partition_id=partition_id),
        )
        found = []
        for entry in answer.manifests:
            place = entry.table_bucket
            bucket = bucket_of(place.table_id, place)
            found.append(
                RemoteLogManifestInfo(
                    bucket, entry.remote_log_manifest_path, entry.remote_log_end_offset
                )
            )
        return sorted(found, key=lambda each: each.table_bucket.bucket_id)

    async def _ids(self, path: TablePath, partition_name: str | None) -> tuple[int, int | None]:
        info = await self.table_info(path)
        _require_partition(info, partition_name)
        if partition_name is None:
            return info.table_id, None
        return info.table_id, (await self._partition(info, partition_name)).partition_id

    # ---- the data lake

    def _known_lake_snapshot(
        self, table_path: TablePath, *, readable: bool = True
    ) -> LakeSnapshot | None:
        return direct_questions.lake_snapshot(self._cluster, table_path, readable=readable)

    @answered_at_once(_known_lake_snapshot)
    async def get_latest_lake_snapshot(
        self, table_path: TablePath, *, readable: bool = True
    ) -> LakeSnapshot:
        """Return the newest snapshot of a table in the data lake.

        Parameters
        ----------
        table_path
            The table.
        readable
            False for the newest one even where rows of it lie where no reader looks, as those of a
            Paimon table with deletion vectors do until they are compacted.

        Raises
        ------
        FlussError
            ``LAKE_SNAPSHOT_NOT_EXIST`` where nothing of the table is in the lake yet.
        """
        return await self._lake_snapshot(lake_snapshot_request(table_path, readable=readable))

    @blocking
    async def get_readable_lake_snapshot(self, table_path: TablePath) -> LakeSnapshot:
        """Return the newest snapshot in the data lake all of whose rows readers see.

        As :meth:`get_latest_lake_snapshot`, by the name that Fluss's Java client has for it.
        """
        return await self._lake_snapshot(lake_snapshot_request(table_path, readable=True))

    @blocking
    async def get_lake_snapshot(self, table_path: TablePath, snapshot_id: int) -> LakeSnapshot:
        """Return a snapshot of a table in the data lake.

        Parameters
        ----------
        table_path
            The table.
        snapshot_id
            The id that the lake gave it.

        Raises
        ------
        FlussError
            ``LAKE_SNAPSHOT_NOT_EXIST`` where the cluster does not know it: it knows the newest
            ones only.
        """
        return await self._lake_snapshot(
            pb.GetLakeSnapshotRequest(
                table_path=path_message(checked(table_path)),
                snapshot_id=whole(snapshot_id, "snapshot_id"),
            )
        )

    async def _lake_snapshot(self, request: pb.GetLakeSnapshotRequest) -> LakeSnapshot:
        return lake_snapshot_of(await self._cluster.request_any(api.GET_LAKE_SNAPSHOT, request))


def _require_partition(info: TableInfo, name: str | None) -> None:
    """Raise where a partition is named and there are none, or none is named and there are some."""
    if info.is_partitioned() is (name is not None):
        return
    problem = "has partitions: name one" if name is None else f"has no partition '{name}', nor any"
    raise FlussError(
        f"table {info.table_path} {problem}", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    )
