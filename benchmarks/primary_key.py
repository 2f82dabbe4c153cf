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

import fluss as official
import numpy as np
import pyarrow as pa

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LOOKUP

BUCKETS = 4
PATH = fluss.TablePath("fluss", "bench")
# both clients write the same rows one by one, each to a table of its own
ROWS_PATH = fluss.TablePath("fluss", "bench_rows")
THEIR_PATH = fluss.TablePath("fluss", "bench_official")
LOOKUPS = 200


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


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of some rounds."""
    took = []
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def report(what: str, ours: float, theirs: float | None, count: int) -> None:
    """Print one line."""
    beside = "" if theirs is None else f"   official {theirs * 1e3:10.2f} ms  x{theirs / ours:.1f}"
    print(f"{what:32} {ours * 1e3:10.2f} ms {count / ours:12,.0f}/s{beside}", flush=True)


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
        LocalCluster(folder) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        schema = fluss.Schema(data.schema, primary_keys=["id"])
        for path in (PATH, ROWS_PATH, THEIR_PATH):
            descriptor = fluss.TableDescriptor(schema, bucket_count=BUCKETS)
            connection.get_admin().create_table(path, descriptor)
        run(connection, cluster.bootstrap_servers, data, options)


def run(
    connection: fluss.FlussConnection,
    address: str,
    data: pa.Table,
    options: argparse.Namespace,
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
    table = connection.get_table(PATH)
    rounds = options.rounds

    def upsert() -> None:
        with table.new_upsert().create_writer() as writer:
            writer.write_arrow(data)

    def upsert_rows() -> None:
        with connection.get_table(ROWS_PATH).new_upsert().create_writer() as writer:
            for row in their_rows:
                writer.upsert(row)

    async def their_upsert() -> None:
        writer = their_table.new_upsert().create_writer()
        for row in their_rows:
            writer.upsert(row)
        await writer.flush()

    report("upsert from Arrow", seconds(upsert, rounds), None, data.num_rows)
    theirs = seconds(lambda: loop.run_until_complete(their_upsert()), rounds)
    report("upsert of dicts", seconds(upsert_rows, rounds), theirs, len(their_rows))

    lookuper = table.new_lookup().create_lookuper()
    cluster = connection.cluster
    table_id = table.get_table_info().table_id

    async def empty() -> None:
        node = await cluster.leader(PATH, fluss.TableBucket(table_id, 0))
        server = await cluster.connection_to(node)
        await server.request(LOOKUP, pb.LookupRequest(table_id=table_id), 5000)

    async def their_lookups(count: int) -> None:
        theirs = their_table.new_lookup().create_lookuper()
        for i in range(count):
            await theirs.lookup([i])

    def lookups() -> None:
        for i in range(LOOKUPS):
            lookuper.lookup([i])

    few = 10
    theirs = seconds(lambda: loop.run_until_complete(their_lookups(few)), 1) / few
    report("one lookup", seconds(lookups, rounds) / LOOKUPS, theirs, 1)
    trips = seconds(lambda: [cluster.io.run(empty()) for _ in range(LOOKUPS)], rounds)
    report("an empty request", trips / LOOKUPS, None, 1)
    keys = pa.table({"id": np.random.default_rng(1).integers(0, data.num_rows, 100_000)})
    report(
        "lookup of 100,000 keys",
        seconds(lambda: lookuper.lookup_arrow(keys), rounds),
        None,
        100_000,
    )

    def changelog() -> pa.Table:
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        return scanner.to_arrow()

    report("changelog", seconds(changelog, rounds), None, changelog().num_rows)
    scan = table.new_scan()
    whole = seconds(lambda: scan.create_snapshot_scanner().to_arrow(), rounds)
    report("whole table", whole, None, data.num_rows)
    loop.run_until_complete(closed())
    loop.close()


if __name__ == "__main__":
    main()
