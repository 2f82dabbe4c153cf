"""Asks servers of a cluster which servers and databases there are: one connection, one question.

This is the only contact of a local cluster with the wire. It blocks, knows no retries and keeps no
connection: a server that is just starting is asked many times and mostly refuses.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fluss_df.errors import NetworkError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_METADATA, LIST_DATABASES, Api
from fluss_df.protocol.frames import Response, ResponseReader, encode_request, parse_response
from fluss_df.protocol.handshake import Credentials, handshake
from fluss_df.version import __version__


@dataclass(frozen=True, slots=True)
class TabletServerNode:
    """A tablet server as a client sees it."""

    id: int
    host: str
    port: int


def tablet_server_nodes(
    host: str, port: int, credentials: Credentials | None, timeout: float
) -> frozenset[TabletServerNode]:
    """Return the tablet servers that the server at this address knows.

    Raises FlussError when it refuses the credentials, or answers with an error. Raises OSError when
    it cannot be reached, or does not answer within ``timeout`` seconds.
    """
    with _asking(host, port, credentials, timeout) as channel:
        answer = channel.ask(GET_METADATA, pb.MetadataRequest())
    return frozenset(
        TabletServerNode(node.node_id, node.host, node.port) for node in answer.tablet_servers
    )


def has_database(host: str, port: int, credentials: Credentials | None, timeout: float) -> bool:
    """Return whether the server at this address has any database that may be seen.

    Raises FlussError, OSError as :func:`tablet_server_nodes`.
    """
    with _asking(host, port, credentials, timeout) as channel:
        answer = channel.ask(LIST_DATABASES, pb.ListDatabasesRequest())
    return bool(answer.database_name) or bool(answer.database_summary)


@contextlib.contextmanager
def _asking(
    host: str, port: int, credentials: Credentials | None, timeout: float
) -> Iterator[_Channel]:
    """Connect to a server, and sign in."""
    with socket.create_connection((host, port), timeout) as connection:
        channel = _Channel(connection, f"{host}:{port}")
        steps = handshake(channel.address, __version__, credentials)
        try:
            api, message = next(steps)
            while True:
                api, message = steps.send(channel.ask(api, message))
        except StopIteration:
            pass
        yield channel


class _Channel:
    def __init__(self, connection: socket.socket, address: str) -> None:
        self._connection = connection
        self.address = address
        self._requests = 0

    def ask(self, api: Api[Any, Any], message: Message) -> Any:
        self._requests += 1
        frame = encode_request(api, 0, self._requests, [message.SerializeToString()])
        self._connection.sendall(b"".join(frame))
        return parse_response(api, self._receive(), self.address)

    def _receive(self) -> Response:
        reader = ResponseReader(self.address)
        while True:
            count = self._connection.recv_into(reader.buffer())
            if count == 0:
                raise NetworkError(f"the server at {self.address} closed the connection")
            response = reader.received(count)
            if response is not None:
                return response
