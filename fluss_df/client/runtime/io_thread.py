"""The one I/O thread of the process, and the bridge to it.

Everything that is small and must not wait for another's Python code runs here as coroutines:
connections, metadata, writers. Bulk fetches do not: they run on blocking reader threads
(``transport/blocking.py``), which were 1.4 to 1.7 times as fast beside a busy Python thread: one
system call receives a whole frame, and so the interpreter lock is taken once for it.

A forked child starts without the thread: locks and sockets of the parent are of no use to it, so
everything is made there on first use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fluss_df.errors import FlussError
from fluss_df.hooks import ForkStep, after_fork

T = TypeVar("T")


# Python's own waits for a lock are restarted, not interrupted, where a library has installed its
# signal handlers so (Polars does): only waits that end by themselves let Ctrl-C in.
WAIT_SLICE_S = 0.2


def result_of(future: concurrent.futures.Future[T], timeout_s: float | None = None) -> T:
    """Return the result of a future like ``future.result``, and let Ctrl-C in meanwhile.

    Raises TimeoutError when there is none within ``timeout_s``; FlussError on the I/O thread, which
    would wait for itself, unless the result is there.
    """
    if _thread is not None and not future.done():
        _thread.require_another()
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = WAIT_SLICE_S if end is None else min(WAIT_SLICE_S, end - time.monotonic())
        try:
            return future.result(max(0.0, left))
        except TimeoutError:
            # the work itself may have failed with a TimeoutError
            if future.done():
                return future.result()
            if end is not None and time.monotonic() >= end:
                raise


class IOThread:
    """An event loop on a daemon thread.

    A daemon, because a program that forgets ``close()`` must end; what is unwritten then is
    reported by the writers' own exit hook.
    """

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self._resources: dict[type, Any] = {}
        self._thread = threading.Thread(target=self._main, name="fluss-df-io", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def resource(self, kind: type[T]) -> T:
        """Return the one object of a class that lives on this thread; made on first use."""
        found: T = self._resources.setdefault(kind, kind())
        return found

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the I/O thread; return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the I/O thread and wait for its result.

        Ctrl-C while waiting cancels the coroutine.
        """
        try:
            self.require_another()
        except FlussError:
            work.close()
            raise
        future = self.submit(work)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()
            raise

    def require_another(self) -> None:
        """Raise FlussError on this thread, where waiting for it would never end."""
        if threading.current_thread() is self._thread:
            raise FlussError("a blocking call was made on the I/O thread: call it from your own")

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the I/O thread, soon."""
        self.loop.call_soon_threadsafe(function, *args)

    def call_unless_closed(self, function: Callable[..., object], *args: Any) -> None:
        """Like :meth:`call`, for finalizers: does nothing when the loop is gone."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *args)


_lock = threading.Lock()
_thread: IOThread | None = None
_reset_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()


def io_thread() -> IOThread:
    """Return the I/O thread of this process; start it on first use."""
    global _thread
    if _thread is None:
        with _lock:
            if _thread is None:
                _thread = IOThread()
    return _thread


def reset_after_fork(thing: Any) -> None:
    """Have ``thing.after_fork()`` called in every forked child, as long as the thing lives."""
    _reset_after_fork.add(thing)


def _after_fork_in_child() -> None:
    global _thread, _lock
    _lock = threading.Lock()
    _thread = None
    failed: Exception | None = None
    for thing in list(_reset_after_fork):
        try:
            thing.after_fork()
        except Exception as error:
            # the others have sockets of the parent until they are reset
            failed = error
    if failed is not None:
        raise failed


after_fork(ForkStep.IO_THREAD, _after_fork_in_child)
