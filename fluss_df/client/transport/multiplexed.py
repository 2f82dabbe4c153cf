"""A connection to a server, on the I/O thread: many requests at once, each with its deadline."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.folders import ENDING_S, engine_credentials, is_attached, successor
from fluss_df.client.transport.in_process import DirectTransport
from fluss_df.client.transport.tls import Tls, needs_tls, tls_error
from fluss_df.errors import DeadlineExceededError, FlussError, NetworkError
from fluss_df.hooks import undoing
from fluss_df.local_peers import require_own
from fluss_df.protocol.address import local_path
from fluss_df.protocol.api import API_VERSIONS, Api, RequestT, ResponseT, ServerApis
from fluss_df.protocol.frames import (
    RESPONSE_OVERHEAD,
    TYPE_OK,
    Response,
    ResponseReader,
    encode_request,
    parse_response,
)
from fluss_df.protocol.handshake import Credentials, FolderSecret, handshake
from fluss_df.protocol.wire import Buffer
from fluss_df.version import __version__

logger = logging.getLogger(__name__)


# the bytes that are received at once: most responses are no larger
_RECEIVED_AT_ONCE = 16 * 1024


async def _connect_local(connection: ServerConnection, path: str) -> asyncio.Transport:
    """Connect to an engine of this machine, or to the one that took over its folder."""
    while True:
        try:
            return await _connect_engine(connection, path)
        except OSError:
            later = await asyncio.to_thread(successor, path)
            if later is None:
                raise
            if later == path:
                await asyncio.sleep(ENDING_S)
            path = later


async def _connect_engine(connection: ServerConnection, path: str) -> asyncio.Transport:
    # not imported for a cluster: an address of this kind is an engine's
    from fluss_df.engine.serve.server import engine_at

    engine = engine_at(path)
    if engine is not None:
        return DirectTransport(engine, connection)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: _Protocol(connection), path)
    with undoing(transport.abort):
        require_own(transport.get_extra_info("socket"), path)
    connection.engine_path = path
    return transport


async def _connect_tls(
    connection: ServerConnection, endpoint: Endpoint, tls: Tls, timeout_ms: int
) -> asyncio.Transport:
    """Connect, and then begin TLS, so that errors of TLS are told from those of the network."""
    loop = asyncio.get_running_loop()
    context = tls.context()
    # create_connection(ssl=...) raises the same errors for both
    transport, protocol = await loop.create_connection(
        asyncio.Protocol, endpoint.host, endpoint.port
    )
    with undoing(transport.abort):
        try:
            encrypted = await loop.start_tls(
                transport,
                protocol,
                context,
                server_hostname=endpoint.host,
                ssl_handshake_timeout=timeout_ms / 1000,
            )
        except OSError as error:
            refused = tls_error(error, endpoint.address, shaking_hands=True)
            if refused is None:
                raise
            raise refused from error
    assert encrypted is not None
    encrypted.set_protocol(_Protocol(connection))
    return encrypted


class _Protocol(asyncio.BufferedProtocol):
    """Hands received bytes to the sans-I/O reader, and its responses to the connection.

    Small responses are received with their headers, in one turn of the loop; the rest of a large
    one is received into a buffer of its own, without a copy.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._reader = ResponseReader(connection.address)
        self._received = memoryview(bytearray(_RECEIVED_AT_ONCE))

    def get_buffer(self, sizehint: int) -> memoryview:
        rest = self._reader.buffer()
        return rest if len(rest) > len(self._received) else self._received

    def buffer_updated(self, nbytes: int) -> None:
        rest = self._reader.buffer()
        if len(rest) > len(self._received):
            self._take(nbytes)
            return
        data = self._received[:nbytes]
        while data:
            rest = self._reader.buffer()
            size = min(len(rest), len(data))
            rest[:size] = data[:size]
            data = data[size:]
            if not self._take(size):
                return

    def _take(self, nbytes: int) -> bool:
        """Take note of bytes in the reader's buffer; False when the connection is done for."""
        try:
            response = self._reader.received(nbytes)
        except FlussError as error:
            self._connection.fail(error)
            return False
        if response is not None:
            self._connection.dispatch(response)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else ""
        error: FlussError | None = None
        if self._reader.is_tls:
            error = needs_tls(self._connection.address)
        elif isinstance(exc, ssl.SSLError):
            error = tls_error(exc, self._connection.address, shaking_hands=False)
        self._connection.fail(
            error or NetworkError(f"{self._connection.address} disconnected{reason}")
        )


