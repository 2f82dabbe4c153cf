"""The limits of a server, and the connections that are open within them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from fluss_df.engine.files.open_files import allowed_files
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.requests.dispatch import Dispatcher
from fluss_df.engine.serve.memory_limit import MemoryLimit

logger = SeldomLogger(logging.getLogger(__name__))

# seconds of silence after which a connection may be closed to make room: _NEW_S before its first
# request (sooner where it did not say who it is), _IDLE_S after it
_NEW_S: Final = 1.0
_IDLE_S: Final = 10.0
# the most new connections that are closed for one that comes
_CLOSED_AT_ONCE: Final = 16
# connections may use 1/4 of the file descriptors of the process
_FILES_PART: Final = 4
_LEAST_CONNECTIONS: Final = 8
_SWEEP_S: Final = 5.0


class Peer(Protocol):
    """What this module needs of a connection."""

    #: where it is; "" for one by the Unix socket
    address: str
    #: whether it asked for anything
    proven: bool
    #: answers that are being made
    tasks: dict[asyncio.Task[None], int]
    worker: asyncio.Task[None] | None

    @property
    def greeted(self) -> bool:
        """Whether it said who it is."""

    def idle_s(self, now: float) -> float:
        """Return for how long it has done nothing."""

    def stop_reading(self) -> None:
        """Receive nothing more."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True, eq=False)
class Handshake:
    """A peer that shakes hands (TLS), and is no connection yet."""

    address: str
    since: float
    task: asyncio.Task[None]

    def close(self) -> None:
        """End it."""
        self.task.cancel()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of what peers may use of a server.

    Parameters
    ----------
    connections
        The most at once by TCP, and the most by the Unix socket; fewer where a quarter of
        the files that the process may open are fewer. For a further one, the connection is closed
        that has done nothing for the longest time, if it has asked for nothing yet, or for nothing
        in 10 s; where there is none, the further one is closed.
    connections_per_address
        The most from one address; None for three quarters of ``connections``.
    request_bytes
        The largest request; a larger one ends its connection. Requests that carry no rows are
        refused at 4 MB, lookups at 32 MB.
    unauthenticated_s
        How long a peer may take to say who it is, or to send its first request.
    attempts
        Wrong passwords of one connection, which ends it. After three, a user's passwords from an
        address are tried one a second.
    idle_s
        How long a peer may ask for nothing, or take no answers, before it is closed.
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
        Seconds that a slow peer has while others wait for room in ``total_bytes``. A peer is
        disconnected if it sends nothing of its request and takes nothing of its answers for this
        time, or if less than an eighth of its request came in it.
    """

    connections: int = 1000
    connections_per_address: int | None = None
    request_bytes: int = 128 << 20
    unauthenticated_s: float = 30.0
    attempts: int = 3
    idle_s: float = 600.0
    in_flight: int = 256
    connection_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    stalled_s: float = 30.0


PeerT = TypeVar("PeerT", bound=Peer)


class Connections(Generic[PeerT]):
    """All connections of a server, with their limits."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self.dispatcher = dispatcher
        self.counters = dispatcher.engine.counters
        self.limits = limits
        self.open: set[PeerT] = set()
        self.shaking: set[Handshake] = set()
        self.memory = MemoryLimit(limits.total_bytes)
        self.answers = MemoryLimit(limits.total_bytes)
        # by the peer's address; "" is this machine's Unix socket
        self._counts: Counter[str] = Counter()
        most = min(limits.connections, max(_LEAST_CONNECTIONS, allowed_files() // _FILES_PART))
        self._most = most
        self._most_of_one = limits.connections_per_address or most - most // 4
        self._sweeping: asyncio.TimerHandle | None = None

    def admit(self, address: str) -> bool:
        """Whether another connection of an address may come in; another one is closed for it."""
        if self._has_room(address):
            return True
        self.counters.connections_refused += 1
        return False

    def _has_room(self, address: str) -> bool:
        if not address:
            return self._counts[""] < self._most
        from_there = self._counts[address] + sum(g.address == address for g in self.shaking)
        if from_there >= self._most_of_one and not self.make_room(address):
            logger.warning(
                "a connection from %s was closed: %s are open from there (Limits)",
                address,
                from_there,
            )
            return False
        by_tcp = self._counts.total() - self._counts[""] + len(self.shaking)
        if by_tcp >= self._most and not self.make_room(""):
            logger.warning(
                "a connection from %s was closed: %s are open (Limits)", address, self._most
            )
            return False
        return True

    def make_room(self, address: str) -> bool:
        """Close connections that do nothing, of one address or any (""); return whether it did."""
        now = asyncio.get_running_loop().time()
        shaking = [guest for guest in self.shaking if address in ("", guest.address)]
        if shaking:
            # who has not even shaken hands goes first
            oldest = min(shaking, key=lambda guest: guest.since)
            oldest.close()
            self.shaking.discard(oldest)
            return True
        new: list[tuple[float, PeerT]] = []
        idle: list[tuple[float, PeerT]] = []
        for connection in self.open:
            if not connection.address or address not in ("", connection.address):
                continue
            seconds = connection.idle_s(now)
            if not connection.proven:
                new.append((seconds, connection))
            elif seconds > _IDLE_S:
                idle.append((seconds, connection))
        new.sort(key=lambda entry: entry[0], reverse=True)
        idle.sort(key=lambda entry: entry[0], reverse=True)
        closed = [entry for entry in new[:_CLOSED_AT_ONCE] if entry[0] > _NEW_S]
        # Where all are young, someone opens connections faster than anyone can use them: the one
        # that came now is likelier to be used than the oldest that did not even say who it is.
        silent = [entry for entry in new if not entry[1].greeted]
        closed = closed or silent[:1] or idle[:1]
        for _, connection in closed:
            logger.warning(
                "a connection from %s that did nothing was closed: another one came",
                connection.address,
            )
            connection.close()
            self.leave(connection)
        return bool(closed)

    def enter(self, connection: PeerT) -> None:
        """Count a connection in."""
        self.open.add(connection)
        self.counters.connections_accepted += 1
        self._counts[connection.address] += 1
        if self._sweeping is None:
            self._sweep_later()

    def leave(self, connection: PeerT) -> None:
        """Count a connection out, once."""
        if connection in self.open:
            self.open.discard(connection)
            self._counts[connection.address] -= 1
            if not self._counts[connection.address]:
                del self._counts[connection.address]

    def _sweep_later(self) -> None:
        seconds = min(_SWEEP_S, self.limits.idle_s / 4)
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Close peers that have been idle for long."""
        self._sweeping = None
        now = asyncio.get_running_loop().time()
        for connection in list(self.open):
            if connection.address and connection.idle_s(now) > self.limits.idle_s:
                logger.log(
                    logging.DEBUG, "a peer at %s that was idle was closed", connection.address
                )
                connection.close()
        if self.open:
            self._sweep_later()

    @property
    def crowded(self) -> bool:
        """Whether anyone waits for room."""
        return self.memory.crowded or self.answers.crowded

    async def close(self) -> None:
        """Close all connections, after waiting up to a second for requests under way."""
        if self._sweeping is not None:
            self._sweeping.cancel()
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
