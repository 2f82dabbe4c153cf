"""A scan that was planned for a query, as a source of Polars whose executions are noted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import polars as pl

from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.io.scans.live import live_queries
from fluss_df.io.scans.report import Runs, ScanRun, numbered
from fluss_df.polars_adapter.scans import Execution, Source
from fluss_df.pushdown.plan import ScanPlan


class PlannedRead(Source):
    """The read of a query: planned once, and executed any number of times."""

    name: ClassVar[str] = "fluss"

    def __init__(self, plan: ScanPlan, schema: pl.Schema, runs: Runs) -> None:
        super().__init__(schema, str(plan.table))
        self.plan = plan
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

    def properties(self) -> dict[str, str]:
        """Return the number of the scan, by which it is found in a plan, and what it reads."""
        return {"scan": self.number, **self.plan.properties()}

    def execute(self) -> Execution:
        """Begin an execution, and take note of it."""
        run = ScanRun(self.plan, self.metrics())
        self.runs.began(run)
        return _Execution(self, run)

    def held(self, holder: object) -> None:
        """Have the interpreter's exit wait for the object."""
        live_queries.add(holder)


class _Execution(Execution):
    def __init__(self, planned: PlannedRead, run: ScanRun) -> None:
        self._planned = planned
        self._run = run
        run.opened()

    def count(self) -> int:
        return self._planned.count(self._run)

    def dropped(self) -> None:
        self._run.dropped()

    def frames(
        self, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
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
