"""The current rows of primary-key tables: :class:`SnapshotScanner`.

Each bucket is read as it was at one offset of its changelog, in the best way its server has:

1. SCAN_KV, a scan of a RocksDB snapshot that the server opens (Fluss 1.0 and later);
2. the newest snapshot in remote storage, and the changelog behind it;
3. the changelog alone, folded, where it is there from its beginning. Short ones of several buckets
   are read and folded together, in the place of their snapshots too.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.client.fetch.position import Position
from fluss_df.client.fetch.row_filter import RowFilter
from fluss_df.client.fetch.table_decoder import TableDecoder
from fluss_df.client.fetch.value_decoder import ValueReader
from fluss_df.client.runtime.awaitable import Ready
from fluss_df.client.runtime.encoders import compute_threads
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.client.runtime.retry import STALE_METADATA, Backoff, is_transient
from fluss_df.client.scan.bucket_reads import BucketReads, OneRead
from fluss_df.client.scan.change_fold import ChangeFold
from fluss_df.client.scan.snapshot_files import KvSnapshot, leased, snapshot_entries
from fluss_df.client.scan.snapshot_offsets import BucketMoment, BucketMoments, Target
from fluss_df.client.table_questions import TableQuestions
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import CHANGE_TYPE_COLUMN, TableBucket, bucket_text
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import SCAN_KV
from fluss_df.protocol.frames import parse_response, server_error
from fluss_df.pushdown.predicate import Predicate
from fluss_df.record.kv.primary_key import check_primary_key, key_columns, key_lake_format
from fluss_df.schema import TableInfo

if TYPE_CHECKING:
    import pandas as pd

    from fluss_df.client.context import ClientContext

logger = logging.getLogger(__name__)

Tables = Generator[pa.Table, None, None]
# buckets that are read at once
_Group = tuple[Target, ...]

_BATCH_BYTES = 4 << 20
# The most answers without a row that are taken one after the other: servers put a row into each,
# unless there is nothing more.
_MOST_WITHOUT_ROWS = 100
# errors that do not come again when the scan is begun again
_BEGIN_ANEW = frozenset(
    {
        ErrorCode.TOO_MANY_SCANNERS,
        ErrorCode.SCANNER_EXPIRED,
        ErrorCode.UNKNOWN_SCANNER_ID,
        ErrorCode.KV_SNAPSHOT_NOT_EXIST,
    }
)


class SnapshotScanner(Ready):
    """Reads the current rows of a primary-key table.

    Every bucket is read as it was at one offset of its changelog, which :attr:`offsets` tells
    then: the rows and the changelog from there on are, at any time, the table. Rows of different
    buckets may be of different moments. Within a bucket no order is promised.

    Obtain one from ``table.new_scan().create_snapshot_scanner()``; each reads once.

    Parameters
    ----------
    connection, info
        The table.
    columns
        The columns to read, in this order; None for all.
    predicate
        What must be true of a row; None for all rows.
    limit
        How many rows to return at the most; None for all.
    partitions
        The names of the partitions to read; None for all.
    buckets
        The numbers of the buckets to read; None for all.

    Attributes
    ----------
    schema
        The schema of the result.
    metrics
        What was asked for, received and waited for.
    """

    def __init__(
        self,
        connection: ClientContext,
        info: TableInfo,
        columns: Sequence[str] | None = None,
        *,
        predicate: Predicate | None = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        buckets: Sequence[int] | None = None,
    ) -> None:
        check_primary_key(info)
        self._connection = connection
        self._info = info
        names = info.get_column_names() if columns is None else columns
        self._filter = RowFilter(info, names, predicate)
        self._columns = self._filter.columns
        self._limit = limit
        # servers count rows before they are filtered here
        self._server_limit = limit if predicate is None else None
        self._partitions = partitions
        self._buckets = buckets
        self._values = ValueReader(connection, info, self._columns)
        self.schema: pa.Schema = self._filter.schema(self._values.schema)
        self.metrics = ScanMetrics(parent=connection.metrics)
        self._offsets: dict[TableBucket, int] = {}
        self._remaining: set[TableBucket] = set()
        #: Whether it was read; ends a read that nobody waits for.
        self.once = OneRead(f"table {info.table_path}")

    @property
    def offsets(self) -> dict[TableBucket, int]:
        """The offset of each bucket's changelog at which its rows were read.

        A changelog scanner subscribed there continues exactly where the rows end.

        Raises
        ------
        FlussError
            Before everything was read, and after a scan with a limit, which does not read it all.
        """
        if self._limit is not None:
            raise FlussError(
                f"the scan of table {self._info.table_path} had a limit: it stands for no offsets"
            )
        if not self.once.begun or self._remaining:
            raise FlussError(
                f"the scan of table {self._info.table_path} is not over: read it to its end first"
            )
        return dict(self._offsets)

    def offset_of(self, bucket: TableBucket) -> int | None:
        """Return the offset at which a bucket is read whose scan has begun; None for others.

        It may be another when a bucket is begun again, which happens before its first rows only.
        """
        return self._offsets.get(bucket)

    # ---- reading

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table; buckets are read side by side."""
        targets = self._start()
        if self._limit is not None:
            return pa.Table.from_batches(list(self._limited(targets)), self.schema)
        tables = list(self._tables(targets, whole=True))
        return pa.concat_tables([pa.Table.from_batches([], self.schema), *tables])

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Iterate over the rows in bounded memory, bucket after bucket.

        Buckets are read side by side, and at most about 32 MB are held of those whose turn has not
        come.

        Raises
        ------
        FlussError
            Also when a server is lost in the middle of a bucket: what was returned of it stands
            for no offset then, and the scan has to begin again.
        """
        targets = self._start()
        if self._limit is not None:
            return self._limited(targets)
        return self._batches(targets)

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a lazy reader of :meth:`batches`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def _start(self) -> list[Target]:
        self.once.begin()
        info = self._info
        partitions: list[tuple[int | None, str | None]] = [(None, None)]
        if info.is_partitioned():
            found = TableQuestions(self._connection).list_partition_infos(info.table_path)
            partitions = [(p.partition_id, p.partition_name) for p in found]
            if self._partitions is not None:
                missing = set(self._partitions) - {p.partition_name for p in found}
                if missing:
                    raise FlussError(
                        f"table {info.table_path} has no partition '{min(missing)}'",
                        ErrorCode.PARTITION_NOT_EXISTS,
                    )
                partitions = [p for p in partitions if p[1] in self._partitions]
        elif self._partitions is not None:
            raise FlussError(
                f"table {info.table_path} has no partitions",
                ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
            )
        targets = [
            Target(TableBucket(info.table_id, bucket, partition_id), name)
            for partition_id, name in sorted(partitions, key=lambda p: p[1] or "")
            for bucket in self._buckets_of(partition_id)
        ]
        self._remaining = {target.bucket for target in targets}
        self._moments = BucketMoments(self._connection, info, targets)
        self._moments.learn_leaders()
        return targets

    def _buckets_of(self, partition_id: int | None) -> Iterable[int]:
        count = self._connection.cluster.buckets_of(self._info, partition_id)
        return range(count) if self._buckets is None else (b for b in self._buckets if b < count)

    def _batches(self, targets: Sequence[Target]) -> Generator[pa.RecordBatch, None, None]:
        for table in self._tables(targets, whole=False):
            yield from table.to_batches()

    def _limited(self, targets: Sequence[Target]) -> Generator[pa.RecordBatch, None, None]:
        left = self._limit or 0
        # the first bucket may have them all
        for some in (targets[:1], targets[1:]):
            with contextlib.closing(self._batches(some)) as batches:
                while left > 0:
                    batch = next(batches, None)
                    if batch is None:
                        break
                    yield batch.slice(0, left)
                    left -= batch.num_rows

    def _tables(self, targets: Sequence[Target], *, whole: bool) -> Iterator[pa.Table]:
        """Read buckets, in their order.

        A bucket is begun again from its beginning where it is interrupted and nothing of it was
        handed on; with ``whole`` that is always so.
        """
        config = self._connection.config
        threads = max(config.scanner_fetch_connections, compute_threads())
        for groups in self._groups(targets):
            reads = BucketReads(
                groups,
                self._group,
                self._pause,
                self._interrupted,
                retry_ms=config.retry_timeout_ms,
                threads=threads,
                whole=whole,
            )
            with contextlib.closing(reads.alone() if len(groups) == 1 else reads.together()) as all:
                yield from all

    def _groups(self, targets: Sequence[Target]) -> Iterable[list[_Group]]:
        """Return which buckets are read together, as many at once as are asked for at once."""
        if len(targets) > 1 and not self._servers_scan(targets[0]):
            return self._moments.groups(targets)
        return [[(target,) for target in targets]] if targets else []

    def _servers_scan(self, target: Target) -> bool:
        """Whether the server of a bucket knows SCAN_KV, by what is known of it now."""
        cluster = self._connection.cluster
        node = cluster.known_leader(target.bucket)
        if node is None:
            return True
        try:
            lane = lane_pool().take(cluster, cluster.endpoint(node))
        except FlussError:
            # the read of the bucket connects again, and reports the error if it stays
            return True
        lane_pool().give_back(lane)
        return SCAN_KV.key in lane.apis.versions

    def _interrupted(self, group: _Group, error: FlussError) -> FlussError:
        return FlussError(
            f"the scan of {self._where(group[0])} was interrupted: {error.message};"
            " begin it again, or use to_arrow(), which does so itself",
            error.error_code,
        )

    def _pause(self, group: _Group, error: FlussError, backoff: Backoff) -> None:
        """Wait before the next try, or raise the error where none is of use."""
        code = error.error_code
        passing = is_transient(error) or code in STALE_METADATA or code in _BEGIN_ANEW
        if code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION and not backoff.used:
            # what was known of the bucket may be old: its changelog begins behind that now
            passing = True
        if not passing or backoff.expired:
            raise error
        cluster = self._connection.cluster
        if code in STALE_METADATA or isinstance(error, TimeoutError):
            for target in group:
                self._connection.io.call(cluster.forget_leader, target.bucket)
        self._connection.io.call(cluster.note_retry, error)
        time.sleep(backoff.next_pause())

    def _where(self, target: Target) -> str:
        return bucket_text(self._info.table_path, target.partition_name, target.bucket)

    def _group(self, group: _Group) -> Tables:
        """Read a bucket, or the changelogs of several, which are one table then."""
        if len(group) == 1:
            yield from self._bucket(group[0])
            return
        moments = self._moments.take_all(group)
        positions = []
        for target, moment in zip(group, moments, strict=True):
            if moment.changes is None:
                # a second try finds that a changelog has lost its beginning meanwhile
                yield from [table for one in group for table in self._bucket(one)]
                return
            self._offsets[target.bucket] = moment.latest
            if moment.latest:
                positions.append(Position(target.bucket, target.partition_name, 0, moment.latest))
        _, rows = self._fold(positions, of_table=True).finish()
        table = self._filter.table(rows.select(self._columns))
        if table.num_rows:
            yield table
        self._remaining.difference_update(target.bucket for target in group)

    def _bucket(self, target: Target) -> Tables:
        """Read a bucket in the best way its server has."""
        cluster = self._connection.cluster
        node = cluster.known_leader(target.bucket)
        if node is None:
            node = cluster.io.run(cluster.leader(self._info.table_path, target.bucket))
        lane = lane_pool().take(cluster, cluster.endpoint(node))
        if SCAN_KV.key in lane.apis.versions:
            tables = self._server_scan(target, lane)
        else:
            lane_pool().give_back(lane)
            tables = self._merged(target)
        with contextlib.closing(tables):
            for table in map(self._filter.table, tables):
                if table.num_rows:
                    yield table
        self._remaining.discard(target.bucket)

    # ---- SCAN_KV

    def _server_scan(self, target: Target, lane: Lane) -> Tables:
        """Read a bucket with SCAN_KV.

        One request at a time: two of one scanner at once crash a server (1.0 of August 2026).
        """
        bucket = target.bucket
        opening = pb.ScanKvRequestForBucket(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            limit=self._server_limit,
            bucket_count=self._connection.cluster.told_count(bucket),
        )
        request = pb.ScanKvRequest(
            bucket_scan_req=opening, call_seq_id=0, batch_size_bytes=_BATCH_BYTES
        )
        calls = without_rows = 0
        scanner_id = b""
        open_there = False
        try:
            lane.send(SCAN_KV, [request.SerializeToString()], self.metrics)
            while True:
                answer = self._answer(target, lane)
                if not calls:
                    self._offsets[bucket] = answer.log_offset
                scanner_id = answer.scanner_id or scanner_id
                open_there = answer.has_more_results
                if open_there:
                    calls += 1
                    request = pb.ScanKvRequest(
                        scanner_id=scanner_id, call_seq_id=calls, batch_size_bytes=_BATCH_BYTES
                    )
                    # the server reads on while this side decodes
                    lane.send(SCAN_KV, [request.SerializeToString()], self.metrics)
                without_rows += 1
                if answer.records:
                    table = self._values.decode_batch(answer.records)
                    self._count(table.num_rows, len(answer.records))
                    without_rows = 0 if table.num_rows else without_rows
                    yield table
                if open_there and without_rows >= _MOST_WITHOUT_ROWS:
                    raise ProtocolError(
                        f"the scan of {self._where(target)} has got {without_rows} answers without"
                        f" a row, and the server at {lane.address} says that there are more"
                    )
                if not open_there:
                    return
        finally:
            if open_there and not lane.failed:
                self._close_scan(lane, scanner_id)
            lane_pool().give_back(lane)

    def _answer(self, target: Target, lane: Lane) -> pb.ScanKvResponse:
        answer = parse_response(SCAN_KV, lane.receive(self.metrics), lane.address)
        if answer.error_code:
            raise server_error(answer.error_code, answer.error_message, self._where(target))
        return answer

    def _close_scan(self, lane: Lane, scanner_id: bytes) -> None:
        """Have the server give up what it holds for a scan that nobody reads on."""
        request = pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True)
        try:
            if lane.busy:
                lane.receive(self.metrics)
            lane.send(SCAN_KV, [request.SerializeToString()], self.metrics)
            lane.receive(self.metrics)
        except FlussError as error:
            # the server gives it up itself after a while
            logger.debug("a scan could not be closed: %s", error)

    # ---- snapshot and changelog

    def _merged(self, target: Target) -> Tables:
        """Read the newest snapshot and the changelog behind it, up to its end as it is now."""
        moment = self._moments.take(target)
        with leased(self._connection, target.bucket, moment.snapshot_id) as snapshot:
            yield from self._merged_with(target, moment, snapshot)

    def _merged_with(
        self, target: Target, moment: BucketMoment, snapshot: KvSnapshot | None
    ) -> Iterator[pa.Table]:
        start = 0
        if snapshot is not None:
            start = snapshot.log_offset
        elif moment.earliest > 0:
            raise FlussError(
                f"{self._where(target)} cannot be scanned exactly: its server knows no SCAN_KV"
                " (Fluss 1.0), there is no snapshot of it, and its changelog begins at offset"
                f" {moment.earliest}; wait for a snapshot (kv.snapshot.interval), or use"
                " limit(n) and create_bucket_batch_scanner(bucket) for rows of any moment",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        end = max(start, moment.latest)
        self._offsets[target.bucket] = end
        positions = [Position(target.bucket, target.partition_name, start, end)]
        fold = self._fold(positions if end > start else [])
        changed, rows = fold.finish()
        if snapshot is not None:
            entries = snapshot_entries(self._connection, snapshot, keys=bool(len(changed)))
            for keys, values in entries:
                if keys is not None:
                    kept = pc.invert(pc.is_in(keys, value_set=changed)).to_pylist()
                    values = list(itertools.compress(values, kept))
                table = self._values.decode(values)
                self._count(table.num_rows)
                yield table
        yield rows.select(self._columns)

    def _count(self, rows: int, size: int = 0) -> None:
        self.once.check()
        self.metrics.add(rows=rows, batches=1, record_bytes=size)
        of_table = self.metrics.of_table(self._info.table_path)
        of_table.add(records_read=rows, batches_read=1, bytes_read=size)

    def _fold(self, positions: Sequence[Position], *, of_table: bool = False) -> ChangeFold:
        """Fold changelogs: by the keys that snapshots have, or by those that no two rows have."""
        keys, lake_format = key_columns(self._info), key_lake_format(self._info)
        if of_table:
            by_name = {column.name: column for column in self._info.schema.columns}
            keys = [by_name[name] for name in self._info.get_primary_keys()]
            # tables of a lake may have keys of one column within a partition, and no more
            lake_format = None
        columns = list(dict.fromkeys([*self._columns, *(column.name for column in keys)]))
        decoder = TableDecoder(
            self._connection, self._info, columns, (CHANGE_TYPE_COLUMN,), self.metrics
        )
        schema = pa.schema(list(decoder.schema)[:-1])
        fold = ChangeFold(keys, lake_format, schema)
        if positions:
            for table in decoder.read(positions):
                changes = table.column(table.num_columns - 1)
                codes = pa.chunked_array([chunk.indices for chunk in changes.chunks], pa.int8())
                fold.add(table.select(range(table.num_columns - 1)), codes)
        return fold

    def __repr__(self) -> str:
        return f"SnapshotScanner({str(self._info.table_path)!r})"
