"""The adapter to Polars: every contact with its unstable scan interfaces is here.

Polars asks a :class:`ScanNode` at each collect which frame it stands for, given the columns,
conjuncts and limit of the query. The answer is the frame of a :class:`PlannedRead`, a source that
Polars reads batch by batch. All conjuncts are left with Polars too, so that pruning can only make
a query cheaper, not change its result.
What is relied on is named by ``tests/io/test_polars_behaviour.py``.
"""

from __future__ import annotations

import re
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
import pyarrow as pa
from polars.io.external_reader import (
    FileReader,
    FileReaderBuilder,
    ReaderCapabilities,
    scan_external_reader,
)
from polars.lazyframe.engine import _LocalEngine
from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps

from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.io.scans.live import live_queries
from fluss_df.io.scans.report import Runs, ScanRun, numbered
from fluss_df.pushdown.from_polars import PolarsConjunct
from fluss_df.pushdown.plan import ScanPlan

if TYPE_CHECKING:
    from polars._typing import SchemaDict
    from polars.io.external_reader import FilterExpr


@dataclass(frozen=True, slots=True)
class Query:
    """What a query of Polars needs of a node.

    Parameters
    ----------
    columns
        The columns, those of its filters among them; None for all.
    filters
        The conjuncts that Polars evaluates right behind the node.
    limit
        How many rows, before the filters, are enough; None for all.
    """

    columns: list[str] | None
    filters: list[pl.Expr]
    limit: int | None

    def conditions(self, schema: pa.Schema) -> list[PolarsConjunct]:
        """Return the filters as predicates over columns of these types."""
        return [PolarsConjunct(expr, schema) for expr in self.filters]


class ScanNode(LazyFrameResolver, ABC):
    """A node of a Polars plan that stands for a frame, which is made at each collect.

    Parameters
    ----------
    schema
        The schema of its rows.
    """

    def __init__(self, schema: pl.Schema) -> None:
        self.polars_schema = schema

    @abstractmethod
    def frame(self, query: Query) -> pl.LazyFrame:
        """Return the frame that the node stands for in a query."""

    def schema(self) -> SchemaDict:
        """Return the schema as it was when the node was made."""
        return self.polars_schema

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
        frame = self.frame(Query(columns, [item.expr for item in filters], limit))
        # a key that is never the same has Polars ask again, and offsets pinned, at every collect
        return frame, ResolvedLazyFrameProps(version_key=uuid.uuid4().hex)


class PlannedRead(ABC):
    """What a query reads of a table: planned once, and read at each execution.

    Parameters
    ----------
    plan
        What is to be read.
    schema
        The schema of the frame.
    runs
        Takes note of each execution.
    """

    # how the source is called in the plan of a query
    name: ClassVar[str] = "fluss"

    def __init__(self, plan: ScanPlan, schema: pl.Schema, runs: Runs) -> None:
        self.plan = plan
        self.schema = schema
        self.runs = runs
        self.number = numbered(self)

    def metrics(self) -> ScanMetrics:
        """Return the counters of one execution."""
        return ScanMetrics()

    @abstractmethod
    def frames(
        self, run: ScanRun, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        """Read the rows of a slice (offset, length), a few MB at a time; of all rows for None."""

    @abstractmethod
    def count(self, run: ScanRun) -> int:
        """Return the number of rows."""

    def lazy(self) -> pl.LazyFrame:
        """Return the frame of what is read.

        It is one source: of several, Polars holds back all but the first, for their order. Buckets
        are read in parallel behind it.
        """
        source = str(self.plan.table)
        return scan_external_reader(_Builder(self), sources=[source], schema=self.schema)


class _Builder(FileReaderBuilder):
    """Makes a reader of a planned read at each execution of the query."""

    def __init__(self, planned: PlannedRead) -> None:
        self._planned = planned

    def reader_capabilities(self) -> ReaderCapabilities:
        """Slices are given to the reader; filters are Polars' own."""
        return ReaderCapabilities(pre_slice=True)

    def explain_properties(self) -> dict[str, str]:
        """Return what ``LazyFrame.explain`` shows."""
        planned = self._planned
        return {"name": planned.name, "scan": planned.number, **planned.plan.properties()}

    def build_file_reader(self, source: str | bytes, multi_scan_context: dict[Any, Any]) -> _Reader:
        """Return the reader of one execution."""
        run = ScanRun(self._planned.plan, self._planned.metrics())
        self._planned.runs.began(run)
        # the last thing that Polars lets go of
        multi_scan_context[_Execution] = _Execution()
        return _Reader(self._planned, run)


class _Execution:
    """Lives as long as an execution of a planned read."""

    def __init__(self) -> None:
        live_queries.add(self)


class _Reader(FileReader):
    """One execution of a planned read."""

    def __init__(self, planned: PlannedRead, run: ScanRun) -> None:
        self._planned = planned
        self._run = run
        run.opened()
        live_queries.add(self)

    def schema(self) -> SchemaDict:
        """Return the schema of the frame."""
        return self._planned.schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        """Return the number of rows."""
        return self._planned.count(self._run)

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
        """Return the rows, a few MB at a time."""
        frames = self._planned.frames(self._run, columns, pre_slice)
        watcher = self._planned.runs.watcher
        if watcher is not None:
            frames = watcher.paced(frames)
        return _traced(frames, self._run) if self._run.is_traced else frames


def _traced(frames: Iterator[pl.DataFrame], run: ScanRun) -> Iterator[pl.DataFrame]:
    """Iterate over frames; what they raise is noted in the span of their run."""
    try:
        yield from frames
    except GeneratorExit:
        raise
    except BaseException as error:
        run.failed(error)
        raise


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


def is_collected_whole(node: str) -> bool:
    """Whether a thread is in a ``collect``, without a ``head``, of a query with such a node.

    Polars does not tell a scan what its rows are for; the thread that collects waits with the
    query in its hands.
    """
    collect = _LocalEngine.collect.__code__
    for thread, frame in sys._current_frames().items():
        if thread == threading.get_ident() or frame.f_code is not collect:
            continue
        query = frame.f_locals.get("lf")
        if isinstance(query, pl.LazyFrame):
            plan = query.explain(optimized=False)
            if node in plan and not re.search("^ *(SLICE|SINK)", plan, re.M):
                return True
    return False
