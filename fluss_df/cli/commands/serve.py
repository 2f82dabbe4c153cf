"""``fluss-df serve``: an embedded engine for clients of Fluss."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from pathlib import Path
from typing import Annotated

import typer

from fluss_df.errors import FlussError

SASL_VARIABLE = "FLUSS_SASL_USERS"


def serve(
    dir: Annotated[Path, typer.Option("--dir", help="The folder with the data.")],
    port: Annotated[int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)] = 9123,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    sasl: Annotated[
        list[str] | None,
        typer.Option(
            "--sasl",
            help="USER:PASSWORD of who may connect. Other users of the machine see it in the list"
            " of processes: use --sasl-file.",
        ),
    ] = None,
    sasl_file: Annotated[
        Path | None,
        typer.Option(
            "--sasl-file",
            help="A file with USER:PASSWORD of who may connect, one a line; without it the"
            f" environment variable {SASL_VARIABLE} is read, in the same form.",
        ),
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", help="commit, interval or none: when a write counts.")
    ] = "commit",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            help="Serve metrics to Prometheus on this port, by HTTP; 0 for a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address of the metrics.")
    ] = "127.0.0.1",
) -> None:
    """Serve a folder as a single-node Fluss, until SIGINT or SIGTERM."""
    from fluss_df.embedded import EmbeddedFluss, EngineOptions

    users = _users(sasl or [], sasl_file)
    # RocksDB creates its files by it
    os.umask(0o077)
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        options = EngineOptions(durability=durability)  # type: ignore[arg-type]
        with contextlib.ExitStack() as stack:
            served = None
            if metrics_port is not None:
                from fluss_df.metrics import start_http_server

                # first, as it may not be there: nothing was opened then
                served = stack.enter_context(start_http_server(metrics_port, metrics_host))
            engine = stack.enter_context(
                EmbeddedFluss(dir, port=port, host=host, sasl=users, options=options)
            )
            if served is not None:
                typer.echo(f"metrics on {served.url}")
            typer.echo(f"listening on {engine.address}")
            # in slices, so that a signal is noticed at once on every platform
            while not ended.wait(0.5):
                pass
    except FlussError as error:
        typer.echo(f"fluss-df serve: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _users(given: list[str], file: Path | None) -> dict[str, str]:
    """Return the passwords of users: from the arguments, and a file or the environment."""
    users: dict[str, str] = {}
    if given:
        typer.echo(
            "fluss-df serve: warning: passwords of --sasl are shown to all users of this machine"
            f" (ps): put them into a file, --sasl-file, or into {SASL_VARIABLE}",
            err=True,
        )
    for entry in given:
        users.update([_user(entry, "--sasl")])
    lines: list[str] = []
    where = SASL_VARIABLE
    if file is not None:
        where = f"--sasl-file {file}"
        try:
            text = file.read_text()
            mode = stat.S_IMODE(file.stat().st_mode)
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(str(error), param_hint="--sasl-file") from None
        if mode & 0o077:
            typer.echo(
                f"fluss-df serve: warning: other users may read {file}: chmod 600 {file}", err=True
            )
        lines = text.splitlines()
        if not any(map(str.strip, lines)):
            # everybody would be let in
            raise typer.BadParameter(f"there is no user in {file}", param_hint="--sasl-file")
    elif SASL_VARIABLE in os.environ:
        # not for processes that this one starts
        lines = os.environ.pop(SASL_VARIABLE).splitlines()
        if not any(map(str.strip, lines)):
            raise typer.BadParameter("there is no user in it", param_hint=SASL_VARIABLE)
    users.update(_user(line, where) for line in lines if line.strip())
    return users


def _user(entry: str, where: str) -> tuple[str, str]:
    user, colon, password = entry.partition(":")
    if not (user and colon and password):
        raise typer.BadParameter("expected USER:PASSWORD", param_hint=where)
    return user, password
