"""Rows that a program ends without writing: a last moment for them, and then a word."""

from __future__ import annotations

import logging
import weakref
from typing import Protocol

from fluss_df.client.transport.folders import served_here
from fluss_df.config import Config
from fluss_df.errors import FlussError
from fluss_df.hooks import ExitStep, at_exit
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

_EXIT_FLUSH_S = 3.0
# an engine of this process: nobody else writes these rows, and only the disk can be slow
_EXIT_FLUSH_HERE_S = 60.0


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

    @property
    def failed_rows(self) -> int:
        """Rows that could not be written since the last flush."""
        ...

    def settle(self, timeout_ms: float | None) -> FlussError | None:
        """Send everything, wait until it is acknowledged or has failed, return a failure."""
        ...


_open_writers: weakref.WeakKeyDictionary[Flushable, Config] = weakref.WeakKeyDictionary()


def flush_at_exit(writer: Flushable, config: Config) -> None:
    """Have a writer flushed at the program's end, as long as it lives.

    Parameters
    ----------
    writer
        The writer.
    config
        Of its connection: an engine of this process is given more time than a cluster.
    """
    _open_writers[writer] = config


def needs_no_flush(writer: Flushable) -> None:
    """Forget a writer that was closed."""
    _open_writers.pop(writer, None)


def _flush_all() -> None:
    """Give rows that a program forgot a moment to be written, then name those that were not."""
    for writer, config in list(_open_writers.items()):
        wait = _EXIT_FLUSH_HERE_S if served_here(config) else _EXIT_FLUSH_S
        try:
            failure = writer.settle(wait * 1000)
        except TimeoutError:
            reason = f"no acknowledgement within {wait:g} s"
        else:
            if failure is None:
                continue
            reason = failure.message
        logger.error(
            "the program ended without close(): %d rows of table %s were not acknowledged (%s)",
            writer.unflushed_rows + writer.failed_rows,
            writer.info.table_path,
            reason,
        )


at_exit(ExitStep.WRITERS, _flush_all)
