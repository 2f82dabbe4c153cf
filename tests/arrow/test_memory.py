"""A table streams through readers in a part of its size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fluss_df

ROWS = 6_000_000  # 64 bytes each, which do not compress
CAP = 160 << 20

# what runs in a process of its own, for its memory alone is measured
READER = """
import json, sys
import duckdb
import fluss_df
from tests.memory import PeakMemory

folder, how = sys.argv[1:]
table = fluss_df.arrow.dataset("numbers", connection=folder)
database = duckdb.connect(config={"threads": 2})
database.execute("SET enable_progress_bar = false")  # it would go to where the result is written
database.register("t", table)
database.execute("SELECT c0 FROM t LIMIT 1").fetchall()  # threads and pools are there
sums = ", ".join(f"sum(c{i})" for i in range(8))
with PeakMemory() as memory:
    if how == "duckdb":
        rows = database.execute(f"SELECT count(*), {sums} FROM t").fetchone()[0]
    else:
        rows = sum(batch.num_rows for batch in table.to_reader())
print(json.dumps({"rows": rows, "grown": memory.grown}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("numbers") / "data"
    numbers = np.random.default_rng(1)
    with fluss_df.connect(str(made)) as connection:
        for _ in range(4):
            columns = {f"c{i}": numbers.integers(0, 2**62, ROWS // 4) for i in range(8)}
            fluss_df.write_fluss(
                pl.DataFrame(columns), "numbers", connection=connection, create_if_not_exists=True
            )
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["reader", "duckdb"])
def test_memory_does_not_grow_with_the_table(folder: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READER, str(folder), how],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == ROWS
    assert found["grown"] < CAP < ROWS * 64
    print(f"{how}: grown by {found['grown'] >> 20} MB")
