"""The upkeep of one Iceberg table."""

from __future__ import annotations

from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.iceberg_upkeep.expiry import expirable, expire_snapshots
from fluss_df.lake.iceberg_upkeep.orphans import remove_orphans
from fluss_df.schema import TableInfo


class IcebergUpkeep:
    """Expires snapshots, and removes files that none has; see :class:`LakeUpkeep`."""

    def __init__(self, info: TableInfo) -> None:
        self._info = info

    def expire(self, age_s: float) -> tuple[int, int] | None:  # noqa: D102
        table = open_table(self._info)
        if not expirable(table, age_s):
            return None
        done = expire_snapshots(table, age_s)
        return done.snapshots, done.files

    def remove_orphans(self, age_s: float) -> int:  # noqa: D102
        return remove_orphans(open_table(self._info), age_s)
