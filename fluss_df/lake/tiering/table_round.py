"""One round of one table: reads from the lake's offsets to the log's end, commits once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fluss_df.client.context import ClientContext
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.lake.formats import open_tiered
from fluss_df.lake.offsets import OFFSETS_PROPERTY, Offsets, offsets_to_text
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY
from fluss_df.lake.rounds.tasks import RunTasks, Written
from fluss_df.lake.rounds.tiered_lake import LakeMovedError, NotCommittedError, TieredLake
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.lake.tiering.plan import RoundPlan
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo

logger = logging.getLogger("fluss_df.lake.tiering")


@dataclass(frozen=True, slots=True)
class TieringRound:
    """What one round of a table did.

    Parameters
    ----------
    path
        The table.
    snapshot_id
        The lake snapshot that it made; None where there was nothing to tier.
    rows
        Rows, or changes of a primary-key table, that were read from Fluss.
    files
        Data files that were added to the lake.
    complete
        Whether the table was tiered up to its end; else the rest comes with the next round.
    seconds
        How long it took.
    """

    path: TablePath
    snapshot_id: int | None
    rows: int
    files: int
    complete: bool
    seconds: float


class TableRound:
    """Tiers one table once.

    A round tiers at most ``max_rows`` rows of a log bucket, or ``max_changes`` changes of a
    primary-key bucket, which are held in memory.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        *,
        max_rows: int,
        max_changes: int,
        run_tasks: RunTasks,
    ) -> None:
        self._connection = connection
        self._info = info
        self._path = info.table_path
        self._coordinator = Coordinator(connection)
        self._max = max_changes if info.has_primary_key() else max_rows
        self._run_tasks = run_tasks

    def run(self, may_commit: Callable[[], None]) -> TieringRound:
        """Tier the table.

        ``may_commit`` is called just before the commit; it raises where the table is not this
        service's any more.

        Raises FlussError. Then nothing of the round is in the lake, unless the catalog did not
        answer whether it committed; the next round finds that out.
        """
        started = time.monotonic()
        lake = open_tiered(self._info)
        plan = RoundPlan(self._connection, self._info, self._max)
        base = plan.known_offsets(lake.newest_tiered())
        splits, complete = plan.splits(base)
        tasks = lake.tasks(splits)
        if not tasks:
            return TieringRound(self._path, None, 0, 0, True, time.monotonic() - started)
        writer = lake.writer(self._connection)
        written: list[Written] = []
        with undoing(lambda: lake.discard(written)):
            self._run_tasks(writer, tasks, written)
        try:
            snapshot_id = self._commit(lake, base, written, may_commit)
        except LakeMovedError as error:
            lake.discard(written)
            raise FlussError(
                f"table {self._path}: another service or writer committed to the lake table while"
                " this round was written; nothing of it was committed, the next round begins"
                " where that one ended"
            ) from error
        except NotCommittedError:
            lake.discard(written)
            raise
        return TieringRound(
            self._path,
            snapshot_id,
            sum(part.rows for part in written),
            sum(len(part.added) for part in written),
            complete,
            time.monotonic() - started,
        )

    # ---- committing

    def _commit(
        self,
        lake: TieredLake,
        base: Offsets,
        written: Sequence[Written],
        may_commit: Callable[[], None],
    ) -> int:
        moved: Offsets = {}
        timestamps: dict[tuple[int | None, int], int] = {}
        for part in written:
            # a bucket's log may be several tasks
            for key, offset in part.offsets.items():
                moved[key] = max(offset, moved.get(key, 0))
            for key, moment in part.timestamps.items():
                timestamps[key] = max(moment, timestamps.get(key, -1))
        offsets = {**base, **moved}
        try:
            # A table of that name that was made since has another id: these rows are not its.
            now = TableQuestions(self._connection).get_table_info(self._path)
            if now.table_id != self._info.table_id:
                raise FlussError(f"table {self._path} was dropped and created again meanwhile")
            if now.schema_id != self._info.schema_id:
                # rows may have been read without the values of a new column
                raise FlussError(
                    f"columns of table {self._path} were altered while this round was written;"
                    " nothing of it was committed, the next round has them"
                )
            path = self._coordinator.prepare(self._info.table_id, self._path, offsets)
            may_commit()
        except Exception as error:
            raise NotCommittedError(str(error)) from error
        except BaseException:
            # such as KeyboardInterrupt: the commit was not requested yet, so the files can go
            lake.discard(written)
            raise
        properties = {OFFSETS_PATH_PROPERTY: path, OFFSETS_PROPERTY: offsets_to_text(offsets)}
        try:
            snapshot_id = lake.commit(written, properties)
        except NotCommittedError:
            raise
        except Exception as error:
            # the files stay: they may be in the lake
            raise FlussError(
                f"table {self._path}: the lake's catalog did not say what became of the commit:"
                f" {type(error).__name__}: {error}; the next round finds out"
            ) from error
        snapshot_id = self._compacted(lake, properties) or snapshot_id
        self._coordinator.commit(
            self._info.table_id, self._path, snapshot_id, path, moved, timestamps
        )
        return snapshot_id

    def _compacted(self, lake: TieredLake, properties: Mapping[str, str]) -> int | None:
        """Merge small files; return the resulting snapshot, or None. A failure is only logged."""
        try:
            return lake.compacted(properties)
        except Exception as error:
            logger.warning("table %s: small files were not merged: %s", self._path, error)
            newest = open_tiered(self._info).newest_tiered()
            # the newest snapshot may be another service's, which these offsets do not describe
            ours = newest is not None and newest.offsets_path == properties[OFFSETS_PATH_PROPERTY]
            return newest.snapshot_id if newest is not None and ours else None
