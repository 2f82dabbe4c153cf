"""Running a query over a log as it grows, with each row counted exactly once."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.client.runtime.callbacks import call_whole, refuse_lazy
from fluss_df.hooks import undoing
from fluss_df.io.base.durations import parse_duration
from fluss_df.io.polars_reader import plan_digest
from fluss_df.io.runs.checkpoint import local_folder
from fluss_df.io.runs.claims import Claims
from fluss_df.io.runs.destination import (
    Destination,
    check_destination,
    describe,
    place_of,
    refuse_nested,
    refuse_source,
    table_of,
)
from fluss_df.io.runs.ledger import TableLedger
from fluss_df.io.runs.losses import OnDataLoss
from fluss_df.io.runs.micro_batches import MicroBatch, MicroBatches, most_rows
from fluss_df.io.runs.parquet_folder import ParquetFolder
from fluss_df.io.runs.per_batch import changed_line, query_text, refuse_replaced_results
from fluss_df.io.runs.run_register import Link, RunNames, RunRegister
from fluss_df.metadata import TablePath
from fluss_df.observe import spans
from fluss_df.texts.html_tables import pairs

logger = logging.getLogger(__name__)

__all__ = ["Destination", "RunResult", "run"]

LEDGER_DATABASE = "fluss_df_ledger"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run that has ended.

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

    def _repr_html_(self) -> str:
        return pairs(
            f"Run over {self.table}",
            {
                "batches": self.batches,
                "rows read": self.rows_read,
                "rows written": self.rows_written,
            },
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
    on_data_loss: OnDataLoss = "fail",
    replace_aggregates: bool = False,
    ledger_database: str | None = LEDGER_DATABASE,
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

    A checkpoint belongs to one query and one destination. One that was put back to an earlier
    state, or copied, is refused where it would lose rows or write them twice: what was written is
    noted beside the target too, in the metadata of Parquet files, or in a table ``runs`` in the
    cluster of a table. A query that changed is logged as a warning.

    Aggregates, sorts and joins see one batch at a time. Tables besides the streamed one are read
    whole for every batch.

    Parameters
    ----------
    frame
        The query, on a log table.
    to
        ``"database.table"`` or a :class:`TablePath` for a Fluss table, which exists; a folder for
        Parquet files ``batch-0000000000.parquet``, ...; or a function of a frame and the number of
        its batch, which has done its work when it returns: no coroutine, generator or future. A
        name with a dot and without a slash is that of a table, unless only a folder
        of that name exists.
    checkpoint
        A folder of this run alone, for one query and one destination, and outside a folder ``to``.
        ``~`` is the home folder, here and in ``to``.
    trigger
        ``"available-now"`` ends when nothing is left; ``"1s"``, ``"500ms"``, ``"5m"``, a timedelta
        or a number of seconds looks for new rows at that interval, until ``stop`` is set or Ctrl-C.
    stream
        Which table is read batch by batch, where the query reads several.
    max_batch_rows
        The most rows of the table in a batch; all there are by default.
    connection
        The connection of the table that is written to; by default that of the table that is read.
    create_partitions
        Create the partitions of rows that do not exist in the table that is written to.
    stop
        An event that ends the run after the batch at hand.
    on_batch
        Called after every commit with the batch's number, the rows read and the rows written.
    on_data_loss
        What is done where rows can no longer be read (they expired; their partition was dropped;
        the table was made again or put back to an earlier state), or where what was written is
        gone: ``"fail"`` raises, naming buckets and offsets; ``"ignore"`` logs a warning and goes
        on with what there is. A checkpoint that is behind its target is refused either way.
    replace_aggregates
        Whether an aggregate over the rows of one batch may replace those of earlier batches in a
        primary-key table.
    ledger_database
        The database of the table ``runs``, created in the cluster that is written to; None to go
        without: then a checkpoint that was put back or copied is not noticed with tables.

    Returns
    -------
    RunResult

    Raises
    ------
    FlussError
        For a checkpoint of another table or destination, in use, put back or copied, or in the
        folder that is written; a table that was made again; rows that were lost before they were
        read; an aggregate that would replace what earlier batches gave; and what the query raises.
        The batch at hand is not committed then.

    Examples
    --------
    >>> late = pl.scan_fluss("flights").filter(pl.col("dep_delay") > 60)  # doctest: +SKIP
    >>> late.fluss.run(to="late/", checkpoint="late.checkpoint")  # doctest: +SKIP
    RunResult(fluss.flights: 1 batches, 336,776 rows read, 26,581 written)
    """
    checkpoint = local_folder("checkpoint", checkpoint)
    to = place_of(to)
    refuse_nested(to, checkpoint)
    max_batch_rows = most_rows("max_batch_rows", max_batch_rows)
    if callable(to):
        refuse_lazy("to", to)
    if on_batch is not None:
        refuse_lazy("on_batch", on_batch)
    batches = MicroBatches(
        frame,
        checkpoint,
        stream=stream,
        max_rows=max_batch_rows,
        poll_s=_interval(trigger),
        stop=stop,
        on_data_loss=on_data_loss,
    )
    count = rows_read = rows_written = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(batches)
        written_to = batches.connection if connection is None else resolve_connection(connection)
        table = table_of(written_to, to) if isinstance(to, (str, TablePath)) else None
        target: _Target
        if table is not None:
            target = _IntoTable(
                frame,
                batches,
                written_to,
                table,
                create_partitions=create_partitions,
                replace_aggregates=replace_aggregates,
                ledger_database=ledger_database,
            )
        elif callable(to):
            target = _IntoFunction(to, batches)
        else:
            assert not isinstance(to, TablePath)
            target = _IntoFolder(to, batches)
        stack.enter_context(target)
        _tell_changed_query(batches, frame)
        batches.of_run = True
        for batch in batches:
            with spans.OFF if spans.tracer is None else _batch_span(batches, batch):
                written = target.write(batch)
                batch.commit(rows_read=batch.rows, rows_written=written, **target.noted())
            count += 1
            rows_read += batch.rows
            rows_written += written
            if on_batch is not None:
                call_whole("on_batch", on_batch, batch.number, batch.rows, written)
    return RunResult(batches.table, count, rows_read, rows_written)


