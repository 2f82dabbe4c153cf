"""Connections: frames in, frames out, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from fluss_df.embedded.dispatch import Dispatcher, Reply, Session
from fluss_df.errors import FlussError
from fluss_df.protocol.frames import Buffer, Request, RequestReader, encode_response

logger = logging.getLogger(__name__)

# requests that wait for their turn, before no more is received
_QUEUED: Final = 16
# of a peer that has not said who it is
_UNTRUSTED_BYTES: Final = 64 << 10
# of an answer, given to a socket at once
_STEP_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers may use of a server.

    Parameters
    ----------
    connections
        At most so many at once; further ones are closed at once.
    request_bytes
        The largest request; a larger one ends its connection.
    unauthenticated_s
        How long a peer may take to say who it is.
    in_flight
        Requests of one connection whose answer is not sent; more are not received meanwhile.
    """

    connections: int = 1000
    request_bytes: int = 128 << 20
    unauthenticated_s: float = 30.0
    in_flight: int = 256


class Connections:
    """All connections of a server, with their limits."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self.open: set[Connection] = set()

    async def close(self) -> None:
        """Close all; what is being done is finished first, for a moment."""
        open_now = list(self.open)
        for connection in open_now:
            connection.stop_reading()
        waiting = [task for connection in open_now for task in connection.tasks]
        if waiting:
            await asyncio.wait(waiting, timeout=1.0)
        for connection in open_now:
            connection.close()
        await asyncio.gather(
            *(connection.worker for connection in open_now if connection.worker),
            return_exceptions=True,
        )


class Connection(asyncio.BufferedProtocol):
    """One peer. Its requests are begun in their order; answers are sent as they come."""

    def __init__(self, connections: Connections, session: Session) -> None:
        self._connections = connections
        self._session = session
        limit = connections.limits.request_bytes
        self._reader = RequestReader(limit if session.trusted else min(limit, _UNTRUSTED_BYTES))
        self._queue: deque[Request] = deque()
        self._more = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        # an answer is sent whole before the next one
        self._sending = asyncio.Lock()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.worker: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve; refuse one connection too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connections = self._connections
        if len(connections.open) >= connections.limits.connections:
            logger.warning("a connection too many was closed")
            transport.abort()
            return
        connections.open.add(self)
        self.worker = asyncio.ensure_future(self._work())
        if not self._session.trusted:
            self._timer = asyncio.get_running_loop().call_later(
                connections.limits.unauthenticated_s, self._too_late
            )

    def _too_late(self) -> None:
        if not self._session.trusted:
            logger.warning("a peer did not authenticate in time")
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the place for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes that came."""
        try:
            request = self._reader.received(nbytes)
        except FlussError as error:
            logger.warning("a connection was closed: %s", error.message)
            self.close()
            return
        if request is None:
            return
        self._queue.append(request)
        self._more.set()
        if len(self._queue) >= _QUEUED:
            self.stop_reading()

    def stop_reading(self) -> None:
        """Receive nothing more for now."""
        if self._transport is not None and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Wait with answers: the peer does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Send answers again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is still being done."""
        self._connections.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._writable.set()
        if self.worker is not None:
            self.worker.cancel()
        for task in self.tasks:
            task.cancel()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _work(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                while not self._queue:
                    self._more.clear()
                    await self._more.wait()
                request = self._queue.popleft()
                # a peer that does not read its answers gets no further ones
                await self._writable.wait()
                while len(self.tasks) >= self._connections.limits.in_flight:
                    await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
                reply = await self._connections.dispatcher.begin(self._session, request)
                if isinstance(reply, tuple):
                    await self._send(request.request_id, reply)
                else:
                    task = asyncio.ensure_future(self._finish(request.request_id, reply))
                    self.tasks.add(task)
                    task.add_done_callback(self.tasks.discard)
                del request, reply
                if self._session.trusted:
                    self._reader.max_bytes = self._connections.limits.request_bytes
                if self._paused and len(self._queue) < _QUEUED // 2 and self._transport:
                    self._paused = False
                    self._transport.resume_reading()

    async def _finish(self, request_id: int, rest: Awaitable[Reply]) -> None:
        reply = await rest
        await self._writable.wait()
        await self._send(request_id, reply)

    async def _send(self, request_id: int, reply: Reply) -> None:
        kind, body = reply
        small: list[Buffer] = []
        size = 0
        async with self._sending:
            # What the socket does not take at once is copied: no more than a step of it.
            for part in encode_response(kind, request_id, body):
                if len(part) < _STEP_BYTES:
                    small.append(part)
                    size += len(part)
                if size >= _STEP_BYTES or len(part) >= _STEP_BYTES:
                    self._write(b"".join(small))
                    await self._writable.wait()
                    small, size = [], 0
                if len(part) >= _STEP_BYTES:
                    view = memoryview(part)
                    for at in range(0, len(view), _STEP_BYTES):
                        self._write(view[at : at + _STEP_BYTES])
                        await self._writable.wait()
            self._write(b"".join(small))

    def _write(self, data: Buffer) -> None:
        if len(data) and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
