"""Frames without I/O: requests to bytes, received bytes to responses.

A request is ``i32 length, i16 API key, i16 version, i32 request id, body``; a response is
``i32 length, u8 type, i32 request id, body``, both big endian. The reader hands out the buffer
that the next bytes belong in, so that a large body is received in place and never copied.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.memory import allocate, allocate_request
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import Api, RequestT, ResponseT
from fluss_df.protocol.fetch import FetchReply
from fluss_df.protocol.wire import Buffer, parsed

_REQUEST_HEADER = struct.Struct(">ihhi")
_RESPONSE_HEADER = struct.Struct(">iBi")
_RESPONSE_HEADER_AFTER_LENGTH = 5

# bytes of a response frame besides its body
RESPONSE_OVERHEAD = _RESPONSE_HEADER.size

# a length is an int32
MOST_FRAME_BYTES = 2**31 - 1
TYPE_OK = 0
TYPE_ERROR = 1
TYPE_FAILURE = 2

# The largest response that is accepted: a fetch returns what it was asked for and at most one
# batch more; a limit scan of a whole bucket can be large. Beyond it the length is a broken frame.
MAX_RESPONSE_BYTES = 1 << 30


def encode_request(
    api: Api[RequestT, ResponseT], version: int, request_id: int, body: Sequence[Buffer]
) -> list[Buffer]:
    """Return the buffers of one request frame; those of the body are passed on as they are."""
    length = _REQUEST_HEADER.size - 4 + sum(len(part) for part in body)
    header = _REQUEST_HEADER.pack(length, api.key, version, request_id)
    return [header, *body]


def decode_request_header(header: Buffer) -> tuple[int, int, int]:
    """Return API key, version and request id of what :func:`encode_request` returned first."""
    _, key, version, request_id = _REQUEST_HEADER.unpack(header)
    return key, version, request_id


# how records of TLS begin: as lengths of frames they would be 350 MB and more
_TLS_ALERT: Final = b"\x15\x03"
_TLS_HANDSHAKE: Final = b"\x16\x03"


@dataclass(frozen=True, slots=True)
class Response:
    """One response frame.

    ``type`` is 0 for an answer, 1 for an error response, 2 for a failure of the server. ``body`` is
    the rest of the frame, and owns its memory. A server in this process answers a fetch with
    ``fetched`` instead of a body: records are not copied.
    """

    request_id: int
    type: int
    body: pa.Buffer
    fetched: FetchReply | None = None

    @property
    def size(self) -> int:
        """The bytes of the body."""
        return len(self.body) if self.fetched is None else self.fetched.size


class ResponseReader:
    """Puts received bytes together to responses.

    ``peer`` is ``host:port``, for errors. A frame larger than ``max_bytes`` is refused.

    Examples
    --------
    >>> reader = ResponseReader("peer")
    >>> frame = bytes([0, 0, 0, 5, 0, 0, 0, 0, 7])
    >>> reader.buffer()[: len(frame)] = frame
    >>> reader.received(len(frame)).request_id
    7
    """

    def __init__(self, peer: str, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._peer = peer
        self._max_bytes = max_bytes
        self._header = bytearray(_RESPONSE_HEADER.size)
        self._body: pa.Buffer | None = None
        self._type = 0
        self._request_id = 0
        self._rest = memoryview(self._header)

    @property
    def is_tls(self) -> bool:
        """Whether what was received of a frame's header is the beginning of an alert of TLS."""
        received = len(self._header) - len(self._rest)
        begun = self._body is None and received >= len(_TLS_ALERT)
        return begun and self._header.startswith(_TLS_ALERT)

    @property
    def between_frames(self) -> bool:
        """Whether no part of a frame was received yet."""
        return self._body is None and len(self._rest) == len(self._header)

    def buffer(self) -> memoryview:
        """Return the non-empty place for the next bytes: the rest of the header or body."""
        return self._rest

    def received(self, count: int) -> Response | None:
        """Take note of ``count`` bytes written to :meth:`buffer`; return the response they end.

        Raises ProtocolError when the frame cannot be one; the connection is then of no more use.
        """
        self._rest = self._rest[count:]
        if len(self._rest):
            return None
        if self._body is None:
            length, self._type, self._request_id = _RESPONSE_HEADER.unpack(self._header)
            size = length - _RESPONSE_HEADER_AFTER_LENGTH
            if size < 0 or size > self._max_bytes:
                raise ProtocolError(
                    f"response of {length} bytes announced by {self._peer}: something else than"
                    " Fluss may listen on this port"
                )
            if self._type > TYPE_FAILURE:
                raise ProtocolError(
                    f"response of unknown type {self._type} from {self._peer}: something else than"
                    " Fluss may listen on this port"
                )
            # not zeroed, unlike a bytearray: measured 6 % of a scan
            self._body = allocate(size)
            if size:
                self._rest = memoryview(self._body).cast("B")
                return None
        response = Response(self._request_id, self._type, self._body)
        self._body = None
        self._rest = memoryview(self._header)
        return response


