"""The scan inside Polars: every contact with its unstable scan interfaces is here.

Polars asks a :class:`LazyFrameResolver` at each collect which frame it stands for, given the
columns, conjuncts and limit of the query. The answer is a scan of an external reader, behind which
buckets are read in parallel. All conjuncts are left with Polars too, so that pruning can only make
a query cheaper, not change its result.
What is relied on is named by the tests of this module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.io.external_reader import (
    FileReader,
    FileReaderBuilder,
    ReaderCapabilities,
    scan_external_reader,
)
from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps

from fluss_df.client.fetch.chunk_read import positions_of
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import polars_schema, sliced, to_polars
from fluss_df.io.scans.changes import read_changes, table_columns
from fluss_df.io.scans.known import KnownTable
from fluss_df.io.scans.live import live_queries
from fluss_df.io.scans.planning import plan_scan
from fluss_df.io.scans.report import Runs, ScanRun, numbered, planned_in
from fluss_df.io.scans.union import halves_of, lake_half, wanted_files
from fluss_df.io.source import ScanSource
from fluss_df.metadata import BUCKET_COLUMN, LOG_OFFSET_COLUMN, PARTITION_COLUMN
from fluss_df.pushdown.from_polars import PolarsConjunct
from fluss_df.pushdown.plan import ScanPlan, Split, slice_splits
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from polars._typing import SchemaDict
    from polars.io.external_reader import FilterExpr

# rows of a frame that is made without reading anything
_MADE_ROWS = 1 << 20
# columns that are known from the plan alone
_PLANNED_COLUMNS = frozenset({PARTITION_COLUMN, BUCKET_COLUMN, LOG_OFFSET_COLUMN})


class FlussScan(LazyFrameResolver):
    """A scan of a Fluss table as a node of a Polars plan; it can be pickled.

    Parameters
    ----------
    source
        What is scanned.
    known
        The table as it was last looked up.
    """

    def __init__(self, source: ScanSource, known: KnownTable | None = None) -> None:
        self.source = source
        self.known = known
        self.polars_schema = polars_schema(source.schema)
        self.runs = Runs()

    def schema(self) -> SchemaDict:
        """Return the schema as it was when the frame was made."""
        return self.polars_schema

    def cse_eq(self, other: object) -> bool:
        """Have a query read once for two uses of equal scans."""
        return isinstance(other, FlussScan) and self.source.same_rows(other.source)

    def resolve_lazyframe(
        self,
        *,
        projection: list[str] | None,
        limit: int | None,
        filters: list[FilterExpr],
        filter_columns: list[str],
        filter_drop_columns_idx: int | None,
        existing_resolved_version_key: str | None,
    ) -> tuple[pl.LazyFrame, ResolvedLazyFrameProps]:
        """Plan the scan for a query."""
        columns = projection
        if projection is not None:
            columns = list(dict.fromkeys([*projection, *filter_columns]))
        conditions = [PolarsConjunct(f.expr, self.source.schema) for f in filters]
        source, lake, known = halves_of(self.source, self.known)
        self.known, plan = plan_scan(
            source, columns=columns, conditions=conditions, limit=limit, known=known
        )
        frame = None
        if lake is not None:
            usable = conditions if limit is None else []
            files = wanted_files(self.known.info, lake, usable)
            frame, part = lake_half(self.source, self.known.info, lake, files)
            plan = dataclasses.replace(plan, lake=part)
        # One source: of several, Polars holds back all but the first, for their order. Buckets are
        # read in parallel behind it.
        rest = planned_frame(self, self.known.info, plan)
        frame = rest if frame is None else pl.concat([frame, rest])
        # a key that is never the same has Polars ask again, and offsets pinned, at every collect
        return frame, ResolvedLazyFrameProps(version_key=uuid.uuid4().hex)

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
        # a copy for this process: it keeps the open connection
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


def planned_frame(scan: FlussScan, info: TableInfo, plan: ScanPlan) -> pl.LazyFrame:
    """Return the frame of a planned scan."""
    builder = FlussReaderBuilder(scan, info, plan)
    return scan_external_reader(builder, sources=[str(plan.table)], schema=scan.polars_schema)


def with_known_schema(scan: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Return a scan of the columns over which every query runs.

    Where Polars 2.1 pushes a projection into a resolver, it goes on with the whole schema: window
    functions on the streaming engine and expressions used twice on the other panic, and batches of
    them are an empty result without an error. Renaming the columns, there and back, is a node whose
    schema is right; what is pushed passes it.
    """
    there = {name: f"{name}\0" for name in names}
    return scan.rename(there).rename({new: old for old, new in there.items()})


