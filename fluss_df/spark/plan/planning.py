"""From options, schema and filters to tasks: what each task of Spark reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.table_decoder import METADATA_FIELDS
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.scans.offsets import from_log_start, offsets_of
from fluss_df.io.scans.planning import chosen_buckets, partitions_of, plan_scan
from fluss_df.io.scans.union import tiered_meanwhile
from fluss_df.io.source import (
    BucketBounds,
    OffsetChoice,
    ScanSource,
    parse_buckets,
    parse_offset,
    parse_partitions,
)
from fluss_df.lake.options import is_lake_table
from fluss_df.metadata import (
    BUCKET_COLUMN,
    CHANGE_TYPE_COLUMN,
    CHANGELOG_COLUMNS,
    METADATA_COLUMNS,
    PARTITION_COLUMN,
    OffsetSpec,
    PartitionInfo,
    TablePath,
    require_columns,
)
from fluss_df.pushdown.evaluate import at_microseconds
from fluss_df.pushdown.plan import Bucket, Split, bind_columns
from fluss_df.pushdown.predicate import Predicate, and_
from fluss_df.pushdown.prune import Conjunct, PredicateConjunct, prune, selected_keys
from fluss_df.schema import TableInfo
from fluss_df.spark.plan.lake_tasks import LakeFiles, lake_and_log, lake_and_rows
from fluss_df.spark.plan.options import ReadOptions, invalid
from fluss_df.spark.plan.types import spark_schema

# more splits than this are put into fewer tasks, because each task costs Spark some milliseconds
_MANY_TASKS = 64


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The part of a table that one task reads; plain values that pickle.

    Parameters
    ----------
    table, table_id
        The table as it was when the query was planned.
    mode
        ``"log"``, ``"snapshot"``, ``"changelog"`` or ``"upsert"``.
    columns, metadata_columns
        What is fetched.
    predicate
        Only rows for which it is true are handed on; None for all.
    splits
        Offsets to read, in their order; of a snapshot the buckets, each as it is at ``stop``.
    keys
        The primary keys to look up, instead of reading splits; None for splits.
    lake
        Files of the data lake to read, instead of splits.
    from_log_start
        Whether splits are to have all that the log has: rows that expired before the task began
        are left out, where they are an error otherwise.
    without_dropped
        Whether rows of partitions that were dropped before the task read them are left out, where
        they are an error otherwise.
    """

    table: TablePath
    table_id: int
    mode: str
    columns: tuple[str, ...]
    metadata_columns: tuple[str, ...]
    predicate: Predicate | None
    splits: tuple[Split, ...]
    keys: pa.Table | None = None
    lake: LakeFiles | None = None
    from_log_start: bool = False
    without_dropped: bool = False


