"""The offsets that batches read, in the form that targets and messages have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluss_df.io.runs.losses import listed
from fluss_df.pushdown.plan import Split


def positions(splits: Iterable[Split]) -> list[list[Any]]:
    """Return the ranges of splits as JSON: partition, bucket, first offset, the one behind."""
    return [[s.partition_name, s.bucket_id, s.start, s.stop] for s in splits]


def where(about: Mapping[str, Any]) -> str:
    """Return what a batch read, for a message; empty where it is not known."""
    ranges = about.get("positions") or []
    texts = (
        f"{'' if partition is None else f'{partition}/'}{bucket}[{start}:{stop}]"
        for partition, bucket, start, stop in sorted(ranges, key=lambda r: r[2] - r[3])
    )
    return f" (bucket {listed(texts)})" if ranges else ""


def overlapping(about: Mapping[str, Any], splits: Iterable[Split]) -> str | None:
    """Return a range of splits of which a batch, or those before it, read some rows."""
    done = {(p, b): stop for p, b, _, stop in about.get("positions") or []}
    for split in splits:
        if split.start < done.get((split.partition_name, split.bucket_id), 0):
            return str(split)
    return None
