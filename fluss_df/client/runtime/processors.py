"""How many processors this process may use."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

# the limit of a container, in microseconds of each period; "max" for none
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


@functools.cache
def processors() -> int:
    """Return how many threads that compute this process can keep busy.

    Those that the machine has, less those that the process may not use (``taskset``, the cpuset of
    a container), and no more than the limit of its container gives time for. ``os.cpu_count()``
    knows neither: threads beyond them cost memory and wait for each other.
    """
    return max(1, min(_usable(), _limit(_CGROUP_LIMIT)))


def _usable() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        # not every system has it
        return os.cpu_count() or 1


def _limit(file: Path) -> int:
    """Return the processors that a cgroup's limit stands for, rounded up; many for none."""
    try:
        quota, period = file.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return 1 << 16