class TableScan:
    """A table as it is read by one dataframe; lives in the process that plans.

    ``streaming`` says whether it is read as a stream. ``schema`` has the wanted columns, None for
    those that the options name.

    Raises FlussError when table, columns, partitions or buckets do not exist, or the table cannot
    be read in this mode. Raises SchemaMismatchError when a type of the schema is not that of the
    table.
    """

    def __init__(
        self, options: ReadOptions, *, streaming: bool = False, schema: StructType | None = None
    ) -> None:
        self.options = options
        self.connection: FlussConnection = options.connection.open()
        self.path = TablePath.parse(options.table, self.connection.default_database)
        self.info: TableInfo = self.connection.get_table(self.path).get_table_info()
        self.mode = _mode(self.info, options, streaming)
        self._offered = self._offered_metadata()
        names = self._names(schema)
        self.all_fields = pa.schema(
            [*self.info.schema.arrow_schema, *(METADATA_FIELDS[name] for name in self._offered)]
        )
        self.arrow_schema = pa.schema([self.all_fields.field(name) for name in names])
        if schema is not None:
            _check_types(self.path, spark_schema(self.arrow_schema), schema)
        self.filter: Predicate | None = None
        if options.filter is not None:
            # sqlglot takes a fifth of a second to import
            from fluss_df.spark.plan.sql_filter import parse_filter

            self.filter = parse_filter(
                options.filter, self.all_fields, options.timezone, f"table {self.path}"
            )
            if options.truncate_nanoseconds:
                # the filter is applied to times as Spark sees them
                self.filter = at_microseconds(self.filter, self.all_fields)

    @property
    def schema(self) -> StructType:
        """The schema of the dataframe."""
        return spark_schema(self.arrow_schema)

    def _offered_metadata(self) -> tuple[str, ...]:
        """Return the metadata columns that there are in this mode."""
        own = self.info.get_column_names()
        offered = [name for name in METADATA_COLUMNS if name not in own]
        if not self.info.is_partitioned():
            offered.remove(PARTITION_COLUMN)
        if self.mode == "snapshot":
            offered = [name for name in offered if name in (PARTITION_COLUMN, BUCKET_COLUMN)]
        elif self.mode != "log":
            offered.append(CHANGE_TYPE_COLUMN)
        return tuple(offered)

    def _names(self, schema: StructType | None) -> list[str]:
        if schema is not None:
            names = schema.names
            known = [*self.info.get_column_names(), *self._offered]
            require_columns(names, known, f"table {self.path}:")
            self._require_each_once("the schema", names)
            return list(names)
        columns = bind_columns(self.info, self.options.columns)
        metadata = self.options.metadata_columns
        if metadata is None:
            # changes are useless without the column that says what they do
            metadata = CHANGELOG_COLUMNS if self.mode in ("changelog", "upsert") else ()
        require_columns(
            metadata, self._offered, f"metadata columns of table {self.path} ({self.mode}):"
        )
        self._require_each_once("option 'metadata.columns'", metadata)
        return [*columns, *metadata]

    def _require_each_once(self, what: str, names: Sequence[str]) -> None:
        """Raise for a column that is named twice: Spark itself would say nothing of names."""
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid(f"{what} names column '{twice}' of table {self.path} more than once")

    def source(self, names: Sequence[str]) -> ScanSource:
        """Return the scan that fetches columns of these names."""
        info, options = self.info, self.options
        wanted = frozenset(names)
        columns = tuple(n for n in info.get_column_names() if n in wanted)
        metadata = tuple(n for n in self._offered if n in names)
        partitions = parse_partitions(info, options.partitions)
        admin = self.connection.get_admin()
        bounds = BucketBounds(info, lambda: admin.list_partition_infos(self.path), partitions)
        return ScanSource(
            connection=self.connection,
            table=self.path,
            columns=columns,
            metadata_columns=metadata,
            schema=pa.schema([self.all_fields.field(name) for name in (*columns, *metadata)]),
            partitions=partitions,
            buckets=parse_buckets(info, options.buckets, bounds),
            start=_place(bounds, "starting.offsets", options.start, "earliest"),
            stop=_place(bounds, "ending.offsets", options.stop, "latest"),
            keyed=info.has_primary_key(),
        )

    def fetched(self, pushed: Sequence[Predicate]) -> tuple[list[str], Predicate | None]:
        """Return the columns to fetch, and the condition that tasks evaluate."""
        conditions = [*pushed, *([] if self.filter is None else [self.filter])]
        predicate = and_(conditions) if conditions else None
        needed = set(self.arrow_schema.names)
        if predicate is not None:
            needed |= predicate.columns()
        return [name for name in self.all_fields.names if name in needed], predicate

    def tasks(self, pushed: Sequence[Predicate] = ()) -> list[ReadTask]:
        """Return the tasks of a batch read, with the offsets of this moment."""
        names, predicate = self.fetched(pushed)
        source = self.source(names)
        conditions = PredicateConjunct.of(predicate)
        lake: list[LakeFiles] = []
        if self.mode == "snapshot":
            there = partitions_of(source, self.info)
            if self._reads_lake:
                source, lake = lake_and_rows(self.info, source, there, conditions)
            nothing = source.partitions == () and lake
            splits = [] if nothing else self._snapshot_splits(source, there, conditions)
            keys = self._keys(source, conditions)
            if keys is not None and not lake:
                (task,) = self._grouped(source, predicate, [()])
                return [dataclasses.replace(task, keys=keys)] if splits else []
            tasks = self._grouped(source, predicate, [(split,) for split in splits])
        else:
            log = source
            if self._reads_lake and self.mode == "log":
                log, lake = lake_and_log(self.info, source, conditions)
            _, plan = plan_scan(log, conditions=conditions)
            if self._reads_lake and self.mode == "log" and tiered_meanwhile(log, self.info, plan):
                return self.tasks(pushed)
            tasks = self.log_tasks(source, predicate, plan.splits)
            if not self._reads_lake:
                # without a lake, expired rows may be left out; with one, they are in the lake
                later = from_log_start(source, self.info)
                tasks = [
                    dataclasses.replace(task, from_log_start=all(map(later, task.splits)))
                    for task in tasks
                ]
        empty = self._grouped(source, predicate, [() for _ in lake])
        return [
            *(
                dataclasses.replace(task, lake=files)
                for task, files in zip(empty, lake, strict=True)
            ),
            *tasks,
        ]

    @property
    def _reads_lake(self) -> bool:
        """Whether rows of the data lake are read; what offsets say is of the log."""
        options = self.options
        whole = options.start is None and options.stop is None
        return options.lake and whole and is_lake_table(self.info)

    def log_tasks(
        self, source: ScanSource, predicate: Predicate | None, splits: Sequence[Split]
    ) -> list[ReadTask]:
        """Return tasks that read splits of logs, each split cut where it is large."""
        size = self.options.rows_per_task
        cut = [
            split.slice(offset, size) for split in splits for offset in range(0, split.rows, size)
        ]
        return self._grouped(source, predicate, _groups(cut, size))

    def _grouped(
        self, source: ScanSource, predicate: Predicate | None, groups: Sequence[tuple[Split, ...]]
    ) -> list[ReadTask]:
        return [
            ReadTask(
                self.path,
                self.info.table_id,
                self.mode,
                source.columns,
                source.metadata_columns,
                predicate,
                group,
            )
            for group in groups
        ]

    def _keys(self, source: ScanSource, conditions: Sequence[Conjunct]) -> pa.Table | None:
        """Return the keys that can be looked up, where a filter names the whole primary key."""
        options = self.options
        if source.metadata_columns or options.partitions is not None or options.buckets is not None:
            # a lookup does not say in which bucket and at which offset a row is
            return None
        return selected_keys(self.info, conditions)

    def _snapshot_splits(
        self, source: ScanSource, there: Sequence[PartitionInfo], conditions: Sequence[Conjunct]
    ) -> list[Split]:
        if self.options.start is not None or self.options.stop is not None:
            raise invalid(
                f"starting.offsets and ending.offsets are for logs: table {self.path} is read as it"
                " is now; option 'changelog.mode' with 'changelog' reads its changes"
            )
        buckets: Sequence[Bucket] = chosen_buckets(self.info, source, there)
        buckets = prune(self.info, buckets, conditions, source.metadata_columns).buckets
        ends = offsets_of(self.connection, self.info, buckets, OffsetSpec.latest())
        return [
            Split(bucket.partition_id, bucket.partition_name, bucket.bucket_id, 0, end)
            for bucket, end in ends.items()
        ]


