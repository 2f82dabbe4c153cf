"""Rows of a source that can no longer be read: told by name, and passed over where one says so.

A run remembers how far it read. What the source has now may not go with that: partitions that were
dropped, offsets that expired, a table that was made again, or a log that was put back to an earlier
state and has other rows since. None of this is passed over in silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.batch_headers import offsets_from_time
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.pushdown.plan import Bucket
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

OnDataLoss: TypeAlias = Literal["fail", "ignore"]

# seconds; longer than the millisecond by which a moment may be ahead
_MOMENT_S = 0.002
# buckets that a message names at the most
_SHOWN = 4


def check_on_data_loss(choice: str) -> None:
    """Raise for what is neither choice."""
    if choice not in ("fail", "ignore"):
        raise FlussError(f"on_data_loss={choice!r}: expected 'fail' or 'ignore'")


@dataclass(frozen=True, slots=True)
class Losses:
    """What is done about rows that are gone.

    With ``on_data_loss="fail"`` an error is raised, which ends with ``way_out``. With ``"ignore"``
    a warning is logged, and the run goes on without them.
    """

    on_data_loss: str
    way_out: str = "on_data_loss='ignore' goes on without them"

    def found(self, text: str, code: int = ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION) -> None:
        """Raise, or log, that something is gone."""
        if self.on_data_loss != "ignore":
            raise FlussError(f"{text}; {self.way_out}", code)
        logger.warning("%s; goes on, as lost data is to be ignored", text)


def listed(buckets: Iterable[str]) -> str:
    """Return the first of some texts, and how many more there are."""
    texts = list(buckets)
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def without_dropped(
    losses: Losses, table: object, known: Mapping[Bucket, int], there: Iterable[Bucket]
) -> dict[Bucket, int]:
    """Return those of the known buckets that are there."""
    existing = set(there)
    gone = sorted(known.keys() - existing, key=str)
    if gone:
        losses.found(
            f"table {table}: partitions were dropped, and what came into them behind what was read"
            f" is lost: {listed(f'bucket {b} behind offset {known[b]}' for b in gone)}",
            ErrorCode.PARTITION_NOT_EXISTS,
        )
    return {bucket: offset for bucket, offset in known.items() if bucket in existing}


def within_log(
    losses: Losses,
    table: object,
    known: Mapping[Bucket, int],
    first: Mapping[Bucket, int],
    last: Mapping[Bucket, int],
) -> dict[Bucket, int]:
    """Return from where known buckets can be read on."""
    expired = [b for b, offset in known.items() if offset < first[b]]
    if expired:
        losses.found(
            f"table {table}: rows have expired before they were read: "
            + listed(f"bucket {b} offsets {known[b]} to {first[b]}" for b in expired)
        )
    short = [b for b, offset in known.items() if offset > last[b]]
    if short:
        losses.found(
            f"table {table}: the log ends before what was read, so it was put back to an earlier"
            " state, or lost rows: "
            + listed(f"bucket {b} was read up to {known[b]} and ends at {last[b]}" for b in short)
        )
    return {b: min(max(offset, first[b]), last[b]) for b, offset in known.items()}


def not_put_back(
    losses: Losses,
    connection: FlussConnection,
    info: TableInfo,
    known: Mapping[Bucket, int],
    clock: int | None,
    last: Mapping[Bucket, int],
) -> dict[Bucket, int]:
    """Return from where known buckets can be read on, where all before was committed by a moment.

    What stands before the known offsets and was committed later is not what was read. A log that
    ends before them is left to :func:`within_log` to tell.
    """
    if clock is None or not known:
        return dict(known)
    # where the moment is still to come by a server's clock, it says nothing: the offset stays
    found = _offsets_at(connection, info, list(known), clock)
    since = dict(known)
    since.update((bucket, offset) for bucket, offset in found.items() if offset is not None)
    if doubtful := {b: at for b, at in known.items() if since[b] < at <= last[b]}:
        # for remote storage, servers return an offset that may be before the moment
        ranges = {b.of(info.table_id): (since[b], at) for b, at in doubtful.items()}
        exact = offsets_from_time(connection, info, ranges, clock)
        since.update((b, exact[b.of(info.table_id)]) for b in doubtful)
    other = [b for b, offset in known.items() if since[b] < offset <= last[b]]
    if other:
        losses.found(
            f"table {info.table_path}: the log was put back to an earlier state, and has other rows"
            " now where it was read before: "
            + listed(
                f"bucket {b} was read up to {known[b]}, and has new rows from {since[b]} on"
                for b in other
            )
        )
    return {b: min(offset, since[b]) for b, offset in known.items()}


def moment_after(
    connection: FlussConnection, info: TableInfo, ends: Mapping[Bucket, int]
) -> int | None:
    """Return a moment by which all before some offsets was committed; None where none is known.

    The clock of a server may be ahead of ours, and rows ahead of both: a clock that was set back.
    """
    if not ends:
        return None
    clock = int(time.time() * 1000) + 1
    # wait until the moment is past: a server says nothing of one that is still to come
    time.sleep(_MOMENT_S)
    since = _offsets_at(connection, info, list(ends), clock)
    if any(offset is not None and offset < ends[bucket] for bucket, offset in since.items()):
        return None
    return clock


def _offsets_at(
    connection: FlussConnection, info: TableInfo, buckets: Sequence[Bucket], clock: int
) -> dict[Bucket, int | None]:
    """Return the first offsets committed from a moment on; None where it is still to come.

    Each server has a clock of its own: one that is behind says nothing of the others.
    """
    keys = {bucket.of(info.table_id): bucket for bucket in buckets}
    found = connection.get_admin().get_offsets_by_clock(info, list(keys), clock)
    return {keys[key]: offset for key, offset in found.items()}
