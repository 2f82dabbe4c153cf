"""Syncing in groups, over a disk that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fluss_df.engine.group_commit import sync_once, synced_to
from tests.waiting import settled


class Disk:
    """A bucket whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.syncing: asyncio.Task[None] | None = None
        self.written = 0
        self.durable_offset = 0
        self.woken = 0
        # of each sync that began: what it covers, and how it ends
        self.syncs: list[tuple[int, asyncio.Future[None]]] = []

    def sync(self) -> None:
        """Begin to sync; :meth:`run` waits for its end."""
        self.syncs.append((self.written, asyncio.get_running_loop().create_future()))

    def wake(self) -> None:
        self.woken += 1

    async def run(self, function: Callable[[], None]) -> None:
        function()
        covered, end = self.syncs[-1]
        await end
        self.durable_offset = max(self.durable_offset, covered)

    def write(self, rows: int) -> asyncio.Task[None]:
        """Write rows; return who waits until they are on the disk."""
        self.written += rows
        return asyncio.create_task(synced_to(self, self.written, self.run))


async def test_what_is_on_the_disk_needs_no_sync() -> None:
    disk = Disk()
    disk.written = disk.durable_offset = 5
    await synced_to(disk, 5, disk.run)
    assert disk.syncs == []


async def test_writes_during_a_sync_share_the_next_one() -> None:
    disk = Disk()
    first = disk.write(1)
    await settled()
    others = [disk.write(1) for _ in range(100)]
    await settled()
    assert len(disk.syncs) == 1
    disk.syncs[0][1].set_result(None)
    await settled()
    # the first is done; what came behind it was not covered
    assert first.done()
    assert not any(other.done() for other in others)
    assert [covered for covered, _ in disk.syncs] == [1, 101]
    disk.syncs[1][1].set_result(None)
    await asyncio.gather(*others)
    assert len(disk.syncs) == 2
    assert disk.woken == 2
    assert disk.syncing is None


async def test_a_caller_that_goes_away_leaves_the_sync_to_the_others() -> None:
    disk = Disk()
    gone, stays = disk.write(1), disk.write(1)
    await settled()
    gone.cancel()
    await settled()
    assert gone.cancelled()
    disk.syncs[0][1].set_result(None)
    await stays
    assert len(disk.syncs) == 1


async def test_a_disk_that_refuses_fails_all_who_wait_and_none_who_come_later() -> None:
    disk = Disk()
    waiting = [disk.write(1), disk.write(1)]
    await settled()
    disk.syncs[0][1].set_exception(OSError("no space left"))
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, OSError)
    assert disk.woken == 1
    later = disk.write(1)
    await settled()
    disk.syncs[1][1].set_result(None)
    await later
    assert disk.durable_offset == 3


async def test_readers_are_told_of_a_sync_that_failed() -> None:
    disk = Disk()
    disk.written = 1
    task = asyncio.create_task(sync_once(disk, disk.run))
    await settled()
    disk.syncs[0][1].set_exception(OSError("no space left"))
    with pytest.raises(OSError, match="no space"):
        await task
    assert disk.woken == 1
