"""The batches of a writer that are open, and flushes that wait for those that came before them."""

from __future__ import annotations

import concurrent.futures
from collections import deque


class Round:
    """The batches that came between two flushes: how many are open, and who waits for them."""

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open = 0
        self.waiting: list[concurrent.futures.Future[None]] = []


class OpenBatches:
    """Counts the batches of one writer until they are done with; on the I/O thread.

    A flush waits only for the batches that came before it. If it waited for later ones, too, it
    would never end while other threads go on writing. So batches are counted in rounds, and a flush
    ends a round. Batches of several buckets are done in any order. A round is over when no batch of
    it, or of an earlier round, is open.
    """

    def __init__(self) -> None:
        self.count = 0
        # never empty; the last one is that of the next batch
        self._rounds: deque[Round] = deque([Round()])

    def enter(self) -> Round:
        """Count a batch; return its round, for :meth:`leave`."""
        return self.enter_with(self._rounds[-1])

    def enter_with(self, of: Round) -> Round:
        """Count a batch that was cut off a batch of this round: it belongs to the same round."""
        of.open += 1
        self.count += 1
        return of

    def leave(self, of: Round) -> None:
        """Take note that a batch is done with."""
        of.open -= 1
        self.count -= 1
        rounds = self._rounds
        while not rounds[0].open:
            waiting, rounds[0].waiting = rounds[0].waiting, []
            for future in waiting:
                _tell(future)
            if len(rounds) == 1:
                return
            rounds.popleft()

    def tell_when_done(self, future: concurrent.futures.Future[None]) -> None:
        """Set the result of a future once every batch that came so far is done with."""
        if not self.count:
            _tell(future)
            return
        last = self._rounds[-1]
        if last.open:
            self._rounds.append(Round())
        else:
            # nothing came since the flush before: both wait for the same
            last = self._rounds[-2]
        # those whose callers wait no longer would be kept as long as no server answers
        last.waiting = [other for other in last.waiting if not other.cancelled()]
        last.waiting.append(future)


def _tell(future: concurrent.futures.Future[None]) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(None)
