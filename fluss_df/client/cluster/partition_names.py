"""Looks up which partition has a name now: others may have dropped and created it again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.cluster.table_creation import create_partition
from fluss_df.client.cluster.table_requests import (
    partition_infos_of,
    partition_infos_request,
    table_info_request,
)
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import PartitionInfo
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

# the settings with the limits, and their defaults: servers list only those that were set
_LIMITS: Final = {"max.partition.num": 1_000, "max.bucket.num": 128_000}


async def partition_named(
    cluster: Cluster, info: TableInfo, name: str, *, create: bool = False
) -> PartitionInfo:
    """Return the partition that has a name now; a coroutine of the I/O thread.

    ``name`` is the values of the partition columns, joined with ``$``. With ``create``, a partition
    that does not exist is created.

    Raises ``PARTITION_NOT_EXISTS``, and ``TABLE_NOT_EXIST`` also where the table of this path is
    another one by now.
    """
    now = await cluster.request_any(api.GET_TABLE_INFO, table_info_request(info.table_path))
    if now.table_id != info.table_id:
        raise another_table(info, now.table_id)
    spec = dict(zip(info.get_partition_keys(), name.split("$"), strict=True))
    question = partition_infos_request(info.table_path, spec)
    for attempt in range(2):
        answer = await cluster.request_any(api.LIST_PARTITION_INFOS, question)
        partitions = partition_infos_of(answer)
        cluster.learn_partitions(partitions)
        for partition in partitions:
            if partition.partition_name == name:
                return partition
        if not create or attempt:
            break
        await create_partition(cluster, info.table_path, spec, ignore_if_exists=True)
    raise FlussError(
        f"partition '{name}' of table {info.table_path} was dropped", ErrorCode.PARTITION_NOT_EXISTS
    )


def another_table(info: TableInfo, table_id: int) -> FlussError:
    """Return the error for a table that is open, and was dropped or replaced by another one."""
    return FlussError(
        f"table {info.table_path} was dropped and created again since it was opened"
        f" (table id {info.table_id}, now {table_id}): open it again",
        ErrorCode.TABLE_NOT_EXIST,
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """How many partitions, and buckets in them, a table may have; None where that is unknown."""

    partitions: int | None
    buckets: int | None


async def limits(cluster: Cluster) -> Limits:
    """Ask what a table may have; a coroutine of the I/O thread."""
    try:
        answer = await cluster.request_coordinator(
            api.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()
        )
    except FlussError as error:
        # who may create partitions may not be allowed to ask
        logger.debug("the settings of the cluster are not known: %s", error)
        return Limits(None, None)
    told = {config.config_key: config.config_value for config in answer.configs}
    found = [told.get(key, str(default)) for key, default in _LIMITS.items()]
    partitions, buckets = (int(value) if value.isdigit() else None for value in found)
    return Limits(partitions, buckets)
