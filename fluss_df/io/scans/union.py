"""The lake half of a scan: rows that a tiering service moved into the data lake.

A query is pinned at one readable lake snapshot, asked for first, and then at the ends of the
buckets: each row is before the lake's offset of its bucket, and in the lake, or behind it, and in
the log. Facts: ``LakeSplitGenerator`` of Fluss, which plans the same for Flink.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import polars_schema
from fluss_df.io.base.names import exact
from fluss_df.io.scans.known import KnownTable, Moment
from fluss_df.io.scans.planning import ask_bounds, check_schema, chosen_buckets, partitions_of
from fluss_df.io.source import Halves, PartitionChoice, ScanSource, choose_partitions
from fluss_df.lake.formats import open_snapshot, snapshot_mark
from fluss_df.lake.options import BUCKET, OFFSET, TIMESTAMP, is_lake_table
from fluss_df.lake.snapshot import DataFile, LakeSnapshotFiles, file_gone
from fluss_df.metadata import (
    BUCKET_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    PARTITION_COLUMN,
    LakeSnapshot,
    PartitionInfo,
    TableBucket,
    TablePath,
)
from fluss_df.polars_adapter.lake_files import (
    first_unreadable,
    is_of_parquet,
    retyped,
    without_unreadable_filters,
)
from fluss_df.pushdown.plan import LakePlan, ScanPlan, Split
from fluss_df.pushdown.prune import Conjunct
from fluss_df.record.keys.partition_names import partition_scalars, value_texts
from fluss_df.schema import TableInfo
from fluss_df.types import Column

_TRIES = 4
_PAUSE_S = 0.05
_ADDED = {BUCKET_COLUMN: BUCKET, LOG_OFFSET_COLUMN: OFFSET, COMMIT_TIMESTAMP_COLUMN: TIMESTAMP}


@dataclass(frozen=True)
class PinnedLake:
    """The lake half of a table as one query sees it.

    ``snapshot`` is what the coordinator says of it: its id, and for each bucket the offset after
    its last row in the lake. Where the snapshot itself says these offsets, its own are taken.
    ``files`` are the snapshot's.
    """

    snapshot: LakeSnapshot
    files: LakeSnapshotFiles[Any]

    def offset(self, bucket: TableBucket) -> int | None:
        """Return from where on a bucket's rows are in the log; None where all are."""
        return self.snapshot.table_buckets_offset.get(bucket)


def pin_lake(source: ScanSource, info: TableInfo) -> PinnedLake | None:
    """Return the lake half as it is now; None where nothing was tiered yet.

    Raises FlussError where it cannot be read.
    """
    if not is_lake_table(info):
        return None
    admin = source.connection.get_admin()
    for left in reversed(range(_TRIES)):
        try:
            snapshot = admin.get_latest_lake_snapshot(info.table_path)
            break
        except FlussError as error:
            if error.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                _require_rows_in_fluss(source, info)
                return None
            # the coordinator reads a file that it deletes when there is a newer snapshot: ask again
            if not left or error.error_code != ErrorCode.UNKNOWN_SERVER_ERROR:
                raise
            time.sleep(_PAUSE_S)
    files = opened_lake(info, snapshot.snapshot_id)
    if files.offsets is not None:
        # A lake that was rolled back gives numbers again, and Fluss may not know of it yet.
        offsets = {
            TableBucket(info.table_id, bucket, partition): offset
            for (partition, bucket), offset in files.offsets.items()
        }
        snapshot = replace(snapshot, table_buckets_offset=offsets)
    return PinnedLake(snapshot, files)


def _require_rows_in_fluss(source: ScanSource, info: TableInfo) -> None:
    """Raise where the lake has rows that Fluss has not, and that no reader sees yet."""
    path = info.table_path
    try:
        newest = source.connection.get_admin().get_latest_lake_snapshot(path, readable=False)
    except FlussError as error:
        if error.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            return
        raise
    if source.halves is not Halves.LAKE:
        there = partitions_of(source, info)
        ids = {partition.partition_id for partition in there}
        tiered = newest.table_buckets_offset
        all_there = not info.is_partitioned() or all(b.partition_id in ids for b in tiered)
        if all_there and info.has_primary_key():
            return
        if all_there:
            buckets = chosen_buckets(info, replace(source, partitions=None, buckets=None), there)
            first = ask_bounds(source, info, buckets)[0] if buckets else {}
            if not any(first.values()):
                return
    raise FlussError(
        f"table {path}: the lake has the snapshot {newest.snapshot_id}, which cannot be read yet:"
        " rows of a lake table with deletion vectors are read once they are compacted"
        " (table.datalake.auto-compaction); try again later; lake=False reads what Fluss"
        " itself has",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )


