"""Frames: whole, byte by byte, with trailing data, and broken ones."""

from __future__ import annotations

import struct

import pytest

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import GET_METADATA, LIST_DATABASES, TABLE_EXISTS
from fluss_df.protocol.frames import (
    MAX_RESPONSE_BYTES,
    TYPE_ERROR,
    TYPE_FAILURE,
    TYPE_OK,
    Request,
    RequestReader,
    Response,
    ResponseReader,
    decode_request_header,
    encode_request,
    encode_response,
    parse_response,
    server_error,
)
from fluss_df.protocol.wire import Buffer

LISTED = pb.ListDatabasesResponse(database_name=["a", "b"]).SerializeToString()
FRAMES = {
    "answer": (TYPE_OK, 7, LISTED),
    "empty answer": (TYPE_OK, 0, b""),
    "one byte": (TYPE_OK, 1, b"\0"),
    "error": (TYPE_ERROR, 8, pb.ErrorResponse(error_code=7).SerializeToString()),
    "failure": (TYPE_FAILURE, 9, pb.ErrorResponse(error_code=-1).SerializeToString()),
    "large": (TYPE_OK, 2**31 - 1, bytes(range(256)) * 1000),
    "negative id": (TYPE_OK, -1, b"x"),
}
each_frame = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())


def encoded(kind: int, request_id: int, body: bytes) -> bytes:
    return struct.pack(">iBi", len(body) + 5, kind, request_id) + body


def feed(reader: ResponseReader, data: bytes, most: int = 1 << 30) -> list[Response]:
    """Give bytes to a reader, at most so many at once, as a socket would."""
    responses = []
    rest = memoryview(data)
    while rest:
        place = reader.buffer()
        assert len(place) > 0
        count = min(len(place), len(rest), most)
        place[:count] = rest[:count]
        rest = rest[count:]
        response = reader.received(count)
        if response is not None:
            responses.append(response)
    return responses


def parts(response: Response) -> tuple[int, int, bytes]:
    return response.type, response.request_id, bytes(response.body)


@each_frame
def test_whole(frame: tuple[int, int, bytes]) -> None:
    reader = ResponseReader("peer")
    (response,) = feed(reader, encoded(*frame))
    assert parts(response) == frame
    assert reader.between_frames


@each_frame
def test_byte_by_byte(frame: tuple[int, int, bytes]) -> None:
    reader = ResponseReader("peer")
    data = encoded(*frame)
    for i in range(0, len(data) - 1):
        assert feed(reader, data[i : i + 1]) == []
        assert not reader.between_frames
    (response,) = feed(reader, data[-1:])
    assert parts(response) == frame


@each_frame
def test_with_trailing_data(frame: tuple[int, int, bytes]) -> None:
    reader = ResponseReader("peer")
    following = encoded(TYPE_OK, 99, b"next")
    (response,) = feed(reader, encoded(*frame) + following[:-1])
    assert parts(response) == frame
    assert not reader.between_frames
    (after,) = feed(reader, following[-1:])
    assert parts(after) == (TYPE_OK, 99, b"next")


def test_many_in_a_row() -> None:
    data = b"".join(encoded(*frame) for frame in FRAMES.values())
    for most in (1, 3, 8, 9, 10, 1000, 1 << 20):
        responses = feed(ResponseReader("peer"), data, most)
        assert [parts(r) for r in responses] == list(FRAMES.values())


def test_a_body_outlives_the_next_frame() -> None:
    reader = ResponseReader("peer")
    first, _ = feed(reader, encoded(0, 1, b"first") + encoded(0, 2, b"other"))
    assert bytes(first.body) == b"first"


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 4, MAX_RESPONSE_BYTES + 6, 2**31 - 1])
def test_impossible_length(length: int) -> None:
    reader = ResponseReader("10.0.0.1:9123")
    with pytest.raises(ProtocolError, match=r"10\.0\.0\.1:9123") as raised:
        feed(reader, struct.pack(">iBi", length, TYPE_OK, 1))
    assert raised.value.error_code == ErrorCode.CORRUPT_MESSAGE
    assert str(length) in raised.value.message


def test_the_largest_frame_is_a_parameter() -> None:
    reader = ResponseReader("peer", max_bytes=10)
    (response,) = feed(reader, encoded(0, 1, b"x" * 10))
    assert len(response.body) == 10
    with pytest.raises(ProtocolError, match="response of 16 bytes"):
        feed(reader, encoded(0, 1, b"x" * 11)[:9])


