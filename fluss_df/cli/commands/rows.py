"""``fluss-df head``, ``tail``, ``load`` and ``dump``: rows in and out."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Any, cast

import polars as pl
import typer

from fluss_df.cli.base import completion
from fluss_df.cli.base.console import errors_as_messages, show_frame
from fluss_df.cli.base.options import (
    AsJson,
    Columns,
    Connection,
    Metadata,
    Source,
    open_source,
    open_table,
    place_of,
    split_names,
)
from fluss_df.cli.base.progress import progress, reading
from fluss_df.cli.loading.files import ENDINGS, ending
from fluss_df.cli.loading.guessing import parse_schema
from fluss_df.client.connection import FlussConnection
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.io.base.texts import for_csv, json_lines
from fluss_df.io.scan import scan_fluss
from fluss_df.io.scans.flow import Flow
from fluss_df.io.scans.offsets import bucket_offsets
from fluss_df.io.sinks.target import TableLayout
from fluss_df.lake.options import is_lake_table
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.plans import run_into

Rows = Annotated[int, typer.Option("--rows", "-n", min=0, help="How many rows.")]

# the most rows that a frame of Polars holds
_MOST_ROWS = 2**32 - 1

_SINKS: dict[str, str] = {
    ".parquet": "sink_parquet",
    ".csv": "sink_csv",
    ".tsv": "sink_csv",
    ".ndjson": "sink_ndjson",
    ".jsonl": "sink_ndjson",
    ".arrow": "sink_ipc",
    ".ipc": "sink_ipc",
    ".feather": "sink_ipc",
    ".csv.gz": "sink_csv",
    ".tsv.gz": "sink_csv",
    ".ndjson.gz": "sink_ndjson",
    ".jsonl.gz": "sink_ndjson",
}


def head(
    table: Source,
    rows: Rows = 10,
    columns: Columns = None,
    metadata: Metadata = False,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Print the first rows."""
    with errors_as_messages():
        opened, _, source = open_source(connection, table)
        with reading(source, opened):
            scan = _scan(opened, source, columns, metadata)
            frame = scan.head(min(rows, _MOST_ROWS)).collect()
        show_frame(frame, as_json=as_json)


def tail(
    table: Source,
    rows: Rows = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with the rows, or changes, that come.")
    ] = False,
    max_rows: Annotated[
        int | None, typer.Option(min=0, help="With --follow: end after this number of new rows.")
    ] = None,
    columns: Columns = None,
    metadata: Metadata = False,
    connection: Connection = None,
    as_json: AsJson = False,
) -> None:
    """Print the last rows; with --follow those that come, too, until Ctrl-C."""
    with errors_as_messages():
        if max_rows is not None and not follow:
            raise FlussError("--max-rows counts the rows that come: give --follow too")
        opened, path, source = open_source(connection, table)
        if not follow:
            with reading(source, opened):
                scan = _scan(opened, source, columns, metadata)
                frame = scan.tail(min(rows, _MOST_ROWS)).collect()
            show_frame(frame, as_json=as_json)
            return
        options: dict[str, Any] = {
            "connection": opened,
            "columns": split_names(columns),
            "include_metadata": metadata,
        }
        if source == str(path) and opened.get_table(path).has_primary_key():
            options["mode"] = "changelog"
        _until_interrupted(lambda: _follow(path, source, options, rows, max_rows, as_json))


