"""What a writer could not write, until somebody is told: :class:`Failures`."""

from __future__ import annotations

import functools
import threading
from typing import Final, NamedTuple

from fluss_df.client.send.batch import WriteResultHandle
from fluss_df.errors import FlussError

# so many errors are kept, and of more only their number: a writer may never be flushed, and fail
# for days
_MOST_KEPT: Final = 100


class Told(NamedTuple):
    """What a flush tells: the first error, and how many batches and rows failed."""

    first: FlussError
    batches: int
    rows: int


class _Untold:
    """What failed since the last flush, and was raised by no call."""

    def __init__(self) -> None:
        self.batches = self.rows = 0
        # the first errors, by their number
        self.kept: dict[int, FlussError] = {}
        # the last error that is not kept
        self.last: FlussError | None = None

    @property
    def first(self) -> FlussError | None:
        if not self.batches:
            return None
        return next(iter(self.kept.values()), self.last)


class Failures:
    """Counts what failed, and keeps the first errors, until they are told; safe for threads.

    An error is told once: by the handle of its rows, where somebody waits for that, else by the
    next flush.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untold = _Untold()
        self._number = 0

    def note(self, error: FlussError, rows: int, handle: WriteResultHandle | None = None) -> None:
        """Take note of rows that were not written; their handle is not done yet."""
        with self._lock:
            untold, number = self._untold, self._number
            self._number += 1
            untold.batches += 1
            untold.rows += rows
            if len(untold.kept) < _MOST_KEPT:
                untold.kept[number] = error
            else:
                untold.last = error
        if handle is not None:
            handle.when_told(functools.partial(self._told, untold, number, rows))

    def _told(self, of: _Untold, number: int, rows: int) -> None:
        """Take note that a handle raised an error; not where a flush did before."""
        with self._lock:
            of.batches -= 1
            of.rows -= rows
            of.kept.pop(number, None)

    def take(self) -> Told | None:
        """Return what nobody was told, for who tells it now; None where there is nothing."""
        with self._lock:
            taken, self._untold = self._untold, _Untold()
            first = taken.first
            told = None if first is None else Told(first, taken.batches, taken.rows)
            taken.kept.clear()
        return told

    @property
    def first(self) -> FlussError | None:
        """The first error that nobody was told."""
        with self._lock:
            return self._untold.first

    @property
    def rows(self) -> int:
        """How many rows were not written, and nobody was told."""
        return self._untold.rows
