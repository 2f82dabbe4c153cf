"""Asynchronous writers: methods that write return at once, acknowledgements can be awaited."""

from __future__ import annotations

import asyncio
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
            await watched(future)


class Writer(Facade[W]):
    """The common part of writers of log tables and of primary-key tables."""

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
            When rows written since the last flush could not be written: how many, and why.
        TimeoutError
            When acknowledgements are outstanding after ``timeout_ms``.
        """
        core = self._core
        loop = asyncio.get_running_loop()
        until = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        with core._flush_span():
            await watched(submit(core._send_all, timeout_ms))
            done = core._when_done()
            try:
                async with asyncio.timeout_at(until):
                    await watched(done)
            finally:
                # where the caller was cancelled, nobody waits for it any more
                done.cancel()
            # Nothing is awaited from here on: a call that was cancelled has taken no error, and the
            # next one raises it.
            core._raise_failures()

    async def close(self) -> None:
        """Flush, then refuse further rows; a second call does nothing.

        Raises
        ------
        FlussError
            As :meth:`flush`.
        """
        core = self._core
        await watched(submit(core._refuse_rows))
        if core._ended:
            return
        try:
            await self.flush()
        except FlussError:
            core._end()
            raise
        core._end()

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
