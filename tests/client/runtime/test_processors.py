"""How many threads compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fluss_df.client.runtime import processors


@pytest.mark.parametrize(
    ("text", "expected"), [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_the_limit_of_a_container(tmp_path: Path, text: str, expected: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text + "\n")
    assert processors._limit(file) == expected


@pytest.mark.parametrize("text", ["max 100000", "", "100000 0", "\0"])
def test_no_limit(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert processors._limit(file) > 1_000
    assert processors._limit(tmp_path / "missing") > 1_000


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no processes")
def test_processors_that_a_process_may_use() -> None:
    program = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from fluss_df.client.runtime.encoders import compute_threads\n"
        "print(compute_threads())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr
