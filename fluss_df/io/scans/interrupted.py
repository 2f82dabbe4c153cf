"""Ctrl-C while the main thread waits for a query of Polars whose rows have no end.

Polars ends a query by a signal handler of its own. That is gone where Python's is set again, as a
Jupyter kernel does for each cell: Python then raises KeyboardInterrupt once the query has ended,
and an endless one never does. So a scan without an end looks for interrupts itself. A thread that
is not the main one cannot ask Python for them, but reads from the socket to which Python writes the
number of each signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import weakref
from typing import Final

from fluss_df.hooks import ForkStep, after_fork
from fluss_df.polars_adapter.plans import waited_for

_READ_BYTES: Final = 4096


class _Interrupts:
    """Counts the interrupts of this process, where nobody else has Python write them down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._count = 0

    def watch(self) -> None:
        """Begin to count; does nothing but in the main thread, which alone can have that done."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sockets is None:
            self._sockets = socket.socketpair()
            for end in self._sockets:
                end.setblocking(False)
        own = self._sockets[1].fileno()
        try:
            before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        except ValueError:
            # a subinterpreter of this process
            return
        if before not in (-1, own):
            # an event loop gets its signals this way: those that came meanwhile are for it
            signal.set_wakeup_fd(before)
            with contextlib.suppress(OSError):
                os.write(before, self._read())

    def count(self) -> int:
        """Return how many interrupts came since the first look."""
        with self._lock:
            self._count += self._read().count(signal.SIGINT)
            return self._count

    def _read(self) -> bytes:
        if self._sockets is None:
            return b""
        try:
            return self._sockets[0].recv(_READ_BYTES)
        except OSError:
            # nothing is there
            return b""

    def after_fork(self) -> None:
        """Let go of the sockets in a forked child: what it writes there, its parent would read."""
        if self._sockets is not None:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._sockets[1].fileno()):
                signal.set_wakeup_fd(before)
        self.__init__()  # type: ignore[misc]


_interrupts = _Interrupts()
after_fork(ForkStep.SIGNALS, _interrupts.after_fork)


def watch_interrupts() -> None:
    """Have :class:`InterruptibleWait` see interrupts from now on; call it in the main thread."""
    _interrupts.watch()


class InterruptibleWait:
    """The wait of the main thread for the query that reads a scan; made where the scan begins."""

    def __init__(self) -> None:
        query = waited_for()
        # a query that began before anybody waited may be any one that is waited for later
        self._query = None if query is None else weakref.ref(query)
        self._before = _interrupts.count()

    def check(self) -> None:
        """Raise KeyboardInterrupt where the main thread waits for the query and was interrupted.

        Not where interrupts have another handler than that of Python, which raises it.
        """
        count = _interrupts.count()
        if count == self._before:
            return
        query = waited_for()
        if query is None:
            # the main thread is running Python code, which raises KeyboardInterrupt there
            self._before = count
        elif (self._query is None or self._query() is query) and signal.getsignal(
            signal.SIGINT
        ) is signal.default_int_handler:
            raise KeyboardInterrupt
