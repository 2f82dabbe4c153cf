"""Rows that a scanner read for calls which were then cancelled; the next call returns them."""

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
    """The rows of one read.

    Parameters
    ----------
    order
        The number of this read; the scanner counts its reads.
    change
        How many times subscriptions had changed when the read was asked for.
    parts
        The rows in the order in which they are returned. Each part has rows of one bucket, and the
        position of that bucket.
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
    """The log batches of one poll."""


class Whole(_Read[pa.Table]):
    """The tables of one ``to_arrow``: all rows up to the latest offset."""

    def cut(self) -> None:
        """Split each part into one for each Arrow batch: a lazy reader can stop between two."""
        self.parts = [
            (position, pa.Table.from_batches([batch]))
            for position, table in self.parts
            for batch in table.to_batches()
        ]


class Kept:
    """Rows that a scanner read for calls which did not return them; safe for threads.

    The reads are kept in the order in which they were made. The next call takes reads out; where it
    is cancelled, it puts them back. A lazy reader takes one part at a time.
    """

    def __init__(self) -> None:
        self._entries: list[Polled | Whole] = []
        self._orders = itertools.count()
        # for each bucket the number of the last change of subscriptions that forgot it
        self._forgotten: dict[Bucket, int] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """Make a new lock in a forked child, where its holder is not."""
        self._lock = threading.Lock()

    def next_order(self) -> int:
        """Return the place of a read that is made now."""
        return next(self._orders)

    def put(self, entries: Iterable[Polled | Whole]) -> None:
        """Keep reads of a call, but for buckets whose subscription changed since."""
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
        """Return the kept reads without taking them, for :meth:`take_part`."""
        with self._lock:
            return list(self._entries)

    def take_part(self, entry: Polled | Whole) -> Polled | Whole | None:
        """Take the first part out of an entry; None where another call took the entry."""
        with self._lock:
            if entry not in self._entries:
                return None
            if len(entry.parts) == 1:
                self._entries.remove(entry)
                return entry
            return entry.take_part()
