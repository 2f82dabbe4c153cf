"""When the snapshots of a lake table are expired, and files that none has are looked for."""

from __future__ import annotations

import logging
import time
from typing import Final

from fluss_df.lake.formats import open_upkeep
from fluss_df.schema import TableInfo

logger = logging.getLogger("fluss_df.lake.tiering")

# five days, as by Iceberg's own default
DEFAULT_AGE_S = 5 * 86400.0
_AUTO: Final = "table.datalake.auto-expire-snapshot"
# a round may take hours, and its files are in no snapshot until it ends
_ORPHANS_AGE_S: Final = 86400.0
_ORPHANS_EVERY_S: Final = 86400.0


class Upkeep:
    """The upkeep of the tables of one tiering service, after their rounds.

    ``keep_s`` is ``keep_snapshots_s`` of :class:`~fluss_df.lake.TieringService`.
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
            lake = open_upkeep(info)
            if (done := lake.expire(age)) is not None:
                snapshots, files = done
                logger.info(
                    "table %s: %d lake snapshots expired, %d files deleted",
                    info.table_path,
                    snapshots,
                    files,
                )
            now = time.monotonic()
            if now - self._looked.get(info.table_id, -_ORPHANS_EVERY_S) >= _ORPHANS_EVERY_S:
                self._looked[info.table_id] = now
                left = lake.remove_orphans(max(age, _ORPHANS_AGE_S))
                if left:
                    logger.info("table %s: %d files of no snapshot deleted", info.table_path, left)
        # errors of catalogs and storage, for example: the rows are tiered all the same
        except Exception as error:
            logger.warning("the upkeep of lake table %s failed: %s", info.table_path, error)