@dataclass(frozen=True, slots=True)
class Request:
    """One request frame.

    Its response repeats ``request_id``. ``body`` is the rest of the frame, and owns its memory. A
    body that is larger than its kind of request may be is dropped as it comes: then ``body`` is
    empty, and ``dropped`` is how many bytes it had.
    """

    key: int
    version: int
    request_id: int
    body: pa.Buffer
    dropped: int = 0


# the bytes of a dropped body that are received at a time
_DROPPED_AT_ONCE = 64 << 10


class RequestReader:
    """Puts received bytes together to requests: the server's side of :class:`ResponseReader`.

    ``max_bytes`` is the largest frame that is accepted; it may be changed between frames.
    ``most_bytes`` returns how large the body of a kind of request may be, None for no such limit. A
    larger one is dropped as it comes, and told in :attr:`Request.dropped`.
    """

    def __init__(
        self, max_bytes: int, most_bytes: Callable[[int], int | None] | None = None
    ) -> None:
        self.max_bytes = max_bytes
        self._most_bytes = most_bytes
        self._dropped = self._dropping = 0
        self._header = bytearray(_REQUEST_HEADER.size)
        self._body: pa.Buffer | None = None
        self._fields = (0, 0, 0)
        self._rest = memoryview(self._header)

    @property
    def announced(self) -> int:
        """The bytes of the body that is being received; 0 between frames."""
        return 0 if self._body is None or self._dropped else len(self._body)

    def buffer(self) -> memoryview:
        """Return the non-empty place for the next bytes: the rest of the header or body."""
        return self._rest

    def received(self, count: int) -> Request | None:
        """Take note of ``count`` bytes written to :meth:`buffer`; return the request they end.

        Raises ProtocolError when the frame cannot be one, or is too large; the connection is then
        of no more use.
        """
        self._rest = self._rest[count:]
        if len(self._rest):
            return None
        if self._body is None:
            length, *fields = _REQUEST_HEADER.unpack(self._header)
            size = length - (_REQUEST_HEADER.size - 4)
            if size < 0 or size > self.max_bytes:
                if self._header.startswith(_TLS_HANDSHAKE):
                    raise ProtocolError("a peer speaks TLS, where none is spoken")
                raise ProtocolError(f"a request of {length} bytes; {self.max_bytes} are accepted")
            self._fields = (fields[0], fields[1], fields[2])
            most = None if self._most_bytes is None else self._most_bytes(fields[0])
            if most is not None and size > most:
                self._dropped = self._dropping = size
                size = min(size, _DROPPED_AT_ONCE)
            self._body = allocate_request(size)
            if size:
                self._rest = memoryview(self._body).cast("B")
                return None
        if self._dropping:
            self._dropping -= len(self._body)
            if self._dropping:
                self._rest = memoryview(self._body).cast("B")[: self._dropping]
                if len(self._rest) < len(self._body):
                    self._body = self._body.slice(0, len(self._rest))
                return None
            self._body = pa.py_buffer(b"")
        request = Request(*self._fields, self._body, self._dropped)
        self._body = None
        self._dropped = 0
        self._rest = memoryview(self._header)
        return request