@pytest.mark.parametrize("kind", [3, 0x48, 255])
def test_unknown_type(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown type {kind}"):
        feed(ResponseReader("peer"), struct.pack(">iBi", 6, kind, 1))


def test_an_http_server_is_told_apart() -> None:
    with pytest.raises(ProtocolError):
        feed(ResponseReader("peer"), b"HTTP/1.1 400 Bad Request\r\n")


def test_parse() -> None:
    (response,) = feed(ResponseReader("peer"), encoded(TYPE_OK, 1, LISTED))
    message = parse_response(LIST_DATABASES, response, "peer")
    assert list(message.database_name) == ["a", "b"]


@pytest.mark.parametrize("kind", [TYPE_ERROR, TYPE_FAILURE])
def test_error_response(kind: int) -> None:
    body = pb.ErrorResponse(
        error_code=7, error_message="db.t is missing\n\tat org.example.Thing(Thing.java:1)"
    ).SerializeToString()
    (response,) = feed(ResponseReader("peer"), encoded(kind, 1, body))
    with pytest.raises(FlussError) as raised:
        parse_response(GET_METADATA, response, "host:1")
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    assert raised.value.code_name == "TABLE_NOT_EXIST"
    assert raised.value.message == "db.t is missing (GET_METADATA at host:1)"


def test_error_response_of_a_newer_server() -> None:
    body = pb.ErrorResponse(error_code=4711, error_message="later").SerializeToString()
    (response,) = feed(ResponseReader("peer"), encoded(TYPE_ERROR, 1, body))
    with pytest.raises(FlussError, match="later") as raised:
        parse_response(GET_METADATA, response, "peer")
    assert raised.value.error_code == 4711
    assert raised.value.code_name == "4711"
    assert not raised.value.is_retriable


def test_negative_code_keeps_its_sign() -> None:
    body = b"\x08" + b"\xff" * 9 + b"\x01"  # -1 in ten bytes
    (response,) = feed(ResponseReader("peer"), encoded(TYPE_ERROR, 1, body))
    with pytest.raises(FlussError, match="no message") as raised:
        parse_response(GET_METADATA, response, "peer")
    assert raised.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x08", b"\x08\0"])
def test_error_response_that_is_none(body: bytes) -> None:
    (response,) = feed(ResponseReader("peer"), encoded(TYPE_ERROR, 1, body))
    with pytest.raises(ProtocolError):
        parse_response(GET_METADATA, response, "peer")


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\x05x"])
def test_answer_that_is_none(body: bytes) -> None:
    (response,) = feed(ResponseReader("peer"), encoded(TYPE_OK, 1, body))
    with pytest.raises(ProtocolError, match="TABLE_EXISTS"):
        parse_response(TABLE_EXISTS, response, "peer")


def test_request() -> None:
    body: list[Buffer] = [b"ab", memoryview(b"cde")]
    buffers = encode_request(LIST_DATABASES, 0, 513, body)
    assert buffers[1] is body[0]
    assert buffers[2] is body[1]
    expected = struct.pack(">ihhi", 8 + 5, 1003, 0, 513) + b"abcde"
    assert b"".join(bytes(part) for part in buffers) == expected


def test_an_answer_that_is_too_large_for_a_frame_is_an_error() -> None:
    """Its length is an int32: nothing could be sent, and the peer would wait."""
    part = bytes(1 << 20)
    body = [part] * 2048
    header, error = encode_response(TYPE_OK, 7, body)
    assert bytes(header) == struct.pack(">iBi", 5 + len(error), TYPE_ERROR, 7)
    said = pb.ErrorResponse.FromString(bytes(error))
    assert said.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "2,147,483,653 bytes" in said.error_message
    assert "fewer rows" in said.error_message
    largest = [*body[:-1], part[:-6]]
    header, *rest = encode_response(TYPE_OK, 7, largest)
    assert struct.unpack(">iBi", header) == (2**31 - 1, TYPE_OK, 7)
    assert len(rest) == 2048


# ---- requests, as a server reads them


def read_requests(reader: RequestReader, data: bytes, most: int) -> list[Request]:
    found = []
    rest = memoryview(data)
    while rest:
        place = reader.buffer()
        assert len(place) > 0
        count = min(len(place), len(rest), most)
        place[:count] = rest[:count]
        rest = rest[count:]
        request = reader.received(count)
        if request is not None:
            found.append(request)
    return found


def request(body: bytes, key: int = LIST_DATABASES.key, request_id: int = 9) -> bytes:
    return struct.pack(">ihhi", len(body) + 8, key, 0, request_id) + body


@pytest.mark.parametrize("most", [1, 7, 1 << 30])
def test_requests_are_read_whole_and_in_pieces(most: int) -> None:
    reader = RequestReader(1000)
    bodies = [b"", b"x", bytes(1000), b"last"]
    data = b"".join(request(body, request_id=i) for i, body in enumerate(bodies))
    found = read_requests(reader, data, most)
    assert [(r.key, r.version, r.request_id, r.dropped) for r in found] == [
        (LIST_DATABASES.key, 0, i, 0) for i in range(4)
    ]
    assert [bytes(r.body) for r in found] == bodies
    assert reader.announced == 0


def test_what_is_sent_is_what_is_read() -> None:
    sent = encode_request(TABLE_EXISTS, 0, 77, [b"ab", memoryview(b"cde")])
    assert decode_request_header(sent[0]) == (TABLE_EXISTS.key, 0, 77)
    (found,) = read_requests(RequestReader(5), b"".join(sent), 3)
    assert (found.key, found.version, found.request_id) == (TABLE_EXISTS.key, 0, 77)
    assert bytes(found.body) == b"abcde"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (struct.pack(">ihhi", 7, 1, 0, 1), "a request of 7 bytes; 100 are accepted"),
        (struct.pack(">ihhi", -1, 1, 0, 1), "a request of -1 bytes"),
        (struct.pack(">ihhi", 109, 1, 0, 1), "a request of 109 bytes"),
        (b"\x16\x03\x01\x02\x00" + bytes(7), "a peer speaks TLS"),
    ],
)
def test_frames_that_are_no_requests(header: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        read_requests(RequestReader(100), header, 99)
    assert read_requests(RequestReader(100), request(bytes(100)), 999)


@pytest.mark.parametrize("size", [11, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 3 * (64 << 10) + 5])
@pytest.mark.parametrize("most", [1000, 1 << 30])
def test_a_body_that_its_kind_of_request_may_not_have_is_dropped(size: int, most: int) -> None:
    reader = RequestReader(1 << 20, lambda key: 10 if key == LIST_DATABASES.key else None)
    other = request(bytes(size), key=TABLE_EXISTS.key)
    small = request(bytes(10))
    dropped, after, free, last = read_requests(
        reader, request(bytes(size)) + request(b"ok", request_id=5) + other + small, most
    )
    assert (dropped.dropped, len(dropped.body), dropped.request_id) == (size, 0, 9)
    assert (after.dropped, bytes(after.body), after.request_id) == (0, b"ok", 5)
    assert (free.dropped, len(free.body)) == (0, size)
    assert (last.dropped, len(last.body)) == (0, 10)


def test_a_body_that_is_received_is_announced() -> None:
    reader = RequestReader(1000, lambda _: 100)
    read_requests(reader, request(bytes(90))[:20], 99)
    assert reader.announced == 90
    read_requests(reader, bytes(82), 99)
    assert reader.announced == 0
    # what is dropped takes no memory
    read_requests(reader, request(bytes(900))[:20], 99)
    assert reader.announced == 0


def test_a_peer_that_answers_by_an_alert_of_tls_is_told_apart() -> None:
    for data, tls in [
        (b"\x15", False),
        (b"\x15\x03", True),
        (b"\x15\x03\x03", True),
        (b"\0\0", False),
    ]:
        reader = ResponseReader("peer")
        assert reader.between_frames
        feed(reader, data)
        assert reader.is_tls is tls
        assert not reader.between_frames
    reader = ResponseReader("peer")
    feed(reader, encoded(TYPE_OK, 1, b"\x15\x03\x03")[:-1])
    assert not reader.is_tls
    assert not reader.between_frames


@pytest.mark.parametrize(
    ("code", "message", "text", "found"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR,
         "java.lang.X: org.apache.fluss.exception.TableNotExistException: no t\n\tat x",
         "no t (here)", ErrorCode.TABLE_NOT_EXIST),
        (ErrorCode.UNKNOWN_SERVER_ERROR,
         "java.X: failed\n at a\nCaused by: java.Y: why\n at b\nCaused by: java.Z: locked\n at c",
         "java.X: failed; caused by java.Z: locked (here)", ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "java.lang.X: y: java.Z: z\n at a\nCaused by: java.Z: z\n",
         "java.lang.X: y: java.Z: z (here)", ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "java.lang.X: org.apache.fluss.exception.Foo: y\n at z",
         "java.lang.X: org.apache.fluss.exception.Foo: y (here)", ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.TABLE_NOT_EXIST,
         "org.apache.fluss.exception.DatabaseNotExistException: no d",
         "org.apache.fluss.exception.DatabaseNotExistException: no d (here)",
         ErrorCode.TABLE_NOT_EXIST),
        (ErrorCode.TABLE_NOT_EXIST, "", "no message (here)", ErrorCode.TABLE_NOT_EXIST),
    ],
)  # fmt: skip
def test_errors_of_servers_say_what_happened(
    code: int, message: str, text: str, found: int
) -> None:
    error = server_error(code, message, "here")
    assert error.error_code == found
    assert text in str(error)
    assert "\n" not in str(error)


def test_an_error_without_a_code_is_one_of_the_protocol() -> None:
    error = server_error(ErrorCode.NONE, "fine", "here")
    assert isinstance(error, ProtocolError)
    assert "without an error code: fine (here)" in str(error)
