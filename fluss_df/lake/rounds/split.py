"""A part of a bucket's log, and where its rows are in the lake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluss_df.metadata import TableBucket

# the values of the fields by which a lake table is partitioned
Partition = tuple[Any, ...]

_PARTITION_SEPARATOR = "$"


@dataclass(frozen=True, slots=True)
class Split:
    """A range of one bucket's log."""

    bucket: TableBucket
    partition_name: str | None
    start: int
    stop: int
    # whether the rows of a primary-key bucket are read as they are now, rather than its changelog
    snapshot: bool = False

    @property
    def key(self) -> tuple[int | None, int]:
        """Its partition id and its bucket."""
        return self.bucket.partition_id, self.bucket.bucket_id


def lake_partition(split: Split) -> Partition:
    """Return the values of the lake's partition fields: the partition's keys, then the bucket."""
    name = split.partition_name
    values = [] if name is None else name.split(_PARTITION_SEPARATOR)
    return (*values, split.bucket.bucket_id)


def where(bucket: TableBucket, partition_name: str | None) -> str:
    """Return the name of a bucket, for errors."""
    place = f"bucket {bucket.bucket_id}"
    return place if partition_name is None else f"partition {partition_name}, {place}"
