"""The commit in the lake, which alone decides what is tiered."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.table.update.snapshot import _SnapshotProducer

from fluss_df.lake.iceberg.checked_files import entries_of, manifests_of
from fluss_df.lake.rounds.tiered_lake import NotCommittedError

if TYPE_CHECKING:
    from pyiceberg.table import Table

_DATA = ManifestContent.DATA


class _Replace(_SnapshotProducer["_Replace"]):
    """A snapshot with files added and, of older ones, data files and all delete files left out."""

    added: Sequence[DataFile] = ()
    removed: frozenset[str] = frozenset()
    dropped_deletes: Sequence[DataFile] = ()
    same_rows: bool = False

    def _build_delete_files_partition_predicate(self) -> None:
        """Have every manifest read: a bucket's number gives no predicate on its column."""

    def _entries(self) -> list[tuple[ManifestFile, list[ManifestEntry]]]:
        snapshot = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        if snapshot is None:
            return []
        return [
            (manifest, entries_of(manifest, self._io))
            if self.removed and manifest.content == _DATA
            else (manifest, [])
            for manifest in manifests_of(snapshot, self._io)
            # manifests that list only removed files belong to the snapshot that removed them
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _existing_manifests(self) -> list[ManifestFile]:
        kept = []
        for manifest, entries in self._entries():
            if manifest.content != _DATA:
                if not self.dropped_deletes:
                    kept.append(manifest)
                continue
            rest = [entry for entry in entries if entry.data_file.file_path not in self.removed]
            if len(rest) == len(entries):
                kept.append(manifest)
            elif rest:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in rest:
                        writer.existing(entry)
                kept.append(writer.to_manifest_file())
        return kept

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.DELETED,
                snapshot_id=self._snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                data_file=entry.data_file,
            )
            for entry in itertools.chain.from_iterable(entries for _, entries in self._entries())
            if entry.data_file.file_path in self.removed
        ]

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        # dropped delete files count as removed in the totals, but no manifest lists them
        before = self._deleted_data_files
        self._deleted_data_files = before | set(self.dropped_deletes)
        try:
            summary = super()._summary(snapshot_properties or {})
        finally:
            self._deleted_data_files = before
        if self.same_rows:
            return Summary(Operation.REPLACE, **summary.additional_properties)
        return summary


def commit_snapshot(
    table: Table,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    dropped_deletes: Sequence[DataFile],
    properties: Mapping[str, str],
    *,
    same_rows: bool = False,
) -> int:
    """Commit a snapshot on top of the one that ``table`` was loaded with; return its id.

    It is tried once, and the catalog refuses it when anybody committed meanwhile: offsets that were
    read before would not be those that the rows are added to.

    Raises pyiceberg.exceptions.CommitFailedException when the table is another by now, and
    NotCommittedError where the files of the snapshot cannot be written; nothing was committed.

    Parameters
    ----------
    table
        The table as it was when the round was planned.
    added
        New data files.
    removed
        Data files that the new snapshot does not have any more.
    dropped_deletes
        All delete files of the table, where none applies to a file that stays; else none.
    properties
        For the snapshot's summary.
    same_rows
        Whether the new files have exactly the rows of the removed ones.
    """
    transaction = table.transaction()
    replaces = bool(removed or dropped_deletes)
    producer = _Replace(
        Operation.OVERWRITE if replaces else Operation.APPEND,
        transaction,
        table.io,
        snapshot_properties=dict(properties),
    )
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    producer.removed = frozenset(file.file_path for file in removed)
    producer.dropped_deletes = dropped_deletes
    producer.same_rows = same_rows
    # Not Transaction.commit_transaction(): that begins again on top of what others committed.
    try:
        updates, requirements = producer._commit()
    except Exception as error:
        # the commit was not requested yet
        producer._clean_all_uncommitted()
        raise NotCommittedError(
            f"lake table {'.'.join(table.name())}: the manifests of its next snapshot cannot be"
            f" written: {error}; nothing was committed"
        ) from error
    # without this, another table that got the name meanwhile would accept a first snapshot
    same_table = AssertTableUUID.model_validate({"uuid": table.metadata.table_uuid})
    try:
        table._do_commit(updates=updates, requirements=(*requirements, same_table))
    except CommitFailedException:
        # After another error the snapshot may be in the table all the same.
        producer._clean_all_uncommitted()
        raise
    return producer.snapshot_id
