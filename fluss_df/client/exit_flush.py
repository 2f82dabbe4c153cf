"""Rows that a program ends without writing: a last moment for them, and then a word."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

from fluss_df.errors import FlussError
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

_EXIT_FLUSH_S = 3.0


class Flushable(Protocol):
    """A writer."""

    @property
    def info(self) -> TableInfo:
        """The table."""
        ...

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        ...

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything, and wait until it is acknowledged."""
        ...


_open_writers: weakref.WeakSet[Flushable] = weakref.WeakSet()


def flush_at_exit(writer: Flushable) -> None:
    """Have a writer flushed at the program's end, as long as it lives."""
    _open_writers.add(writer)


def needs_no_flush(writer: Flushable) -> None:
    """Forget a writer that was closed."""
    _open_writers.discard(writer)


@atexit.register
def _flush_all() -> None:
    """Give rows that a program forgot a moment to be written, then name those that were not."""
    for writer in list(_open_writers):
        rows = writer.unflushed_rows
        if not rows:
            continue
        reason = ""
        try:
            writer.flush(_EXIT_FLUSH_S * 1000)
        except TimeoutError:
            reason = f"no acknowledgement within {_EXIT_FLUSH_S:g} s"
            rows = writer.unflushed_rows
        except FlussError as error:
            reason = error.message
        if reason:
            logger.error(
                "the program ended without close(): %d rows of table %s were not acknowledged (%s)",
                rows,
                writer.info.table_path,
                reason,
            )
