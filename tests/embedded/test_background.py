"""What an engine does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fluss_df.engine import background
from fluss_df.engine.background import check_for_ever
from fluss_df.engine.files.ownership import FolderLostError


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
