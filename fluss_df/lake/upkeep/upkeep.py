"""When the snapshots of a lake table are expired, and files that none has are looked for."""

from __future__ import annotations

import logging
import time
from typing import Final

from fluss_df.lake.iceberg.catalog import open_table
from fluss_df.lake.upkeep.expiry import DEFAULT_AGE_S, expirable, expire_snapshots
from fluss_df.lake.upkeep.orphans import remove_orphans
from fluss_df.schema import TableInfo

logger = logging.getLogger("fluss_df.lake.tiering")

_AUTO: Final = "table.datalake.auto-expire-snapshot"
# a round may take hours, and its files are in no snapshot until it ends
_ORPHANS_AGE_S: Final = 86400.0
_ORPHANS_EVERY_S: Final = 86400.0


class Upkeep:
    """The upkeep of the tables of one tiering service, after their rounds.

    Parameters
    ----------
    keep_s
        As ``keep_snapshots_s`` of :class:`~fluss_df.lake.TieringService`.
    """

    def __init__(self, keep_s: float | None) -> None:
        self._keep_s = keep_s
        # table id -> when orphans were looked for, by the monotonic clock
        self._looked: dict[int, float] = {}

    def after(self, info: TableInfo) -> None:
        """Look after a table whose round is over. What goes wrong is logged, and done later."""
        age = self._keep_s
        if age is None:
            if info.get_properties().get(_AUTO, "false").lower() != "true":
                return
            age = DEFAULT_AGE_S
        try:
            table = open_table(info)
            if expirable(table, age):
                done = expire_snapshots(table, age)
                logger.info(
                    "table %s: %d lake snapshots expired, %d files deleted",
                    info.table_path,
                    done.snapshots,
                    done.files,
                )
            now = time.monotonic()
            if now - self._looked.get(info.table_id, -_ORPHANS_EVERY_S) >= _ORPHANS_EVERY_S:
                self._looked[info.table_id] = now
                left = remove_orphans(open_table(info), max(age, _ORPHANS_AGE_S))
                if left:
                    logger.info("table %s: %d files of no snapshot deleted", info.table_path, left)
        # as of catalogs and storage: the rows are tiered, whatever becomes of older ones
        except Exception as error:
            logger.warning("the upkeep of lake table %s failed: %s", info.table_path, error)
