"""One round of one table: from the lake's offsets to the end, committed once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StaticTable

from fluss_df.client.context import ClientContext
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY
from fluss_df.lake.tiering.commit import commit_snapshot
from fluss_df.lake.tiering.compaction import compact
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.lake.tiering.files import LakeFiles
from fluss_df.lake.tiering.keyed import last_changes, replace_rows
from fluss_df.lake.tiering.lake_rows import SYSTEM_COLUMNS, to_lake
from fluss_df.lake.tiering.live_rows import Partition, PartitionFiles, files_by_partition
from fluss_df.lake.tiering.offsets import (
    COMMIT_USER,
    COMMIT_USER_PROPERTY,
    OFFSETS_PROPERTY,
    Offsets,
    newest_tiered,
    offsets_to_text,
)
from fluss_df.lake.tiering.plan import RoundPlan, Split, lake_partition, where
from fluss_df.metadata import (
    CHANGELOG_COLUMNS,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    TablePath,
)
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

logger = logging.getLogger("fluss_df.lake.tiering")

_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class TieringRound:
    """What one round of a table did.

    Parameters
    ----------
    path
        The table.
    snapshot_id
        The lake snapshot that it made; None where there was nothing to tier.
    rows
        Rows, or changes of a primary-key table, that were read from Fluss.
    files
        Data files that were added to the lake.
    complete
        Whether the table was tiered up to its end; else the rest comes with the next round.
    seconds
        How long it took.
    """

    path: TablePath
    snapshot_id: int | None
    rows: int
    files: int
    complete: bool
    seconds: float


@dataclass(slots=True)
class _Written:
    """What a task wrote."""

    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    rows: int = 0
    offsets: Offsets = field(default_factory=dict)
    timestamps: dict[tuple[int | None, int], int] = field(default_factory=dict)


class TableRound:
    """Tiers one table once.

    Parameters
    ----------
    connection
        The cluster.
    info
        The table.
    max_rows
        How many rows of a log bucket to tier at the most.
    max_changes
        How many changes of a primary-key bucket, which are held in memory.
    workers
        How many buckets to tier side by side.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        *,
        max_rows: int,
        max_changes: int,
        workers: int,
    ) -> None:
        self._connection = connection
        self._info = info
        self._path = info.table_path
        self._coordinator = Coordinator(connection)
        self._max = max_changes if info.has_primary_key() else max_rows
        self._workers = workers
        self._metrics = ScanMetrics(parent=connection.metrics)

    def run(self, may_commit: Callable[[], None]) -> TieringRound:
        """Tier the table.

        Parameters
        ----------
        may_commit
            Raises where the table is not this service's any more; asked just before the commit.

        Raises
        ------
        FlussError
            Nothing of the round is in the lake then, but where the catalog does not say what
            became of the commit: the next round finds out.
        """
        started = time.monotonic()
        table = open_table(self._info)
        if isinstance(table, StaticTable):
            raise FlussError(
                f"table {self._path}: its Iceberg catalog is Hadoop's, in which only Java commits;"
                " tier it with Flink's service, or give the cluster a JDBC or REST catalog"
            )
        plan = RoundPlan(self._connection, self._info, self._max)
        base = plan.known_offsets(table)
        splits, complete = plan.splits(base)
        files = files_by_partition(table) if self._info.has_primary_key() else {}
        dirty = {partition for partition, found in files.items() if found.deletes}
        if not splits and not dirty:
            return TieringRound(self._path, None, 0, 0, True, time.monotonic() - started)
        lake = LakeFiles(table)
        self._check_columns(lake.arrow_schema)
        written: list[_Written] = []
        try:
            self._write(lake, splits, files, dirty, written)
            deletes = [delete for found in files.values() for delete in found.deletes]
            snapshot_id = self._commit(table, base, written, deletes, may_commit)
        except CommitFailedException as error:
            lake.delete(file for part in written for file in part.added)
            raise FlussError(
                f"table {self._path}: another service or writer committed to the lake table while"
                " this round was written; nothing of it was committed, the next round begins"
                " where that one ended"
            ) from error
        except _NotCommittedError:
            lake.delete(file for part in written for file in part.added)
            raise
        return TieringRound(
            self._path,
            snapshot_id,
            sum(part.rows for part in written),
            sum(len(part.added) for part in written),
            complete,
            time.monotonic() - started,
        )

    # ---- writing

    def _write(
        self,
        lake: LakeFiles,
        splits: Sequence[Split],
        files: Mapping[Partition, PartitionFiles],
        dirty: set[Partition],
        written: list[_Written],
    ) -> None:
        """Write all tasks side by side; ``written`` has what was written also when one fails."""
        tasks: list[Callable[[], _Written]] = []
        busy: set[Partition] = set()
        for split in splits:
            partition = lake_partition(split)
            if len(partition) != len(lake.table.spec().fields):
                raise FlussError(
                    f"the lake table of {self._path} is partitioned by"
                    f" {lake.table.spec()}: fluss_df knows partition keys and one bucket"
                )
            busy.add(partition)
            tasks.append(self._task(lake, split, partition, files))
        tasks += [self._cleaning(lake, partition, files[partition]) for partition in dirty - busy]
        failure: BaseException | None = None
        with ThreadPoolExecutor(self._workers, "fluss-df-tier") as pool:
            for future in [pool.submit(task) for task in tasks]:
                try:
                    written.append(future.result())
                except BaseException as error:
                    failure = failure or error
                    pool.shutdown(wait=False, cancel_futures=True)
        if failure is not None:
            lake.delete(file for part in written for file in part.added)
            if isinstance(failure, OSError):
                raise FlussError(
                    f"table {self._path}: the files of its lake table cannot be written: {failure};"
                    " nothing of the round was committed"
                ) from failure
            raise failure

    def _task(
        self,
        lake: LakeFiles,
        split: Split,
        partition: Partition,
        files: Mapping[Partition, PartitionFiles],
    ) -> Callable[[], _Written]:
        if not self._info.has_primary_key():
            return lambda: self._append(lake, split, partition)
        return lambda: self._replace(lake, split, partition, files.get(partition, PartitionFiles()))

    def _append(self, lake: LakeFiles, split: Split, partition: Partition) -> _Written:
        result = _Written(offsets={split.key: split.stop})
        writer = lake.writer(partition)
        try:
            for rows in self._read(split, (LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN), result):
                writer.write(to_lake(rows, lake.arrow_schema, split.bucket.bucket_id, self._path))
            result.added = writer.close()
        except BaseException:
            writer.abort()
            raise
        return result

    def _replace(
        self, lake: LakeFiles, split: Split, partition: Partition, existing: PartitionFiles
    ) -> _Written:
        keys = self._info.get_primary_keys()
        result = _Written(offsets={split.key: split.stop})
        rows: Iterator[pa.Table]
        if split.snapshot:
            touched = _empty_keys(lake, keys)
            rows = self._current_rows(lake, split, result)
            if existing.data:
                raise FlussError(
                    f"table {self._path}, {where(split.bucket, split.partition_name)}: the lake"
                    " has rows of a bucket of which Fluss knows no offset; the lake table belongs"
                    " to an older table of that name. Drop it first"
                )
        else:
            changes = list(self._read(split, CHANGELOG_COLUMNS, result))
            changed, new = last_changes(changes, keys)
            del changes
            touched = _as_lake_keys(lake, keys, changed)
            rows = iter([to_lake(new, lake.arrow_schema, split.bucket.bucket_id, self._path)])
        replacement = replace_rows(lake, partition, existing, keys, touched, rows)
        result.added, result.removed = list(replacement.added), list(replacement.removed)
        return result

    def _cleaning(
        self, lake: LakeFiles, partition: Partition, existing: PartitionFiles
    ) -> Callable[[], _Written]:
        """Return a task that writes a partition without delete files, which nothing changes."""

        def clean() -> _Written:
            keys = self._info.get_primary_keys()
            nothing = _empty_keys(lake, keys)
            done = replace_rows(lake, partition, existing, keys, nothing, ())
            return _Written(list(done.added), list(done.removed))

        return clean

    def _read(self, split: Split, metadata: Sequence[str], result: _Written) -> Iterator[pa.Table]:
        """Yield the log of a split, in its order."""
        position = Position(split.bucket, split.partition_name, split.start, split.stop)
        read = ParallelRead[pa.Table](
            self._connection,
            self._info,
            self._info.get_column_names(),
            metadata,
            [position],
            self._metrics,
            lambda table: table,
            ahead_bytes=_AHEAD_BYTES,
        )
        newest = -1
        with read:
            yield pa.Table.from_batches([], read.schema)
            for table in read:
                if table is None or not table.num_rows:
                    continue
                result.rows += table.num_rows
                moment = pc.max(table.column(COMMIT_TIMESTAMP_COLUMN)).cast(
                    pa.timestamp("ms", "UTC")
                )
                newest = max(newest, moment.value)
                result.timestamps[split.key] = newest
                yield table

    def _current_rows(self, lake: LakeFiles, split: Split, result: _Written) -> Iterator[pa.Table]:
        """Yield the rows of a primary-key bucket as they are at one offset."""
        name = split.partition_name
        scanner = SnapshotScanner(
            self._connection,
            self._info,
            partitions=None if name is None else [name],
            buckets=[split.bucket.bucket_id],
        )
        for batch in scanner.batches():
            rows = pa.Table.from_batches([batch])
            result.rows += rows.num_rows
            yield to_lake(rows, lake.arrow_schema, split.bucket.bucket_id, self._path)
        result.offsets[split.key] = scanner.offsets[split.bucket]

    def _check_columns(self, schema: pa.Schema) -> None:
        missing = set(self._info.get_column_names()) - set(schema.names)
        if missing:
            raise FlussError(
                f"table {self._path} has the columns {sorted(missing)}, which its lake table lacks:"
                " add them to the lake table"
            )
        if not set(SYSTEM_COLUMNS) <= set(schema.names):
            raise FlussError(
                f"the lake table of {self._path} has no columns {', '.join(SYSTEM_COLUMNS)}: it is"
                " not one that Fluss made"
            )

    # ---- committing

    def _commit(
        self,
        table: Table,
        base: Offsets,
        written: Sequence[_Written],
        deletes: Sequence[DataFile],
        may_commit: Callable[[], None],
    ) -> int:
        moved: Offsets = {}
        timestamps: dict[tuple[int | None, int], int] = {}
        for part in written:
            moved.update(part.offsets)
            timestamps.update(part.timestamps)
        offsets = {**base, **moved}
        try:
            # A table of that name that was made since has another id: these rows are not its.
            now = TableQuestions(self._connection).get_table_info(self._path)
            if now.table_id != self._info.table_id:
                raise FlussError(f"table {self._path} was dropped and created again meanwhile")
            path = self._coordinator.prepare(self._info.table_id, self._path, offsets)
            may_commit()
        except Exception as error:
            raise _NotCommittedError(str(error)) from error
        properties = {
            COMMIT_USER_PROPERTY: COMMIT_USER,
            OFFSETS_PATH_PROPERTY: path,
            OFFSETS_PROPERTY: offsets_to_text(offsets),
        }
        added = [file for part in written for file in part.added]
        removed = [file for part in written for file in part.removed]
        try:
            snapshot_id = commit_snapshot(table, added, removed, deletes, properties)
        except CommitFailedException:
            raise
        except Exception as error:
            # the files stay: they may be in the lake
            raise FlussError(
                f"table {self._path}: the lake's catalog did not say what became of the commit:"
                f" {type(error).__name__}: {error}; the next round finds out"
            ) from error
        if not self._info.has_primary_key():
            snapshot_id = self._compacted(table, properties) or snapshot_id
        self._coordinator.commit(
            self._info.table_id, self._path, snapshot_id, path, moved, timestamps
        )
        return snapshot_id

    def _compacted(self, table: Table, properties: Mapping[str, str]) -> int | None:
        """Merge small files: a failure leaves what was committed, and the files, as they are."""
        try:
            return compact(table, properties)
        except Exception as error:
            logger.warning("table %s: small files were not merged: %s", self._path, error)
            newest = newest_tiered(open_table(self._info))
            return None if newest is None else newest.snapshot_id


class _NotCommittedError(FlussError):
    """The round ended before its commit."""


def _as_lake_keys(lake: LakeFiles, keys: Sequence[str], frame: pl.DataFrame) -> pl.DataFrame:
    """Return keys with the types that they have in lake files."""
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    columns = [
        frame[key].to_arrow().cast(field.type, safe=not pa.types.is_temporal(field.type))
        for key, field in zip(keys, schema, strict=True)
    ]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(columns, schema=schema)))


def _empty_keys(lake: LakeFiles, keys: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    empty: Any = pl.from_arrow(pa.Table.from_batches([], schema))
    return pl.DataFrame(empty)
