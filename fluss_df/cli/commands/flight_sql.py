"""``fluss-df flight-sql``: SQL over a cluster or a folder for clients of Arrow Flight SQL."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages
from fluss_df.cli.base.options import Connection
from fluss_df.errors import FlussError

if TYPE_CHECKING:
    from fluss_df.flight import FlightSqlServer
    from fluss_df.flight.access import Access

FlightSqlInsecure = Annotated[
    bool,
    typer.Option(
        "--flight-sql-insecure",
        help="Let other machines in without TLS, or without passwords: whoever reaches the port"
        " reads and writes, and whoever is between reads passwords.",
    ),
]


def flight_sql(
    connection: Connection = None,
    port: Annotated[
        int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)
    ] = 32010,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in",
            help="Let in only who signs in, with the user and password of the cluster; others have"
            " the rights of --connection.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Serve by TLS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The private key of --tls-cert (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            help="Let in only clients with a certificate of these authorities (PEM).",
        ),
    ] = None,
    flight_sql_insecure: FlightSqlInsecure = False,
) -> None:
    """Serve SQL over Fluss to clients of Arrow Flight SQL, until SIGINT or SIGTERM."""
    with errors_as_messages():
        require_flight()
        from fluss_df.flight import ClusterAccess

        ended = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: ended.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            access = ClusterAccess(connection, needs_password=sign_in)
            tls = (tls_cert, tls_key, tls_client_ca)
            server = serving(access, port, host, tls=tls, insecure=flight_sql_insecure)
            with server:
                typer.echo(f"Flight SQL on {server.url}")
                # in slices, so that a signal is noticed at once on every platform
                while not ended.wait(0.5):
                    pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def require_flight() -> None:
    """Say what is missing, where the server cannot be imported.

    Raises
    ------
    FlussError
        With the way to install it.
    """
    try:
        import fluss_df.flight  # noqa: F401
    except ImportError as error:
        raise FlussError(
            f"Flight SQL needs gRPC and Ibis ({error}): pip install 'fluss-df[flight]'"
        ) from None


def serving(
    access: Access,
    port: int,
    host: str,
    *,
    tls: tuple[Path | None, Path | None, Path | None],
    insecure: bool,
) -> FlightSqlServer:
    """Return a server that serves."""
    from fluss_df.flight import FlightSqlServer

    cert, key, client_ca = tls
    return FlightSqlServer(
        access,
        port,
        host,
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=client_ca,
        allow_insecure=insecure,
    )
