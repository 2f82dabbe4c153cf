"""How much memory peers may make a server hold: who has to wait before more is received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class MemoryLimit:
    """Bytes that all connections share. For the event loop alone.

    A request is received once there is room for it, whoever asked first; one that is larger than
    all there is has to be alone.

    Parameters
    ----------
    limit
        The bytes.

    Attributes
    ----------
    held
        How many are taken.
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
        """Take bytes; False where there is no room yet, and ``admitted`` is called later.

        The bytes are taken when it is called.
        """
        if not self._waiting and self._fits(count):
            self.held += count
            return True
        self._waiting.append((count, admitted))
        return False

    def force(self, count: int) -> None:
        """Take bytes that are there already."""
        self.held += count

    def give(self, count: int) -> None:
        """Give bytes back."""
        self.held -= count
        self._admit()

    def forget(self, admitted: Callable[[], None]) -> None:
        """Wait no longer."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != admitted)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, admitted = self._waiting.popleft()
            self.held += count
            admitted()

    def _fits(self, count: int) -> bool:
        return not self.held or self.held + count <= self._limit
