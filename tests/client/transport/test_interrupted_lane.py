"""Ctrl-C while a lane sends: no one else gets a connection on which half a request was sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import LanePool
from fluss_df.config import Config
from fluss_df.embedded import EmbeddedFluss
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
