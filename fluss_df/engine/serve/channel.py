"""A connection of this process to its engine, without a socket."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable

from fluss_df.engine.requests.dispatch import Dispatcher, Reply, Session
from fluss_df.protocol.frames import Request


class Channel:
    """Requests in, answers out, as those of a socket's connection (``connection.py``).

    Requests are begun in their order; answers are given as they come.

    ``answered`` is called on the engine's thread with the id of a request and its answer. ``ended``
    is called there once there will be no more answers.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: Session,
        answered: Callable[[int, Reply], None],
        ended: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._session = session
        self._answered = answered
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._queue: deque[Request] = deque()
        self._more = asyncio.Event()
        self._pending: set[asyncio.Future[Reply]] = set()

    async def run(self) -> None:
        """Answer until it is closed or cancelled."""
        self._task = asyncio.current_task()
        try:
            while not self._closed:
                while not self._queue:
                    self._more.clear()
                    await self._more.wait()
                request = self._queue.popleft()
                reply = await self._dispatcher.begin(self._session, request)
                if isinstance(reply, tuple):
                    self._answered(request.request_id, reply)
                    continue
                pending = asyncio.ensure_future(reply)
                self._pending.add(pending)
                pending.add_done_callback(functools.partial(self._finished, request.request_id))
                del request, reply, pending
        finally:
            for waiting in list(self._pending):
                waiting.cancel()
            await asyncio.gather(*self._pending, return_exceptions=True)
            self._ended()

    def _finished(self, request_id: int, pending: asyncio.Future[Reply]) -> None:
        self._pending.discard(pending)
        if not pending.cancelled():
            self._answered(request_id, pending.result())

    def send(self, request: Request) -> None:
        """Have a request answered; on the engine's thread."""
        self._queue.append(request)
        self._more.set()

    def close(self) -> None:
        """End; on the engine's thread."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
