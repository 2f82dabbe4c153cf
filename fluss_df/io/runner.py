"""Running a query over a log as it grows, with each row counted exactly once."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import glob
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow.parquet as pq

from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.errors import FlussError
from fluss_df.io.checkpoint import replacing, sync_folder
from fluss_df.io.durations import parse_duration
from fluss_df.io.ledger import TableLedger
from fluss_df.io.micro_batches import MicroBatch, MicroBatches
from fluss_df.metadata import TablePath

#: A table, a folder of Parquet files, or what is called with each batch.
Destination: TypeAlias = (
    "str | TablePath | os.PathLike[str] | Callable[[pl.DataFrame, int], object]"
)

# in the metadata of files
_RUN_ID = "fluss_df.run"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did before it ended.

    Parameters
    ----------
    table
        What was read.
    batches, rows_read, rows_written
        Micro-batches that were committed, the rows of the table in them, and the rows that the
        query made of these.
    """

    table: TablePath
    batches: int
    rows_read: int
    rows_written: int

    def __repr__(self) -> str:
        return (
            f"RunResult({self.table}: {self.batches} batches, {self.rows_read:,} rows read,"
            f" {self.rows_written:,} written)"
        )


def run(
    frame: pl.LazyFrame,
    *,
    to: Destination,
    checkpoint: str | os.PathLike[str],
    trigger: str | float | dt.timedelta = "available-now",
    stream: str | TablePath | None = None,
    max_batch_rows: int | None = None,
    connection: object | None = None,
    create_partitions: bool = False,
    stop: threading.Event | None = None,
    on_batch: Callable[[int, int, int], None] | None = None,
) -> RunResult:
    """Run a query over a log batch by batch; also ``lf.fluss.run(...)``.

    Every batch is the whole query, with every pushdown, over the rows that came since the batch
    before. The offsets are written down before a batch runs, and the batch is committed when its
    output is in place: a run that was killed at any moment goes on where it was, and a batch that
    was not committed runs again over the same rows. Into a folder of Parquet files every row is
    written exactly once: a batch is one file, which appears whole and under the batch's number.
    Into a Fluss table too: rows are appended to a log table, and upserted into a primary-key
    table, and a batch that was written in part is completed; others may write to the table
    meanwhile. A function is called at least once for every batch, and with the same number again.

    Aggregates, sorts and joins see one batch at a time. Tables besides the streamed one are read
    whole for every batch.

    Parameters
    ----------
    frame
        The query, on a log table.
    to
        ``"database.table"`` or a :class:`TablePath` for a Fluss table, which exists; a folder for
        Parquet files ``batch-0000000000.parquet``, ...; or a function of a frame and the number of
        its batch. A name with a dot and without a slash is that of a table, unless only a folder
        of that name exists.
    checkpoint
        A folder of this run alone.
    trigger
        ``"available-now"`` ends when nothing is left; ``"1s"``, ``"500ms"``, ``"5m"``, a timedelta
        or a number of seconds looks for new rows so often, until ``stop`` is set or Ctrl-C.
    stream
        Which table is read batch by batch, where the query reads several.
    max_batch_rows
        The most rows of the table in a batch; all there are by default.
    connection
        Of the table that is written to; by default that of the table that is read.
    create_partitions
        Create the partitions of rows that do not exist in the table that is written to.
    stop
        An event that ends the run after the batch at hand.
    on_batch
        Called after every commit with the batch's number, the rows read and the rows written.

    Returns
    -------
    RunResult

    Raises
    ------
    FlussError
        For a checkpoint of another table or in use, a table that was made anew, rows that expired
        before they were read; and what the query raises. The batch at hand is not committed then.

    Examples
    --------
    >>> late = pl.scan_fluss("flights").filter(pl.col("dep_delay") > 60)  # doctest: +SKIP
    >>> late.fluss.run(to="late/", checkpoint="late.checkpoint")  # doctest: +SKIP
    RunResult(fluss.flights: 1 batches, 336,776 rows read, 26,581 written)
    """
    batches = MicroBatches(
        frame,
        checkpoint,
        stream=stream,
        max_rows=max_batch_rows,
        poll_s=_interval(trigger),
        stop=stop,
    )
    count = rows_read = rows_written = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(batches)
        write: Callable[[MicroBatch], int]
        target = to if isinstance(to, (str, TablePath)) else None
        written_to = batches.connection if connection is None else resolve_connection(connection)
        table = None if target is None else _table(written_to, target)
        if table is not None:
            if table == batches.table and written_to is batches.connection:
                raise FlussError(f"to={str(to)!r}: a run cannot write to the table that it reads")
            ledger = TableLedger(
                written_to,
                table,
                frame.collect_schema(),
                Path(checkpoint),
                create_partitions=create_partitions,
            )
            write = stack.enter_context(ledger).write
        elif callable(to):
            write = functools.partial(_call, to)
        else:
            assert not isinstance(to, TablePath)
            write = _ParquetFolder(to, batches.run_id).write
        for batch in batches:
            written = write(batch)
            batch.commit(rows_read=batch.rows, rows_written=written)
            count += 1
            rows_read += batch.rows
            rows_written += written
            if on_batch is not None:
                on_batch(batch.number, batch.rows, written)
    return RunResult(batches.table, count, rows_read, rows_written)


