"""Scans of all rows of a bucket, which clients read piece by piece (SCAN_KV)."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fluss_df.engine.engine import Engine
from fluss_df.engine.tables.buckets import java_name
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.message_parts import bucket_of
from fluss_df.record.kv.values import encode_value_batch

_IDLE_S: Final = 600.0
_PER_BUCKET: Final = 8
_PER_SERVER: Final = 200
_MAX_BATCH_BYTES: Final = 10 << 20
_NO_LIMIT: Final = 1 << 62
# before each value in an answer
_LENGTH_BYTES: Final = 4


@dataclass(slots=True)
class _Scan:
    """A scan under way.

    Attributes
    ----------
    lists, ahead
        Its next values in lists of some size, and those that were read and not given yet; none
        behind the last one.
    left
        How many values it may still give.
    """

    bucket: TableBucket
    lists: Iterator[list[bytes]]
    ahead: list[bytes]
    left: int
    used: float
    calls: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_SCAN_REQUEST)


class Scans:
    """The scans under way of an engine; thread safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.before_closing(self.close)
        engine.before_ends(self.end)
        engine.at_checks(self.expire)
        self._scans: dict[bytes, _Scan] = {}
        # scans that were given up: when, and of which bucket
        self._expired: dict[bytes, tuple[float, TableBucket]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give all scans up: RocksDB is not closed while one has an iterator."""
        self.end(lambda _bucket: True)

    def end(self, wanted: Callable[[TableBucket], bool]) -> None:
        """Give the scans of some buckets up; who goes on with one is told to begin again.

        A scan that is read at the moment ends when it is answered.
        """
        now = time.monotonic()
        with self._lock:
            ended = {key: scan for key, scan in self._scans.items() if wanted(scan.bucket)}
            for key, scan in ended.items():
                del self._scans[key]
                self._expired[key] = now, scan.bucket
        # RocksDB lets go of its files here, and not under the lock
        ended.clear()

    def table_of(self, scanner_id: bytes) -> int | None:
        """Return the id of the table that a scan is of; None for one that is not known."""
        with self._lock:
            scan = self._scans.get(scanner_id)
            return None if scan is None else scan.bucket.table_id

    def answer(self, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
        """Begin a scan, go on with one, or end one."""
        try:
            return self._answer(request)
        except FlussError as error:
            return pb.ScanKvResponse(error_code=error.error_code, error_message=error.message)

    def _answer(self, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
        opening, going_on = request.HasField("bucket_scan_req"), request.HasField("scanner_id")
        if opening and going_on:
            raise _invalid("ScanKvRequest must not set both bucket_scan_req and scanner_id.")
        if opening and request.close_scanner:
            raise _invalid(
                "ScanKvRequest must not set close_scanner together with bucket_scan_req."
            )
        if not opening and not going_on:
            raise _invalid(
                "ScanKvRequest must have either bucket_scan_req (new scan) or scanner_id"
                " (continuation)."
            )
        self.expire()
        if request.close_scanner:
            self._remove(request.scanner_id)
            return pb.ScanKvResponse(scanner_id=request.scanner_id, has_more_results=False)
        if not request.HasField("batch_size_bytes"):
            raise _invalid("batch_size_bytes is required for data-fetching scan requests.")
        if request.batch_size_bytes <= 0:
            raise _invalid("batch_size_bytes must be greater than 0.")
        if not request.HasField("call_seq_id"):
            raise _invalid(
                "call_seq_id is required for ScanKV requests to ensure in-order processing and"
                " at-least-once semantics."
            )
        response = pb.ScanKvResponse()
        scanner_id = request.scanner_id
        if opening:
            scan, response.log_offset = self._open(request.bucket_scan_req)
            if not scan.ahead:
                response.has_more_results = False
                return response
            scanner_id = uuid.uuid4().hex.encode()
        else:
            scan = self._find(scanner_id)
        if not scan.lock.acquire(blocking=False):
            raise _invalid(
                f"Concurrent scan request on scanner ID for bucket {java_name(scan.bucket)}, or"
                " session is closing; only one in-flight scanKv RPC per scanner is allowed."
            )
        try:
            if request.call_seq_id != scan.calls + 1:
                raise _invalid(
                    f"Out-of-order scan request: expected callSeqId={scan.calls + 1} but got"
                    f" {request.call_seq_id}."
                )
            response.scanner_id = scanner_id
            try:
                response.records = _take(scan, min(request.batch_size_bytes, _MAX_BATCH_BYTES))
            except BaseException:
                # rows may have been taken for an answer that nobody gets: another try would skip
                # them. A call that was refused took none, and the scan goes on.
                self._remove(scanner_id)
                raise
            response.has_more_results = bool(scan.ahead)
            scan.calls = request.call_seq_id
            scan.used = time.monotonic()
        finally:
            scan.lock.release()
        if not response.has_more_results:
            self._remove(scanner_id)
        elif opening:
            self._add(scanner_id, scan)
            try:
                # a table that was dropped meanwhile ended its other scans
                self._find(scanner_id)
            except FlussError:
                self._remove(scanner_id)
                raise
        return response

    def _open(self, asked: pb.ScanKvRequestForBucket) -> tuple[_Scan, int]:
        bucket = bucket_of(asked.table_id, asked)
        _, kv = self._engine.kv_bucket(bucket, scans=True)
        lists, offset = kv.scan_lists()
        limit = asked.limit if asked.HasField("limit") and asked.limit > 0 else _NO_LIMIT
        return _Scan(bucket, lists, next(lists, []), limit, time.monotonic()), offset

    def _add(self, scanner_id: bytes, scan: _Scan) -> None:
        with self._lock:
            where = f"Cannot create scanner for bucket {java_name(scan.bucket)}"
            if len(self._scans) >= _PER_SERVER:
                raise FlussError(
                    f"{where}: server-wide limit of {_PER_SERVER} reached.",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
            same = sum(other.bucket == scan.bucket for other in self._scans.values())
            if same >= _PER_BUCKET:
                raise FlussError(
                    f"{where}: per-bucket limit of {_PER_BUCKET} reached.",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
            self._scans[scanner_id] = scan

    def _find(self, scanner_id: bytes) -> _Scan:
        with self._lock:
            scan = self._scans.get(scanner_id)
            expired = self._expired.get(scanner_id)
        if scan is None and expired is not None:
            # raises where the table was dropped
            self._engine.kv_bucket(expired[1], scans=True)
            raise FlussError(
                "Scanner session has expired due to inactivity. Please start a new scan.",
                ErrorCode.SCANNER_EXPIRED,
            )
        if scan is None:
            raise FlussError(
                "Unknown scanner ID. The session may have expired or never existed.",
                ErrorCode.UNKNOWN_SCANNER_ID,
            )
        # a dropped table must not go on being read
        self._engine.kv_bucket(scan.bucket, scans=True)
        return scan

    def _remove(self, scanner_id: bytes) -> None:
        with self._lock:
            self._scans.pop(scanner_id, None)

    def expire(self) -> None:
        """Give up scans that nobody reads on: they hold a snapshot of RocksDB."""
        now = time.monotonic()
        with self._lock:
            idle = {k: scan for k, scan in self._scans.items() if now - scan.used > _IDLE_S}
            for key, scan in idle.items():
                del self._scans[key]
                self._expired[key] = now, scan.bucket
            old = [k for k, (at, _) in self._expired.items() if now - at > 2 * _IDLE_S]
            for key in old:
                del self._expired[key]
        # not under the lock, as above
        idle.clear()


def _take(scan: _Scan, size: int) -> bytes:
    """Return a batch of the next values of a scan, at least one."""
    values: list[bytes] = []
    taken = 0
    while scan.ahead and (not values or taken < size):
        some = scan.ahead
        together = sum(map(len, some)) + _LENGTH_BYTES * len(some)
        if taken + together >= size or len(some) > scan.left:
            # up to the value with which there is enough
            ends = itertools.accumulate(len(value) + _LENGTH_BYTES for value in some)
            count = 1 + sum(1 for _ in itertools.takewhile((size - taken).__gt__, ends))
            some = some[: min(count, scan.left)]
            together = sum(map(len, some)) + _LENGTH_BYTES * len(some)
        values += some
        taken += together
        scan.left -= len(some)
        scan.ahead = scan.ahead[len(some) :] or next(scan.lists, [])
        if not scan.left:
            scan.ahead = []
    return encode_value_batch(values)
