"""What a round has to read: from the lake's offsets to the end of the log."""

from __future__ import annotations

import logging
import re

from fluss_df.client.context import ClientContext
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.offsets import Offsets
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY
from fluss_df.lake.rounds.offsets import TieredSnapshot
from fluss_df.lake.rounds.split import Split, where
from fluss_df.lake.tiering.coordinator import Coordinator
from fluss_df.metadata import OffsetSpec, TableBucket
from fluss_df.schema import TableInfo

logger = logging.getLogger("fluss_df.lake.tiering")


class RoundPlan:
    """Finds out how far a table is tiered, and what to read.

    ``most`` is how many offsets of a bucket one round tiers at the most.
    """

    def __init__(self, connection: ClientContext, info: TableInfo, most: int) -> None:
        self._connection = connection
        self._info = info
        self._path = info.table_path
        self._coordinator = Coordinator(connection)
        self._max = most

    def known_offsets(self, newest: TieredSnapshot | None) -> Offsets:
        """Return the lake's offsets, after telling Fluss of a snapshot that it does not know.

        A service that ended between its commit in the lake and the word to the coordinator left
        such a snapshot: its rows are in the lake, and must not be read again. ``newest`` is the
        newest tiered snapshot of the lake table, None where there is none.
        """
        try:
            known = self._coordinator.known_snapshot(self._path)
        except FlussError as error:
            # Fluss learned of an older snapshot late, and had deleted the offsets of it by then
            broken = error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            if not broken or newest is None or newest.offsets is None:
                raise
            logger.warning("table %s: Fluss has lost the lake's offsets: %s", self._path, error)
            known = None
        if newest is None:
            if known is not None and known.offsets:
                raise FlussError(
                    f"table {self._path}: Fluss knows the lake snapshot {known.snapshot_id}, and"
                    " the lake table has no tiered snapshot: it was replaced, or its snapshots were"
                    " expired. Restore it; to tier on would leave out what Fluss has deleted"
                )
            return {}
        same = known is not None and known.snapshot_id == newest.snapshot_id
        if known is not None and same and not _contradicted(known.offsets, newest):
            return known.offsets
        path = newest.offsets_path
        older = re.search(rf"/{re.escape(self._path.table_name)}-(\d+)/", path or "")
        if older is not None and int(older[1]) != self._info.table_id:
            raise FlussError(
                f"table {self._path}: its lake table was tiered from an older table of that name"
                f" (id {older[1]}, now {self._info.table_id}), whose offsets say nothing of this"
                " one: drop or rename the lake table, and create the table again"
            )
        created = self._info.created_time
        if known is None and newest.committed_ms < created:
            # a cluster that was set up again gives the same table ids again
            raise FlussError(
                f"table {self._path}: its lake table was tiered before the table was created"
                f" (at {newest.committed_ms} and {created}, in milliseconds since 1970), so from an"
                " older table of that name, whose offsets say nothing of this one: drop or rename"
                " the lake table, and create the table again. If it is no older table, the clocks"
                " of the tiering service and the cluster differ"
            )
        if newest.offsets is not None:
            path = self._coordinator.prepare(self._info.table_id, self._path, newest.offsets)
        if path is None:
            raise FlussError(
                f"table {self._path}: lake snapshot {newest.snapshot_id} has no property"
                f" {OFFSETS_PATH_PROPERTY}: how far the table is tiered is not known"
            )
        logger.warning(
            "table %s: telling Fluss of lake snapshot %s, %s",
            self._path,
            newest.snapshot_id,
            "whose number came again after a rollback" if same else "which it did not know",
        )
        self._coordinator.commit(
            self._info.table_id, self._path, newest.snapshot_id, path, newest.offsets or {}, {}
        )
        known = self._coordinator.known_snapshot(self._path)
        if known is None or known.snapshot_id != newest.snapshot_id:
            raise FlussError(
                f"table {self._path}: Fluss was told of lake snapshot {newest.snapshot_id} and"
                " knows another; another service tiers the table"
            )
        if _contradicted(known.offsets, newest):
            raise FlussError(
                f"table {self._path}: the lake table was rolled back, and its snapshot"
                f" {newest.snapshot_id} ends at other offsets than Fluss knows of a snapshot of"
                f" this number: {newest.offsets} and {known.offsets}. To tier on would leave rows"
                " out, or write them twice: roll the lake table back by one snapshot more"
            )
        return known.offsets

    def splits(self, base: Offsets) -> tuple[list[Split], bool]:
        """Return what to read, and whether that is all there is."""
        questions = TableQuestions(self._connection)
        names: dict[int | None, str | None] = {None: None}
        if self._info.is_partitioned():
            infos = questions.list_partition_infos(self._path)
            names = {info.partition_id: info.partition_name for info in infos}
        buckets = [
            TableBucket(self._info.table_id, bucket, partition)
            for partition in names
            for bucket in range(self._connection.cluster.buckets_of(self._info, partition))
        ]
        ends = questions.get_bucket_offsets(self._info, buckets, OffsetSpec.latest())
        firsts = questions.get_bucket_offsets(self._info, buckets, OffsetSpec.earliest())
        splits, complete = [], True
        for bucket in buckets:
            name, end, first = names[bucket.partition_id], ends[bucket], firsts[bucket]
            start = base.get((bucket.partition_id, bucket.bucket_id))
            if start is None and self._info.has_primary_key() and (first or end > self._max):
                splits.append(Split(bucket, name, 0, end, snapshot=True))
                continue
            if start is None:
                start = first
            elif first > start:
                raise FlussError(
                    f"table {self._path}, {where(bucket, name)}: the lake ends at offset {start}"
                    f" and the log begins at {first}; what is between is lost to the lake",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )
            elif end < start:
                raise FlussError(
                    f"table {self._path}, {where(bucket, name)}: the lake ends at offset {start}"
                    f" and the log at {end}: the log was put back to an earlier state, or lost"
                    " rows. What comes up to there would be left out of the lake: put the lake"
                    " table back, too, or drop both and create the table again",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )
            if end == start:
                continue
            stop = min(end, start + self._max)
            complete = complete and stop == end
            splits.append(Split(bucket, name, start, stop))
        return splits, complete


def _contradicted(known: Offsets, newest: TieredSnapshot) -> bool:
    """Whether a snapshot says other offsets than Fluss knows of its number.

    A table that was rolled back gives numbers again. Fluss was told each offset of a snapshot,
    and keeps those of partitions that are dropped (asked of 0.9.1), so both say the same else. A
    snapshot of Flink's service says none.
    """
    return newest.offsets is not None and newest.offsets != known