def _place(bounds: BucketBounds, name: str, given: Any, default: str) -> OffsetChoice:
    return parse_offset(bounds.info, name, default if given is None else given, bounds)


def _mode(info: TableInfo, options: ReadOptions, streaming: bool) -> str:
    """Return how a table is read."""
    mode = options.mode
    if not info.has_primary_key():
        if mode not in (None, "log"):
            raise invalid(
                f"option 'changelog.mode': table {info.table_path} has no primary key, so there is"
                f" no {mode} of it; leave the option out to read its rows"
            )
        return "log"
    if mode is None:
        return "changelog" if streaming else "snapshot"
    if mode == "log":
        raise invalid(
            f"option 'changelog.mode': table {info.table_path} has a primary key: 'snapshot' reads"
            " its rows, 'changelog' all changes, 'upsert' the changes without old values"
        )
    if streaming and mode == "snapshot":
        raise invalid(
            f"option 'changelog.mode': a stream reads the changes of table {info.table_path}:"
            " 'changelog' or 'upsert'"
        )
    return mode


def _check_types(path: TablePath, found: StructType, given: StructType) -> None:
    for field in given.fields:
        there = found[field.name].dataType
        if field.dataType.simpleString() != there.simpleString():
            raise SchemaMismatchError(
                f"table {path}: column '{field.name}' is {there.simpleString()}, and the"
                f" schema says {field.dataType.simpleString()}; name the column's own type, and"
                " cast it in the query"
            )


def _groups(splits: Sequence[Split], size: int) -> list[tuple[Split, ...]]:
    """Put small neighbours together where splits are many."""
    if len(splits) <= _MANY_TASKS:
        return [(split,) for split in splits]
    most = -(-len(splits) // _MANY_TASKS)
    groups: list[list[Split]] = []
    rows = 0
    for split in splits:
        if groups and len(groups[-1]) < most and rows + split.rows <= size:
            groups[-1].append(split)
            rows += split.rows
        else:
            groups.append([split])
            rows = split.rows
    return [tuple(group) for group in groups]


def require_same_table(path: TablePath, expected: int, info: TableInfo) -> None:
    """Raise when a table was dropped and made again since a query was planned."""
    if info.table_id != expected:
        raise FlussError(
            f"table {path} was made again while it was read (id {expected} became"
            f" {info.table_id}); run the query again",
            ErrorCode.TABLE_NOT_EXIST,
        )
