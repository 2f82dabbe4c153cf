"""Creating tables and partitions so that they can be used, and dropping tables.

The coordinator of Fluss 0.9.1 learns of a new table by watching ZooKeeper, and now and then, more
often under load, misses one: its node is made empty and filled a moment later, and a watcher that
reads it late takes the table for an old one. Such a table never has a leader, until the coordinator
is restarted. (Servers from 1.0 on know this race.) Who has just created a table, beyond doubt, can
drop it and create it again without harm: it never had a leader, so nobody has written to it.

Where such a table is partitioned, its first partition is worse: the coordinator fails in the midst
of a request to the tablet servers, and elects no leader for any new table any more. So partitions
are created of tables that the coordinator knows. It says so when a lease of kv snapshots is
released, which looks the table up in what the coordinator has in memory; a lease that does not
exist does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Final

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.table_requests import (
    changing,
    partition_spec_message,
    table_info_request,
)
from fluss_df.client.runtime.retry import STALE_METADATA
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import path_message
from fluss_df.schema import TableDescriptor

logger = logging.getLogger(__name__)

# A leader is there within 0.2 s; behind hundreds of drops it was seen to take 5.
_LEADER_WAIT_S: Final = 10.0
# A table that was not missed, but is late, may be dropped and created again: so the first wait is
# short, which is what users have when a table was missed.
_FIRST_WAIT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.2
_ATTEMPTS: Final = 3
_LAKE_ENABLED: Final = "table.datalake.enabled"
# what servers say of a table of which they know just the name; the coordinator may miss it like any
# other
_LATE: Final = STALE_METADATA - {ErrorCode.NETWORK_EXCEPTION}
_ALREADY_THERE: Final = (ErrorCode.TABLE_ALREADY_EXIST, ErrorCode.LAKE_TABLE_ALREADY_EXIST)


async def create_table(
    cluster: Cluster, path: TablePath, descriptor: TableDescriptor, *, ignore_if_exists: bool
) -> None:
    """Create a table, and wait for a moment until the cluster serves it.

    Raises ``TABLE_ALREADY_EXIST`` unless ``ignore_if_exists``, and what else the server says.
    """
    request = pb.CreateTableRequest(
        table_path=path_message(path), table_json=descriptor.to_json(), ignore_if_exists=False
    )
    # after a try that was lost, it is not certain who created the table
    lost: list[None] = []
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await cluster.request_coordinator(
                api.CREATE_TABLE,
                request,
                done_by_lost_try=ErrorCode.TABLE_ALREADY_EXIST,
                on_lost_try=lambda: lost.append(None),
            )
        except FlussError as error:
            if error.error_code not in _ALREADY_THERE:
                raise
            exists = error.error_code == ErrorCode.TABLE_ALREADY_EXIST
            if not exists:
                # servers of 0.9.1 create the lake's table first, so it may be there alone
                exists = await _exists(cluster, path)
            if exists and ignore_if_exists:
                return
            if exists and error.error_code != ErrorCode.TABLE_ALREADY_EXIST:
                raise FlussError(
                    f"table {path} already exists", ErrorCode.TABLE_ALREADY_EXIST
                ) from None
            raise
        if attempt == _ATTEMPTS or lost:
            return
        has_lake = str(descriptor.properties.get(_LAKE_ENABLED, "")).lower() == "true"
        wait = _LEADER_WAIT_S if has_lake or attempt > 1 else min(_FIRST_WAIT_S, _LEADER_WAIT_S)
        # the leaders of a thousand buckets take longer than this waits: the table was not missed
        later = 0.0 if descriptor.partition_keys else wait / 3
        noted = asyncio.ensure_future(_is_noted(cluster, path, wait - later, later))
        try:
            # without partitions there are no buckets whose leaders could be asked for
            if not descriptor.partition_keys and await _is_served(cluster, path, wait):
                return
            if await noted:
                return
        finally:
            noted.cancel()
        if has_lake:
            # its table in the lake would stay, and have the second creation refused
            raise FlussError(
                f"the coordinator took no note of table {path}, which it has created (Fluss 0.9.1"
                " misses one now and then): restart the coordinator, or drop the table here and in"
                " the lake, and create it again",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )
        logger.warning(
            "the coordinator does not know table %s after %g s: it is dropped and created again",
            path,
            wait,
        )
        await drop_table(cluster, path, ignore_if_not_exists=True)


async def drop_table(cluster: Cluster, path: TablePath, *, ignore_if_not_exists: bool) -> None:
    """Drop a table with all its data."""
    request = pb.DropTableRequest(
        table_path=path_message(path), ignore_if_not_exists=ignore_if_not_exists
    )
    with changing():
        await cluster.request_coordinator(
            api.DROP_TABLE, request, done_by_lost_try=ErrorCode.TABLE_NOT_EXIST
        )


async def _is_served(cluster: Cluster, path: TablePath, wait: float) -> bool:
    """Whether any bucket has a leader soon; also where that cannot be known."""
    end = time.monotonic() + wait
    pause = _FIRST_PAUSE_S
    table_id: int | None = None
    while True:
        try:
            if table_id is None:
                table_id = await _id_of(cluster, path)
            if await _has_leader(cluster, path, table_id):
                return True
        except FlussError as error:
            if error.error_code not in _LATE:
                # it is not for the creation of a table to say that servers cannot be reached
                logger.debug("the leaders of table %s are not known: %s", path, error)
                return True
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _has_leader(cluster: Cluster, path: TablePath, table_id: int) -> bool:
    """Whether any bucket has a leader; also where there is no server to be one."""
    response = await cluster.ask_metadata(path)
    if not response.tablet_servers:
        return True
    # servers list a dropped table of this name for a while
    tables = [table for table in response.table_metadata if table.table_id == table_id]
    buckets = [bucket for table in tables for bucket in table.bucket_metadata]
    return any(bucket.HasField("leader_id") and bucket.leader_id >= 0 for bucket in buckets)


async def create_partition(
    cluster: Cluster, path: TablePath, spec: Mapping[str, str], *, ignore_if_exists: bool
) -> None:
    """Create a partition, given the value of each partition column.

    Raises FlussError where the coordinator does not know the table, as the module explains, and
    what else the server says.
    """
    await _require_noted(cluster, path)
    request = pb.CreatePartitionRequest(
        table_path=path_message(path),
        partition_spec=partition_spec_message(spec),
        ignore_if_exists=ignore_if_exists,
    )
    await cluster.request_coordinator(
        api.CREATE_PARTITION, request, done_by_lost_try=ErrorCode.PARTITION_ALREADY_EXISTS
    )


async def _require_noted(cluster: Cluster, path: TablePath) -> None:
    """Refuse to create a partition that would do harm.

    Raises FlussError where the coordinator took no note of the table.
    """
    if not await _is_noted(cluster, path, _LEADER_WAIT_S):
        raise FlussError(
            f"the coordinator took no note of table {path} when it was created (Fluss 0.9.1 misses"
            " one now and then); a partition of it would keep the coordinator from serving any new"
            " table: drop the table and create it again, or restart the coordinator",
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        )


async def _is_noted(cluster: Cluster, path: TablePath, wait: float, later: float = 0.0) -> bool:
    """Whether the coordinator soon knows a table; also where that cannot be known.

    It is asked ``later``, for as long as ``wait``, in seconds.
    """
    await asyncio.sleep(later)
    try:
        table_id = await _id_of(cluster, path)
        if table_id not in cluster.noted_tables:
            await _ask_for(cluster, table_id, wait)
            cluster.noted_tables.add(table_id)
    except FlussError as error:
        if error.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
            return False
        logger.debug("whether table %s was taken note of is not known: %s", path, error)
    return True


async def _ask_for(cluster: Cluster, table_id: int, wait: float) -> None:
    """Have the coordinator look a table up in what it has in memory, until it finds it."""
    bucket = pb.TableBucketId(table_id=table_id, bucket_id=0)
    request = pb.ReleaseKvSnapshotLeaseRequest(
        lease_id=str(uuid.uuid4()), buckets_to_release=[bucket]
    )
    try:
        await cluster.request_coordinator(
            api.RELEASE_KV_SNAPSHOT_LEASE, request, retry_timeout_ms=1000 * wait
        )
    except FlussError as error:
        if error.error_code != ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION:
            raise


async def _exists(cluster: Cluster, path: TablePath) -> bool:
    question = pb.TableExistsRequest(table_path=path_message(path))
    return (await cluster.request_any(api.TABLE_EXISTS, question)).exists


async def _id_of(cluster: Cluster, path: TablePath) -> int:
    return (await cluster.request_any(api.GET_TABLE_INFO, table_info_request(path))).table_id
