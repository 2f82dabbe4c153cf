"""A transport to an embedded engine of this process: frames become calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fluss_df.errors import FlussError, NetworkError
from fluss_df.memory import joined
from fluss_df.protocol.frames import Request, Response, decode_request_header

if TYPE_CHECKING:
    from fluss_df.engine.requests.dispatch import Reply
    from fluss_df.engine.serve.server import LocalEngine


class Receiver(Protocol):
    """The receiver of an engine's answers."""

    address: str

    def dispatch(self, response: Response) -> None:
        """Take a response."""

    def fail(self, error: FlussError) -> None:
        """Take note that no further one comes."""


class DirectTransport(asyncio.Transport):
    """What a connection writes to where its server is an engine of this process.

    Raises ConnectionError when the engine is closed.
    """

    def __init__(self, engine: LocalEngine, connection: Receiver) -> None:
        super().__init__()
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        try:
            self._send = engine.open_channel(self._answered, self._ended)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send one frame: its header, and the parts of its body."""
        header, *body = list_of_data
        key, version, request_id = decode_request_header(header)
        try:
            self._send(Request(key, version, request_id, joined(body)))
        except RuntimeError:
            self._loop.call_soon(self._lost)

    def abort(self) -> None:
        """End it at once."""
        with contextlib.suppress(RuntimeError):  # the engine ended before
            self._send(None)

    def _answered(self, request_id: int, reply: Reply) -> None:
        kind, parts = reply
        response = Response(request_id, kind, joined(parts))
        with contextlib.suppress(RuntimeError):  # nobody is left to hear it
            self._loop.call_soon_threadsafe(self._connection.dispatch, response)

    def _ended(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lost)

    def _lost(self) -> None:
        self._connection.fail(NetworkError(f"{self._connection.address} disconnected"))