def _table(connection: FlussConnection, to: str | TablePath) -> TablePath | None:
    """Return the table that is meant; None for a folder."""
    if isinstance(to, TablePath):
        return to
    if "." not in to.strip(".") or os.sep in to or (os.altsep is not None and os.altsep in to):
        return None
    try:
        path = TablePath.parse(to, connection.default_database)
        connection.get_table(path)
    except FlussError as error:
        if Path(to).is_dir():
            return None
        raise FlussError(
            f"to={to!r}: {error.message}; for a folder of Parquet files say to='./{to}'",
            error.error_code,
        ) from None
    if Path(to).is_dir():
        raise FlussError(
            f"to={to!r} is a table and a folder: say to='./{to}' for the folder, or"
            f" to=TablePath({path.database_name!r}, {path.table_name!r}) for the table"
        )
    return path


def _interval(trigger: str | float | dt.timedelta) -> float | None:
    """Return the seconds of a trigger; None for ``"available-now"``."""
    return None if trigger == "available-now" else parse_duration("trigger", trigger)


def _call(function: Callable[[pl.DataFrame, int], Any], batch: MicroBatch) -> int:
    frame = batch.frame.collect()
    function(frame, batch.number)
    return frame.height


class _ParquetFolder:
    """One file for each batch that has rows, marked with the run that it is of.

    Files are written beside the folder: whoever reads the folder sees whole files only.
    """

    def __init__(self, folder: str | os.PathLike[str], run_id: str) -> None:
        self._folder = Path(folder).resolve()
        self._run_id = run_id
        if self._folder.exists() and not self._folder.is_dir():
            raise FlussError(f"to={str(folder)!r} is a file: expected a folder for Parquet files")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._prefix = f".{self._folder.name}-{run_id}-"
        for leftover in self._folder.parent.glob(f"{glob.escape(self._prefix)}*"):
            leftover.unlink(missing_ok=True)
        for path in sorted(self._folder.glob("batch-*.parquet"))[-1:]:
            self._check(path)

    def _check(self, path: Path) -> None:
        """Refuse to touch what another run wrote."""
        found = (pq.read_metadata(path).metadata or {}).get(_RUN_ID.encode())
        if found != self._run_id.encode():
            raise FlussError(
                f"{path} was not written with this checkpoint: a run needs a folder of its own,"
                " and the checkpoint that belongs to it"
            )

    def write(self, batch: MicroBatch) -> int:
        """Write the file of a batch; return its rows."""
        path = self._folder / f"batch-{batch.number:010}.parquet"
        if path.exists():
            self._check(path)
        with replacing(path, self._folder.parent, self._prefix) as name:
            batch.frame.sink_parquet(name, metadata={_RUN_ID: self._run_id})
            rows: int = pq.read_metadata(name).num_rows
        if not rows:
            path.unlink()
            sync_folder(self._folder)
        return rows
