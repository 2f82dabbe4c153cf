"""Peers that ask for much with little, stay and do nothing, or guess: others are served."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions, Limits
from fluss_df.engine.log.writer_states import WriterStates, WrittenBatch
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.wire import bytes_header, varint_field
from fluss_df.record.layout.headers import scan_headers
from tests.client.support import Tables
from tests.embedded import attacking
from tests.embedded.raw import RawClient
from tests.memory import PeakMemory
from tests.record.batches import rows, stored

MB = 1 << 20
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


def make(engine: EmbeddedFluss, buckets: int = 2) -> tuple[int, int]:
    """Return the ids of a table of rows, with 1,000 of them, and of a log."""
    with engine.connection() as connection:
        tables = Tables(connection, "fluss")
        rows = tables(SCHEMA, ["id"], bucket_count=2)
        with rows.new_upsert().create_writer() as writer:
            texts = [str(i) for i in range(1000)]
            writer.write_arrow(pa.table({"id": range(1000), "text": texts}, schema=SCHEMA))
        log = tables(SCHEMA, bucket_count=buckets)
        return rows.get_table_info().table_id, log.get_table_info().table_id


def ask(engine: EmbeddedFluss, key: int, body: bytes) -> tuple[int, str, bytes]:
    """Send bytes as a request; return the error of the answer, or of its only bucket."""
    with RawClient(engine.address, 60) as client:
        client.send(key, 0, body)
        answer = client.receive()
    return *answer.error, answer.body


MUCH = {
    "LIST_OFFSETS": (1021, attacking._offsets(2 * MB)),
    "LIST_OFFSETS, too large": (1021, attacking._offsets(6 * MB)),
    "FETCH_LOG": (1015, attacking._fetch(400_000)),
    "GET_METADATA": (1012, attacking._metadata(3 * MB)),
    "GET_METADATA, too large": (1012, attacking._metadata(20 * MB)),
    "LOOKUP": (1017, attacking._lookup(MB, 3)),
    "PREFIX_LOOKUP": (1034, attacking._prefixes(2 * MB)),
    "PRODUCE_LOG": (1014, attacking._tiny_batches),
    "GET_TABLE_STATS": (
        1059,
        lambda rows, log: varint_field(1, log) + (bytes_header(2, 2) + varint_field(2, 0)) * MB,
    ),
}


@pytest.mark.parametrize("what", MUCH)
def test_much_with_little(engine: EmbeddedFluss, what: str) -> None:
    """A hundred thousands of entries are refused before anything is made of them."""
    key, make_body = MUCH[what]
    body = make_body(*make(engine))
    ask(engine, 1003, b"")
    with PeakMemory() as memory:
        code, message, _ = ask(engine, key, body)
    assert code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "in one request" in message
    # the body is received, and may be copied
    assert memory.grown < 3 * len(body) + 40 * MB


@pytest.mark.parametrize(("count", "taken"), [(128 << 10, True), ((128 << 10) + 1, False)])
def test_rows_of_one_batch(engine: EmbeddedFluss, count: int, taken: bool) -> None:
    rows, log = make(engine)
    code, _, answer = ask(engine, 1016, attacking._put(count)(rows, log))
    assert code == 0
    (bucket,) = pb.PutKvResponse.FromString(answer).buckets_resp
    assert (bucket.error_code == 0) is taken
    if not taken:
        assert bucket.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "a batch of 131,073 rows" in bucket.error_message
        assert "write fewer at once (such as 65,536 rows)" in bucket.error_message


def test_tiny_rows(engine: EmbeddedFluss) -> None:
    rows, _ = make(engine)
    body = attacking._tiny_rows(rows, 0)
    with PeakMemory() as memory:
        code, _, answer = ask(engine, 1016, body)
    assert code == 0
    (bucket,) = pb.PutKvResponse.FromString(answer).buckets_resp
    assert bucket.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    # the request twice in its sender, and once in the server
    assert memory.grown < 3 * len(body) + 40 * MB


def test_metadata_of_one_large_table_again_and_again(tmp_path: Path) -> None:
    """Forty kilobytes of names ask for 400 MB of buckets."""
    options = EngineOptions(answer_bytes=16 * MB)
    with EmbeddedFluss(tmp_path / "d", port=0, options=options) as engine:
        with engine.connection() as connection:
            path = fluss.TablePath("fluss", "large")
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=4000)
            connection.get_admin().create_table(path, descriptor)
        name = pb.PathOfTable(database_name="fluss", table_name="large")
        request = pb.MetadataRequest(table_path=[name] * 3000)
        with PeakMemory() as memory:
            code, message, _ = ask(engine, 1012, request.SerializeToString())
        assert code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "fewer tables" in message
        assert memory.grown < 64 * MB
        few = pb.MetadataRequest(table_path=[name] * 3)
        code, _, answer = ask(engine, 1012, few.SerializeToString())
        assert code == 0
        found = pb.MetadataResponse.FromString(answer).table_metadata
        assert [len(table.bucket_metadata) for table in found] == [4000] * 3


def test_large_requests_of_good_peers(engine: EmbeddedFluss) -> None:
    """Thousands of buckets, and keys."""
    rows, log = make(engine, 4000)
    many = range(4000)
    asked: list[tuple[api.Api[Any, Any], Message, str]] = [
        (
            api.LIST_OFFSETS,
            pb.ListOffsetsRequest(
                follower_server_id=-1, offset_type=1, table_id=log, bucket_id=many
            ),
            "buckets_resp",
        ),
        (
            api.GET_TABLE_STATS,
            pb.GetTableStatsRequest(
                table_id=log, buckets_req=[pb.TableStatsRequestForBucket(bucket_id=i) for i in many]
            ),
            "buckets_resp",
        ),
    ]
    with RawClient(engine.address, 60) as client:
        for kind, request, name in asked:
            answers = getattr(client.call(kind, request), name)
            assert [answer.bucket_id for answer in answers] == list(many)
            assert not any(answer.error_code for answer in answers)
        request = pb.FetchLogRequest.FromString(
            attacking._fetch(4000)(rows, log)  # the same bucket 4,000 times
        )
        for number, part in enumerate(request.tables_req[0].buckets_req):
            part.bucket_id = number % 1000
        request.max_wait_ms = 100
        (table,) = client.call(api.FETCH_LOG, request).tables_resp
        assert [answer.bucket_id for answer in table.buckets_resp] == list(range(1000))
        for count in (8192, 40_000):
            body = attacking._lookup(count, 8)(rows, log)
            client.send(1017, 0, body)
            (bucket,) = pb.LookupResponse.FromString(client.receive().body).buckets_resp
            assert len(bucket.values) == count
            assert not bucket.error_code


def test_a_large_fetch_that_waits_gets_what_comes(engine: EmbeddedFluss) -> None:
    _, log = make(engine, 1)
    request = pb.FetchLogRequest.FromString(attacking._fetch(4000)(0, log))
    request.max_wait_ms = 30_000
    request.min_bytes = 1
    with engine.connection() as connection, RawClient(engine.address, 60) as client:
        client.send(1015, 0, request.SerializeToString())
        time.sleep(0.3)
        table = connection.get_table(
            next(
                path
                for path in connection.get_admin().list_tables("fluss")
                if connection.get_table(path).get_table_info().table_id == log
            )
        )
        with table.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"id": range(100), "text": ["x"] * 100}, schema=SCHEMA))
        begun = time.monotonic()
        answer = pb.FetchLogResponse.FromString(client.receive().body)
        assert time.monotonic() - begun < 10
        assert any(bucket.records for bucket in answer.tables_resp[0].buckets_resp)


def test_writers_without_end() -> None:
    """A log remembers those that wrote last, whatever ids others make up."""
    states = WriterStates()
    for number in range(50_000):
        states.add(number, WrittenBatch(0, number, number, 0))
        if number % 1000 == 0:
            states.add(7, WrittenBatch(number, number, number, 0))
    assert len(states.to_json()) <= 16_384
    assert [batch[0] for batch in states.to_json()["7"]] == [45000, 46000, 47000, 48000, 49000]
    assert states.duplicate(7, 48_000) is not None
    assert states.duplicate(49_999, 0) is not None
    assert WriterStates.from_json(states.to_json()).to_json() == states.to_json()


@pytest.mark.parametrize("writers", [[5, 5], [-1, 5], [5, -1]])
def test_several_batches_of_a_writer_in_one_request(writers: list[int]) -> None:
    """They would be taken without a look at their sequences."""
    batches = [stored(rows(i, 1), i, writer_id=writer) for i, writer in enumerate(writers)]
    headers = scan_headers(b"".join(batches))
    with pytest.raises(FlussError, match="one of writer 5") as raised:
        WriterStates().duplicate_of("b", headers, 0)
    assert raised.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def test_several_batches_of_nobody_in_one_request() -> None:
    headers = scan_headers(
        stored(rows(0, 1), 0, writer_id=-1) + stored(rows(1, 1), 1, writer_id=-1)
    )
    assert WriterStates().duplicate_of("b", headers, 0) is None


# ---- peers that do nothing, or guess


def opened(engine: EmbeddedFluss) -> socket.socket:
    host, _, port = engine.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def is_closed(peer: socket.socket, seconds: float) -> bool:
    peer.settimeout(seconds)
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("users", [None, {"alice": "secret"}])
def test_idle_sockets_lock_nobody_out(tmp_path: Path, users: dict[str, str] | None) -> None:
    limits = Limits(connections=20)
    with (
        EmbeddedFluss(tmp_path / "d", port=0, limits=limits, sasl=users) as engine,
        contextlib.ExitStack() as peers,
    ):
        for _ in range(60):
            peers.enter_context(opened(engine))
        time.sleep(1.3)
        for _ in range(5):
            client = peers.enter_context(RawClient(engine.address))
            client.hello()
            if users:
                assert client.authenticate("alice", "secret").type == 0
            client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())
        # and who is busy stays
        for _ in range(60):
            peers.enter_context(opened(engine))
            client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())


def test_one_address_has_a_part_of_the_connections(tmp_path: Path) -> None:
    limits = Limits(connections=8)
    with (
        EmbeddedFluss(tmp_path / "d", port=0, host="0.0.0.0", limits=limits) as engine,
        contextlib.ExitStack() as peers,
    ):
        port = int(engine.address.rpartition(":")[2])
        for _ in range(20):
            with contextlib.suppress(OSError, EOFError):
                client = peers.enter_context(RawClient(engine.address))
                client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())
        assert len(engine._connections.open) == 6
        other = socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.2", 0))
        peers.enter_context(other)
        client = RawClient.__new__(RawClient)
        client.socket, client._next = other, 0
        client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())


def test_peers_that_were_silent_for_long_are_closed(tmp_path: Path) -> None:
    # as long as a slow machine may take from a connection to its first request
    limits = Limits(idle_s=2, unauthenticated_s=2)
    with EmbeddedFluss(tmp_path / "d", port=0, limits=limits) as engine:
        _, log = make(engine)
        request = pb.FetchLogRequest.FromString(attacking._fetch(1)(0, log))
        request.max_wait_ms, request.min_bytes = 3500, 1
        with (
            RawClient(engine.address) as waiting,
            opened(engine) as silent,
            RawClient(engine.address) as client,
            opened(engine) as half,
        ):
            waiting.hello()
            asked = waiting.send(api.FETCH_LOG.key, 0, request.SerializeToString())
            client.hello()
            # half a request is no request
            half.sendall(bytes.fromhex("00000100040a0000000000"))
            for peer in (silent, client.socket, half):
                assert is_closed(peer, 20)
            # and who waits for the server is not idle
            answer = waiting.receive()
            assert (answer.request_id, answer.error[0]) == (asked, 0)


def test_wrong_passwords_end_a_connection(tmp_path: Path) -> None:
    with (
        EmbeddedFluss(tmp_path / "d", port=0, sasl={"alice": "secret"}) as engine,
        RawClient(engine.address) as client,
    ):
        for _ in range(3):
            assert client.authenticate("alice", "wrong").error[0]
        assert is_closed(client.socket, 5)


def test_passwords_are_guessed_slowly(tmp_path: Path) -> None:
    users = {"alice": "secret", "bob": "other"}
    with EmbeddedFluss(tmp_path / "d", port=0, sasl=users) as engine:
        answered = 0
        began = time.monotonic()
        with contextlib.ExitStack() as peers:
            while time.monotonic() < began + 3:
                clients = [peers.enter_context(RawClient(engine.address)) for _ in range(8)]
                token = b"\0alice\0wrong"
                body = pb.AuthenticateRequest(protocol="PLAIN", token=token).SerializeToString()
                for client in clients:
                    client.send(1038, 0, body)
                    client.socket.settimeout(0.1)
                for client in clients:
                    with contextlib.suppress(OSError, EOFError):
                        answered += "Invalid" in client.receive().error[1]
            # three are free, and then one each second
            assert 1 <= answered <= 5 + time.monotonic() - began
            # others of the same address are let in at once
            begun = time.monotonic()
            with RawClient(engine.address) as client:
                assert client.authenticate("bob", "other").type == 0
            assert time.monotonic() - begun < 10


_FEW_FILES = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
logging.basicConfig(level=logging.WARNING)
from fluss_df.embedded import EmbeddedFluss
with EmbeddedFluss(sys.argv[1], port=0) as engine:
    # what other parts of the program have open
    files = [open("/dev/null") for _ in range(int(sys.argv[2]))]
    print(engine.address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("others", [0, 100])
def test_without_descriptors(tmp_path: Path, others: int) -> None:
    """Peers that are there are served, others as far as there is room, and the log stays small."""
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", _FEW_FILES, str(tmp_path / "d"), str(others)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
        contextlib.ExitStack() as peers,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        address = process.stdout.readline().strip()
        host, _, port = address.rpartition(":")
        client = peers.enter_context(RawClient(address, 20))
        client.call(api.LIST_DATABASES, pb.ListDatabasesRequest())
        until = time.monotonic() + 4
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                peers.enter_context(socket.create_connection((host, int(port)), 1))
            name = f"made_{time.monotonic_ns()}"
            client.call(
                api.CREATE_DATABASE,
                pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False),
            )
        peers.pop_all().close()
        process.stdin.close()
        process.wait(30)
    assert process.returncode == 0
    assert (tmp_path / "log").stat().st_size < 20_000
