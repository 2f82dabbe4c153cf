"""Union reads while a writer writes as fast as it can, and its tables are tiered and expired.

Each read is a state that there was: of a log all numbers up to one, each once; of a primary-key
table all keys of one batch; at least what was acknowledged before the read began, and nothing that
was not sent when it ended. Snapshots of the lake expire meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from rich.progress import track

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from tests.lake_tables import create_lake_table

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
COLUMNS = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])
KEYS = 1000
ROWS = 1000
# for longer than a read takes
KEEP_S = 60


def write(address: str, kind: str, file: Path) -> None:
    """Write batches for good; the file has how many were sent and how many acknowledged."""
    counts = np.memmap(file, dtype=np.int64, mode="r+", shape=(2,))
    with fluss.connect(address) as connection:
        for number in range(10**9):
            counts[0] = number + 1
            start = 0 if kind == "keys" else number * ROWS
            frame = pl.DataFrame({"id": np.arange(start, start + ROWS)}).select(
                "id", version=pl.lit(number, pl.Int64), text=pl.format("text {}", pl.col("id"))
            )
            fluss.write_fluss(frame, kind, connection=connection)
            counts[1] = number + 1


def check(kind: str, found: pl.DataFrame, acknowledged: int, sent: int) -> int:
    """Hold a state against what was written; return the number of batches in it."""
    row = found.row(0, named=True)
    batches: int
    if kind == "log":
        assert row["rows"] == row["ids"], row
        batches, rest = divmod(row["rows"], ROWS)
        # a batch of rows may be several of Fluss
        assert row["last"] == (None if not row["rows"] else row["rows"] - 1), row
        assert row["sum"] == row["rows"] * (row["rows"] - 1) // 2, row
        batches += bool(rest)
    else:
        assert (row["rows"], row["ids"]) in ((0, 0), (KEYS, KEYS)), row
        assert row["versions"] in (0, 1), row
        batches = 0 if row["newest"] is None else row["newest"] + 1
    assert acknowledged <= batches <= sent, (acknowledged, batches, sent)
    return batches


def state(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return what is asked of a table."""
    return frame.select(
        rows=pl.len(),
        ids=pl.col("id").n_unique(),
        last=pl.col("id").max(),
        sum=pl.col("id").sum(),
        versions=pl.col("version").n_unique(),
        newest=pl.col("version").max(),
    )


@contextlib.contextmanager
def server(engine: str) -> Iterator[tuple[str, LocalCluster | None]]:
    """Start a server whose tables are tiered, and stop it in the end."""
    if engine == "embedded":
        options = EngineOptions(lake_snapshots_s=KEEP_S)
        with (
            tempfile.TemporaryDirectory() as folder,
            EmbeddedFluss(folder, port=0, options=options) as embedded,
        ):
            yield embedded.address, None
        return
    with LocalCluster(datalake="iceberg") as cluster:
        program = "from fluss_df.cli import app; app()"
        arguments = ["tier", "--connection", cluster.bootstrap_servers]
        arguments += ["--keep-snapshots", f"{KEEP_S}s"]
        service = subprocess.Popen([sys.executable, "-c", program, *arguments])
        try:
            yield cluster.bootstrap_servers, cluster
        finally:
            service.terminate()
            service.wait()


def run(reads: int, engine: str) -> None:
    """Read, and say what was read."""
    with server(engine) as (address, cluster), tempfile.TemporaryDirectory() as folder:
        with fluss.connect(address) as connection:
            for kind in ("log", "keys"):
                schema = fluss.Schema(COLUMNS, ["id"] if kind == "keys" else None)
                create_lake_table(
                    cluster,
                    connection,
                    fluss.TablePath("fluss", kind),
                    fluss.TableDescriptor(schema, bucket_count=1, properties=LAKE),
                )
        writers, counts = [], {}
        for kind in ("log", "keys"):
            file = Path(folder) / kind
            file.write_bytes(bytes(16))
            counts[kind] = np.memmap(file, dtype=np.int64, mode="r", shape=(2,))
            arguments = ["--write", kind, "--address", address, "--file", str(file)]
            writers.append(
                subprocess.Popen([sys.executable, "-m", "tests.campaigns.lake_reads", *arguments])
            )
        seen: Counter[str] = Counter()
        snapshots: dict[str, set[int]] = {kind: set() for kind in counts}
        began = time.monotonic()
        try:
            with fluss.connect(address) as connection:
                for number in track(range(reads), "reading"):
                    kind = ("log", "keys")[number % 2]
                    query = state(fluss.scan_fluss(kind, connection=connection))
                    acknowledged = int(counts[kind][1])
                    found = query.collect(engine=("streaming", "in-memory")[number // 2 % 2])
                    batches = check(kind, found, acknowledged, int(counts[kind][0]))
                    seen[kind] = max(seen[kind], batches)
                    with contextlib.suppress(fluss.FlussError):  # there is none yet
                        path = fluss.TablePath("fluss", kind)
                        newest = connection.get_admin().get_latest_lake_snapshot(path)
                        snapshots[kind].add(newest.snapshot_id)
                    assert all(writer.poll() is None for writer in writers)
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        took = time.monotonic() - began
    for kind, batches in seen.items():
        print(
            f"{kind}: {batches * ROWS:,} rows written in {took:.0f} s, {len(snapshots[kind])} lake"
            " snapshots seen"
        )
    print(f"{reads} reads, each of a state that there was")
    assert all(len(found) > 1 for found in snapshots.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--engine", choices=["cluster", "embedded"], default="cluster")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.address, given.write, given.file)
    else:
        run(given.reads, given.engine)
