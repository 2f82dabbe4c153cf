"""Buckets in messages."""

from __future__ import annotations

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket


def java_name(bucket: TableBucket) -> str:
    """Return a bucket as Fluss writes it in messages."""
    partition = "" if bucket.partition_id is None else f"partitionId={bucket.partition_id}, "
    return f"TableBucket{{tableId={bucket.table_id}, {partition}bucket={bucket.bucket_id}}}"


def unknown_bucket(name: str) -> FlussError:
    """Return the error for a bucket that is not there."""
    return FlussError(
        f"Unknown table or bucket: {name}", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    )
