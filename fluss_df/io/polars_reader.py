"""The scan of a log inside Polars: planned at each collect, and read in parallel.

Queries are copied and told apart here, too, by the scans in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from fluss_df.client.fetch.chunk_read import positions_of
from fluss_df.client.fetch.parallel import ParallelRead, default_ahead_bytes
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import polars_schema, sliced, to_polars
from fluss_df.io.scans.changes import read_changes, table_columns
from fluss_df.io.scans.known import KnownTable
from fluss_df.io.scans.offsets import from_log_start
from fluss_df.io.scans.planned_read import PlannedRead
from fluss_df.io.scans.planning import plan_scan
from fluss_df.io.scans.report import Runs, ScanRun, planned_in
from fluss_df.io.scans.union import halves_of, lake_half, tiered_meanwhile, wanted_files
from fluss_df.io.source import ScanSource
from fluss_df.metadata import BUCKET_COLUMN, LOG_OFFSET_COLUMN, PARTITION_COLUMN
from fluss_df.polars_adapter.plans import (
    NOT_SERIALIZED,
    copied,
    pickled_objects,
    same_names,
    serialized,
)
from fluss_df.polars_adapter.scans import Query, ScanNode
from fluss_df.pushdown.from_polars import PolarsConjunct, conjuncts
from fluss_df.pushdown.plan import ScanPlan, Split, slice_splits
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.schema import TableInfo

RowsT = TypeVar("RowsT", pl.DataFrame, pa.Table)

# how many rows a frame has at most that is made without reading anything
_MADE_ROWS = 1 << 20
# columns whose values follow from the plan alone
_PLANNED_COLUMNS = frozenset({PARTITION_COLUMN, BUCKET_COLUMN, LOG_OFFSET_COLUMN})


class FlussScan(ScanNode):
    """A scan of a Fluss table as a node of a Polars plan; it can be pickled."""

    def __init__(self, source: ScanSource, known: KnownTable | None = None) -> None:
        super().__init__(polars_schema(source.schema))
        self.source = source
        self.known = known
        self.runs = Runs()

    def cse_eq(self, other: object) -> bool:
        """Have a query read once for two uses of equal scans."""
        return isinstance(other, FlussScan) and self.source.same_rows(other.source)

    def copy(self) -> FlussScan:
        """Return the same node, for the query that this thread plans."""
        return FlussScan(self.source, self.known)

    def frame(self, query: Query) -> pl.LazyFrame:
        """Return the log of the table, and before it what the lake has of it."""
        conditions = conjuncts(query.filters, self.source.schema)
        source, lake, known = halves_of(self.source, self.known)
        self.known, plan = plan_scan(
            source, columns=query.columns, conditions=conditions, limit=query.limit, known=known
        )
        if lake is None:
            if tiered_meanwhile(self.source, self.known.info, plan):
                return self.frame(query)
            read = LogRead(self, self.known.info, plan, tuple(query.filters))
            return read.lazy_for(conditions)
        usable = conditions if query.limit is None else []
        files = wanted_files(self.known.info, lake, usable)
        rows, part = lake_half(self.source, self.known.info, lake, files, query.filters)
        plan = dataclasses.replace(plan, lake=part)
        return pl.concat([rows, LogRead(self, self.known.info, plan).lazy_for(conditions)])

    def __getstate__(self) -> dict[str, Any]:
        named = getattr(_copying, "named", None)
        if named is not None:
            named.append(self)
            source = self.source
            what = (source.partitions, source.buckets, source.stop, source.changes)
            return {"table": str(source.table), "rows": repr(what)}
        copied = getattr(_copying, "scans", None)
        if copied is None:
            return {"source": self.source}
        # a copy within this process: it keeps the open connection
        copied.append(FlussScan(self.source, self.known))
        return {"copy": len(copied) - 1}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        if "copy" in state:
            scan = _copying.scans[state["copy"]]
            self.__init__(scan.source, scan.known)  # type: ignore[misc]
            _copying.scans[state["copy"]] = self
        else:
            self.__init__(state["source"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"FlussScan({str(self.source.table)!r})"


_copying = threading.local()


def copy_with_scans(frame: pl.LazyFrame) -> tuple[pl.LazyFrame, list[FlussScan]]:
    """Return a copy of a query, and the Fluss scans in it, which no other query has.

    Raises FlussError for a query that cannot be copied, as with a lambda that cannot be pickled.
    """
    _copying.scans = []
    try:
        return copied(frame), _copying.scans
    except NOT_SERIALIZED as error:
        raise FlussError(f"the query cannot be copied for its batches: {error}") from error
    finally:
        _copying.scans = None


def plan_digest(frame: pl.LazyFrame) -> str | None:
    """Return a digest of all that a query is, in-memory frames included, but for its start.

    It is the same in every process for the same query, in one release of Polars. None for a query
    with Python functions, of which the name says nothing, and for one that cannot be serialized.
    """
    # a plan keeps the schemas of its scans once they were asked for, which changes its digest
    frame.collect_schema()
    _copying.named = []
    try:
        plan = serialized(frame)
        known = len(_copying.named)
    except NOT_SERIALIZED:
        return None
    finally:
        _copying.named = None
    return None if pickled_objects(plan) != known else hashlib.sha256(same_names(plan)).hexdigest()


class LogRead(PlannedRead):
    """A planned scan of a log.

    ``filters`` are the conditions by which Polars filters its rows, directly after it. They are
    empty for a part of a scan, too.
    """

    def __init__(
        self, scan: FlussScan, info: TableInfo, plan: ScanPlan, filters: tuple[pl.Expr, ...] = ()
    ) -> None:
        super().__init__(plan, scan.polars_schema, scan.runs)
        self.source = scan.source
        self.info = info
        self.filters = filters

    def lazy_for(self, conditions: Iterable[PolarsConjunct]) -> pl.LazyFrame:
        """Return the frame of the rows in a query; where all are in the lake, nothing is read."""
        if self.plan.splits or not all(condition.is_plain for condition in conditions):
            return self.lazy()
        return self.lazy_without_rows()

    def metrics(self) -> ScanMetrics:
        """Return counters that the connection's contain."""
        return ScanMetrics(parent=self.source.connection.metrics)

    def count(self, run: ScanRun) -> int:
        """Return the number of rows, which the offsets tell."""
        if self.source.changes is not None:
            # the offsets say only the greatest number, so the rows are read
            name = self.source.schema.names[0]
            return sum(frame.height for frame in self._fetch_changes(run, [name]))
        return sum(split.rows for split in self.plan.splits)

    def frames(
        self, run: ScanRun, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        """Return the rows in the order of their offsets."""
        splits, server_filter = self.plan.splits, self.plan.server_filter
        if self.source.changes is not None:
            limit = self.plan.limit
            names = list(columns) or self.source.schema.names[:1]
            if pre_slice is None and limit is not None:
                pre_slice = (0, limit)
            frames = sliced(self._fetch_changes(run, names), pre_slice)
            return frames if columns else (pl.DataFrame(height=f.height) for f in frames)
        if pre_slice is not None:
            splits = slice_splits(splits, *pre_slice)
            # a slice counts rows that the server's filter would leave out
            server_filter = None
        # the table may have columns of its own with these names, which have to be read
        if (_PLANNED_COLUMNS & {*self.source.metadata_columns}).issuperset(columns):
            return _planned_rows(splits, columns, self.schema)
        return self._fetch(run, splits, columns, server_filter)

    def _fetch_changes(self, run: ScanRun, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        kind, splits = self.source.changes, self.plan.splits
        assert kind is not None
        if not splits or self.plan.limit == 0:
            return
        run.reads(table_columns(self.info, kind, names), splits)
        nothing_yet = pl.DataFrame(schema={name: self.schema[name] for name in names})
        for frame in read_changes(self.source, self.info, kind, splits, names, run.metrics):
            yield nothing_yet if frame is None else frame

    def tables(self, columns: Sequence[str]) -> Generator[pa.Table | None]:
        """Read all rows as they are decoded, without Polars: nothing is computed of them.

        None comes where nothing did for 0.2 s, so that the caller can stop.
        """
        run = ScanRun(self.plan, self.metrics())
        self.runs.began(run)
        run.opened()
        try:
            yield from self._read(
                run, self.plan.splits, columns, self.plan.server_filter, lambda table: table
            )
        except GeneratorExit:
            raise
        except BaseException as error:
            run.failed(error)
            raise
        finally:
            run.dropped()

    def _fetch(
        self,
        run: ScanRun,
        splits: tuple[Split, ...],
        columns: Sequence[str],
        server_filter: ServerFilter | None,
    ) -> Iterator[pl.DataFrame]:
        nothing_yet = pl.DataFrame(schema={name: self.schema[name] for name in columns})
        frames = self._read(run, splits, columns, server_filter, to_polars, views=True)
        with contextlib.closing(frames):
            for frame in frames:
                # an empty frame gives Polars the chance to end the query here
                yield nothing_yet if frame is None else frame

    def _read(
        self,
        run: ScanRun,
        splits: tuple[Split, ...],
        columns: Sequence[str],
        server_filter: ServerFilter | None,
        convert: Callable[[pa.Table], RowsT],
        *,
        views: bool = False,
    ) -> Generator[RowsT | None]:
        wanted = frozenset(columns)
        own = tuple(name for name in self.info.get_column_names() if name in wanted)
        if splits:
            run.reads(own, splits)
        # with a limit or a slice, exactly the rows of the plan have to be read
        counted = self.plan.limit is not None or splits != self.plan.splits
        later = (lambda _: False) if counted else from_log_start(self.source, self.info)
        positions = positions_of(self.info.table_id, splits, later)
        watcher = self.runs.watcher
        ahead = None if watcher is None else watcher.ahead_bytes
        read = ParallelRead(
            self.source.connection,
            self.info,
            own,
            tuple(name for name in self.source.metadata_columns if name in wanted),
            positions,
            run.metrics,
            lambda table: convert(table.select(columns)),
            ahead_bytes=default_ahead_bytes() if ahead is None else ahead,
            server_filter=server_filter,
            views=views,
        )
        rows = 0
        # Not begun when the query is planned, at most 2 ms sooner: a scan of 4 million rows took
        # 4 % more processor time that way, and no less by the clock.
        with read:
            for found in read:
                if found is not None:
                    rows += len(found)
                yield found
        expected = sum(split.rows for split in splits) - sum(p.expired for p in positions)
        if rows > expected or (rows < expected and server_filter is None):
            raise FlussError(
                f"table {self.plan.table}: {rows} rows came where the offsets of"
                f" {', '.join(map(str, splits))} promise {expected}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )


def _planned_rows(
    splits: Sequence[Split], columns: Sequence[str], schema: pl.Schema
) -> Iterator[pl.DataFrame]:
    """Yield rows of which only columns are wanted that need no reading."""
    for split in splits:
        for start in range(split.start, split.stop, _MADE_ROWS):
            stop = min(start + _MADE_ROWS, split.stop)
            frame = pl.DataFrame(height=stop - start)
            made: dict[str, pl.Expr] = {
                PARTITION_COLUMN: pl.lit(split.partition_name),
                BUCKET_COLUMN: pl.lit(split.bucket_id),
                LOG_OFFSET_COLUMN: pl.int_range(start, stop),
            }
            yield frame.with_columns(made[name].cast(schema[name]).alias(name) for name in columns)


def planned_scans(frame: pl.LazyFrame) -> list[LogRead]:
    """Return the scans of logs in a frame as they would be read now, in the order of its plan."""
    return [planned for planned in planned_in(frame) if isinstance(planned, LogRead)]
