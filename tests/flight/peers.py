"""Clients that speak to a server of Flight SQL by its messages."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from google.protobuf.message import Message

from fluss_df.flight import FlightSqlServer
from fluss_df.flight import flight_messages_pb2 as pb
from fluss_df.flight.wire import packed

#: What PyArrow makes of a refusal.
REFUSED = (fl.FlightError, pa.ArrowException)


class Peer:
    """A client that is signed in, or not.

    Parameters
    ----------
    server
        The server.
    headers
        What it sends with each call.
    """

    def __init__(self, server: FlightSqlServer, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.client = fl.connect(server.url)
        self._options = [(key.encode(), value.encode()) for key, value in headers]

    @property
    def options(self) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(headers=self._options, timeout=30)

    def info(self, command: Message) -> fl.FlightInfo:
        descriptor = fl.FlightDescriptor.for_command(packed(command))
        return self.client.get_flight_info(descriptor, self.options)

    def get(self, ticket: bytes | fl.Ticket) -> pa.Table:
        if isinstance(ticket, bytes):
            ticket = fl.Ticket(ticket)
        return self.client.do_get(ticket, self.options).read_all()

    def ask(self, command: Message) -> list[dict[str, Any]]:
        info = self.info(command)
        found = self.get(info.endpoints[0].ticket)
        assert found.schema.equals(info.schema)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def query(self, statement: str) -> list[dict[str, Any]]:
        return self.ask(pb.CommandStatementQuery(query=statement))

    def act(self, name: str, body: bytes) -> list[bytes]:
        results = self.client.do_action(fl.Action(name, body), self.options)
        return [result.body.to_pybytes() for result in results]

    def put(self, command: Message, table: pa.Table) -> bytes:
        descriptor = fl.FlightDescriptor.for_command(packed(command))
        writer, reader = self.client.do_put(descriptor, table.schema, self.options)
        with writer:
            writer.write_table(table)
            writer.done_writing()
            result: bytes = reader.read().to_pybytes()
        return result

    def close(self) -> None:
        self.client.close()


def basic(user: str, password: str) -> tuple[str, str]:
    """Return the header of a password."""
    return "authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextlib.contextmanager
def peer(server: FlightSqlServer, *headers: tuple[str, str]) -> Iterator[Peer]:
    """Return a client for a block."""
    made = Peer(server, headers)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def signed_in(server: FlightSqlServer, user: str, password: str) -> Iterator[Peer]:
    """Return a client that has a token."""
    client = fl.connect(server.url)
    try:
        header = client.authenticate_basic_token(user, password)
    finally:
        client.close()
    with peer(server, tuple(part.decode() for part in header)) as made:
        yield made
