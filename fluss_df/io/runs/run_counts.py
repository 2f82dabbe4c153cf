"""The counters of a run's micro-batches, and its lag behind the table."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from fluss_df.metadata import TablePath
from fluss_df.observe import counters
from fluss_df.observe.counters import BETWEEN, Counts, Durations


class RunCounts:
    """Counters of a run, which only grow, and its lag; written by the thread of the run.

    ``name`` is the folder of the checkpoint. Where very many runs are counted, all further ones
    share one name. ``lag`` is how many rows of the table are not in a committed batch, when the
    table was last looked at. Rows after a given end do not count.
    """

    def __init__(self, checkpoint: str | os.PathLike[str], table: TablePath) -> None:
        self.name = counters.run_names.label(str(Path(checkpoint).absolute()))
        self.table = str(table)
        self.lag = 0
        self._lock = threading.Lock()
        self._batches = self._rows_read = self._rows_written = 0
        self._durations = Durations("batch")
        self._began = 0.0
        self._behind = 0

    def looked(self, behind: int) -> None:
        """Take note of how many rows the next batch leaves for those after it."""
        self._behind = behind

    def began(self, rows: int) -> None:
        """Take note of a batch."""
        self._began = time.monotonic()
        self.lag = self._behind + rows

    def nothing_new(self) -> None:
        """Take note that there is nothing to read."""
        self.lag = 0

    def committed(self, rows_read: int, rows_written: int) -> None:
        """Take note that the batch is done with."""
        self.lag = self._behind
        self._durations.add(f"{self.name}{BETWEEN}{self.table}", time.monotonic() - self._began)
        with self._lock:
            self._batches += 1
            self._rows_read += rows_read
            self._rows_written += rows_written

    def figures(self) -> dict[str, object]:
        """Return the counters and the lag as people read them."""
        with self._lock:
            return {
                "batches committed": self._batches,
                "rows read": self._rows_read,
                "rows written": self._rows_written,
                "rows behind": self.lag,
            }

    def counts(self) -> Counts:
        """Return the counters, as their exporter takes them."""
        labels = self.name, self.table
        with self._lock:
            plain: Counts = {
                ("batches", *labels): self._batches,
                ("rows_read", *labels): self._rows_read,
                ("rows_written", *labels): self._rows_written,
            }
        return plain | self._durations.counts()
