"""TLS of connections: verification of the peer, and errors that name the setting at fault.

Python's own TLS takes PEM files. What fails says which of the two sides is at fault, and which
setting mends it; what would fail again is not tried again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError, NetworkError

# taken from a socket at once: 16 records
_RECEIVED_BYTES: Final = 256 << 10
# more than a record has, encrypted
_RECORD_BYTES: Final = 20 << 10
_WAIT_ALL: Final = getattr(socket, "MSG_WAITALL", 0)
_SETTING: Final = "client.security.ssl"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# of OpenSSL's X509_V_ERR_*
_NOT_YET, _EXPIRED = 9, 10
_WRONG_NAME: Final = frozenset({62, 64})
_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21, 24, 27})

# parts of OpenSSL's reasons, and what they mean
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH")
_VERSION: Final = (
    "PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "NO_PROTOCOLS_AVAILABLE",
    "NO_SHARED_CIPHER",
    "INSUFFICIENT_SECURITY",
    "NO_CIPHERS",
)
_REFUSES_CERTIFICATE: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "DECRYPT_ERROR",
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are encrypted; part of the key of the connection cache.

    Parameters
    ----------
    protocols
        Versions that are spoken, with "," between.
    ciphers
        Suites of TLS 1.2; "" for OpenSSL's choice.
    truststore, keystore
        Files of authorities, and of the client's certificate and key; "" for none.
    password
        The password of the key.
    names
        Whether certificates have to be for the host that is connected to.
    """

    protocols: str
    ciphers: str
    truststore: str
    keystore: str
    password: str = field(repr=False)
    names: bool

    def context(self) -> ssl.SSLContext:
        """Return what verifies servers; files that changed are read again.

        Raises ``INVALID_CONFIG_EXCEPTION`` for a file that cannot be read, or holds something else.
        """
        return _context(self, _changed(self.truststore), _changed(self.keystore))


def tls_of(config: Config) -> Tls | None:
    """Return how connections are encrypted; None where they are not."""
    if not config.security_ssl_enabled:
        return None
    return Tls(
        config.security_ssl_enabled_protocols,
        config.security_ssl_cipher_suites,
        config.security_ssl_truststore_path,
        config.security_ssl_keystore_path,
        config.security_ssl_key_password or config.security_ssl_keystore_password,
        config.security_ssl_endpoint_identification_algorithm == "https",
    )


def _changed(path: str) -> tuple[int, int] | None:
    """Return a value that is another one once the file was replaced."""
    try:
        found = os.stat(os.path.expanduser(path)) if path else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino)


@functools.lru_cache(maxsize=32)
def _context(tls: Tls, trusted: object, kept: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in tls.protocols.split(",")]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = tls.names
    if tls.ciphers:
        try:
            context.set_ciphers(tls.ciphers.replace(",", ":"))
        except ssl.SSLError as error:
            raise _invalid("cipher.suites", tls.ciphers, "OpenSSL knows none of them") from error
    if tls.truststore:
        try:
            context.load_verify_locations(os.path.expanduser(tls.truststore))
        except OSError as error:
            raise _invalid("truststore.path", tls.truststore, _said(error)) from error
    else:
        context.load_default_certs()
    if tls.keystore:
        try:
            # a function, as OpenSSL asks the terminal otherwise
            context.load_cert_chain(os.path.expanduser(tls.keystore), password=lambda: tls.password)
        except OSError as error:
            raise _invalid("keystore.path", tls.keystore, _said(error)) from error
    return context


def _invalid(setting: str, value: str, problem: str) -> FlussError:
    return FlussError(
        f"{_SETTING}.{setting} {value!r}: {problem}", ErrorCode.INVALID_CONFIG_EXCEPTION
    )


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (
            f"it is no PEM file of what is wanted there, or the password is wrong"
            f" ({error.reason or error})"
        )
    return error.strerror or str(error)


