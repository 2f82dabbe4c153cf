"""Log messages that peers cause, each kind a few times in a while: a peer must not fill a disk."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

_EVERY_S: Final = 10.0
_AT_ONCE: Final = 5
# kinds that are counted at once
_KINDS: Final = 1000


class SeldomLogger:
    """Passes the first messages of a kind on, and says later how many there were besides.

    Thread safe.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        # the text before its values -> when it was begun to be counted, and how many there were
        self._counts: dict[str, tuple[float, int]] = {}

    def warning(self, text: str, *values: object) -> None:
        """Log a warning."""
        self.log(logging.WARNING, text, *values)

    def log(
        self, level: int, text: str, *values: object, error: BaseException | None = None
    ) -> None:
        """Log a message; messages of the same text are of one kind, whatever their values.

        ``level`` is one of the module ``logging``. ``text`` is formatted with ``values``. The
        traceback of ``error`` is shown.
        """
        now = time.monotonic()
        with self._lock:
            since, count = self._counts.get(text, (now, 0))
            left_out = 0
            if now - since >= _EVERY_S:
                left_out = max(0, count - _AT_ONCE)
                since, count = now, 0
            if len(self._counts) >= _KINDS and text not in self._counts:
                self._counts.clear()
            self._counts[text] = since, count + 1
        if count >= _AT_ONCE:
            return
        if left_out:
            text += f" (and {left_out:,} more of these before)"
        self._logger.log(level, text, *values, exc_info=error)
