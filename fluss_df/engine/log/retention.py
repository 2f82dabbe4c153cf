"""Which segments have expired, even if the clock was wrong when they were written.

Commit timestamps never run backwards: after a clock was ahead, those of a log stay ahead until the
time comes. A segment whose last timestamp lies ahead of the clock is as old as its file, which was
last written with its last batch. Where the time of the file lies ahead as well, it was written
while the clock was: its time is set to now, and it is kept for a whole time to live from then on.

A clock that is behind keeps segments longer: all of them lie ahead of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fluss_df.engine.log.segment import Segment, segment_file, segment_offsets

# clocks of one machine go back by seconds when they are set right
_SLACK_MS: Final = 60_000


def expired(
    segments: Sequence[Segment], now_ms: int, ttl_ms: int, tiered: int | None = None
) -> int:
    """Return how many of the oldest segments are older than a time to live; never the last one.

    Those with an offset from ``tiered`` on are kept: they are not in the lake yet. None for all.
    """
    count = 0
    for number, segment in enumerate(segments[:-1]):
        written = segment.last_timestamp
        if written > now_ms + _SLACK_MS:
            # the times of all files are set right, so that segments do not wait for each other
            written = _file_time(segment.path, now_ms)
        if count == number and written < now_ms - ttl_ms:
            count += 1
    while tiered is not None and count and segments[count].base_offset > tiered:
        count -= 1
    return count


def may_expire(folder: Path, now_ms: int, ttl_ms: int) -> bool:
    """Whether a log that is not open has a segment to expire, which is never the newest."""
    bases = segment_offsets(folder)
    if len(bases) < 2:
        return False
    # it was not written to after its last batch
    oldest = _file_time(segment_file(folder, bases[0]), now_ms)
    if oldest == now_ms:
        for base in bases[1:-1]:
            _file_time(segment_file(folder, base), now_ms)
    return oldest < now_ms - ttl_ms


def _file_time(file: Path, now_ms: int) -> int:
    """Return when a file was last written (ms); one that lies ahead was written now."""
    written = now_ms
    # who cannot tell keeps it
    with contextlib.suppress(OSError):
        status = os.stat(file)
        written = status.st_mtime_ns // 1_000_000
        if written > now_ms + _SLACK_MS:
            written = now_ms
            os.utime(file, ns=(status.st_atime_ns, now_ms * 1_000_000))
    return written
