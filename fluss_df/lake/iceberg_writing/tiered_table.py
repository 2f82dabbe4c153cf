"""An Iceberg table as rounds of tiering use it: to plan, to write and to commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StaticTable

from fluss_df.client.context import ClientContext
from fluss_df.errors import FlussError
from fluss_df.lake.iceberg.files import ancestors
from fluss_df.lake.iceberg_writing.commit import commit_snapshot
from fluss_df.lake.iceberg_writing.compaction import compact
from fluss_df.lake.iceberg_writing.files import LakeFiles
from fluss_df.lake.iceberg_writing.live_rows import files_by_partition
from fluss_df.lake.iceberg_writing.tasks import IcebergTaskWriter
from fluss_df.lake.offsets import offsets_in
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY
from fluss_df.lake.rounds.offsets import COMMIT_USER, TieredSnapshot
from fluss_df.lake.rounds.split import Split, lake_partition
from fluss_df.lake.rounds.tasks import TaskWriter, WriteTask, Written
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, TieredLake
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from pyiceberg.table import Table

COMMIT_USER_PROPERTY: Final = "commit-user"


def newest_tiered(table: Table) -> TieredSnapshot | None:
    """Return the newest tiered snapshot that the table is made of; None where there is none."""
    for snapshot in ancestors(table):
        summary = snapshot.summary
        if summary is None or summary.get(COMMIT_USER_PROPERTY) != COMMIT_USER:
            continue
        return TieredSnapshot(
            snapshot.snapshot_id,
            summary.get(OFFSETS_PATH_PROPERTY),
            offsets_in(summary),
            snapshot.timestamp_ms,
        )
    return None


class IcebergLake(TieredLake):
    """An Iceberg table that is tiered into.

    Raises FlussError for a Hadoop catalog: only Java clients can commit to it.
    """

    def __init__(self, info: TableInfo, table: Table) -> None:
        super().__init__(info)
        if isinstance(table, StaticTable):
            raise FlussError(
                f"table {self.path}: its Iceberg catalog is Hadoop's, in which only Java commits;"
                " tier it with Flink's service, or give the cluster a JDBC or REST catalog"
            )
        self._table = table
        self._base = table.metadata.current_snapshot_id
        self._files = files_by_partition(table) if info.has_primary_key() else {}

    def newest_tiered(self) -> TieredSnapshot | None:  # noqa: D102
        return newest_tiered(self._table)

    def tasks(self, splits: Sequence[Split]) -> list[WriteTask]:  # noqa: D102
        tasks = [WriteTask(lake_partition(split), split) for split in splits]
        dirty = {partition for partition, found in self._files.items() if found.deletes}
        busy = {task.partition for task in tasks}
        return [*tasks, *(WriteTask(partition, None) for partition in dirty - busy)]

    def writer(self, connection: ClientContext) -> TaskWriter:  # noqa: D102
        writer = IcebergTaskWriter(connection, self.info, self._table, self._base, self._files)
        self.require_columns(writer.lake.arrow_schema.names)
        return writer

    def writer_at(  # noqa: D102
        self, connection: ClientContext, snapshot_id: int | None
    ) -> TaskWriter:
        return IcebergTaskWriter(connection, self.info, self._table, snapshot_id)

    def commit(  # noqa: D102
        self, written: Sequence[Written], properties: Mapping[str, str]
    ) -> int:
        added = [file for part in written for file in part.added]
        removed = [file for part in written for file in part.removed]
        deletes = [delete for found in self._files.values() for delete in found.deletes]
        summary = {COMMIT_USER_PROPERTY: COMMIT_USER, **properties}
        try:
            return commit_snapshot(self._table, added, removed, deletes, summary)
        except CommitFailedException as error:
            raise LakeMovedError(str(error)) from error

    def compacted(self, properties: Mapping[str, str]) -> int | None:  # noqa: D102
        if self.info.has_primary_key():
            return None  # here each round merges the small files of the partitions it writes
        return compact(self._table, {COMMIT_USER_PROPERTY: COMMIT_USER, **properties})

    def discard(self, written: Iterable[Written]) -> None:  # noqa: D102
        LakeFiles(self._table).delete(file for part in written for file in part.added)
