"""Group commit: all writes that come while a sync runs share the next sync."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Syncable(Protocol):
    """A bucket that is open."""

    syncing: asyncio.Task[None] | None

    @property
    def durable_offset(self) -> int:
        """The offset up to which writes are on the disk."""

    def sync(self) -> None:
        """Bring all writes so far to the disk; called on a worker thread."""

    def wake(self) -> None:
        """Wake the readers that wait for new rows."""


#: Calls a function on a worker thread.
Run = Callable[[Callable[[], None]], Awaitable[Any]]


async def synced_to(bucket: Syncable, end_offset: int, run: Run) -> None:
    """Wait until all writes before an offset are on the disk.

    A sync that is under way may have begun before the write, and may not cover it. Then one more
    sync follows, which all waiting callers share.

    Raises ``STORAGE_EXCEPTION`` when the disk refused.
    """
    while bucket.durable_offset < end_offset:
        if bucket.syncing is None:
            bucket.syncing = asyncio.ensure_future(sync_once(bucket, run))
        # a caller that is cancelled must not cancel the sync, which others wait for
        await asyncio.shield(bucket.syncing)


async def sync_once(bucket: Syncable, run: Run) -> None:
    """Sync a bucket, then wake its readers, also when the sync failed."""
    try:
        await run(bucket.sync)
    finally:
        # the background syncs too: its end is not the end of the sync that writers share
        if bucket.syncing is asyncio.current_task():
            bucket.syncing = None
        bucket.wake()
