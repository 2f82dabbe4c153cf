"""Sockets that listen: what an accept that fails, a lack of descriptors, and strangers come to."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.serve import accepting, admission
from fluss_df.engine.serve.accepting import Acceptor
from fluss_df.engine.serve.admission import Connections, Limits

GREETING = b"hello"


class Failing(socket.socket):
    """A socket whose next accepts fail, or not where there is None."""

    def __init__(self, *errors: OSError | None, family: int = socket.AF_INET) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.errors = list(errors)

    def accept(self) -> Any:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return super().accept()


class Greeter(asyncio.Protocol):
    """A connection that says hello."""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(GREETING)
        transport.close()


def no_room() -> Connections[Any]:
    return connections(Limits(connections=0))


def connections(limits: Limits | None = None) -> Connections[Any]:
    counters = types.SimpleNamespace(connections_refused=0, connections_accepted=0)
    engine = types.SimpleNamespace(counters=counters)
    dispatcher: Any = types.SimpleNamespace(engine=engine)
    return Connections(dispatcher, limits or Limits())


@asynccontextmanager
async def accepted(
    listening: Failing, room: Connections[Any], make: Callable[[str], Any] = Greeter
) -> AsyncIterator[Acceptor]:
    if listening.family == socket.AF_INET:
        listening.bind(("127.0.0.1", 0))
    acceptor = Acceptor(listening, room, make)
    try:
        yield acceptor
    finally:
        await acceptor.close()


async def said(listening: socket.socket) -> bytes:
    """Return what a peer that connects is told until it is closed."""
    client = socket.socket(listening.family, socket.SOCK_STREAM)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    with client:
        await loop.sock_connect(client, listening.getsockname())
        async with asyncio.timeout(20):
            try:
                return await loop.sock_recv(client, 100)
            except ConnectionResetError:
                return b""


@pytest.fixture(autouse=True)
def every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each message logged, whatever tests before logged of its kind; pauses are short."""
    for module in (accepting, admission):
        logger = SeldomLogger(logging.getLogger(module.__name__))
        monkeypatch.setattr(module, "logger", logger)
    monkeypatch.setattr(accepting, "_PAUSE_S", 0.02)


async def test_without_a_descriptor_who_waits_is_turned_away_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening = Failing(OSError(errno.EMFILE, "Too many open files"))
    async with accepted(listening, connections()) as acceptor:
        assert await said(listening) == b""
        assert await said(listening) == GREETING
        assert acceptor._reserve >= 0
    [record] = caplog.records
    assert "no connection can be accepted" in record.getMessage()
    assert "Too many open files" in record.getMessage()
    assert "ulimit -n" in record.getMessage()


class Idle:
    """A peer that has done nothing for a while."""

    address = "192.0.2.1"
    proven = greeted = closed = False
    worker = None

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[None], int] = {}

    def idle_s(self, now: float) -> float:
        return 5.0

    def stop_reading(self) -> None:
        return

    def close(self) -> None:
        self.closed = True


async def test_a_peer_that_does_nothing_has_to_go_for_the_next() -> None:
    idle = Idle()

    room = connections()
    room.enter(idle)
    listening = Failing(OSError(errno.ENFILE, "Too many open files in system"))
    async with accepted(listening, room):
        assert await said(listening) == b""
        assert await said(listening) == GREETING
    assert room.open == set()
    await room.close()
    assert idle.closed


async def test_while_there_is_no_reserve_either_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = os.open
    refused: list[str] = []

    def none_left(path: Any, *arguments: Any, **options: Any) -> int:
        if path == os.devnull and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(path, *arguments, **options)

    short = [OSError(errno.EMFILE, "Too many open files") for _ in range(2)]
    listening = Failing(short[0], None, short[1])
    async with accepted(listening, connections()) as acceptor:
        monkeypatch.setattr(os, "open", none_left)
        assert await said(listening) == b""
        # nobody can be turned away now: who comes waits, and is served
        assert await said(listening) == GREETING
        assert acceptor._reserve >= 0
    assert len(refused) == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENETDOWN, "Network is down"), ["could not be accepted: [Errno 100]"]),
        (ConnectionAbortedError(errno.ECONNABORTED, "gone"), []),
        (InterruptedError(), []),
    ],
)
def test_after_another_error_peers_are_served(
    error: OSError, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        listening = Failing(error)
        async with accepted(listening, connections()):
            assert await said(listening) == GREETING

    asyncio.run(run())
    assert len(caplog.records) == len(told)
    for record, part in zip(caplog.records, told, strict=True):
        assert part in record.getMessage()


async def test_a_pause_ends_with_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_PAUSE_S", 60.0)

    listening = Failing(OSError(errno.ENETDOWN, "Network is down"))
    async with accepted(listening, connections()) as acceptor:
        client = socket.create_connection(listening.getsockname())
        with client:
            while acceptor._timer is None:
                await asyncio.sleep(0.001)
        timer = acceptor._timer
    assert timer.cancelled()
    assert listening.fileno() == -1
    assert acceptor._reserve == -1


async def test_where_there_is_no_room_a_peer_is_closed() -> None:
    room = no_room()
    listening = Failing()
    async with accepted(listening, room):
        assert await said(listening) == b""
    assert room.counters.connections_refused == 1


async def test_another_user_of_the_machine_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = [54_321, os.geteuid()]
    monkeypatch.setattr(accepting, "peer_uid", lambda peer: users[0])

    listening = Failing(family=socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    async with accepted(listening, connections()):
        assert await said(listening) == b""
        del users[0]
        assert await said(listening) == GREETING
    [record] = caplog.records
    assert "user id 54321" in record.getMessage()


async def test_a_connection_that_cannot_be_made_is_closed_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[str] = []

    def make(peer: str) -> Greeter:
        made.append(peer)
        if len(made) == 1:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return Greeter(peer)

    listening = Failing()
    async with accepted(listening, connections(), make):
        assert await said(listening) == b""
        assert await said(listening) == GREETING
    assert made == ["127.0.0.1", "127.0.0.1"]
    [record] = caplog.records
    assert "could not be opened: [Errno 105]" in record.getMessage()
