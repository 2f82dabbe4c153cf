"""A client of single frames: what a server answers to exactly these bytes."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import Message

from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import API_VERSIONS, AUTHENTICATE, Api


@dataclass(frozen=True)
class Answer:
    """One response frame."""

    type: int
    request_id: int
    body: bytes

    @property
    def error(self) -> tuple[int, str]:
        """Code and message of an error response; (0, "") for an answer."""
        if self.type == 0:
            return 0, ""
        error = pb.ErrorResponse.FromString(self.body)
        return error.error_code, error.error_message


class RawClient:
    """One connection that sends frames and receives them."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._next = 0

    def send(self, key: int, version: int, body: bytes) -> int:
        self._next += 1
        frame = struct.pack(">hhi", key, version, self._next) + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._next

    def receive(self) -> Answer:
        size = struct.unpack(">i", self._exactly(4))[0]
        frame = self._exactly(size)
        kind, request_id = struct.unpack_from(">Bi", frame)
        return Answer(kind, request_id, frame[5:])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError("the server closed the connection")
            data += part
        return data

    def ask(self, api: Api[Any, Any], request: Message, version: int = 0) -> Answer:
        """Send a request, return its frame."""
        self.send(api.key, version, request.SerializePartialToString())
        return self.receive()

    def call(self, api: Api[Any, Any], request: Message, version: int = 0) -> Any:
        """Send a request, return its message; an error response fails."""
        answer = self.ask(api, request, version)
        if answer.type != 0:
            raise AssertionError(f"{api.name}: {answer.error}")
        return api.response.FromString(answer.body)

    def hello(self) -> pb.ApiVersionsResponse:
        return self.call(  # type: ignore[no-any-return]
            API_VERSIONS,
            pb.ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        )

    def authenticate(self, user: str, password: str) -> Answer:
        token = f"\0{user}\0{password}".encode()
        return self.ask(AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=token))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
