"""The memory that peers may make a server hold, and the requests that wait for room in it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class MemoryLimit:
    """Bytes that all connections share. For the event loop alone.

    Requests are received in the order in which they asked for room. A request that is larger than
    the whole limit is received when nothing else is held.

    ``limit`` is the bytes; ``held`` is how many of them are taken.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.held = 0

    @property
    def crowded(self) -> bool:
        """Whether anyone waits for room."""
        return bool(self._waiting)

    def take(self, count: int, admitted: Callable[[], None]) -> bool:
        """Take bytes, or return False if there is no room yet.

        ``admitted`` is called later then, when there is room and the bytes were taken.
        """
        if not self._waiting and self._fits(count):
            self.held += count
            return True
        self._waiting.append((count, admitted))
        return False

    def force(self, count: int) -> None:
        """Take bytes without waiting, for memory that is used already."""
        self.held += count

    def give(self, count: int) -> None:
        """Give bytes back."""
        self.held -= count
        self._admit()

    def forget(self, admitted: Callable[[], None]) -> None:
        """Give up a wait for room."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != admitted)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, admitted = self._waiting.popleft()
            self.held += count
            admitted()

    def _fits(self, count: int) -> bool:
        return not self.held or self.held + count <= self._limit


class Room:
    """Bytes of a limit that one answer has, from before it is made until it is sent.

    ``size`` is how many. At first that is how many the answer will have, as far as that is known.
    With ``at_once`` it does not wait for room, as it is small.
    """

    def __init__(self, limit: MemoryLimit, size: int, *, at_once: bool = False) -> None:
        self._limit = limit
        self.size = size
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if at_once:
            limit.force(size)
        if at_once or limit.take(size, self._admit):
            self._entered.set_result(None)

    @property
    def waits(self) -> bool:
        """Whether there was no room yet."""
        return not self._entered.done()

    def _admit(self) -> None:
        if self._entered.done():  # nobody waits any more
            self._limit.give(self.size)
        else:
            self._entered.set_result(None)

    async def entered(self) -> None:
        """Wait until it has the bytes."""
        try:
            await self._entered
        except asyncio.CancelledError:
            if self._entered.cancelled():
                self._limit.forget(self._admit)
            else:
                self.leave()
            raise

    def resize(self, size: int) -> None:
        """Have another number of bytes."""
        if size > self.size:
            self._limit.force(size - self.size)
        else:
            self._limit.give(self.size - size)
        self.size = size

    def leave(self, _: object = None) -> None:
        """Give the bytes back; a second call does nothing."""
        self.resize(0)
