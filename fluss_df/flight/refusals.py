"""What clients are told of errors: a status of gRPC, and a message."""

from __future__ import annotations

import logging
import re
from typing import Final

import grpc

from fluss_df.backend.query_run import QueryCancelledError, QueryLimitError
from fluss_df.errors import DeadlineExceededError, ErrorCode, FlussError, NetworkError

logger = logging.getLogger(__name__)

# trailers of HTTP/2, which carry the message, have no room for more
_MOST_TEXT: Final = 2000
_SOCKET: Final = re.compile(r"\(([A-Z_]+) at /[^()\s]*\)")
_C = grpc.StatusCode


class RefusalError(FlussError):
    """A refusal by the server, with its status of gRPC.

    The message has what is refused, why, and the way out.
    """

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


def unsupported(message: str) -> RefusalError:
    """Return the refusal of a feature that does not exist."""
    return RefusalError(_C.UNIMPLEMENTED, message)


def invalid(message: str) -> RefusalError:
    """Return the refusal of a request that cannot be understood."""
    return RefusalError(_C.INVALID_ARGUMENT, message)


def exhausted(message: str) -> RefusalError:
    """Return the refusal of a request beyond a limit."""
    return RefusalError(_C.RESOURCE_EXHAUSTED, message)


def unauthenticated(message: str) -> RefusalError:
    """Return the refusal of a client that is not signed in."""
    return RefusalError(_C.UNAUTHENTICATED, message)


_STATUSES: Final = {
    ErrorCode.AUTHENTICATE_EXCEPTION: _C.UNAUTHENTICATED,
    ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION: _C.UNAUTHENTICATED,
    ErrorCode.AUTHORIZATION_EXCEPTION: _C.PERMISSION_DENIED,
    ErrorCode.TABLE_NOT_EXIST: _C.NOT_FOUND,
    ErrorCode.DATABASE_NOT_EXIST: _C.NOT_FOUND,
    ErrorCode.PARTITION_NOT_EXISTS: _C.NOT_FOUND,
    ErrorCode.TABLE_ALREADY_EXIST: _C.ALREADY_EXISTS,
    ErrorCode.DATABASE_ALREADY_EXIST: _C.ALREADY_EXISTS,
}


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return what a client is told of an error."""
    if isinstance(error, RefusalError):
        found = error.status
    elif isinstance(error, QueryCancelledError):
        found = _C.CANCELLED
    elif isinstance(error, QueryLimitError):
        found = _C.RESOURCE_EXHAUSTED
    elif isinstance(error, DeadlineExceededError):
        found = _C.DEADLINE_EXCEEDED
    elif isinstance(error, FlussError):
        found = _STATUSES.get(error.error_code, _C.INVALID_ARGUMENT)
        if isinstance(error, NetworkError) or (
            error.is_retriable and error.error_code not in _STATUSES
        ):
            found = _C.UNAVAILABLE
    else:
        logger.error("a call failed", exc_info=error)
        return _C.INTERNAL, f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    # clients must not learn where an engine of this process has its socket
    text = _SOCKET.sub(r"(\1)", str(error))
    return found, text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def partly(error: FlussError, written: int, where: str = "") -> RefusalError:
    """Return an error that also says how many rows are written by now.

    ``error`` is that of the rows after those. ``where`` is text that follows the number, such as
    the table that they are written to.
    """
    status, text = status_of(error)
    if status == _C.UNAVAILABLE:
        # after UNAVAILABLE some clients send again by themselves, and would write those rows twice
        status = _C.ABORTED
    counted = ", and the rows that it names are counted behind them" if " in row " in text else ""
    room = _MOST_TEXT - 400
    return RefusalError(
        status,
        f"{text if len(text) <= room else f'{text[:room]} ...'}; {written:,} rows before are"
        f" written{where}{counted}",
    )
