"""Streams of Fluss tables for Spark: offsets in its checkpoint, and tasks between two of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.losses import Losses, moment_after, not_put_back, within_log
from fluss_df.io.runs.micro_batches import share_rows
from fluss_df.io.scans.offsets import offsets_of
from fluss_df.io.scans.planning import find_offsets
from fluss_df.metadata import OffsetSpec
from fluss_df.pushdown.plan import Bucket, Split
from fluss_df.pushdown.prune import PredicateConjunct, make_splits, prune
from fluss_df.spark.boundary import called_by_spark
from fluss_df.spark.plan.options import ReadOptions, invalid
from fluss_df.spark.plan.partition import FlussPartition
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.read.buckets import Buckets
from fluss_df.spark.read.reading import read_task

_VERSION = 1

Offsets = dict[Bucket, int]


def to_json(scan: TableScan, offsets: Mapping[Bucket, int], **more: Any) -> dict[str, Any]:
    """Return offsets in the form that Spark keeps in its checkpoint."""
    return {
        "version": _VERSION,
        "table": str(scan.path),
        "table_id": scan.info.table_id,
        "created": scan.info.created_time,
        "offsets": {_key(bucket): offset for bucket, offset in offsets.items()},
        **more,
    }


def from_json(scan: TableScan, found: Mapping[str, Any]) -> Offsets:
    """Return the offsets of a checkpoint.

    Raises FlussError for those of another table, of a table of this name that was dropped and made
    again since, or of a newer version of this library.
    """
    if found.get("version") != _VERSION:
        raise invalid(
            f"the checkpoint has offsets of version {found.get('version')!r}, and this fluss_df"
            f" reads version {_VERSION}: use the release that wrote it, or another checkpoint"
        )
    if found["table"] != str(scan.path):
        raise invalid(
            f"the checkpoint is of table {found['table']}, and the stream reads {scan.path}:"
            " use another checkpoint"
        )
    # a server that was set up again gives the same table ids again
    created = found.get("created", scan.info.created_time)
    if (found["table_id"], created) != (scan.info.table_id, scan.info.created_time):
        raise FlussError(
            f"table {scan.path} was dropped and made again since the checkpoint was written (its id"
            f" was {found['table_id']}, and is {scan.info.table_id}): start over with another"
            " checkpoint",
            ErrorCode.TABLE_NOT_EXIST,
        )
    return {_bucket(key): int(offset) for key, offset in found["offsets"].items()}


def _key(bucket: Bucket) -> str:
    if bucket.partition_id is None:
        return str(bucket.bucket_id)
    return f"{bucket.partition_id}/{bucket.partition_name}/{bucket.bucket_id}"


def _bucket(key: str) -> Bucket:
    if "/" not in key:
        return Bucket(None, None, int(key))
    partition, name, number = key.split("/")
    return Bucket(int(partition), name, int(number))


class FlussStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: rows of a log, or changes of a primary-key table, in the order of their offsets."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None
        self._held = False
        choice = "fail" if options.fail_on_data_loss else "ignore"
        self._losses = Losses(choice, "option 'fail.on.data.loss' with 'false' goes on without it")
        scan = self._scan()
        if scan.info.has_primary_key() and options.mode is None:
            raise invalid(
                f"a stream of table {scan.path}, which has a primary key, is of its changes: say"
                " 'changelog' (all of them) or 'upsert' (without old values) as option"
                " 'changelog.mode'"
            )
        if options.stop is not None:
            raise invalid("option 'ending.offsets' is for batch reads: a stream has no end")

    def _scan(self) -> TableScan:
        return TableScan(self._options, streaming=True, schema=self._schema)

    @called_by_spark
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts: the option ``starting.offsets``, or the earliest."""
        scan = self._scan()
        source = scan.source(scan.arrow_schema.names)
        buckets = Buckets(scan, source)
        starts, _ = find_offsets(source, scan.info, buckets.chosen)
        # Spark writes down where a batch ends, and asks for this again until the first is done
        return to_json(scan, starts, initial=True, only=buckets.only({}))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the option ``max.offsets.per.trigger``."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @called_by_spark
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take the ends of this moment for those of the query."""
        scan = self._scan()
        self._target = _ends(scan, Buckets(scan).chosen)

    @called_by_spark
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of this moment, for the query's progress."""
        scan = self._scan()
        return to_json(scan, _ends(scan, Buckets(scan).chosen))

    @called_by_spark
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return up to where the next batch reads.

        Raises FlussError for a table that was made again, and for options that choose other buckets
        than the stream read so far; for partitions that are gone, unless ``fail.on.data.loss`` is
        false.
        """
        scan = self._scan()
        read = from_json(scan, start)
        buckets = Buckets(scan)
        kept = buckets.still_there(self._losses, read)
        buckets.require_once_there(start, read)
        buckets.require_new(start, read)
        now = _ends(scan, buckets.chosen)
        begun = {**read, **self._not_put_back(scan, start, kept, now)}
        ends = now if self._target is None else self._aimed(now, begun)
        # partitions that came later are read from their beginning
        splits = [
            _split(bucket, begun.get(bucket, 0), max(begun.get(bucket, 0), end))
            for bucket, end in ends.items()
        ]
        if isinstance(limit, ReadMaxRows):
            splits = share_rows(splits, limit.max_rows)
        stops = {split.bucket: split.stop for split in splits}
        initial = start.get("initial", False)
        # an empty batch notes where a query that reads only new rows begins
        again = {_key(b): at for b, at in begun.items() if at < read.get(b, at)}
        if stops == begun and not again and not (initial and self._options.start == "latest"):
            return start
        more: dict[str, Any] = {"only": buckets.only(start)}
        if initial:
            more["began"] = start["offsets"]
        if again:
            # The log was put back to an earlier state. The batch begins at these offsets, which are
            # before those that Spark has in its checkpoint.
            more["again"] = again
        clock = moment_after(scan.connection, scan.info, stops)
        return to_json(scan, stops, clock=clock, **more)

    def _aimed(self, now: Offsets, begun: Offsets) -> Offsets:
        """Return the ends that trigger ``AvailableNow`` reads up to, of the buckets there are.

        Spark asks for these ends before it asks where a new query starts. A partition that was
        created between the two has a start and no end. It ends here where it starts, so that the
        next trigger reads it. A log that was put back to an earlier state since may end before the
        end that was remembered.
        """
        target = self._target or {}
        return {
            b: min(target[b], end) if b in target else begun[b]
            for b, end in now.items()
            if b in target or b in begun
        }

    def _not_put_back(
        self, scan: TableScan, found: Mapping[str, Any], known: Offsets, ends: Offsets
    ) -> Offsets:
        """Return from where to read on; raise where the log has other rows than were read.

        The server may be put back to an earlier state while the query runs, so each batch checks
        this. There is no batch where each log ends at the offset that it was read up to. Then only
        the first call checks.
        """
        if self._held and all(ends[bucket] == at for bucket, at in known.items()):
            return known
        self._held = True
        clock = found.get("clock")
        same = not_put_back(self._losses, scan.connection, scan.info, known, clock, ends)
        within_log(self._losses, scan.path, known, known, ends)
        return {b: min(at, ends[b]) for b, at in same.items()}

    @called_by_spark
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks between two offsets.

        Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` where rows have expired before they were read,
        unless ``fail.on.data.loss`` is false.
        """
        scan = self._scan()
        begun, ends = from_json(scan, start), from_json(scan, end)
        if start.get("initial") and "began" in end:
            # the first batch is repeated: it begins where it began
            begun = {_bucket(key): int(offset) for key, offset in end["began"].items()}
        begun |= {_bucket(key): int(offset) for key, offset in end.get("again", {}).items()}
        buckets = [bucket for bucket, stop in ends.items() if stop > begun.get(bucket, 0)]
        starts = {bucket: begun.get(bucket, 0) for bucket in buckets}
        starts = self._there(scan, starts, ends)
        names, predicate = scan.fetched(())
        source = scan.source(names)
        conditions = PredicateConjunct.of(predicate)
        pruned = prune(scan.info, list(starts), conditions, source.metadata_columns)
        splits = make_splits(pruned.buckets, starts, ends, pruned.low, pruned.high)
        tasks = scan.log_tasks(source, predicate, splits)
        # rows that expire before a task begins are lost, too
        lossy = not self._options.fail_on_data_loss
        return [
            FlussPartition(dataclasses.replace(t, from_log_start=lossy, without_dropped=lossy))
            for t in tasks
        ]

    def _there(self, scan: TableScan, starts: Offsets, ends: Offsets) -> Offsets:
        """Return the starts from which the rows of a batch are still in the log.

        Raises FlussError when rows are gone, unless ``fail.on.data.loss`` is false. ``ends`` is
        then changed to where the log ends.
        """
        if not starts:
            return starts
        starts = Buckets(scan).still_there(self._losses, starts)
        first = offsets_of(scan.connection, scan.info, starts, OffsetSpec.earliest())
        last = _ends(scan, list(starts))
        for bucket, offset in starts.items():
            if first[bucket] > offset or last[bucket] < ends[bucket]:
                self._losses.found(
                    f"table {scan.path}, bucket {bucket}: the batch reads the offsets {offset} to"
                    f" {ends[bucket]}, and there are {first[bucket]} to {last[bucket]}: rows have"
                    " expired, or were lost"
                )
                ends[bucket] = min(ends[bucket], last[bucket])
        return {bucket: max(offset, first[bucket]) for bucket, offset in starts.items()}

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if isinstance(partition, FlussPartition):
            yield from read_task(self._options, self._schema, partition.task)


def _ends(scan: TableScan, buckets: Sequence[Bucket]) -> Offsets:
    return offsets_of(scan.connection, scan.info, buckets, OffsetSpec.latest())


def _split(bucket: Bucket, start: int, stop: int) -> Split:
    return Split(bucket.partition_id, bucket.partition_name, bucket.bucket_id, start, stop)