def opened_lake(info: TableInfo, snapshot_id: int) -> LakeSnapshotFiles[Any]:
    """Return the files of a snapshot of the lake table of a table."""
    return _opened(_Key(info), snapshot_id, snapshot_mark(info, snapshot_id))


class _Key:
    """A table's description, as a key of a cache by its id."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info

    def __hash__(self) -> int:
        return hash(self.info.table_path)

    def __eq__(self, other: object) -> bool:
        mine = self.info
        return isinstance(other, _Key) and (
            # a server that was set up again gives the same table ids again
            (
                mine.table_path,
                mine.table_id,
                mine.created_time,
                mine.schema_id,
                mine.get_properties(),
            )
            == (
                other.info.table_path,
                other.info.table_id,
                other.info.created_time,
                other.info.schema_id,
                other.info.get_properties(),
            )
        )


@functools.lru_cache(maxsize=32)
def _opened(key: _Key, snapshot_id: int, mark: Hashable) -> LakeSnapshotFiles[Any]:
    """Return the files of a snapshot, which never change while its mark is the same."""
    return open_snapshot(key.info, snapshot_id)


def halves_of(
    source: ScanSource, known: KnownTable | None
) -> tuple[ScanSource, PinnedLake | None, KnownTable | None]:
    """Return the scan of the log half of a scan, the lake half where there is one, and the table.

    Raises FlussError where one of them cannot be read, or rows are in neither.
    """
    if source.halves is Halves.LOG or source.pinned is not None:
        return source, None, known
    if known is None or not known.fresh:
        now = Moment()
        known = KnownTable(source.connection.get_admin().get_table_info(source.table), now)
    check_schema(known.info, source)
    lake = pin_lake(source, known.info)
    if source.halves is Halves.LAKE:
        if lake is not None:
            choices_there(known.info, source, (), lake)  # raises for those that it has not
        return replace(source, partitions=None, pinned=()), lake, known
    tried: LakeSnapshot | None = None
    while lake is not None:
        try:
            return log_half(source, known.info, lake), lake, known
        except FlussError as error:
            out_of_range = error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
            if not out_of_range or lake.snapshot == tried:
                raise
        # a later snapshot may have come meanwhile, and the log up to it may have expired
        tried, lake = lake.snapshot, pin_lake(source, known.info)
    return source, None, known


@contextlib.contextmanager
def damage_named(connection: FlussConnection, path: TablePath) -> Iterator[None]:
    """Have an error of Polars about a file of a lake name the table, the file and the way out.

    Which file that is, is looked for when there was one: it costs a query nothing that succeeds.
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, FileNotFoundError) as error:
        if not is_of_parquet(error):
            raise
        admin = connection.get_admin()
        info = admin.get_table_info(path)
        panicked = isinstance(error, pl.exceptions.PanicException)
        if panicked and not is_lake_table(info):
            raise
        snapshot = admin.get_latest_lake_snapshot(path)
        files = opened_lake(info, snapshot.snapshot_id).files
        found = first_unreadable(file.path for file in files if file.path.startswith("/"))
        if panicked and not found:
            raise
        file, why = found or ("", str(error))
        if isinstance(error, FileNotFoundError):
            # the file was deleted after it was looked for and before it was read
            raise file_gone(path, file, why) from error
        raise FlussError(
            f"lake table {path}: {f'the file {file}' if found else 'a file'} of its snapshot is"
            f" damaged: {why}; put the file back, from a backup for example; lake=False reads what"
            " Fluss itself has",
            ErrorCode.CORRUPT_MESSAGE,
        ) from error


def tiered_meanwhile(source: ScanSource, info: TableInfo, plan: ScanPlan) -> bool:
    """Whether rows went to the lake, and expired, after it was asked and had none."""
    if source.halves is not Halves.BOTH or source.pinned is not None or not is_lake_table(info):
        return False
    return any(split.start for split in plan.splits) and pin_lake(source, info) is not None