class TlsSocket:
    """A blocking socket that is encrypted.

    Not Python's own: that one asks the system for each record of 16 KB twice. Measured, a stream of
    them is received 1.5 times as fast here.

    ``connected`` keeps its timeouts. The certificate has to be for ``host``.

    Raises OSError as :func:`tls_error` explains. The socket stays open.
    """

    def __init__(self, connected: socket.socket, tls: Tls, host: str) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = tls.context().wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._received = memoryview(bytearray(_RECEIVED_BYTES))
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except OSError:
                # tells the server why
                with contextlib.suppress(OSError):
                    self._flush()
                raise
            else:
                self._flush()
                return

    def _receive(self, certain: int = 0) -> bool:
        """Take what has come, at least a byte; return False where the peer ended.

        ``certain`` is how many bytes are sure to come. They are waited for together, because a
        thread that is woken for each record has to wait for its turn each time.
        """
        count = min(certain - _RECORD_BYTES, _RECEIVED_BYTES)
        if count > 0:
            count = self._socket.recv_into(self._received, count, _WAIT_ALL)
        else:
            count = self._socket.recv_into(self._received)
        if count:
            self._incoming.write(self._received[:count])
        else:
            self._incoming.write_eof()
        return count > 0

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.sendall(self._outgoing.read())

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """Fill a buffer, as ``MSG_WAITALL`` has it; return fewer bytes where the peer ended."""
        filled = 0
        while filled < len(buffer):
            try:
                # with a buffer it returns a count, though its types say bytes
                count: Any = self._object.read(len(buffer) - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                # a change of keys has to be answered
                self._flush()
                # encrypted, the bytes are more than those missing, of which a part may have come
                # already
                if not self._receive(len(buffer) - filled):
                    break
            except ssl.SSLZeroReturnError:
                break
            else:
                filled += count
        return filled

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
            if self._outgoing.pending > _RECEIVED_BYTES:
                self._flush()
        self._flush()

    def pending(self) -> bool:
        """Whether something was received that nobody took."""
        return bool(self._object.pending() or self._incoming.pending)

    def fileno(self) -> int:
        """Return the socket's file number, for select."""
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """Have each further wait for the peer end after a while."""
        self._socket.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        """Have the system's own timeouts hold."""
        self._socket.setblocking(flag)

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """Wake who waits for the peer."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def tls_error(error: OSError, address: str, *, shaking_hands: bool) -> FlussError | None:
    """Return what a failure of TLS means; None where it is a failure of the network.

    ``shaking_hands`` says whether none of the server's answers was received yet.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_unverified(error, address))
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if any(part in reason for part in _VERSION):
        return TlsError(
            f"the server at {address} and this client speak no common version of TLS, or have no"
            f" common cipher suite ({_SETTING}.enabled.protocols, {_SETTING}.cipher.suites)"
        )
    if any(part in reason for part in _REFUSES_CERTIFICATE):
        return TlsError(
            f"the server at {address} refuses the certificate of this client"
            f" ({_SETTING}.keystore.path): {reason.lower().replace('_', ' ')}"
        )
    certificate = f"a certificate of the client: set {_SETTING}.keystore.path to a PEM file of one"
    if "CERTIFICATE_REQUIRED" in reason:
        return TlsError(f"the server at {address} asks for {certificate}, with its private key")
    if "HANDSHAKE_FAILURE" in reason:
        # servers of TLS 1.2 say no more than this
        return TlsError(
            f"the server at {address} refuses this client: it asks for {certificate}, or has no"
            f" cipher suite in common with it ({_SETTING}.cipher.suites)"
        )
    way_out = f"connect to a port that does, or without {_SETTING}.enabled"
    if any(part in reason for part in _NO_TLS):
        return TlsError(f"the server at {address} does not speak TLS on this port: {way_out}")
    ended = isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError))
    if ended and shaking_hands:
        # or it is being restarted at this moment, and is tried again
        return NetworkError(
            f"the server at {address} ended the connection when it was asked for TLS: where it"
            f" does not speak TLS on this port, {way_out}"
        )
    return None


def _unverified(error: ssl.SSLCertVerificationError, address: str) -> str:
    code = error.verify_code
    if code in _WRONG_NAME:
        return (
            f"the certificate of the server at {address} is for another host"
            f" ({error.verify_message}): connect by a name that is in it"
        )
    if code == _EXPIRED:
        return f"the certificate of the server at {address} has expired"
    if code == _NOT_YET:
        return f"the certificate of the server at {address} is not valid yet: are the clocks right?"
    if code in _UNKNOWN:
        return (
            f"the certificate of the server at {address} is of an authority that this client does"
            f" not know ({error.verify_message}): set {_SETTING}.truststore.path to a PEM file of"
            " it"
        )
    return f"the certificate of the server at {address} is not valid: {error.verify_message}"


class TlsError(FlussError):
    """TLS failed in a way that fails again (``AUTHENTICATE_EXCEPTION``)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.AUTHENTICATE_EXCEPTION)


def needs_tls(address: str) -> FlussError:
    """Return the error for a server that answers in TLS where this client speaks without."""
    return TlsError(f"the server at {address} speaks TLS on this port: set {_SETTING}.enabled")
