"""``fluss-df tier``: the tiering service as a command."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluss_df.cli.base.console import err, errors_as_messages, out
from fluss_df.cli.base.options import Connection, open_existing, place_of
from fluss_df.cli.base.progress import reading
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.io.base.durations import parse_duration
from fluss_df.metadata import TablePath

if TYPE_CHECKING:
    from fluss_df.lake import TieringRound


def tier(
    connection: Connection = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Tier this table (table or database.table) only; repeat for more.",
            show_default="all tables with table.datalake.enabled",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Tier what is due now, and end.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Buckets of a table to tier side by side.", show_default="one for two cores"
        ),
    ] = None,
    keep_snapshots: Annotated[
        str | None,
        typer.Option(
            help="How long a snapshot of the lake stays after queries began to read a newer one, as"
            " in 12h or 5d. Older ones are expired, and their files deleted.",
            show_default="for good; 5d for tables with table.datalake.auto-expire-snapshot",
        ),
    ] = None,
    lease_file: Annotated[
        Path | None,
        typer.Option(
            help="Remember here which tables the service holds: started again after a kill, it"
            " goes on at once, rather than after two minutes.",
            show_default="none",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Move tables into their lake tables, as Flink's tiering service does; Ctrl-C ends it."""
    with errors_as_messages():
        from fluss_df.lake import TieringService

        keep_s = None
        if keep_snapshots is not None:
            keep_s = parse_duration("--keep-snapshots", keep_snapshots)
        opened = open_existing(connection)
        tables = None if table is None else [_lake_table(opened, name) for name in table]
        with TieringService(
            opened, tables, workers=workers, keep_snapshots_s=keep_s, lease_file=lease_file
        ) as service:
            if once:
                # how many rows there are is known when a round is over
                with reading("tiering", opened):
                    rounds = service.run_due()
                for done in rounds:
                    _show(done)
                if not any(done.snapshot_id is not None for done in rounds):
                    err.print(
                        "nothing was due: a table is due when table.datalake.freshness is over"
                        " since its last round, and no other service has it"
                    )
                return
            # the rounds that are on their way are finished first
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: service.stop())
            err.print(f"tiering the tables of {place_of(connection, opened)}; Ctrl-C ends it")
            service.run(_show)


def _lake_table(opened: FlussConnection, name: str) -> TablePath:
    """Return the path of a table that has a lake."""
    path = TablePath.parse(name, opened.default_database)
    properties = opened.get_table(path).get_table_info().get_properties()
    if properties.get("table.datalake.enabled", "false").lower() != "true":
        raise FlussError(
            f"table {path} has no lake: create it with table.datalake.enabled=true, or set that"
            " with fluss-df alter table"
        )
    return path


def _show(done: TieringRound) -> None:
    if done.snapshot_id is None:
        return
    out.print(
        f"{done.path}: {done.rows:,} rows in {done.seconds:.1f} s, {done.files} files,"
        f" lake snapshot {done.snapshot_id}" + ("" if done.complete else ", more to come"),
        highlight=False,
    )
