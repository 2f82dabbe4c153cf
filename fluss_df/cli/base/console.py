"""Output of the ``fluss-df`` command, and errors with their exit codes."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator

import polars as pl
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fluss_df.errors import FlussError
from fluss_df.io.base.texts import json_lines, writable

EXIT_ERROR = 1

# Paths and addresses are printed whole, for copying: no wrapping, no colouring of their parts.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


# no line is longer; rich makes no table wider than its console
_UNBOUNDED = 1_000_000


def print_table(grid: Table) -> None:
    """Print a table; where no terminal reads it, with all that is in it on one line a row."""
    if out.is_terminal:
        out.print(grid, soft_wrap=False)
        return
    for column in grid.columns:
        column.no_wrap = True
    wide = Console(file=out.file, highlight=False, width=_UNBOUNDED)
    wide.print(grid)


def show_frame(frame: pl.DataFrame, *, as_json: bool, most: int = -1, types: bool = False) -> None:
    """Print a frame; where no terminal reads it, whole.

    With ``as_json`` each row is a line with a JSON object. A terminal shows at most ``most`` rows,
    -1 for all. ``types`` says whether the types of columns are shown.
    """
    if as_json:
        typer.echo(_for_output(json_lines(frame)), nl=False)
        return
    whole = not out.is_terminal
    with pl.Config(
        tbl_formatting=None if _has("│╞═") else "ASCII_FULL_CONDENSED",
        tbl_rows=-1 if whole else most,
        tbl_cols=-1,
        tbl_width_chars=-1 if whole else out.width,
        fmt_str_lengths=_UNBOUNDED if whole else 2000,
        fmt_table_cell_list_len=-1 if whole else 10,
        fmt_float="full" if whole else "mixed",
        tbl_hide_dataframe_shape=not types,
        tbl_hide_column_data_types=not types,
    ):
        typer.echo(str(writable(frame)))


# characters of JSON beyond ASCII, which are in its texts only
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")


def _has(characters: str) -> bool:
    """Whether standard output has characters in its encoding."""
    try:
        characters.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _for_output(lines: str) -> str:
    """Return JSON with escapes for characters where standard output has not all of them."""
    if _has(lines):
        return lines
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], lines)


# a way out in Python, and that of the command line
_IN_PYTHON = re.compile(r"(?:, or pass|;|(?<=\?)) lake=False (?:for|reads) what Fluss itself has")
_IN_SQL = (
    "; 'fluss-df sql' reads what Fluss itself has, with the hint /*+"
    " OPTIONS('scan.startup.mode'='earliest') */ behind the table's name"
)


@contextlib.contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn an error that is meant for the user into a message and exit code 1."""
    try:
        yield
    except FlussError as error:
        err.print(f"[bold red]error:[/] {escape(_IN_PYTHON.sub(_IN_SQL, str(error)))}")
        raise typer.Exit(EXIT_ERROR) from error
    except BrokenPipeError:
        # the reader of the output, such as head, has closed its end of the pipe
        raise
    except UnicodeEncodeError as error:
        # bytes of an argument that are no text of the locale are halves of surrogate pairs
        shown = error.object[:80].encode("utf-8", "backslashreplace").decode()
        err.print(f"[bold red]error:[/] an argument is no UTF-8: {escape(shown)}")
        raise typer.Exit(EXIT_ERROR) from error
    except OverflowError as error:
        err.print(f"[bold red]error:[/] a number is too large: {escape(str(error))}")
        raise typer.Exit(EXIT_ERROR) from error
    except pl.exceptions.PanicException as error:
        # derives from BaseException: it would end a prompt with all that was typed
        err.print(f"[bold red]error:[/] Polars cannot do this: {escape(str(error))}")
        raise typer.Exit(EXIT_ERROR) from error
    except OSError as error:
        # such as a missing right, a full disk, or a folder in place of a file
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(EXIT_ERROR) from error
