"""Questions of scans to an engine in this process, answered on the caller's thread.

By way of the two event loops a question takes four changes of thread, which was most of the time of
a small scan. These requests only read. So on any problem the functions return None, and the I/O
thread asks again, with its retries and its errors.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fluss_df.client.cluster.leader_requests import offsets_request
from fluss_df.client.cluster.table_requests import (
    lake_snapshot_of,
    lake_snapshot_request,
    partition_infos_of,
    partition_infos_request,
    table_info_of,
    table_info_request,
)
from fluss_df.errors import FlussError
from fluss_df.metadata import LakeSnapshot, OffsetSpec, PartitionInfo, TableBucket, TablePath
from fluss_df.protocol import api
from fluss_df.protocol.api import Api, RequestT, ResponseT
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.cluster.metadata import Cluster


def _ask(cluster: Cluster, kind: Api[RequestT, ResponseT], message: RequestT) -> ResponseT | None:
    """Return the answer; None where the I/O thread is to ask."""
    engine = cluster.engine
    if engine is None:
        return None
    began = time.monotonic()
    try:
        answer = engine.answer_at_once(kind, message)
    except (FlussError, RuntimeError):
        return None
    if answer is not None:
        cluster.metrics.sent(message.ByteSize())
        cluster.metrics.answered(kind.name, time.monotonic() - began, False, answer.ByteSize())
    return answer


def table_info(cluster: Cluster, path: TablePath) -> TableInfo | None:
    """Return what a table is; None where the I/O thread is to ask."""
    answer = _ask(cluster, api.GET_TABLE_INFO, table_info_request(path))
    return None if answer is None else table_info_of(path, answer)


def partition_infos(
    cluster: Cluster, path: TablePath, spec: Mapping[str, str] | None = None
) -> list[PartitionInfo] | None:
    """Return the partitions of a table, by name; None where the I/O thread is to ask."""
    answer = _ask(cluster, api.LIST_PARTITION_INFOS, partition_infos_request(path, spec))
    return None if answer is None else partition_infos_of(answer)


def lake_snapshot(cluster: Cluster, path: TablePath, *, readable: bool) -> LakeSnapshot | None:
    """Return the newest lake snapshot of a table; None where the I/O thread is to ask."""
    answer = _ask(cluster, api.GET_LAKE_SNAPSHOT, lake_snapshot_request(path, readable=readable))
    return None if answer is None else lake_snapshot_of(answer)


def bucket_offsets(
    cluster: Cluster, info: TableInfo, buckets: Iterable[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int] | None:
    """Return an offset of each bucket; None where the I/O thread is to ask."""
    if cluster.engine is None:
        return None
    groups: dict[int | None, list[TableBucket]] = defaultdict(list)
    for bucket in buckets:
        groups[bucket.partition_id].append(bucket)
    found: dict[TableBucket, int] = {}
    for group in groups.values():
        answer = _ask(cluster, api.LIST_OFFSETS, offsets_request(info, group, spec))
        if answer is None or any(bucket.error_code for bucket in answer.buckets_resp):
            return None
        offsets = {bucket.bucket_id: bucket.offset for bucket in answer.buckets_resp}
        if len(offsets) != len(group):
            return None
        found.update((bucket, offsets[bucket.bucket_id]) for bucket in group)
    return found
