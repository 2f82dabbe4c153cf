"""Flushes writers that a program did not close, when the program ends.

Rows that cannot be written in time are reported as an error in the log.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from typing import Protocol

from fluss_df.client.transport.folders import served_here
from fluss_df.config import Config
from fluss_df.errors import FlussError
from fluss_df.hooks import ExitStep, at_exit
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

# for a cluster, which may be out of reach: the end of a program must not hang
_EXIT_FLUSH_S = 3.0
# for an engine of this process: it ends with the program, and only its disk can be slow
_EXIT_FLUSH_HERE_S = 60.0


class Flushable(Protocol):
    """The part of a writer that is used here."""

    @property
    def info(self) -> TableInfo:
        """The table."""
        ...

    @property
    def unflushed_rows(self) -> int:
        """How many rows are not acknowledged yet."""
        ...

    @property
    def failed_rows(self) -> int:
        """How many rows could not be written since the last flush."""
        ...

    def wait_acknowledged(self, timeout_ms: float | None) -> FlussError | None:
        """Send all rows, wait until each is acknowledged or has failed, return the first failure.

        Raises TimeoutError when acknowledgements are outstanding after ``timeout_ms``.
        """
        ...


_open_writers: weakref.WeakKeyDictionary[Flushable, Config] = weakref.WeakKeyDictionary()


def flush_at_exit(writer: Flushable, config: Config) -> None:
    """Have a writer flushed when the program ends, unless it was closed or collected before.

    Parameters
    ----------
    writer
        The writer.
    config
        The configuration of its connection, which says whether the writer writes to a cluster (it
        gets 3 s) or to an engine of this process (60 s).
    """
    _open_writers[writer] = config


def needs_no_flush(writer: Flushable) -> None:
    """Do not flush a writer at the end: it was closed."""
    _open_writers.pop(writer, None)


def _flush_all() -> None:
    """Send the rows of writers that were not closed; log an error for rows that were not written.

    All writers send at the same time, so that the program's end takes one wait and not one for
    each writer.
    """
    began = time.monotonic()
    writers = list(_open_writers.items())
    for writer, _ in writers:
        # it only begins to send; errors are met again below
        with contextlib.suppress(Exception):
            writer.wait_acknowledged(0)
    for writer, config in writers:
        wait_s = _EXIT_FLUSH_HERE_S if served_here(config) else _EXIT_FLUSH_S
        left_s = max(0.0, began + wait_s - time.monotonic())
        try:
            failure = writer.wait_acknowledged(left_s * 1000)
        except TimeoutError:
            reason = f"no acknowledgement within {wait_s:g} s"
        except Exception as error:
            # the writers behind this one still have a chance
            reason = repr(error)
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
