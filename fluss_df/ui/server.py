"""Serves the console: :class:`ConsoleServer`."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError, NetworkError
from fluss_df.ui.app import make_app
from fluss_df.ui.guard import Guard
from fluss_df.ui.settings import Limits, Settings
from fluss_df.ui.state import State

_START_S = 10.0
_HEAD_BYTES = 32 << 10
_MOST_TIMES = 4
_unheard = logging.getLogger("fluss_df.ui.peers")
_unheard.disabled = True


class ConsoleServer:
    """A console that is served by a thread, until it is closed.

    The connection stays open then. ``place`` is shown as the name of the cluster, without
    credentials. ``port`` is where it listens. Raises NetworkError when the port is taken.

    Examples
    --------
    >>> with ConsoleServer(connection, Settings(), "./data") as server:  # doctest: +SKIP
    ...     print(server.link)
    """

    def __init__(self, connection: FlussConnection, settings: Settings, place: str) -> None:
        self._settings = settings
        self._socket = _listening(settings)
        self.port = int(self._socket.getsockname()[1])
        self.state = State(connection, settings, place)
        guarded = Guard(make_app(self.state), settings, self.port)
        config = uvicorn.Config(
            guarded,
            http=_protocol(settings.limits),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,  # off, because addresses have names of tables in them
            server_header=False,
            proxy_headers=False,
            limit_concurrency=settings.limits.connections,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise FlussError(
                f"the certificate {settings.tls_cert} or its key cannot be used: {error}"
            ) from error
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="fluss-ui", daemon=True
        )

    @property
    def url(self) -> str:
        """The address of the console."""
        host = self._settings.names[0] if self._settings.names else self._settings.host
        shown = f"[{host}]" if ":" in host else host
        return f"{self._settings.scheme}://{shown}:{self.port}/"

    @property
    def link(self) -> str:
        """The address that logs a browser in; the token behind # stays in the browser."""
        return f"{self.url}sign-in#token={self._settings.token}"

    def start(self) -> Self:
        """Begin to serve.

        Raises NetworkError when it does not begin.
        """
        self._thread.start()
        self.state.prepare()
        waited = threading.Event()
        for _ in range(int(_START_S / 0.02)):
            if self._server.started or not self._thread.is_alive():
                break
            waited.wait(0.02)
        if not self._server.started:
            raise NetworkError(f"the console did not start on port {self.port}")
        return self

    def close(self) -> None:
        """Answer nothing any more; a second call does nothing."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._socket.close()
        self.state.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _listening(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host or None, settings.port, type=socket.SOCK_STREAM)[
            0
        ][0]
        made = socket.create_server((settings.host, settings.port), family=family, backlog=128)
        # asyncio does not set TCP_NODELAY where the socket's protocol is 0, and then pages of a
        # connection that is used again come 40 ms late. Connections inherit it from this socket.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except OSError as error:
        raise NetworkError(
            f"the console cannot listen on {settings.host}:{settings.port}: {error}; --port 0 takes"
            " a free port"
        ) from error


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a bound on connections, and on how long one is silent."""
    seconds = limits.receive_seconds
    # connections beyond the limit get an answer that says so; those beyond this number are closed
    most = _MOST_TIMES * limits.connections

    class Timed(H11Protocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            # Not logged, because a peer could fill the terminal with errors of its requests. Errors
            # of pages are logged by the application.
            self.logger = _unheard

        _deadline: asyncio.TimerHandle | None = None
        _seen: object = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
                return
            self._deadline = self.loop.call_later(seconds, self._too_late)

        def _too_late(self) -> None:
            """Close a connection that has sent no request meanwhile, or a head without an end."""
            cycle = self.cycle
            if cycle is self._seen and (cycle is None or cycle.response_complete):
                self.transport.close()
                return
            self._seen = cycle
            self._deadline = self.loop.call_later(seconds, self._too_late)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

    return Timed
