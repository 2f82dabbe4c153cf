"""Asynchronous writers: methods that write return at once, acknowledgements can be awaited."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Self, TypeVar

import fluss_df.client.write.append as core_append
from fluss_df.aio.bridge import Facade, giving, plain, submit, watched
from fluss_df.client.send import batch as write_batch
from fluss_df.client.write.writer import TableWriter
from fluss_df.errors import FlussError

W = TypeVar("W", bound=TableWriter)


class WriteResultHandle(Facade[write_batch.WriteResultHandle]):
    """Says when the rows of one write are acknowledged."""

    async def wait(self, timeout_ms: float | None = None) -> None:
        """Wait until the server has acknowledged the rows.

        They are sent at once, without waiting for a full batch.

        Raises
        ------
        FlussError
            When rows could not be written, with the server's code.
        TimeoutError
            When the outcome is still open after ``timeout_ms``.
        """
        future = self._core.future
        self._core.send_now(may_block=False)
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            # others may wait for the same rows: a caller that is cancelled must not cancel them
            try:
                await watched(future)
            except FlussError:
                self._core.told()
                raise


class Writer(Facade[W]):
    """The common part of writers of log tables and of primary-key tables."""

    def __init__(self, core: W) -> None:
        super().__init__(core)
        # flushes whose callers were cancelled
        self._left: list[Future[None]] = []

    write_arrow = giving(WriteResultHandle, TableWriter.write_arrow)
    write_arrow_batch = giving(WriteResultHandle, TableWriter.write_arrow_batch)
    write_pandas = giving(WriteResultHandle, TableWriter.write_pandas)
    offsets = plain(TableWriter.offsets)

    @property
    def unflushed_rows(self) -> int:
        """Rows that are not acknowledged yet."""
        return self._core.unflushed_rows

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything, and wait until it is acknowledged.

        What is written after it was called is not waited for.

        Raises
        ------
        FlussError
            When rows written since the last flush could not be written: how many, and why. Not for
            rows whose handle has raised their error.
        TimeoutError
            When acknowledgements are outstanding after ``timeout_ms``.
        """
        await self._reporting(submit(self._core.flush, timeout_ms))

    async def close(self) -> None:
        """Flush, then refuse further rows; a second call does nothing.

        Raises
        ------
        FlussError
            As :meth:`flush`.
        """
        await self._reporting(submit(self._core.close))

    async def _reporting(self, future: Future[None]) -> None:
        """Wait for a flush; raise its error, or that of earlier ones whose callers were cancelled.

        Each failure of rows is raised by one flush alone. So an error of a flush that nobody waits
        for any more is raised by the next one.
        """
        try:
            await watched(future)
        except asyncio.CancelledError:
            self._left.append(future)
            raise
        left = list(self._left)
        for earlier in left:
            # all rows are acknowledged or have failed by now, so it ends at once
            try:
                await watched(earlier)
            except asyncio.CancelledError:
                if not earlier.cancelled():
                    raise
            except Exception:
                pass  # it is raised below
        # from here on nothing is awaited: a cancelled call has forgotten none
        ended = [earlier for earlier in left if earlier in self._left and not earlier.cancelled()]
        self._left = [earlier for earlier in self._left if earlier not in left]
        errors = [error for earlier in ended if (error := earlier.exception()) is not None]
        # after a timeout the rows were outstanding, and this flush has waited for them
        errors = [error for error in errors if not isinstance(error, TimeoutError)]
        for other in errors[1:]:
            errors[0].add_note(f"an earlier flush: {other}")
        if errors:
            raise errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AppendWriter(Writer[core_append.AppendWriter]):
    """Appends rows and Arrow data to a log table, for any number of tasks and threads.

    What is written is checked at once and sent in the background; :meth:`flush` waits until all
    of it is acknowledged. The methods that write take the time that checking takes, and wait while
    ``writer.buffer.memory-size`` bytes are on their way. Use it in an ``async with`` statement,
    or await :meth:`close`: both flush and report what was not acknowledged.
    """

    append = giving(WriteResultHandle, core_append.AppendWriter.append)