# called with the response to a request, or with why there is none
Answered = Callable[[Response | FlussError], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request in flight."""

    answered: Answered
    deadline: asyncio.TimerHandle
    metrics: Metrics
    request: str
    sent_at: float

    def failed(self) -> None:
        """Count it as one that got no answer."""
        self.metrics.answered(self.request, time.monotonic() - self.sent_at, failed=True)


class ServerConnection:
    """A connection, which :meth:`open` makes and shakes hands on; lives on the I/O thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.address = endpoint.address
        self.apis = ServerApis(self.address, {API_VERSIONS.key: (0, 0)}, None)
        self.opened_at = time.monotonic()
        # the Unix socket of an engine in another process
        self.engine_path: str | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Asked] = {}
        self._next_id = 0
        self._failure: FlussError | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout_ms: int, metrics: Metrics) -> ServerConnection:
        """Connect and shake hands within ``timeout_ms``.

        Raises NetworkError when the peer cannot be reached, DeadlineExceededError when it took too
        long, and the errors of the handshake, such as ``AUTHENTICATE_EXCEPTION``.
        """
        connection = cls(endpoint)
        # the newest: each attempt has its own
        with undoing(lambda: connection.close()):
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    while not await connection._connect(timeout_ms, metrics):
                        # the engine of a folder ended meanwhile: there is a next one
                        connection.close()
                        await asyncio.sleep(ENDING_S)
                        connection = cls(endpoint)
            except TimeoutError:
                raise DeadlineExceededError(
                    f"no connection to {endpoint.address} within {timeout_ms} ms"
                ) from None
            except (OSError, ValueError, OverflowError) as error:
                # the last two of names and ports that no host has
                raise NetworkError(f"cannot connect to {endpoint.address}: {error}") from error
        metrics.add(connections=1)
        logger.debug("connected to %s", endpoint.address)
        return connection

    async def _connect(self, timeout_ms: int, metrics: Metrics) -> bool:
        """Connect and shake hands; return False where it is to be tried again."""
        endpoint = self.endpoint
        path = local_path(endpoint.host)
        if path is not None:
            self._transport = await _connect_local(self, path)
        else:
            loop = asyncio.get_running_loop()
            if endpoint.tls is None:
                self._transport, _ = await loop.create_connection(
                    lambda: _Protocol(self), endpoint.host, endpoint.port
                )
            else:
                self._transport = await _connect_tls(self, endpoint, endpoint.tls, timeout_ms)
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # a peer that vanished without a word must not keep a connection for ever
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            await self._shake_hands(timeout_ms, metrics)
        except NetworkError:
            if not is_attached(endpoint.host):
                raise
            return False
        return True

    async def _shake_hands(self, timeout_ms: int, metrics: Metrics) -> None:
        credentials: Credentials | FolderSecret | None = self.endpoint.credentials
        if self.engine_path is not None:
            credentials = engine_credentials(self.engine_path)
        steps = handshake(self.address, __version__, credentials)
        api, message = next(steps)
        while True:
            body = [message.SerializeToString()]
            response = await self._exchange(api, 0, body, timeout_ms, metrics)
            try:
                api, message = steps.send(response)
            except StopIteration as done:
                self.apis = done.value
                return

    @property
    def usable(self) -> bool:
        """Whether requests can still be sent."""
        return self._failure is None

    async def request(
        self, api: Api[RequestT, ResponseT], message: RequestT, timeout_ms: int, metrics: Metrics
    ) -> ResponseT:
        """Send a request and return its response.

        Raises the server's error, ``UNSUPPORTED_VERSION``, NetworkError, or DeadlineExceededError
        after ``timeout_ms``. After a deadline the connection is closed: such a server often stays
        silent, and nobody waits for its late response.
        """
        response = await self.exchange(api, [message.SerializeToString()], timeout_ms, metrics)
        return parse_response(api, response, self.address)

    async def exchange(
        self, api: Api[Any, Any], body: Sequence[Buffer], timeout_ms: int, metrics: Metrics
    ) -> Response:
        """Like :meth:`request`, with the body and the response as bytes."""
        return await self._exchange(api, self.apis.version_for(api), body, timeout_ms, metrics)

    async def _exchange(
        self,
        api: Api[Any, Any],
        version: int,
        body: Sequence[Buffer],
        timeout_ms: int,
        metrics: Metrics,
    ) -> Response:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        answered = functools.partial(_settle, answer)
        request_id = self._send(api, version, body, timeout_ms, metrics, answered)
        try:
            return await answer
        finally:
            asked = self._waiting.pop(request_id, None)
            if asked is not None:  # nobody waits any more
                asked.deadline.cancel()

    def send(
        self,
        api: Api[Any, Any],
        body: Sequence[Buffer],
        timeout_ms: int,
        metrics: Metrics,
        answered: Answered,
    ) -> None:
        """Send a request, and have ``answered`` called at the moment when its answer is there.

        Raises FlussError when nothing was sent.
        """
        self._send(api, self.apis.version_for(api), body, timeout_ms, metrics, answered)

    def _send(
        self,
        api: Api[Any, Any],
        version: int,
        body: Sequence[Buffer],
        timeout_ms: int,
        metrics: Metrics,
        answered: Answered,
    ) -> int:
        if self._failure is not None:
            raise NetworkError(self._failure.message)
        self._next_id = request_id = (self._next_id + 1) & 0x7FFFFFFF
        buffers = encode_request(api, version, request_id, body)
        metrics.sent(sum(len(part) for part in buffers))
        assert self._transport is not None
        self._transport.writelines(buffers)
        # a handle of the loop costs a fifth of what asyncio.timeout does
        deadline = asyncio.get_running_loop().call_later(
            timeout_ms / 1000, self._on_deadline, api, request_id, timeout_ms
        )
        self._waiting[request_id] = _Asked(answered, deadline, metrics, api.name, time.monotonic())
        return request_id

    def _on_deadline(self, api: Api[Any, Any], request_id: int, timeout_ms: int) -> None:
        error = DeadlineExceededError(
            f"{self.address} did not answer {api.name} within {timeout_ms} ms"
        )
        asked = self._waiting.pop(request_id)
        asked.failed()
        asked.answered(error)
        self.fail(NetworkError(error.message))

    def dispatch(self, response: Response) -> None:
        """Give a response to whom it belongs; one that nobody waits for any more is dropped."""
        asked = self._waiting.pop(response.request_id, None)
        if asked is not None:
            asked.deadline.cancel()
            asked.metrics.answered(
                asked.request,
                time.monotonic() - asked.sent_at,
                response.type != TYPE_OK,
                len(response.body) + RESPONSE_OVERHEAD,
            )
            asked.answered(response)

    def fail(self, error: FlussError) -> None:
        """Give the connection up: every request in flight ends with the error."""
        if self._failure is None:
            self._failure = error
            if self._waiting:
                logger.warning("connection to %s lost: %s", self.address, error.message)
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.deadline.cancel()
            asked.failed()
            asked.answered(error)

    def close(self) -> None:
        """Close; what is in flight ends with a NetworkError."""
        self.fail(NetworkError(f"the connection to {self.address} was closed"))


