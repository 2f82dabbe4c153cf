"""One query that runs: what its scans fetch, whether they may go on, and its end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

import polars as pl

from fluss_df.io.scans.live import live_queries
from fluss_df.io.scans.report import ScanReport, ScanRun, watching

# the longest wait without giving Polars a chance to end the query
_WAIT_S: Final = 0.2
# bytes that Polars gets at once: half as many take 25 % more processor time, twice as many 20 MB
_PART_BYTES: Final = 1 << 20


class RunningQuery:
    """Holds back, ends and counts the scans of one query, whatever thread reads them.

    Polars reads far ahead of who takes the result, and a query that waits for a server cannot be
    ended from outside. So the scans that are made while the query is planned look here before each
    frame.

    A scan holds at most about ``ahead_bytes`` of decoded data that Polars did not take, None for
    the usual amount. ``deadline`` is when the query ends by itself, by the monotonic clock, and
    with which error.
    """

    def __init__(self, ahead_bytes: int | None = None) -> None:
        self.ahead_bytes = ahead_bytes
        self.deadline: tuple[float, BaseException] | None = None
        self._changed = threading.Condition()
        self._runs: list[ScanRun] = []
        self._held = False
        self._error: BaseException | None = None
        live_queries.ended_at_exit(self)

    @contextlib.contextmanager
    def planned(self) -> Iterator[None]:
        """Have the scans that this thread makes in the block belong to the query."""
        before = watching.set(self)
        try:
            yield
        finally:
            watching.reset(before)

    @property
    def error(self) -> BaseException | None:
        """Why the query was ended; None while it may go on."""
        return self._error

    @property
    def scans(self) -> list[ScanReport]:
        """What its scans fetched so far, in the order in which they began."""
        with self._changed:
            runs = list(self._runs)
        return [run.report() for run in runs]

    def began(self, run: ScanRun) -> None:
        """Take note of a scan that begins."""
        with self._changed:
            self._runs.append(run)

    def hold(self, held: bool) -> None:
        """Have the scans wait, or go on."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    def end(self, error: BaseException) -> None:
        """Have every scan of the query raise an error, those that wait too; the first one counts.

        What Polars computes of rows that it has is not ended by this.
        """
        with self._changed:
            if self._error is None:
                self._error = error
            self._held = False
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error by which the query was ended."""
        if self.deadline is not None and time.monotonic() >= self.deadline[0]:
            self.end(self.deadline[1])
        if self._error is not None:
            raise self._error

    def paced(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Iterate over the frames of a scan, as fast as the query may."""
        try:
            self.check()
            for frame in frames:
                for part in _parts(frame):
                    self.check()
                    while not self._may_go_on():
                        yield part.clear()
                        self.check()
                    yield part
        finally:
            # closed, so that its threads end now and not when the garbage is collected
            close = getattr(frames, "close", None)
            if close is not None:
                close()

    def _may_go_on(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, _WAIT_S)


def _parts(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Cut a frame: Polars has several of them on their way, whatever their size."""
    size = int(frame.estimated_size())
    if size <= 2 * _PART_BYTES:
        yield frame
    else:
        yield from frame.iter_slices(max(1, frame.height * _PART_BYTES // size))
