"""Kills of runs of changes, into partitions: equal at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal

from fluss_df.client.connection import FlussConnection
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.metadata import TablePath
from tests.io.conftest import MakeTable

# more of them for a campaign
KILLS = int(os.environ.get("FLUSS_TEST_KILLS", "2"))
SOURCE = pa.schema({"id": pa.int64(), "value": pa.int64()})
TARGET = pa.schema({"id": pa.int64(), "value": pa.int64(), "change": pa.string(), "at": pa.int64()})
RUNNER = """
import sys
from tests.io.test_run_kills import changes
import fluss_df

address, table, target, checkpoint = sys.argv[1:]
fluss_df.run(
    changes(table, fluss_df.connect(address)), to=target, checkpoint=checkpoint,
    max_batch_rows=300, trigger="10ms", create_partitions=True,
)
"""


def changes(table: str | TablePath, connection: FlussConnection) -> pl.LazyFrame:
    """Return the changes of a table, as they are written."""
    return scan_fluss(table, mode="changelog", connection=connection).select(
        "id",
        "value",
        pl.col("_change_type").cast(pl.String).alias("change"),
        pl.col("_log_offset").alias("at"),
    )


def update(connection: FlussConnection, table: TablePath, rng: random.Random) -> None:
    ids = rng.sample(range(400), 200)
    frame = pl.DataFrame({"id": ids, "value": [rng.randrange(100) for _ in ids]})
    with connection.get_table(table).new_upsert().create_writer() as writer:
        writer.write_arrow(frame)
        writer.delete_arrow(frame.head(20).select("id"))


def test_changes_under_updates_into_partitions_killed_at_any_moment(
    connection: FlussConnection, make_table: MakeTable, tmp_path: Path
) -> None:
    source = make_table(SOURCE, primary_keys=["id"], bucket_count=2)
    target = make_table(TARGET, partition_keys=["change"], bucket_count=2)
    checkpoint = tmp_path / "checkpoint"
    rng = random.Random(11)
    address = connection.config.bootstrap_servers
    command = [sys.executable, "-c", RUNNER, address, str(source), str(target), str(checkpoint)]
    for _ in range(KILLS):
        update(connection, source, rng)
        before = len(list(checkpoint.glob("commits/*"))), _newest(checkpoint)
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while (len(list(checkpoint.glob("commits/*"))), _newest(checkpoint)) == before:
            assert process.poll() is None
            assert time.monotonic() < deadline
            update(connection, source, rng)
        for _ in range(rng.randrange(4)):
            update(connection, source, rng)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    query = changes(source, connection)
    run(query, to=target, checkpoint=checkpoint, create_partitions=True)
    order = ["id", "at", "change"]
    found = read_fluss(target, connection=connection).sort(order)
    assert_frame_equal(found, query.collect().sort(order))


def _newest(checkpoint: Path) -> int:
    return max((int(path.stem) for path in checkpoint.glob("commits/*.json")), default=-1)
