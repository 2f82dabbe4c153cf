"""How soon Polars sees a row: ``python -m benchmarks.latency``.

From the acknowledgement of a row to the batch of a query that follows its table, and a point lookup
by a filter on the primary key, on a server of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time

import numpy as np
import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

ROWS = 100
LOOKUPS = 200
WARM_UP = 20


def follow(connection: fluss.FlussConnection) -> list[float]:
    """Return the seconds from a row's acknowledgement to the batch it is in, one for each row."""
    schema = pa.schema({"id": pa.int64()})
    path = fluss.TablePath("fluss", "latency_log")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(schema)))
    count = ROWS + WARM_UP
    acknowledged: dict[int, float] = {}
    came: dict[int, float] = {}
    query = fluss.scan_fluss(path, connection=connection, follow=True, max_rows=count)

    def consume() -> None:
        for batch in query.collect_batches():
            now = time.perf_counter()
            came.update(dict.fromkeys(batch["id"], now))

    consumer = threading.Thread(target=consume)
    consumer.start()
    with connection.get_table(path).new_append().create_writer() as writer:
        for i in range(count):
            # not in step with anything
            time.sleep(0.02 + (i * 7 % 13) / 500)
            writer.append([i]).wait()
            acknowledged[i] = time.perf_counter()
    consumer.join(60)
    # a batch can come before its writer hears of it
    return [max(0.0, came[i] - acknowledged[i]) for i in range(WARM_UP, count)]


def look_up(connection: fluss.FlussConnection, rows: int) -> list[float]:
    """Return the seconds of point lookups by filters."""
    path = fluss.TablePath("fluss", "latency_keyed")
    rng = np.random.default_rng(0)
    for start in range(0, rows, 1_000_000):
        ids = np.arange(start, min(rows, start + 1_000_000))
        frame = pl.DataFrame({"id": ids, "score": rng.random(len(ids))})
        frame = frame.with_columns(name=pl.format("name {}", "id"))
        fluss.write_fluss(
            frame,
            path,
            connection=connection,
            create_if_not_exists=True,
            primary_keys=["id"],
            bucket_count=4,
        )
    scan = fluss.scan_fluss(path, connection=connection)
    seconds = []
    for number in rng.integers(0, rows, LOOKUPS + WARM_UP).tolist():
        began = time.perf_counter()
        found = scan.filter(pl.col("id") == number).collect()
        seconds.append(time.perf_counter() - began)
        assert found["name"].item() == f"name {number}"
    return seconds[WARM_UP:]


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table of lookups")
    rows = parser.parse_args().rows
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        for name, seconds, aim_ms in (
            ("acknowledged row to the batch of a following query", follow(connection), 50),
            (f"lookup by a filter on {rows:,} rows", look_up(connection, rows), 5),
        ):
            ms = [value * 1000 for value in seconds]
            print(
                f"{name}: median {statistics.median(ms):.1f} ms,"
                f" 95 % {sorted(ms)[int(len(ms) * 0.95)]:.1f} ms (aim: {aim_ms} ms)"
            )


if __name__ == "__main__":
    main()
