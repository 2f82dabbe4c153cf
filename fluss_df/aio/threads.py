"""Threads for calls that block: :class:`Threads`. The end of the program interrupts the calls.

Those of ``concurrent.futures`` are waited for at the end, and so is a call that nobody awaits any
more: with a silent server that took a minute and more.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, TypeVar

from fluss_df.client.runtime.interrupts import InterruptedCallError, Interruptible
from fluss_df.client.runtime.io_thread import reset_after_fork
from fluss_df.errors import FlussError
from fluss_df.hooks import EndStep, at_end

P = ParamSpec("P")
T = TypeVar("T")

# how long the end of the program waits for calls that were interrupted; one that waits for bytes of
# a silent server does not notice it
_END_WAIT_S = 1.0


class _Shared:
    """What threads know of their pool, which may be collected while they wait."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.idle = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.running: set[Interruptible] = set()

    def main(self) -> None:
        while True:
            try:
                call = self.work.get_nowait()
            except queue.Empty:
                self.idle.release()
                call = self.work.get()
            if call is None:
                # for the next thread
                self.work.put(None)
                return
            # an interrupt may come behind the call, too
            with contextlib.suppress(InterruptedCallError):
                call.run(self)
            del call

    def end(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                call = self.work.get_nowait()
                if call is not None:
                    call.future.cancel()
        with self.lock:
            for running in self.running:
                running.interrupt()


class _Call:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work

    def run(self, shared: _Shared) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        here = Interruptible()
        with shared.lock:
            shared.running.add(here)
            # taken from the queue right before the end looked at it
            here.interrupted = _ending.is_set()
        try:
            with here:
                result = self._work()
        except InterruptedCallError:
            error = FlussError("the call was ended, as the program ended before it")
            self.future.set_exception(error)
        except BaseException as error:
            self.future.set_exception(error)
            # an error keeps the frames that it passed through, and they would keep the call
            self = None  # type: ignore[assignment]
        else:
            self.future.set_result(result)
        finally:
            with shared.lock:
                shared.running.discard(here)


class Threads:
    """At most ``most`` threads, which are daemons; one thread does its calls in their order.

    Calls have the context (``contextvars``) of who submits them.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self.after_fork()
        reset_after_fork(self)
        _all.add(self)

    def after_fork(self) -> None:
        """Have no threads in a forked child: those of the parent are not there."""
        self._shared = _Shared()
        self._lock = threading.Lock()
        self._started = 0
        weakref.finalize(self, self._shared.work.put, None).atexit = False

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call. Raises RuntimeError when the program is ending."""
        context = contextvars.copy_context()
        call = _Call(functools.partial(context.run, function, *args, **kwargs))
        with self._lock:
            if _ending.is_set():
                raise RuntimeError("the program is ending: it takes no more calls")
            self._shared.work.put(call)
            if not self._shared.idle.acquire(blocking=False) and self._started < self._most:
                name = f"{self._name}_{self._started}"
                threading.Thread(target=self._shared.main, name=name, daemon=True).start()
                self._started += 1
        return call.future

    def end(self) -> None:
        """Interrupt what runs, and begin nothing any more."""
        with self._lock:
            self._shared.end()

    @property
    def busy(self) -> bool:
        """Whether a call runs."""
        return bool(self._shared.running)


_all: Final[weakref.WeakSet[Threads]] = weakref.WeakSet()
_ending: Final = threading.Event()


def _end_all() -> None:
    _ending.set()
    threads = list(_all)
    for each in threads:
        each.end()
    # a daemon that is in Arrow when the interpreter ends would abort the process
    end = time.monotonic() + _END_WAIT_S
    while any(each.busy for each in threads) and time.monotonic() < end:
        time.sleep(0.01)


at_end(EndStep.CALLS, _end_all)