def _until_interrupted(work: Callable[[], None]) -> None:
    """Do what only reads and prints, and have Ctrl-C end the process at once.

    Python handles signals while the main thread runs Python, which it does not where Polars waits
    for rows: so another thread does the work. Ctrl-C ends the process without waiting for it.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(0.1)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(0)
    if failed:
        raise failed[0]


def _follow(
    path: TablePath,
    source: str,
    options: dict[str, Any],
    rows: int,
    max_rows: int | None,
    as_json: bool,
) -> None:
    """Print the last rows of a log, and then every row behind them, once."""
    # the end is pinned first: what comes meanwhile is followed
    info = options["connection"].get_table(path).get_table_info()
    ends: dict[Any, int] = {
        (bucket.partition_name, bucket.bucket_id) if info.is_partitioned() else bucket.bucket_id: e
        for bucket, (_, e) in bucket_offsets(options["connection"], info).items()
    }
    if ends:
        # not those of partitions that come meanwhile, which are followed from their beginning
        names = sorted({bucket[0] for bucket in ends}) if info.is_partitioned() else None
        now = scan_fluss(source, stop=ends, partitions=names, **options)
        last = now.tail(min(rows, _MOST_ROWS)).collect()
        if last.height:
            show_frame(last, as_json=as_json)
    if max_rows == 0:
        return
    flow = Flow()
    with flow.running.planned():
        scan = scan_fluss(source, start=ends, follow=True, max_rows=max_rows, **options)
    for frame in flow.batches(scan):
        if frame.height:
            show_frame(frame, as_json=as_json)
            sys.stdout.flush()


def _scan(
    opened: FlussConnection, source: str, columns: str | None, metadata: bool
) -> pl.LazyFrame:
    names = split_names(columns)
    return scan_fluss(source, connection=opened, columns=names, include_metadata=metadata)


def _rows_of(opened: FlussConnection, path: TablePath) -> int | None:
    """Return how many rows a log has, by its offsets; None where only reading tells."""
    info = opened.get_admin().get_table_info(path)
    if info.has_primary_key() or is_lake_table(info):
        return None
    return sum(end - first for first, end in bucket_offsets(opened, info).values())


def load(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", exists=True, dir_okay=False, help=f"Files: {', '.join(ENDINGS)}."
        ),
    ],
    table: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="TABLE",
            help="table or database.table",
            autocompletion=completion.tables,
        ),
    ],
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
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="'NAME TYPE, ...'",
            help="Types of columns, as in 'id INT, day DATE'; others are found out.",
            show_default="those of the table, or what is in the files",
        ),
    ] = None,
    null_values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A text in CSV that means null, as N/A; repeat for more.",
            show_default="nothing between commas",
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER",
            help="Between columns of CSV, as ';' or '\\t'.",
            show_default="a comma, or a tab in .tsv",
        ),
    ] = None,
    connection: Connection = None,
) -> None:
    """Write files into a table: all rows or, where one is wrong, none.

    After it was killed, or a server failed, the same command completes what it had begun.
    """
    with errors_as_messages():
        from fluss_df.cli.loading.loading import Load

        opened, path = open_table(connection, table, may_be_new=create)
        wanted = Load(
            opened,
            path,
            place_of(connection, opened),
            files,
            TableLayout(split_names(primary_key), split_names(partition_by), None, buckets),
            parse_schema(schema) if schema else (),
            tuple(null_values or ()),
            create,
            create_partitions,
            _separator(separator),
        )
        began = time.monotonic()
        with progress(f"{path}") as report:
            done = wanted.run(report)
        about = ["table created"] if done.table_created else []
        if done.resumed:
            about.append("completed a load that had been interrupted")
        said = "; ".join([f"{done.rows:,} rows", *about])
        typer.echo(f"{path}: {said}; {time.monotonic() - began:.2f} s")
        wanted.forget()


def _separator(given: str | None) -> str | None:
    """Return the character that an option names."""
    found = "\t" if given == "\\t" else given
    if found is not None and (len(found) != 1 or not found.isascii() or found in '"\r\n'):
        raise FlussError(f"--separator {given!r}: expected one character, as ';', or '\\t'")
    return found


def dump(
    table: Source,
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
        method = _SINKS[ending(file, tuple(_SINKS))]
        if file.exists() and not force:
            raise FlussError(f"{file} exists; --force replaces it")
        if not file.parent.is_dir():
            raise FlussError(f"{file}: there is no folder {file.parent}")
        opened, path, source = open_source(connection, table)
        frame = _scan(opened, source, columns, metadata)
        # not by mkstemp, whose files nobody else may read
        name = str(file.with_name(f".{file.name}-{secrets.token_hex(4)}"))
        try:
            with open(name, "xb"):
                pass
        except OSError as error:
            raise FlussError(f"{file} cannot be written: {error.strerror}") from error
        with undoing(lambda: os.unlink(name)):
            if file.exists():
                shutil.copymode(file, name)
            rows = _rows_of(opened, path) if source == str(path) else None
            with reading(source, opened, rows):
                _write(frame, method, name, file)
            _publish(name, file, force=force)
        typer.echo(f"{file}: {file.stat().st_size:,} bytes")


def _publish(name: str, file: Path, *, force: bool) -> None:
    """Give a file that is whole its name; one that came meanwhile is not replaced."""
    if not force:
        try:
            os.link(name, file)
        except FileExistsError:
            raise FlussError(f"{file} came while it was written; --force replaces it") from None
        except OSError:
            # the file system has no links
            pass
        else:
            os.unlink(name)
            return
    os.replace(name, file)


def _write(frame: pl.LazyFrame, method: str, name: str, file: Path) -> None:
    """Write rows into a file; CSV and JSON have texts for types that they have no form for."""
    if method not in ("sink_csv", "sink_ndjson"):
        getattr(frame, method)(name)
        return
    schema = frame.collect_schema()
    names = file.name.lower()
    separator = "\t" if ".tsv" in names[-7:] else ","
    with contextlib.ExitStack() as stack:
        out_file: IO[bytes] = stack.enter_context(open(name, "wb"))
        if names.endswith(".gz"):
            # the name is within the file, and some tools unpack it to that
            packed = gzip.GzipFile(filename=file.name, mode="wb", fileobj=out_file)
            out_file = stack.enter_context(cast(IO[bytes], packed))

        def write(part: pl.DataFrame) -> None:
            if method == "sink_ndjson":
                out_file.write(json_lines(part).encode())
                return
            text = part.select(for_csv(schema)).write_csv(separator=separator, include_header=False)
            out_file.write(text.encode())

        if method == "sink_csv":
            header = pl.DataFrame(schema=dict.fromkeys(schema, pl.String))
            out_file.write(header.write_csv(separator=separator).encode())
        run_into(frame, write)
