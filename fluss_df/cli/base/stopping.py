"""Commands that run until they are told to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Yield a function that waits for SIGINT or SIGTERM; restores the handlers at the end."""
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }

    def wait() -> None:
        # in slices, so that a signal is noticed at once on every platform
        while not ended.wait(0.5):
            pass

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
