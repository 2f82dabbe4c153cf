"""A scan of a table ten times larger than a memory cap streams within that cap."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss

CAP = 200 << 20
ROWS = 49_000_000  # 43 bytes each
CHUNK = 1_000_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("at", pa.int64())]
)

# what runs in a process of its own, for its memory alone is measured
READER = """
import json, sys
import polars as pl
import fluss_df
from tests.memory import PeakMemory

address, table = sys.argv[1:]
scan = fluss_df.scan_fluss(table, connection=address)
query = scan.select(
    pl.len(), pl.col("id").sum(), pl.col("name").str.len_bytes().sum(), pl.col("score").max(),
    pl.col("at").max(),
)
scan.head(1).collect()  # threads and pools are there
with PeakMemory() as memory:
    answer = query.collect(engine="streaming")
print(json.dumps({"before": memory.before, "peak": memory.peak, "answer": answer.rows()[0]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_table_streams_within_a_cap(connection: fluss.FlussConnection) -> None:
    path = fluss.TablePath("fluss", "large")
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=4)
    connection.get_admin().create_table(path, descriptor)
    rng = np.random.default_rng(3)
    names = pa.array([f"customer-{i:06}" for i in range(10_000)])
    size, highest = 0, 0.0
    with connection.get_table(path).new_append().create_writer() as writer:
        for start in range(0, ROWS, CHUNK):
            score = rng.random(CHUNK)
            chunk = pa.table(
                [
                    pa.array(np.arange(start, start + CHUNK)),
                    names.take(pa.array(rng.integers(0, len(names), CHUNK))),
                    pa.array(score),
                    pa.array(np.arange(start, start + CHUNK) * 1000),
                ],
                schema=SCHEMA,
            )
            size += chunk.nbytes
            highest = max(highest, float(score.max()))
            writer.write_arrow(chunk)

    address = connection.config.bootstrap_servers
    command = [sys.executable, "-c", READER, address, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    seen = json.loads(result.stdout)
    total = ROWS * (ROWS - 1) // 2
    assert seen["answer"] == [ROWS, total, ROWS * 15, highest, (ROWS - 1) * 1000]
    grown = seen["peak"] - seen["before"]
    print(f"table {size >> 20} MiB, grown by {grown >> 20} MiB, to {seen['peak'] >> 20} MiB")
    assert size >= 10 * CAP
    assert grown <= CAP
