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
from fluss_df.embedded.memory_limit import MemoryLimit, Room
from fluss_df.errors import FlussError
from fluss_df.protocol.api import LIMIT_SCAN, LOOKUP, PREFIX_LOOKUP, SCAN_KV
from fluss_df.protocol.frames import Buffer, Request, RequestReader, encode_response

logger = logging.getLogger(__name__)

# requests that wait for their turn, before no more is received
_QUEUED: Final = 16
# of a peer that has not said who it is
_UNTRUSTED_BYTES: Final = 64 << 10
# requests whose answers are made in memory, and are large at times
_MADE: Final = {LOOKUP.key, PREFIX_LOOKUP.key, LIMIT_SCAN.key, SCAN_KV.key}
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
    connection_bytes
        What one connection may make the server hold: requests, until they are answered, and
        answers, until they are sent. More is not received meanwhile; one request or answer may be
        larger, and is then alone.
    total_bytes
        The same for all connections together; and again for answers that are made in memory, which
        are begun when there is room for one as large as that connection had before.
    stalled_s
        While others wait for room in ``total_bytes``, a peer that neither sends the rest of its
        request nor takes its answers for so long is closed.
    """

    connections: int = 1000
    request_bytes: int = 128 << 20
    unauthenticated_s: float = 30.0
    in_flight: int = 256
    connection_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    stalled_s: float = 30.0


class Connections:
    """All connections of a server, with their limits."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self.open: set[Connection] = set()
        self.memory = MemoryLimit(limits.total_bytes)
        self.answers = MemoryLimit(limits.total_bytes)

    @property
    def crowded(self) -> bool:
        """Whether anyone waits for room."""
        return self.memory.crowded or self.answers.crowded

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
        workers = [connection.worker for connection in open_now if connection.worker]
        tasks = [task for connection in open_now for task in connection.tasks]
        await asyncio.gather(*workers, *tasks, return_exceptions=True)


