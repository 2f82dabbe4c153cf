"""The tasks of a round: each writes the files of one part of one bucket, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.context import ClientContext
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.fetch.position import Position
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.snapshot_scanner import SnapshotScanner
from fluss_df.errors import FlussError
from fluss_df.lake.writing.files import LakeFiles
from fluss_df.lake.writing.keyed import last_changes, replace_rows
from fluss_df.lake.writing.lake_rows import lake_cast, to_lake
from fluss_df.lake.writing.live_rows import Partition, PartitionFiles, files_by_partition
from fluss_df.lake.writing.split import Offsets, Split, where
from fluss_df.metadata import CHANGELOG_COLUMNS, COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_AHEAD_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What is written by itself; plain values that pickle.

    Parameters
    ----------
    partition
        Where the rows are in the lake: the values of the fields by which it is partitioned.
    split
        The part of the log; None to write the partition's rows again without delete files.
    """

    partition: Partition
    split: Split | None


@dataclass(slots=True)
class Written:
    """What a task wrote; it pickles.

    Attributes
    ----------
    added, removed
        Data files that come, and those whose rows are in them.
    rows
        Rows, or changes, that were read from Fluss.
    offsets, timestamps
        The end of the bucket, and its newest timestamp in milliseconds.
    """

    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    rows: int = 0
    offsets: Offsets = field(default_factory=dict)
    timestamps: dict[tuple[int | None, int], int] = field(default_factory=dict)

    def __getstate__(self) -> Any:
        # which their own pickles do not have; files that are new have none yet
        both = (self.added, self.removed)
        specs = [[getattr(file, "_spec_id", None) for file in files] for files in both]
        return self.added, self.removed, self.rows, self.offsets, self.timestamps, specs

    def __setstate__(self, state: Any) -> None:
        self.added, self.removed, self.rows, self.offsets, self.timestamps, specs = state
        for files, ids in zip((self.added, self.removed), specs, strict=True):
            for file, spec_id in zip(files, ids, strict=True):
                if spec_id is not None:
                    file.spec_id = spec_id


class RunTasks(Protocol):
    """How the tasks of a round are run."""

    def __call__(
        self, writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]
    ) -> None:
        """Run tasks; ``written`` has what was written also where one fails.

        Raises Exception of the first task that failed.
        """


