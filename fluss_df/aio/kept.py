"""What a scanner's calls have read and not returned, as they were cancelled: :class:`Kept`."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Generic, Self, TypeAlias, TypeVar

import pyarrow as pa

from fluss_df.record.log.log_decode import DecodedBatch

if TYPE_CHECKING:
    from fluss_df.client.fetch.position import Position

R = TypeVar("R")

#: The id of a partition, None in a table without, and a bucket.
Bucket: TypeAlias = tuple[int | None, int]


class _Read(Generic[R]):
    """What one read has taken: rows of buckets, in the order in which they are returned.

    Parameters
    ----------
    order
        Its place among all reads of the scanner.
    change
        The number of the last change of subscriptions before it.
    parts
        Rows, each with the position of their bucket.
    """

    def __init__(self, order: int, change: int, parts: list[tuple[Position, R]]) -> None:
        self.order = order
        self.change = change
        self.parts = parts

    def forget(self, buckets: Set[Bucket]) -> None:
        """Drop the rows of these buckets."""
        self.parts = [
            part
            for part in self.parts
            if (part[0].bucket.partition_id, part[0].bucket.bucket_id) not in buckets
        ]

    def take_part(self) -> Self:
        """Take out the first part."""
        return type(self)(self.order, self.change, [self.parts.pop(0)])


class Polled(_Read[DecodedBatch]):
    """What a poll has taken."""


class Whole(_Read[pa.Table]):
    """All rows up to the latest offset."""

    def cut(self) -> None:
        """Have each part be one batch, so that a lazy reader can leave the others."""
        self.parts = [
            (position, pa.Table.from_batches([batch]))
            for position, table in self.parts
            for batch in table.to_batches()
        ]


class Kept:
    """Reads that nobody has got, in the order in which they were made; for any thread.

    A call takes them out when it returns them, or puts back what it did not return. A lazy reader
    takes them part by part.
    """

    def __init__(self) -> None:
        self._entries: list[Polled | Whole] = []
        self._orders = itertools.count()
        # for each bucket the number of the last change of subscriptions that forgot it
        self._forgotten: dict[Bucket, int] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """Go on in a forked child, where the thread that had the lock is not."""
        self._lock = threading.Lock()

    def next_order(self) -> int:
        """Return the place of a read that is made now."""
        return next(self._orders)

    def put(self, entries: Iterable[Polled | Whole]) -> None:
        """Keep what a call read, without what a later change of subscriptions has forgotten."""
        with self._lock:
            for entry in entries:
                entry.forget({b for b, at in self._forgotten.items() if at > entry.change})
                if isinstance(entry, Whole):
                    entry.cut()
                if entry.parts:
                    bisect.insort(self._entries, entry, key=lambda other: other.order)

    def forget(self, buckets: Set[Bucket], change: int) -> None:
        """Drop the rows of buckets whose subscription changed: ``change`` is its number."""
        with self._lock:
            self._forgotten.update(dict.fromkeys(buckets, change))
            for entry in self._entries:
                entry.forget(buckets)
            self._entries = [entry for entry in self._entries if entry.parts]

    def take_polled(self) -> Polled | None:
        """Take out the first poll; None where there is none."""
        with self._lock:
            for place, entry in enumerate(self._entries):
                if isinstance(entry, Polled):
                    del self._entries[place]
                    return entry
        return None

    def take_all(self) -> list[Polled | Whole]:
        """Take out everything."""
        with self._lock:
            entries, self._entries = self._entries, []
        return entries

    def present(self) -> list[Polled | Whole]:
        """Return what is there, for :meth:`take_part`."""
        with self._lock:
            return list(self._entries)

    def take_part(self, entry: Polled | Whole) -> Polled | Whole | None:
        """Take the first part out of an entry; None where it is not there any more."""
        with self._lock:
            if entry not in self._entries:
                return None
            if len(entry.parts) == 1:
                self._entries.remove(entry)
                return entry
            return entry.take_part()
