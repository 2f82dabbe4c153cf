"""What an engine asks of the lake in its folder, which stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fluss_df.metadata import TablePath
from fluss_df.schema import TableDescriptor


class LakeTables(Protocol):
    """The lake tables of a folder."""

    def require(self) -> None:
        """Raise where lake tables cannot be made, as where a package is missing."""

    def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a table that is about to be created."""

    def created(self) -> None:
        """Take note that a table with a lake is there."""

    def drop(self, path: TablePath) -> None:
        """Remove the lake table of a table that was dropped."""

    def committed(self, path: TablePath) -> None:
        """Take note that a table has a new lake snapshot."""

    def properties(self) -> Mapping[str, str]:
        """Return the properties by which clients find the lake."""

    def close(self) -> None:
        """Let go of the folder; called before the engine is closed."""

    def opened(self, tables: Iterable[tuple[TablePath, TableDescriptor, bool]]) -> None:
        """Take note of the tables with a lake in a folder that is opened.

        With each goes whether anything of it was tiered.
        """

    @property
    def problem(self) -> str | None:
        """Why the lake cannot be used; None where it can."""