class InThreads:
    """Runs tasks side by side in threads of this process."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __call__(
        self, writer: TaskWriter, tasks: Sequence[WriteTask], written: list[Written]
    ) -> None:
        """Run tasks; see :class:`RunTasks`."""
        failure: BaseException | None = None
        with ThreadPoolExecutor(self._workers, "fluss-df-tier") as pool:
            for future in [pool.submit(writer.write, task) for task in tasks]:
                try:
                    written.append(future.result())
                except BaseException as error:
                    failure = failure or error
                    pool.shutdown(wait=False, cancel_futures=True)
        if failure is not None:
            raise failure


class TaskWriter:
    """Writes the tasks of one table's round.

    Parameters
    ----------
    connection
        The cluster.
    info
        The table.
    table
        Its lake table.
    snapshot_id
        The lake snapshot that the round was planned with; None where there was none.
    files
        The files of a primary-key table in that snapshot; None to find them.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        table: Table,
        snapshot_id: int | None,
        files: Mapping[Partition, PartitionFiles] | None = None,
    ) -> None:
        self.connection = connection
        self.info = info
        self.snapshot_id = snapshot_id
        self._path = info.table_path
        self._lake = LakeFiles(table)
        self._metrics = ScanMetrics(parent=connection.metrics)
        if files is None:
            snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
            if snapshot_id is not None and snapshot is None:
                raise FlussError(
                    f"lake table {self._path} has no snapshot {snapshot_id} any more, with which"
                    " the round was planned: the next round begins where the lake ends"
                )
            files = files_by_partition(table, snapshot) if snapshot is not None else {}
        self._files = files

    @property
    def lake(self) -> LakeFiles:
        """Makes the files of the table."""
        return self._lake

    def write(self, task: WriteTask) -> Written:
        """Write a task's files.

        Raises FlussError: nothing of the task is left then.
        """
        fields = self._lake.table.spec().fields
        if len(task.partition) != len(fields):
            raise FlussError(
                f"the lake table of {self._path} is partitioned by {self._lake.table.spec()}:"
                " fluss_df knows partition keys and one bucket"
            )
        existing = self._files.get(task.partition, PartitionFiles())
        try:
            if task.split is None:
                return self._clean(task.partition, existing)
            if self.info.has_primary_key():
                return self._replace(task.split, task.partition, existing)
            return self._append(task.split, task.partition)
        except OSError as error:
            raise FlussError(
                f"table {self._path}: the files of its lake table cannot be written: {error};"
                " nothing of the round was committed"
            ) from error

    def _append(self, split: Split, partition: Partition) -> Written:
        result = Written(offsets={split.key: split.stop})
        writer = self._lake.writer(partition)
        schema = self._lake.arrow_schema
        try:
            for rows in self._read(split, (LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN), result):
                writer.write(to_lake(rows, schema, split.bucket.bucket_id, self._path))
            result.added = writer.close()
        except BaseException:
            writer.abort()
            raise
        return result

    def _replace(self, split: Split, partition: Partition, existing: PartitionFiles) -> Written:
        keys = self.info.get_primary_keys()
        result = Written(offsets={split.key: split.stop})
        rows: Iterator[pa.Table]
        if split.snapshot:
            touched = self._touched(split, existing, result)
            rows = self._current_rows(split, result, ends=not existing.data)
        else:
            changes = list(self._read(split, CHANGELOG_COLUMNS, result))
            lake = self._lake
            touched, new = last_changes(changes, keys, lambda rows: _as_lake_keys(lake, keys, rows))
            del changes
            schema = self._lake.arrow_schema
            rows = iter([to_lake(new, schema, split.bucket.bucket_id, self._path)])
        replacement = replace_rows(self._lake, partition, existing, keys, touched, rows)
        result.added, result.removed = list(replacement.added), list(replacement.removed)
        return result

    def _touched(self, split: Split, existing: PartitionFiles, result: Written) -> pl.DataFrame:
        """Return the keys of a bucket whose current rows come, where the lake has rows of it.

        Of a partition that was dropped, and made again: rows of other keys stay, as of any
        partition that was dropped. The rows that come are read later than these keys, and the
        bucket's end is that of the keys: changes between are read again.
        """
        import polars as pl

        keys = self.info.get_primary_keys()
        if not existing.data:
            return _empty_keys(self._lake, keys)
        if split.partition_name is None:
            raise FlussError(
                f"table {self._path}, {where(split.bucket, split.partition_name)}: the lake"
                " has rows of a bucket of which Fluss knows no offset; the lake table belongs"
                " to an older table of that name. Drop it first"
            )
        scanner = self._scanner(split, keys)
        found = [
            _as_lake_keys(self._lake, keys, pa.Table.from_batches([batch]))
            for batch in scanner.batches()
        ]
        result.offsets[split.key] = scanner.offsets[split.bucket]
        return pl.concat([_empty_keys(self._lake, keys), *found])

    def _clean(self, partition: Partition, existing: PartitionFiles) -> Written:
        """Write a partition without delete files, which nothing changes."""
        keys = self.info.get_primary_keys()
        nothing = _empty_keys(self._lake, keys)
        done = replace_rows(self._lake, partition, existing, keys, nothing, ())
        return Written(list(done.added), list(done.removed))

    def _read(self, split: Split, metadata: Sequence[str], result: Written) -> Iterator[pa.Table]:
        """Yield the log of a split, in its order."""
        position = Position(split.bucket, split.partition_name, split.start, split.stop)
        read = ParallelRead[pa.Table](
            self.connection,
            self.info,
            self.info.get_column_names(),
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

    def _scanner(self, split: Split, columns: list[str] | None = None) -> SnapshotScanner:
        name = split.partition_name
        return SnapshotScanner(
            self.connection,
            self.info,
            columns,
            partitions=None if name is None else [name],
            buckets=[split.bucket.bucket_id],
        )

    def _current_rows(self, split: Split, result: Written, *, ends: bool) -> Iterator[pa.Table]:
        """Yield the rows of a primary-key bucket as they are at one offset, which it may end at."""
        scanner = self._scanner(split)
        for batch in scanner.batches():
            rows = pa.Table.from_batches([batch])
            result.rows += rows.num_rows
            yield to_lake(rows, self._lake.arrow_schema, split.bucket.bucket_id, self._path)
        if ends:
            result.offsets[split.key] = scanner.offsets[split.bucket]


def _as_lake_keys(lake: LakeFiles, keys: Sequence[str], rows: pa.Table) -> pl.DataFrame:
    """Return keys with the types that they have in lake files."""
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    columns = [lake_cast(rows.column(field.name), field.type) for field in schema]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(columns, schema=schema)))


def _empty_keys(lake: LakeFiles, keys: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    empty: Any = pl.from_arrow(pa.Table.from_batches([], schema))
    return pl.DataFrame(empty)
