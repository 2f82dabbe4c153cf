"""One lookup, one awaited row: ``python -m benchmarks.round_trips``.

Beside the round trip of an empty request to the same server, on the I/O thread as most requests go
and on a bare socket, and beside the official client with its default and with no linger. What
awaits is measured from a loop of its own: it pays for that loop as well.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import fluss as official
import pyarrow as pa

import fluss_df as fluss
import fluss_df.aio as fluss_aio
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.cluster import LocalCluster
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LOOKUP, PRODUCE_LOG, PUT_KV, Api
from fluss_df.protocol.produce import ProduceLog, PutKv
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_batch import Compression, encode_log_batch

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("kind", pa.int32())]
)
LOG = fluss.TablePath("fluss", "trips_log")
KEYED = fluss.TablePath("fluss", "trips_keyed")
KEYS = 10_000
# of ours in a round, and of theirs, each of which takes up to 100 ms
OURS, THEIRS = 500, 10
AIM = 1.5


def row(i: int) -> dict[str, Any]:
    return {"id": i % KEYS, "name": f"name {i}", "score": i / 7, "kind": i % 1000}


def timed(work: Callable[[int], object], count: int) -> list[float]:
    """Return the seconds of each."""
    found = []
    for i in range(count):
        began = time.perf_counter()
        work(i)
        found.append(time.perf_counter() - began)
    return found


class Awaiting:
    """A client whose calls are awaited, with a linger: the official one, or ``fluss_df.aio``."""

    def __init__(self, client: Any, address: str, linger_ms: int | None = None) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open(address, linger_ms))

    async def _open(self, address: str, linger_ms: int | None) -> None:
        client = self._client
        config = client.Config({"bootstrap.servers": address})
        if linger_ms is not None:
            config.writer_batch_timeout_ms = linger_ms
        self._connection = await client.FlussConnection.create(config)
        log = await self._connection.get_table(client.TablePath("fluss", LOG.table_name))
        keyed = await self._connection.get_table(client.TablePath("fluss", KEYED.table_name))
        self._append = log.new_append().create_writer()
        self._upsert = keyed.new_upsert().create_writer()
        self._lookup = keyed.new_lookup().create_lookuper()

    def append(self, i: int) -> None:
        async def work() -> None:
            await self._append.append(row(i)).wait()

        self._loop.run_until_complete(work())

    def upsert(self, i: int) -> None:
        async def work() -> None:
            await self._upsert.upsert(row(i)).wait()

        self._loop.run_until_complete(work())

    def lookup(self, i: int) -> None:
        async def work() -> None:
            assert await self._lookup.lookup([i])

        self._loop.run_until_complete(work())

    def close(self) -> None:
        async def work() -> None:
            await self._connection.close()

        self._loop.run_until_complete(work())
        self._loop.close()


def run(connection: fluss.FlussConnection, address: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each kind of request; all kinds by turns, in rounds."""
    for path, keys in ((LOG, None), (KEYED, ["id"])):
        schema = fluss.Schema(SCHEMA, primary_keys=keys)
        connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
    keyed = connection.get_table(KEYED)
    append = connection.get_table(LOG).new_append().create_writer()
    upsert = keyed.new_upsert().create_writer()
    upsert.write_arrow(pa.Table.from_pylist([row(i) for i in range(KEYS)], SCHEMA))
    upsert.flush()
    lookuper = keyed.new_lookup().create_lookuper()
    table_id = keyed.get_table_info().table_id
    bucket = fluss.TableBucket(table_id, 0)
    cluster = connection.cluster
    nothing = pb.LookupRequest(table_id=table_id)

    async def empty() -> None:
        server = await cluster.connection_to(await cluster.leader(KEYED, bucket))
        await server.request(LOOKUP, nothing, 5000)

    cluster.io.run(empty())
    node = cluster.known_leader(bucket)
    assert node is not None
    lane = lane_pool().take(cluster, cluster.endpoint(node))
    body = [nothing.SerializeToString()]

    def bare(_: int) -> None:
        lane.send(LOOKUP, body, cluster.metrics)
        lane.receive(cluster.metrics)

    log_info = connection.get_table(LOG).get_table_info()
    keyed_info = keyed.get_table_info()
    one = pa.RecordBatch.from_pylist([row(1)], keyed_info.schema.arrow_schema)
    produced = encode_log_batch(
        one.cast(log_info.schema.arrow_schema),
        schema_id=log_info.schema_id,
        compression=Compression.from_properties(log_info.get_properties()),
    )
    put = KvEncoder(keyed_info.schema_id, keyed_info.schema.columns, ["id"]).encode(
        pa.Table.from_batches([one])
    )
    for batch in (produced, put):
        # of no writer: it may be sent over and over
        batch.stamp(-1, -1)
    bodies = {
        api: write.body(acks=-1, timeout_ms=5000, buckets=[(None, 0, batch.buffers)])
        for api, write, batch in (
            (PRODUCE_LOG, ProduceLog(log_info.table_id), produced),
            (PUT_KV, PutKv(keyed_info.table_id), put),
        )
    }

    def sent(api: Api[Any, Any]) -> Callable[[int], object]:
        def work(_: int) -> None:
            lane.send(api, bodies[api], cluster.metrics)
            lane.receive(cluster.metrics)

        return work

    awaiting = {
        "fluss_df.aio": (Awaiting(fluss_aio, address), OURS),
        "official, default linger": (Awaiting(official, address), THEIRS),
        "official, no linger": (Awaiting(official, address, 0), THEIRS),
    }

    def append_and_flush(i: int) -> None:
        append.append(row(i))
        append.flush()

    kinds: dict[str, tuple[Callable[[int], object], int]] = {
        "empty request": (lambda _: cluster.io.run(empty()), OURS),
        "empty request, bare socket": (bare, OURS),
        "the bytes of an append, bare socket": (sent(PRODUCE_LOG), OURS),
        "the bytes of an upsert, bare socket": (sent(PUT_KV), OURS),
        "lookup": (lambda i: lookuper.lookup([i]), OURS),
        "append, awaited": (lambda i: append.append(row(i)).wait(), OURS),
        "append, and flush": (append_and_flush, OURS),
        "upsert, awaited": (lambda i: upsert.upsert(row(i)).wait(), OURS),
    }
    for name, (client, count) in awaiting.items():
        kinds[f"{name}: lookup"] = (client.lookup, count)
        kinds[f"{name}: append"] = (client.append, count)
        kinds[f"{name}: upsert"] = (client.upsert, count)
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, (work, count) in kinds.items():
            seconds = timed(work, count)
            # the first round warms up
            if number:
                found[name] += seconds
    lane_pool().give_back(lane)
    for writer in (append, upsert):
        writer.close()
    for client, _ in awaiting.values():
        client.close()
    return found


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder) as cluster,
        fluss.connect(cluster.bootstrap_servers) as connection,
    ):
        found = run(connection, cluster.bootstrap_servers, options.rounds)
    unit = statistics.median(found["empty request"])
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(
            f"{name:36} {median * 1e6:9,.0f} us, 95 %"
            f" {sorted(seconds)[int(len(seconds) * 0.95)] * 1e6:9,.0f} us:"
            f" {median / unit:8.2f} empty requests (aim of ours: {AIM})"
        )


if __name__ == "__main__":
    main()