class Connection(asyncio.BufferedProtocol):
    """One peer. Its requests are begun in their order; answers are sent as they come.

    Nothing is received while what the peer makes the server hold is at its limit.
    """

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
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        # bytes that are held for this peer; of them, what waits in the transport
        self._held = 0
        self._unsent = 0
        # the body that is being received, and what has to be free before it is
        self._announced = 0
        self._wanted = 0
        self._asking = False
        self._stall: asyncio.TimerHandle | None = None
        self._moved = 0.0
        self._left_unsent = 0
        self.worker: asyncio.Task[None] | None = None
        # answers that are being made, and the bytes that each holds
        self.tasks: dict[asyncio.Task[None], int] = {}
        # how large an answer made in memory may be, by those there were; and those being made
        self._likely = connections.limits.connection_bytes // 4
        self._expected = 0

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

    # ---- what comes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the place for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes that came."""
        self._moved = asyncio.get_running_loop().time()
        try:
            request = self._reader.received(nbytes)
        except FlussError as error:
            logger.warning("a connection was closed: %s", error.message)
            self.close()
            return
        if request is not None:
            self._announced = 0
            self._queue.append(request)
            self._more.set()
        elif self._reader.announced and not self._announced:
            self._announced = self._wanted = self._reader.announced
            self._ask_for_room()
        self._read_or_not()

    def _ask_for_room(self) -> None:
        """Take the room for the body that was announced, once there is some."""
        size = self._wanted
        if not size or self._asking:
            return
        if self._held and self._held + size > self._connections.limits.connection_bytes:
            return
        self._asking = True
        if self._connections.memory.take(size, self._admitted):
            self._admitted()
        else:
            self._watch()

    def _admitted(self) -> None:
        self._asking = False
        self._held += self._wanted
        self._wanted = 0
        self._read_or_not()

    def stop_reading(self) -> None:
        """Receive nothing more."""
        self._stopped = True
        self._read_or_not()

    def _read_or_not(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        most = _QUEUED // 2 if self._paused else _QUEUED
        pause = self._stopped or self._wanted > 0 or len(self._queue) >= most
        if pause != self._paused:
            self._paused = pause
            if pause:
                transport.pause_reading()
            else:
                self._moved = asyncio.get_running_loop().time()
                transport.resume_reading()

    def _give(self, count: int) -> None:
        self._held -= count
        self._connections.memory.give(count)
        self._ask_for_room()

    # ---- peers that do nothing while others wait for room

    def _watch(self) -> None:
        for connection in self._connections.open if self._connections.crowded else ():
            if connection._held and connection._stall is None:
                connection._moved = asyncio.get_running_loop().time()
                connection._check_later(connection._connections.limits.stalled_s)

    def _check_later(self, seconds: float) -> None:
        self._stall = asyncio.get_running_loop().call_later(seconds, self._check_stall)

    def _check_stall(self) -> None:
        self._stall = None
        if not self._connections.crowded or not self._held:
            return
        assert self._transport is not None
        now, unsent = asyncio.get_running_loop().time(), self._transport.get_write_buffer_size()
        if unsent < self._left_unsent:
            self._moved = now
        self._left_unsent = unsent
        left = self._moved + self._connections.limits.stalled_s - now
        waits_for_peer = not self._writable.is_set() or (self._announced and not self._wanted)
        if left <= 0 and waits_for_peer:
            logger.warning("a peer that held memory and did nothing was closed: others wait for it")
            self.close()
        else:
            self._check_later(max(left, 0.1))

    # ---- what goes out

    def pause_writing(self) -> None:
        """Wait with answers: the peer does not read."""
        self._writable.clear()
        assert self._transport is not None
        self._moved = asyncio.get_running_loop().time()
        self._unsent = self._transport.get_write_buffer_size()
        self._hold(self._unsent)

    def resume_writing(self) -> None:
        """Send answers again."""
        self._writable.set()
        unsent, self._unsent = self._unsent, 0
        self._give(unsent)

    def _hold(self, count: int) -> None:
        self._held += count
        self._connections.memory.force(count)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is still being done."""
        self._connections.open.discard(self)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        if self._asking:
            self._connections.memory.forget(self._admitted)
        received = 0 if self._wanted else self._announced
        self._wanted = self._announced = 0
        unsent, self._unsent = self._unsent, 0
        # what tasks hold they give back as they end
        self._give(unsent + received)
        for request in self._queue:
            self._give(len(request.body))
        self._queue.clear()
        self._writable.set()
        if self.worker is not None:
            self.worker.cancel()
        for task in list(self.tasks):
            task.cancel()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _may_send(self) -> None:
        # whoever was woken first may have filled the buffer again
        while not self._writable.is_set():
            await self._writable.wait()

    async def _work(self) -> None:
        limits = self._connections.limits
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                while not self._queue:
                    self._more.clear()
                    await self._more.wait()
                # a peer that does not read its answers gets no further ones
                await self._may_send()
                likely = self._likely if self._queue[0].key in _MADE else 0
                while self.tasks and (
                    len(self.tasks) >= limits.in_flight
                    or self._held + self._expected + likely > limits.connection_bytes
                ):
                    await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
                    likely = min(likely, self._likely)
                room = await self._room(likely) if likely else None
                request = self._queue.popleft()
                size = len(request.body)
                begun = False
                try:
                    reply = await self._connections.dispatcher.begin(self._session, request)
                    if isinstance(reply, tuple):
                        held = self._made(reply, room)
                        size += held
                        self._hold(held)
                        await self._send(request.request_id, reply)
                    else:
                        self._expected += likely
                        task = asyncio.ensure_future(self._finish(request, reply, room))
                        self.tasks[task] = size
                        task.add_done_callback(self._finished)
                        if room is not None:
                            task.add_done_callback(room.leave)
                        begun = True
                finally:
                    if not begun:
                        self._give(size)
                        if room is not None:
                            room.leave()
                del request, reply
                if self._session.trusted:
                    self._reader.max_bytes = limits.request_bytes
                self._read_or_not()

    async def _room(self, likely: int) -> Room:
        """Wait until there is room for an answer that is made in memory."""
        room = Room(self._connections.answers, likely)
        if room.waits:
            self._watch()
        await room.entered()
        return room

    def _made(self, reply: Reply, room: Room | None) -> int:
        """Return the bytes that an answer holds; they take the place of what was expected."""
        # slices of files are not memory that anyone holds
        size = sum(len(part) for part in reply[1] if not isinstance(part, memoryview))
        if room is not None:
            room.resize(size)
            self._likely = max(size, self._likely // 2)
        return size

    async def _finish(self, request: Request, rest: Awaitable[Reply], room: Room | None) -> None:
        request_id = request.request_id
        del request
        likely = 0 if room is None else room.size
        try:
            reply = await rest
        finally:
            self._expected -= likely
        size = self._made(reply, room)
        task = asyncio.current_task()
        assert task is not None
        self.tasks[task] += size
        self._hold(size)
        await self._send(request_id, reply)

    def _finished(self, task: asyncio.Task[None]) -> None:
        # also of a task that was cancelled before it began
        self._give(self.tasks.pop(task))

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
                    await self._write(b"".join(small))
                    small, size = [], 0
                if len(part) >= _STEP_BYTES:
                    view = memoryview(part)
                    for at in range(0, len(view), _STEP_BYTES):
                        await self._write(view[at : at + _STEP_BYTES])
            await self._write(b"".join(small))

    async def _write(self, data: Buffer) -> None:
        await self._may_send()
        if len(data) and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