def log_half(source: ScanSource, info: TableInfo, lake: PinnedLake) -> ScanSource:
    """Return the scan of what is not in the lake: pinned at the ends that the log has now.

    Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` where rows are in neither half.
    """
    there = partitions_of(source, info)
    chosen = choices_there(info, source, there, lake)
    source = replace(source, partitions=chosen)
    if chosen == ():
        return replace(source, partitions=None, pinned=())
    buckets = chosen_buckets(info, source, there)
    splits = []
    if buckets:
        first, last, _, _ = ask_bounds(source, info, buckets)
        for bucket in buckets:
            key = bucket.of(info.table_id)
            tiered = lake.offset(key)
            start = first[bucket] if tiered is None else tiered
            if tiered is None and start and info.has_primary_key():
                raise FlussError(
                    f"table {info.table_path}, bucket {bucket}: the lake has none of its rows yet,"
                    f" and its changes before the offset {start} have expired; try again after the"
                    " next round of tiering; lake=False reads what Fluss itself has",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )
            if tiered is not None and not first[bucket] <= tiered <= last[bucket]:
                raise FlussError(
                    f"table {info.table_path}, bucket {bucket}: the lake snapshot"
                    f" {lake.snapshot.snapshot_id} ends at the offset {tiered}, and the log has the"
                    f" offsets {first[bucket]} to {last[bucket]}: rows between are in neither;"
                    f" lake=False reads the log, '{info.table_path}$lake' the lake, as they are",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )
            splits.append(
                Split(
                    bucket.partition_id,
                    bucket.partition_name,
                    bucket.bucket_id,
                    start,
                    last[bucket],
                )
            )
    pinned = tuple(split for split in splits if split.rows)
    return replace(source, partitions=None, buckets=None, pinned=pinned)


def choices_there(
    info: TableInfo, source: ScanSource, there: Sequence[PartitionInfo], lake: PinnedLake
) -> tuple[PartitionChoice, ...] | None:
    """Return the choices of partitions that Fluss has; those that neither has are an error."""
    if source.partitions is None:
        return None
    names = [partition.partition_name for partition in there]
    of_lake = [lake_partition_of(info, file) for file in lake.files.files]
    others = {p.partition_name: p for p in of_lake if p.partition_name not in names}
    known = sorted([*there, *others.values()], key=lambda partition: partition.partition_name)
    found = []
    for choice in source.partitions:
        choose_partitions(info, known, (choice,))
        try:
            choose_partitions(info, there, (choice,))
        except FlussError:
            continue
        found.append(choice)
    return tuple(found)


def lake_partition_of(info: TableInfo, file: DataFile) -> PartitionInfo:
    """Return of which partition a file of the lake is; its id means nothing."""
    values = {key: file.partition[key] for key in info.get_partition_keys()}
    return PartitionInfo(-1, "$".join(values.values()), values)


def wanted_files(
    info: TableInfo, lake: PinnedLake, conditions: Sequence[Conjunct]
) -> list[DataFile]:
    """Return the files of the lake that may have rows that conditions keep."""
    own = set(info.get_column_names())
    predicates = [c.predicate for c in conditions if c.predicate is not None and c.columns <= own]
    return lake.files.wanted(predicates)


