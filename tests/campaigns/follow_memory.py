"""An hour's worth of batches, one a second, at full speed: does memory grow?

``python -m tests.campaigns.follow_memory``: 3,600 frames of a query that follows its
table while another process writes to it, then 3,600 micro-batches of ``run``. Memory that is no
file is compared between the first third, after which everything has its size, and the last.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.io.runs.runner import run
from tests.memory import anonymous_memory

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = 5_000  # of a batch
_LIMIT = 32 << 20

WRITER = """
import sys
import polars as pl
import fluss_df as fluss

address, table, batches, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with fluss.connect(address) as connection:
    with connection.get_table(table).new_append().create_writer() as writer:
        for start in range(0, batches * rows, rows):
            ids = pl.int_range(start, start + rows, eager=True)
            frame = pl.DataFrame({"id": ids, "text": "text " + (ids % 1000).cast(pl.String)})
            writer.write_arrow(frame)
            writer.flush()
"""


class Growth:
    """The most memory in the first third of some batches, and in the last."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.seen = 0
        self.first = self.last = 0

    def batch(self) -> None:
        """Take note of one more."""
        self.seen += 1
        if self.seen <= self.batches // 3:
            self.first = max(self.first, anonymous_memory())
        elif self.seen > self.batches * 2 // 3:
            self.last = max(self.last, anonymous_memory())

    def report(self, what: str, took: float) -> bool:
        """Print it; return whether memory did not grow."""
        grown = self.last - self.first
        print(
            f"{what}: {self.seen} batches in {took:.0f} s; at most {self.first >> 20} MiB in the"
            f" first third, {self.last >> 20} MiB in the last: {grown / (1 << 20):+.1f} MiB"
        )
        return grown <= _LIMIT


def follow(connection: fluss.FlussConnection, path: fluss.TablePath, growth: Growth) -> int:
    """Follow the table while it is written; return how many rows came."""
    batches = growth.batches
    scan = fluss.scan_fluss(
        path, connection=connection, follow=True, start="earliest", max_rows=batches * ROWS
    )
    arguments = [connection.config.bootstrap_servers, str(path), str(batches), str(ROWS)]
    rows = 0
    with subprocess.Popen([sys.executable, "-c", WRITER, *arguments]) as writer:
        for frame in scan.collect_batches(chunk_size=ROWS, lazy=True):
            rows += frame.height
            if frame.height:
                growth.batch()
    if writer.returncode:
        raise SystemExit("the writer failed")
    return rows


def micro_batches(
    connection: fluss.FlussConnection, path: fluss.TablePath, growth: Growth, folder: Path
) -> int:
    """Run over the table batch by batch; return how many rows came."""
    result = run(
        fluss.scan_fluss(path, connection=connection),
        to=lambda frame, number: growth.batch(),
        checkpoint=folder,
        max_batch_rows=ROWS,
    )
    return result.rows_read


def main(
    batches: Annotated[int, typer.Option(help="How many batches of each kind.")] = 3600,
) -> None:
    """Follow a table, then run over it batch by batch."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder, "cluster")) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        path = fluss.TablePath("fluss", "followed")
        connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        good = True
        for what in ("follow", "run"):
            growth = Growth(batches)
            began = time.monotonic()
            if what == "follow":
                rows = follow(connection, path, growth)
            else:
                rows = micro_batches(connection, path, growth, Path(folder, "checkpoint"))
            good &= growth.report(what, time.monotonic() - began)
            if rows != batches * ROWS:
                print(f"{what}: {rows:,} rows came of {batches * ROWS:,}")
                good = False
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    typer.run(main)
