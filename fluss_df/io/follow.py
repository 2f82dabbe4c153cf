"""Following a log: a lazy scan without an end, for queries that take rows as they come.

All buckets are one source of Polars here: sources without an end, read in their order, would wait
for the first one for ever.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.client.scan.log_scanner import LogScanner
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import chosen, polars_schema, sliced, to_polars
from fluss_df.io.scans.changes import ChangeRows, table_columns, whole_updates
from fluss_df.io.scans.interrupted import InterruptibleWait, watch_interrupts
from fluss_df.io.scans.planned_read import PlannedRead
from fluss_df.io.scans.planning import (
    check_schema,
    chosen_buckets,
    find_offsets,
    partitions_of,
    usable_conditions,
)
from fluss_df.io.scans.report import Runs, ScanRun
from fluss_df.io.source import ScanSource
from fluss_df.metadata import BUCKET_COLUMN, EARLIEST_OFFSET, PARTITION_COLUMN
from fluss_df.polars_adapter.plans import is_collected_whole
from fluss_df.polars_adapter.scans import Query, ScanNode
from fluss_df.pushdown.from_polars import PolarsConjunct, conjuncts
from fluss_df.pushdown.plan import Bucket, ScanPlan
from fluss_df.pushdown.prune import count_buckets, prune
from fluss_df.schema import TableInfo

# how long one wait for rows takes, after which a query can end
_POLL_MS = 200
# how often new partitions are looked for
_PARTITIONS_S = 1.0


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """When a followed scan ends.

    It ends after ``max_rows`` rows of the table, counted before filters, or ``duration_s`` seconds
    after the query starts. Where both are None it does not end.
    """

    max_rows: int | None = None
    duration_s: float | None = None

    @property
    def endless(self) -> bool:
        """Whether the query has to end it."""
        return self.max_rows is None and self.duration_s is None


class FlussFollow(ScanNode):
    """A scan that follows a log table, as a node of a Polars plan; it can be pickled."""

    def __init__(self, source: ScanSource, options: FollowOptions) -> None:
        super().__init__(polars_schema(source.schema))
        self.source = source
        self.options = options
        self.runs = Runs()
        watch_interrupts()

    def frame(self, query: Query) -> pl.LazyFrame:
        """Return the rows as they come; raise where the query would never end."""
        name = FlussFollow.__name__
        if self.options.endless and query.limit is None and is_collected_whole(f"name: {name},"):
            raise FlussError(
                f"a scan that follows table {self.source.table} has no end, so it cannot be"
                " collected into one frame: take its rows as they come with collect_batches() or"
                " sink_batches(), or end it with head(n), max_rows=... or duration=..."
            )
        return _Following(self, query.columns, conjuncts(query.filters, self.source.schema)).lazy()

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "options": self.options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["source"], state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"FlussFollow({str(self.source.table)!r})"


class BoundedFollow(FlussFollow):
    """A scan that follows and ends by itself; told from one without end by its name in a plan."""


class _Following(PlannedRead):
    name = "fluss follow"

    def __init__(
        self, follow: FlussFollow, columns: Sequence[str] | None, conditions: list[PolarsConjunct]
    ) -> None:
        self._source = follow.source
        self._options = follow.options
        self._conditions = conditions
        super().__init__(self._planned(columns), follow.polars_schema, follow.runs)

    def _planned(self, columns: Sequence[str] | None) -> ScanPlan:
        """Return the plan for the table as it is now; new partitions may be added later."""
        source, options = self._source, self._options
        info = source.connection.get_table(source.table).get_table_info()
        check_schema(info, source)
        there = partitions_of(source, info)
        buckets = chosen_buckets(info, source, there)
        usable = usable_conditions(source, self._conditions)
        pruned = prune(info, buckets, usable, source.metadata_columns)
        wanted = {*(source.schema.names if columns is None else columns)}
        own = wanted & {*source.columns}
        if source.changes is not None:
            own = {*table_columns(info, source.changes, wanted)}
        ends = [] if options.max_rows is None else [f"after {options.max_rows} rows"]
        if options.duration_s is not None:
            ends.append(f"after {options.duration_s:g} s")
        names = (bucket.partition_name for bucket in pruned.buckets)
        # conditions on the offset or time of a row are evaluated by the query
        of_places = {*source.metadata_columns} - {PARTITION_COLUMN, BUCKET_COLUMN}
        late = [c.text for c in self._conditions if c.columns & of_places]
        left = [c.text for c in self._conditions if not any(c is used for used in usable)]
        return ScanPlan(
            table=source.table,
            table_id=info.table_id,
            schema_id=info.schema_id,
            columns=tuple(n for n in info.get_column_names() if n in own),
            metadata_columns=tuple(n for n in source.metadata_columns if n in wanted),
            splits=(),
            pushed=tuple(text for text in pruned.pushed if text not in late),
            residual=tuple(dict.fromkeys([*pruned.residual, *late, *left])),
            of_columns=info.get_column_count(),
            of_partitions=len(there) if info.is_partitioned() else None,
            of_buckets=count_buckets(info, there),
            reads=f"what comes, {' or '.join(ends) or 'without an end'}",
            chosen=(
                tuple(dict.fromkeys(name for name in names if name is not None))
                if info.is_partitioned()
                else None
            ),
            buckets=len(pruned.buckets),
        )

    def count(self, run: ScanRun) -> int:
        raise FlussError(
            f"a scan that follows table {self._source.table} has no last row to count from"
        )

    def frames(
        self, run: ScanRun, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        """Return rows as they come; empty frames while none do."""
        return sliced(self._rows(run, columns), pre_slice)

    def _rows(self, run: ScanRun, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        options, source = self._options, self._source
        end = None if options.duration_s is None else time.monotonic() + options.duration_s
        left = options.max_rows
        wait = InterruptibleWait()
        # at least one column, to know how many rows there are
        wanted = frozenset(columns) or frozenset(source.schema.names[:1])
        with _Subscriptions(source, self._conditions, wanted, run) as subscriptions:
            while left != 0:
                wait.check()
                wait_ms = float(_POLL_MS)
                if end is not None:
                    wait_ms = min(wait_ms, (end - time.monotonic()) * 1000)
                    if wait_ms <= 0:
                        return
                try:
                    frame = subscriptions.poll(int(wait_ms))
                except FlussError as error:
                    if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                        raise
                    raise _with_way_out(error) from error
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                wanted_rows = chosen(frame, columns)
                yield wanted_rows
                if wanted_rows.height:
                    # an empty frame, because Polars keeps a frame back until the next one comes
                    yield wanted_rows.clear()


def _with_way_out(error: FlussError) -> FlussError:
    """Say how to go on after a partition was dropped, which ends the scan of them all."""
    return FlussError(
        f"{error.message}. The rows that came before are whole. To go on with the other partitions,"
        " follow the table again: with start={(partition name, bucket): offset} behind the last row"
        " that came of each, which include_metadata=True tells, or with start='latest'",
        error.error_code,
    )


class _Subscriptions:
    """A scanner of the chosen buckets, and of those of partitions that come."""

    def __init__(
        self,
        source: ScanSource,
        conditions: Sequence[PolarsConjunct],
        wanted: frozenset[str],
        run: ScanRun,
    ) -> None:
        self._run = run
        self._source = source
        self._conditions = conditions
        self._info = source.connection.get_table(source.table).get_table_info()
        check_schema(self._info, source)
        self._rows = None
        if source.changes is not None:
            names = [name for name in source.schema.names if name in wanted]
            self._rows = ChangeRows(self._info, source.changes, names)
        self._scanner = LogScanner(
            source.connection,
            self._info,
            (
                tuple(n for n in source.columns if n in wanted)
                if self._rows is None
                else self._rows.columns
            ),
            records=False,
            metadata_columns=(
                tuple(n for n in source.metadata_columns if n in wanted)
                if self._rows is None
                else self._rows.metadata
            ),
        )
        run.metrics = self._scanner.metrics
        self._nothing = pl.DataFrame(
            schema={k: v for k, v in polars_schema(source.schema).items() if k in wanted}
        )
        self._known: set[Bucket] = set()
        # buckets of which rows came
        self._seen: set[tuple[str | None, int]] = set()
        self._next_look = 0.0

    def __enter__(self) -> _Subscriptions:
        self._subscribe(self._buckets(self._info), self._source)
        return self

    def __exit__(self, *_: object) -> None:
        self._scanner.close()

    def _buckets(self, info: TableInfo) -> list[Bucket]:
        source = self._source
        buckets = chosen_buckets(info, source, partitions_of(source, info))
        usable = usable_conditions(source, self._conditions)
        pruned = prune(info, buckets, usable, source.metadata_columns)
        self._next_look = time.monotonic() + _PARTITIONS_S
        return [bucket for bucket in pruned.buckets if bucket not in self._known]

    def _subscribe(self, buckets: Sequence[Bucket], source: ScanSource) -> None:
        if not buckets:
            return
        # the scanner itself finds where the log begins, because segments may expire before it reads
        starts = (
            dict.fromkeys(buckets, EARLIEST_OFFSET)
            if source.start == "earliest"
            else find_offsets(source, self._info, buckets)[0]
        )
        if self._info.is_partitioned():
            self._scanner.subscribe_partition_buckets(
                {
                    (b.partition_id, b.bucket_id): starts[b]
                    for b in buckets
                    if b.partition_id is not None
                }
            )
        else:
            self._scanner.subscribe_buckets({b.bucket_id: starts[b] for b in buckets})
        self._known.update(buckets)
        read = [(b.partition_name, b.bucket_id) for b in buckets]
        self._run.reads_buckets(self._run.plan.columns, read)

    def poll(self, timeout_ms: int) -> pl.DataFrame:
        """Return the rows that came; an empty frame when none did in time."""
        if self._info.is_partitioned() and time.monotonic() >= self._next_look:
            # partitions that are created later are read from their beginning
            earliest = dataclasses.replace(self._source, start="earliest")
            self._subscribe(self._buckets(self._info), earliest)
        if not self._known:
            time.sleep(timeout_ms / 1000)
            return self._nothing
        if self._rows is None:
            return to_polars(self._scanner.poll_arrow(timeout_ms))
        return pl.concat([self._nothing, *self._changes(self._rows, timeout_ms)])

    def _changes(self, rows: ChangeRows, timeout_ms: int) -> Iterator[pl.DataFrame]:
        for position, decoded in self._scanner.take(timeout_ms, records=False):
            place = (position.partition_name, position.bucket.bucket_id)
            changes = pa.Table.from_batches([decoded.batch])
            if place not in self._seen and changes.num_rows:
                self._seen.add(place)
                changes = whole_updates(changes, rows.kind)
            yield rows.frame(changes, place)
