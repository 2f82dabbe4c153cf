"""``fluss-df sql``: statements from the command line, from a file, or typed one by one."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer
from rich.markup import escape

from fluss_df.cli.base.console import err, errors_as_messages, show_frame
from fluss_df.cli.base.options import AsJson, Connection
from fluss_df.cli.base.progress import reading
from fluss_df.errors import FlussError
from fluss_df.protocol.address import shown_host

if TYPE_CHECKING:
    from fluss_df.backend import Backend


def sql(
    statements: Annotated[
        str | None,
        typer.Argument(
            help="Statements, divided by semicolons.",
            show_default="the standard input; a prompt where that is a terminal",
        ),
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL: queries, CREATE, ALTER, DROP, INSERT, UPDATE, DELETE, MERGE, TRUNCATE, SHOW, USE.

    The first statement that fails ends it, with exit code 1; at the prompt, you go on.
    """
    with errors_as_messages():
        try:
            from fluss_df.backend import Backend
        except ImportError as error:
            raise FlussError(
                f"fluss-df sql needs Ibis ({error}): pip install 'fluss-df[ibis]'"
            ) from None
        backend = Backend().connect(connection)
        if statements is None and sys.stdin is not None and sys.stdin.isatty():
            _prompt(backend, as_json)
        else:
            _script(backend, _standard_input() if statements is None else statements, as_json)


def _standard_input() -> str:
    if sys.stdin is None:
        raise FlussError("there is no standard input: give the statements as an argument")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise FlussError(f"the standard input is no text of {error.encoding}: {error}") from None


def _script(backend: Backend, text: str, as_json: bool) -> bool:
    """Run statements; return whether ``quit`` or ``exit`` stood among them, and ended it."""
    from fluss_df.backend.sql.statements import split_statements

    statements = split_statements(text)
    for number, (line, statement) in enumerate(statements, 1):
        if _ends(statement):
            return True
        try:
            _run(backend, statement, as_json)
        except FlussError as error:
            if len(statements) > 1:
                raise FlussError(
                    f"line {line}, statement {number} of {len(statements)}: {error.message}; those"
                    " before it were run",
                    error.error_code,
                ) from error
            # not Path.is_file: it raises for what is too long for a name
            if os.path.isfile(statement):
                raise FlussError(
                    f"{statement} is a file, and no statement: fluss-df sql < {statement} runs it"
                ) from error
            raise
    return False


def _ends(line: str) -> bool:
    return line.strip(" ;").lower() in ("quit", "exit")


def _prompt(backend: Backend, as_json: bool) -> None:
    """Run what is typed, until its end, ``quit`` or ``exit``."""
    from fluss_df.backend.sql.statements import is_complete

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # has input() edit lines, and remember them
    place = backend.connection.config.bootstrap_servers
    place = shown_host(place.rpartition(":")[0], place)
    err.print(f"[dim]{escape(place)}; statements end with ;, this with quit[/]")
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
        if not text and _ends(line):
            return
        text = f"{text}\n{line}" if text else line
        if not is_complete(text):
            continue
        try:
            # a statement that fails says so, and ends nothing else
            with contextlib.suppress(typer.Exit), errors_as_messages():
                if _script(backend, text, as_json):
                    return
        except KeyboardInterrupt:
            err.print("[dim]the statement was ended[/]")
        text = ""


def _run(backend: Backend, statement: str, as_json: bool) -> None:
    with reading("reading", backend.connection):
        rows = backend.raw_sql(statement)
    _show(rows, as_json)


def _show(rows: pl.DataFrame, as_json: bool) -> None:
    if not rows.width:
        return
    show_frame(rows, as_json=as_json, most=100, types=True)
