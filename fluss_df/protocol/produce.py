"""Produce requests, framed by hand so that encoded batches are sent from where they are."""

from __future__ import annotations

from collections.abc import Sequence

from fluss_df.protocol.frames import Buffer
from fluss_df.protocol.wire import bytes_header, varint_field


def produce_log_body(
    *,
    acks: int,
    table_id: int,
    timeout_ms: int,
    buckets: Sequence[tuple[int | None, int, Sequence[Buffer]]],
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
    """
    parts: list[Buffer] = [
        varint_field(1, acks) + varint_field(2, table_id) + varint_field(3, timeout_ms)
    ]
    for partition_id, bucket_id, records in buckets:
        head = b"" if partition_id is None else varint_field(1, partition_id)
        head += varint_field(2, bucket_id)
        size = sum(len(part) for part in records)
        head += bytes_header(3, size)
        parts.append(bytes_header(4, len(head) + size) + head)
        parts.extend(records)
    return parts
