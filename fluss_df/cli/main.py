"""The ``fluss-df`` command: puts its subcommands together."""

from __future__ import annotations

from typing import Annotated

import typer

from fluss_df.cli.commands import cluster, folders, rows, tables
from fluss_df.cli.commands.demo import demo
from fluss_df.cli.commands.serve import serve
from fluss_df.cli.commands.sql import sql
from fluss_df.version import __version__

app = typer.Typer(
    name="fluss-df",
    help="Python dataframes over Apache Fluss.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold passwords
)
app.add_typer(cluster.app, name="cluster")
app.command()(tables.tables)
app.command()(tables.describe)
app.command()(tables.count)
app.command()(tables.lag)
app.command()(rows.head)
app.command()(rows.tail)
app.command()(rows.load)
app.command()(rows.dump)
app.command()(sql)
app.command()(demo)
app.command()(serve)
app.command()(folders.check)
app.command()(folders.backup)
app.command()(folders.restore)


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
