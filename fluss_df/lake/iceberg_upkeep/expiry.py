"""Expires snapshots of Iceberg tables that no query reads any more, and deletes what only they had.

A query is pinned at the snapshot that Fluss knew when it began. So the age of a snapshot counts
from when the next one was certainly known to Fluss: from the first snapshot of the round after the
next, as each round begins with telling Fluss of what was there before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from fluss_df.lake.iceberg.files import ancestors
from fluss_df.lake.iceberg_upkeep.files import delete_files, may_delete, snapshot_paths
from fluss_df.lake.options import OFFSETS_PATH_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("fluss_df.lake.tiering")

# Iceberg's table properties, which override the service's settings
_AGE_PROPERTY: Final = "history.expire.max-snapshot-age-ms"
_LEAST_PROPERTY: Final = "history.expire.min-snapshots-to-keep"
# a snapshot of this number of newest rounds may be the one that Fluss knows
_ROUNDS: Final = 2
_BRANCH: Final = "main"


@dataclass(frozen=True, slots=True)
class Expired:
    """How many snapshots were expired, and how many files deleted."""

    snapshots: int = 0
    files: int = 0


def expirable(table: Table, age_s: float, now_ms: float | None = None) -> list[int]:
    """Return the ids of the snapshots that may be expired.

    A snapshot stays for ``age_s`` seconds after queries began to read a newer one. Where the table
    has the property ``history.expire.max-snapshot-age-ms``, that age holds instead. ``now_ms`` is
    the time in milliseconds since 1970; None takes the clock's.
    """
    properties = table.metadata.properties
    age_ms = float(properties.get(_AGE_PROPERTY, age_s * 1000))
    least = int(properties.get(_LEAST_PROPERTY, 1))
    before = (time.time() * 1000 if now_ms is None else now_ms) - age_ms
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    rounds = list(_rounds(ancestors(table)))
    kept = sum(map(len, rounds[:_ROUNDS]))
    found = []
    for at, one in enumerate(rounds[_ROUNDS:]):
        # the oldest of the round after the next
        replaced = rounds[at][-1].timestamp_ms
        for snapshot in one:
            kept += 1
            if kept > least and replaced < before and snapshot.snapshot_id not in named:
                found.append(snapshot.snapshot_id)
    return found


def _rounds(snapshots: Iterable[Snapshot]) -> Iterator[list[Snapshot]]:
    """Group snapshots, the newest first, by the round of tiering that made them.

    Those that no tiering service made are of the round before them.
    """
    group: list[Snapshot] = []
    last: str | None = None
    for snapshot in snapshots:
        mark = None if snapshot.summary is None else snapshot.summary.get(OFFSETS_PATH_PROPERTY)
        if last is not None and mark != last:
            yield group
            group, last = [], None
        group.append(snapshot)
        last = mark or last
    if group:
        yield group


def expire_snapshots(table: Table, age_s: float, now_ms: float | None = None) -> Expired:
    """Expire the snapshots that may be, and delete the files that only they have.

    Who is killed between the two leaves files that no snapshot has;
    :func:`~fluss_df.lake.iceberg_upkeep.orphans.remove_orphans` finds them.
    """
    gone = set(expirable(table, age_s, now_ms))
    if not gone or not may_delete(table):
        return Expired()
    snapshots = table.metadata.snapshots
    paths = snapshot_paths(table, (one for one in snapshots if one.snapshot_id in gone))
    paths -= snapshot_paths(table, (one for one in snapshots if one.snapshot_id not in gone))
    unchanged = {"ref": _BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    if table.catalog.load_table(table.name()).metadata.refs != table.metadata.refs:
        # a tag may name a snapshot that is to be expired: catalogs would remove the tag, too
        return _later(table)
    try:
        table._do_commit(
            updates=(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)}),),
            # a snapshot that was made meanwhile may need files of an expired one
            requirements=(
                AssertRefSnapshotId.model_validate(unchanged),
                AssertTableUUID.model_validate({"uuid": table.metadata.table_uuid}),
            ),
        )
    except CommitFailedException:
        return _later(table)
    return Expired(len(gone), delete_files(table, paths))


def _later(table: Table) -> Expired:
    logger.info("table %s: snapshots are expired later", ".".join(table.name()))
    return Expired()
