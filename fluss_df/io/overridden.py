"""The current rows of a primary-key table that is in a lake: its rows there, and later changes.

The changes are few, and read first. The rows of the lake are then a query of its own, which the
streaming engine runs whatever engine runs the query around it: of 10 million rows and 100,000
changes, the other engine takes three times as long to leave out the rows that changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import polars as pl

from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.io.base.arrow import chosen, sliced
from fluss_df.io.base.names import all_exact, exact, key_signs, without_keys_of
from fluss_df.io.polars_reader import LogRead
from fluss_df.io.scans.flow import Flow
from fluss_df.io.scans.planned_read import PlannedRead
from fluss_df.io.scans.report import ScanRun
from fluss_df.metadata import CHANGE_TYPE_COLUMN
from fluss_df.pushdown.from_polars import PolarsConjunct

# changes are reduced to the last of each key when there are this number more than twice the keys
_FOLDED_ROWS: Final = 1 << 18


class OverriddenRows(PlannedRead):
    """The rows of a lake without those that changed since, and what became of these.

    Parameters
    ----------
    rows
        The rows of the lake, with the columns of the table that a query needs.
    changes
        The changes after them, with the same columns and their kinds.
    keys
        The columns of the primary key, which are among them.
    schema
        The columns of the scan.
    conditions
        The query's conditions: rows that do not meet them need not be read.
    """

    def __init__(
        self,
        rows: pl.LazyFrame,
        changes: LogRead,
        keys: Sequence[str],
        schema: pl.Schema,
        conditions: Sequence[PolarsConjunct],
    ) -> None:
        super().__init__(changes.plan, schema, changes.runs)
        self._rows = rows
        self._changes = changes
        self._keys = keys
        self._conditions = conditions

    def metrics(self) -> ScanMetrics:
        """Return counters that the connection's contain."""
        return self._changes.metrics()

    def count(self, run: ScanRun) -> int:
        """Return the number of rows: some of the changes are of new rows."""
        frames = self.frames(run, (), None)
        if self.runs.watcher is not None:
            frames = self.runs.watcher.paced(frames)
        return sum(frame.height for frame in frames)

    def frames(
        self, run: ScanRun, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        """Return the rows of the lake that did not change, and then the others."""
        # with a slice, conditions must not leave out rows that the slice counts
        conditions = self._conditions if pre_slice is None else ()
        wanted = {*columns, *self._keys}.union(*(condition.columns for condition in conditions))
        names = [name for name in self._rows.collect_schema() if name in wanted]
        last = yield from self._last(run, names, columns)
        rows = self._rows.select(all_exact(names))
        old = without_keys_of(rows, last.lazy().select(all_exact(self._keys)), self._keys)
        there = last.lazy().filter(exact(CHANGE_TYPE_COLUMN) != "delete").select(all_exact(names))
        fit = [condition.expression for condition in conditions]
        whole = pl.concat([old.filter(*fit), there.filter(*fit)]).select(
            all_exact(columns or self._keys[:1])
        )
        batches = Flow().batches(whole)
        yield from (chosen(frame, columns) for frame in sliced(batches, pre_slice))

    def _last(
        self, run: ScanRun, names: Sequence[str], columns: Sequence[str]
    ) -> Generator[pl.DataFrame, None, pl.DataFrame]:
        """Return the last change of each key; yields frames without rows while they are read."""
        nothing_yet = chosen(pl.DataFrame(schema=self.schema), columns)
        read = [CHANGE_TYPE_COLUMN, *names]
        found = [pl.DataFrame(schema={name: self._changes.schema[name] for name in read})]
        held, most = 0, _FOLDED_ROWS
        for frame in self._changes.frames(run, read, None):
            # an update is two changes, of which the second has the new row
            found.append(frame.filter(exact(CHANGE_TYPE_COLUMN) != "update_before"))
            held += found[-1].height
            if held > most:
                # reduced here, so that keys which change all the time do not fill memory
                found = [self._newest(found)]
                held = found[0].height
                most = 2 * held + _FOLDED_ROWS
            yield nothing_yet
        return self._newest(found)

    def _newest(self, changes: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the last change of each key: all of a key are of one bucket, in their order."""
        whole = pl.concat(changes)
        signs = key_signs(self._keys, whole.schema)
        key = [*all_exact(self._keys), *all_exact(signs)]
        last = whole.with_columns(**signs).unique(key, keep="last")
        return last.select(all_exact(whole.columns))
