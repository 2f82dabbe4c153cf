"""One snapshot of an Iceberg table, as scans want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from fluss_df.lake.iceberg.access import StorageAccess
from fluss_df.lake.iceberg.files import LakeFile, snapshot_files
from fluss_df.lake.iceberg.frames import lake_columns, lake_frame
from fluss_df.lake.iceberg.pruning import file_filter
from fluss_df.lake.snapshot import DataFile, LakeSnapshotFiles, local_path
from fluss_df.metadata import TablePath
from fluss_df.pushdown.predicate import Predicate

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class IcebergFile(DataFile):
    """A file with rows, and what its manifest says of it."""

    entry: LakeFile


class IcebergSnapshot(LakeSnapshotFiles[IcebergFile]):
    """One snapshot of an Iceberg table.

    Raises FlussError where the table does not have the snapshot any more, or where a file is not
    Parquet. ``reopen`` opens the table again when its credentials end; None where it cannot be
    opened again.
    """

    def __init__(
        self,
        path: TablePath,
        table: Table,
        snapshot_id: int,
        reopen: Callable[[], Table] | None = None,
    ) -> None:
        self._table = table
        self._access = StorageAccess(table, reopen)
        self._parts = snapshot_files(table, snapshot_id)
        deletes = len(self._parts.positions) + len(self._parts.equalities)
        now = {field.name for field in table.schema().fields}
        ever = {field.name for schema in table.schemas().values() for field in schema.fields}
        rows = [_file(table, entry) for entry in self._parts.rows]
        super().__init__(path, rows, deletes, ever - now)
        # computed once: it takes longer than the rest of planning a query
        self._columns = lake_columns(table)
        # the frame of all files, which a query that nothing prunes reads; without deletes it is
        # no more than their names
        self._whole: pl.LazyFrame | None = None

    def wanted(self, predicates: Sequence[Predicate]) -> list[IcebergFile]:  # noqa: D102
        keep = file_filter(self._table, predicates)
        return [file for file in self.files if keep(file.entry.file)]

    def frame(self, files: Sequence[IcebergFile]) -> pl.LazyFrame:  # noqa: D102
        deletes = (*self._parts.positions, *self._parts.equalities) if files else ()
        sizes = [(e.file.file_path, e.file.file_size_in_bytes) for e in deletes]
        self.require_there(files, [(local_path(str(path)), int(size)) for path, size in sizes])
        is_whole = not deletes and len(files) == len(self.files)
        if is_whole and self._whole is not None:
            return self._whole
        parts = replace(self._parts, rows=tuple(file.entry for file in files))
        frame = lake_frame(self._table, parts, access=self._access, columns_of=self._columns)
        if is_whole:
            self._whole = frame
        return frame


def _file(table: Table, entry: LakeFile) -> IcebergFile:
    file = entry.file
    fields = table.specs()[file.spec_id].fields
    partition = {field.name: str(file.partition[i]) for i, field in enumerate(fields)}
    size = int(file.file_size_in_bytes)
    return IcebergFile(
        local_path(str(file.file_path)), int(file.record_count), size, partition, entry
    )