@contextlib.contextmanager
def _batch_span(batches: MicroBatches, batch: MicroBatch) -> Iterator[None]:
    """Give the span of a micro-batch; the scan of its table is a child of it."""
    attributes = {
        **spans.log_attributes("process", batches.table),
        "messaging.batch.message_count": batch.rows,
        "messaging.consumer.group.name": batches.progress.name,
        "fluss.run.batch": batch.number,
    }
    with spans.current(f"process {batches.table}", "consumer", attributes):
        batches.trace_from_here()
        yield


def _interval(trigger: str | float | dt.timedelta) -> float | None:
    """Return the seconds of a trigger; None for ``"available-now"``."""
    return None if trigger == "available-now" else parse_duration("trigger", trigger)


def _described(batches: MicroBatches, frame: pl.LazyFrame) -> str:
    """Return the query as text, with what of its scan the plan does not show."""
    source = batches.source
    scan = (
        f"scan of {source.table}: partitions {source.partitions}, buckets {source.buckets}, stop"
        f" {source.stop}, changes {source.changes}"
    )
    return f"{scan}\n{query_text(frame)}"


def _tell_changed_query(batches: MicroBatches, frame: pl.LazyFrame) -> None:
    """Log that a query is not the one that the checkpoint was begun with."""
    checkpoint = batches.checkpoint
    text, plan = _described(batches, frame), plan_digest(frame)
    now = {"text": text, "plan": plan, "polars": pl.__version__}
    then = checkpoint.about.get("query")
    if then is None or then["polars"] != now["polars"]:
        pass
    elif then["text"] == text:
        # the text does not show in-memory frames, the middle of long lists, and some arguments
        if None not in (plan, then.get("plan")) and plan != then["plan"]:
            logger.warning(
                "checkpoint %s: the query is another one than before, in what its text does not"
                " show, like in-memory frames and long lists; batches from now on are of the new"
                " one, and rows that were written stay as they are",
                checkpoint.folder,
            )
    else:
        logger.warning(
            "checkpoint %s: the query is another one than before (%s); batches from now on are of"
            " the new one, and rows that were written stay as they are",
            *(checkpoint.folder, changed_line(then["text"], text)),
        )
    checkpoint.amend(query=now)


