"""Requests about snapshots of primary-key tables, and leases of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of


def acquire_request(
    lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int]
) -> pb.AcquireKvSnapshotLeaseRequest:
    """Return the request for a lease of snapshots; without any it renews the lease."""
    request = pb.AcquireKvSnapshotLeaseRequest(lease_id=lease_id, lease_duration_ms=duration_ms)
    tables: dict[int, pb.KvSnapshotLeaseForTable] = {}
    for bucket, snapshot_id in snapshots.items():
        if bucket.table_id not in tables:
            tables[bucket.table_id] = request.snapshots_to_lease.add(table_id=bucket.table_id)
        tables[bucket.table_id].bucket_snapshots.add(
            partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
        )
    return request


def unavailable(response: pb.AcquireKvSnapshotLeaseResponse) -> dict[TableBucket, int]:
    """Return the snapshots that were asked for and are not there."""
    return {
        bucket_of(table.table_id, entry): entry.snapshot_id
        for table in response.unavailable_snapshots
        for entry in table.bucket_snapshots
    }


def release_request(
    lease_id: str, buckets: Iterable[TableBucket]
) -> pb.ReleaseKvSnapshotLeaseRequest:
    """Return the request that gives snapshots of a lease back."""
    return pb.ReleaseKvSnapshotLeaseRequest(
        lease_id=lease_id,
        buckets_to_release=[
            pb.TableBucketId(
                table_id=each.table_id, partition_id=each.partition_id, bucket_id=each.bucket_id
            )
            for each in buckets
        ],
    )


def snapshot_request(bucket: TableBucket, snapshot_id: int) -> pb.GetKvSnapshotMetadataRequest:
    """Return the question what a snapshot consists of."""
    return pb.GetKvSnapshotMetadataRequest(
        table_id=bucket.table_id,
        partition_id=bucket.partition_id,
        bucket_id=bucket.bucket_id,
        snapshot_id=snapshot_id,
    )
