"""Asks servers of a cluster which servers and databases there are: one connection, one question.

This is the only contact of a local cluster with the wire. It knows no retries and keeps no
connection: a server that is just starting is asked many times and mostly refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_METADATA, LIST_DATABASES, Api, ResponseT
from fluss_df.protocol.frames import parse_response
from fluss_df.protocol.handshake import Credentials


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

    Raises FlussError when it refuses the credentials, answers with an error, cannot be reached, or
    does not answer within ``timeout`` seconds.
    """
    answer = _answer(host, port, credentials, timeout, GET_METADATA, pb.MetadataRequest())
    return frozenset(
        TabletServerNode(node.node_id, node.host, node.port) for node in answer.tablet_servers
    )


def has_database(host: str, port: int, credentials: Credentials | None, timeout: float) -> bool:
    """Return whether the server at this address has any database that may be seen.

    Raises FlussError as :func:`tablet_server_nodes`.
    """
    answer = _answer(host, port, credentials, timeout, LIST_DATABASES, pb.ListDatabasesRequest())
    return bool(answer.database_name) or bool(answer.database_summary)


def _answer(
    host: str,
    port: int,
    credentials: Credentials | None,
    timeout: float,
    api: Api[Any, ResponseT],
    message: Message,
) -> ResponseT:
    """Connect to a server, sign in, and ask one question."""
    metrics, timeout_ms = Metrics(), int(timeout * 1000)
    lane = Lane(Endpoint(host, port, credentials), timeout_ms, timeout_ms)
    try:
        lane.send(api, [message.SerializeToString()], metrics)
        return parse_response(api, lane.receive(metrics), lane.address)
    finally:
        lane.close()
