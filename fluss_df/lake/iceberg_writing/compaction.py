"""Many small files of a partition become one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.types import LongType

from fluss_df.hooks import undoing
from fluss_df.lake.iceberg.checked_files import manifests_of
from fluss_df.lake.iceberg_writing.commit import commit_snapshot
from fluss_df.lake.iceberg_writing.files import LakeFiles
from fluss_df.lake.iceberg_writing.live_rows import LiveRows, PartitionFiles, files_by_partition
from fluss_df.lake.options import OFFSET
from fluss_df.lake.rounds.tiered_lake import NotCommittedError
from fluss_df.record.layout.columns import with_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table

logger = logging.getLogger("fluss_df.lake.tiering")

# a file of fewer bytes is small; this number of small files of a partition is merged
_SMALL_BYTES = 16 << 20
_SMALL_FILES = 8


def small_files(files: PartitionFiles) -> list[tuple[int, DataFile]]:
    """Return the small files of a partition, where there are too many; else none."""
    small = [(at, file) for at, file in files.data if file.file_size_in_bytes < _SMALL_BYTES]
    return small if len(small) >= _SMALL_FILES else []


def compact(table: Table, properties: Mapping[str, str]) -> int | None:
    """Merge the small files of a log table; return the snapshot that has the merged ones.

    Rows keep the order of their offsets. ``table`` is loaded after this service's commit, and
    ``properties`` are those of that commit, because merging does not change how far the table is
    tiered. Returns None where there was nothing to merge, or another writer committed meanwhile.
    """
    snapshot = table.current_snapshot()
    # every commit writes a manifest: where there are few of these, there are few small files
    if snapshot is None or len(manifests_of(snapshot, table.io)) < _SMALL_FILES:
        return None
    lake = LakeFiles(table)
    added: list[DataFile] = []
    removed: list[DataFile] = []
    with undoing(lambda: lake.delete(added)):
        for partition, files in files_by_partition(table).items():
            small = [] if files.deletes else small_files(files)
            if not small:
                continue
            live = LiveRows(table, files)
            writer = lake.writer(partition)
            with undoing(writer.abort):
                for sequence, file in sorted(small, key=lambda one: _first_offset(table, one[1])):
                    for batch in live.batches(sequence, file):
                        writer.write(with_columns(batch, lake.arrow_schema))
                added += writer.close()
            removed += [file for _, file in small]
    if not removed:
        return None
    try:
        return commit_snapshot(table, added, removed, [], properties, same_rows=True)
    except CommitFailedException:
        logger.info("table %s: small files are merged later", ".".join(table.name()))
        lake.delete(added)
        return None
    except NotCommittedError:
        lake.delete(added)
        raise
    # after another error the files stay: a catalog that fails may have the snapshot


def _first_offset(table: Table, file: DataFile) -> int:
    bound = (file.lower_bounds or {}).get(table.schema().find_field(OFFSET).field_id)
    return 0 if bound is None else int(from_bytes(LongType(), bound))
