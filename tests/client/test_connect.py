"""Connecting: to what is there, and to what is not."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time
from typing import Any

import pytest

import fluss_df as fluss
from fluss_df import Config, ErrorCode, FlussError
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import DeadlineExceededError, NetworkError, ProtocolError
from fluss_df.protocol import messages_pb2 as pb
from tests.client.support import free_address, server_of


@pytest.mark.parametrize("form", ["address", "url", "config", "dict", "list"])
def test_forms(address: str, form: str) -> None:
    forms: dict[str, Any] = {
        "address": address,
        "url": f"fluss://{address}/db",
        "config": Config({"bootstrap.servers": address}),
        "dict": {"bootstrap.servers": address},
        "list": {"bootstrap.servers": [address]},
    }
    with fluss.connect(forms[form]) as connection:
        nodes = connection.get_admin().get_server_nodes()
        assert {node.server_type for node in nodes} == {"CoordinatorServer", "TabletServer"}
        assert connection.default_database == ("db" if form == "url" else None)
        assert address in repr(connection)
        assert "open" in repr(connection)
    assert "closed" in repr(connection)


def test_create_and_connect_are_the_same(address: str) -> None:
    for connect in (fluss.FlussConnection.create, fluss.FlussConnection.connect):
        connection = connect(Config({"bootstrap.servers": address}))
        assert connection.get_admin().database_exists("fluss")
        connection.close()


@pytest.mark.parametrize("what", [3, b"x:1", "http://localhost:1", ["a:1"], object()])
def test_what_is_no_address(what: Any) -> None:
    with pytest.raises(FlussError, match="cannot connect to") as raised:
        fluss.connect(what)
    assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_a_config_is_copied(address: str) -> None:
    config = Config({"bootstrap.servers": address})
    with fluss.connect(config) as connection:
        config.bootstrap_servers = "elsewhere:1"
        assert connection.config.bootstrap_servers == address


def test_nobody_listens() -> None:
    address = free_address()
    began = time.monotonic()
    with pytest.raises(NetworkError, match="no Fluss server can be reached") as raised:
        fluss.connect(address)
    assert time.monotonic() - began < 10
    assert address in raised.value.message
    assert raised.value.error_code == ErrorCode.NETWORK_EXCEPTION


def test_unknown_host() -> None:
    with pytest.raises(NetworkError, match=r"no-such-host\.invalid:9123"):
        fluss.connect("no-such-host.invalid:9123")


def test_the_first_of_several_is_dead(address: str) -> None:
    with fluss.connect(f"{free_address()},{address}") as connection:
        assert connection.get_admin().database_exists("fluss")


def test_all_of_several_are_dead() -> None:
    first, second = free_address(), free_address()
    with pytest.raises(NetworkError) as raised:
        fluss.connect(f"{first},{second}")
    assert first in raised.value.message
    assert second in raised.value.message


def test_a_silent_server() -> None:
    def silent(peer: socket.socket) -> None:
        while peer.recv(1000):
            pass

    with server_of(silent) as address:
        began = time.monotonic()
        with pytest.raises((NetworkError, DeadlineExceededError), match="300 ms"):
            fluss.connect({"bootstrap.servers": address, "connect-timeout": 300})
        assert 0.25 < time.monotonic() - began < 10


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        bytes(100),
        b"\xff" * 100,
        struct.pack(">iBi", 2**30, 0, 1) + b"x",
    ],
    ids=["http", "ssh", "zeros", "ones", "endless"],
)
def test_another_kind_of_server(answer: bytes) -> None:
    def talk(peer: socket.socket) -> None:
        peer.recv(1000)
        peer.sendall(answer)
        peer.recv(1000)

    with server_of(talk) as address:
        with pytest.raises(FlussError) as raised:
            fluss.connect({"bootstrap.servers": address, "connect-timeout": 500})
        assert address in raised.value.message
        assert isinstance(raised.value, (ProtocolError, NetworkError, DeadlineExceededError))


def test_a_server_that_hangs_up() -> None:
    with server_of(socket.socket.close) as address, pytest.raises(NetworkError, match=address):
        fluss.connect(address)


def answering(versions: pb.ApiVersionsResponse) -> Any:
    def serve(peer: socket.socket) -> None:
        while header := peer.recv(12, socket.MSG_WAITALL):
            length, _key, _version, request_id = struct.unpack(">ihhi", header)
            peer.recv(length - 8, socket.MSG_WAITALL)
            body = versions.SerializeToString()
            peer.sendall(struct.pack(">iBi", len(body) + 5, 0, request_id) + body)

    return serve


def test_a_server_too_new() -> None:
    """Never asked what it does not know: it would not answer."""
    versions = pb.ApiVersionsResponse(
        api_versions=[pb.ApiVersion(api_key=1012, min_version=5, max_version=6)]
    )
    with server_of(answering(versions)) as address:
        with pytest.raises(FlussError, match="speaks versions 5 to 6 of GET_METADATA") as raised:
            fluss.connect(address)
        assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert address in raised.value.message


def test_a_server_without_the_request() -> None:
    with server_of(answering(pb.ApiVersionsResponse())) as address:
        with pytest.raises(FlussError, match="does not know the request GET_METADATA") as raised:
            fluss.connect(address)
        assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_use_after_close(address: str) -> None:
    connection = fluss.connect(address)
    admin = connection.get_admin()
    connection.close()
    connection.close()
    with pytest.raises(FlussError, match="connection is closed: open a new one"):
        admin.list_databases()
    with pytest.raises(FlussError, match="connection is closed"):
        connection.get_table("fluss.t")


def test_closing_one_leaves_the_other(address: str) -> None:
    with fluss.connect(address) as first, fluss.connect(address) as second:
        assert first.get_admin().database_exists("fluss")
        first.close()
        assert second.get_admin().database_exists("fluss")


def test_connections_share_sockets() -> None:
    # a server of its own, to which no other test has sockets
    with (
        EmbeddedFluss(None, port=0) as engine,
        fluss.connect(engine.address) as first,
        fluss.connect(engine.address) as second,
    ):
        for _ in range(10):
            first.get_admin().list_databases()
            second.get_admin().list_databases()
        assert first.metrics.connections + second.metrics.connections == 1
        assert len(engine._connections.open) == 1


def test_a_second_connection_opens_no_socket(address: str) -> None:
    with fluss.connect(address) as first, fluss.connect(address) as second:
        for each in (first, second):
            each.get_admin().list_databases()
        assert second.metrics.connections == 0


def test_many_threads_on_one_connection(address: str) -> None:
    with fluss.connect(address) as connection:
        results: list[list[str]] = []
        admin = connection.get_admin()
        threads = [
            threading.Thread(target=lambda: results.append(admin.list_databases()))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 20
        assert all("fluss" in databases for databases in results)


def test_pickled_connection(address: str) -> None:
    with fluss.connect(f"fluss://{address}/db") as connection:
        copied = pickle.loads(pickle.dumps(connection))
    # the pickle stands for itself, not for the closed one
    with copied:
        assert copied.default_database == "db"
        assert copied.get_admin().database_exists("fluss")
