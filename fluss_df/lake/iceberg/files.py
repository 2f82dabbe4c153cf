"""The files of one snapshot of an Iceberg table: rows, and what deletes rows of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluss_df.errors import ErrorCode, FlussError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a snapshot, with its data sequence number.

    Deletes by values apply to files with a lower sequence number, deletes by position also to files
    with the same one.
    """

    file: DataFile
    sequence: int


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files of a snapshot.

    ``rows`` are its data files. The files in ``positions`` name deleted rows by file and position.
    Those in ``equalities`` have values of columns: the rows with these values are deleted.
    """

    snapshot_id: int
    rows: tuple[LakeFile, ...]
    positions: tuple[LakeFile, ...]
    equalities: tuple[LakeFile, ...]


def snapshot_files(table: Table, snapshot_id: int) -> SnapshotFiles:
    """Return the files of a snapshot, which stays what it is.

    Raises FlussError where the table does not have the snapshot any more, or where a file is not
    Parquet.
    """
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise FlussError(
            f"lake table {'.'.join(table.name())}: the snapshot {snapshot_id}, which the cluster"
            " says is the newest that can be read, is not in its catalog: was it expired, or the"
            " table made again by hand?",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    try:
        return _read(table, snapshot)
    except FileNotFoundError as error:
        raise FlussError(
            f"lake table {'.'.join(table.name())}: a file of the snapshot {snapshot_id} is gone:"
            f" {error}: was it expired meanwhile? Run the query again; lake=False reads what Fluss"
            " itself has",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        ) from error


def _read(table: Table, snapshot: Snapshot) -> SnapshotFiles:
    from pyiceberg.manifest import DataFileContent, FileFormat

    from fluss_df.lake.iceberg.checked_files import entries_of, manifests_of

    found: dict[DataFileContent, list[LakeFile]] = {content: [] for content in DataFileContent}
    for manifest in manifests_of(snapshot, table.io):
        for entry in entries_of(manifest, table.io):
            file = entry.data_file
            if file.file_format is not FileFormat.PARQUET:
                raise FlussError(
                    f"lake table {'.'.join(table.name())}: {file.file_path} is"
                    f" {file.file_format.value}, and only Parquet is read",
                    ErrorCode.UNSUPPORTED_VERSION,
                )
            found[file.content].append(LakeFile(file, entry.sequence_number or 0))
    return SnapshotFiles(
        snapshot.snapshot_id,
        tuple(found[DataFileContent.DATA]),
        tuple(found[DataFileContent.POSITION_DELETES]),
        tuple(found[DataFileContent.EQUALITY_DELETES]),
    )


def ancestors(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot, and those before it as far as they are not expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


@functools.lru_cache(maxsize=1 << 12)
def _ids(equality_ids: tuple[int, ...], fields: tuple[tuple[int, str], ...]) -> tuple[str, ...]:
    names = dict(fields)
    return tuple(names[number] for number in equality_ids)


def deleted_by(table: Table, file: DataFile) -> Sequence[str]:
    """Return the names of the columns by which a file deletes rows."""
    fields = tuple((field.field_id, field.name) for field in table.schema().fields)
    return _ids(tuple(file.equality_ids or ()), fields)
