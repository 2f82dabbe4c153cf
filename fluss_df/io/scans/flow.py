"""A query that runs on its own thread, and hands its rows on as they are taken."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import polars as pl

from fluss_df.errors import FlussError
from fluss_df.io.scans.live import live_queries
from fluss_df.io.scans.running import RunningQuery
from fluss_df.polars_adapter.plans import run_into
from fluss_df.polars_adapter.scans import polars_reason

# Bytes of results that nobody took yet. Above the first number the scans wait, and above the second
# Polars does, too.
_HELD_BYTES: Final = 1 << 20
_MOST_HELD_BYTES: Final = 4 * _HELD_BYTES
# Bytes that a scan decodes ahead of Polars. Each of its threads decodes half as many at once, or a
# batch of the log if that is larger. Measured: a stream of 1 GB takes a quarter less memory than
# with 8 MB here.
_AHEAD_BYTES: Final = 2 << 20


@contextmanager
def _panics() -> Iterator[None]:
    """Raise a panic of Polars as FlussError: who handles each Exception handles it, too."""
    try:
        yield
    except pl.exceptions.PanicException as error:
        raise FlussError(
            f"the query was ended by an error within Polars (a panic): {polars_reason(error)}"
        ) from error


class Flow:
    """Carries rows from a thread that computes a query to their consumer, in bounded memory.

    Its scans wait while rows are not taken: what is held is a few MB, however large the result is.
    The thread computes in the context ``errors``, which turns errors of Polars into those of Fluss;
    without one, its panics alone. Scans are held back and ended with the query where it is planned
    within ``running.planned()``.
    """

    def __init__(self, errors: Callable[[], AbstractContextManager[None]] = _panics) -> None:
        self._errors = errors
        self.running = RunningQuery(_AHEAD_BYTES)
        self._changed = threading.Condition()
        self._frames: deque[tuple[pl.DataFrame, int]] = deque()
        self._held = 0
        self._done = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        live_queries.ended_at_exit(self)

    def batches(
        self, frame: pl.LazyFrame, *, chunk_size: int | None = None
    ) -> Generator[pl.DataFrame]:
        """Run a query once the first of its batches is asked for, and yield them in order.

        The query ends where the iterator is closed. ``chunk_size`` is how many rows a batch has;
        None for as many as Polars has at once.
        """
        try:
            self.start(lambda: self.sink(frame, chunk_size=chunk_size))
            yield from self.frames()
        finally:
            self.end(FlussError("the rows of the query were not taken to their end"))

    def start(self, work: Callable[[], object]) -> None:
        """Do the work on a thread; where it ends, the frames end."""

        def main() -> None:
            error: BaseException | None = None
            try:
                self.running.check()
                with self._errors():
                    work()
            except BaseException as caught:
                error = caught
            with self._changed:
                self._done, self._error = True, error
                self._changed.notify_all()

        self._thread = threading.Thread(target=main, name="fluss-df-query", daemon=True)
        self._thread.start()

    def sink(self, frame: pl.LazyFrame, *, chunk_size: int | None = None) -> None:
        """Compute a frame, as its parts are taken."""
        run_into(frame, self._put, chunk_size=chunk_size, engine="streaming")

    def _put(self, frame: pl.DataFrame) -> bool:
        """Hold a part; True ends the query."""
        size = int(frame.estimated_size())
        with self._changed:
            if self.running.error is not None:
                return True
            self._frames.append((frame, size))
            self._held += size
            if self._held >= _HELD_BYTES:
                self.running.hold(True)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._held < _MOST_HELD_BYTES or self.running.error is not None
            )
            return self.running.error is not None

    def frames(self) -> Iterator[pl.DataFrame]:
        """Iterate over the parts; raises the error of the thread, or that which :meth:`end` got."""
        while True:
            with self._changed:
                while not self._frames and not self._done and self.running.error is None:
                    self._changed.wait(self._seconds_left())
                    if self._seconds_left() == 0.0:
                        break
                ended = self._done and not self._frames
                if not ended and self._frames:
                    frame, size = self._frames.popleft()
                    self._held -= size
                    if self._held < _HELD_BYTES:
                        self.running.hold(False)
                    self._changed.notify_all()
            self.check()
            if ended:
                if self._error is not None:
                    raise self._error
                return
            yield frame

    def check(self) -> None:
        """Raise the error by which the query was ended."""
        try:
            self.running.check()
        except BaseException as error:
            self.end(error)
            raise

    def _seconds_left(self) -> float | None:
        deadline = self.running.deadline
        return None if deadline is None else max(0.0, deadline[0] - time.monotonic())

    def end(self, error: BaseException) -> None:
        """End the query with an error for who waits; nothing, if all its rows were taken."""
        with self._changed:
            if self._done and not self._frames:
                return
        self.running.end(error)
        with self._changed:
            self._frames.clear()
            self._held = 0
            self._changed.notify_all()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for the thread, if there is one."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
