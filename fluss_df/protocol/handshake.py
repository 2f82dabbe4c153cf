"""The handshake of a new connection, without I/O.

The order is that of Fluss: API versions first, then, where the client has credentials,
SASL/PLAIN. Drivers with and without an event loop run the same generator.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import API_VERSIONS, AUTHENTICATE, Api, ServerApis
from fluss_df.protocol.frames import Response, parse_response

CLIENT_NAME = "fluss-df"


@dataclass(frozen=True, slots=True)
class Credentials:
    """User name and password of SASL/PLAIN; the password never shows in ``repr``."""

    username: str
    password: str = field(repr=False)

    @property
    def plain_token(self) -> bytes:
        """The initial response of the PLAIN mechanism (RFC 4616)."""
        return b"\0" + self.username.encode() + b"\0" + self.password.encode()


@dataclass(frozen=True, slots=True)
class FolderSecret:
    """The secret by which a client proves to a local engine that it may read its folder."""

    secret: str = field(repr=False)


# the name of this mechanism on the wire
FOLDER_PROTOCOL = "FOLDER"

Step = tuple[Api[Any, Any], Message]


def handshake(
    address: str, version: str, credentials: Credentials | FolderSecret | None
) -> Generator[Step, Response, ServerApis]:
    """Yield requests, take their responses, return what the server can do.

    Raises the errors of the server, as ``AUTHENTICATE_EXCEPTION`` when it demands or refuses
    credentials.
    """
    request = pb.ApiVersionsRequest(
        client_software_name=CLIENT_NAME, client_software_version=version
    )
    versions = parse_response(API_VERSIONS, (yield API_VERSIONS, request), address)
    apis = ServerApis.from_response(address, versions)
    if credentials is None:
        return apis
    if AUTHENTICATE.key not in apis.versions:
        raise FlussError(
            f"the server at {address} knows no authentication; connect without user and password",
            ErrorCode.SECURITY_DISABLED_EXCEPTION,
        )
    if isinstance(credentials, FolderSecret):
        protocol, token = FOLDER_PROTOCOL, credentials.secret.encode()
    else:
        protocol, token = "PLAIN", credentials.plain_token
    login = pb.AuthenticateRequest(protocol=protocol, token=token)
    answer = parse_response(AUTHENTICATE, (yield AUTHENTICATE, login), address)
    if answer.HasField("challenge") and answer.challenge:
        raise FlussError(
            f"the server at {address} asks for more than SASL/PLAIN gives",
            ErrorCode.AUTHENTICATE_EXCEPTION,
        )
    return apis
