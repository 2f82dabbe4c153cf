"""``fluss-df doctor``: what may keep things from working, and the way out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.text import Text

from fluss_df.cli.base import completion
from fluss_df.cli.base.console import EXIT_ERROR, err, out
from fluss_df.cli.base.options import AsJson
from fluss_df.cli.health.finding import Finding, problem

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="CONNECTION",
            help="host:port, a fluss:// URL, or a folder; by default FLUSS_BOOTSTRAP_SERVERS.",
            show_default=False,
            autocompletion=completion.connections,
        ),
    ] = None,
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection",
            "-c",
            metavar="ADDRESS",
            envvar="FLUSS_BOOTSTRAP_SERVERS",
            help="The same as the argument.",
            autocompletion=completion.connections,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, this machine and a connection; exit with 1 where there is a problem.

    It changes nothing, and needs no extra.
    """
    problems = 0
    for finding in _all(address if address is not None else connection):
        problems += finding.status == "problem"
        if as_json:
            typer.echo(json.dumps(finding.as_json()))
            continue
        out.print(
            Text.assemble(
                (f"{finding.status:<8}", _COLOURS[finding.status]),
                (f" {finding.check:<16} ", "bold"),
                finding.message,
            )
        )
        if finding.advice:
            out.print(Text.assemble(" " * 9, ("what to do: ", "dim"), finding.advice))
    if problems:
        if not as_json:
            err.print(f"[bold red]{problems} problem{'s' if problems > 1 else ''}[/]")
        raise typer.Exit(EXIT_ERROR)


def _all(connection: str | None) -> Iterator[Finding]:
    yield from _looked("packages", _packages)
    yield from _looked("machine", _machine)
    yield from _looked("connection", lambda: _place(connection))


def _looked(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Give what is found; where looking itself fails, that."""
    try:
        yield from look()
    except Exception as error:
        yield problem(
            check,
            f"cannot be looked at: {type(error).__name__}: {error}",
            "mend the problems above, and run it again",
        )


# imported within: where a library is broken, the others are looked at all the same


def _packages() -> Iterator[Finding]:
    from fluss_df.cli.health.packages import packages

    yield from packages()


def _machine() -> Iterator[Finding]:
    from fluss_df.cli.health.machine import machine

    yield from machine()


def _place(connection: str | None) -> Iterator[Finding]:
    from fluss_df.cli.health.place import place

    yield from place(connection)
