"""Writes of large requests, side by side; those to one bucket come in their order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from fluss_df.metadata import TableBucket

T = TypeVar("T")

# most of the time of a write is spent in libraries that let other threads of Python run; the
# threads for the disk that are left over answer the others
_AT_ONCE: Final = min(6, os.cpu_count() or 1)


class WriteTurns:
    """Whose turn it is to write into a bucket; on the event loop."""

    def __init__(self) -> None:
        self._last: dict[TableBucket, asyncio.Task[Any]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    def are_over(self, buckets: Iterable[TableBucket]) -> bool:
        """Whether all writes that entered are over for these buckets; on any thread."""
        return not self._last or not any(bucket in self._last for bucket in buckets)

    def enter(
        self, buckets: Sequence[TableBucket], write: Callable[[], Awaitable[T]]
    ) -> asyncio.Task[T]:
        """Write once what entered before for the same buckets is over; return the result's task."""
        before = {self._last[bucket] for bucket in buckets if bucket in self._last}
        task = asyncio.ensure_future(self._in_turn(before, write))
        self._last.update(dict.fromkeys(buckets, task))
        task.add_done_callback(lambda _: self._leave(buckets, task))
        return task

    async def _in_turn(
        self, before: set[asyncio.Task[Any]], write: Callable[[], Awaitable[T]]
    ) -> T:
        if before:
            await asyncio.wait(before)
            before.clear()
        async with self._room:
            return await write()

    def _leave(self, buckets: Sequence[TableBucket], task: asyncio.Task[Any]) -> None:
        for bucket in buckets:
            if self._last.get(bucket) is task:
                del self._last[bucket]
