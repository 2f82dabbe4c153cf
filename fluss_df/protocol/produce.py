"""Produce requests, framed by hand so that encoded batches are sent from where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from fluss_df.protocol.wire import Buffer, bytes_header, encode_varint, varint_field

NO_COUNTS: Final[Mapping[int | None, int]] = MappingProxyType({})


def produce_log_body(
    *,
    acks: int,
    table_id: int,
    timeout_ms: int,
    buckets: Sequence[tuple[int | None, int, Sequence[Buffer]]],
    counts: Mapping[int | None, int] = NO_COUNTS,
) -> list[Buffer]:
    """Return the buffers of a ``ProduceLogRequest``.

    Parameters
    ----------
    acks
        -1 for all in-sync replicas, 1 for the leader, 0 for none.
    table_id
        The table.
    timeout_ms
        How long the server may wait for its replicas.
    buckets
        For each batch: partition id or None, bucket id, the buffers of the encoded log batch. A
        bucket may occur more than once; its batches are appended in this order.
    counts
        How many buckets partitions have, by their ids, where servers let them differ.
    """
    head = varint_field(1, acks) + varint_field(2, table_id) + varint_field(3, timeout_ms)
    return [head, *_buckets(4, buckets, counts)]


def put_kv_body(
    *,
    acks: int,
    table_id: int,
    timeout_ms: int,
    target_columns: Sequence[int],
    buckets: Sequence[tuple[int | None, int, Sequence[Buffer]]],
    counts: Mapping[int | None, int] = NO_COUNTS,
) -> list[Buffer]:
    """Return the buffers of a ``PutKvRequest``.

    Parameters
    ----------
    acks, table_id, timeout_ms, buckets, counts
        As of :func:`produce_log_body`, with key-value batches.
    target_columns
        Indexes of the columns that are updated, the key's among them; empty for all.
    """
    head = varint_field(1, acks) + varint_field(2, table_id) + varint_field(3, timeout_ms)
    if target_columns:
        packed = b"".join(encode_varint(index) for index in target_columns)
        head += bytes_header(4, len(packed)) + packed
    return [head, *_buckets(5, buckets, counts)]


def _buckets(
    field: int,
    buckets: Sequence[tuple[int | None, int, Sequence[Buffer]]],
    counts: Mapping[int | None, int],
) -> list[Buffer]:
    """Return the buffers of the batches; puts and appends name their buckets alike."""
    parts: list[Buffer] = []
    for partition_id, bucket_id, records in buckets:
        head = b"" if partition_id is None else varint_field(1, partition_id)
        head += varint_field(2, bucket_id)
        if partition_id in counts:
            head += varint_field(4, counts[partition_id])
        size = sum(len(part) for part in records)
        head += bytes_header(3, size)
        parts.append(bytes_header(field, len(head) + size) + head)
        parts.extend(records)
    return parts
