"""Ten threads with a writer and a scanner each, on one connection.

``python -m tests.campaigns.threads [seconds]`` runs it for a minute on a cluster of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster

BUCKETS = 3
THREADS = 10
_PAUSE_S = 0.2
_MOST_WAITED_S = 120
SCHEMA = pa.schema([("writer", pa.int32()), ("n", pa.int64())])


class Follower:
    """Reads all buckets; offsets of a bucket must follow one another without a gap.

    Parameters
    ----------
    table
        The table.
    records
        Whether to read records, rather than batches.
    """

    def __init__(self, table: fluss.FlussTable, *, records: bool) -> None:
        self._records = records
        scan = table.new_scan()
        self.scanner = (
            scan.create_log_scanner() if records else scan.create_record_batch_log_scanner()
        )
        self.scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), 0))
        self._next_offset = dict.fromkeys(range(BUCKETS), 0)
        # the next number of each writer in each bucket is larger
        self._last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        self._seen: dict[int, set[int]] = defaultdict(set)

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(self._next_offset.values())

    @property
    def seen(self) -> dict[int, int]:
        """How many different rows of each writer were read."""
        return {writer: len(numbers) for writer, numbers in self._seen.items()}

    def poll(self, timeout_ms: int) -> None:
        """Read what there is."""
        if self._records:
            for bucket, found in self.scanner.poll(timeout_ms).items():
                first = self._next_offset[bucket.bucket_id]
                offsets = [record.offset for record in found]
                assert offsets == list(range(first, first + len(offsets))), (bucket, first)
                rows = [(record.row["writer"], record.row["n"]) for record in found]
                self._take(bucket.bucket_id, rows)
            return
        for batch in self.scanner.poll_record_batch(timeout_ms):
            assert batch.base_offset == self._next_offset[batch.bucket.bucket_id]
            writers, numbers = (column.to_pylist() for column in batch.batch.columns)
            self._take(batch.bucket.bucket_id, list(zip(writers, numbers, strict=True)))

    def _take(self, bucket: int, rows: list[tuple[int, int]]) -> None:
        self._next_offset[bucket] += len(rows)
        for writer, n in rows:
            assert n > self._last[writer, bucket], (writer, bucket, n)
            self._last[writer, bucket] = n
            self._seen[writer].add(n)


def write(writer: fluss.AppendWriter, number: int, rows: int) -> int:
    """Write rows one by one or as a frame, behind the first ``rows``; return how many."""
    size = 1 + (rows * 7 + number) % 250
    if size % 3:
        block = {"writer": [number] * size, "n": range(rows, rows + size)}
        writer.write_arrow(pa.table(block, schema=SCHEMA))
    else:
        for n in range(rows, rows + size):
            writer.append((number, n))
    if size % 4 == 0:
        # alone, and waited for
        writer.append((number, rows + size)).wait()
        size += 1
    if size % 5 == 0:
        writer.flush()
    return size


def write_and_follow(
    table: fluss.FlussTable, number: int, end: float, written: dict[int, int], all_written: Barrier
) -> dict[int, int]:
    """Write and read by turns until the time is over, then read the rest; return what was read."""
    follower = Follower(table, records=number % 2 == 0)
    with follower.scanner:
        with table.new_append().create_writer() as writer:
            rows = 0
            while time.monotonic() < end:
                rows += write(writer, number, rows)
                follower.poll(10)
                # readers in Python must keep up with the writers
                time.sleep(_PAUSE_S)
        written[number] = rows
        all_written.wait(_MOST_WAITED_S)
        expected = sum(written.values())
        end = time.monotonic() + _MOST_WAITED_S
        while follower.rows < expected and time.monotonic() < end:
            follower.poll(200)
    assert follower.rows == expected, "rows were lost or doubled"
    return follower.seen


def campaign(connection: fluss.FlussConnection, path: fluss.TablePath, seconds: float) -> int:
    """Run it on a new table; return how many rows were written.

    Raises
    ------
    AssertionError
        When a thread saw other rows than all of them wrote.
    """
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    written: dict[int, int] = {}
    all_written = Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        end = time.monotonic() + seconds
        threads = [
            pool.submit(write_and_follow, table, number, end, written, all_written)
            for number in range(THREADS)
        ]
        for done in threads:
            assert done.result() == written
    return sum(written.values())


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        rows = campaign(connection, fluss.TablePath("fluss", "threads"), seconds)
    print(f"{rows} rows by {THREADS} threads, each seen once and in order by each of them")


if __name__ == "__main__":
    main()
