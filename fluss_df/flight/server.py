"""A Flight SQL server over a folder or a cluster: :class:`FlightSqlServer`."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa

from fluss_df.engine.access.security import Security
from fluss_df.errors import ErrorCode, FlussError, NetworkError
from fluss_df.flight.access import Access
from fluss_df.flight.calls import Calls
from fluss_df.flight.options import FlightLimits
from fluss_df.flight.service import Service
from fluss_df.flight.sessions import Sessions
from fluss_df.flight.statements import Statements
from fluss_df.hooks import Closing, EndStep, at_end, undoing
from fluss_df.memory import reuse_large_blocks

_SWEEP_S: Final = 5.0
_END_S: Final = 2.0


class FlightSqlServer(Closing):
    """Serves SQL over Fluss to clients of Arrow Flight SQL, from threads of its own.

    Parameters
    ----------
    access
        Who may come in: :class:`~fluss_df.flight.access.FolderAccess` or
        :class:`~fluss_df.flight.access.ClusterAccess`.
    port
        0 for a free one.
    host
        The address to listen on.
    tls_cert, tls_key, tls_client_ca
        Files of the certificate, of its private key, and of the authorities whose certificates
        clients need, in PEM.
    allow_insecure
        Whether others than this machine may come in without TLS, or without a password.
    limits
        What clients may use.

    Raises
    ------
    FlussError
        ``INVALID_CONFIG_EXCEPTION`` for an address that others reach, where it is not safe;
        ``NETWORK_EXCEPTION`` when the port is taken.

    Examples
    --------
    >>> from fluss_df.embedded import EmbeddedFluss
    >>> from fluss_df.flight import FlightSqlServer, FolderAccess
    >>> with EmbeddedFluss(None) as engine, FlightSqlServer(FolderAccess(engine)) as server:
    ...     server.url.startswith("grpc://127.0.0.1:")
    True
    """

    def __init__(
        self,
        access: Access,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_client_ca: str | os.PathLike[str] | None = None,
        allow_insecure: bool = False,
        limits: FlightLimits | None = None,
    ) -> None:
        self._limits = limits or FlightLimits()
        credentials = _credentials(tls_cert, tls_key, tls_client_ca)
        if not allow_insecure and not _is_local(host):
            _require_safe(host, tls=credentials is not None, users=access.needs_password)
        self.host = host
        self._tls = credentials is not None
        self._closed = threading.Event()
        self._process = os.getpid()
        self._sessions = Sessions(access, self._limits)
        self._calls = Calls()
        self._statements = Statements(self._limits)
        service = Service(self._sessions, self._statements, self._calls, self._limits)
        reuse_large_blocks()
        # With the first values PyArrow imports pandas where there is one: 25 MB and a quarter of a
        # second, which the first client would wait for.
        pa.array([0])
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(
                self._limits.calls, thread_name_prefix="fluss-df-flight"
            ),
            handlers=(service,),
            options=_options(self._limits),
            # more calls than threads are accepted, because a refusal needs no thread
            maximum_concurrent_rpcs=self._limits.calls,
        )
        with undoing(self._calls.close):
            self.port = self._listen(host, port, credentials)
        self._server.start()
        _open.add(self)
        threading.Thread(target=self._sweep, name="fluss-df-flight-sweep", daemon=True).start()

    def _listen(self, host: str, port: int, credentials: Any) -> int:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise NetworkError(
                f"cannot serve Flight SQL on {address}: the port is taken, or the address is not"
                " of this machine"
            ) from error

    @property
    def url(self) -> str:
        """Where clients of Arrow find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'grpc+tls' if self._tls else 'grpc'}://{host}:{self.port}"

    def _sweep(self) -> None:
        while not self._closed.wait(_SWEEP_S):
            self._sessions.sweep()

    def close(self) -> None:
        """End all statements and answer nothing more; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        if os.getpid() != self._process:
            # In a forked child: the parent serves on. Its threads are not here, and to stop the
            # server would wait for them.
            return
        stopped = self._server.stop(grace=None)
        self._sessions.close()
        stopped.wait(_END_S)
        self._calls.close()

    def __repr__(self) -> str:
        return f"FlightSqlServer({self.url!r}, {'closed' if self._closed.is_set() else 'open'})"


_open: weakref.WeakSet[FlightSqlServer] = weakref.WeakSet()


def _close_open() -> None:
    """Close what the program left open: its threads are waited for, and would never end."""
    for server in list(_open):
        server.close()


at_end(EndStep.SERVERS, _close_open)


def _options(limits: FlightLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", limits.calls),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 32 << 10),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # peers that are gone without a word
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_connection_idle_ms", int(limits.session_idle_s * 1000)),
    ]


def _credentials(
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    client_ca: str | os.PathLike[str] | None,
) -> Any:
    Security(tls_cert=cert, tls_key=key, tls_client_ca=client_ca)  # refuses useless ones
    if cert is None or key is None:
        return None
    ca = None if client_ca is None else _read(client_ca)
    return grpc.ssl_server_credentials(
        [(_read(key), _read(cert))], root_certificates=ca, require_client_auth=ca is not None
    )


def _read(file: str | os.PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise FlussError(
            f"cannot read {file}: {error}", ErrorCode.INVALID_CONFIG_EXCEPTION
        ) from error


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_safe(host: str, *, tls: bool, users: bool) -> None:
    if users and tls:
        return
    missing = " and ".join(
        text for text, there in (("users with passwords", users), ("TLS", tls)) if not there
    )
    raise FlussError(
        f"Flight SQL on {host} would be open to other machines without {missing}: add them,"
        " listen on 127.0.0.1, or say that it is meant (--flight-sql-insecure)",
        ErrorCode.INVALID_CONFIG_EXCEPTION,
    )
