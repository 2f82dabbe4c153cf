"""``fluss-df init``: a small project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fluss_df.cli.base.console import errors_as_messages, out


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A folder that is new or empty; by default this one."
        ),
    ] = Path("."),
) -> None:
    """Make a project: a table in an embedded Fluss, a pipeline, a notebook and a README.

    Nothing is written where the folder holds anything already.
    """
    with errors_as_messages():
        from fluss_df.cli.project.project import make_project

        made = make_project(folder.expanduser())
        for name in made:
            out.print(f"  {escape(str(folder / name))}")
        out.print("[bold]next:[/] read README.md there, or run: python pipeline.py")
