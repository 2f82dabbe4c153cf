"""``fluss-df databases`` and ``partitions``: what there is."""

from __future__ import annotations

import datetime as dt
import fnmatch
from typing import Annotated

import typer

from fluss_df.cli.base.console import errors_as_messages
from fluss_df.cli.base.options import AsJson, Connection, Table, open_existing, open_table
from fluss_df.cli.commands.admin.words import pairs
from fluss_df.cli.commands.tables import show_rows


def databases(
    like: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only names such as 'sales*'.")
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """List databases, with their number of tables."""
    with errors_as_messages():
        found = open_existing(connection).get_admin().list_database_summaries()
        rows = [
            {
                "database": each.database_name,
                "tables": each.table_count,
                "created": dt.datetime.fromtimestamp(each.created_time // 1000, dt.UTC).isoformat(),
            }
            for each in found
            if like is None or fnmatch.fnmatchcase(each.database_name, like)
        ]
        show_rows(rows, as_json=as_json, nothing="no databases")


def partitions(
    table: Table,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Only partitions with this value; repeat for more.",
            show_default="all",
        ),
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """List the partitions of a table; `count --partitions` has their rows."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        admin = opened.get_admin()
        info = admin.get_table_info(path)
        wanted = pairs(where or (), "--where")
        found = admin.list_partition_infos(path, wanted or None)
        rows = [
            {
                "partition": each.partition_name,
                **each.spec,
                "partition id": each.partition_id,
                "buckets": info.num_buckets if each.num_buckets is None else each.num_buckets,
            }
            for each in found
        ]
        show_rows(rows, as_json=as_json, nothing="no partitions")