def polars_text(error: pl.exceptions.PolarsError | pl.exceptions.PanicException) -> str:
    """Return what an error of Polars says, with the names of columns as users know them."""
    return str(error).replace("\0", "")


_copying = threading.local()
# where a pickled object begins, as bytes and as a list of numbers
_PICKLED = re.compile(rb"\xcc?\x80[\x04\x05]\xcc?\x95")


def copy_with_scans(frame: pl.LazyFrame) -> tuple[pl.LazyFrame, list[FlussScan]]:
    """Return a copy of a query, and the Fluss scans in it, which no other query has.

    Raises
    ------
    FlussError
        For a query that cannot be copied, as with a lambda that cannot be pickled.
    """
    _copying.scans = []
    try:
        copy = pl.LazyFrame.deserialize(io.BytesIO(frame.serialize()))
        return copy, _copying.scans
    except (pl.exceptions.PolarsError, pickle.PicklingError, AttributeError, TypeError) as error:
        raise FlussError(f"the query cannot be copied for its batches: {error}") from error
    finally:
        _copying.scans = None


def plan_digest(frame: pl.LazyFrame) -> str | None:
    """Return a digest of all that a query is, in-memory frames included, but for its start.

    It is the same in every process for the same query, in one release of Polars. None for a query
    with Python functions, of which the name says nothing, and for one that cannot be serialized.
    """
    # a plan notes the schemas of its scans once they were asked for
    frame.collect_schema()
    _copying.named = []
    try:
        plan = frame.serialize()
        known = len(_copying.named)
    except (pl.exceptions.PolarsError, pickle.PicklingError, AttributeError, TypeError):
        return None
    finally:
        _copying.named = None
    return None if len(_PICKLED.findall(plan)) != known else hashlib.sha256(plan).hexdigest()


class FlussReaderBuilder(FileReaderBuilder):
    """A planned scan, from which Polars makes a reader at each execution.

    Parameters
    ----------
    scan, info, plan
        The scan, the table, and what is read of it.
    """

    def __init__(self, scan: FlussScan, info: TableInfo, plan: ScanPlan) -> None:
        self.scan = scan
        self.source = scan.source
        self.schema = scan.polars_schema
        self.info = info
        self.plan = plan
        self.runs = scan.runs
        self.number = numbered(self)

    def reader_capabilities(self) -> ReaderCapabilities:
        """Slices are read as offsets; filters are Polars' own."""
        return ReaderCapabilities(pre_slice=True)

    def explain_properties(self) -> dict[str, str]:
        """Return what ``LazyFrame.explain`` shows."""
        return {"name": "fluss", "scan": self.number, **self.plan.properties()}

    def build_file_reader(
        self, source: str | bytes, multi_scan_context: dict[Any, Any]
    ) -> FlussReader:
        """Return the reader of one execution."""
        run = ScanRun(self.plan, ScanMetrics(parent=self.source.connection.metrics))
        self.runs.began(run)
        # the last thing that Polars lets go of
        multi_scan_context[_Execution] = _Execution()
        return FlussReader(self, run)


class _Execution:
    """Lives as long as an execution of a planned scan."""

    def __init__(self) -> None:
        live_queries.add(self)


