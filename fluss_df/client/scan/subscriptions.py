"""Checks of subscriptions: the buckets and offsets that a scanner may read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import EARLIEST_OFFSET, LATEST_OFFSET, require_bucket
from fluss_df.schema import TableInfo


def check_positions(
    info: TableInfo,
    positions: Iterable[tuple[int | None, int, int]],
    count_of: Callable[[TableInfo, int | None], int],
) -> None:
    """Refuse buckets that the table does not have, and offsets that cannot be.

    Parameters
    ----------
    info
        The table.
    positions
        The id of a partition, a bucket and its start offset.
    count_of
        Returns how many buckets a partition has.
    """
    for partition_id, bucket, offset in positions:
        require_bucket(bucket, count_of(info, partition_id), info.table_path)
        if offset < LATEST_OFFSET and offset != EARLIEST_OFFSET:
            raise FlussError(
                f"invalid start offset {offset}: expected 0 or more, EARLIEST_OFFSET (-2) or"
                " LATEST_OFFSET (-1)",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
