"""Reports of scans: the counters of each, during the scan and afterwards."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

import polars as pl

from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.hooks import ForkStep, after_fork
from fluss_df.observe import spans
from fluss_df.polars_adapter.plans import ShownSources, shown_sources
from fluss_df.pushdown.plan import ScanPlan, Split
from fluss_df.texts.html_tables import MOST_ROWS, pairs, table

# for how many shapes of queries it is kept what they fetched
_REMEMBERED_SHAPES: Final = 64
# what spans say besides rows
_OF_SPANS: Final = ("requests", "retries", "record_bytes", "bytes_received", "batches")
# how long a report waits for the readers of a query that ended early
_SETTLE_S: Final = 1.0
# what a table of reports has
_FIGURES: Final = (
    "columns", "partitions", "buckets", "lookups", "requests", "retries", "bytes", "rows",
    "files of the lake", "seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The counters of one scan of a query.

    Parameters
    ----------
    plan
        What it was to read.
    columns
        The columns that were fetched.
    partitions, buckets
        Which partitions were read of, and how many buckets.
    requests, retries
        Requests for rows that were sent, and those that were sent again. Lookups of several
        queries may share a request: it counts for each.
    bytes
        Bytes of record batches that were received, compressed as they travel; of lookups, bytes of
        the rows as servers keep them, with all of their columns.
    bytes_received
        Bytes of whole responses; those of lookups are not counted.
    rows, batches
        Rows and record batches that were decoded, before any filter.
    remote_segments, remote_bytes
        Log segments that were read from remote storage, and their bytes.
    wait_seconds
        How long readers waited for servers, in sum over the readers.
    seconds
        From the first reader to the end of the last.
    lookups
        Keys, or prefixes of keys, that were looked up.
    """

    plan: ScanPlan
    columns: tuple[str, ...]
    partitions: tuple[str, ...]
    buckets: int
    requests: int
    retries: int
    bytes: int
    bytes_received: int
    rows: int
    batches: int
    remote_segments: int
    remote_bytes: int
    wait_seconds: float
    seconds: float
    lookups: int = 0

    def __str__(self) -> str:
        plan = self.plan
        parts = [f"{len(self.columns)} of {plan.of_columns} columns"]
        if self.lookups:
            parts.append(f"{self.lookups:,} lookups")
        else:
            if plan.of_partitions is not None:
                parts.append(f"{len(self.partitions)} of {plan.of_partitions} partitions")
            parts.append(f"{self.buckets} of {plan.of_buckets} buckets")
        parts += [f"{self.requests} requests", f"{self.bytes:,} bytes", f"{self.rows:,} rows"]
        if plan.lake is not None:
            parts.append(f"{plan.lake.files} files of the lake ({plan.lake.bytes:,} bytes)")
        return f"fetched of {plan.table}: {', '.join(parts)} in {self.seconds:.3f} s"

    def _repr_html_(self) -> str:
        return pairs(f"Fetched of {self.plan.table}", self._figures())

    def _figures(self) -> dict[str, object]:
        """Return what a table of reports shows; None for what a scan has not."""
        plan, lake = self.plan, self.plan.lake
        columns = f"{len(self.columns)} of {plan.of_columns}"
        partitions = None
        if plan.of_partitions is not None and not self.lookups:
            partitions = f"{len(self.partitions):,} of {plan.of_partitions:,}"
        return {
            "columns": columns,
            "partitions": partitions,
            "buckets": None if self.lookups else f"{self.buckets:,} of {plan.of_buckets:,}",
            "lookups": self.lookups or None,
            "requests": self.requests,
            "retries": self.retries or None,
            "bytes": self.bytes,
            "rows": self.rows,
            "files of the lake": None if lake is None else lake.files,
            "seconds": self.seconds,
        }


