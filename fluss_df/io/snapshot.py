"""The current rows of a primary-key table as a lazy frame: looked up by key, or scanned."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from polars.io.external_reader import (
    FileReader,
    FileReaderBuilder,
    ReaderCapabilities,
    scan_external_reader,
)
from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps

from fluss_df.client.kv_scan import SnapshotScanner
from fluss_df.client.lookup import Lookuper, PrefixLookuper
from fluss_df.io.arrow import polars_schema, sliced, to_polars
from fluss_df.io.live import live_queries
from fluss_df.io.planning import check_schema
from fluss_df.io.source import ScanSource, choose_partitions
from fluss_df.pushdown.from_polars import PolarsConjunct
from fluss_df.pushdown.prune import all_buckets, prune, selected_keys
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from polars._typing import SchemaDict
    from polars.io.external_reader import FilterExpr

_SOURCE = "current rows"
# so long a query believes what another one learned of the table
_KNOWN_S = 0.5


class FlussSnapshot(LazyFrameResolver):
    """The current rows of a primary-key table, as a node of a Polars plan; it can be pickled.

    Parameters
    ----------
    source
        What is read.
    """

    def __init__(self, source: ScanSource) -> None:
        self.source = source
        self.polars_schema = polars_schema(source.schema)
        self._known: tuple[float, TableInfo] | None = None
        self._lookuper: tuple[int, int, Lookuper] | None = None

    def table_info(self) -> TableInfo:
        """Return what the table is, or was a moment ago: many lookups ask for it once.

        Raises
        ------
        SchemaMismatchError
            When its columns are no longer those of the frame.
        """
        now = time.monotonic()
        if self._known is None or now - self._known[0] > _KNOWN_S:
            info = self.source.connection.get_table(self.source.table).get_table_info()
            check_schema(info, self.source)
            self._known = (now, info)
        return self._known[1]

    def lookuper(self, info: TableInfo) -> Lookuper:
        """Return a lookuper of the table, the same as long as the table is."""
        made = self._lookuper
        if made is None or made[:2] != (info.table_id, info.schema_id):
            lookuper = Lookuper(self.source.connection, info)
            made = self._lookuper = (info.table_id, info.schema_id, lookuper)
        return made[2]

    def schema(self) -> SchemaDict:
        """Return the schema as it was when the frame was made."""
        return self.polars_schema

    def cse_eq(self, other: object) -> bool:
        """Have a query read once for two uses of equal scans."""
        return isinstance(other, FlussSnapshot) and self.source.same_rows(other.source)

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
        conditions = [PolarsConjunct(f.expr, self.source.schema) for f in filters]
        builder = _SnapshotBuilder(self, conditions, None if conditions else limit)
        frame = scan_external_reader(builder, sources=[_SOURCE], schema=self.polars_schema)
        return frame, ResolvedLazyFrameProps(version_key=uuid.uuid4().hex)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["source"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"FlussSnapshot({str(self.source.table)!r})"


class _SnapshotBuilder(FileReaderBuilder):
    """What is read for one query: keys to look up, or partitions to scan."""

    def __init__(
        self, snapshot: FlussSnapshot, conditions: Sequence[PolarsConjunct], limit: int | None
    ) -> None:
        self.source = source = snapshot.source
        self.polars_schema = snapshot.polars_schema
        self.limit = limit
        self.snapshot = snapshot
        self.info = snapshot.table_info()
        self.keys = self.prefixes = None
        if not source.partitions:
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

    def reader_capabilities(self) -> ReaderCapabilities:
        return ReaderCapabilities(pre_slice=True)

    def explain_properties(self) -> dict[str, str]:
        how = "scan of the current rows"
        if self.keys is not None:
            how = f"lookup of {self.keys.num_rows} keys"
        elif self.prefixes is not None:
            how = f"lookup of {self.prefixes.num_rows} key prefixes"
        found = {"name": "fluss", "table": str(self.source.table), "reads": how}
        if self.partitions is not None:
            found["partitions"] = ", ".join(self.partitions) or "none"
        return found

    def build_file_reader(
        self, source: str | bytes, multi_scan_context: dict[Any, Any]
    ) -> FileReader:
        return _SnapshotReader(self)


class _SnapshotReader(FileReader):
    def __init__(self, builder: _SnapshotBuilder) -> None:
        self._builder = builder
        live_queries.add(self)

    def schema(self) -> SchemaDict:
        return self._builder.polars_schema

    def n_rows_in_file(self, limit: int | None = None) -> int:
        return sum(frame.height for frame in self._frames(self._builder.source.columns[:1], None))

    def on_drop(self) -> None:
        pass

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
        names = list(columns) or list(self._builder.source.columns[:1])
        limit = None if pre_slice is None else sum(pre_slice)
        for frame in sliced(self._frames(names, limit), pre_slice):
            yield frame.select(columns) if columns else pl.DataFrame(height=frame.height)

    def _frames(self, names: Sequence[str], limit: int | None) -> Iterator[pl.DataFrame]:
        builder = self._builder
        connection, info = builder.source.connection, builder.info
        if builder.keys is not None:
            lookuper = builder.snapshot.lookuper(info)
            flag = "_found"
            while flag in info.get_column_names():
                flag += "_"
            rows = lookuper.lookup_arrow(builder.keys, found_column=flag)
            yield to_polars(rows.filter(rows.column(flag)).select(list(names)))
            return
        if builder.prefixes is not None:
            by_prefix = PrefixLookuper(connection, info, builder.prefixes.column_names)
            yield to_polars(by_prefix.lookup_arrow(builder.prefixes).select(list(names)))
            return
        limits = [n for n in (limit, builder.limit) if n is not None]
        if limits and not min(limits):
            return
        scanner = SnapshotScanner(
            connection,
            info,
            list(names),
            limit=min(limits) if limits else None,
            partitions=builder.partitions,
        )
        for batch in scanner.batches():
            yield to_polars(pa.Table.from_batches([batch]))


def _has_prefix(info: TableInfo) -> bool:
    """Whether the bucket key is a true prefix of what the primary key is within a partition."""
    key = [name for name in info.get_primary_keys() if name not in info.get_partition_keys()]
    bucket = info.get_bucket_keys()
    return len(bucket) < len(key) and bucket == key[: len(bucket)]
