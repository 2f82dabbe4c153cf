"""The sync of the background beside the syncs that writers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fluss_df.engine.group_commit import sync_once, synced_to
from tests.waiting import settled


class Disk:
    """A bucket whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.syncing: asyncio.Task[None] | None = None
        self.durable_offset = 0
        self.ends: list[asyncio.Future[None]] = []

    def sync(self) -> None:
        self.ends.append(asyncio.get_running_loop().create_future())

    def wake(self) -> None:
        """Nobody reads."""

    async def run(self, function: Callable[[], None]) -> None:
        function()
        await self.ends[-1]


async def test_the_end_of_a_background_sync_leaves_the_shared_sync_to_its_writers() -> None:
    disk = Disk()
    background = asyncio.create_task(sync_once(disk, disk.run))
    await settled()
    first = asyncio.create_task(synced_to(disk, 1, disk.run))
    await settled()
    disk.ends[0].set_result(None)
    await background
    second = asyncio.create_task(synced_to(disk, 1, disk.run))
    await settled()
    # the second writer waits for the sync under way, and begins none beside it
    begun = len(disk.ends)
    disk.durable_offset = 1
    for end in disk.ends[1:]:
        end.set_result(None)
    await asyncio.gather(first, second)
    assert begun == 2
    assert disk.syncing is None
