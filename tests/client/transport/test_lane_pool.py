"""Idle lanes of the process: who gets them, and when they are closed; lanes without sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport import lane_pool as module
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import LanePool, LaneUser, lane_pool
from fluss_df.config import Config
from fluss_df.errors import NetworkError

HERE = Endpoint("127.0.0.1", 1, None)
THERE = Endpoint("127.0.0.1", 2, None)


class PlayedLane:
    """A lane whose state the test sets."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.failed = self.busy = self.closed = False
        # an idle lane is readable when its server closed it
        self.ended = False

    def readable(self, timeout_s: float) -> bool:
        assert timeout_s == 0
        return self.ended

    def close(self) -> None:
        self.failed = self.closed = True


class Servers:
    """What connects, or refuses to."""

    def __init__(self) -> None:
        self.connected = 0
        self.refuse: NetworkError | None = None

    def connect(self, endpoint: Endpoint, connect_ms: int, request_ms: int) -> PlayedLane:
        if self.refuse is not None:
            raise self.refuse
        self.connected += 1
        return PlayedLane(endpoint)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(module, "Lane", made.connect)
    return made


def user() -> LaneUser:
    return cast(LaneUser, SimpleNamespace(config=Config(), metrics=Metrics()))


def take(pool: LanePool, who: LaneUser, endpoint: Endpoint = HERE) -> PlayedLane:
    return cast(PlayedLane, pool.take(who, endpoint))


def give_back(pool: LanePool, lane: PlayedLane) -> None:
    pool.give_back(cast(Lane, lane))


def test_an_idle_lane_is_taken_by_the_next_who_asks_for_its_server(servers: Servers) -> None:
    pool, first, second = LanePool(), user(), user()
    lane = take(pool, first)
    give_back(pool, lane)
    assert take(pool, second) is lane
    # it is in use now, and other servers have lanes of their own
    assert take(pool, first) is not lane
    assert take(pool, first, THERE).endpoint == THERE
    assert servers.connected == 3
    assert first.metrics.connections == 3
    assert second.metrics.connections == 0


@pytest.mark.parametrize("state", ["busy", "failed"])
def test_a_lane_that_cannot_be_used_again_is_closed(servers: Servers, state: str) -> None:
    pool, who = LanePool(), user()
    lane = take(pool, who)
    setattr(lane, state, True)
    give_back(pool, lane)
    assert lane.closed
    assert take(pool, who) is not lane


def test_a_lane_that_its_server_closed_is_replaced(servers: Servers) -> None:
    pool, who = LanePool(), user()
    lanes = [take(pool, who) for _ in range(3)]
    for lane in lanes:
        give_back(pool, lane)
    lanes[2].ended = lanes[1].ended = True
    assert take(pool, who) is lanes[0]
    assert [lane.closed for lane in lanes] == [False, True, True]


def test_at_most_four_lanes_of_a_server_are_idle(servers: Servers) -> None:
    pool, who = LanePool(), user()
    lanes = [take(pool, who) for _ in range(6)]
    elsewhere = take(pool, who, THERE)
    for lane in [*lanes, elsewhere]:
        give_back(pool, lane)
    assert [lane.closed for lane in lanes] == [False] * 4 + [True] * 2
    assert not elsewhere.closed


def test_idle_lanes_are_closed_with_the_last_user_of_their_server(servers: Servers) -> None:
    pool, first, second = LanePool(), user(), user()
    shared, own = take(pool, first), take(pool, first, THERE)
    late = take(pool, second)
    give_back(pool, shared)
    give_back(pool, own)
    pool.release(first)
    assert own.closed
    assert not shared.closed
    pool.release(second)
    assert shared.closed
    # nobody would close it later
    give_back(pool, late)
    assert late.closed
    assert pool._idle == pool._users == {}


def test_a_server_that_cannot_be_reached_leaves_the_pool_as_it_was(servers: Servers) -> None:
    pool, who = LanePool(), user()
    servers.refuse = NetworkError("refused")
    with pytest.raises(NetworkError, match="refused"):
        take(pool, who)
    assert who.metrics.connections == 0
    servers.refuse = None
    lane = take(pool, who)
    give_back(pool, lane)
    assert take(pool, who) is lane


def test_a_forked_child_leaves_the_sockets_to_its_parent(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_pool", LanePool())
    monkeypatch.setattr(module, "_inherited", [])
    parents, who = lane_pool(), user()
    lane = take(parents, who)
    give_back(parents, lane)
    module._after_fork_in_child()
    assert take(lane_pool(), who) is not lane
    assert not lane.closed
    # kept: a finalizer would shut down the sockets of the parent
    assert module._inherited == [parents]


def test_a_user_is_released_while_the_pool_is_held() -> None:
    """A collection of garbage may come anywhere, and finalizers of clusters release them."""
    pool = LanePool()
    with pool._lock:
        pool.release(object())  # type: ignore[arg-type]
