"""Peers that send and never read, or begin and never end: they wait, and others are served."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss, EngineOptions, Limits
from fluss_df.engine.serve.memory_limit import MemoryLimit
from fluss_df.errors import ErrorCode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.client.support import Tables
from tests.embedded.raw import RawClient
from tests.embedded.test_serving import alive
from tests.memory import PeakMemory, anonymous_memory
from tests.waiting import wait_until

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


def held(engine: EmbeddedFluss) -> int:
    return engine._connections.memory.held


def wait_for(engine: EmbeddedFluss, count: int) -> None:
    wait_until(lambda: held(engine) == count, 20)
    assert held(engine) == count


def test_answers_that_nobody_takes(tmp_path: Path) -> None:
    """800 MB are asked for and not read: a few answers are made, and later all of them come."""
    limits = Limits(connection_bytes=32 * MB)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        request = fetch(big_table(engine, 16 * MB), 8 * MB)
        before = anonymous_memory()
        with RawClient(engine.address, timeout=60) as client:
            for _ in range(100):
                client.send(1015, 0, request.SerializeToString())
            for _ in range(10):
                time.sleep(0.1)
                # what is on the way to the socket; the rest are slices of files
                assert anonymous_memory() - before < 64 * MB
                assert held(engine) <= 32 * MB
            assert alive(engine)
            answers = {client.receive().request_id for _ in range(100)}
            assert len(answers) == 100
        wait_for(engine, 0)


def test_answers_to_lookups_that_nobody_takes(tmp_path: Path) -> None:
    """The same for answers that are memory: 400 MB of one row, again and again."""
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
            for _ in range(100):
                client.send(1017, 0, request.SerializeToString())
            for _ in range(10):
                time.sleep(0.1)
                assert anonymous_memory() - before < 128 * MB
                assert held(engine) <= 48 * MB
            assert alive(engine)
            answers = {len(client.receive().body) > 4 * MB for _ in range(100)}
            assert answers == {True}
        wait_for(engine, 0)


def test_requests_without_an_end_wait_for_each_other(tmp_path: Path) -> None:
    """800 MB are announced: no more is received than there is room for; who stalls has to go."""
    limits = Limits(total_bytes=64 * MB, stalled_s=1.0)
    header = struct.pack(">ihhi", 40 * MB + 8, 1014, 0, 1)
    request = memoryview(header + bytes(39 * MB))
    with (
        contextlib.ExitStack() as peers,
        EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine,
    ):
        port = int(engine.address.split(":")[1])
        before = anonymous_memory()
        for _ in range(20):
            peer = peers.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            peer.setblocking(False)
            part = request
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
        peers.close()
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
        wait_until(lambda: held(engine), 20)
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


@pytest.fixture(scope="module")
def large_rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedFluss, Any]]:
    """A table of 24 rows of 4 MB."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("data", pa.binary())])
    options = EngineOptions(durability="none", answer_bytes=64 * MB)
    folder = tmp_path_factory.mktemp("large")
    with (
        EmbeddedFluss(
            folder / "d", port=0, options=options, limits=Limits(total_bytes=128 * MB)
        ) as engine,
        engine.connection() as connection,
    ):
        table = Tables(connection, "fluss")(schema, ["id"])
        with table.new_upsert().create_writer() as writer:
            for i in range(24):
                data = np.random.default_rng(i).bytes(4 * MB)
                writer.write_arrow(pa.table({"id": [i], "data": [data]}, schema=schema))
                writer.flush()
        yield engine, table


@pytest.mark.parametrize("what", ["one row", "many rows", "prefix", "limit"])
def test_an_answer_that_is_too_large_is_refused(
    large_rows: tuple[EmbeddedFluss, Any], what: str
) -> None:
    """96 MB, or the same 4 MB a thousand times, are asked for in one request: 64 MB may be."""
    engine, table = large_rows
    table_id = table.get_table_info().table_id
    keys = {"one row": [b"\x01"] * 1000, "many rows": [bytes([i]) for i in range(24)]}
    with PeakMemory() as memory, RawClient(engine.address, timeout=60) as client:
        if what == "limit":
            answer = client.call(
                api.LIMIT_SCAN, pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=10**9)
            )
            few = client.call(
                api.LIMIT_SCAN, pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=2)
            )
            fits = len(few.records) > 8 * MB
        elif what == "prefix":
            bucket = pb.PrefixLookupRequestForBucket(bucket_id=0, keys=[b"\x01", b""])
            request = pb.PrefixLookupRequest(table_id=table_id, buckets_req=[bucket])
            answer = client.call(api.PREFIX_LOOKUP, request).buckets_resp[0]
            assert not answer.value_lists
            del bucket.keys[1]
            request = pb.PrefixLookupRequest(table_id=table_id, buckets_req=[bucket])
            few = client.call(api.PREFIX_LOOKUP, request).buckets_resp[0]
            fits = len(few.value_lists[0].values[0]) > 4 * MB
        else:
            asked = pb.LookupRequestForBucket(bucket_id=0, keys=keys[what])
            answer = client.call(
                api.LOOKUP, pb.LookupRequest(table_id=table_id, buckets_req=[asked])
            ).buckets_resp[0]
            del asked.keys[5:]
            few = client.call(
                api.LOOKUP, pb.LookupRequest(table_id=table_id, buckets_req=[asked])
            ).buckets_resp[0]
            fits = [len(value.values) > 4 * MB for value in few.values] == [True] * 5
    assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "67,108,864 bytes" in answer.error_message
    assert fits
    assert memory.grown < 256 * MB


def test_a_client_that_asks_for_too_much_asks_again_for_less(
    large_rows: tuple[EmbeddedFluss, Any],
) -> None:
    _, table = large_rows
    found = table.new_lookup().create_lookuper().lookup_arrow(pa.table({"id": range(25)}))
    sizes = [len(data) for data in found["data"].to_pylist() if data is not None]
    assert sizes == [4 * MB] * 24


def test_answers_of_many_that_nobody_takes(large_rows: tuple[EmbeddedFluss, Any]) -> None:
    """Peers ask for 48 MB each and read nothing: few answers are made, and others go on."""
    engine, table = large_rows
    keys = [bytes([number]) for number in range(12)]
    bucket = pb.LookupRequestForBucket(bucket_id=0, keys=keys)
    request = pb.LookupRequest(
        table_id=table.get_table_info().table_id, buckets_req=[bucket]
    ).SerializeToString()
    answers = engine._connections.answers
    before = anonymous_memory()
    with contextlib.ExitStack() as close:
        clients = [close.enter_context(RawClient(engine.address, timeout=60)) for _ in range(20)]
        for client in clients:
            client.send(1017, 0, request)
        for _ in range(10):
            time.sleep(0.1)
            # eight answers: each is expected to have 16 MB, until it is known
            assert answers.held < 400 * MB
            # also what making them takes; all twenty would be 960 MB
            assert anonymous_memory() - before < 550 * MB
        assert alive(engine)
        for client in clients[:17]:
            client.close()
        for client in clients[17:]:
            assert len(client.receive().body) > 48 * MB
    wait_for(engine, 0)
    assert answers.held == 0