def lake_half(
    source: ScanSource,
    info: TableInfo,
    lake: PinnedLake,
    files: Sequence[DataFile],
    filters: Sequence[pl.Expr] = (),
) -> tuple[pl.LazyFrame, LakePlan]:
    """Return the rows of the lake with the columns of a scan, and what is read of it.

    ``files`` are those of :func:`wanted_files`, whose rows the caller has to filter; ``filters``
    are the conditions that Polars will push down into these files. Raises FlussError where the lake
    table lacks a column that it must have.
    """
    frame = without_unreadable_filters(lake.files.frame(files), filters)
    names = frame.collect_schema()
    wanted = polars_schema(source.schema)
    if not lake.files.has_own_columns:
        _require_no_own_columns(info, source)
    needed = [*info.get_partition_keys(), *info.get_primary_keys()]
    needed += [BUCKET] if lake.files.has_own_columns else []
    # lost columns; others that the lake lacks were added to the table after the snapshot
    needed += [name for name in source.schema.names if name in lake.files.lost]
    missing = [name for name in dict.fromkeys(needed) if name not in names]
    if missing:
        raise FlussError(
            f"lake table {info.table_path} has no column {', '.join(map(repr, missing))}: it was"
            " changed by hand; lake=False reads what Fluss itself has",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    chosen = _chosen(info, source, names)
    if chosen is not None:
        frame = frame.filter(chosen)
    columns = [_column(info, name, wanted[name], names) for name in source.schema.names]
    plan = LakePlan(
        snapshot_id=lake.snapshot.snapshot_id,
        files=len(files),
        of_files=len(lake.files.files),
        delete_files=lake.files.delete_files,
        rows=sum(file.rows for file in files),
        bytes=sum(file.size for file in files),
    )
    return frame.select(columns), plan


def _require_no_own_columns(info: TableInfo, source: ScanSource) -> None:
    """Refuse a scan that asks for what the lake table does not have of its rows."""
    asked = [name for name in source.schema.names if name in _ADDED]
    asked += ["buckets"] if source.buckets is not None else []
    if asked:
        raise FlussError(
            f"lake table {info.table_path} ({info.lake_format}) has no buckets, offsets and times"
            f" of its rows, and {', '.join(asked)} was asked for; lake=False reads what Fluss"
            " itself has",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def _chosen(
    info: TableInfo, source: ScanSource, types: Mapping[str, pl.DataType]
) -> pl.Expr | None:
    """Return which rows of the lake are of the partitions and buckets of a scan."""
    parts: list[pl.Expr] = []
    if source.buckets is not None:
        parts.append(exact(BUCKET).is_in(list(source.buckets)))
    if source.partitions is not None:
        parts.append(pl.any_horizontal([_is_partition(info, c, types) for c in source.partitions]))
    return pl.all_horizontal(parts) if parts else None


def _is_partition(
    info: TableInfo, choice: PartitionChoice, types: Mapping[str, pl.DataType]
) -> pl.Expr:
    if isinstance(choice, str):
        choice = tuple(zip(info.get_partition_keys(), choice.split("$"), strict=True))
    kinds = {column.name: column for column in info.schema.columns}
    return pl.all_horizontal(
        [_is_named(exact(name), kinds[name], text, types[name]) for name, text in choice]
    )


def _is_named(values: pl.Expr, column: Column, text: str, kind: pl.DataType) -> pl.Expr:
    """Return which values of a partition column have a text in the names of their partitions."""
    if kind == pl.String:
        return values.eq(text)
    (value,) = partition_scalars(text, [column])
    wanted = pl.from_arrow(pa.array([value]))
    assert isinstance(wanted, pl.Series)
    if kind == pl.Time:
        # names of partitions have milliseconds
        return (values.cast(pl.Int64) // 1_000_000).eq(wanted.cast(pl.Int64)[0] // 1_000_000)
    # NaN equals itself here, because it is the name of one partition
    return values.eq(pl.lit(wanted.cast(kind)).first())


def _column(
    info: TableInfo, name: str, wanted: pl.DataType, there: Mapping[str, pl.DataType]
) -> pl.Expr:
    """Return a column of a scan as the lake has it, in the type that Fluss has."""
    if name in info.get_column_names():
        if name not in there:
            # the column was added to the table after the snapshot
            return pl.lit(None, dtype=wanted).alias(name)
        return retyped(exact(name), there[name], wanted)
    if name == PARTITION_COLUMN:
        kinds = {column.name: column for column in info.schema.columns}
        texts = [_named(kinds[key], there[key]) for key in info.get_partition_keys()]
        return pl.concat_str(texts, separator="$").alias(name)
    return exact(_ADDED[name]).cast(wanted).alias(name)


def _named(column: Column, kind: pl.DataType) -> pl.Expr:
    """Return the texts of a partition column's values in the names of their partitions."""
    values = exact(column.name)
    if kind == pl.String or kind == pl.Boolean or kind == pl.Date or kind.is_integer():
        return values.cast(pl.String)

    def texts(series: pl.Series) -> pl.Series:
        each = series.to_arrow().dictionary_encode()
        names = pa.array(value_texts(each.dictionary, column.type), pa.string())
        return pl.Series(series.name, names.take(each.indices))

    return values.map_batches(texts, return_dtype=pl.String, is_elementwise=True)
