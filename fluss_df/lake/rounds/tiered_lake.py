"""The interface of lake tables for rounds of tiering, whatever the format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from fluss_df.client.context import ClientContext
from fluss_df.errors import FlussError
from fluss_df.lake.rounds.lake_rows import SYSTEM_COLUMNS
from fluss_df.lake.rounds.offsets import TieredSnapshot
from fluss_df.lake.rounds.split import Split
from fluss_df.lake.rounds.tasks import TaskWriter, WriteTask, Written
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo


class NotCommittedError(FlussError):
    """The round ended before its commit: nothing of it is in the lake."""


class LakeMovedError(NotCommittedError):
    """Somebody committed to the lake table since the round was planned."""


class TieredLake(ABC):
    """The lake table of a table, as it was when it was opened; a round is planned with it."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info

    @property
    def path(self) -> TablePath:
        """The table."""
        return self.info.table_path

    @abstractmethod
    def newest_tiered(self) -> TieredSnapshot | None:
        """Return the newest snapshot that a tiering service made; None where there is none."""

    @abstractmethod
    def tasks(self, splits: Sequence[Split]) -> list[WriteTask]:
        """Return the tasks that write parts of the log, and those that the lake itself needs."""

    @abstractmethod
    def writer(self, connection: ClientContext) -> TaskWriter:
        """Return the writer of the tasks.

        Raises FlussError where the columns of the lake table are not those of the table.
        """

    @abstractmethod
    def writer_at(self, connection: ClientContext, snapshot_id: int | None) -> TaskWriter:
        """Return the writer of tasks that another process planned with a snapshot."""

    @abstractmethod
    def commit(self, written: Sequence[Written], properties: Mapping[str, str]) -> int:
        """Commit all that the tasks wrote as one snapshot; return its id.

        It comes on top of what the round was planned with. ``properties`` are the snapshot's, and
        say how far the table is tiered.

        Raises LakeMovedError when the lake table is another by now, and NotCommittedError where it
        is certain that nothing was committed. Any other exception is the catalog's, and leaves it
        open whether the snapshot was committed.
        """

    def compacted(self, properties: Mapping[str, str]) -> int | None:
        """Merge small files after a commit; return the snapshot that has the merged ones, if any.

        ``properties`` are those of the commit, because merging does not change how far the table is
        tiered.
        """
        return None

    @abstractmethod
    def discard(self, written: Iterable[Written]) -> None:
        """Delete files that no snapshot has; what cannot be deleted is left."""

    def require_columns(self, names: Iterable[str], *, system: bool = True) -> None:
        """Raise FlussError where the lake table lacks columns of the table, and name them.

        ``names`` are the columns that the lake table has. ``system`` says whether it must also have
        the columns that tiering services add.
        """
        there = set(names)
        missing = set(self.info.get_column_names()) - there
        if missing:
            raise FlussError(
                f"table {self.path} has the columns {sorted(missing)}, which its lake table lacks:"
                " add them to the lake table"
            )
        if system and not set(SYSTEM_COLUMNS) <= there:
            raise FlussError(
                f"the lake table of {self.path} has no columns {', '.join(SYSTEM_COLUMNS)}: it is"
                " not one that Fluss made"
            )
