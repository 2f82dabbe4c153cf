"""How much memory that is no file a process has, on Linux; also for programs that tests start."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_EVERY_S = 0.002


def anonymous_memory() -> int:
    """Return the bytes of this process that are no files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status does not tell anonymous memory")


class PeakMemory:
    """Watches the anonymous memory of this process, in a ``with`` statement.

    Attributes
    ----------
    before, peak
        In bytes: at the beginning, and at the most since.
    """

    def __enter__(self) -> Self:
        self.before = self.peak = anonymous_memory()
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            self.peak = max(self.peak, anonymous_memory())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._watcher.join()

    @property
    def grown(self) -> int:
        """By how many bytes it grew at the most."""
        return self.peak - self.before
