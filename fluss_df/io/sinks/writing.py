"""Handing frames to a writer: append, upsert, delete, or a stream of changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import polars as pl
import pyarrow as pa

from fluss_df.client.send.batch import BucketResult
from fluss_df.client.write.append import AppendWriter
from fluss_df.client.write.upsert import UpsertWriter
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io.base.arrow import to_table
from fluss_df.io.scans.report import watching
from fluss_df.io.sinks.evolution import with_missing
from fluss_df.io.sinks.target import Target
from fluss_df.types import Column

Progress: TypeAlias = Callable[[int], object]

# a frame is handed to the writer in slices of about this number of bytes
_SLICE_BYTES = 16 << 20
# the same for a query that somebody may end meanwhile, so that it ends sooner
_WATCHED_BYTES = 4 << 20
# how many buckets or partitions a message lists
SHOWN = 12


class Writing:
    """Writes frames to a table; in a ``with`` statement, whose end waits for acknowledgements."""

    def __init__(
        self, target: Target, *, create_partitions: bool, progress: Progress | None
    ) -> None:
        self._target = target
        self._query = watching.get()
        self._progress = progress
        self._began = time.monotonic()
        self._partitions = target.partitions()
        self._filled: Sequence[Column] = ()
        self._writer = self._open(create_partitions)
        self._given = 0
        self._told = 0

    def _open(self, create_partitions: bool) -> AppendWriter | UpsertWriter:
        target = self._target
        info = target.create()
        # Columns that another writer added meanwhile become null. A partial update writes only the
        # columns that it has, and columns that the server numbers are never written.
        if target.merges and target.mode != "partial_update":
            numbered = info.schema.auto_increment
            self._filled = [c for c in info.schema.columns if c.name not in numbered]
        if target.mode == "append":
            return AppendWriter(target.connection, info, create_partitions=create_partitions)
        columns = [column.name for column in target.columns]
        partial = target.mode == "partial_update"
        return UpsertWriter(
            target.connection,
            info,
            columns if partial else None,
            create_partitions=create_partitions,
        )

    def _put(self, rows: pa.Table) -> None:
        writer = self._writer
        if isinstance(writer, AppendWriter):
            writer.write_arrow(rows)
        elif self._target.change_type_column is not None:
            writer.write_changes(rows, self._target.change_type_column)
        elif self._target.mode == "delete":
            writer.delete_arrow(rows)
        else:
            writer.write_arrow(rows)

    def write(self, frame: pl.DataFrame) -> None:
        """Hand a frame to the writer, which sends it in the background."""
        self.write_arrow(to_table(frame))

    def write_arrow(self, rows: pa.Table) -> None:
        """Hand Arrow data to the writer, in slices that keep memory bounded."""
        self._hand(with_missing(rows, self._filled), self._put)

    def delete_arrow(self, keys: pa.Table) -> None:
        """Hand keys of rows to delete to the writer of a primary-key table, as rows are."""
        assert isinstance(self._writer, UpsertWriter)
        self._hand(keys, self._writer.delete_arrow)

    def _hand(self, rows: pa.Table, put: Callable[[pa.Table], object]) -> None:
        size = _SLICE_BYTES if self._query is None else _WATCHED_BYTES
        step = max(1, rows.num_rows * size // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            # a query that was ended goes on computing, but nobody waits for its rows
            if self._query is not None:
                self._query.check()
            part = rows.slice(start, step)
            put(part)
            self._given += part.num_rows
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            written = sum(bucket.rows for bucket in self._writer.offsets())
            if written > self._told:
                self._told = written
                self._progress(written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._writer.close()
        except FlussError as error:
            if exc_value is None:
                # rows of any part: which was the first of it is known to who encoded it alone
                self._given = 0
                self._explain(error)
                raise
        if exc_value is not None:
            self._explain(exc_value)
            return
        try:
            self._tell()
        except BaseException as error:
            # an error in the function that reports progress: all rows are written
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        """Say in an error what was written before it."""
        buckets = self.buckets()
        rows = sum(bucket.rows for bucket in buckets)
        text = f"table {self._target.path}: nothing was written before"
        if self._target.info is None:
            text += "; the table was created for this, and is empty"
        if rows:
            shown = ", ".join(map(str, buckets[:SHOWN]))
            more = f", ... {len(buckets) - SHOWN} more" if len(buckets) > SHOWN else ""
            text = f"{rows} rows were written to {self._target.path} before: {shown}{more}"
        if not isinstance(error, FlussError):
            error.add_note(text)
            return
        first = self._given
        if isinstance(error, SchemaMismatchError) and error.rows_before is not None:
            first = error.rows_before
        if isinstance(error, SchemaMismatchError) and first:
            text = f"rows count from row {first} of the frame here; {text}"
        error.message = f"{error.message}; {text}"
        error.args = (error.message, error.error_code)

    def buckets(self) -> tuple[BucketResult, ...]:
        """Return how many rows are acknowledged, by partition and bucket."""
        return tuple(self._writer.offsets())

    def partitions_created(self) -> tuple[str, ...]:
        """Return the partitions that were written to and were not there before."""
        there = {b.partition_name for b in self.buckets() if b.partition_name is not None}
        return tuple(sorted(there - self._partitions))

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began
