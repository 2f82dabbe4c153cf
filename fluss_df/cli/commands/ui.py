"""``fluss-df ui``: a console in the browser, for a cluster or a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages
from fluss_df.cli.base.options import Connection, place_of
from fluss_df.cli.base.stopping import until_signal
from fluss_df.client.connection import resolve_connection
from fluss_df.errors import FlussError

TOKEN_VARIABLE = "FLUSS_UI_TOKEN"


def ui(
    connection: Connection = None,
    port: Annotated[int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)] = 8124,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on; another than this machine's own takes TLS."
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A host name by which browsers ask for it; repeat for more."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Serve by TLS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The private key of --tls-cert (PEM).")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="A file with the token that lets browsers in; else the environment variable"
            f" {TOKEN_VARIABLE}, else a new one at each start.",
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse whatever changes something, by SQL too.")
    ] = False,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            help="A checkpoint folder, or a folder of them, whose lag is shown; repeat for more.",
        ),
    ] = None,
    query_rows: Annotated[
        int, typer.Option("--query-rows", help="The most rows of a result.", min=1, max=1_000_000)
    ] = 10_000,
    query_seconds: Annotated[
        float, typer.Option("--query-seconds", help="How long a statement may run.", min=1)
    ] = 60.0,
) -> None:
    """Look at a cluster or a folder in the browser, until Ctrl-C."""
    with errors_as_messages():
        try:
            from fluss_df.ui.server import ConsoleServer
            from fluss_df.ui.settings import Limits, Settings
        except ImportError as error:
            raise FlussError(
                f"fluss-df ui needs more packages ({error}): pip install 'fluss-df[ui]'"
            ) from None
        given = _token(token_file)
        settings = Settings(
            host=host,
            port=port,
            read_only=read_only,
            names=tuple(name or ()),
            tls_cert=tls_cert,
            tls_key=tls_key,
            runs=tuple(runs or ()),
            limits=Limits(result_rows=query_rows, query_seconds=query_seconds),
            **({} if given is None else {"token": given}),
        )
        opened = resolve_connection(connection)
        with (
            until_signal() as wait,
            ConsoleServer(opened, settings, place_of(connection, opened)) as server,
        ):
            shown = server.link if given is None else server.url
            typer.echo(f"console on {shown}")
            if given is None:
                typer.echo("who has this link may do what you may: keep it to yourself", err=True)
            wait()


def _token(file: Path | None) -> str | None:
    """Return the token that a user chose, if there is one."""
    if file is not None:
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FlussError(f"cannot read the token: {error}") from error
    # taken out, so that processes which this one starts do not get it
    return os.environ.pop(TOKEN_VARIABLE, None)
