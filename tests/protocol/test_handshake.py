"""The handshake as a conversation, without a socket."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import (
    API_VERSIONS,
    AUTHENTICATE,
    FETCH_LOG,
    GET_METADATA,
    Api,
    ServerApis,
)
from fluss_df.protocol.frames import TYPE_ERROR, TYPE_OK, Response
from fluss_df.protocol.handshake import Credentials, handshake

ALICE = Credentials("alice", "wonder-land")


def versions(*keys: int, low: int = 0, high: int = 0) -> pb.ApiVersionsResponse:
    return pb.ApiVersionsResponse(
        api_versions=[pb.ApiVersion(api_key=k, min_version=low, max_version=high) for k in keys],
        server_type=2,
    )


def response(message: Message, kind: int = TYPE_OK) -> Response:
    return Response(0, kind, pa.py_buffer(message.SerializeToString()))


def test_plaintext() -> None:
    steps = handshake("host:1", "9.9", None)
    api, request = next(steps)
    assert api is API_VERSIONS
    assert isinstance(request, pb.ApiVersionsRequest)
    assert (request.client_software_name, request.client_software_version) == ("fluss-df", "9.9")
    with pytest.raises(StopIteration) as done:
        steps.send(response(versions(1000, 1012)))
    apis: ServerApis = done.value.value
    assert apis.address == "host:1"
    assert apis.server_type == 2
    assert apis.version_for(GET_METADATA) == 0


def test_sasl_plain() -> None:
    steps = handshake("host:1", "9.9", ALICE)
    next(steps)
    api, request = steps.send(response(versions(1000, 1038)))
    assert api is AUTHENTICATE
    assert isinstance(request, pb.AuthenticateRequest)
    assert request.protocol == "PLAIN"
    assert request.token == b"\0alice\0wonder-land"
    with pytest.raises(StopIteration) as done:
        steps.send(response(pb.AuthenticateResponse()))
    assert AUTHENTICATE.key in done.value.value.versions


def test_utf8_credentials() -> None:
    assert Credentials("jürgen", "pä").plain_token == "\0jürgen\0pä".encode()


def test_refusal_of_the_server_passes_through() -> None:
    steps = handshake("host:1", "9.9", ALICE)
    next(steps)
    steps.send(response(versions(1000, 1038)))
    code = ErrorCode.AUTHENTICATE_EXCEPTION
    refusal = pb.ErrorResponse(error_code=code, error_message="bad password")
    with pytest.raises(FlussError, match="bad password") as raised:
        steps.send(response(refusal, TYPE_ERROR))
    assert raised.value.error_code == code


def test_server_without_authentication() -> None:
    steps = handshake("host:1", "9.9", ALICE)
    next(steps)
    with pytest.raises(FlussError, match="host:1 knows no authentication") as raised:
        steps.send(response(versions(1000, 1012)))
    assert raised.value.error_code == ErrorCode.SECURITY_DISABLED_EXCEPTION


def test_server_that_asks_for_more() -> None:
    steps = handshake("host:1", "9.9", ALICE)
    next(steps)
    steps.send(response(versions(1000, 1038)))
    with pytest.raises(FlussError, match="more than SASL/PLAIN") as raised:
        steps.send(response(pb.AuthenticateResponse(challenge=b"prove it")))
    assert raised.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION


def test_password_is_not_shown() -> None:
    assert "wonder-land" not in repr(ALICE)
    assert "wonder-land" not in repr(handshake("host:1", "9.9", ALICE))


def test_unknown_request_is_told_before_it_is_sent() -> None:
    apis = ServerApis.from_response("host:1", versions(1000))
    with pytest.raises(FlussError, match=r"host:1 does not know the request FETCH_LOG") as raised:
        apis.version_for(FETCH_LOG)
    assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_versions_that_do_not_meet() -> None:
    apis = ServerApis.from_response("host:1", versions(1012, low=1, high=3))
    with pytest.raises(FlussError, match="speaks versions 1 to 3 of GET_METADATA") as raised:
        apis.version_for(GET_METADATA)
    assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_the_newest_common_version() -> None:
    api = Api(1012, "NEWER", pb.MetadataRequest, pb.MetadataResponse, max_version=2)
    for high, version in ((0, 0), (1, 1), (2, 2), (5, 2)):
        apis = ServerApis.from_response("host:1", versions(1012, high=high))
        assert apis.version_for(api) == version


def test_statistics_are_told_by_the_newer_requests() -> None:
    assert not ServerApis.from_response("h:1", versions(1000, 1015)).batch_statistics
    assert ServerApis.from_response("h:1", versions(1000, 1061)).batch_statistics
