"""The live rows of Iceberg data files: those that no delete file deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from fluss_df.errors import FlussError
from fluss_df.lake.iceberg.checked_files import entries_of, manifests_of
from fluss_df.lake.iceberg.frames import columns as exactly
from fluss_df.lake.iceberg.frames import with_row_number
from fluss_df.lake.rounds.lake_rows import FIELD_ID, named_by_ids, viewed
from fluss_df.lake.rounds.split import Partition

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_BATCH_ROWS = 1 << 16


@dataclass(slots=True)
class PartitionFiles:
    """The files of one partition of the lake table, each with its sequence number."""

    data: list[tuple[int, DataFile]] = field(default_factory=list)
    position_deletes: list[tuple[int, DataFile]] = field(default_factory=list)
    equality_deletes: list[tuple[int, DataFile]] = field(default_factory=list)

    @property
    def deletes(self) -> list[DataFile]:
        """All delete files."""
        return [file for _, file in [*self.position_deletes, *self.equality_deletes]]


def files_by_partition(
    table: Table, snapshot: Snapshot | None = None
) -> dict[Partition, PartitionFiles]:
    """Return the files of a snapshot; of the current one where none is given."""
    snapshot = snapshot or table.current_snapshot()
    partitions: dict[Partition, PartitionFiles] = {}
    if snapshot is None:
        return partitions
    for manifest in manifests_of(snapshot, table.io):
        for entry in entries_of(manifest, table.io):
            file = entry.data_file
            if file.file_format != FileFormat.PARQUET:
                raise FlussError(
                    f"the lake table {'.'.join(table.name())} has the file {file.file_path}, which"
                    " is not Parquet: fluss_df tiers into Parquet files only"
                )
            values = file.partition
            partition = tuple(values[place] for place in range(len(values)))
            files = partitions.setdefault(partition, PartitionFiles())
            kind = {
                DataFileContent.DATA: files.data,
                DataFileContent.POSITION_DELETES: files.position_deletes,
                DataFileContent.EQUALITY_DELETES: files.equality_deletes,
            }[file.content]
            kind.append((entry.sequence_number or 0, file))
    return partitions


class LiveRows:
    """Reads the rows of one partition's data files without those that are deleted."""

    def __init__(self, table: Table, files: PartitionFiles) -> None:
        self._table = table
        self._files = files
        self._names = {field.field_id: field.name for field in table.schema().fields}
        self._keys: dict[str, tuple[list[str], pl.DataFrame]] = {}
        self._positions: list[tuple[int, pl.DataFrame]] | None = None

    def has_deletes(self, sequence: int, file: DataFile) -> bool:
        """Whether a delete file may delete rows of a data file."""
        return bool(
            [1 for at, _ in self._files.position_deletes if at >= sequence]
            or [1 for at, _ in self._files.equality_deletes if at > sequence]
        )

    def batches(
        self, sequence: int, file: DataFile, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the live rows of a data file, which has this sequence number.

        ``columns`` are the names of the columns to return, None for all. The key columns of
        equality deletes are read as well, and left out of the result.
        """
        deleted = self._deleted_positions(sequence, file)
        equal = [
            found
            for at, delete in self._files.equality_deletes
            if at > sequence and (found := self._equality(delete))[1].height
        ]
        needed = columns
        if columns is not None:
            needed = list(dict.fromkeys([*columns, *(name for keys, _ in equal for name in keys)]))
        at = 0
        for rows in self._read(file, needed):
            count = rows.num_rows
            keep = np.ones(count, dtype=bool)
            here = deleted[np.searchsorted(deleted, at) : np.searchsorted(deleted, at + count)]
            keep[here - at] = False
            at += count
            for keys, values in equal:
                of_rows = pl.DataFrame(pl.from_arrow(rows.select(keys)))
                # either file may be older than a change of a key to a wider type
                both = [of_rows.clear(), values.clear()]
                wide: Any = dict(pl.concat(both, how="vertical_relaxed").schema)
                frame, row = with_row_number(of_rows.cast(wide))
                gone = frame.join(values.cast(wide), on=exactly(keys), how="semi", nulls_equal=True)
                keep[gone[row].to_numpy()] = False
            live = rows if keep.all() else rows.filter(pa.array(keep))
            yield live if columns is None else live.select(list(columns))

    def _read(self, file: DataFile, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        with self._table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream, pre_buffer=False)
            # Columns are matched by field id, as in Iceberg: a file may have older names.
            names: dict[str, str] = {}
            for column in parquet.schema_arrow:
                text = (column.metadata or {}).get(FIELD_ID)
                name = column.name if text is None else self._names.get(int(text))
                if name is not None and (columns is None or name in columns):
                    names[column.name] = name
            kinds = {
                name: named_by_ids(parquet.schema_arrow.field(name).type, self._name_of)
                for name in names
            }
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(names)):
                read = pa.Table.from_batches([batch])
                yield pa.table(
                    {
                        names[name]: viewed(read.column(name), kinds[name])
                        for name in read.column_names
                    }
                )

    def _name_of(self, field_id: int) -> str | None:
        try:
            return self._table.schema().find_field(field_id).name
        except ValueError:
            return None

    def _equality(self, file: DataFile) -> tuple[list[str], pl.DataFrame]:
        if file.file_path not in self._keys:
            names = [self._names[identifier] for identifier in file.equality_ids or ()]
            # A delete file without rows yields no batch, and there is no concat of nothing.
            tables = [
                pl.DataFrame(pl.from_arrow(rows.select(names)))
                for rows in self._read(file, names)
                if rows.num_rows
            ]
            frame = pl.concat(tables).unique() if tables else pl.DataFrame()
            self._keys[file.file_path] = names, frame
        return self._keys[file.file_path]

    def _deleted_positions(self, sequence: int, file: DataFile) -> np.ndarray[Any, Any]:
        if self._positions is None:
            self._positions = []
            for at, delete in self._files.position_deletes:
                with self._table.io.new_input(delete.file_path).open() as stream:
                    rows = pq.read_table(stream, columns=["file_path", "pos"])
                self._positions.append((at, pl.DataFrame(pl.from_arrow(rows))))
        found = [
            frame.filter(pl.col("file_path") == file.file_path)["pos"].to_numpy()
            for at, frame in self._positions
            if at >= sequence
        ]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
