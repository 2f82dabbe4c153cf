"""``fluss-df tables``, ``describe``, ``count`` and ``lag``: what there is, and how far runs are."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich import box
from rich.table import Table as Grid
from rich.text import Text

from fluss_df.cli.base.console import errors_as_messages, out, print_table
from fluss_df.cli.base.listing import list_tables
from fluss_df.cli.base.options import (
    AsJson,
    Connection,
    Source,
    Table,
    open_existing,
    open_source,
    open_table,
)
from fluss_df.cli.base.progress import reading
from fluss_df.errors import FlussError
from fluss_df.io.base.names import all_exact
from fluss_df.io.runs.checkpoint import Checkpoint
from fluss_df.io.scan import scan_fluss
from fluss_df.io.scans.offsets import bucket_offsets
from fluss_df.lake.options import is_lake_table
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo

# exit code of lag --max for monitors, which differs from those of errors and of click
EXIT_BEHIND = 3


def tables(
    database: Annotated[
        str | None, typer.Argument(help="Only this database.", show_default="all")
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only names such as 'flight*'.")
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """List tables."""
    with errors_as_messages():
        opened = open_existing(connection)
        admin = opened.get_admin()
        paths = (
            list_tables(opened)
            if database is None
            else [TablePath(database, table) for table in admin.list_tables(database)]
        )
        found = [
            admin.get_table_info(path)
            for path in paths
            if like is None or fnmatch.fnmatchcase(path.table_name, like)
        ]
        show_rows([_summary(info) for info in found], as_json=as_json, nothing="no tables")


def _summary(info: TableInfo) -> dict[str, Any]:
    return {
        "table": str(info.table_path),
        "kind": "primary key" if info.has_primary_key() else "log",
        "columns": info.get_column_count(),
        "primary key": ", ".join(info.get_primary_keys()),
        "partitioned by": ", ".join(info.get_partition_keys()),
        "buckets": info.num_buckets,
        "comment": info.comment or "",
    }


def describe(table: Table, connection: Connection = None, as_json: AsJson = False) -> None:
    """Show columns, keys, properties, and the offsets of each bucket."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        info = opened.get_admin().get_table_info(path)
        offsets = bucket_offsets(opened, info)
        columns = [
            {
                "column": column.name,
                "type": str(column.type),
                "key": "primary" if column.name in info.get_primary_keys() else "",
                "comment": column.comment or "",
            }
            for column in info.schema.columns
        ]
        buckets = [
            {
                **({"partition": bucket.partition_name} if info.is_partitioned() else {}),
                "bucket": bucket.bucket_id,
                "earliest offset": first,
                "latest offset": last,
            }
            for bucket, (first, last) in offsets.items()
        ]
        about = {
            **_summary(info),
            "bucket key": ", ".join(info.get_bucket_keys()),
            "table id": info.table_id,
            "schema id": info.schema_id,
            "properties": info.get_properties(),
            "custom properties": info.get_custom_properties(),
        }
        if as_json:
            typer.echo(json.dumps({**about, "schema": columns, "offsets": buckets}))
            return
        for name, value in about.items():
            text = value
            if isinstance(value, Mapping):
                text = ", ".join(f"{key}={item}" for key, item in sorted(value.items()))
            if text != "":
                out.print(Text.assemble((f"{name:<18}", "bold"), str(text)))
        show_rows(columns)
        show_rows(buckets, nothing="no partitions yet")


def count(
    table: Source,
    connection: Connection = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="The rows of each partition.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count rows: of a log by its offsets; of a primary key, lake or virtual table by a scan."""
    with errors_as_messages():
        opened, path, source = open_source(connection, table)
        info = opened.get_admin().get_table_info(path)
        counted: dict[str | None, int] = {}
        virtual = source != str(path)
        if virtual and partitions:
            raise FlussError(f"--partitions counts the rows of tables, and {source} is virtual")
        if virtual or info.has_primary_key() or is_lake_table(info):
            keys = info.get_partition_keys() if partitions else []
            with reading(source, opened):
                counted = _counted(scan_fluss(source, connection=opened), keys)
        else:
            for bucket, (first, last) in bucket_offsets(opened, info).items():
                name = bucket.partition_name
                counted[name] = counted.get(name, 0) + last - first
        if partitions and info.is_partitioned():
            rows_of = [{"partition": name, "rows": rows} for name, rows in counted.items()]
            show_rows(rows_of, as_json=as_json, nothing="no partitions yet")
            return
        total = sum(counted.values())
        if as_json:
            typer.echo(json.dumps({"table": source, "rows": total}))
        else:
            typer.echo(total)


def lag(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", exists=True, file_okay=False, help="The folder of a run."
        ),
    ],
    most: Annotated[
        int | None,
        typer.Option("--max", min=0, help="Exit with code 3 when more rows are still to be read."),
    ] = None,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a run (lf.fluss.run) is behind the end of the table that it reads."""
    with errors_as_messages():
        path, batch, read = Checkpoint.progress(checkpoint)
        opened = open_existing(connection)
        info = opened.get_admin().get_table_info(path)
        if batch is not None and not batch.is_of(info):
            raise FlussError(
                f"table {path} was dropped and made again since {checkpoint} was written (its id"
                f" was {batch.table_id}, and is {info.table_id}): the run cannot go on with it;"
                " start over with another folder"
            )
        rows_of: list[dict[str, Any]] = []
        for bucket, (first, last) in bucket_offsets(opened, info).items():
            done = read.get((bucket.partition_name, bucket.bucket_id), first)
            rows_of.append(
                {
                    **({"partition": bucket.partition_name} if info.is_partitioned() else {}),
                    "bucket": bucket.bucket_id,
                    "read up to": done,
                    "latest offset": last,
                    "lag": max(0, last - done),
                }
            )
        total = sum(row["lag"] for row in rows_of)
        if as_json:
            typer.echo(json.dumps({"table": str(path), "lag": total, "buckets": rows_of}))
        else:
            out.print(f"[bold]{path}[/]: {total:,} rows behind")
            show_rows(rows_of, nothing="no partitions yet")
    if most is not None and total > most:
        raise typer.Exit(EXIT_BEHIND)


def _counted(rows: pl.LazyFrame, partition_keys: Sequence[str]) -> dict[str | None, int]:
    """Count rows by reading a column of them; by partition where there are partitions."""
    keys = all_exact(partition_keys)
    if not keys:
        return {None: rows.select(pl.len()).collect().item()}
    found = rows.group_by(keys).len().sort(keys).collect()
    return {"$".join(map(str, row[:-1])): row[-1] for row in found.rows()}


def show_rows(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool = False, nothing: str = "no rows"
) -> None:
    """Print rows that have the same names, without the columns in which nothing stands."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dict(row)))
        return
    if not rows:
        out.print(f"[dim]{nothing}[/]")
        return
    grid = Grid(box=box.SIMPLE_HEAD)
    names = [name for name in rows[0] if any(row[name] != "" for row in rows)]
    for name in names:
        number = isinstance(rows[0][name], int)
        grid.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(_text(row[name])) for name in names))
    print_table(grid)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
