"""Where received data is put."""

from __future__ import annotations

import resource
import subprocess
import sys

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


def test_blocks_of_some_megabytes_are_used_again() -> None:
    program = (
        "import resource\n"
        "from fluss_df.memory import reuse_large_blocks\n"
        "reuse_large_blocks()\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "kept = [bytes(2 << 20) for _ in range(3)]\n"
        "before = faults()\n"
        "for _ in range(200):\n"
        "    kept = [b''.join([bytes(1), bytes(2 << 20)]) for _ in range(3)]\n"
        "print(faults() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    # each block has 512 pages
    assert int(done.stdout) < 100 * 512
