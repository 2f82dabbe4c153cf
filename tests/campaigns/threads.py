"""Several writers and scanners on one connection, from many threads.

``python -m tests.campaigns.threads [seconds]`` runs it for a minute on a cluster of its own.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

BUCKETS = 3
WRITERS = 5
SCANNERS = 5
_PAUSE_S = 0.2
SCHEMA = pa.schema([("writer", pa.int32()), ("n", pa.int64())])


def write(table: fluss.FlussTable, number: int, end: float) -> int:
    """Write rows one by one and in frames until the time is over; return how many."""
    rows = 0
    with table.new_append().create_writer() as writer:
        while time.monotonic() < end:
            size = 1 + (rows * 7 + number) % 500
            if size % 3:
                block = {"writer": [number] * size, "n": range(rows, rows + size)}
                writer.write_arrow(pa.table(block, schema=SCHEMA))
            else:
                for n in range(rows, rows + size):
                    writer.append((number, n))
            rows += size
            if size % 5 == 0:
                writer.flush()
            # readers in Python must keep up with the writers
            time.sleep(_PAUSE_S)
    return rows


def follow(
    table: fluss.FlussTable, records: bool, everything_written: threading.Event, expected: list[int]
) -> dict[int, int]:
    """Read until all is seen that was written; return the rows seen of each writer.

    Offsets of a bucket must follow one another without a gap.
    """
    scan = table.new_scan()
    scanner = scan.create_log_scanner() if records else scan.create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), 0))
    next_offset = dict.fromkeys(range(BUCKETS), 0)
    seen: dict[int, set[int]] = defaultdict(set)
    end = time.monotonic() + 120
    with scanner:
        while time.monotonic() < end:
            if records:
                for bucket, found in scanner.poll(200).items():
                    offsets = [record.offset for record in found]
                    first = next_offset[bucket.bucket_id]
                    assert offsets == list(range(first, first + len(offsets))), (bucket, first)
                    next_offset[bucket.bucket_id] = first + len(offsets)
                    for record in found:
                        seen[record.row["writer"]].add(record.row["n"])
            else:
                for batch in scanner.poll_record_batch(200):
                    assert batch.base_offset == next_offset[batch.bucket.bucket_id]
                    next_offset[batch.bucket.bucket_id] = batch.last_offset + 1
                    writers, numbers = (column.to_pylist() for column in batch.batch.columns)
                    for writer, n in zip(writers, numbers, strict=True):
                        seen[writer].add(n)
            if everything_written.is_set() and sum(next_offset.values()) >= sum(expected):
                break
    assert sum(next_offset.values()) == sum(expected), "rows were lost or doubled"
    return {writer: len(numbers) for writer, numbers in seen.items()}


def campaign(connection: fluss.FlussConnection, path: fluss.TablePath, seconds: float) -> int:
    """Run it on a new table; return how many rows were written.

    Raises
    ------
    AssertionError
        When a scanner saw other rows than the writers wrote.
    """
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    connection.get_admin().list_offsets(path, range(BUCKETS), fluss.OffsetSpec.latest())
    done = threading.Event()
    expected: list[int] = []
    with ThreadPoolExecutor(WRITERS + SCANNERS) as pool:
        end = time.monotonic() + seconds
        reading = [
            pool.submit(follow, table, number % 2 == 0, done, expected)
            for number in range(SCANNERS)
        ]
        writing = [pool.submit(write, table, number, end) for number in range(WRITERS)]
        try:
            expected += [future.result() for future in writing]
        finally:
            done.set()
        for future in reading:
            assert future.result() == dict(enumerate(expected))
    return sum(expected)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        rows = campaign(connection, fluss.TablePath("fluss", "threads"), seconds)
    print(f"{rows} rows by {WRITERS} writers, each seen once by {SCANNERS} scanners")


if __name__ == "__main__":
    main()
