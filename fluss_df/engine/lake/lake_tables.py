"""The interface by which an engine asks the lake in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor

#: Which lake tables a backup has; a catalog is made of it.
LAKE_TABLES: Final = "tables.json"


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A table, and the lake snapshot that a backup has of it.

    ``snapshot`` is None where nothing was tiered.
    """

    id: int
    path: TablePath
    snapshot: int | None


@dataclass(frozen=True, slots=True)
class LakeTableCopy:
    """A lake table as a backup has it; all names are paths below the lake.

    ``row`` is its line among the lake tables. ``made`` has the files that are made for the backup.
    ``files`` has the others, and where they are.
    """

    row: Mapping[str, str]
    made: Mapping[str, bytes]
    files: Mapping[str, Path]


class LakeTables(Protocol):
    """The lake tables of a folder."""

    def require(self) -> None:
        """Raise where lake tables cannot be made, as where a package is missing."""

    def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a table that is about to be created."""

    def created(self) -> None:
        """Take note that a table with a lake is there."""

    def altering(self, path: TablePath, old: Schema, new: Schema) -> AbstractContextManager[None]:
        """Give a lake table other columns; the old ones again where the block ends in an error."""

    def drop(self, path: TablePath) -> None:
        """Remove the lake table of a table that was dropped."""

    def committed(self, path: TablePath) -> None:
        """Take note that a table has a new lake snapshot."""

    def copy(
        self, pinned: Iterable[PinnedTable], there: Callable[[int], bool]
    ) -> AbstractContextManager[Mapping[int, LakeTableCopy]]:
        """Give copies of lake tables, by table id, that stay as they are until the end.

        A table that is not ``there`` any more is left out.
        """

    def properties(self) -> Mapping[str, str]:
        """Return the properties by which clients find the lake."""

    def close(self) -> None:
        """Let go of the folder; called before the engine is closed."""

    def opened(self, tables: Iterable[tuple[TablePath, TableDescriptor, int | None]]) -> None:
        """Take note of the tables with a lake in a folder that is opened.

        With each goes its lake snapshot; None where nothing was tiered.
        """

    @property
    def problem(self) -> str | None:
        """Why the lake cannot be used; None where it can."""

    def problem_of(self, path: TablePath) -> str | None:
        """Why the lake of a table cannot be used; None where it can."""
