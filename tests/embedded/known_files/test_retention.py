"""Where a log begins outlives its file, and clocks that jump expire nothing early."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluss_df.engine.engine import Engine
from fluss_df.engine.log.retention import may_expire
from fluss_df.metadata import TableBucket
from tests.embedded.known_files.folders import LOGS, OPTIONS, bucket_folder, refused, seen, segments
from tests.embedded.test_durability import batch, opened

# ---- retention


def expire(folder: Path, bucket: TableBucket, now: int, ttl: int) -> int:
    engine = Engine(folder, OPTIONS)
    try:
        return engine.bucket(bucket)[1].expire(now, ttl)
    finally:
        engine.close()


def test_where_a_log_begins_outlives_one_file(folder: Path, tmp_path: Path) -> None:
    log = bucket_folder(folder, LOGS[0]) / "log"
    older = (log / "synced").read_bytes()
    assert expire(folder, LOGS[0], time.time_ns() // 1_000_000 + 10_000, 1000)
    expected = seen(folder)
    newer = (log / "synced").read_bytes()
    start = (log / "start").read_bytes()
    for content in (older, b"", None):
        (log / "synced").write_bytes(content) if content is not None else (log / "synced").unlink()
        refused(folder, expected)
    (log / "synced").write_bytes(newer)
    for content in (b"", start[:-1] + bytes([start[-1] ^ 1]), None):
        (log / "start").write_bytes(content) if content is not None else (log / "start").unlink()
        refused(folder, expected)
        assert (log / "start").read_bytes() == start
    (log / "synced").unlink()
    segments(folder, LOGS[0])[0].unlink()
    refused(folder, expected, LOGS[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of writers and files to some days from now."""
    real, write_ = time.time_ns, os.pwritev
    ahead = 0

    def pwritev(fd: int, parts: Any, at: int) -> int:
        count = write_(fd, parts, at)
        now = real() + ahead
        os.utime(fd, ns=(now, now))
        return count

    def set_to(days: float) -> None:
        nonlocal ahead
        ahead = int(days * DAY_NS)

    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    monkeypatch.setattr(os, "pwritev", pwritev)
    return set_to


DAY_NS = 24 * 3600 * 1_000_000_000
DAY = DAY_NS // 1_000_000
TTL = 7 * DAY


def days_from_now(days: float) -> int:
    return time.time_ns() // 1_000_000 + int(days * DAY)


def test_a_clock_that_was_ahead_once(tmp_path: Path, clock: Callable[[float], None]) -> None:
    tablet = opened(tmp_path / "log", 300)
    clock(20_000)  # 2081
    for _ in range(6):
        tablet.append(batch(), {1: None})
    clock(0)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    tablet.close()
    begun = len(list((tmp_path / "log").glob("*.log")))
    assert begun > 5
    tablet = opened(tmp_path / "log", 300)
    # nothing is older than a week, as far as is known
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(6)
    assert tablet.expire(days_from_now(0), TTL) == 0
    # a week later all of it is, also for an engine that was opened again
    tablet.close()
    clock(8)
    tablet = opened(tmp_path / "log", 300)
    assert tablet.expire(days_from_now(0), TTL) == begun - 1
    tablet.close()


def test_an_unused_bucket_of_a_clock_that_was_ahead(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    clock(20_000)
    tablet = opened(tmp_path / "log", 300)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    tablet.close()
    clock(0)
    assert not may_expire(tmp_path / "log", days_from_now(0), TTL)
    assert may_expire(tmp_path / "log", days_from_now(8), TTL)


def test_a_clock_that_goes_back(tmp_path: Path, clock: Callable[[float], None]) -> None:
    """Nothing expires by it, neither while it is behind nor when it is right again."""
    tablet = opened(tmp_path / "log", 300)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    clock(-15_000)
    for _ in range(6):
        tablet.append(batch(), {1: None})
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(1)
    assert tablet.expire(days_from_now(0), TTL) == 0
    clock(8)
    files = len(list((tmp_path / "log").glob("*.log")))
    assert tablet.expire(days_from_now(0), TTL) == files - 1 > 3
    tablet.close()
