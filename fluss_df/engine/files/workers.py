"""Threads for work on the disk.

Not a ThreadPoolExecutor: Python shuts those down before exit hooks run, and a program that ends
without ``close()`` gets its rows written in such a hook.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
_Job = Callable[[], None]
# the steps of a long loop before other threads get a turn, and the seconds of their turn
_STEPS: Final = 256
_SHORT: Final = 4096
_TURN_S: Final = 0.0002
# the most threads that stand aside, see Workers.aside
_MOST_ASIDE: Final = 128


def paced(items: Iterable[T]) -> Iterator[T]:
    """Iterate; where there are thousands of items, other threads get to run in between.

    A thread that only computes gives others a turn every 5 ms, and an answer to another peer needs
    several turns.
    """
    for number, item in enumerate(items):
        if number >= _SHORT and not number % _STEPS:
            give_turn()
        yield item


def give_turn() -> None:
    """Let other threads run for a moment."""
    time.sleep(_TURN_S)


class Workers:
    """A few daemon threads, ``count`` of them, which are started on first use."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._aside = 0

    def submit(self, function: Callable[..., T], *args: object) -> concurrent.futures.Future[T]:
        """Have a function called; return the future of its result.

        Raises RuntimeError after :meth:`close`.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        done = [future]

        def job() -> None:
            if done[0].set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:
                    # An error refers to its frames and the future to the error; this frame must
                    # not refer to the future: a request's bytes would wait for the collector.
                    done.pop().set_exception(error)
                else:
                    done.pop().set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            try:
                self._start()
            except RuntimeError:
                # this process may have no further thread: those that it has do the work
                if not self._threads:
                    raise
            self._jobs.put(job)
        return future

    def _start(self) -> None:
        """Start another thread, unless there are enough."""
        if len(self._threads) < self._count + self._aside:
            thread = threading.Thread(
                target=self._work, name=f"fluss-df-disk-{len(self._threads)}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Have another thread work in the place of this one, which may take or wait for long.

        Nothing happens where this thread is none of these, or many stand aside.
        """
        with self._lock:
            steps = threading.current_thread() in self._threads
            steps = steps and self._aside < _MOST_ASIDE and not self._closed
            self._aside += steps
            if steps and not self._jobs.empty():
                # without another thread, jobs wait for this one
                with contextlib.suppress(RuntimeError):
                    self._start()
        try:
            yield
        finally:
            with self._lock:
                # there is a thread too many now: one of them ends behind its job
                self._aside -= steps

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            del job  # what it refers to, a request's bytes, must not wait for the next one
            # most often there are not too many, which needs no lock to be seen
            if len(self._threads) <= self._count + self._aside:
                continue
            with self._lock:
                if not self._closed and len(self._threads) > self._count + self._aside:
                    self._threads.remove(threading.current_thread())
                    return

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            thread.join()
