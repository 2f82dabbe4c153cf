"""The ledger of exactly-once writes: what a batch of a query is, decided once and for all.

Two log tables of Fluss itself: ``staged`` has the encoded batches of tasks, ``decisions`` one entry
for each batch of a query, of which the first counts. Both are partitioned by query and by hundreds
of batches; partitions that are no longer needed are dropped.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.connection import FlussConnection
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.write.append import AppendWriter
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import OffsetSpec, TableBucket, TablePath
from fluss_df.schema import Schema, TableDescriptor, TableInfo

_BATCHES_PER_EPOCH: Final = 100
_STAGED_BUCKETS: Final = 4
# servers want a duration, and keep everything where it is 0
_FOREVER: Final = "0 s"
_STAGED = pa.schema(
    [
        ("epoch", pa.string()),
        ("attempt", pa.string()),
        ("partition_id", pa.int64()),
        ("bucket_id", pa.int32()),
        ("row_count", pa.int64()),
        ("payload", pa.binary()),
    ]
)
_DECISIONS = pa.schema([("epoch", pa.string()), ("batch", pa.int64()), ("manifest", pa.string())])


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The staged pieces of one attempt of a task.

    Parameters
    ----------
    attempt
        Its name, which no other attempt has.
    place
        A bucket of the staging partition, and the offsets there from the first to behind the last.
        Rows of other attempts may be between.
    targets
        The (partition id, bucket) pairs of the table that its rows are for.
    rows, pieces
        How many rows, in how many encoded batches.
    """

    attempt: str
    place: tuple[int, int, int]
    targets: tuple[tuple[int | None, int], ...]
    rows: int
    pieces: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch of a query: plain values, the same for each reader.

    Parameters
    ----------
    name
        Its own, to tell it from one that was written for the same batch at the same time.
    table_id
        The table it is for.
    writer_id
        The writer that its batches are written as; nobody else has it.
    places
        The end of each bucket before the first batch was sent: (partition id, bucket, offset).
    attempts
        The staged attempts that make it up.
    ranges
        Where these are in the staging partition: (bucket, start, stop).
    pieces, rows
        How many encoded batches and rows that is.
    read
        What the batch read of its sources, as the query's checkpoint says; None where the
        checkpoint cannot be read here, or an earlier release wrote this.
    content
        A digest of its rows, whatever their order; None likewise.
    table
        The table's name; None likewise.
    """

    name: str
    table_id: int
    writer_id: int
    places: tuple[tuple[int | None, int, int], ...]
    attempts: tuple[str, ...]
    ranges: tuple[tuple[int, int, int], ...]
    pieces: int
    rows: int
    read: str | None = None
    content: str | None = None
    table: str | None = None

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read it from text."""
        found: Mapping[str, Any] = json.loads(text)
        return Manifest(
            name=found["name"],
            table_id=found["table_id"],
            writer_id=found["writer_id"],
            places=tuple((p, b, o) for p, b, o in found["places"]),
            attempts=tuple(found["attempts"]),
            ranges=tuple((b, start, stop) for b, start, stop in found["ranges"]),
            pieces=found["pieces"],
            rows=found["rows"],
            read=found.get("read"),
            content=found.get("content"),
            table=found.get("table"),
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """The state of the ledger when a batch comes.

    ``manifest`` is the one of this batch, None where none was decided. ``newest`` is the number of
    the newest batch of the query that was decided, -1 where there is none. ``before`` is the
    manifest of the newest batch before this one, or None.
    """

    manifest: Manifest | None
    newest: int
    before: Manifest | None


@dataclass(frozen=True, slots=True)
class Piece:
    """An encoded batch as it was staged: for which bucket, its rows, its bytes."""

    partition_id: int | None
    bucket_id: int
    rows: int
    payload: pa.Buffer


class Ledger:
    """The ledger of one query."""

    def __init__(self, connection: FlussConnection, database: str, query_id: str) -> None:
        self._connection = connection
        self._query_id = query_id
        self._staged = TablePath(database, "staged")
        self._decisions = TablePath(database, "decisions")

    def create(self) -> None:
        """Create the tables where they do not exist."""
        admin = self._connection.get_admin()
        if admin.table_exists(self._staged) and admin.table_exists(self._decisions):
            return
        admin.create_database(self._staged.database_name, ignore_if_exists=True)
        # rows do not expire: partitions are dropped once they are not needed
        forever = {"table.log.ttl": _FOREVER}
        # staged batches are compressed already
        properties = {"table.log.arrow.compression.type": "NONE", **forever}
        staged = TableDescriptor(
            Schema(_STAGED),
            partition_keys=["epoch"],
            bucket_keys=["attempt"],
            bucket_count=_STAGED_BUCKETS,
            properties=properties,
        )
        admin.create_table(self._staged, staged, ignore_if_exists=True)
        decisions = TableDescriptor(
            Schema(_DECISIONS), partition_keys=["epoch"], bucket_count=1, properties=forever
        )
        admin.create_table(self._decisions, decisions, ignore_if_exists=True)

    def epoch(self, batch: int) -> str:
        """Return the partition of a batch."""
        return f"{self._query_id}-{batch // _BATCHES_PER_EPOCH}"

    # ---- staging, in tasks

    def stage(self, batch: int, pieces: Iterable[Piece]) -> StagedTask:
        """Write the encoded batches of a task's attempt; all of it is acknowledged then."""
        attempt = uuid.uuid4().hex
        info = self._connection.get_table(self._staged).get_table_info()
        targets: dict[tuple[int | None, int], None] = {}
        count = rows = 0
        with AppendWriter(self._connection, info, create_partitions=True) as writer:
            for piece in pieces:
                values = [
                    pa.array([self.epoch(batch)]),
                    pa.array([attempt]),
                    pa.array([piece.partition_id], pa.int64()),
                    pa.array([piece.bucket_id], pa.int32()),
                    pa.array([piece.rows]),
                    pa.array([piece.payload.to_pybytes()], pa.binary()),
                ]
                writer.write_arrow_batch(pa.RecordBatch.from_arrays(values, schema=_STAGED))
                targets[piece.partition_id, piece.bucket_id] = None
                count += 1
                rows += piece.rows
            writer.flush()
            results = writer.offsets()
        if sum(result.rows for result in results) != count:
            # the answer to a repeated request may not say where the rows of the first one are
            raise FlussError(
                f"table {self._staged}: of {count} staged batches of rows the cluster did not say"
                " where all of them are; the task is to be run again",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        place = (0, 0, 0)
        if results:
            (result,) = results
            place = (result.bucket_id, result.base_offset, result.end_offset)
        return StagedTask(attempt, place, tuple(targets), rows, count)

    def staged(self, batch: int, manifest: Manifest) -> Iterator[list[Piece]]:
        """Yield what a manifest consists of, in an order that is the same each time.

        Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION``, before the first of it, when some of it has
        expired; ``CORRUPT_RECORD_EXCEPTION`` when some of it is not there.
        """
        info, partition_id = self._partition(self._staged, self.epoch(batch))
        self._check_staged(info, partition_id, batch, manifest)
        wanted = pa.array(manifest.attempts, pa.string())
        count = 0
        for table in self._read_partition(info, partition_id, self.epoch(batch), manifest.ranges):
            part = table.filter(pc.is_in(table.column("attempt"), value_set=wanted))
            count += part.num_rows
            yield [_piece(rows, i) for rows in part.to_batches() for i in range(rows.num_rows)]
        if count != manifest.pieces:
            raise FlussError(
                f"batch {batch} of query {self._query_id}: {count} of {manifest.pieces} staged"
                f" batches are in table {self._staged}; it was dropped, or lost data",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )

    def _check_staged(
        self, info: TableInfo, partition_id: int | None, batch: int, manifest: Manifest
    ) -> None:
        """Raise where what is staged has expired, before a part of it is sent."""
        if partition_id is None or not manifest.ranges:
            return
        buckets = [
            TableBucket(info.table_id, bucket, partition_id) for bucket, *_ in manifest.ranges
        ]
        admin = self._connection.get_admin()
        first, last = (
            admin.get_bucket_offsets(info, buckets, spec)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        for bucket, (number, start, stop) in zip(buckets, manifest.ranges, strict=True):
            if first[bucket] > start or last[bucket] < stop:
                raise FlussError(
                    f"batch {batch} of query {self._query_id}: it was staged in table"
                    f" {self._staged}, bucket {number}, at the offsets {start} to {stop}, and there"
                    f" are {first[bucket]} to {last[bucket]}: rows have expired, or were lost, so"
                    " none of what is staged is sent. Drop that table and"
                    f" {self._decisions} while nothing writes, so that they are created again and"
                    " keep their rows; then repeat the write, or start the query with another"
                    " checkpoint",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )

    # ---- decisions, in the driver

    def find(self, batch: int) -> Manifest | None:
        """Return what was decided for a batch."""
        return self.decided(batch).manifest

    def decided(self, batch: int) -> Decided:
        """Return what was decided for a batch, and for those around it."""
        first: dict[int, str] = {}
        for partition in self._connection.get_admin().list_partition_infos(self._decisions):
            name = partition.partition_name
            query, _, epoch = name.rpartition("-")
            # later partitions have the newer entries
            if query == self._query_id and int(epoch) >= batch // _BATCHES_PER_EPOCH - 1:
                for found, text in self._entries(partition.partition_id, name):
                    first.setdefault(found, text)
        before = max((found for found in first if found < batch), default=None)
        return Decided(
            Manifest.from_json(first[batch]) if batch in first else None,
            max(first, default=-1),
            None if before is None else Manifest.from_json(first[before]),
        )

    def _entries(self, partition_id: int, epoch: str) -> Iterator[tuple[int, str]]:
        """Yield the entries of a partition of decisions, as far as they have not expired."""
        info = self._connection.get_table(self._decisions).get_table_info()
        bucket = TableBucket(info.table_id, 0, partition_id)
        admin = self._connection.get_admin()
        start, stop = (
            admin.get_bucket_offsets(info, [bucket], spec)[bucket]
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        if stop > start:
            place = (0, start, stop)
            for table in self._read_partition(info, partition_id, epoch, [place]):
                columns = (table.column(name).to_pylist() for name in ("batch", "manifest"))
                yield from zip(*columns, strict=True)

    def decide(self, batch: int, manifest: Manifest) -> Manifest:
        """Propose what a batch is; return what it is, which may be an earlier proposal."""
        info = self._connection.get_table(self._decisions).get_table_info()
        row = {"epoch": self.epoch(batch), "batch": batch, "manifest": manifest.to_json()}
        with AppendWriter(self._connection, info, create_partitions=True) as writer:
            writer.append(row)
        found = self.find(batch)
        if found is None:
            raise FlussError(
                f"batch {batch} of query {self._query_id}: table {self._decisions} lost its entry,"
                " which was acknowledged",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
        return found

    def clean(self, batch: int) -> None:
        """Drop what is no longer needed now and then, once a batch is published."""
        epoch, place = divmod(batch, _BATCHES_PER_EPOCH)
        if place > 1:
            return
        admin = self._connection.get_admin()
        # entries of the batch before stay: a checkpoint may be behind by one
        needed = {self._staged: epoch - 1 + place, self._decisions: epoch - 1}
        for path, first in needed.items():
            for partition in admin.list_partition_infos(path):
                query, _, number = partition.partition_name.rpartition("-")
                if query == self._query_id and int(number) < first:
                    admin.drop_partition(path, partition.spec, ignore_if_not_exists=True)

    def forget(self, chosen: Callable[[str], bool]) -> set[str]:
        """Drop all that is kept of the queries, or writes, whose names are chosen; return those."""
        admin = self._connection.get_admin()
        found: set[str] = set()
        for path in (self._staged, self._decisions):
            for partition in admin.list_partition_infos(path):
                name = partition.partition_name.rpartition("-")[0]
                if chosen(name):
                    admin.drop_partition(path, partition.spec, ignore_if_not_exists=True)
                    found.add(name)
        return found

    # ---- reading

    def _partition(self, path: TablePath, epoch: str) -> tuple[TableInfo, int | None]:
        info = self._connection.get_table(path).get_table_info()
        for partition in self._connection.get_admin().list_partition_infos(path):
            if partition.partition_name == epoch:
                return info, partition.partition_id
        return info, None

    def _read_partition(
        self,
        info: TableInfo,
        partition_id: int | None,
        epoch: str,
        ranges: Iterable[tuple[int, int, int]],
    ) -> Iterator[pa.Table]:
        if partition_id is None:
            return
        metrics = Metrics(parent=self._connection.metrics)
        decoder = TableDecoder(self._connection, info, info.get_column_names(), (), metrics)
        positions = [
            Position(TableBucket(info.table_id, bucket, partition_id), epoch, start, stop)
            for bucket, start, stop in ranges
        ]
        yield from decoder.read(positions)


def _piece(rows: pa.RecordBatch, i: int) -> Piece:
    partition_id, bucket_id, count = (rows.column(k)[i].as_py() for k in (2, 3, 4))
    return Piece(partition_id, bucket_id, count, rows.column(5)[i].as_buffer())


def merged_ranges(places: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return ranges by bucket that cover all places, each bucket once.

    Examples
    --------
    >>> merged_ranges([(1, 5, 7), (0, 0, 2), (1, 0, 3)])
    ((0, 0, 2), (1, 0, 7))
    """
    found: dict[int, tuple[int, int]] = {}
    for bucket, start, stop in places:
        if stop > start:
            low, high = found.get(bucket, (start, stop))
            found[bucket] = (min(low, start), max(high, stop))
    return tuple((bucket, *found[bucket]) for bucket in sorted(found))
