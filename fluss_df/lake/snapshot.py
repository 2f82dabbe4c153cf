"""The interface of lakes for scans, whatever the format: one snapshot's files, and their rows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import polars as pl

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.offsets import Offsets
from fluss_df.metadata import TablePath
from fluss_df.pushdown.predicate import Predicate


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows.

    ``path`` is as Polars names it. Deleted rows count among ``rows``. ``size`` is in bytes.
    ``partition`` has the texts of the partition values by column; it is empty where the table has
    no partitions.
    """

    path: str
    rows: int
    size: int
    partition: dict[str, str]


F = TypeVar("F", bound=DataFile)


class LakeSnapshotFiles(ABC, Generic[F]):
    """One snapshot of a lake table, which never changes.

    Parameters
    ----------
    path
        The table.
    files
        Its files with rows.
    delete_files
        How many files say which rows are deleted.
    lost
        Names of columns that the lake table had, and has no more: dropped or renamed by hand.
    has_own_columns
        Whether tiering services add the bucket, offset and time of each row.
    offsets
        How far each bucket is in it, where its number does not tell it from another snapshot, and
        it says so itself; else None.
    """

    def __init__(
        self,
        path: TablePath,
        files: Sequence[F],
        delete_files: int,
        lost: Iterable[str] = (),
        *,
        has_own_columns: bool = True,
        offsets: Offsets | None = None,
    ) -> None:
        self.path = path
        self.lost = frozenset(lost)
        self.has_own_columns = has_own_columns
        self.offsets = offsets
        self.files = tuple(files)
        self.delete_files = delete_files

    @abstractmethod
    def wanted(self, predicates: Sequence[Predicate]) -> list[F]:
        """Return the files that must be read for the rows that satisfy all of some predicates."""

    @abstractmethod
    def frame(self, files: Sequence[F]) -> pl.LazyFrame:
        """Return the rows of files, with all columns of the lake table.

        The files must be whole groups of this snapshot; see :meth:`groups`.
        """

    def groups(self, files: Iterable[F]) -> list[tuple[F, ...]]:
        """Return the files in groups, each of which is read as one."""
        return [(file,) for file in files]

    def at(self, paths: Collection[str]) -> list[F]:
        """Return the files of these paths.

        Raises ``LAKE_SNAPSHOT_NOT_EXIST`` where the snapshot has no such file: the lake table was
        rolled back, or made again, after a query was planned.
        """
        lost = sorted({*paths} - {file.path for file in self.files})
        if lost:
            raise file_gone(self.path, lost[0])
        return [file for file in self.files if file.path in paths]

    def require_there(
        self, files: Iterable[DataFile], deletes: Iterable[tuple[str, int]] = ()
    ) -> None:
        """Look whether local files are complete, because Polars names neither table nor file.

        ``files`` have rows. ``deletes`` has the paths of the files that say which rows are deleted,
        each with its size in bytes. Raises ``LAKE_SNAPSHOT_NOT_EXIST`` for a file that is gone and
        ``CORRUPT_MESSAGE`` for one that is cut off, and names table and file.
        """
        for path, size in (*((file.path, file.size) for file in files), *deletes):
            if not path.startswith("/"):
                continue
            try:
                there = os.stat(path).st_size
            except (FileNotFoundError, ValueError) as error:
                # ValueError: a damaged manifest may have a name that no file can have
                raise file_gone(self.path, path) from error
            except OSError:
                continue  # Polars says why it cannot be read
            if there != size:
                raise FlussError(
                    f"lake table {self.path}: the file {path} of its snapshot is damaged: it has"
                    f" {there:,} bytes, and had {size:,}; put the file back, from a backup for"
                    " example; lake=False reads what Fluss itself has",
                    ErrorCode.CORRUPT_MESSAGE,
                )


def file_gone(path: TablePath, file: str, cause: Any = None) -> FlussError:
    """Return the error for a file of a snapshot that is not there."""
    why = f" ({cause})" if cause is not None else ""
    return FlussError(
        f"lake table {path}: the file {file} of its snapshot is gone{why}: was the snapshot expired"
        " meanwhile, or the file deleted by hand? Run the query again; lake=False reads what Fluss"
        " itself has",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )


def local_path(path: str) -> str:
    """Return how Polars names a file: lakes write ``file:/a/b`` and ``file:///a/b`` too."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path
