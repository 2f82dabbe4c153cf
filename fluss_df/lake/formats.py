"""Which package reads a lake of which format."""

from __future__ import annotations

from typing import Any

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import LakeOptions, lake_options
from fluss_df.lake.snapshot import LakeSnapshotFiles
from fluss_df.schema import TableInfo


def open_snapshot(info: TableInfo, snapshot_id: int) -> LakeSnapshotFiles[Any]:
    """Return the files of a snapshot of the lake table of a table.

    Raises FlussError where the format is not read, its extra is not installed, the lake cannot be
    reached, or the snapshot is not there.
    """
    options = lake_options(info)
    try:
        return _opened(options, snapshot_id)
    except FlussError:
        raise
    except Exception as error:
        # of damaged manifests, and of each kind of storage, errors are of many kinds
        code = ErrorCode.CORRUPT_MESSAGE
        if isinstance(error, OSError):
            code = ErrorCode.NETWORK_EXCEPTION
        raise FlussError(
            f"lake table {options.path}: the manifests of the snapshot {snapshot_id} cannot be"
            f" read: {type(error).__name__}: {options.redacted(str(error))}; lake=False reads what"
            " Fluss itself has",
            code,
        ) from error


def _opened(options: LakeOptions, snapshot_id: int) -> LakeSnapshotFiles[Any]:
    # not imported before it is known that the table needs it: each has an extra of its own
    if options.format == "paimon":
        from fluss_df.lake.paimon.catalog import open_paimon

        return open_paimon(options, snapshot_id)
    from fluss_df.lake.iceberg.catalog import open_lake_table

    table = open_lake_table(options)
    from fluss_df.lake.iceberg.snapshot import IcebergSnapshot

    return IcebergSnapshot(options.path, table, snapshot_id, lambda: open_lake_table(options))
