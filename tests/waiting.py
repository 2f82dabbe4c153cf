"""What tests wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_until(
    happened: Callable[[], object], seconds: float = 20, told: str = "not within the time"
) -> None:
    """Return when something has happened, of which one asks again and again."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)
