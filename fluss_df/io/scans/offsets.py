"""First and last offsets of all buckets of a table."""

from __future__ import annotations

from fluss_df.client.connection import FlussConnection
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.pushdown.plan import Bucket
from fluss_df.pushdown.prune import all_buckets
from fluss_df.schema import TableInfo


def bucket_offsets(connection: FlussConnection, info: TableInfo) -> dict[Bucket, tuple[int, int]]:
    """Return the first offset of each bucket, and the one after its last."""
    admin = connection.get_admin()
    partitions = admin.list_partition_infos(info.table_path) if info.is_partitioned() else []
    buckets = all_buckets(info, partitions)
    keys = [TableBucket(info.table_id, b.bucket_id, b.partition_id) for b in buckets]
    if not keys:
        return {}
    first, last = (
        connection.io.run(admin.bucket_offsets(info, keys, spec))
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return {b: (first[k], last[k]) for b, k in zip(buckets, keys, strict=True)}