def encode_response(kind: int, request_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers of one response frame; those of the body are passed on as they are.

    A frame has 2 GB at the most, as its length is an int32: a body that is larger becomes an error
    response (``RECORD_TOO_LARGE_EXCEPTION``).
    """
    length = _RESPONSE_HEADER_AFTER_LENGTH + sum(len(part) for part in body)
    if length > MOST_FRAME_BYTES:
        error = pb.ErrorResponse(
            error_code=ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            error_message=f"the answer has {length:,} bytes, and a frame of the protocol has"
            f" {MOST_FRAME_BYTES:,} at the most: ask for fewer rows, keys or buckets at once, or"
            " for fewer columns",
        )
        kind, body = TYPE_ERROR, [error.SerializeToString()]
        length = _RESPONSE_HEADER_AFTER_LENGTH + len(body[0])
    return [_RESPONSE_HEADER.pack(length, kind, request_id), *body]


def parse_response(api: Api[RequestT, ResponseT], response: Response, peer: str) -> ResponseT:
    """Return the message of a response.

    Raises FlussError with the server's code, when it is an error response. Raises ProtocolError
    when the body is not the message.
    """
    raise_error_response(api, response, peer)
    return parsed(api.response, response.body, f"{api.name} response of {peer}")


def raise_error_response(api: Api[RequestT, ResponseT], response: Response, peer: str) -> None:
    """Raise the error that a response of type 1 or 2 stands for."""
    if response.type == TYPE_OK:
        return
    error = parsed(pb.ErrorResponse, response.body, f"error response of {peer}")
    raise server_error(error.error_code, error.error_message, f"{api.name} at {peer}")


_CODES = {
    "DatabaseNotExist": ErrorCode.DATABASE_NOT_EXIST,
    "TableNotExist": ErrorCode.TABLE_NOT_EXIST,
    "PartitionNotExist": ErrorCode.PARTITION_NOT_EXISTS,
}
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_WRAPPED = re.compile(rf"\borg\.apache\.fluss\.exception\.({'|'.join(_CODES)})Exception: (.+)")
# what to do, where servers do not say it
_WAYS_OUT = {
    ErrorCode.DATABASE_NOT_EXIST: "create the database, or correct its name: list_databases() and"
    " 'fluss-df databases' say what there is",
    ErrorCode.DATABASE_NOT_EMPTY: "drop its tables first, or drop it with cascade",
    ErrorCode.SECURITY_DISABLED_EXCEPTION: "rights need a server with an authorizer: 'fluss-df"
    " serve --dir FOLDER --authorizer-enabled' is one; Fluss has the setting authorizer.enabled",
}


def server_error(code: int, message: str, where: str) -> FlussError:
    """Return the error for a code and message that a server sent.

    Servers send whole stack traces with unexpected errors: the first line says what happened, and
    the last cause why. Where the first line is an error of Fluss which has a code, wrapped in
    another, the code is the error's own. The way out stands behind what servers say without one.
    """
    first_line, _, trace = message.partition("\n")
    first_line = first_line.strip()
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        causes = _CAUSE.findall(trace)
        if causes and causes[-1].strip() not in first_line:
            first_line = f"{first_line}; caused by {causes[-1].strip()}"
        wrapped = _WRAPPED.search(first_line)
        if wrapped is not None:
            code, first_line = _CODES[wrapped[1]], wrapped[2]
    way_out = _WAYS_OUT.get(code)
    if way_out is not None:
        first_line = f"{first_line.rstrip('.')}: {way_out}"
    text = f"{first_line or 'no message'} ({where})"
    if code == ErrorCode.NONE:
        return ProtocolError(f"error response without an error code: {text}")
    return FlussError(text, code)
