"""How the ``fluss-df`` command speaks: output, and errors with their exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

from fluss_df.errors import FlussError

EXIT_ERROR = 1

# Paths and addresses are printed whole, for copying: no wrapping, no colouring of their parts.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn an error that is meant for the user into a message and exit code 1."""
    try:
        yield
    except FlussError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(EXIT_ERROR) from error
