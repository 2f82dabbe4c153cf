"""``fluss-df serve``: an embedded engine for clients of Fluss."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from fluss_df.errors import FlussError


def serve(
    dir: Annotated[Path, typer.Option("--dir", help="The folder with the data.")],
    port: Annotated[int, typer.Option("--port", help="0 for a free one.", min=0, max=65535)] = 9123,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    sasl: Annotated[
        list[str] | None,
        typer.Option("--sasl", help="USER:PASSWORD of who may connect; may be given repeatedly."),
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", help="commit, interval or none: when a write counts.")
    ] = "commit",
) -> None:
    """Serve a folder as a single-node Fluss, until SIGINT or SIGTERM."""
    from fluss_df.embedded import EmbeddedFluss, EngineOptions

    users: dict[str, str] = {}
    for entry in sasl or []:
        user, colon, password = entry.partition(":")
        if not (user and colon and password):
            raise typer.BadParameter("expected USER:PASSWORD", param_hint="--sasl")
        users[user] = password
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        options = EngineOptions(durability=durability)  # type: ignore[arg-type]
        with EmbeddedFluss(dir, port=port, host=host, sasl=users, options=options) as engine:
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
