"""Offsets of the buckets of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluss_df.client.connection import FlussConnection
from fluss_df.io.source import Halves, ScanSource
from fluss_df.lake.options import is_lake_table
from fluss_df.metadata import OffsetSpec
from fluss_df.pushdown.plan import Bucket, Split
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


def from_log_start(source: ScanSource, info: TableInfo) -> Callable[[Split], bool]:
    """Return which splits of a scan are to have all that the log has, from where it begins.

    Not those for which an offset was given, nor those of a table with a lake: what expired of its
    log is in the lake, where it is not left out.
    """
    start = source.start
    exact = source.pinned is not None or (source.halves is not Halves.LOG and is_lake_table(info))
    if exact or isinstance(start, int):
        return lambda _: False
    if not isinstance(start, frozenset):
        return lambda _: True
    given = dict(start)
    return lambda split: (split.partition_name, split.bucket_id) not in given
