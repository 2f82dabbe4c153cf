"""The connection cache of the process: one connection for each server and user."""

from __future__ import annotations

import asyncio

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.multiplexed import ServerConnection
from fluss_df.errors import NetworkError


class ConnectionPool:
    """Connections by endpoint, shared by all that use the same server as the same user.

    Lives on the I/O thread: no locks. A connection is closed when the last of its users is gone.
    """

    def __init__(self) -> None:
        self._open: dict[Endpoint, ServerConnection] = {}
        self._opening: dict[Endpoint, asyncio.Task[ServerConnection]] = {}
        self._users: dict[Endpoint, set[int]] = {}

    def opened(self, endpoint: Endpoint, user: int) -> ServerConnection | None:
        """Return a usable connection where there is one, and keep it open for the user."""
        connection = self._open.get(endpoint)
        if connection is None or not connection.usable:
            return None
        self._users.setdefault(endpoint, set()).add(user)
        return connection

    async def get(
        self, endpoint: Endpoint, timeout_ms: int, metrics: Metrics, user: int
    ) -> ServerConnection:
        """Return a usable connection; connect where there is none."""
        connection = self.opened(endpoint, user)
        if connection is not None:
            return connection
        self._users.setdefault(endpoint, set()).add(user)
        # a second caller waits for the connection that the first one is opening
        task = self._opening.get(endpoint)
        if task is None:
            task = asyncio.ensure_future(ServerConnection.open(endpoint, timeout_ms, metrics))
            self._opening[endpoint] = task
            task.add_done_callback(lambda done: self._opened(endpoint, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            # nobody wanted it any more, for a moment
            raise NetworkError(f"the connection to {endpoint.address} was closed") from None

    def _opened(self, endpoint: Endpoint, task: asyncio.Task[ServerConnection]) -> None:
        if self._opening.get(endpoint) is task:
            del self._opening[endpoint]
        if task.cancelled() or task.exception() is not None:
            return
        if self._users.get(endpoint):
            self._open[endpoint] = task.result()
        else:
            task.result().close()

    def release(self, user: int) -> None:
        """Forget a user; close the connections that nobody uses any more."""
        for endpoint in [e for e, users in self._users.items() if user in users]:
            self._users[endpoint].discard(user)
            if not self._users[endpoint]:
                del self._users[endpoint]
                connection = self._open.pop(endpoint, None)
                if connection is not None:
                    connection.close()
                opening = self._opening.pop(endpoint, None)
                if opening is not None:
                    opening.cancel()
