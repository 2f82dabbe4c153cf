"""Writers that queue rows at once; acknowledgements are awaited."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Self, TypeVar

import fluss_df.client.write.append as core_append
from fluss_df.aio.bridge import Facade, giving, plain, submit, watched
from fluss_df.client.send import batch as write_batch
from fluss_df.client.write.writer import TableWriter

W = TypeVar("W", bound=TableWriter)


class WriteResultHandle(Facade[write_batch.WriteResultHandle]):
    """The fate of rows given to a writer."""

    async def wait(self, timeout_ms: float | None = None) -> None:
        """Wait until the server has acknowledged the rows; nothing lingers meanwhile.

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
            await watched(future)


class Writer(Facade[W]):
    """The common part of writers of log tables and of primary-key tables."""

    _unreported: BaseException | None = None

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

        Raises
        ------
        FlussError
            When rows written since the last flush could not be written: how many, and why.
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
        """Wait; what a flush that nobody waits for any more has to say, the next one says."""
        try:
            await watched(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._keep)
            raise
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def _keep(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        # a flush that took too long tells nothing about rows: the next one waits for them
        if error is not None and not isinstance(error, TimeoutError):
            self._unreported = error

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