class _Target(contextlib.AbstractContextManager["_Target"]):
    """Where batches are written, and what a commit notes of it."""

    def __init__(self, batches: MicroBatches) -> None:
        self.batches = batches
        self.stack = contextlib.ExitStack()

    def write(self, batch: MicroBatch) -> int:
        """Write a batch; return its rows."""
        raise NotImplementedError

    def noted(self) -> dict[str, Any]:
        """Return the notes of a commit besides numbers of rows."""
        return {}

    def committed(self) -> tuple[Link | None, bool]:
        """Return the newest batch that the checkpoint knows, and whether it says so at all."""
        found = self.batches.checkpoint.committed()
        if found is None:
            return None, self.batches.checkpoint.planned() is None or self.bound
        return Link.from_json(found[1].get("link")), "link" in found[1]

    @property
    def bound(self) -> bool:
        """Whether this release has run with the checkpoint before."""
        return "destination" in self.batches.checkpoint.about

    def __exit__(self, *error: Any) -> None:
        self.stack.close()


class _IntoFunction(_Target):
    def __init__(self, to: Callable[[pl.DataFrame, int], Any], batches: MicroBatches) -> None:
        super().__init__(batches)
        self._function = to
        where = describe(to, None)
        check_destination(
            batches.checkpoint, where, batches.losses, batches.connection, lambda: False
        )
        batches.checkpoint.amend(destination=where)

    def write(self, batch: MicroBatch) -> int:
        frame = batch.frame.collect()
        # before the commit: rows whose work is not done would be lost
        call_whole("to", self._function, frame, batch.number)
        return frame.height


class _IntoFolder(_Target):
    def __init__(self, to: str | os.PathLike[str], batches: MicroBatches) -> None:
        super().__init__(batches)
        self._folder = ParquetFolder(to, batches.run_id, batches.losses)
        where = describe(to, None)
        checkpoint = batches.checkpoint
        check_destination(
            checkpoint,
            where,
            batches.losses,
            batches.connection,
            lambda: self._folder.newest() is not None,
        )
        self.stack.enter_context(self._folder)
        with undoing(self.stack.close):
            known, told = self.committed()
            planned = checkpoint.planned()
            if planned is not None and checkpoint.is_committed(planned.number):
                planned = None
            self._folder.check(planned, known, told)
            checkpoint.amend(destination=where)
        batches.settled = self._folder.has

    def write(self, batch: MicroBatch) -> int:
        return self._folder.write(batch)

    def noted(self) -> dict[str, Any]:
        link = self._folder.link
        return {"link": None if link is None else link.to_json()}


class _IntoTable(_Target):
    def __init__(
        self,
        frame: pl.LazyFrame,
        batches: MicroBatches,
        connection: FlussConnection,
        table: TablePath,
        *,
        create_partitions: bool,
        replace_aggregates: bool,
        ledger_database: str | None,
    ) -> None:
        super().__init__(batches)
        checkpoint = batches.checkpoint
        info = connection.get_table(table).get_table_info()
        source = batches.connection.get_table(batches.table).get_table_info()
        refuse_source(batches.connection, source, connection, info)
        where = describe(str(table), info)
        made_again = check_destination(checkpoint, where, batches.losses, connection, lambda: False)
        if not replace_aggregates:
            refuse_replaced_results(frame, info)
        text = _described(batches, frame)
        register = None
        if ledger_database is not None:
            register = RunRegister(connection, ledger_database)
            self.stack.callback(register.close)
        names = RunNames(batches.run_id, table, info.table_id, batches.table, source.table_id)
        self._claims = Claims(
            register,
            names,
            info,
            Path(checkpoint.folder).resolve(),
            text,
            plan_digest(frame),
            batches.losses,
        )
        with undoing(self.stack.close):
            self._ledger = self.stack.enter_context(
                TableLedger(
                    connection,
                    table,
                    frame.collect_schema(),
                    Path(checkpoint.folder),
                    self._claims,
                    batches.losses,
                    create_partitions=create_partitions,
                )
            )
            planned = checkpoint.planned()
            staged = None
            if planned is not None and not checkpoint.is_committed(planned.number):
                name = self._ledger.name_of(planned.number)
                staged = None if name is None else Link(planned.number, name)
                if made_again:
                    # the batch was staged for a table that is gone
                    self._ledger.forget(planned.number)
            self._claims.check(staged, *self.committed())
            checkpoint.amend(destination=where)
        batches.settled = self._ledger.has

    def write(self, batch: MicroBatch) -> int:
        return self._ledger.write(batch)

    def noted(self) -> dict[str, Any]:
        if not self._claims.told:
            return {}
        link = self._claims.link
        return {"link": None if link is None else link.to_json()}
