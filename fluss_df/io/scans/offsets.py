"""Offsets of the buckets of a table."""

from __future__ import annotations

from collections.abc import Iterable

from fluss_df.client.connection import FlussConnection
from fluss_df.metadata import OffsetSpec
from fluss_df.pushdown.plan import Bucket
from fluss_df.pushdown.prune import all_buckets
from fluss_df.schema import TableInfo


def bucket_offsets(connection: FlussConnection, info: TableInfo) -> dict[Bucket, tuple[int, int]]:
    """Return the first offset of each bucket, and the one after its last."""
    admin = connection.get_admin()
    partitions = admin.list_partition_infos(info.table_path) if info.is_partitioned() else []
    buckets = all_buckets(info, partitions)
    first, last = (
        offsets_of(connection, info, buckets, spec)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return {bucket: (first[bucket], last[bucket]) for bucket in buckets}


def offsets_of(
    connection: FlussConnection, info: TableInfo, buckets: Iterable[Bucket], spec: OffsetSpec
) -> dict[Bucket, int]:
    """Return an offset of each of some buckets."""
    keys = {bucket.of(info.table_id): bucket for bucket in buckets}
    if not keys:
        return {}
    found = connection.get_admin().get_bucket_offsets(info, list(keys), spec)
    return {bucket: found[key] for key, bucket in keys.items()}
