"""Remembers which columns of a log are valid, so that bytes that never change are checked once."""

from __future__ import annotations

from typing import TypeAlias

#: Batches without any missing: the offset of the first record, that behind the last, their bytes.
RunKey: TypeAlias = tuple[int, int, int]

# How many runs are remembered: about those of a scan of 10 GB. One more, and all are forgotten:
# they are validated again when they are read.
_MOST_RUNS = 4096


class CheckedColumns:
    """Columns of batches whose values were validated; for any number of threads.

    One belongs to the log of one bucket, for as long as this is open.

    Examples
    --------
    >>> checked = CheckedColumns()
    >>> checked.add((0, 100, 4096), ["id"])
    >>> checked.of((0, 100, 4096)), checked.of((100, 200, 4096))
    (frozenset({'id'}), frozenset())
    """

    def __init__(self) -> None:
        self._columns: dict[RunKey, frozenset[str]] = {}

    def of(self, run: RunKey) -> frozenset[str]:
        """Return the names of the columns that were validated."""
        return self._columns.get(run, frozenset())

    def add(self, run: RunKey, names: list[str]) -> None:
        """Take note of columns that are valid."""
        if len(self._columns) >= _MOST_RUNS:
            self._columns.clear()
        self._columns[run] = self.of(run).union(names)
