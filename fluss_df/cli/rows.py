"""``fluss-df head``, ``tail``, ``load`` and ``dump``: rows in and out."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from fluss_df.cli.console import err, errors_as_messages, out
from fluss_df.cli.options import (
    AsJson,
    Columns,
    Connection,
    Metadata,
    Table,
    open_table,
    split_names,
)
from fluss_df.errors import FlussError
from fluss_df.io.offsets import bucket_offsets
from fluss_df.io.scan import scan_fluss
from fluss_df.io.sink import sink_fluss
from fluss_df.metadata import TablePath

Rows = Annotated[int, typer.Option("--rows", "-n", min=0, help="How many rows.")]

_SCANS: dict[str, Callable[..., pl.LazyFrame]] = {
    ".parquet": pl.scan_parquet,
    ".csv": pl.scan_csv,
    ".ndjson": pl.scan_ndjson,
    ".jsonl": pl.scan_ndjson,
    ".arrow": pl.scan_ipc,
    ".ipc": pl.scan_ipc,
    ".feather": pl.scan_ipc,
}
_SINKS: dict[str, str] = {
    ".parquet": "sink_parquet",
    ".csv": "sink_csv",
    ".ndjson": "sink_ndjson",
    ".jsonl": "sink_ndjson",
    ".arrow": "sink_ipc",
    ".ipc": "sink_ipc",
    ".feather": "sink_ipc",
}


def head(
    table: Table,
    rows: Rows = 10,
    columns: Columns = None,
    metadata: Metadata = False,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Print the first rows."""
    with errors_as_messages():
        _show(_scan(connection, table, columns, metadata).head(rows).collect(), as_json)


def tail(
    table: Table,
    rows: Rows = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with the rows, or changes, that come.")
    ] = False,
    max_rows: Annotated[
        int | None, typer.Option(min=0, help="With --follow: end after so many rows that came.")
    ] = None,
    columns: Columns = None,
    metadata: Metadata = False,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Print the last rows; with --follow those that come, too, until Ctrl-C."""
    with errors_as_messages():
        if not follow:
            _show(_scan(connection, table, columns, metadata).tail(rows).collect(), as_json)
            return
        opened, path = open_table(connection, table)
        options: dict[str, Any] = {
            "connection": opened,
            "columns": split_names(columns),
            "include_metadata": metadata,
        }
        if opened.get_table(path).has_primary_key():
            options["mode"] = "changelog"
        with contextlib.suppress(KeyboardInterrupt):
            _follow(path, options, rows, max_rows, as_json)


def _follow(
    path: TablePath, options: dict[str, Any], rows: int, max_rows: int | None, as_json: bool
) -> None:
    """Print the last rows of a log, and then every row behind them, once."""
    # the end is pinned first: what comes meanwhile is followed
    info = options["connection"].get_table(path).get_table_info()
    ends: dict[Any, int] = {
        (bucket.partition_name, bucket.bucket_id) if info.is_partitioned() else bucket.bucket_id: e
        for bucket, (_, e) in bucket_offsets(options["connection"], info).items()
    }
    last = scan_fluss(path, stop=ends, **options).tail(rows).collect()
    if last.height:
        _show(last, as_json)
    if max_rows == 0:
        return
    scan = scan_fluss(path, start=ends, follow=True, max_rows=max_rows, **options)
    for frame in scan.collect_batches(maintain_order=True):
        if frame.height:
            _show(frame, as_json)
            sys.stdout.flush()


def _scan(connection: str | None, table: str, columns: str | None, metadata: bool) -> pl.LazyFrame:
    opened, path = open_table(connection, table)
    names = split_names(columns)
    return scan_fluss(path, connection=opened, columns=names, include_metadata=metadata)


def _show(frame: pl.DataFrame, as_json: bool) -> None:
    if as_json:
        typer.echo(frame.write_ndjson(), nl=False)
        return
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        # a file or a pipe has no width
        tbl_width_chars=out.width if out.is_terminal else -1,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
    ):
        typer.echo(str(frame))


def load(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            exists=True,
            dir_okay=False,
            help=f"Files: {', '.join(_SCANS)}.",
        ),
    ],
    table: Annotated[str, typer.Option("--into", metavar="TABLE", help="table or database.table")],
    create: Annotated[
        bool, typer.Option("--create", help="Create the table where it does not exist.")
    ] = False,
    create_partitions: Annotated[
        bool, typer.Option("--create-partitions", help="Create partitions that do not exist.")
    ] = False,
    primary_key: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Of the table to create.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Of the table to create.")
    ] = None,
    buckets: Annotated[int | None, typer.Option(min=1, help="Of the table to create.")] = None,
    connection: Connection = None,
) -> None:
    """Write files into a table."""
    with errors_as_messages():
        opened, path = open_table(connection, table)
        frames = [_by_suffix(_SCANS, file)(file) for file in files]
        total = sum(frame.select(pl.len()).collect().item() for frame in frames)
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TimeElapsedColumn(),
            console=err,
        ) as progress:
            task = progress.add_task(str(path), total=total)
            result = sink_fluss(
                pl.concat(frames),
                path,
                connection=opened,
                create_if_not_exists=create,
                create_partitions=create_partitions,
                primary_keys=split_names(primary_key),
                partition_keys=split_names(partition_by),
                bucket_count=buckets,
                progress=lambda rows: progress.update(task, completed=rows),
            )
        typer.echo(str(result))


def dump(
    table: Table,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", dir_okay=False, help=f"File: {', '.join(_SINKS)}.")
    ],
    columns: Columns = None,
    metadata: Metadata = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    connection: Connection = None,
) -> None:
    """Write the rows of a table into a file, which is there when it is whole."""
    with errors_as_messages():
        method = _by_suffix(_SINKS, file)
        if file.exists() and not force:
            raise FlussError(f"{file} exists; --force replaces it")
        if not file.parent.is_dir():
            raise FlussError(f"{file}: there is no folder {file.parent}")
        frame = _scan(connection, table, columns, metadata)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        os.close(handle)
        try:
            getattr(frame, method)(name)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
        typer.echo(f"{file}: {file.stat().st_size:,} bytes")


def _by_suffix(known: dict[str, Any], file: Path) -> Any:
    found = known.get(file.suffix.lower())
    if found is None:
        raise FlussError(f"{file}: the name of the file ends in none of {', '.join(known)}")
    return found
