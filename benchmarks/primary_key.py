"""Primary-key tables beside the official client: ``python -m benchmarks.primary_key``.

Upserts, single lookups beside an empty request's round trip, many lookups, the changelog and the
whole table, on a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import fluss as official
import numpy as np
import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LOOKUP

BUCKETS = 4
# snapshots soon, for scans of the table; and servers from 1.0 on refuse writes on a full disk
OPTIONS = {"kv.snapshot.interval": "5s", "server.data-disk.write-limit-ratio": "1.0"}
PATH = fluss.TablePath("fluss", "bench")
# the same rows are written in each way, each to a table of its own
ROWS_PATH = fluss.TablePath("fluss", "bench_rows")
ARROW_PATH = fluss.TablePath("fluss", "bench_arrow")
THEIR_PATH = fluss.TablePath("fluss", "bench_official")
LOOKUPS = 200
# each of theirs takes 100 ms
THEIR_LOOKUPS = 10


def rows(count: int) -> pa.Table:
    """Return rows of four columns in random order."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": rng.permutation(count),
            "name": [f"name {i}" for i in range(count)],
            "score": rng.random(count),
            "kind": pa.array(rng.integers(0, 1000, count), pa.int32()),
        }
    )


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock and of this process's CPU, for one of what was done."""

    wall: float
    cpu: float

    def of(self, count: float) -> Cost:
        """Return the cost of one of so many."""
        return Cost(self.wall / count, self.cpu / count)


def costs(rounds: int, *works: Callable[[], object]) -> list[Cost]:
    """Return the median cost of each, by turns: what else the machine does hits them alike."""
    took: list[list[Cost]] = [[] for _ in works]
    # What is there already is not looked at by the collections below: that would leave the first
    # milliseconds of each work with cold caches.
    gc.freeze()
    for _ in range(rounds):
        for work, found in zip(works, took, strict=True):
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            found.append(Cost(time.perf_counter() - wall, time.process_time() - cpu))
    return [
        Cost(statistics.median(c.wall for c in found), statistics.median(c.cpu for c in found))
        for found in took
    ]


def report(what: str, ours: Cost, theirs: Cost | None = None) -> None:
    """Print one line about one row, key or request."""
    beside = (
        ""
        if theirs is None
        else f"   official {1 / theirs.wall:11,.0f}/s: x{theirs.wall / ours.wall:.1f}, of its CPU"
        f" {ours.cpu / theirs.cpu:.1%}"
    )
    print(
        f"{what:24} {1 / ours.wall:11,.0f}/s {ours.cpu * 1e6:9.2f} us CPU each{beside}", flush=True
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--official-rows", type=int, default=100_000)
    options = parser.parse_args()
    data = rows(options.rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder, server_options=OPTIONS) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        schema = fluss.Schema(data.schema, primary_keys=["id"])
        for path in (PATH, ROWS_PATH, ARROW_PATH, THEIR_PATH):
            descriptor = fluss.TableDescriptor(schema, bucket_count=BUCKETS)
            connection.get_admin().create_table(path, descriptor)
        run(connection, cluster.bootstrap_servers, data, options)


def run(
    connection: fluss.FlussConnection, address: str, data: pa.Table, options: argparse.Namespace
) -> None:
    """Compare, on tables that exist."""
    loop = asyncio.new_event_loop()
    their_rows = data.slice(0, options.official_rows).to_pylist()

    async def connected() -> tuple[official.FlussConnection, official.FlussTable]:
        # what it does it starts only inside a loop
        config = official.Config({"bootstrap.servers": address})
        client = await official.FlussConnection.create(config)
        path = official.TablePath(THEIR_PATH.database_name, THEIR_PATH.table_name)
        return client, await client.get_table(path)

    async def closed() -> None:
        await client.close()

    client, their_table = loop.run_until_complete(connected())
    # opened beforehand, as theirs is
    table = connection.get_table(PATH)
    arrow_table, rows_table = connection.get_table(ARROW_PATH), connection.get_table(ROWS_PATH)
    rounds = options.rounds

    def upsert() -> None:
        with arrow_table.new_upsert().create_writer() as writer:
            writer.write_arrow(data.slice(0, len(their_rows)))

    def upsert_rows() -> None:
        with rows_table.new_upsert().create_writer() as writer:
            for row in their_rows:
                writer.upsert(row)

    async def their_upsert() -> None:
        writer = their_table.new_upsert().create_writer()
        for row in their_rows:
            writer.upsert(row)
        await writer.flush()

    with table.new_upsert().create_writer() as writer:
        writer.write_arrow(data)
    their_count = len(their_rows)
    ours, by_row, theirs = costs(
        rounds, upsert, upsert_rows, lambda: loop.run_until_complete(their_upsert())
    )
    report("upsert from Arrow", ours.of(their_count), theirs.of(their_count))
    report("upsert of dicts", by_row.of(their_count), theirs.of(their_count))

    lookuper = table.new_lookup().create_lookuper()
    cluster = connection.cluster
    table_id = table.get_table_info().table_id

    async def empty() -> None:
        node = await cluster.leader(PATH, fluss.TableBucket(table_id, 0))
        server = await cluster.connection_to(node)
        await server.request(LOOKUP, pb.LookupRequest(table_id=table_id), 5000)

    async def their_lookups() -> None:
        theirs = their_table.new_lookup().create_lookuper()
        for i in range(THEIR_LOOKUPS):
            await theirs.lookup([i])

    def lookups() -> None:
        for i in range(LOOKUPS):
            lookuper.lookup([i])

    def trips() -> None:
        for _ in range(LOOKUPS):
            cluster.io.run(empty())

    ours, trip, theirs = costs(
        rounds, lookups, trips, lambda: loop.run_until_complete(their_lookups())
    )
    report("one lookup", ours.of(LOOKUPS), theirs.of(THEIR_LOOKUPS))
    report("an empty request", trip.of(LOOKUPS))
    keys = pa.table({"id": np.random.default_rng(1).integers(0, data.num_rows, 100_000)})
    (ours,) = costs(rounds, lambda: lookuper.lookup_arrow(keys))
    report("lookup of 100,000 keys", ours.of(100_000))

    def changelog() -> pa.Table:
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        return scanner.to_arrow()

    async def their_changelog() -> None:
        scanner = await their_table.new_scan().create_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), official.EARLIEST_OFFSET))
        left = their_count
        while left > 0:
            left -= len([(r.change_type, r.offset, r.row) for r in await scanner.poll(500)])

    changes = changelog().num_rows
    ours, theirs = costs(rounds, changelog, lambda: loop.run_until_complete(their_changelog()))
    report("changelog", ours.of(changes), theirs.of(their_count))
    scan = table.new_scan()
    (ours,) = costs(rounds, lambda: scan.create_snapshot_scanner().to_arrow())
    report("whole table", ours.of(data.num_rows))
    loop.run_until_complete(closed())
    loop.close()


if __name__ == "__main__":
    main()
