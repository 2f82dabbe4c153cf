"""``fluss-df demo``: the command; what it shows is in ``tour.py``, which is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluss_df.cli.console import errors_as_messages


def demo(
    connection: Annotated[
        str | None,
        typer.Option(help="A cluster, host:port.", show_default="one is started for the demo"),
    ] = None,
    plot: Annotated[Path, typer.Option(help="Where to save the plot.")] = Path("fluss-df-demo.png"),
) -> None:
    """Write real flights into a Fluss table, query them lazily, and show what was fetched."""
    with errors_as_messages():
        from fluss_df.cli import tour

        tour.run(connection, plot)
