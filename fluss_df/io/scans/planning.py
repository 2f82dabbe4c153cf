"""Planning a scan: what the table is now, what the query asks, which offsets that means."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from fluss_df.client.cluster import in_process_questions as direct_questions
from fluss_df.client.cluster.leader_requests import bucket_offsets, offsets_by_clock
from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.batch_headers import offsets_from_time
from fluss_df.client.fetch.table_decoder import METADATA_FIELDS
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.scans.changes import table_columns
from fluss_df.io.scans.known import KnownTable, Moment
from fluss_df.io.source import OffsetChoice, ScanSource, choose_partitions
from fluss_df.metadata import OffsetSpec, PartitionInfo, TableBucket
from fluss_df.pushdown.plan import Bucket, ScanPlan, slice_splits
from fluss_df.pushdown.prune import Conjunct, Pruned, all_buckets, count_buckets, make_splits, prune
from fluss_df.pushdown.server_filter import ServerFilter, server_filter
from fluss_df.record.change_tables import AFTER_COLUMN, BEFORE_COLUMN, ChangeTable
from fluss_df.schema import TableInfo

Offsets: TypeAlias = dict[Bucket, int]
#: The first offsets of buckets, the ones behind their last, where to start and where to stop.
Bounds: TypeAlias = tuple[Offsets, Offsets, Offsets, Offsets]


def plan_scan(
    source: ScanSource,
    *,
    columns: Iterable[str] | None = None,
    conditions: Sequence[Conjunct] = (),
    limit: int | None = None,
    known: KnownTable | None = None,
) -> tuple[KnownTable, ScanPlan]:
    """Return the table as it is now, and what to read of it.

    The stop offsets are those of this moment: rows that are appended later are not read.

    Raises FlussError when the table is gone, or its columns are no longer those of the frame; when
    a partition or an offset that was asked for does not exist.

    Parameters
    ----------
    source
        The scan.
    columns
        The columns that the query needs, of those of the scan; None for all.
    conditions
        The query's conditions. With a limit they apply to the first ``limit`` rows, and nothing is
        pruned by them.
    limit
        How many rows are needed, from the first.
    known
        The table as it was last looked up. Where that is a moment ago it is not asked for again.
        Otherwise all that follows from it is asked for at the same time, which halves the wait.
    """
    usable = usable_conditions(source, conditions) if limit is None else []
    is_fresh = known is not None and known.fresh
    try:
        now, partitions, pruned, (starts, stops) = _find(source, usable, known)
    except FlussError:
        if not is_fresh:
            raise
        # the name may mean another table by now
        now, partitions, pruned, (starts, stops) = _find(source, usable, None)
    info = now.info
    splits = make_splits(pruned.buckets, starts, stops, pruned.low, pruned.high)
    if limit is not None and source.changes is None:
        splits = slice_splits(splits, 0, limit)
    wanted = set(source.schema.names if columns is None else columns)
    own = wanted & {*source.columns}
    if source.changes is not None:
        own = {*table_columns(info, source.changes, wanted)}
    left = [c for c in conditions if not any(c is used for used in usable)]
    return now, ScanPlan(
        table=source.table,
        table_id=info.table_id,
        schema_id=info.schema_id,
        columns=tuple(n for n in info.get_column_names() if n in own),
        metadata_columns=tuple(name for name in source.metadata_columns if name in wanted),
        splits=splits,
        limit=limit,
        pushed=pruned.pushed,
        residual=(*pruned.residual, *(condition.text for condition in left)),
        server_filter=_server_filter(info, source, conditions) if limit is None else None,
        of_columns=info.get_column_count(),
        of_partitions=len(partitions) if info.is_partitioned() else None,
        of_buckets=count_buckets(info, partitions),
    )


def _find(
    source: ScanSource, usable: Sequence[Conjunct], known: KnownTable | None
) -> tuple[KnownTable, list[PartitionInfo], Pruned, tuple[Offsets, Offsets]]:
    """Return the table, its partitions, what to read of it, and from where to where."""
    partitions, bounds, guess = None, None, None
    if known is not None and not known.fresh:
        if source.connection.cluster.engine is None:
            known, partitions, guess, bounds = _ask_meanwhile(source, usable, known)
        else:
            # an engine in this process answers so fast that asking ahead would not help
            known = None
    if known is None:
        now = Moment()
        known = KnownTable(source.connection.get_admin().get_table_info(source.table), now)
    info = known.info
    check_schema(info, source)
    if partitions is None:
        partitions = partitions_of(source, info)
    pruned = guess or _prune(source, info, partitions, usable)
    if source.pinned is not None:
        starts = {split.bucket: split.start for split in source.pinned}
        return known, partitions, pruned, (starts, {s.bucket: s.stop for s in source.pinned})
    starts, stops = find_offsets(source, info, pruned.buckets, bounds)
    if pruned.since and pruned.buckets:
        after = offsets_since(source, info, pruned.buckets, pruned.since)
        starts = {bucket: max(start, after[bucket]) for bucket, start in starts.items()}
    return known, partitions, pruned, (starts, stops)


def _ask_meanwhile(
    source: ScanSource, usable: Sequence[Conjunct], seen: KnownTable
) -> tuple[KnownTable, list[PartitionInfo] | None, Pruned | None, Bounds | None]:
    """Return the table as it is now; what followed from the one that was seen where that holds."""
    guess = None
    if source.pinned is None and not seen.info.is_partitioned():
        guess = _prune(source, seen.info, [], usable)
    now = Moment()
    info, partitions, answer = source.connection.io.run(_ask(source, seen.info, guess))
    known = KnownTable(info, now)
    if guess is None or answer is None:
        return known, partitions, None, None
    question, bounds = answer
    return known, [], guess, question.exactly(source.connection, bounds)


async def _ask(
    source: ScanSource, seen: TableInfo, guess: Pruned | None
) -> tuple[TableInfo, list[PartitionInfo] | None, tuple[_BoundsQuestion, Bounds] | None]:
    """Return the table as it is now, and, if they were had meanwhile, its partitions and offsets.

    Errors of partitions and offsets are not raised: the caller, which then knows the table, asks
    for them again.
    """
    admin = source.connection.get_admin()
    partitions = asyncio.ensure_future(
        admin.partition_infos(source.table) if seen.is_partitioned() else _nothing()
    )
    bounds = asyncio.ensure_future(
        _nothing() if guess is None else _bounds(source, seen, guess.buckets)
    )
    try:
        info = await admin.table_info(source.table)
        if (info.table_id, info.schema_id) == (seen.table_id, seen.schema_id):
            with contextlib.suppress(FlussError):
                return info, await partitions, await bounds
        return info, None, None
    finally:
        partitions.cancel()
        bounds.cancel()
        await asyncio.gather(partitions, bounds, return_exceptions=True)


async def _nothing() -> None:
    """Stand for what is not asked for."""


def _prune(
    source: ScanSource,
    info: TableInfo,
    partitions: Sequence[PartitionInfo],
    usable: Sequence[Conjunct],
) -> Pruned:
    """Return which of the buckets that a scan asks for have to be read."""
    if source.pinned is None:
        buckets = chosen_buckets(info, source, partitions)
    else:
        buckets = tuple(split.bucket for split in source.pinned)
    return prune(info, buckets, usable, source.metadata_columns)


def _server_filter(
    info: TableInfo, source: ScanSource, conditions: Sequence[Conjunct]
) -> ServerFilter | None:
    """Return the filter by which servers leave out log batches, made from the conditions."""
    if source.changes is not None:
        # all columns of changes are read, so servers cannot judge them
        return None
    own = set(info.get_column_names()) - set(source.metadata_columns)
    known = (c.predicate for c in conditions if c.columns <= own)
    return server_filter(info, [predicate for predicate in known if predicate is not None])


def partitions_of(source: ScanSource, info: TableInfo) -> list[PartitionInfo]:
    """Return the partitions that there are; none of a table without."""
    if not info.is_partitioned():
        return []
    return source.connection.get_admin().list_partition_infos(source.table)


def usable_conditions(source: ScanSource, conditions: Sequence[Conjunct]) -> list[Conjunct]:
    """Return the conditions that say something of partitions, buckets or offsets."""
    if source.changes is not ChangeTable.BINLOG:
        return list(conditions)
    # a binlog's rows are in columns of structs: a column called like one of the table is not it
    return [c for c in conditions if c.columns <= {*source.metadata_columns}]


def chosen_buckets(
    info: TableInfo, source: ScanSource, partitions: Sequence[PartitionInfo]
) -> tuple[Bucket, ...]:
    """Return the buckets that a scan asks for, in the order of its rows."""
    check_offset_partitions(info, source, partitions)
    chosen = choose_partitions(info, partitions, source.partitions)
    buckets = all_buckets(info, chosen)
    if source.buckets is not None:
        buckets = tuple(bucket for bucket in buckets if bucket.bucket_id in source.buckets)
    return buckets


def check_schema(info: TableInfo, source: ScanSource) -> None:
    """Raise when the columns of a frame are not those of the table any more."""
    now = info.schema.arrow_schema
    then = source.schema
    if source.changes is ChangeTable.BINLOG and source.columns:
        row = next(name for name in (BEFORE_COLUMN, AFTER_COLUMN) if name in then.names)
        then = pa.schema(list(then.field(row).type))
    # a mapping, because each look-up in a schema makes the list of all its names
    there = {field.name: field.type for field in now}
    before = {field.name: field.type for field in then}
    for name in source.columns:
        promised, found = before[name], there.get(name)
        if found != promised:
            what = "is gone" if found is None else f"is {found} now"
            raise SchemaMismatchError(
                f"table {info.table_path} changed since the frame was made: column '{name}'"
                f" ({promised}) {what}; make the frame again with scan_fluss"
            )
    if info.has_primary_key() != source.keyed:
        raise SchemaMismatchError(
            f"table {info.table_path} changed since the frame was made: a primary key came or went;"
            " make the frame again with scan_fluss"
        )


def check_offset_partitions(
    info: TableInfo, source: ScanSource, partitions: Sequence[PartitionInfo]
) -> None:
    """Raise when offsets are given for a partition that does not exist."""
    if not info.is_partitioned():
        return
    there = {partition.partition_name for partition in partitions}
    for name, choice in (("start", source.start), ("stop", source.stop)):
        if isinstance(choice, frozenset):
            for partition, _ in dict(choice):
                if partition not in there:
                    raise FlussError(
                        f"{name}: table {info.table_path} has no partition '{partition}'",
                        ErrorCode.PARTITION_NOT_EXISTS,
                    )


def find_offsets(
    source: ScanSource, info: TableInfo, buckets: Sequence[Bucket], bounds: Bounds | None = None
) -> tuple[Offsets, Offsets]:
    """Return where to start and to stop in each bucket; ``bounds`` are asked for where not known.

    Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` for a start before what the log still has, or
    behind its end where the offset was given for this very bucket.
    """
    if not buckets:
        return {}, {}
    if bounds is None:
        bounds = ask_bounds(source, info, buckets)
    first, last, starts, stops = bounds
    given = dict(source.start) if isinstance(source.start, frozenset) else {}
    for bucket in buckets:
        start = starts[bucket]
        explicit = (bucket.partition_name, bucket.bucket_id) in given
        # rows that expired are never silently left out
        if (start < first[bucket] and start < stops[bucket]) or (explicit and start > last[bucket]):
            raise FlussError(
                f"start: offset {start} of bucket {bucket} of table {info.table_path} is out of"
                f" range: the bucket has the offsets {first[bucket]} to {last[bucket]};"
                " start='earliest' reads all that there is",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
    return starts, stops


def offsets_since(
    source: ScanSource, info: TableInfo, buckets: Sequence[Bucket], since_ms: int
) -> Offsets:
    """Return the first offset of each bucket with a commit timestamp from a moment on."""
    by_key = {bucket.of(info.table_id): bucket for bucket in buckets}
    found = source.connection.get_admin().get_offsets_by_clock(info, list(by_key), since_ms)
    # Where the moment has not come yet by the clock of the server, rows may have come by that of
    # the bucket's last one.
    return {by_key[bucket]: offset or 0 for bucket, offset in found.items()}


class _BoundsQuestion:
    """Which offsets say where a scan starts and stops, and what follows from them."""

    def __init__(self, source: ScanSource, info: TableInfo, buckets: Sequence[Bucket]) -> None:
        self._info = info
        self._buckets = {bucket.of(info.table_id): bucket for bucket in buckets}
        self.keys = list(self._buckets)
        now = time.time()
        self._choices = [_absolute(choice, now) for choice in (source.start, source.stop)]
        moments = [OffsetSpec.timestamp(c[0]) for c in self._choices if isinstance(c, tuple)]
        self.specs = list(dict.fromkeys([OffsetSpec.earliest(), OffsetSpec.latest(), *moments]))

    def bounds(self, answers: Iterable[Mapping[TableBucket, int | None]]) -> Bounds:
        """Return the answer, given those for ``specs``; None for a moment that has not come yet."""
        found = dict(zip(self.specs, answers, strict=True))
        first, last = (
            {b: found[spec][key] or 0 for key, b in self._buckets.items()}
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )

        def resolve(choice: OffsetChoice, default: Offsets) -> Offsets:
            if isinstance(choice, str):
                return first if choice == "earliest" else last
            if isinstance(choice, int):
                return dict.fromkeys(last, choice)
            if isinstance(choice, frozenset):
                given = dict(choice)
                return {b: given.get((b.partition_name, b.bucket_id), default[b]) for b in last}
            assert isinstance(choice, tuple)
            at = found[OffsetSpec.timestamp(choice[0])]
            # a moment that has not come yet by the clock of a server is after all rows of its
            # buckets
            return {
                b: last[b] if (offset := at[key]) is None else offset
                for key, b in self._buckets.items()
            }

        starts, stops = map(resolve, self._choices, (first, last))
        return first, last, starts, {b: min(stops[b], last[b]) for b in last}

    def exactly(self, connection: FlussConnection, bounds: Bounds) -> Bounds:
        """Return bounds whose moments are exact; not on the I/O thread.

        Of what is in remote storage, servers say an offset that may be before a moment.
        """
        first, last, *chosen = bounds
        for at, choice in enumerate(self._choices):
            if not isinstance(choice, tuple):
                continue
            # a start that has expired is an error, so its exact offset is not needed
            ranges = {
                key: (chosen[at][b], last[b])
                for key, b in self._buckets.items()
                if first[b] <= chosen[at][b] < last[b]
            }
            if ranges:
                found = offsets_from_time(connection, self._info, ranges, choice[0])
                exact = {self._buckets[key]: offset for key, offset in found.items()}
                chosen[at] = {**chosen[at], **exact}
        return first, last, chosen[0], chosen[1]


def _absolute(choice: OffsetChoice, now_s: float) -> OffsetChoice:
    """Return a choice, with the moment that a timedelta means."""
    if isinstance(choice, dt.timedelta):
        return (int((now_s - choice.total_seconds()) * 1000),)
    return choice


def ask_bounds(source: ScanSource, info: TableInfo, buckets: Sequence[Bucket]) -> Bounds:
    """Return the first offsets of buckets, the ones behind their last, their starts and stops."""
    question = _BoundsQuestion(source, info, buckets)
    cluster, found = source.connection.cluster, []
    for spec in question.specs:
        answer = direct_questions.bucket_offsets(cluster, info, question.keys, spec)
        if answer is None:
            asked, bounds = source.connection.io.run(_bounds(source, info, buckets))
            return asked.exactly(source.connection, bounds)
        found.append(answer)
    return question.bounds(found)


async def _bounds(
    source: ScanSource, info: TableInfo, buckets: Sequence[Bucket]
) -> tuple[_BoundsQuestion, Bounds]:
    """Return what :func:`ask_bounds` returns, as servers say it; on the I/O thread."""
    cluster = source.connection.cluster
    question = _BoundsQuestion(source, info, buckets)

    async def ask(spec: OffsetSpec) -> Mapping[TableBucket, int | None]:
        if spec.timestamp_ms is not None:
            return await offsets_by_clock(cluster, info, question.keys, spec.timestamp_ms)
        return await bucket_offsets(cluster, info, question.keys, spec)

    # The ends are known before moments are asked for: a row that comes in between, when a moment
    # has come, would be before the end, and not be read.
    ends = await asyncio.gather(*map(ask, question.specs[:2]))
    answers = [*ends, *await asyncio.gather(*map(ask, question.specs[2:]))]
    return question, question.bounds(answers)


def frame_schema(
    info: TableInfo, columns: Sequence[str], metadata_columns: Sequence[str]
) -> pa.Schema:
    """Return the Arrow schema of a scan: the columns, then the metadata columns."""
    now = info.schema.arrow_schema
    metadata = [METADATA_FIELDS[name] for name in metadata_columns]
    return pa.schema([*(now.field(name) for name in columns), *metadata])
