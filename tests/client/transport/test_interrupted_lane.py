"""Ctrl-C while a lane sends: no one else gets a connection on which half a request was sent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import LanePool
from fluss_df.config import Config
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import LIST_DATABASES


class User:
    config = Config({"bootstrap.servers": "127.0.0.1:9"})
    metrics = Metrics()


class Interrupted:
    """A socket during whose work Ctrl-C comes, once a part was sent, or all."""

    def __init__(self, around: socket.socket, *, whole: bool) -> None:
        self._around, self._whole = around, whole

    def sendall(self, frame: bytes) -> None:
        self._around.sendall(frame if self._whole else frame[: len(frame) // 2])
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._around, name)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with EmbeddedFluss(port=0) as engine:
        host, port = engine.address.split(":")
        yield Endpoint(host, int(port), None)


def test_a_server_that_says_a_byte_now_and_then_is_not_waited_for_for_ever() -> None:
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer, contextlib.suppress(OSError):
            # the length of an answer, and then its bytes
            for byte in b"\x00\x00\x10\x00" + bytes(4096):
                peer.sendall(bytes([byte]))
                if ended.wait(0.05):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=[listening])
        dripping.start()
        began = time.monotonic()
        with pytest.raises(FlussError, match="silent"):
            Lane(Endpoint("127.0.0.1", listening.getsockname()[1], None), 300, 300)
        assert time.monotonic() - began < 30
        ended.set()
        dripping.join()


def ask(lane: Lane) -> None:
    request = pb.ListDatabasesRequest().SerializeToString()
    lane.send(LIST_DATABASES, [request], User.metrics)


@pytest.mark.parametrize("whole", [True, False])
def test_a_lane_that_was_interrupted_is_closed(endpoint: Endpoint, whole: bool) -> None:
    pool = LanePool()
    lane = pool.take(User(), endpoint)
    around = lane._socket
    assert isinstance(around, socket.socket)
    lane._socket = Interrupted(around, whole=whole)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        ask(lane)
    pool.give_back(lane)
    assert around.fileno() == -1
    other = pool.take(User(), endpoint)
    assert other is not lane
    ask(other)
    assert other.receive(User.metrics).size
    pool.give_back(other)
    assert pool.take(User(), endpoint) is other
    other.close()
