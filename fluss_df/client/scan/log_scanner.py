"""Scanning logs: :class:`LogScanner`."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

import fluss_df.client.scan.bounded_reads as bounded
from fluss_df.client.fetch.parallel import read_table
from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.row_filter import RowFilter
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.runtime.awaitable import Ready, ready
from fluss_df.client.runtime.io_thread import reset_after_fork
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.scan.fetch_buffer import FetchBuffer, Handover, Taken
from fluss_df.client.scan.records import RecordBatch, ScanRecords, record_batches
from fluss_df.client.table_questions import TableQuestions
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import Closing
from fluss_df.metadata import (
    CHANGELOG_COLUMNS,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetSpec,
    TableBucket,
)
from fluss_df.pushdown.predicate import Predicate
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.context import ClientContext

T = TypeVar("T")

_Subscription = tuple[int | None, int]


class LogScanner(Ready, Closing):
    """Reads subscribed buckets: all rows so far (``to_arrow``), or rows as they come (``poll``).

    It reads the changelog of a primary-key table: Arrow results then have the columns
    ``_change_type`` (``+I``, ``-U``, ``+U`` or ``-D``), ``_log_offset`` and
    ``_commit_timestamp`` behind those of the table. The old and the new row of an update
    always come together.

    Obtain one from ``table.new_scan()``. A scanner may be used from several threads, one call at
    a time.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns to read, in this order; None for all.
    records
        Whether it yields single records (:meth:`poll`) or Arrow batches.
    metadata_columns
        The metadata columns that Arrow results have behind the others. By default (None) those of
        a changelog for primary-key tables, and none for log tables.
    predicate
        Yield only rows for which it is true.

    Attributes
    ----------
    metrics
        What was asked for, received and waited for.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: tuple[str, ...] | None,
        *,
        records: bool,
        metadata_columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
    ) -> None:
        self._connection = connection
        self._info = info
        self._columns = tuple(info.get_column_names()) if columns is None else columns
        self._records = records
        self.metrics = ScanMetrics(parent=connection.metrics)
        if metadata_columns is None:
            # a changelog means nothing without them; Fluss reserves their names
            changelog = info.has_primary_key() and not records
            metadata_columns = CHANGELOG_COLUMNS if changelog else ()
        self._metadata = tuple(metadata_columns)
        self._filter = RowFilter(info, self._columns, predicate, self._metadata)
        self._decoder = TableDecoder(
            connection, info, self._filter.columns, self._metadata, self.metrics
        )
        self._subscriptions: dict[_Subscription, Position] = {}
        # start offsets that the caller gave as numbers: the log may not have them
        self._named: dict[_Subscription, int] = {}
        self._ever_subscribed = False
        self._buffer = FetchBuffer(connection, info, self._decoder, self._filter, self.metrics)
        self._lock = threading.RLock()
        self._closed = False
        self._given_up = threading.Event()
        # of lazy readers that did not end: a position, where it was left, the first row not read
        self._unread: deque[tuple[Position, int, int]] = deque()
        # an item for each call that a poll of another thread is to let in
        self._waiting: deque[None] = deque()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Go on in a forked child with new sockets: answers on their way are the parent's."""
        self._buffer.after_fork()
        self._lock = threading.RLock()
        self._waiting.clear()
        # new, too: its lock may be held by a thread that is not here
        self._given_up = threading.Event()
        if self._closed:
            self._given_up.set()

    # ---- subscriptions

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a table without partitions.

        Parameters
        ----------
        bucket_id
            From 0.
        start_offset
            An offset, ``EARLIEST_OFFSET`` (what the log has when it is first read) or
            ``LATEST_OFFSET``.
        """
        self.subscribe_buckets({bucket_id: start_offset})

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Subscribe to buckets of a table without partitions, ``{bucket: offset}``."""
        self.check_buckets(bucket_offsets)
        self._subscribe({(None, bucket): offset for bucket, offset in bucket_offsets.items()})

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Subscribe to a bucket of a partition."""
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset})

    def subscribe_partition_buckets(
        self, partition_bucket_offsets: Mapping[tuple[int, int], int]
    ) -> None:
        """Subscribe to buckets of partitions, ``{(partition id, bucket): offset}``."""
        self.check_partition_buckets(partition_bucket_offsets)
        self._subscribe(dict(partition_bucket_offsets))

    def check_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Refuse what :meth:`subscribe_buckets` would refuse without asking the cluster."""
        if self._info.is_partitioned():
            raise FlussError(
                f"table {self._info.table_path} has partitions: use subscribe_partition",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        starts = ((None, bucket, offset) for bucket, offset in bucket_offsets.items())
        bounded.require_starts(self._connection, self._info, starts)

    def check_partition_buckets(self, offsets: Mapping[tuple[int, int], int]) -> None:
        """Refuse what :meth:`subscribe_partition_buckets` would refuse without the cluster."""
        if not self._info.is_partitioned():
            raise FlussError(
                f"table {self._info.table_path} has no partitions: use subscribe",
                ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
            )
        starts = ((*key, offset) for key, offset in offsets.items())
        bounded.require_starts(self._connection, self._info, starts)

    def _subscribe(self, offsets: Mapping[Any, int]) -> None:
        names: dict[int, str] = {}
        if self._info.is_partitioned():
            infos = TableQuestions(self._connection).list_partition_infos(self._info.table_path)
            names = {info.partition_id: info.partition_name for info in infos}
        new: dict[_Subscription, Position] = {}
        for key, offset in offsets.items():
            partition, bucket = key
            if partition is not None and partition not in names:
                raise FlussError(
                    f"table {self._info.table_path} has no partition with id {partition}",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            position = Position(
                TableBucket(self._info.table_id, bucket, partition),
                None if partition is None else names[partition],
                offset,
                projected=self._decoder.projection is not None,
            )
            new[partition, bucket] = position
        for symbol, spec in (
            (EARLIEST_OFFSET, OffsetSpec.earliest()),
            (LATEST_OFFSET, OffsetSpec.latest()),
        ):
            asked = [p for p in new.values() if p.offset == symbol]
            if asked:
                known = self._offsets(asked, spec)
                for position in asked:
                    position.move(known[position.bucket])
                    if symbol == EARLIEST_OFFSET:
                        position.log_start = position.offset
        with self._promptly():
            for key in new:
                self._forget(key)
            self._subscriptions.update(new)
            self._ever_subscribed = True
            self._named.update({key: offset for key, offset in offsets.items() if offset >= 0})
            self._buffer.stop()

    def _offsets(self, positions: list[Position], spec: OffsetSpec) -> dict[TableBucket, int]:
        buckets = [position.bucket for position in positions]
        return TableQuestions(self._connection).get_bucket_offsets(self._info, buckets, spec)

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._unsubscribe((None, bucket_id))

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        self._unsubscribe((partition_id, bucket_id))

    def _unsubscribe(self, key: _Subscription) -> None:
        with self._promptly():
            self._forget(key)
            self._buffer.stop()

    @contextlib.contextmanager
    def _promptly(self) -> Iterator[None]:
        """Hold the lock; a poll of another thread that waits for rows ends for it."""
        self._waiting.append(None)
        try:
            with self._lock:
                yield
        finally:
            self._waiting.pop()

    def _forget(self, key: _Subscription) -> None:
        self._named.pop(key, None)
        old = self._subscriptions.pop(key, None)
        if old is not None:
            self._buffer.forget(old)

    # ---- polling

    def poll(self, timeout_ms: int) -> ScanRecords:
        """Return records, at most ``scanner.log.max-poll-records``.

        One record more is returned where the old and the new row of an update would be separated.

        Waits up to ``timeout_ms`` for the first; the result is empty when none came, or when
        another thread closed the scanner or changed what it is subscribed to.
        """
        return self._poll(timeout_ms, ScanRecords, records=True)

    def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """Return log batches with their bucket and offsets; waits up to ``timeout_ms``."""
        return self._poll(timeout_ms, record_batches, records=False)

    def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """Return log batches; the older name of :meth:`poll_record_batch`."""
        return self.poll_record_batch(timeout_ms)

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Return the rows that came as one table, which is empty when none came."""
        return self._poll(timeout_ms, self.as_table, records=False)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Arrow results."""
        return self._filter.schema(self._decoder.schema)

    @property
    def yields_records(self) -> bool:
        """Whether this scanner is for :meth:`poll`, rather than for Arrow results."""
        return self._records

    def as_table(self, taken: Taken) -> pa.Table:
        """Return decoded batches as one table."""
        return pa.Table.from_batches([decoded.batch for _, decoded in taken], self.schema)

    def take(
        self, timeout_ms: float, *, records: bool, given_up: threading.Event | None = None
    ) -> Taken:
        """Wait up to ``timeout_ms`` for decoded batches, and take them out.

        Parameters
        ----------
        timeout_ms
            How long to wait at the most.
        records
            Whether to take records, of which a poll returns a limited number.
        given_up
            Ends the wait early, within a fifth of a second, when it is set.
        """
        return self._poll(timeout_ms, lambda taken: taken, records=records, given_up=given_up)

    def _poll(
        self,
        timeout_ms: float,
        make: Callable[[Taken], T],
        *,
        records: bool,
        given_up: threading.Event | None = None,
    ) -> T:
        """Take decoded batches, and return what ``make`` makes of them.

        The batches leave the fetch buffer when the caller has the result: Ctrl-C loses none.
        """
        self._require(records=records)
        most = self._connection.config.scanner_log_max_poll_records if records else None
        handover = Handover(threading.get_ident())
        ending = [event for event in (given_up, self._given_up) if event is not None]
        try:
            with self._lock:
                if not self._buffer.end_last_poll(handover.thread, timeout_ms):
                    return make([])
                self._go_back()
                self._buffer.fill(
                    self._subscriptions.values(),
                    timeout_ms,
                    lambda: any(event.is_set() for event in ending) or bool(self._waiting),
                )
                result = make(self._buffer.offer(handover, most, self._undo()))
            handover.handed = True
            return result
        except BaseException:
            handover.withdrawn = True
            raise

    def _undo(self) -> Callable[[], None]:
        """Return a function that takes back side effects of ``make``, for a poll that is ended."""
        return lambda: None

    def _require(self, *, records: bool) -> None:
        if self._closed:
            raise FlussError("the scanner is closed: create a new one")
        if records != self._records:
            raise FlussError(
                "poll() needs a record scanner: create it with create_log_scanner()"
                if records
                else "Arrow results need a batch scanner: create it with"
                " create_record_batch_log_scanner()"
            )
        if not self._ever_subscribed:
            raise FlussError("the scanner is subscribed to nothing: call subscribe(...) first")

    # ---- everything there is

    def _bounded(self) -> list[Position]:
        """Return positions from the scanner's offsets to the current end of the log."""
        with self._lock:
            self._go_back()
            positions = list(self._subscriptions.values())
        ends = self._offsets(positions, OffsetSpec.latest())
        for key, position in self._subscriptions.items():
            bounded.require_within(position, self._named.get(key), ends, self._buffer.where)
        with self._lock:
            self._buffer.clear(positions)
            found = []
            for position in positions:
                end = ends[position.bucket]
                if end > position.offset:
                    found.append(
                        Position(
                            position.bucket,
                            position.partition_name,
                            position.offset,
                            end,
                            position.log_start,
                        )
                    )
                position.move(max(position.offset, end))
        return sorted(found, key=lambda p: (p.partition_name or "", p.bucket.bucket_id))

    def to_arrow(self) -> pa.Table:
        """Return all rows of the subscribed buckets up to their latest offset.

        The scanner goes on from there. Rows are ordered by partition, bucket and offset.
        """
        return self._read_all(lambda table, *_: self._whole(table))

    def to_tables(self) -> list[tuple[Position, pa.Table]]:
        """Return the rows of :meth:`to_arrow`, those of each bucket apart."""

        def make(
            table: pa.Table, positions: Sequence[Position], rows: Mapping[TableBucket, int]
        ) -> list[tuple[Position, pa.Table]]:
            return [(p, self._whole(t)) for p, t in bounded.rows_apart(table, positions, rows)]

        return self._read_all(make)

    def _read_all(
        self, make: Callable[[pa.Table, Sequence[Position], Mapping[TableBucket, int]], T]
    ) -> T:
        """Return what is made of all rows, their positions, and how many each bucket has."""
        self._require(records=False)
        with self._lock:
            self._go_back()
            # so that each position is at the first row that the caller does not have: rows that
            # were decoded for a poll that failed lie before the offset that is fetched next
            self._buffer.clear(self._subscriptions.values())
            before = [(position, position.offset) for position in self._subscriptions.values()]
        try:
            positions = self._bounded()
            for position in positions:
                position.projected = self._decoder.projection is not None
            rows: dict[TableBucket, int] = {}
            table = read_table(
                self._connection,
                self._info,
                self._filter.columns,
                positions,
                self.metrics,
                self._metadata,
                self._buffer.server_filter,
                self._given_up,
                rows,
            )
            result = make(table, positions, rows)
        except BaseException:
            # the next read must return the rows that this one did not
            for position, offset in before:
                position.move(offset)
            raise
        return result

    def _whole(self, table: pa.Table) -> pa.Table:
        """Return the result of all rows up to the latest offset."""
        return self._filter.table(table)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows up to the latest offset as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a lazy reader of all rows up to the latest offset, in bounded memory.

        The scanner goes on from there. Where the reader fails, or is dropped before its end and
        before the scanner has read on, it goes on from the first row that was not returned.
        """
        self._require(records=False)
        mine = {position.bucket: position for position in self._subscriptions.values()}

        def unread(left: Sequence[tuple[Position, int]]) -> None:
            # the scanner may be in use, by this thread too: its next read goes back
            self._unread.extend((mine[p.bucket], p.stop or 0, offset) for p, offset in left)

        server_filter, make = self._buffer.server_filter, self._lazy_maker()
        batches = bounded.lazy_read(self._decoder, self._bounded(), server_filter, make, unread)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def _lazy_maker(self) -> bounded.Make:
        """Return what makes the result of decoded rows."""
        return lambda rows, _: (self._filter.table(rows), False)

    def _go_back(self) -> None:
        """Go back to what lazy readers did not return; the lock is held."""
        while self._unread:
            position, end, offset = self._unread.popleft()
            if position in self._subscriptions.values():
                self._buffer.clear(self._subscriptions.values())
                # else the scanner itself has read on since
                if position.offset == end:
                    position.move(offset)

    # ---- the end

    def close(self) -> None:
        """Close the sockets, and end a read of another thread; a second call does nothing."""
        self._give_up()
        with self._lock:
            self._buffer.clear(self._subscriptions.values())
            self._subscriptions.clear()
            self._closed = True
        return ready(None)

    def _give_up(self) -> None:
        """Have a read of all rows end with an error, as nobody waits for it any more."""
        self._given_up.set()

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        if buffer is not None:
            buffer.close_sockets()

    def __repr__(self) -> str:
        kind = "records" if self._records else "batches"
        return (
            f"LogScanner({str(self._info.table_path)!r}, {kind},"
            f" {len(self._subscriptions)} buckets)"
        )
