"""Asks for snapshots and offsets of many buckets of a primary-key table in one go.

A server looks into its metadata store for the snapshot of each bucket of a partition, whichever of
them one wants to know of: asked once for each of 256 buckets, that took 13 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluss_df.client.cluster.leader_requests import learn_leaders
from fluss_df.client.scan.snapshot_files import newest_ids
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.client.context import ClientContext

# Buckets that are asked for in one go: their offsets grow old while the buckets before are read.
_TOGETHER = 1024
_PARALLEL_REQUESTS = 16
# The most changes, and buckets, of a group: all its rows are in memory at a time, and may be wide.
_GROUP_CHANGES = 2048
_GROUP_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket to scan."""

    bucket: TableBucket
    partition_name: str | None


@dataclass(frozen=True, slots=True)
class BucketMoment:
    """The newest snapshot of a bucket and the offsets of its changelog at one moment.

    ``snapshot_id`` is None where there is none. ``latest`` is the offset behind the last change.
    """

    snapshot_id: int | None
    earliest: int
    latest: int

    @property
    def changes(self) -> int | None:
        """How many changes make the rows, where the changelog has all of them; else None."""
        return None if self.earliest else self.latest


class BucketMoments:
    """Asks for many buckets at once when the first of them is to be read; thread safe."""

    def __init__(
        self, connection: ClientContext, info: TableInfo, targets: Sequence[Target]
    ) -> None:
        self._connection = connection
        self._info = info
        self._targets = targets
        self._place = {target.bucket: number for number, target in enumerate(targets)}
        self._asked = 0
        self._found: dict[TableBucket, BucketMoment] = {}
        self._lock = threading.Lock()

    def learn_leaders(self) -> None:
        """Ask for the leaders of all buckets in one request."""
        buckets = [target.bucket for target in self._targets]
        cluster = self._connection.cluster
        if all(cluster.known_leader(bucket) is not None for bucket in buckets):
            return
        # a partition that is gone, for one, is told when it is its turn
        with contextlib.suppress(FlussError):
            cluster.io.run(learn_leaders(cluster, self._info, buckets))

    def take(self, target: Target) -> BucketMoment:
        """Return what is known of a bucket; the second time, it is asked for again.

        Raises ``TABLE_NOT_EXIST``, ``PARTITION_NOT_EXISTS`` where it is gone.
        """
        with self._lock:
            self._learn(target)
            known = self._found.pop(target.bucket, None)
        if known is None:
            known = self._ask([target])[target.bucket]
        return known

    def take_all(self, targets: Sequence[Target]) -> list[BucketMoment]:
        """Return what is known of buckets, as :meth:`take`; what is not, is asked for in one go."""
        with self._lock:
            found = {t.bucket: self._found.pop(t.bucket, None) for t in targets}
        missing = [t for t in targets if found[t.bucket] is None]
        asked = self._ask(missing) if missing else {}
        return [found[t.bucket] or asked[t.bucket] for t in targets]

    def groups(self, targets: Sequence[Target]) -> Iterator[list[tuple[Target, ...]]]:
        """Put buckets together whose changelogs are best read at once.

        A bucket of a few rows costs a request, and what is made for a read; its snapshot costs ten
        times as much. Grouped are neighbours of one leader that have short and whole changelogs.

        Each list that is yielded has the buckets, in their order, that were asked for at once.
        """
        for begin in range(0, len(targets), _TOGETHER):
            some = targets[begin : begin + _TOGETHER]
            with self._lock:
                self._learn(some[0])
                found = list(self._grouped(some))
            yield found

    def _learn(self, target: Target) -> None:
        """Ask for a bucket and those behind it, unless that was done; the lock is held."""
        place = self._place[target.bucket]
        if place >= self._asked:
            some = self._targets[place : place + _TOGETHER]
            self._asked = place + len(some)
            # where that fails, each bucket is asked for again alone, and has an error of its own
            with contextlib.suppress(FlussError):
                self._found.update(self._ask(some))

    def _grouped(self, targets: Sequence[Target]) -> Iterator[tuple[Target, ...]]:
        group: list[Target] = []
        leader, left = None, 0
        for target in targets:
            moment = self._found.get(target.bucket)
            changes = None if moment is None else moment.changes
            node = self._connection.cluster.known_leader(target.bucket)
            size = _GROUP_CHANGES + 1 if changes is None or node is None else changes
            if group and (size > left or node != leader or len(group) == _GROUP_BUCKETS):
                yield tuple(group)
                group = []
            if size > _GROUP_CHANGES:
                yield (target,)
                continue
            if not group:
                leader, left = node, _GROUP_CHANGES
            group.append(target)
            left -= size
        if group:
            yield tuple(group)

    def _ask(self, targets: Sequence[Target]) -> dict[TableBucket, BucketMoment]:
        return self._connection.io.run(_moments(self._connection, self._info, targets))


async def _moments(
    connection: ClientContext, info: TableInfo, targets: Sequence[Target]
) -> dict[TableBucket, BucketMoment]:
    """Ask in this order: first offsets, snapshots, last offsets.

    In this order, either the changelog has its beginning or the snapshot has what it lacks, also
    where a snapshot is made meanwhile. And no snapshot is behind the last offset.
    """
    tables = TableQuestions(connection)
    buckets = [target.bucket for target in targets]
    earliest = await tables.bucket_offsets(info, buckets, OffsetSpec.earliest())
    partitions = dict.fromkeys((t.bucket.partition_id, t.partition_name) for t in targets)
    snapshots = await _snapshots(connection, info, partitions)
    latest = await tables.bucket_offsets(info, buckets, OffsetSpec.latest())
    return {b: BucketMoment(snapshots.get(b), earliest[b], latest[b]) for b in buckets}


async def _snapshots(
    connection: ClientContext, info: TableInfo, partitions: Iterable[tuple[int | None, str | None]]
) -> dict[TableBucket, int]:
    limit = asyncio.Semaphore(_PARALLEL_REQUESTS)

    async def ask(partition_id: int | None, name: str | None) -> dict[TableBucket, int]:
        async with limit:
            return await newest_ids(connection, info, partition_id, name)

    found: dict[TableBucket, int] = {}
    for some in await asyncio.gather(*(ask(*partition) for partition in partitions)):
        found |= some
    return found
