"""Writes the tasks of a round into an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss_df.client.context import ClientContext
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.lake.iceberg.frames import columns, with_row_number
from fluss_df.lake.iceberg_writing.files import LakeFiles
from fluss_df.lake.iceberg_writing.keyed import last_changes, replace_rows
from fluss_df.lake.iceberg_writing.live_rows import PartitionFiles, files_by_partition
from fluss_df.lake.rounds.lake_rows import lake_cast, to_lake
from fluss_df.lake.rounds.split import Partition, Split, where
from fluss_df.lake.rounds.split_reader import SplitReader
from fluss_df.lake.rounds.tasks import WriteTask, Written
from fluss_df.metadata import CHANGELOG_COLUMNS, COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from fluss_df.record.kv.primary_key import refuse_keys_finer_than_iceberg
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.table import Table

_LOG_METADATA = (LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN)


@dataclass(slots=True)
class IcebergWritten(Written):
    """What a task wrote; pickles the spec ids of pyiceberg's files, too."""

    def __getstate__(self) -> Any:
        # pyiceberg leaves them out when it pickles files; new files do not have them yet
        both = (self.added, self.removed)
        specs = [[getattr(file, "_spec_id", None) for file in files] for files in both]
        return self.added, self.removed, self.rows, self.offsets, self.timestamps, specs

    def __setstate__(self, state: Any) -> None:
        self.added, self.removed, self.rows, self.offsets, self.timestamps, specs = state
        for files, ids in zip((self.added, self.removed), specs, strict=True):
            for file, spec_id in zip(files, ids, strict=True):
                if spec_id is not None:
                    file.spec_id = spec_id


class IcebergTaskWriter:
    """Writes the tasks of one table's round, as planned with the lake snapshot ``snapshot_id``.

    The id is None before the first snapshot. ``files`` are those of a primary-key table in the
    snapshot; None has the writer find them.

    Raises FlussError for a table whose rows the lake cannot keep apart, before a file is written.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        table: Table,
        snapshot_id: int | None,
        files: Mapping[Partition, PartitionFiles] | None = None,
    ) -> None:
        refuse_keys_finer_than_iceberg(info.table_path, info.descriptor)
        self.connection = connection
        self.info = info
        self.snapshot_id = snapshot_id
        self._path = info.table_path
        self._lake = LakeFiles(table)
        self._reader = SplitReader(connection, info)
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
        """Write a task's files; where that raises, none of them is left."""
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
        result = IcebergWritten(offsets={split.key: split.stop})
        writer = self._lake.writer(partition)
        schema = self._lake.arrow_schema
        with undoing(writer.abort):
            for rows in self._reader.log(split, _LOG_METADATA, result):
                writer.write(to_lake(rows, schema, split.bucket.bucket_id, self._path))
            result.added = writer.close()
        return result

    def _replace(self, split: Split, partition: Partition, existing: PartitionFiles) -> Written:
        keys = self.info.get_primary_keys()
        result = IcebergWritten(offsets={split.key: split.stop})
        rows: Iterator[pa.Table]
        if split.snapshot:
            touched = self._touched(split, existing, result)
            current = self._reader.current_rows(split, result, ends=not existing.data)
            schema, bucket = self._lake.arrow_schema, split.bucket.bucket_id
            rows = (to_lake(table, schema, bucket, self._path) for table in current)
            if existing.data:
                rows = (_rows_of(self._lake, keys, touched, table) for table in rows)
        else:
            changes = list(self._reader.log(split, CHANGELOG_COLUMNS, result))
            lake = self._lake
            touched, new = last_changes(changes, keys, lambda rows: _as_lake_keys(lake, keys, rows))
            del changes
            schema = self._lake.arrow_schema
            rows = iter([to_lake(new, schema, split.bucket.bucket_id, self._path)])
        replacement = replace_rows(self._lake, partition, existing, keys, touched, rows)
        result.added, result.removed = list(replacement.added), list(replacement.removed)
        return result

    def _touched(self, split: Split, existing: PartitionFiles, result: Written) -> pl.DataFrame:
        """Return the keys in a bucket whose rows in the lake are replaced by its current ones.

        The lake has rows of the bucket where its partition was dropped, and made again. Rows of
        other keys stay in the lake, as those of any dropped partition do. The current rows are
        read after these keys, and the bucket's end is that of the keys: changes in between are
        read again.
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
        scanner = self._reader.scanner(split, keys)
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
        return IcebergWritten(list(done.added), list(done.removed))


def _as_lake_keys(lake: LakeFiles, keys: Sequence[str], rows: pa.Table) -> pl.DataFrame:
    """Return keys with the types that they have in lake files."""
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    columns = [lake_cast(rows.column(field.name), field.type) for field in schema]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(columns, schema=schema)))


def _rows_of(
    lake: LakeFiles, keys: Sequence[str], touched: pl.DataFrame, rows: pa.Table
) -> pa.Table:
    """Return the rows of some keys: others came after the keys were read, as the next round's."""
    there, row = with_row_number(_as_lake_keys(lake, keys, rows))
    kept = there.join(touched, on=columns(keys), how="semi", maintain_order="left")
    return rows.take(kept[row].to_arrow())


def _empty_keys(lake: LakeFiles, keys: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    schema = pa.schema([lake.arrow_schema.field(key) for key in keys])
    empty: Any = pl.from_arrow(pa.Table.from_batches([], schema))
    return pl.DataFrame(empty)
