"""Which package reads and writes a lake, by its format."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.options import WRITTEN, LakeOptions, lake_options
from fluss_df.lake.snapshot import LakeSnapshotFiles
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    from fluss_df.lake.rounds.lake_upkeep import LakeUpkeep
    from fluss_df.lake.rounds.tiered_lake import TieredLake


def open_snapshot(info: TableInfo, snapshot_id: int) -> LakeSnapshotFiles[Any]:
    """Return the files of a snapshot of the lake table of a table.

    Raises FlussError where the format is not read, its extra is not installed, the lake cannot be
    reached, or the snapshot is not there.
    """
    options = lake_options(info)
    try:
        return _opened(info, options, snapshot_id)
    except FlussError:
        raise
    except Exception as error:
        # damaged manifests, and each kind of storage, raise errors of many types
        code = ErrorCode.CORRUPT_MESSAGE
        if isinstance(error, OSError):
            code = ErrorCode.NETWORK_EXCEPTION
        raise FlussError(
            f"lake table {options.path}: the manifests of the snapshot {snapshot_id} cannot be"
            f" read: {type(error).__name__}: {options.redacted(str(error))}; lake=False reads what"
            " Fluss itself has",
            code,
        ) from error


def snapshot_mark(info: TableInfo, snapshot_id: int) -> Hashable:
    """Return a value that differs for two snapshots of a table with the same number.

    Paimon counts its snapshots: a table that was rolled back, or made again, gives a number twice.
    So does Lance where a dataset is made again. None for Iceberg, whose ids are random.

    Raises FlussError where :func:`open_snapshot` does.
    """
    options = lake_options(info)
    if options.format == "paimon":
        from fluss_df.lake.paimon.storage import TableFiles

        return TableFiles(options).snapshot_mark(snapshot_id)
    if options.format == "lance":
        from fluss_df.lake.lance.snapshot import dataset_mark

        return dataset_mark(options)
    return None


def _opened(info: TableInfo, options: LakeOptions, snapshot_id: int) -> LakeSnapshotFiles[Any]:
    # imported only where a table needs it: each format has an extra of its own
    if options.format == "paimon":
        from fluss_df.lake.paimon.catalog import open_paimon

        return open_paimon(options, snapshot_id)
    if options.format == "lance":
        from fluss_df.lake.lance.snapshot import open_lance

        return open_lance(info, options, snapshot_id)
    from fluss_df.lake.iceberg.catalog import open_lake_table

    table = open_lake_table(options)
    from fluss_df.lake.iceberg.snapshot import IcebergSnapshot

    return IcebergSnapshot(options.path, table, snapshot_id, lambda: open_lake_table(options))


def open_tiered(info: TableInfo) -> TieredLake:
    """Open the lake table of a table for a round of tiering.

    Raises FlussError where the format is not written, its extra is not installed, the lake cannot
    be reached, or the table is not in it.
    """
    options = lake_options(info, WRITTEN)
    if options.format == "paimon":
        try:
            from fluss_df.lake.paimon_writing.tiered_table import open_paimon_lake
        except ImportError as error:
            raise FlussError(
                f"table {options.path} is tiered into Paimon: pip install 'fluss-df[paimon]' to"
                f" write it ({error})"
            ) from error
        return open_paimon_lake(info, options)
    from fluss_df.lake.iceberg.catalog import open_lake_table

    table = open_lake_table(options)
    from fluss_df.lake.iceberg_writing.tiered_table import IcebergLake

    return IcebergLake(info, table)


def open_upkeep(info: TableInfo) -> LakeUpkeep:
    """Open the lake table of a table for its upkeep.

    Raises FlussError where :func:`open_tiered` does.
    """
    options = lake_options(info, WRITTEN)
    if options.format == "paimon":
        from fluss_df.lake.paimon_writing.upkeep import PaimonUpkeep

        return PaimonUpkeep(options)
    from fluss_df.lake.iceberg_upkeep.upkeep import IcebergUpkeep

    return IcebergUpkeep(info)