class FlussReader(FileReader):
    """Reads the splits of a planned scan.

    Parameters
    ----------
    builder
        The planned scan.
    run
        What is counted.
    """

    def __init__(self, builder: FlussReaderBuilder, run: ScanRun) -> None:
        self._builder = builder
        self._run = run
        self._splits = builder.plan.splits
        run.opened()
        live_queries.add(self)

    def schema(self) -> SchemaDict:
        """Return the schema of the scan's frame."""
        return self._builder.schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        """Return the number of rows, which the offsets tell."""
        if self._builder.source.changes is not None:
            # offsets say how many at the most
            name = self._builder.source.schema.names[0]
            return sum(frame.height for frame in self._fetch_changes([name]))
        return sum(split.rows for split in self._splits)

    def on_drop(self) -> None:
        """Take note that Polars needs this reader no more."""
        self._run.dropped()

    def collect_batches(
        self,
        *,
        columns: Sequence[str],
        row_index: tuple[str, int] | None,
        pre_slice: tuple[int, int] | None,
        filters: Sequence[FilterExpr],
        num_pipelines: int,
    ) -> Iterator[pl.DataFrame]:
        """Return the rows in the order of their offsets, a few MB at a time."""
        splits = self._splits
        server_filter = self._builder.plan.server_filter
        if self._builder.source.changes is not None:
            limit = self._builder.plan.limit
            names = list(columns) or self._builder.source.schema.names[:1]
            if pre_slice is None and limit is not None:
                pre_slice = (0, limit)
            frames = sliced(self._fetch_changes(names), pre_slice)
            return frames if columns else (pl.DataFrame(height=f.height) for f in frames)
        if pre_slice is not None:
            splits = slice_splits(splits, *pre_slice)
            # it counts rows that the filter does not keep
            server_filter = None
        if _PLANNED_COLUMNS.issuperset(columns):
            return _planned_rows(splits, columns, self._builder.schema)
        return self._fetch(splits, columns, server_filter)

    def _fetch_changes(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        builder = self._builder
        kind, limit = builder.source.changes, builder.plan.limit
        assert kind is not None
        if not self._splits or limit == 0:
            return
        own = table_columns(builder.info, kind, names)
        self._run.reads(own, self._splits)
        nothing_yet = pl.DataFrame(schema={name: builder.schema[name] for name in names})
        for frame in read_changes(
            builder.source, builder.info, kind, self._splits, names, self._run.metrics
        ):
            yield nothing_yet if frame is None else frame

    def _fetch(
        self,
        splits: tuple[Split, ...],
        columns: Sequence[str],
        server_filter: ServerFilter | None,
    ) -> Iterator[pl.DataFrame]:
        builder, wanted = self._builder, frozenset(columns)
        plan = dataclasses.replace(
            builder.plan,
            columns=tuple(n for n in builder.info.get_column_names() if n in wanted),
            metadata_columns=tuple(n for n in builder.source.metadata_columns if n in wanted),
        )
        if splits:
            self._run.reads(plan.columns, splits)
        read = ParallelRead(
            builder.source.connection,
            builder.info,
            plan.columns,
            plan.metadata_columns,
            positions_of(builder.info.table_id, splits),
            self._run.metrics,
            lambda table: to_polars(table.select(columns)),
            server_filter=server_filter,
            views=True,
        )
        rows = 0
        # Not begun when the query is planned, at most 2 ms sooner: a scan of 4 million rows took
        # 4 % more processor time that way, and no less by the clock.
        with read:
            for frame in read:
                if frame is None:
                    # has Polars take this thread back when the query is over, or interrupted
                    frame = pl.DataFrame(schema={name: builder.schema[name] for name in columns})
                rows += frame.height
                yield frame
        expected = sum(split.rows for split in splits)
        if rows > expected or (rows < expected and server_filter is None):
            raise FlussError(
                f"table {plan.table}: {rows} rows came where the offsets of"
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


def planned_scans(frame: pl.LazyFrame) -> list[FlussReaderBuilder]:
    """Return the scans of logs in a frame as they would be read now, in the order of its plan."""
    found = planned_in(frame.explain())
    return [planned for planned in found if isinstance(planned, FlussReaderBuilder)]
