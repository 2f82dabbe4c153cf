"""What a writer could not write since it was last flushed: :class:`Failures`."""

from __future__ import annotations

import threading
from typing import NamedTuple

from fluss_df.errors import FlussError


class Failed(NamedTuple):
    """The first error, and how many batches and rows failed."""

    first: FlussError
    batches: int
    rows: int


class Failures:
    """Counts what failed until a flush raises it; safe for threads.

    Only the first error is kept: a writer may fail for days, and never be flushed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: Failed | None = None

    def note(self, error: FlussError, rows: int) -> None:
        """Take note of a batch that failed, and of how many rows were not written by that."""
        with self._lock:
            before = self._failed or Failed(error, 0, 0)
            self._failed = Failed(before.first, before.batches + 1, before.rows + rows)

    def take(self) -> Failed | None:
        """Return what failed since the last call, for a caller that raises it; None for nothing."""
        with self._lock:
            taken, self._failed = self._failed, None
        return taken

    @property
    def first(self) -> FlussError | None:
        """The first error since the last flush."""
        failed = self._failed
        return None if failed is None else failed.first

    @property
    def rows(self) -> int:
        """How many rows were not written since the last flush."""
        failed = self._failed
        return 0 if failed is None else failed.rows
