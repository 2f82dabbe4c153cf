"""A network that changes, cuts off or repeats bytes of TLS: an error, or nothing, and no rest."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.tls import tls_of
from fluss_df.config import Config
from fluss_df.embedded import EmbeddedFluss, Limits, Security
from tests.certificates import Authority

# where a handshake and the first requests end, about
_BYTES = 4000


@contextlib.contextmanager
def changing(port: int, seed: int) -> Iterator[int]:
    """Yield the port of a proxy that does something to the bytes in one direction, once."""
    rng = random.Random(seed)
    kind = rng.choice(["flip", "cut", "repeat"])
    place, there = rng.randrange(_BYTES), rng.random() < 0.5
    bit = 1 << rng.randrange(8)

    def changed(data: bytes, at: int) -> bytes:
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        return data[:at] if kind == "cut" else data[:at] + data[max(0, at - 20) :]

    def hand_on(source: socket.socket, target: socket.socket, change: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                here = change and passed <= place < passed + len(data)
                target.sendall(changed(data, place - passed) if here else data)
                if here and kind == "cut":
                    break
                passed += len(data)
        for peer in (source, target):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listening.accept()[0]
                with near, socket.create_connection(("127.0.0.1", port)) as far:
                    back = threading.Thread(target=hand_on, args=(far, near, not there))
                    back.start()
                    hand_on(near, far, there)
                    back.join()

    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize("mutual", [False, True], ids=["one side", "mutual"])
def test_bytes_that_are_changed_on_the_way(tmp_path: Path, mutual: bool) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    security = Security(
        tls_cert=server.cert, tls_key=server.key, tls_client_ca=authority.file if mutual else None
    )
    limits = Limits(unauthenticated_s=2)
    with EmbeddedFluss(tmp_path / "d", port=0, security=security, limits=limits) as engine:
        assert engine.address is not None
        given = {
            "connect-timeout": "4000",
            "security.ssl.enabled": "true",
            "security.ssl.truststore.path": str(authority.file),
            "security.ssl.keystore.path": str(client.both),
        }
        real = int(engine.address.rpartition(":")[2])
        codes: list[int] = []
        for seed in range(60):
            with changing(real, seed) as port:
                config = Config(given | {"bootstrap.servers": f"127.0.0.1:{port}"})
                try:
                    if seed % 2:
                        Lane(Endpoint("127.0.0.1", port, None, tls_of(config)), 4000, 4000).close()
                    else:
                        fluss.connect(config).close()
                except FlussError as error:
                    codes.append(error.error_code)
        known = {
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.AUTHENTICATE_EXCEPTION,
            ErrorCode.REQUEST_TIME_OUT,
        }
        assert set(codes) <= known
        # the proxy did something
        assert len(codes) > 10
        fluss.connect(given | {"bootstrap.servers": engine.address}).close()
        # and nothing is left of those who failed
        until = time.monotonic() + 30
        connections = engine._connections
        while connections.open or connections.shaking or connections.memory.held:
            assert time.monotonic() < until, (connections.open, connections.shaking)
            time.sleep(0.05)
