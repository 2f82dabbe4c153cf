"""Work that Ctrl-C does not cut in two: :func:`shielded`.

Python raises KeyboardInterrupt in the main thread, between any two of its steps. Rows that a writer
had taken, and was putting together or handing over at that moment, would be lost without a word
(half of all interrupts lost some thousand rows). So the main thread has such work done by another
thread, and only waits for it: an interrupt ends the wait, and not the work.

Calls of coroutines run on other threads. The end of the program interrupts them in the same way
(:class:`Interruptible`), but not while they do such work.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from fluss_df.client.runtime.io_thread import result_of
from fluss_df.hooks import ForkStep, after_fork

T = TypeVar("T")

_IDLE_S = 30.0


class _Job:
    """Something to do for the main thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.abandoned = False

    def run(self) -> None:
        try:
            result = self.work()
        except BaseException as error:
            self.outcome.set_exception(error)
            # an error keeps the frames that it passed through: without this, they would keep the
            # job
            self = None  # type: ignore[assignment]
        else:
            self.outcome.set_result(result)


class _Shield:
    """A thread that does jobs."""

    def __init__(self) -> None:
        # an interrupt cannot come in the middle of its put
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # a program may end while it waits for a job
        threading.Thread(target=self._main, name="fluss-df-shield", daemon=True).start()

    def _main(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                # an interrupt came between its start and its first job, or with the one before
                if _shield is not self:
                    return
                continue
            if job is None:
                return
            _here.job = job
            job.run()
            _here.job = None
            del job


class InterruptedCallError(KeyboardInterrupt):
    """A call was interrupted by the end of the program."""


class Interruptible(contextlib.AbstractContextManager["Interruptible"]):
    """A call on a thread other than the main one, which another thread can interrupt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._open = False
        self._shields = 0
        self.interrupted = False

    def __enter__(self) -> Self:
        with self._lock:
            self._open = True
            if self.interrupted:
                raise InterruptedCallError
        _here.call = self
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open = False
        _here.call = None

    def interrupt(self) -> None:
        """Raise InterruptedCallError in the call, as Python raises KeyboardInterrupt."""
        with self._lock:
            self.interrupted = True
            if self._open and not self._shields:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(InterruptedCallError)
                )

    def shield(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; an interrupt comes before or behind it."""
        with self._lock:
            if self.interrupted:
                raise InterruptedCallError
            self._shields += 1
        try:
            return work()
        finally:
            with self._lock:
                self._shields -= 1
            if self.interrupted and not self._shields:
                raise InterruptedCallError


_here = threading.local()
_shield: _Shield | None = None


def shielded(work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or raise what it raises; it is not cut in two by Ctrl-C.

    Work that waits asks :func:`abandoned` meanwhile, to end soon after an interrupt. The caller
    holds no lock that the work takes.
    """
    global _shield
    if threading.get_ident() != threading.main_thread().ident:
        call: Interruptible | None = getattr(_here, "call", None)
        return work() if call is None else call.shield(work)
    job = _Job(work)
    shield = _shield
    try:
        if shield is None:
            shield = _shield = _Shield()
    except RuntimeError:  # no new threads: the interpreter is ending
        return work()
    try:
        shield.jobs.put(job)
        result: T = result_of(job.outcome)
        return result
    except BaseException:
        if not job.outcome.done():
            job.abandoned = True
            # the next work gets a new thread, and does not wait for this one
            _shield = None
            shield.jobs.put(None)
        raise
    finally:
        del job  # see _Job.run


def abandoned() -> bool:
    """Whether this is work whose caller was interrupted and no longer waits for it."""
    job, call = getattr(_here, "job", None), getattr(_here, "call", None)
    return (job is not None and job.abandoned) or (call is not None and call.interrupted)


def _after_fork_in_child() -> None:
    global _shield
    _shield = None


after_fork(ForkStep.INTERRUPTS, _after_fork_in_child)
