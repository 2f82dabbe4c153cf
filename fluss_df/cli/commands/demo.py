"""``fluss-df demo``: the command; what it shows is in ``tour.py``, which is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages
from fluss_df.errors import FlussError


def demo(
    connection: Annotated[
        str | None,
        typer.Option(
            help="A cluster (host:port) or a folder.",
            show_default="an embedded Fluss in a temporary folder",
        ),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Start an Apache Fluss cluster for the demo (Java).")
    ] = False,
    plot: Annotated[Path, typer.Option(help="Where to save the plot.")] = Path("fluss-df-demo.png"),
) -> None:
    """Write real flights into a Fluss table, query them lazily, and show what was fetched."""
    with errors_as_messages():
        if connection and cluster:
            raise FlussError(
                "--connection names a Fluss and --cluster starts one: pass one of the two"
            )
        from fluss_df.cli import tour

        tour.run(connection, plot, cluster=cluster)
