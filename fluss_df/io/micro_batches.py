"""Micro-batches of a query: slices of a log, each read once its offsets are written down.

:class:`MicroBatches` is the loop that :func:`fluss_df.io.runner.run` and plain iteration share. The
order of events is what makes batches exact: the offsets of a batch are in the checkpoint before it
is run, its output is in place before it is committed, and a batch that was not committed is run
again over the same offsets.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.checkpoint import BatchOffsets, Checkpoint
from fluss_df.io.planning import check_schema, chosen_buckets, find_offsets
from fluss_df.io.polars_reader import FlussScan, copy_with_scans
from fluss_df.metadata import TablePath
from fluss_df.pushdown.plan import Split

logger = logging.getLogger(__name__)

# a wait for the next batch notices Ctrl-C and a request to stop
_WAIT_S = 0.2


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
    """

    number: int
    frame: pl.LazyFrame
    splits: tuple[Split, ...]
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


class MicroBatches:
    """Yields the micro-batches of a query; use it in a ``with`` statement.

    Parameters
    ----------
    frame
        A query that reads at least one log table of Fluss.
    checkpoint
        The folder that remembers how far the query got.
    stream
        Which of its tables is read batch by batch, where it reads several; the others are read
        whole, as they are, for every batch.
    max_rows
        The most rows of the table in a batch, or None.
    poll_s
        How long to wait, when nothing is new, before looking again; None to end then.
    stop
        Ends the iteration when it is set.

    Raises
    ------
    FlussError
        For a query without a log table or with several and no ``stream``; for a checkpoint of
        another table, or in use.
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
    ) -> None:
        if max_rows is not None and max_rows < 1:
            raise FlussError(f"max_rows={max_rows!r}: expected at least 1")
        self._frame, scans = copy_with_scans(frame)
        self._scan = _streamed(scans, stream)
        self._source = self._scan.source
        self._checkpoint = Checkpoint(checkpoint, self._source.table)
        self._max_rows = max_rows
        self._poll_s = poll_s
        self._stop = stop or threading.Event()
        self._open: int | None = None

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

    def __enter__(self) -> MicroBatches:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._checkpoint.__exit__(*error)

    def __iter__(self) -> Iterator[MicroBatch]:
        while not self._stop.is_set():
            began = time.monotonic()
            planned = self._next()
            if planned is None:
                if self._poll_s is None:
                    return
                self._wait(began + self._poll_s)
                continue
            splits = tuple(split for split in planned.splits if split.rows)
            self._scan.source = dataclasses.replace(self._source, pinned=splits)
            self._open = planned.number
            yield MicroBatch(planned.number, self._frame, splits, self._commit)
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

    def _next(self) -> BatchOffsets | None:
        """Return the batch to run: the one that was not committed, or a new one if there is."""
        last = self._checkpoint.planned()
        if last is not None and not self._checkpoint.is_committed(last.number):
            self._check_table_id(last)
            return last
        batch = self._plan(last)
        if batch is None:
            return None
        self._checkpoint.plan(batch)
        return batch

    def _check_table_id(self, batch: BatchOffsets) -> None:
        info = self._source.connection.get_table(self.table).get_table_info()
        if info.table_id != batch.table_id:
            raise FlussError(
                f"table {self.table} was dropped and made anew since checkpoint"
                f" {self._checkpoint.folder} was written (its id was {batch.table_id}, and is"
                f" {info.table_id}): start over with another folder",
                ErrorCode.TABLE_NOT_EXIST,
            )

    def _plan(self, last: BatchOffsets | None) -> BatchOffsets | None:
        source = self._source
        connection = source.connection
        if last is not None:
            self._check_table_id(last)
        info = connection.get_table(source.table).get_table_info()
        check_schema(info, source)
        there = (
            connection.get_admin().list_partition_infos(source.table)
            if info.is_partitioned()
            else []
        )
        buckets = chosen_buckets(info, source, there)
        if last is not None:
            known = {split.bucket: split.stop for split in last.splits}
            for bucket in known.keys() - set(buckets):
                logger.warning(
                    "bucket %s of table %s is gone: what came into it after offset %d was not read",
                    *(bucket, self.table, known[bucket]),
                )
            # partitions that came later are read from their beginning
            begun = {(b.partition_name, b.bucket_id): known[b] for b in buckets if b in known}
            source = dataclasses.replace(source, start=frozenset(begun.items()))
        starts, stops = find_offsets(source, info, buckets)
        splits = [
            Split(b.partition_id, b.partition_name, b.bucket_id, start, max(start, stops[b]))
            for b, start in ((bucket, starts[bucket]) for bucket in buckets)
        ]
        if not any(split.rows for split in splits):
            return None
        number = 0 if last is None else last.number + 1
        return BatchOffsets(number, info.table_id, tuple(share_rows(splits, self._max_rows)))


def share_rows(splits: list[Split], most: int | None) -> list[Split]:
    """Return the beginnings of splits: at most so many rows together, every bucket its share."""
    if most is None:
        return splits
    left = most
    order = sorted(range(len(splits)), key=lambda i: splits[i].rows)
    shared = list(splits)
    for n, i in enumerate(order):
        # what small buckets do not need is for the larger ones
        share = max(1, left // (len(order) - n)) if left else 0
        shared[i] = splits[i].slice(0, min(share, left))
        left -= shared[i].rows
    return shared


def _streamed(scans: list[FlussScan], stream: str | TablePath | None) -> FlussScan:
    names = sorted({str(scan.source.table) for scan in scans})
    if stream is None:
        if len(scans) == 1:
            return scans[0]
        if not scans:
            raise FlussError("the query reads no Fluss table: begin it with scan_fluss(...)")
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