def _settle(answer: asyncio.Future[Response], outcome: Response | FlussError) -> None:
    if answer.done():
        return
    if isinstance(outcome, FlussError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


class CountedConnection:
    """A connection that several clients share, with the metrics of one of them."""

    __slots__ = ("_connection", "_metrics")

    def __init__(self, connection: ServerConnection, metrics: Metrics) -> None:
        self._connection = connection
        self._metrics = metrics

    @property
    def address(self) -> str:
        """``host:port``."""
        return self._connection.address

    @property
    def apis(self) -> ServerApis:
        """The requests that the server knows."""
        return self._connection.apis

    @property
    def opened_at(self) -> float:
        """When it was opened, by the monotonic clock."""
        return self._connection.opened_at

    async def request(
        self, api: Api[RequestT, ResponseT], message: RequestT, timeout_ms: int
    ) -> ResponseT:
        """As :meth:`ServerConnection.request`."""
        return await self._connection.request(api, message, timeout_ms, self._metrics)

    async def exchange(
        self, api: Api[Any, Any], body: Sequence[Buffer], timeout_ms: int
    ) -> Response:
        """As :meth:`ServerConnection.exchange`."""
        return await self._connection.exchange(api, body, timeout_ms, self._metrics)

    def send(
        self, api: Api[Any, Any], body: Sequence[Buffer], timeout_ms: int, answered: Answered
    ) -> None:
        """As :meth:`ServerConnection.send`."""
        self._connection.send(api, body, timeout_ms, self._metrics, answered)
