"""Where received data is put."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from fluss_df.memory import allocate

_PAGE = 4096


@pytest.mark.parametrize("size", [1 << 20, 7 << 20, (7 << 20) + 1, 8 << 20, 16 << 20])
def test_memory_is_used_again(size: int) -> None:
    """What the system takes back has to be made again, page by page."""

    def fill(times: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(times):
            np.frombuffer(allocate(size), np.uint8)[::_PAGE] = 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    fill(3)
    assert fill(10) < 10 * size / _PAGE / 4