class ScanReports(list[ScanReport]):
    """Reports of scans: a list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        # what none of the scans that are shown has is left out
        figures = [report._figures() for report in self[:MOST_ROWS]]
        has = [name for name in _FIGURES if any(f[name] is not None for f in figures)]
        rows = (
            (report.plan.table, *(found[name] for name in has))
            for report, found in zip(self, figures, strict=False)
        )
        return table("Fetched", ("table", *has), rows, len(self)) if self else "<p>no scans</p>"


class ScanRun:
    """The counters of a scan that runs.

    Parameters
    ----------
    plan
        What is read.
    metrics
        What the client counts.

    Attributes
    ----------
    metrics
        The same; a scanner that has counters of its own puts them here.
    """

    def __init__(self, plan: ScanPlan, metrics: ScanMetrics) -> None:
        self.plan = plan
        self.metrics = metrics
        self._lookups = 0
        self._lock = threading.Condition()
        self._columns: set[str] = set()
        self._read: dict[tuple[str | None, int], None] = {}
        self._open = 0
        # of OpenTelemetry; from its beginning to the end of the last reader
        self._span: Any = None
        self._began = self._ended = time.monotonic()

    def opened(self) -> None:
        """Take note of a reader."""
        with self._lock:
            self._open += 1

    def dropped(self) -> None:
        """Take note that a reader is done."""
        span = None
        with self._lock:
            self._open -= 1
            self._ended = time.monotonic()
            self._lock.notify_all()
            if not self._open:
                span, self._span = self._span, None
        if span is not None:
            span.set_attributes(self._as_attributes())
            span.end()

    def traced(self, parent: Any) -> None:
        """Begin a span, where somebody wants one, in the trace of a context."""
        self._span = spans.begin("scan", self.plan.table, parent)

    def failed(self, error: BaseException) -> None:
        """Take note of what a reader raised."""
        with self._lock:
            span = self._span
        if span is not None:
            spans.failed(span, error)

    @property
    def is_traced(self) -> bool:
        """Whether it has a span."""
        return self._span is not None

    def _as_attributes(self) -> dict[str, Any]:
        counts = self.metrics.as_dict()
        return {
            "db.response.returned_rows": int(counts["rows"]),
            "fluss.columns": len(self._columns),
            "fluss.buckets": len(self._read),
            **{f"fluss.{name}": int(counts[name]) for name in _OF_SPANS},
        }

    def reads(self, columns: tuple[str, ...], splits: tuple[Split, ...]) -> None:
        """Take note of what a reader fetches."""
        self.reads_buckets(columns, ((s.partition_name, s.bucket_id) for s in splits))

    def reads_buckets(
        self, columns: Iterable[str], buckets: Iterable[tuple[str | None, int]]
    ) -> None:
        """Take note of what a reader fetches of which (partition, bucket)."""
        with self._lock:
            self._columns.update(columns)
            self._read.update(dict.fromkeys(buckets))

    def looks_up(self, columns: Iterable[str], keys: int) -> None:
        """Take note of keys that are looked up."""
        with self._lock:
            self._columns.update(columns)
            self._lookups += keys

    def report(self) -> ScanReport:
        """Return what was fetched so far; of a query that ended, all of it."""
        with self._lock:
            # readers of a query that needed no more rows end a moment after it
            self._lock.wait_for(lambda: not self._open, _SETTLE_S)
            columns, read, lookups = self._columns, list(self._read), self._lookups
            ended = time.monotonic() if self._open else self._ended
        counts = self.metrics.as_dict()
        partitions = dict.fromkeys(name for name, _ in read if name is not None)
        return ScanReport(
            plan=self.plan,
            columns=tuple(name for name in self.plan.columns if name in columns),
            partitions=tuple(sorted(partitions)),
            buckets=len(read),
            requests=int(counts["requests"]),
            retries=int(counts["retries"]),
            bytes=int(counts["record_bytes"]),
            bytes_received=int(counts["bytes_received"]),
            rows=int(counts["rows"]),
            batches=int(counts["batches"]),
            remote_segments=int(counts["remote_segments"]),
            remote_bytes=int(counts["remote_bytes"]),
            wait_seconds=float(counts["wait_seconds"]),
            seconds=ended - self._began,
            lookups=lookups,
        )


class Watcher(Protocol):
    """Somebody who runs a query, and knows of its scans."""

    @property
    def ahead_bytes(self) -> int | None:
        """How much a scan may hold that Polars did not take; None for the usual."""

    def began(self, run: ScanRun) -> None:
        """Take note of a scan that begins."""

    def check(self) -> None:
        """Raise the error by which the query was ended."""

    def paced(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Iterate over the frames of a scan, as fast as the query may."""


#: Whose the scans, and the writers, are that this thread makes.
watching: ContextVar[Watcher | None] = ContextVar("watching", default=None)


