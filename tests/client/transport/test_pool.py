"""The cache of connections: one for each server and user, as long as somebody uses it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.multiplexed import ServerConnection
from fluss_df.client.transport.pool import ConnectionPool
from fluss_df.errors import NetworkError

HERE = Endpoint("127.0.0.1", 1, None)
THERE = Endpoint("127.0.0.1", 2, None)


class Connection:
    """A connection without a socket."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.usable = True
        self.closed = False

    def close(self) -> None:
        self.usable, self.closed = False, True


class Servers:
    """Opens connections when the test says so."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.asked = 0
        self.refuse: NetworkError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, endpoint: Endpoint, timeout_ms: int, metrics: Metrics) -> Connection:
        self.asked += 1
        await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        self.opened.append(Connection(endpoint))
        return self.opened[-1]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(ServerConnection, "open", made.open)
    return made


@pytest.fixture
def pool() -> ConnectionPool:
    return ConnectionPool()


def get(pool: ConnectionPool, endpoint: Endpoint, user: int) -> asyncio.Task[ServerConnection]:
    return asyncio.ensure_future(pool.get(endpoint, 1_000, Metrics(), user))


async def test_users_of_a_server_share_a_connection(pool: ConnectionPool, servers: Servers) -> None:
    first = await get(pool, HERE, 1)
    assert await get(pool, HERE, 2) is first
    assert pool.opened(HERE, 3) is first
    assert await get(pool, THERE, 1) is not first
    assert [c.endpoint for c in servers.opened] == [HERE, THERE]


async def test_those_who_ask_at_once_wait_for_one_connection(
    pool: ConnectionPool, servers: Servers
) -> None:
    servers.gate.clear()
    asking = [get(pool, HERE, user) for user in range(20)]
    await asyncio.sleep(0)
    servers.gate.set()
    assert len(set(await asyncio.gather(*asking))) == 1
    assert servers.asked == 1


async def test_a_connection_that_broke_is_replaced(pool: ConnectionPool, servers: Servers) -> None:
    first = await get(pool, HERE, 1)
    servers.opened[0].usable = False
    assert pool.opened(HERE, 1) is None
    assert await get(pool, HERE, 1) is not first


async def test_what_could_not_be_opened_is_tried_again(
    pool: ConnectionPool, servers: Servers
) -> None:
    servers.refuse = NetworkError("refused")
    for task in [get(pool, HERE, 1), get(pool, HERE, 2)]:
        with pytest.raises(NetworkError, match="refused"):
            await task
    servers.refuse = None
    assert cast("Connection", await get(pool, HERE, 1)).usable


async def test_it_is_closed_with_its_last_user(pool: ConnectionPool, servers: Servers) -> None:
    await get(pool, HERE, 1)
    await get(pool, HERE, 2)
    await get(pool, THERE, 2)
    pool.release(1)
    assert not any(c.closed for c in servers.opened)
    pool.release(2)
    assert all(c.closed for c in servers.opened)
    # and a new one is opened for who comes then
    await get(pool, HERE, 3)
    assert [c.closed for c in servers.opened] == [True, True, False]


async def test_one_that_nobody_waits_for_any_more_is_given_up(
    pool: ConnectionPool, servers: Servers
) -> None:
    servers.gate.clear()
    task = get(pool, HERE, 1)
    await asyncio.sleep(0)
    pool.release(1)
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:1 was closed"):
        await task
    assert servers.opened == []


async def test_a_caller_that_goes_away_leaves_it_to_the_others(
    pool: ConnectionPool, servers: Servers
) -> None:
    servers.gate.clear()
    gone, stays = get(pool, HERE, 1), get(pool, HERE, 2)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    servers.gate.set()
    assert cast("Connection", await stays).usable
    assert gone.cancelled()
