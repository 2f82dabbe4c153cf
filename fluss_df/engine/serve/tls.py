"""TLS of a server: its certificate, handshakes, and peers that come without it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Final

from fluss_df.engine.access.security import Security
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.frames import TYPE_ERROR, encode_response

logger = SeldomLogger(logging.getLogger(__name__))

# how often it is looked whether a certificate was renewed
_LOOK_S: Final = 1.0
# how a handshake begins
_HANDSHAKE: Final = 0x16
_FRAME: Final = struct.Struct(">ihhi")
# how long a peer that is refused may take to read why, and how much it may send meanwhile
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 256 << 10


class ServerTls:
    """Shakes hands with peers by the files of a certificate, which may be renewed meanwhile.

    Raises ``INVALID_CONFIG_EXCEPTION`` for a file that cannot be read, or holds something else.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        # before they are read, so that a change meanwhile is seen
        self._files = self._seen()
        self._looked = time.monotonic()
        self._context = _context_of(security)

    def _seen(self) -> list[tuple[int, int, int] | None]:
        security = self._security
        return [
            _stamp(path)
            for path in (security.tls_cert, security.tls_key, security.tls_client_ca)
            if path is not None
        ]

    def context(self) -> ssl.SSLContext:
        """Return it, with the files as they were a second ago.

        Files that cannot be used leave it as it is, and are told in the log.
        """
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            files = self._seen()
            if files != self._files:
                self._files = files
                try:
                    self._context = _context_of(self._security)
                except FlussError as error:
                    logger.warning("the certificate stays the old one: %s", error.message)
        return self._context


def _stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _context_of(security: Security) -> ssl.SSLContext:
    assert security.tls_cert is not None
    assert security.tls_key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # TLS 1.2 has renegotiation, and handshakes cost a server more than a client
    context.options |= ssl.OP_NO_RENEGOTIATION
    cert, key = os.fspath(security.tls_cert), os.fspath(security.tls_key)
    for option, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            os.stat(path)
        except OSError as error:
            raise _invalid(option, path, error.strerror or str(error)) from error
    try:
        # a function, as OpenSSL asks the terminal for a password otherwise
        context.load_cert_chain(cert, key, password=lambda: "")
    except OSError as error:
        said = getattr(error, "reason", None) or str(error)
        raise _invalid(
            "tls_cert",
            cert,
            f"with the key {key}: they are no PEM files of a certificate and its private key, which"
            f" has no password ({said})",
        ) from error
    if security.tls_client_ca is not None:
        authorities = os.fspath(security.tls_client_ca)
        try:
            context.load_verify_locations(authorities)
        except OSError as error:
            said = getattr(error, "reason", None) or error.strerror or str(error)
            raise _invalid("tls_client_ca", authorities, said) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _invalid(option: str, path: str, problem: str) -> FlussError:
    return FlussError(f"{option} {path}: {problem}", ErrorCode.INVALID_CONFIG_EXCEPTION)


async def shake_hands(peer: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket | None:
    """Shake hands with a peer; None where it ended or speaks no TLS, which it is told.

    The socket of the peer does not block. It is closed where no hands were shaken. ``context`` is
    that of :class:`ServerTls`.

    Raises OSError where they could not agree; the peer was told why.
    """
    with undoing(peer.close):
        first = await _peek(peer)
        if first != _HANDSHAKE:
            if first is not None:
                await _refuse_plain(peer)
            peer.close()
            return None
        encrypted = context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
    try:
        await _repeated(encrypted, encrypted.do_handshake)
    except OSError:
        # the reason is sent: unread bytes would have the system take it back
        with contextlib.suppress(OSError):
            await _linger(encrypted.detach())
        raise
    except BaseException:
        encrypted.close()
        raise
    return encrypted


async def _ready(peer: socket.socket | int, *, to_write: bool = False) -> None:
    """Wait until a socket has something to read, or room to write."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    watch, forget = (
        (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    )
    watch(peer, settle)
    try:
        await ready
    finally:
        forget(peer)


async def _peek(peer: socket.socket) -> int | None:
    """Return the first byte that a peer sends, and leave it there; None where it ended."""
    while True:
        try:
            first = peer.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            await _ready(peer)
        else:
            return first[0] if first else None


async def _repeated(encrypted: ssl.SSLSocket, step: Callable[[], object]) -> None:
    while True:
        try:
            step()
        except (ssl.SSLWantReadError, BlockingIOError, InterruptedError):
            await _ready(encrypted)
        except ssl.SSLWantWriteError:
            await _ready(encrypted, to_write=True)
        else:
            return


async def _refuse_plain(peer: socket.socket) -> None:
    """Answer the first request of a peer without TLS: what it has to set."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) < _FRAME.size:
        part = await loop.sock_recv(peer, _FRAME.size - len(head))
        if not part:
            return
        head += part
    request_id = _FRAME.unpack(head)[3]
    error = pb.ErrorResponse(
        error_code=ErrorCode.AUTHENTICATE_EXCEPTION,
        error_message="this port speaks TLS: set client.security.ssl.enabled, and"
        " client.security.ssl.truststore.path to a file of the authority that the server's"
        " certificate is of",
    )
    answer = b"".join(encode_response(TYPE_ERROR, request_id, [error.SerializeToString()]))
    await loop.sock_sendall(peer, answer)
    await _linger(os.dup(peer.fileno()))


async def _linger(fd: int) -> None:
    """Read what a peer still sends, for a moment, so that it gets what it was sent."""
    loop = asyncio.get_running_loop()
    left = _LINGER_BYTES
    with socket.socket(fileno=fd) as peer, contextlib.suppress(OSError, TimeoutError):
        peer.setblocking(False)
        peer.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                part = await loop.sock_recv(peer, left)
                if not part:
                    return
                left -= len(part)