class Runs:
    """The last runs of a scan's queries; of those of the newest shapes only.

    Attributes
    ----------
    watcher
        Who runs the query of which the scan is a part; None where anybody may.
    """

    def __init__(self) -> None:
        self.watcher = watching.get()
        self._lock = threading.Lock()
        #: Where the scan belongs in a trace: queries run in threads that know nothing of it.
        self.context = spans.context()
        self._runs: dict[Hashable, ScanRun] = {}

    def began(self, run: ScanRun) -> None:
        """Remember a run."""
        if spans.tracer is not None:
            run.traced(self.context)
        if self.watcher is not None:
            self.watcher.began(run)
        began(run)
        shape = _shape(run.plan)
        with self._lock:
            self._runs.pop(shape, None)
            self._runs[shape] = run
            while len(self._runs) > _REMEMBERED_SHAPES:
                del self._runs[next(iter(self._runs))]

    def last(self, plan: ScanPlan) -> ScanRun | None:
        """Return the last run of a query with such a plan."""
        with self._lock:
            return self._runs.get(_shape(plan))


def _shape(plan: ScanPlan) -> Hashable:
    """Return what two queries have in common that ask the same at different times."""
    what = (plan.columns, plan.metadata_columns, plan.reads)
    return (*what, plan.pushed, plan.residual, plan.limit)


class Planned(Protocol):
    """A scan within a query, as it would be read now."""

    plan: ScanPlan

    @property
    def runs(self) -> Runs:
        """What ran of its scan."""


_numbers = itertools.count(1)
_plans: weakref.WeakValueDictionary[int, Planned] = weakref.WeakValueDictionary()


def numbered(planned: Planned) -> str:
    """Return by what a planned scan is found in the text of a query's plan."""
    number = next(_numbers)
    _plans[number] = planned
    return f"#{number}"


def planned_in(frame: pl.LazyFrame) -> list[Planned]:
    """Return the scans of a query as they would be read now, in the order of its plan."""
    return _planned(frame)[0]


def planned_filtered(frame: pl.LazyFrame) -> list[Planned] | None:
    """Return the scans of a query as :func:`planned_in`; None where it filters their rows later.

    Filters right behind a scan are the scan's.
    """
    found, shown = _planned(frame)
    return found if shown.filtered_within else None


def planned_alone(frame: pl.LazyFrame) -> list[Planned] | None:
    """Return the scans of a query as :func:`planned_in`; None where it reads something else, too.

    Frames in memory count for nothing.
    """
    found, shown = _planned(frame)
    return found if shown.are_ours else None


def _planned(frame: pl.LazyFrame) -> tuple[list[Planned], ShownSources]:
    shown = shown_sources(frame, "scan")
    found = map(_plans.get, shown.numbers)
    return [planned for planned in found if planned is not None], shown


class ScanLog:
    """The scans of a block of code, in the order in which they began; see :func:`track_scans`."""

    def __init__(self) -> None:
        self._runs: list[ScanRun] = []

    def _add(self, run: ScanRun) -> None:
        self._runs.append(run)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[ScanReport]:
        return iter([run.report() for run in list(self._runs)])

    def __getitem__(self, index: int) -> ScanReport:
        return self._runs[index].report()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no scans"

    def _repr_html_(self) -> str:
        return ScanReports(self)._repr_html_()


_lock = threading.Lock()
_last: ScanRun | None = None
_logs: list[ScanLog] = []


def _after_fork_in_child() -> None:
    # a thread of the parent may have held it
    global _lock
    _lock = threading.Lock()


after_fork(ForkStep.REPORTS, _after_fork_in_child)


def began(run: ScanRun) -> None:
    """Make a run the last one."""
    global _last
    with _lock:
        _last = run
        for log in _logs:
            log._add(run)


def last_scan() -> ScanReport | None:
    """Return what the last scan of this process fetched; None before the first.

    Of a query over several tables that is the scan that began last: :func:`track_scans` gives all.

    Examples
    --------
    >>> import fluss_df
    >>> df = pl.scan_fluss("flights").select("carrier").collect()  # doctest: +SKIP
    >>> fluss_df.last_scan().bytes  # doctest: +SKIP
    24316
    """
    with _lock:
        run = _last
    return None if run is None else run.report()


@contextlib.contextmanager
def track_scans() -> Iterator[ScanLog]:
    """Collect the reports of all scans that begin in the block, of any thread.

    Examples
    --------
    >>> with fluss_df.track_scans() as scans:  # doctest: +SKIP
    ...     flights.join(planes, on="tailnum").collect()
    >>> [scan.bytes for scan in scans]  # doctest: +SKIP
    [24316, 811]
    """
    log = ScanLog()
    with _lock:
        _logs.append(log)
    try:
        yield log
    finally:
        with _lock:
            _logs.remove(log)
