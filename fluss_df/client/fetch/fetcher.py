"""Fetches log batches of buckets over a lane: sends requests, puts answers into positions.

The bounded read (``chunk_read.py``) and the polling scanner (``log_scanner.py``) use it, each on
the threads of its callers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from fluss_df.client.cluster.leader_requests import bucket_offsets
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.client.fetch.position import Chunk, Position, RemoteChunk
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.client.runtime.retry import STALE_METADATA, is_transient
from fluss_df.client.transport.blocking import Lane
from fluss_df.client.transport.endpoint import Endpoint
from fluss_df.client.transport.lane_pool import lane_pool
from fluss_df.config import Config
from fluss_df.errors import ErrorCode, FlussError, NetworkError, ProtocolError
from fluss_df.metadata import OffsetSpec, bucket_text
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.api import FETCH_LOG
from fluss_df.protocol.fetch import FetchedBucket, parse_fetch_response
from fluss_df.protocol.frames import raise_error_response, server_error
from fluss_df.pushdown.server_filter import ServerFilter
from fluss_df.record.layout.headers import LogHeaders, scan_headers
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)

# Bytes of the first answer, which is small so that decoding begins soon. A first answer of 8 MB
# would take a tenth of the time of a scan of 80 MB, in which no thread has anything to decode.
_FIRST_BYTES = 1 << 20
# An engine in this process answers with slices of its files, which take no memory, however large.
# Where no limit was set, a bounded read asks for more at once: requests take the interpreter lock.
_IN_PLACE_BYTES = 32 << 20
_LIMITS_UNSET = (
    Config.scanner_log_fetch_max_bytes_for_bucket.default,
    Config.scanner_log_fetch_max_bytes.default,
)

# A server that holds no fetch, and has nothing, is asked again no sooner than after this time: it
# would be kept busy with questions, and so would this thread. An answer that was held comes later.
_IDLE_S = 0.01


@contextlib.contextmanager
def _failing(position: Position) -> Iterator[None]:
    """Make a raised error that of a position, whose reader is told of it: others go on."""
    try:
        yield
    except FlussError as error:
        position.error = error


class LogFetcher:
    """Asks leaders for the next batches of positions, and takes their answers.

    Parameters
    ----------
    projection
        Indexes of the columns to fetch, ascending, or None for all.
    max_wait_ms
        How long a server may wait for new data at the end of the log. It is asked to wait for two
        thirds of the request timeout at the most: an answer that is held longer looks like silence.
    begin_small
        Whether to ask for a small first answer, for a read that has nothing else to decode.
    server_filter
        The filter by which servers may leave out log batches.
    bucket_bytes
        The most bytes to ask for of a bucket, where that is less than the setting's; a whole batch
        comes in any case.
    """

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        projection: Sequence[int] | None,
        metrics: Metrics,
        *,
        max_wait_ms: int,
        begin_small: bool = False,
        server_filter: ServerFilter | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self.info = info
        self._projection = projection
        self._metrics = metrics
        self._of_table = cluster.metrics.of_table(info.table_path)
        # not 0, which would be another question: not to wait at all
        longest = max(1, cluster.config.request_timeout_ms * 2 // 3)
        self._max_wait_ms = min(max_wait_ms, longest)
        self._first = begin_small
        self._filter = server_filter
        limit = cluster.config.scanner_log_fetch_max_bytes_for_bucket
        self._most_bytes = cluster.config.scanner_log_fetch_max_bytes
        # whole rows as they stand in the files; for columns, an engine looks at more than it gives
        in_place = cluster.engine is not None and projection is None and server_filter is None
        if in_place and begin_small and (limit, self._most_bytes) == _LIMITS_UNSET:
            limit = self._most_bytes = _IN_PLACE_BYTES
        self._bucket_bytes = limit if bucket_bytes is None else min(limit, bucket_bytes)

    def endpoint(self, position: Position) -> Endpoint | None:
        """Return the endpoint of a position's leader; None if it is not known for the moment.

        The position has an error then, if the table or partition is gone, or no leader came up for
        ``retry-timeout``.
        """
        node = self._cluster.known_leader(position.bucket)
        if node is None:
            try:
                node = self._cluster.io.run(
                    self._cluster.leader(self.info.table_path, position.bucket)
                )
            except FlussError as error:
                with _failing(position):
                    self.postpone(position, self._named(error, position))
                return None
        return self._cluster.endpoint(node)

    def _named(self, error: FlussError, position: Position) -> FlussError:
        return FlussError(f"{error.message} ({self.where(position)})", error.error_code)

    def where(self, position: Position) -> str:
        """Return the name of a bucket for error messages."""
        return bucket_text(self.info.table_path, position.partition_name, position.bucket)

    def lane(self, endpoint: Endpoint, positions: Sequence[Position]) -> Lane | None:
        """Return a lane to a server; None if it cannot be reached for the moment."""
        try:
            return lane_pool().take(self._cluster, endpoint)
        except FlussError as error:
            self.failed(positions, error)
            return None

    def send(self, lane: Lane, positions: Sequence[Position]) -> bool:
        """Send one request for positions of one leader; False when the lane is broken."""
        projected = positions[0].projected
        table = pb.FetchLogRequestForTable(
            table_id=self.info.table_id,
            projection_pushdown_enabled=projected,
            projected_fields=self._projection if projected else None,
        )
        if self._filter is not None:
            table.filter_predicate.CopyFrom(self._filter.predicate)
            table.filter_schema_id = self._filter.schema_id
        limit = self._bucket_bytes
        if self._first and len(positions) == 1:
            limit = min(limit, _FIRST_BYTES)
        self._first = False
        for position in positions:
            bucket = table.buckets_req.add()
            if position.bucket.partition_id is not None:
                bucket.partition_id = position.bucket.partition_id
            bucket.bucket_id = position.bucket.bucket_id
            bucket.fetch_offset = position.offset
            bucket.max_fetch_bytes = limit
            count = self._cluster.told_count(position.bucket)
            if count is not None:
                bucket.bucket_count = count
        request = pb.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=self._most_bytes,
            tables_req=[table],
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._config.scanner_log_fetch_min_bytes if self._max_wait_ms else 0,
        )
        try:
            lane.send(FETCH_LOG, [request.SerializeToString()], self._metrics)
        except FlussError as error:
            self.failed(positions, error)
            return False
        return True

    def receive(self, lane: Lane, positions: Sequence[Position]) -> int:
        """Take the answer to :meth:`send` into the positions; return the bytes of its records.

        A position that no retry helps has its error then: an offset out of range, a dropped table,
        no progress within ``retry-timeout``.
        """
        try:
            response = lane.receive(self._metrics)
            raise_error_response(FETCH_LOG, response, lane.address)
            if response.fetched is not None:
                answer = response.fetched.received()
            else:
                answer = parse_fetch_response(response.body, len(positions))
        except FlussError as error:
            self.failed(positions, error)
            return 0
        asked = {(p.bucket.partition_id, p.bucket.bucket_id): p for p in positions}
        offsets = [position.offset for position in positions]
        size = 0
        for fetched in answer:
            position = asked.pop((fetched.partition_id, fetched.bucket_id), None)
            if position is None:
                continue
            with _failing(position):
                size += self._accept(position, fetched, lane.apis.batch_statistics, positions)
        for position in asked.values():
            # without a pause, it would be asked for again at once, and for ever
            silent = NetworkError(f"{lane.address} did not answer for {self.where(position)}")
            self.failed([position], silent)
        if offsets == [p.offset for p in positions] and not any(p.ready for p in positions):
            for position in positions:
                # a bounded read asks for rows that exist
                if position.stop is None:
                    position.retry.rest_until(lane.sent_at + _IDLE_S)
        self._metrics.add(record_bytes=size)
        self._of_table.add(bytes_read=size)
        return size

    def _accept(
        self,
        position: Position,
        fetched: FetchedBucket,
        statistics: bool,
        asked: Sequence[Position],
    ) -> int:
        alone = len(asked) == 1
        position.retry.readable()
        if fetched.error_code:
            self._bucket_failed(position, fetched)
            return 0
        if fetched.remote is not None and fetched.remote.remote_log_segments:
            # the offset moves on as the segments are read
            position.ready.append(RemoteChunk(fetched.remote, statistics))
            position.retry.progressed()
            return 0
        filtered_end = 0 if self._filter is None else fetched.filtered_end_offset or 0
        if fetched.records is not None:
            # Of a request for several buckets, only the bucket that the server reads first gets a
            # whole batch for sure: another may get a part of a batch, up to the limit of bytes.
            headers = fetched.headers
            if headers is None:
                headers = scan_headers(
                    fetched.records, magic1_has_statistics=statistics, require_progress=alone
                )
            end = headers.end_offset
            position.starved = end is None
            if end is None:
                return 0
            problem = self._problem(headers, end, position.offset)
            if problem is not None:
                error = ProtocolError(
                    f"a server answered with log batches {problem} where offset {position.offset}"
                    f" was asked for ({self.where(position)})"
                )
                self.failed([position], error)
                return 0
            wanted = fetched.projected_bytes
            projected = position.projected and wanted is None
            position.ready.append(
                Chunk(fetched.records, headers, position.offset, projected, fetched.checked, wanted)
            )
            # the server may have left out batches behind these, by the filter
            position.advance(max(end, filtered_end))
            return len(fetched.records) if wanted is None else wanted
        if filtered_end > position.offset:
            position.advance(filtered_end)
        else:
            self._nothing_came(position, asked)
        return 0

    def _problem(self, headers: LogHeaders, end: int, offset: int) -> str | None:
        """Return what is wrong with the offsets of an answer that ends before ``end``."""
        if end <= offset:
            return f"up to offset {end}"
        if self._filter is not None:
            # the server may leave out batches
            return None
        begin = int(headers.base_offset[0])
        if begin > offset:
            return f"from offset {begin} on"
        missing = headers.missing_offsets
        return f"that lack {missing} offsets from {begin} to {end}" if missing else None

    def _nothing_came(self, position: Position, asked: Sequence[Position]) -> None:
        """Take note of an answer that has neither rows nor an error."""
        if position.stop is None or len(asked) > 1:
            # The end of the log; or other buckets used up the bytes of the answer, and nothing is
            # said about this one. Failures of before are over in any case.
            position.retry.progressed()
            # servers need not read the buckets in the order of the request
            position.starved = position.stop is not None and position is asked[0]
            return
        # A bounded read asks for rows that exist, and got none. Either they are not at the new
        # leader yet, or they are in the data lake alone, and the server never returns them. From
        # now on it is asked for alone, so that no answer without a meaning ends its pauses.
        position.starved = True
        self.postpone(
            position,
            FlussError(
                f"offset {position.offset} of {self.where(position)} cannot be fetched: the"
                f" server returns nothing up to the requested offset {position.stop}",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            ),
            transient=True,
        )

    def _bucket_failed(self, position: Position, fetched: FetchedBucket) -> None:
        code = fetched.error_code
        if code == ErrorCode.INVALID_COLUMN_PROJECTION and position.projected:
            # a batch older than one of the columns: the server cannot project it, the decoder can
            position.projected = False
            self._metrics.add(retries=1)
            return
        error = server_error(code, fetched.error_message, self.where(position))
        if code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            if self._starts_later(position) or position.retry.out_of_range():
                self._metrics.add(retries=1)
                return
            raise FlussError(
                f"offset {position.offset} is out of range: {error.message};"
                " older data has expired, and newer was never written",
                code,
            )
        unknown = code == ErrorCode.UNKNOWN_SERVER_ERROR and position.retry.unknown()
        if unknown or code in STALE_METADATA:
            # 0.9.1 may also fail so at what it is deleting: the leader is asked for again, and the
            # error is then that the table or partition is gone
            self._cluster.forget_leader(position.bucket)
        self.postpone(position, error, transient=unknown)

    def _starts_later(self, position: Position) -> bool:
        """Whether a position that was to read all there is starts where the log begins by now.

        A bucket may wait for minutes until its turn comes, and its oldest segments expire
        meanwhile. The official clients leave it to the server, too, to say at the first fetch
        where the log begins.
        """
        if position.offset != position.log_start:
            return False
        bucket, began = position.bucket, position.offset
        question = bucket_offsets(self._cluster, self.info, [bucket], OffsetSpec.earliest())
        position.start_later(max(began, self._cluster.io.run(question)[bucket]))
        if position.offset == began:
            return False
        logger.info(
            "%s is read from offset %d on: rows from %d on expired before they were read",
            self.where(position),
            position.offset,
            began,
        )
        return True

    def failed(self, positions: Sequence[Position], error: FlussError) -> None:
        """Take note that a request failed as a whole: retry each position later, or never."""
        for position in positions:
            self._cluster.forget_leader(position.bucket)
            transient = isinstance(error, ProtocolError) and position.retry.unreadable()
            with _failing(position):
                self.postpone(position, error, transient=transient)

    def postpone(self, position: Position, error: FlussError, *, transient: bool = False) -> None:
        """Retry a position after a pause; raise the error if a retry cannot help."""
        if not transient and not is_transient(error) and error.error_code not in STALE_METADATA:
            raise error
        if not position.retry.postpone(self._config.retry_timeout_ms):
            raise error
        self._metrics.add(retries=1)
        logger.info("fetching %s again after: %s", self.where(position), error)
