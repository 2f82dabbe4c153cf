"""Queries that have readers on threads of Polars, which the interpreter's exit must not meet.

A query that fails, or needs no more rows, returns before its readers are gone; Polars drops them on
threads of its own, and a thread that needs the interpreter while it is torn down crashes the
process. An iterator of batches that is never finished keeps its readers waiting for ever, and the
interpreter waiting for their threads.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its exit hook is to be registered before ours
import queue
import threading
import time
import weakref
from typing import Final, Protocol

from fluss_df.hooks import EndStep, ExitStep, ForkStep, after_fork, at_end, at_exit
from fluss_df.polars_adapter.plans import drop_batches
from fluss_df.polars_adapter.scans import end_reads

# the readers of a query that just ended are gone sooner
_USUAL_S: Final = 0.5
_EXIT_WAIT_S: Final = 2.0
_TURN_S: Final = 0.1
# how long a thread that dropped a reader needs to leave the interpreter
_LEAVE_S: Final = 0.01


class Ending(Protocol):
    """A query that can be ended from outside."""

    def end(self, error: BaseException) -> None:
        """Have its scans raise an error."""


class LiveQueries:
    """Counts objects of queries as long as they live.

    A queue, whose ``put`` is not written in Python, gets those that are gone. Polars drops objects
    within the call by which the main thread waits for a query: in a function of Python that is
    called there, a pending KeyboardInterrupt would be raised, printed and forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, weakref.ref[object]] = {}
        self._gone: queue.SimpleQueue[weakref.ref[object]] = queue.SimpleQueue()
        self._ended: weakref.WeakSet[Ending] = weakref.WeakSet()

    def ended_at_exit(self, query: Ending) -> None:
        """Have a query ended where the program ends before it."""
        self._ended.add(query)

    def add(self, holder: object) -> None:
        """Count an object until it is gone."""
        held = weakref.ref(holder, self._gone.put)
        with self._lock:
            self._held[id(held)] = held
        self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until none is left; return whether that is so."""
        end = time.monotonic() + timeout_s
        while self._held:
            left = max(0.0, end - time.monotonic())
            try:
                # another thread may take the last one
                gone = self._gone.get(timeout=min(left, _TURN_S))
            except queue.Empty:
                if not left:
                    return False
                continue
            with self._lock:
                del self._held[id(gone)]
        return True

    def after_fork(self) -> None:
        """Forget the parent's queries in a forked child, where their threads do not exist."""
        self.__init__()  # type: ignore[misc]

    def before_exit(self) -> None:
        """End the iterators of batches that the program left, before its threads are waited for."""
        for query in list(self._ended):
            query.end(RuntimeError("the program ends"))
        if self.wait(_USUAL_S):
            return
        end_reads()
        drop_batches()

    def at_exit(self) -> None:
        """Wait until the threads of Polars are out of the interpreter."""
        if not self.wait(0.0):
            self.wait(_EXIT_WAIT_S)
            time.sleep(_LEAVE_S)


live_queries = LiveQueries()
at_end(EndStep.QUERIES, live_queries.before_exit)
at_exit(ExitStep.QUERIES, live_queries.at_exit)
after_fork(ForkStep.QUERIES, live_queries.after_fork)
