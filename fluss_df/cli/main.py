"""The ``fluss-df`` command: finds its subcommands, each imported when it is used."""

from __future__ import annotations

import difflib
import importlib
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fluss_df.version import __version__

# command -> its module, in the order of --help
_COMMANDS = {
    "cluster": "cluster",
    "tables": "tables",
    "describe": "tables",
    "count": "tables",
    "lag": "tables",
    "databases": "admin.lists",
    "partitions": "admin.lists",
    "create": "admin.changes",
    "alter": "admin.changes",
    "drop": "admin.changes",
    "head": "rows",
    "tail": "rows",
    "load": "rows",
    "dump": "rows",
    "sql": "sql",
    "demo": "demo",
    "serve": "serve",
    "flight-sql": "serve",
    "passwd": "serve",
    "ui": "ui",
    "acl": "acl",
    "tier": "tier",
    "config": "admin.servers",
    "rebalance": "admin.servers",
    "health": "admin.servers",
    "check": "folders",
    "backup": "folders",
    "restore": "folders",
    "doctor": "doctor",
    "init": "init",
}


class _Commands(TyperGroup):
    """The subcommands: most need Polars, Arrow and a client, which take a while to import.

    The types are those of click, which newer releases of Typer have within.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; the error of a misspelt one says what is meant.

        Typer would look for that among commands that are imported.
        """
        near = difflib.get_close_matches(args[0], _COMMANDS, 1)
        # the completion of a shell resolves commands, too, and must not fail
        if near and args[0] not in _COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None where there is no such one."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"fluss_df.cli.commands.{_COMMANDS[cmd_name]}")
        found = (
            module.app
            if cmd_name in ("cluster", "acl")
            else getattr(module, cmd_name.replace("-", "_"))
        )
        if isinstance(found, typer.Typer):
            command = typer.main.get_command(found)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name)(found)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="fluss-df",
    help="Python dataframes over Apache Fluss.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold passwords
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fluss-df {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Python dataframes over Apache Fluss."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the encoding of a terminal or a file lacks is shown by its number
            stream.reconfigure(errors="backslashreplace")
