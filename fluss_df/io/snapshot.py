"""The current rows of a primary-key table as a lazy frame: looked up by key, or scanned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.client.lookup.lookuper import Lookuper, PrefixLookuper
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io.base.arrow import chosen, polars_schema, sliced, to_polars
from fluss_df.io.base.names import all_exact
from fluss_df.io.overridden import OverriddenRows
from fluss_df.io.polars_reader import FlussScan, LogRead
from fluss_df.io.scans.changes import changes_schema
from fluss_df.io.scans.known import KnownTable, Moment
from fluss_df.io.scans.planned_read import PlannedRead
from fluss_df.io.scans.planning import check_schema, frame_schema, plan_scan
from fluss_df.io.scans.report import Runs, ScanRun
from fluss_df.io.scans.union import halves_of, lake_half, wanted_files
from fluss_df.io.source import Halves, ScanSource, choose_partitions
from fluss_df.metadata import CHANGE_TYPE_COLUMN, PartitionInfo
from fluss_df.polars_adapter.scans import Query, ScanNode
from fluss_df.pushdown.from_polars import PolarsConjunct, conjuncts
from fluss_df.pushdown.plan import ScanPlan
from fluss_df.pushdown.prune import Pruned, all_buckets, count_buckets, prune, selected_keys
from fluss_df.record.change_tables import ChangeTable
from fluss_df.schema import TableInfo

#: What a plan says of a scan that looks up no keys.
CURRENT_ROWS = "scan of the current rows"


class FlussSnapshot(ScanNode):
    """The current rows of a primary-key table, as a node of a Polars plan; it can be pickled."""

    def __init__(self, source: ScanSource, known: KnownTable | None = None) -> None:
        super().__init__(polars_schema(source.schema))
        self.source = source
        self._known = known
        self._lookuper: tuple[int, int, Lookuper] | None = None
        self.runs = Runs()

    def table_info(self) -> TableInfo:
        """Return what the table is, or was a moment ago: many lookups ask for it once.

        Raises SchemaMismatchError when its columns are no longer those of the frame.
        """
        known = self._known
        if known is None or not known.fresh:
            now = Moment()
            info = self.source.connection.get_table(self.source.table).get_table_info()
            check_schema(info, self.source)
            known = self._known = KnownTable(info, now)
        return known.info

    def replaced_table(self, info: TableInfo) -> TableInfo | None:
        """Return the table that is there in the place of one that is gone; None where none is.

        Raises FlussError when there is no such table now, or one that the query was not planned
        for.
        """
        self._known = None
        now = self.table_info()
        if now.table_id == info.table_id:
            return None
        if (now.get_primary_keys(), now.get_bucket_keys(), now.get_partition_keys()) != (
            info.get_primary_keys(),
            info.get_bucket_keys(),
            info.get_partition_keys(),
        ):
            raise SchemaMismatchError(
                f"table {info.table_path} was made again with other keys while the query ran: run"
                " it again"
            )
        return now

    def lookuper(self, info: TableInfo) -> Lookuper:
        """Return a lookuper of the table, the same as long as the table is."""
        made = self._lookuper
        if made is None or made[:2] != (info.table_id, info.schema_id):
            lookuper = Lookuper(self.source.connection, info)
            made = self._lookuper = (info.table_id, info.schema_id, lookuper)
        return made[2]

    def cse_eq(self, other: object) -> bool:
        """Have a query read once for two uses of equal scans."""
        return isinstance(other, FlussSnapshot) and self.source.same_rows(other.source)

    def copy(self) -> FlussSnapshot:
        """Return the same node, for the query that this thread plans."""
        return FlussSnapshot(self.source, self._known)

    def frame(self, query: Query) -> pl.LazyFrame:
        """Return the rows that Fluss has; of a lake table the lake's, overridden by changes."""
        conditions = conjuncts(query.filters, self.source.schema)
        frame = self._with_lake(query, conditions)
        if frame is None:
            frame = _RowsRead(self, query.columns, conditions, query.limit).lazy()
        return frame

    def _with_lake(self, query: Query, asked: Sequence[PolarsConjunct]) -> pl.LazyFrame | None:
        """Return the rows of the lake overridden by later changes; None where Fluss alone is read.

        A key of a table without partitions is looked up: Fluss has all of its rows. Of partitions
        that expired there only the lake has rows. Keys in nanoseconds are equal in Fluss where
        their microseconds are: which rows of the lake they override cannot be told here.
        """
        source, columns = self.source, query.columns
        # with a limit, conditions must not leave out rows that the limit counts
        conditions = asked if query.limit is None else []
        if source.halves is Halves.LOG:
            return None
        info = self.table_info()
        looked_up = not info.is_partitioned() and selected_keys(info, conditions) is not None
        if source.halves is Halves.BOTH and looked_up:
            return None
        keys = info.get_primary_keys()
        if source.halves is Halves.BOTH and any(_is_finer(info, key) for key in keys):
            return None
        names = list(dict.fromkeys([*source.columns, *keys]))
        kind = ChangeTable.CHANGELOG
        whole = dataclasses.replace(
            source, columns=tuple(names), schema=frame_schema(info, names, ())
        )
        schema = changes_schema(info, kind, [CHANGE_TYPE_COLUMN, *names], False)
        later = FlussScan(dataclasses.replace(whole, schema=schema, changes=kind))
        later.runs = self.runs
        log, lake, known = halves_of(later.source, self._known)
        if lake is None and source.halves is Halves.BOTH:
            return None
        wanted = None if columns is None else {*columns, *keys, CHANGE_TYPE_COLUMN}
        _, plan = plan_scan(log, columns=wanted, conditions=conditions, known=known)
        if lake is None:
            return LogRead(later, info, plan).lazy_for(asked).select(all_exact(source.columns))
        files = wanted_files(info, lake, conditions)
        rows, part = lake_half(whole, info, lake, files, query.filters)
        changes = LogRead(later, info, dataclasses.replace(plan, lake=part))
        columns_of = all_exact(source.columns)
        if not plan.splits:
            nothing = changes.lazy_for(asked).select(columns_of)
            return pl.concat([rows.select(columns_of), nothing])
        # only conditions that were understood can be compared with statistics of the lake's files
        usable = [condition for condition in conditions if condition.predicate is not None]
        return OverriddenRows(rows, changes, keys, self.polars_schema, usable).lazy()

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["source"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"FlussSnapshot({str(self.source.table)!r})"


class _RowsRead(PlannedRead):
    """The plan of one query: keys to look up, or partitions to scan."""

    def __init__(
        self,
        snapshot: FlussSnapshot,
        columns: Sequence[str] | None,
        conditions: Sequence[PolarsConjunct],
        limit: int | None,
    ) -> None:
        self.source = source = snapshot.source
        self.limit = None if conditions else limit
        self.snapshot = snapshot
        self.info = snapshot.table_info()
        self.keys = self.prefixes = None
        if source.partitions is None:
            self.keys = selected_keys(self.info, conditions)
            if self.keys is None and _has_prefix(self.info):
                prefix = [*self.info.get_partition_keys(), *self.info.get_bucket_keys()]
                self.prefixes = selected_keys(self.info, conditions, prefix)
        self.partitions: list[str] | None = None
        if self.keys is self.prefixes is None and self.info.is_partitioned():
            there = source.connection.get_admin().list_partition_infos(source.table)
            chosen = choose_partitions(self.info, there, source.partitions)
            pruned = prune(self.info, all_buckets(self.info, chosen), conditions)
            names = (bucket.partition_name for bucket in pruned.buckets)
            self.partitions = list(dict.fromkeys(name for name in names if name is not None))
            left = {*self.partitions}
            scanned = all_buckets(self.info, [p for p in chosen if p.partition_name in left])
        else:
            there, pruned, scanned = None, None, all_buckets(self.info, ())
        # of each partition that is read, all buckets are
        self.buckets = [(bucket.partition_name, bucket.bucket_id) for bucket in scanned]
        plan = self._planned(columns, conditions, there, pruned)
        super().__init__(plan, snapshot.polars_schema, snapshot.runs)

    def _planned(
        self,
        columns: Sequence[str] | None,
        conditions: Sequence[PolarsConjunct],
        there: Sequence[PartitionInfo] | None,
        pruned: Pruned | None,
    ) -> ScanPlan:
        info = self.info
        reads, lookups, buckets = CURRENT_ROWS, None, None
        pushed: tuple[str, ...] = ()
        residual = tuple(condition.text for condition in conditions)
        asked = self.keys if self.keys is not None else self.prefixes
        if asked is not None:
            lookups = asked.num_rows
            reads = f"lookup of {lookups} {'keys' if asked is self.keys else 'key prefixes'}"
            on = {*asked.column_names}
            pushed = tuple(c.text for c in conditions if c.columns and c.columns <= on)
            residual = tuple(text for text in residual if text not in pushed)
        else:
            buckets = len(self.buckets)
        if pruned is not None:
            pushed, residual = pruned.pushed, pruned.residual
        wanted = {*(self.source.columns if columns is None else columns)}
        partitioned = info.is_partitioned() and there is not None
        return ScanPlan(
            table=self.source.table,
            table_id=info.table_id,
            schema_id=info.schema_id,
            columns=tuple(n for n in info.get_column_names() if n in wanted),
            metadata_columns=(),
            splits=(),
            limit=self.limit,
            pushed=pushed,
            residual=residual,
            of_columns=info.get_column_count(),
            of_partitions=len(there) if partitioned and there is not None else None,
            of_buckets=count_buckets(info, there) if there is not None else info.num_buckets,
            reads=reads,
            lookups=lookups,
            chosen=None if self.partitions is None else tuple(self.partitions),
            buckets=buckets,
        )

    def count(self, run: ScanRun) -> int:
        return sum(frame.height for frame in self._frames(run, self.source.columns[:1], None))

    def frames(
        self, run: ScanRun, columns: Sequence[str], pre_slice: tuple[int, int] | None
    ) -> Iterator[pl.DataFrame]:
        names = list(columns) or list(self.source.columns[:1])
        limit = None if pre_slice is None else sum(pre_slice)
        for frame in sliced(self._frames(run, names, limit), pre_slice):
            yield chosen(frame, columns)

    def _frames(
        self, run: ScanRun, names: Sequence[str], limit: int | None
    ) -> Iterator[pl.DataFrame]:
        if self.plan.lookups is not None:
            run.looks_up(names, self.plan.lookups)
            try:
                rows = self._looked_up(self.info, run)
            except FlussError:
                # the known table may be one that is gone
                now = self.snapshot.replaced_table(self.info)
                if now is None:
                    raise
                rows = self._looked_up(now, run)
            yield to_polars(rows.select(list(names)))
            return
        limits = [n for n in (limit, self.limit) if n is not None]
        if limits and not min(limits):
            return
        scanner = SnapshotScanner(
            self.source.connection,
            self.info,
            list(names),
            limit=min(limits) if limits else None,
            partitions=self.partitions,
        )
        run.metrics = scanner.metrics
        run.reads_buckets(names, self.buckets)
        for batch in scanner.batches():
            yield to_polars(pa.Table.from_batches([batch]))

    def _looked_up(self, info: TableInfo, run: ScanRun) -> pa.Table:
        if self.prefixes is not None:
            lookuper = PrefixLookuper(self.source.connection, info, self.prefixes.column_names)
            return lookuper.lookup_arrow(self.prefixes, metrics=run.metrics)
        rows = self.snapshot.lookuper(info).lookup_arrow(self.keys, metrics=run.metrics)
        return rows.filter(rows.column(info.get_primary_keys()[0]).is_valid())


def _is_finer(info: TableInfo, name: str) -> bool:
    """Whether a column has parts of microseconds, which keys and the lake have not."""
    kind = info.schema.arrow_schema.field(name).type
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def _has_prefix(info: TableInfo) -> bool:
    """Whether the bucket key is a true prefix of what the primary key is within a partition."""
    key = [name for name in info.get_primary_keys() if name not in info.get_partition_keys()]
    bucket = info.get_bucket_keys()
    return len(bucket) < len(key) and bucket == key[: len(bucket)]
