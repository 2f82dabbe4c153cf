"""Peers that send and never read, or begin and never end: they wait, and others are served."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss, Limits
from fluss_df.embedded.memory_limit import MemoryLimit
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.client.support import Tables
from tests.embedded.raw import RawClient
from tests.memory import anonymous_memory

MB = 1 << 20


def big_table(engine: EmbeddedFluss, size: int) -> int:
    """Return the id of a table with so many bytes."""
    schema = pa.schema([("n", pa.int64())])
    with engine.connection() as connection:
        tables = Tables(connection, "fluss")
        table = tables(schema, properties={"table.log.arrow.compression.type": "NONE"})
        numbers = np.arange(size // 8)
        tables.write(table, pa.table({"n": numbers}, schema=schema))
        return table.get_table_info().table_id


def fetch(table_id: int, size: int) -> pb.FetchLogRequest:
    bucket = pb.FetchLogRequestForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=size)
    asked = pb.FetchLogRequestForTable(
        table_id=table_id, projection_pushdown_enabled=False, buckets_req=[bucket]
    )
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=size, max_wait_ms=0, tables_req=[asked]
    )


def alive(engine: EmbeddedFluss) -> bool:
    with RawClient(engine.address) as client:
        return "fluss" in client.call(api.LIST_DATABASES, pb.ListDatabasesRequest()).database_name


def held(engine: EmbeddedFluss) -> int:
    return engine._connections.memory.held


def wait_for(engine: EmbeddedFluss, count: int) -> None:
    until = time.monotonic() + 20
    while held(engine) != count and time.monotonic() < until:
        time.sleep(0.05)
    assert held(engine) == count


def test_answers_that_nobody_takes(tmp_path: Path) -> None:
    """1.6 GB are asked for and not read: a few answers are made, and later all of them come."""
    limits = Limits(connection_bytes=32 * MB)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        request = fetch(big_table(engine, 16 * MB), 8 * MB)
        before = anonymous_memory()
        with RawClient(engine.address, timeout=60) as client:
            for _ in range(200):
                client.send(1015, 0, request.SerializeToString())
            for _ in range(10):
                time.sleep(0.1)
                # what is on the way to the socket; the rest are slices of files
                assert anonymous_memory() - before < 64 * MB
                assert held(engine) <= 32 * MB
            assert alive(engine)
            answers = {client.receive().request_id for _ in range(200)}
            assert len(answers) == 200
        wait_for(engine, 0)


def test_answers_to_lookups_that_nobody_takes(tmp_path: Path) -> None:
    """The same for answers that are memory: 800 MB of one row, again and again."""
    limits = Limits(connection_bytes=32 * MB)
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary())])
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        with engine.connection() as connection:
            table = Tables(connection, "fluss")(schema, ["id"])
            with table.new_upsert().create_writer() as writer:
                writer.write_arrow(pa.table({"id": [1], "data": [bytes(MB)]}, schema=schema))
            table_id = table.get_table_info().table_id
        bucket = pb.LookupRequestForBucket(bucket_id=0, keys=[b"\x01"] * 4)
        request = pb.LookupRequest(table_id=table_id, buckets_req=[bucket])
        before = anonymous_memory()
        with RawClient(engine.address, timeout=60) as client:
            for _ in range(200):
                client.send(1017, 0, request.SerializeToString())
            for _ in range(10):
                time.sleep(0.1)
                assert anonymous_memory() - before < 128 * MB
                assert held(engine) <= 48 * MB
            assert alive(engine)
            answers = {len(client.receive().body) > 4 * MB for _ in range(200)}
            assert answers == {True}
        wait_for(engine, 0)


def test_requests_without_an_end_wait_for_each_other(tmp_path: Path) -> None:
    """800 MB are announced: no more is received than there is room for; who stalls has to go."""
    limits = Limits(total_bytes=64 * MB, stalled_s=1.0)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        peers = []
        before = anonymous_memory()
        for _ in range(20):
            peer = socket.create_connection(("127.0.0.1", int(engine.address.split(":")[1])), 10)
            peer.setblocking(False)
            peers.append(peer)
            header = struct.pack(">ihhi", 40 * MB + 8, 1014, 0, 1)
            part = memoryview(header + bytes(39 * MB))
            until = time.monotonic() + 0.1
            while part and time.monotonic() < until:
                try:
                    part = part[peer.send(part) :]
                except BlockingIOError:
                    time.sleep(0.005)
        assert held(engine) <= 64 * MB
        assert anonymous_memory() - before < 128 * MB
        # a small request has its turn after those that came before it, at the latest
        with RawClient(engine.address, timeout=60) as client:
            assert client.call(api.LIST_DATABASES, pb.ListDatabasesRequest()).database_name
        for peer in peers:
            peer.close()
        wait_for(engine, 0)


def test_a_request_over_the_limit_is_taken_alone(tmp_path: Path) -> None:
    limits = Limits(connection_bytes=1 * MB, total_bytes=1 * MB)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        table_id = big_table(engine, 1 * MB)
        with RawClient(engine.address, timeout=30) as client:
            part = pb.ProduceLogRequestForBucket(bucket_id=0, records=bytes(8 * MB))
            body = pb.ProduceLogRequest(
                acks=-1, table_id=table_id, timeout_ms=1000, buckets_req=[part]
            ).SerializeToString()
            for _ in range(5):
                client.send(1014, 0, body)
            assert [client.receive().request_id for _ in range(5)] == [1, 2, 3, 4, 5]
        wait_for(engine, 0)


@pytest.mark.parametrize("count", [1, 50])
def test_peers_that_go_away_give_back_what_they_held(tmp_path: Path, count: int) -> None:
    with EmbeddedFluss(tmp_path / "d", port=0) as engine:
        request = fetch(big_table(engine, 4 * MB), 4 * MB)
        clients = [RawClient(engine.address) for _ in range(count)]
        for client in clients:
            for _ in range(40):
                client.send(1015, 0, request.SerializeToString())
            client.socket.sendall(struct.pack(">ihhi", 10 * MB, 1014, 0, 1))
        time.sleep(0.3)
        assert held(engine)
        for client in clients:
            client.close()
        wait_for(engine, 0)
        assert alive(engine)


def test_room_is_given_in_the_order_it_was_asked_for() -> None:
    limit = MemoryLimit(10)
    turns: list[str] = []
    assert limit.take(6, lambda: None)
    assert not limit.take(5, lambda: turns.append("first"))
    # it would fit, and does not pass by
    assert not limit.take(1, lambda: turns.append("second"))
    assert limit.crowded
    limit.give(6)
    assert turns == ["first", "second"]
    assert (limit.held, limit.crowded) == (6, False)
    limit.give(6)
    assert limit.take(99, lambda: None)
