"""Syncing in groups: what is written while a sync runs goes to the disk together, with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Syncable(Protocol):
    """What is synced: a bucket in use."""

    syncing: asyncio.Task[None] | None

    @property
    def durable_offset(self) -> int:
        """Up to where writes are on the disk."""
        ...

    def sync(self) -> None:
        """Bring what was written so far to the disk; called on a worker thread."""
        ...

    def wake(self) -> None:
        """Tell readers that there is something new."""
        ...


#: Calls a function on a worker thread.
Run = Callable[[Callable[[], None]], Awaitable[Any]]


async def synced_to(bucket: Syncable, end_offset: int, run: Run) -> None:
    """Wait until what is before an offset is on the disk.

    A sync that runs already may have begun before the write: then another one follows it, which all
    who wait share.

    Raises
    ------
    FlussError
        ``STORAGE_EXCEPTION`` when the disk refused.
    """
    while bucket.durable_offset < end_offset:
        if bucket.syncing is None:
            bucket.syncing = asyncio.ensure_future(sync_once(bucket, run))
        # a caller that goes away must not take the sync of the others along
        await asyncio.shield(bucket.syncing)


async def sync_once(bucket: Syncable, run: Run) -> None:
    """Sync a bucket, and tell its readers."""
    try:
        await run(bucket.sync)
    finally:
        bucket.syncing = None
        bucket.wake()
