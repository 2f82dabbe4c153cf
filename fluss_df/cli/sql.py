"""``fluss-df sql``: statements from the command line, or typed one by one."""

from __future__ import annotations

from typing import Annotated

import polars as pl
import typer
from rich.markup import escape

from fluss_df.cli.console import err, errors_as_messages
from fluss_df.cli.options import AsJson, Connection
from fluss_df.errors import FlussError


def sql(
    statements: Annotated[
        str | None,
        typer.Argument(help="Statements, divided by semicolons.", show_default="a prompt"),
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL: queries, CREATE, DROP, ALTER, INSERT, SHOW, DESCRIBE, USE."""
    with errors_as_messages():
        try:
            from fluss_df.backend import Backend
            from fluss_df.backend.statements import split_statements
        except ImportError as error:
            raise FlussError(
                f"fluss-df sql needs Ibis ({error}): pip install 'fluss-df[ibis]'"
            ) from None
        backend = Backend().connect(connection)
        if statements is not None:
            for statement in split_statements(statements):
                _show(backend.raw_sql(statement), as_json)
            return
        err.print(f"[dim]{escape(str(backend.connection))}; end with ;[/]")
        text = ""
        while True:
            try:
                line = input("     -> " if text else "fluss> ")
            except EOFError:
                return
            text = f"{text}\n{line}" if text else line
            if not text.strip():
                text = ""
            elif text.rstrip().endswith(";"):
                try:
                    for statement in split_statements(text):
                        _show(backend.raw_sql(statement), as_json)
                except FlussError as error:
                    err.print(f"[bold red]error:[/] {escape(str(error))}")
                text = ""


def _show(rows: pl.DataFrame, as_json: bool) -> None:
    if not rows.width:
        return
    if as_json:
        typer.echo(rows.write_ndjson(), nl=False)
    else:
        with pl.Config(tbl_rows=100, tbl_cols=-1, fmt_str_lengths=2000):
            typer.echo(rows)
