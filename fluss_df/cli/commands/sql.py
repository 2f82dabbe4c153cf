"""``fluss-df sql``: statements from the command line, or typed one by one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer
from rich.markup import escape

from fluss_df.cli.base.console import err, errors_as_messages, show_frame
from fluss_df.cli.base.options import AsJson, Connection
from fluss_df.cli.base.progress import reading
from fluss_df.errors import FlussError

if TYPE_CHECKING:
    from fluss_df.backend import Backend


def sql(
    statements: Annotated[
        str | None,
        typer.Argument(help="Statements, divided by semicolons.", show_default="a prompt"),
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL: queries, CREATE, ALTER, DROP, INSERT, UPDATE, DELETE, MERGE, TRUNCATE, SHOW, USE."""
    with errors_as_messages():
        try:
            from fluss_df.backend import Backend
            from fluss_df.backend.sql.statements import split_statements
        except ImportError as error:
            raise FlussError(
                f"fluss-df sql needs Ibis ({error}): pip install 'fluss-df[ibis]'"
            ) from None
        backend = Backend().connect(connection)
        if statements is not None:
            for statement in split_statements(statements):
                _run(backend, statement, as_json)
            return
        _prompt(backend, as_json)


def _prompt(backend: Backend, as_json: bool) -> None:
    """Run what is typed, until its end, ``quit`` or ``exit``."""
    from fluss_df.backend.sql.statements import is_complete, split_statements

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # has input() edit lines, and remember them
    connection = escape(str(backend.connection))
    err.print(f"[dim]{connection}; statements end with ;, this with quit[/]")
    text = ""
    while True:
        try:
            line = input("     -> " if text else "fluss> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            # what was typed is given up, as in other prompts
            text = ""
            err.print()
            continue
        if not text and line.strip(" ;").lower() in ("quit", "exit"):
            return
        text = f"{text}\n{line}" if text else line
        if not is_complete(text):
            continue
        try:
            for statement in split_statements(text):
                _run(backend, statement, as_json)
        except FlussError as error:
            err.print(f"[bold red]error:[/] {escape(str(error))}")
        text = ""


def _run(backend: Backend, statement: str, as_json: bool) -> None:
    with reading("reading", backend.connection):
        rows = backend.raw_sql(statement)
    _show(rows, as_json)


def _show(rows: pl.DataFrame, as_json: bool) -> None:
    if not rows.width:
        return
    show_frame(rows, as_json=as_json, most=100, types=True)
