"""A connection: frames in, frames out, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable
from typing import Final

from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.requests.dispatch import Reply, Session
from fluss_df.engine.requests.request_limits import most_bytes
from fluss_df.engine.serve.admission import Connections
from fluss_df.engine.serve.memory_limit import Room
from fluss_df.errors import FlussError
from fluss_df.protocol.api import (
    API_VERSIONS,
    AUTHENTICATE,
    FETCH_LOG,
    GET_METADATA,
    LIMIT_SCAN,
    LOOKUP,
    PREFIX_LOOKUP,
    SCAN_KV,
)
from fluss_df.protocol.frames import Request, RequestReader, encode_response
from fluss_df.protocol.wire import Buffer

logger = SeldomLogger(logging.getLogger(__name__))

# requests that wait for their turn, before no more is received
_QUEUED: Final = 16
# the largest request of a peer that has not said who it is
_UNTRUSTED_BYTES: Final = 64 << 10
# requests whose answers are made in memory, and are large at times
_MADE: Final = {LOOKUP.key, PREFIX_LOOKUP.key, LIMIT_SCAN.key, SCAN_KV.key}
# what is said before anything is asked for
_GREETINGS: Final = {API_VERSIONS.key, AUTHENTICATE.key}
# bytes of an answer that are given to a socket at a time
_STEP_BYTES: Final = 256 << 10
# taken from a socket at once: new memory makes a megabyte take 3 to 10 ms, for which all wait
_RECEIVED_BYTES: Final = 256 << 10
# requests and answers up to this size do not wait for room, which large ones hold for long
_SMALL_BYTES: Final = 64 << 10
_SMALL_HELD: Final = 256 << 10
# memory of a request that waits, or of its answer, in multiples of the request's bytes: of a fetch
# of many buckets, and of a question for the metadata of many tables
_FETCH_GROWTH: Final = 10
_METADATA_GROWTH: Final = 64
_GROWS_FROM: Final = 1 << 10
# while others wait for memory, this part (1/8) of a request that holds some has to come in each
# stalled_s
_PART_IN_TIME: Final = 8


class Connection(asyncio.BufferedProtocol):
    """One peer. Its requests are begun in their order; answers are sent as they come.

    Nothing is received while what the peer makes the server hold is at its limit.
    """

    def __init__(self, connections: Connections[Connection], session: Session) -> None:
        self._connections = connections
        self._session = session
        limit = connections.limits.request_bytes
        self._reader = RequestReader(
            limit if session.trusted else min(limit, _UNTRUSTED_BYTES), most_bytes
        )
        # where its peer is; "" for one by the Unix socket
        self.address = session.address
        # whether it asked for anything
        self.proven = False
        self._begun = self._working = False
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
        # bytes that came since the time _came_since
        self._came = 0
        self._came_since = 0.0
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
        peer = transport.get_extra_info("socket")
        if peer.family != socket.AF_UNIX:
            # asyncio leaves sockets of a listener that it was given as they are
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._session.host = self._session.host or str(peer.getsockname()[0])
        connections, loop = self._connections, asyncio.get_running_loop()
        if not connections.admit(self.address):
            transport.abort()
            return
        self._moved = loop.time()
        connections.enter(self)
        self.worker = asyncio.ensure_future(self._work())
        self._timer = loop.call_later(connections.limits.unauthenticated_s, self._too_late)

    def _too_late(self) -> None:
        if not self._session.trusted or (self.address and not self._begun):
            logger.warning(
                "a peer at %s did not say in time who it is, or what it wants", self.address
            )
            self.close()

    @property
    def greeted(self) -> bool:
        """Whether the peer said what it speaks, and who it is where that matters."""
        return self._begun and self._session.trusted

    def idle_s(self, now: float) -> float:
        """Return for how long it has waited for its peer; 0 while the peer waits for it."""
        asked = self._working or self._queue or self.tasks
        return 0.0 if asked and self._writable.is_set() else now - self._moved

    # ---- what comes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the place for the next bytes."""
        return self._reader.buffer()[:_RECEIVED_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes that came."""
        self._moved = asyncio.get_running_loop().time()
        self._came += nbytes
        self._connections.counters.bytes_in += nbytes
        try:
            request = self._reader.received(nbytes)
        except FlussError as error:
            logger.warning("a connection was closed: %s", error.message)
            self.close()
            return
        if request is not None:
            self._announced = 0
            self._begun = True
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
        if size <= _SMALL_BYTES and self._held <= _SMALL_HELD:
            self._connections.memory.force(size)
            self._admitted()
        elif self._connections.memory.take(size, self._admitted):
            self._admitted()
        else:
            self._watch()

    def _admitted(self) -> None:
        self._asking = False
        self._held += self._wanted
        self._wanted = 0
        self._count_what_comes()
        if self._connections.crowded and self._stall is None:
            self._check_later(self._connections.limits.stalled_s)
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
                self._count_what_comes()
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
                connection._count_what_comes()
                connection._check_later(connection._connections.limits.stalled_s)

    def _count_what_comes(self) -> None:
        self._came, self._came_since = 0, asyncio.get_running_loop().time()

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
        stalled_s = self._connections.limits.stalled_s
        left = self._moved + stalled_s - now
        receives = self._announced > 0 and not self._wanted and not self._paused
        if receives:
            # a byte now and then is no progress
            left = min(left, self._came_since + stalled_s - now)
            if left <= 0 and self._came * _PART_IN_TIME >= self._announced:
                self._count_what_comes()
                left = stalled_s
        if left <= 0 and (receives or not self._writable.is_set()):
            logger.warning(
                "a peer that held memory and did next to nothing was closed: others wait for it"
            )
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
        self._moved = asyncio.get_running_loop().time()
        unsent, self._unsent = self._unsent, 0
        self._give(unsent)

    def _hold(self, count: int) -> None:
        self._held += count
        self._connections.memory.force(count)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is still being done."""
        self._connections.leave(self)
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
        # another task that was woken before may have filled the buffer again
        while not self._writable.is_set():
            await self._writable.wait()

    async def _work(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                while not self._queue:
                    self._more.clear()
                    await self._more.wait()
                self._working = True
                try:
                    if not await self._work_on(self._queue[0]):
                        return
                finally:
                    self._working = False

    async def _work_on(self, request: Request) -> bool:
        """Begin the first of the requests that wait; return whether to go on with the next."""
        limits = self._connections.limits
        # a peer that does not read its answers gets no further ones
        await self._may_send()
        size = len(request.body)
        likely = self._likely_bytes(request)
        growth = 0
        if request.key == FETCH_LOG.key and size > _GROWS_FROM:
            growth = _FETCH_GROWTH * size
        while self.tasks and (
            len(self.tasks) >= limits.in_flight
            or self._held + self._expected + likely + growth > limits.connection_bytes
        ):
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
            likely = min(likely, self._likely_bytes(request))
        room = await self._room(likely) if likely else None
        self._queue.popleft()
        if growth:
            size += growth
            self._hold(growth)
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
        if self._session.trusted:
            self._reader.max_bytes = limits.request_bytes
            self.proven = self.proven or request.key not in _GREETINGS
        elif self._session.failures >= limits.attempts:
            logger.warning("a peer at %s was closed: wrong passwords", self.address)
            if self._transport is not None:
                self._transport.close()
            return False
        self._read_or_not()
        return True

    def _likely_bytes(self, request: Request) -> int:
        """Return how large an answer that is made in memory may be; 0 for small ones."""
        if request.key in _MADE:
            return self._likely
        if request.key == GET_METADATA.key and len(request.body) > _GROWS_FROM:
            return _METADATA_GROWTH * len(request.body)
        return 0

    async def _room(self, likely: int) -> Room:
        """Wait until there is room for an answer that is made in memory."""
        room = Room(self._connections.answers, likely, at_once=likely <= _SMALL_HELD)
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
        self._moved = asyncio.get_running_loop().time()
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
            self._connections.counters.bytes_out += len(data)
            self._transport.write(data)
