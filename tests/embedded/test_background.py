"""What an engine does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from fluss_df.engine import background
from fluss_df.engine.background import check_for_ever, sync_for_ever
from fluss_df.engine.files.ownership import FolderLostError
from fluss_df.engine.group_commit import Run
from fluss_df.errors import ErrorCode, FlussError


def test_checks_survive_what_fails_and_end_with_the_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_CHECK_INTERVAL_S", 0.001)
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise OSError("no room")

    def looks() -> None:
        done.append("looks")
        if len(done) == 6:
            raise FolderLostError("the folder is not there any more")

    async def run(work: Callable[[], object]) -> object:
        return work()

    asyncio.run(asyncio.wait_for(check_for_ever(run, lambda: [fails, looks]), 10))
    assert done == ["fails", "looks"] * 3
    assert caplog.text.count("background work failed") == 3


async def test_syncs_that_fail_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_SYNC_INTERVAL_S", 0.001)
    tried: dict[str, int] = {"dropped": 0, "full": 0}

    @dataclass
    class Bucket:
        """A bucket that is never synced: of a table that was dropped, or on a full disk."""

        name: str
        code: int
        dirty: bool = True
        syncing: object = None

        def sync(self) -> None:
            tried[self.name] += 1
            raise FlussError(f"the bucket is {self.name}", self.code)

        def wake(self) -> None: ...

    async def run(work: Callable[[], object]) -> object:
        return work()

    buckets: Any = {
        1: Bucket("dropped", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
        2: Bucket("full", ErrorCode.STORAGE_EXCEPTION),
    }
    syncing = asyncio.ensure_future(sync_for_ever(buckets, cast(Run, run)))
    async with asyncio.timeout(20):
        while min(tried.values()) < 50:
            await asyncio.sleep(0.01)
    syncing.cancel()
    assert "dropped" not in caplog.text
    assert 1 <= caplog.text.count("a sync failed: the bucket is full") < 20
