"""Micro-batches of a query: slices of a log, each read once its offsets are written down.

:class:`MicroBatches` is the loop that :func:`fluss_df.io.run` and plain iteration share. The
order of events is what makes batches exact: the offsets of a batch are in the checkpoint before it
is run, its output is in place before it is committed, and a batch that was not committed is run
again over the same offsets.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.polars_reader import FlussScan, copy_with_scans
from fluss_df.io.runs.checkpoint import BatchOffsets, Checkpoint
from fluss_df.io.runs.losses import (
    Losses,
    OnDataLoss,
    check_on_data_loss,
    listed,
    moment_after,
    not_put_back,
    within_log,
    without_dropped,
)
from fluss_df.io.runs.run_counts import RunCounts
from fluss_df.io.scans.planning import ask_bounds, check_schema, chosen_buckets, find_offsets
from fluss_df.io.scans.report import planned_in
from fluss_df.io.source import Halves, PartitionChoice, ScanSource, is_chosen
from fluss_df.metadata import PartitionInfo, TablePath
from fluss_df.observe import spans
from fluss_df.observe.counters import runs
from fluss_df.pushdown.plan import Bucket, Split
from fluss_df.pushdown.prune import all_buckets
from fluss_df.schema import TableInfo
from fluss_df.texts.html_tables import pairs, table

# a wait for the next batch notices Ctrl-C and a request to stop
_WAIT_S = 0.2


# the columns in which the offsets of a bucket are shown
_SPLIT = ("partition", "bucket", "from offset", "to offset", "rows")


@dataclass
class MicroBatch:
    """Rows of a query that are to be processed as one.

    Attributes
    ----------
    number
        From 0, the same again when the batch is run again.
    frame
        The query over the rows of this batch; lazy, with every pushdown.
    splits
        The offsets that the batch reads, by bucket.
    planned
        What the checkpoint says of it: all buckets that the run knows, those without new rows too.
    """

    number: int
    frame: pl.LazyFrame
    splits: tuple[Split, ...]
    planned: BatchOffsets
    _commit: Callable[[int, dict[str, Any]], None] = field(repr=False)

    @property
    def rows(self) -> int:
        """How many rows of the table the batch reads."""
        return sum(split.rows for split in self.splits)

    def commit(self, **about: Any) -> None:
        """Take note that the batch is processed: it will not come again.

        Parameters
        ----------
        **about
            What to note with it, as JSON.
        """
        self._commit(self.number, about)

    def _repr_html_(self) -> str:
        caption = f"Micro-batch {self.number}: {self.rows:,} rows"
        rows = ((s.partition_name, s.bucket_id, s.start, s.stop, s.rows) for s in self.splits)
        return table(caption, _SPLIT, rows, len(self.splits))


def most_rows(what: str, rows: int | None) -> int | None:
    """Return the most rows of a batch; None for as many as there are.

    Raises FlussError for what is no number of rows; ``what`` is the argument that it was given as.
    """
    if rows is None:
        return None
    try:
        # not int: that takes texts, and cuts fractions off
        found = 0 if isinstance(rows, bool) else operator.index(rows)
    except TypeError:
        found = 0
    if found < 1:
        raise FlussError(f"{what}={rows!r}: expected a whole number, at least 1")
    return found


class MicroBatches:
    """Yields the micro-batches of a query; use it in a ``with`` statement.

    Parameters
    ----------
    frame
        A query that reads at least one log table of Fluss.
    checkpoint
        The folder that remembers how far the query got; ``~`` is the home folder.
    stream
        Which of its tables is read batch by batch, where it reads several; the others are read
        whole, as they are, for every batch.
    max_rows
        The most rows of the table in a batch, or None.
    poll_s
        How long to wait, when nothing is new, before looking again; None to end then.
    stop
        Ends the iteration when it is set.
    on_data_loss
        ``"fail"``, or ``"ignore"`` to go on, with a warning in the log, where rows of the table
        were lost before they were read: expired, in dropped partitions, of a table made again.

    Raises
    ------
    FlussError
        For a query without a log table or with several and no ``stream``; for a checkpoint of
        another table, of a run that writes elsewhere, or in use; for rows that were lost.
    """

    def __init__(
        self,
        frame: pl.LazyFrame,
        checkpoint: str | os.PathLike[str],
        *,
        stream: str | TablePath | None = None,
        max_rows: int | None = None,
        poll_s: float | None = None,
        stop: threading.Event | None = None,
        on_data_loss: OnDataLoss = "fail",
    ) -> None:
        max_rows = most_rows("max_rows", max_rows)
        check_on_data_loss(on_data_loss)
        self._losses = Losses(on_data_loss)
        self._frame, scans = copy_with_scans(frame)
        self._scan = _streamed(scans, stream, frame)
        self._source = self._scan.source
        self._checkpoint = Checkpoint(checkpoint, self._source.table)
        #: What is counted of its batches.
        self.progress = RunCounts(self._checkpoint.folder, self._source.table)
        self._max_rows = max_rows
        self._poll_s = poll_s
        self._stop = stop or threading.Event()
        self._open: int | None = None
        self._rows = 0
        self._began = False
        self._went_on = False
        self._passed_over: set[PartitionChoice] = set()
        #: Whether batches are for the destination that the checkpoint belongs to.
        self.of_run = False
        #: Whether the output of a batch is known, so that its rows need not be there any more.
        self.settled: Callable[[BatchOffsets], bool] = lambda batch: False

    @property
    def losses(self) -> Losses:
        """What is done about rows that are gone."""
        return self._losses

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder that remembers how far the query got."""
        return self._checkpoint

    @property
    def source(self) -> ScanSource:
        """The scan that is read batch by batch."""
        return self._source

    @property
    def run_id(self) -> str:
        """What all runs with this checkpoint have in common, and no others."""
        return self._checkpoint.run_id

    @property
    def connection(self) -> FlussConnection:
        """The connection of the table that is read batch by batch."""
        return self._source.connection

    @property
    def table(self) -> TablePath:
        """The table that is read batch by batch."""
        return self._source.table

    def _repr_html_(self) -> str:
        about = {"checkpoint": self._checkpoint.folder, **self.progress.figures()}
        return pairs(f"Micro-batches of {self.table}", about)

    def trace_from_here(self) -> None:
        """Have the scans of batches belong to the current span of the calling thread."""
        self._scan.runs.context = spans.context()

    def __enter__(self) -> MicroBatches:
        self._checkpoint.__enter__()
        runs.enter(self, self.progress)
        return self

    def __exit__(self, *error: object) -> None:
        runs.leave(self.progress)
        self._checkpoint.__exit__(*error)

    def __iter__(self) -> Iterator[MicroBatch]:
        where = self._checkpoint.about.get("destination")
        if where is not None and not self.of_run:
            raise FlussError(
                f"checkpoint {self._checkpoint.folder} belongs to a run into the {where['kind']}"
                f" {where['name']}, which would not get these batches: take another folder"
            )
        while not self._stop.is_set():
            began = time.monotonic()
            planned = self._next()
            if planned is None:
                self.progress.nothing_new()
                if self._poll_s is None:
                    return
                self._wait(began + self._poll_s)
                continue
            splits = self._readable(planned)
            self._scan.source = dataclasses.replace(self._source, pinned=splits)
            self._open = planned.number
            batch = MicroBatch(planned.number, self._frame, splits, planned, self._commit)
            self._rows = batch.rows
            self.progress.began(batch.rows)
            yield batch
            if self._open is not None:
                raise FlussError(
                    f"micro-batch {planned.number} of {self.table} was not committed: call"
                    " batch.commit() when it is processed"
                )
            if self._poll_s is not None:
                self._wait(began + self._poll_s)

    def _wait(self, until: float) -> None:
        while not self._stop.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            self._stop.wait(min(left, _WAIT_S))

    def _commit(self, number: int, about: dict[str, Any]) -> None:
        if number != self._open:
            raise FlussError(f"micro-batch {number} is not the one that is open")
        self._checkpoint.commit(number, about)
        self._open = None
        self.progress.committed(self._rows, int(about.get("rows_written", 0)))

    def _next(self) -> BatchOffsets | None:
        """Return the batch to run: the one that was not committed, or a new one if there is."""
        last = self._checkpoint.planned()
        if last is not None and not self._checkpoint.is_committed(last.number):
            return last
        batch = self._plan(last or self._checkpoint.start())
        if not batch.rows and not self._went_on:
            if batch.number == 0 and self._checkpoint.start() is None:
                # all rows that come from now on are read, whenever the first of them comes
                self._checkpoint.begin(dataclasses.replace(batch, number=-1))
            return None
        self._checkpoint.plan(batch)
        return batch

    def _readable(self, batch: BatchOffsets) -> tuple[Split, ...]:
        """Return what a batch reads; of one that an earlier process began, what is still there."""
        splits = tuple(split for split in batch.splits if split.rows)
        if self._began or self.settled(batch):
            return splits
        info = self._source.connection.get_table(self.table).get_table_info()
        starts = {split.bucket: split.start for split in splits}
        starts = self._of_this_table(info, batch, starts)
        starts = without_dropped(self._losses, self.table, starts, self._buckets(info)[1])
        if not starts:
            return ()
        source = dataclasses.replace(self._source, start="earliest", stop="latest")
        first, last, _, _ = ask_bounds(source, info, list(starts))
        stops = {split.bucket: split.stop for split in splits if split.bucket in starts}
        connection = self._source.connection
        same = not_put_back(self._losses, connection, info, stops, batch.clock, last)
        within_log(self._losses, self.table, stops, stops, last)
        # rows that replaced lost ones are read by the next batch
        starts = {b: at for b, at in starts.items() if same[b] == stops[b] <= last[b]}
        starts = within_log(self._losses, self.table, starts, first, last)
        return tuple(_at(b, start, stops[b]) for b, start in starts.items() if stops[b] > start)

    def _of_this_table(
        self, info: TableInfo, batch: BatchOffsets, offsets: dict[Bucket, int]
    ) -> dict[Bucket, int]:
        """Return what is known of the table's buckets: nothing, where it was created again."""
        if batch.is_of(info):
            return offsets
        gone = sorted(offsets, key=str)
        self._losses.found(
            f"table {self.table} was dropped and made again since checkpoint"
            f" {self._checkpoint.folder} was written (its id was {batch.table_id}, and is"
            f" {info.table_id}), and what came behind what was read is lost"
            f" ({listed(f'bucket {b} behind offset {offsets[b]}' for b in gone)}): start over with"
            " another folder",
            ErrorCode.TABLE_NOT_EXIST,
        )
        return {}

    def _buckets(self, info: TableInfo) -> tuple[Sequence[Bucket], Sequence[Bucket]]:
        """Return the buckets of the scan, and all that the table has now."""
        there = (
            self._source.connection.get_admin().list_partition_infos(self.table)
            if info.is_partitioned()
            else []
        )
        # given start offsets and partitions may be of those that were read, and dropped since
        source = self._source
        last = self._checkpoint.planned() or self._checkpoint.start()
        if last is not None:
            left = self._choices(info, there, last.splits)
            source = dataclasses.replace(source, start="earliest", partitions=left)
        return chosen_buckets(info, source, there), all_buckets(info, there)

    def _choices(
        self, info: TableInfo, there: Sequence[PartitionInfo], read: Sequence[Split]
    ) -> tuple[PartitionChoice, ...] | None:
        """Return which partitions the scan chooses, without those that were dropped meanwhile."""
        given = self._source.partitions
        if given is None:
            return None
        left = tuple(choice for choice in given if any(is_chosen(p, choice) for p in there))
        # what is lost of those that were read is told by what was read; of others here, and once
        names = {split.partition_name or "" for split in read}
        specs = [dict(zip(info.get_partition_keys(), n.split("$"), strict=False)) for n in names]
        known = [PartitionInfo(0, n, spec) for n, spec in zip(names, specs, strict=True)]
        for choice in set(given) - set(left) - self._passed_over:
            if not any(is_chosen(partition, choice) for partition in known):
                what = choice if isinstance(choice, str) else dict(choice)
                self._losses.found(
                    f"table {self.table}: partition {what!r}, which the query reads, is not there"
                    " any more",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            self._passed_over.add(choice)
        return left

    def _plan(self, last: BatchOffsets | None) -> BatchOffsets:
        """Return the batch behind the last one, or behind the start; it may have no rows."""
        source = self._source
        connection = source.connection
        info = connection.get_table(source.table).get_table_info()
        known: dict[Bucket, int] = {}
        before: dict[Bucket, int] = {}
        if last is not None:
            before = {split.bucket: split.stop for split in last.splits}
            known = self._of_this_table(info, last, before)
        check_schema(info, source)
        buckets, there = self._buckets(info)
        left: list[Split] = []
        if last is not None:
            known = without_dropped(self._losses, self.table, known, there)
            # a query may read fewer buckets than before: the others stay known
            others = known.keys() - set(buckets)
            left = [_at(bucket, known.pop(bucket)) for bucket in sorted(others, key=str)]
            # partitions that were created later are read from their beginning
            source = dataclasses.replace(source, start="earliest")
        first, ends, starts, stops = ask_bounds(source, info, buckets) if buckets else ({},) * 4
        if last is not None:
            # rows after a given end are not wanted
            open_ended = source.stop == "latest"
            wanted = {b: at for b, at in known.items() if open_ended or at < stops[b]}
            # a server may be put back while the run lives; without new rows there is nothing to ask
            if not self._began or any(ends[bucket] != at for bucket, at in wanted.items()):
                same = not_put_back(self._losses, connection, info, wanted, last.clock, ends)
                within_log(self._losses, self.table, wanted, wanted, ends)
                wanted = same
            wanted = within_log(self._losses, self.table, wanted, first, ends)
            starts = {**starts, **known, **wanted}
            known = {**known, **wanted, **{split.bucket: split.start for split in left}}
        # a batch without rows notes that lost rows were passed over, where no new rows came
        self._went_on = known != before
        starts, stops = find_offsets(source, info, buckets, (first, ends, starts, stops))
        splits = [_at(b, starts[b], max(starts[b], stops[b])) for b in buckets]
        self._began = True
        number = 0 if last is None else last.number + 1
        ahead = {b: max(starts[b], stops[b]) for b in buckets}
        cut = (*share_rows(splits, self._max_rows), *left)
        self.progress.looked(sum(ahead.values()) - sum(s.stop for s in cut if s.bucket in ahead))
        batch = BatchOffsets(number, info.table_id, cut, info.created_time)
        if not batch.rows and last is not None and not self._went_on:
            return batch
        clock = moment_after(connection, info, {split.bucket: split.stop for split in cut})
        return dataclasses.replace(batch, clock=clock)


def _at(bucket: Bucket, start: int, stop: int | None = None) -> Split:
    end = start if stop is None else stop
    return Split(bucket.partition_id, bucket.partition_name, bucket.bucket_id, start, end)


def share_rows(splits: list[Split], most: int | None) -> list[Split]:
    """Return the beginnings of splits: up to a number of rows together, every bucket its share."""
    if most is None:
        return splits
    left = most
    # where some buckets have to wait the largest comes first, so that none waits for ever
    few = most < sum(split.rows > 0 for split in splits)
    order = sorted(range(len(splits)), key=lambda i: splits[i].rows, reverse=few)
    shared = list(splits)
    for n, i in enumerate(order):
        # what small buckets leave of their shares goes to the larger ones
        share = max(1, left // (len(order) - n)) if left else 0
        shared[i] = splits[i].slice(0, min(share, left))
        left -= shared[i].rows
    return shared


class _Stream(FlussScan):
    """The scan that is read batch by batch: it has a name of its own in the plan of a query."""


def with_marked_stream(
    frame: pl.LazyFrame, stream: str | TablePath | None
) -> tuple[pl.LazyFrame, str]:
    """Return a copy of a query, and the name by which its plan shows what is read in batches.

    Raises FlussError as :class:`MicroBatches` does, for a query without one such scan.
    """
    copy, scans = copy_with_scans(frame)
    # Polars asks for the name of a node when it shows a plan
    _streamed(scans, stream, frame).__class__ = _Stream
    return copy, _Stream.__name__


def _streamed(
    scans: list[FlussScan], stream: str | TablePath | None, frame: pl.LazyFrame
) -> FlussScan:
    # what is only in the lake does not grow
    scans = [scan for scan in scans if scan.source.halves is not Halves.LAKE]
    names = sorted({str(scan.source.table) for scan in scans})
    if stream is None:
        if len(scans) == 1:
            return scans[0]
        if not scans:
            raise FlussError(_no_log(frame))
        raise FlussError(
            f"the query reads {', '.join(names)} in {len(scans)} scans: say with stream=... which"
            " table is read batch by batch"
        )
    found = [
        scan
        for scan in scans
        if scan.source.table == TablePath.parse(stream, scan.source.connection.default_database)
    ]
    if len(found) != 1:
        count = "does not read" if not found else f"has {len(found)} scans of"
        raise FlussError(
            f"stream={str(stream)!r}: the query {count} it; it reads {', '.join(names)}"
        )
    return found[0]


def _no_log(frame: pl.LazyFrame) -> str:
    """Return why a query has no log to read batch by batch."""
    try:
        plans = [planned.plan for planned in planned_in(frame)]
    except FlussError:
        plans = []
    for plan in plans:
        if plan.lake is not None:
            return (
                f"the query reads the lake of table {plan.table}, and a run reads a log: leave out"
                " $lake, or of a primary-key table read the changes with mode='changelog'"
            )
        if plan.reads is not None and plan.reads.startswith("what comes"):
            return (
                f"the query follows table {plan.table}, without an end: make the frame without"
                " follow=True, and a run reads what comes, batch by batch"
            )
        return (
            f"the query reads the current rows of table {plan.table}, which has a primary key, and"
            f" a run reads a log: scan_fluss('{plan.table}', mode='changelog') reads its changes"
        )
    return "the query reads no Fluss table: begin it with scan_fluss(...)"
