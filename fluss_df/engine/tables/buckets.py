"""Buckets, and lists of columns, in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

# of a list; a request may have a million entries, and an answer an error for each bucket
_LISTED: Final = 20


def java_name(bucket: TableBucket) -> str:
    """Return a bucket as Fluss writes it in messages."""
    partition = "" if bucket.partition_id is None else f"partitionId={bucket.partition_id}, "
    return f"TableBucket{{tableId={bucket.table_id}, {partition}bucket={bucket.bucket_id}}}"


def listed(values: Sequence[object]) -> str:
    """Return values as Fluss writes a list in messages, of very many the first ones."""
    text = ", ".join(map(str, values[:_LISTED]))
    more = len(values) - _LISTED
    return f"[{text}, and {more:,} more]" if more > 0 else f"[{text}]"


def unknown_partition(partition_id: int) -> FlussError:
    """Return the error for a partition id that does not exist, or is hidden from the user."""
    return FlussError(
        f"The partition id '{partition_id}' does not exist or you don't have permission to access"
        " it.",
        ErrorCode.PARTITION_NOT_EXISTS,
    )


def unknown_table(table_id: int) -> FlussError:
    """Return the error for a table id that does not exist."""
    return FlussError(
        f"This server coordinator does not know this table ID {table_id}. This may happen when the"
        " table metadata cache in the server is not updated yet.",
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    )


def unknown_bucket(name: str) -> FlussError:
    """Return the error for a bucket that is not there."""
    return FlussError(
        f"Unknown table or bucket: {name}", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    )
