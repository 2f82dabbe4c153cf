"""The log of one bucket on the disk: appending, syncing, reading, and searching by time.

One lock guards all state of a log. It is held while batches are written, but not while they are
synced, so that the next batches are written during a sync.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fluss_df.engine.files.files import disk_refused, make_folder, refused_by, sync_data
from fluss_df.engine.log.append_checks import Appended, check_batches
from fluss_df.engine.log.batch_heads import stamped
from fluss_df.engine.log.log_reads import Piece, Stretch
from fluss_df.engine.log.log_segments import LogSegments, close_copies
from fluss_df.engine.log.recovery import load_log, remember
from fluss_df.engine.log.retention import expired
from fluss_df.engine.log.segment import LogCopy, Segment
from fluss_df.engine.log.synced_point import (
    NO_BUCKET,
    BucketIds,
    PointFile,
    SyncedPoint,
    first_file,
    write_start,
)
from fluss_df.engine.tables.buckets import unknown_bucket
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.record.layout.headers import NO_WRITER_ID, LogHeaders, scan_headers
from fluss_df.record.log.checked import CheckedColumns
from fluss_df.record.log.cut import ColumnLayout

logger = logging.getLogger(__name__)


class Tablet:
    """The log of one bucket.

    Parameters
    ----------
    folder
        The folder of the log, created where it is missing.
    name
        The bucket as Fluss writes it, for messages: ``TableBucket{tableId=1, bucket=0}``.
    segment_bytes
        A segment that has grown over this size is followed by a new one.
    visible_when_synced
        Whether readers see batches once they are on the disk (else: once they are written).
    owner
        The ids of the bucket. They stand in the files of the log, so that files of another bucket
        are not taken for its own.
    used
        Whether the table's register says that rows were written to the bucket: a log without
        files is then damaged, and not new.
    before_first
        Called before the first batch of the bucket is written; notes it in the register.
    end_scans
        Ends the scans of the bucket's RocksDB. Called before RocksDB is opened again, which it
        refuses while a scan has it open.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        segment_bytes: int,
        visible_when_synced: bool = True,
        owner: BucketIds = NO_BUCKET,
        used: bool = False,
        before_first: Callable[[], None] = lambda: None,
        end_scans: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._lock = threading.Lock()
        self._segment_bytes = segment_bytes
        self._visible_when_synced = visible_when_synced
        self.owner = owner
        self._before_first = before_first
        self.end_scans = end_scans
        # held while a file is synced: of several who sync, the kernel tells one that pages are lost
        self._syncing = threading.Lock()
        self._poison: str | None = None
        self.closed = False
        self.checked = CheckedColumns()
        # not durable yet: sync_names() below brings all names to the disk at once
        make_folder(folder, durable=False)
        loaded = load_log(folder, name, owner, used=used)
        for problem in loaded.problems:
            logger.warning("%s: %s", name, problem)
        self._segments = LogSegments(folder, name, loaded.segments)
        self._writers = loaded.writers
        self._point_file = PointFile(folder, name, owner, loaded.found)
        with undoing(self._give_up):
            if not self._segments:
                self._segments.append(Segment.begin(folder, loaded.start))
            else:
                # Batches that recovery read may be in the page cache alone, and count as synced
                # now. After a sync that failed the kernel takes them for written: they are given
                # to it again.
                point = loaded.found.point
                here = point is not None and point.segment == self._active.base_offset
                self._active.write_again(point.position if point is not None and here else 0)
                sync_data(self._active.fd)
                self._active.drop_index()
            self._last_timestamp = max(s.last_timestamp for s in self._segments)
            self._synced = self._segments.end
            self.synced_offset = self._synced.offset
            if self._point_file.is_new:
                self._point_file.write(self.start_offset, *self._synced)
            else:
                self._point_file.note(self.start_offset, self._synced)
            if not self._active.size:
                self._segments.sync_names()
            if loaded.start > (loaded.found.noted_start or 0):
                write_start(folder, owner, loaded.start)

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def start_offset(self) -> int:
        """The offset of the first record that has not expired."""
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._active.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last record that readers may see."""
        return self.synced_offset if self._visible_when_synced else self.end_offset

    @property
    def dirty(self) -> bool:
        """Whether there are batches that are not synced."""
        return self.synced_offset < self.end_offset

    @property
    def size(self) -> int:
        """The bytes of its segments."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def poisoned(self) -> bool:
        """Whether a failed write or sync made it refuse writes until it is opened again."""
        return self._poison is not None

    # ---- writing

    def append(self, records: memoryview, layouts: Mapping[int, ColumnLayout | None]) -> Appended:
        """Write the batches of one request behind the log.

        ``records`` has one or more log batches, as the client sent them. ``layouts`` has the Arrow
        layout of each schema id of the table; None for a table whose log format is not Arrow.

        Raises ``CORRUPT_RECORD_EXCEPTION`` for bytes that are not valid batches,
        ``OUT_OF_ORDER_SEQUENCE_EXCEPTION`` for a gap in a writer's sequence, ``SCHEMA_NOT_EXIST``
        for a schema id that the table does not have, ``STORAGE_EXCEPTION`` when the disk refuses,
        ``UNKNOWN_SERVER_ERROR`` when it is full. After an error nothing of the request is stored.
        """
        if not len(records):
            return Appended(-1, 0)
        headers = check_batches(self.name, records, layouts)
        with self._lock:
            self._require_usable()
            return self._append(records, headers)

    def append_changes(self, batch: bytes) -> Appended:
        """Append one batch of a changelog. This process made it, so it is not checked.

        Raises FlussError as :meth:`append`.
        """
        headers = scan_headers(batch)
        with self._lock:
            self._require_usable()
            return self._append(memoryview(batch), headers)

    def written(self, writer_id: int, sequence: int) -> int | None:
        """Return the end offset of a batch that was appended before; None for a new batch."""
        if writer_id == NO_WRITER_ID:
            return None
        with self._lock:
            known = self._writers.duplicate(writer_id, sequence)
            return None if known is None else known.last_offset + 1

    def _append(self, records: memoryview, headers: LogHeaders) -> Appended:
        base = self._active.end_offset
        duplicate = self._writers.duplicate_of(self.name, headers, base)
        if duplicate is not None:
            # the batch may not be synced yet: the answer waits for everything that is written
            return Appended(duplicate, self.end_offset)
        # commit timestamps never decrease, even when the clock is set back: searches rely on it
        timestamp = max(self._last_timestamp, time.time_ns() // 1_000_000)
        if not base:
            self._before_first()
        if self._active.size >= self._segment_bytes:
            with refused_by(f"cannot begin a segment of {self.name}", self.folder):
                self._roll()
        parts = stamped(records, headers, base, timestamp)
        try:
            self._active.append(parts, headers, b"".join(parts[::2]))
        except OSError as error:
            if self._active.torn:
                self._poison = f"a write failed and could not be undone: {error}"
            raise disk_refused(f"cannot write to {self.name}", self.folder, error) from error
        self._last_timestamp = timestamp
        remember(self._writers, headers)
        return Appended(base, self.end_offset, self.end_offset - base)

    def _roll(self) -> None:
        """Sync the active segment, write its index file, and begin a new segment."""
        old = self._active
        self._sync_file(old.fd)
        old.save_index(self._writers, self.owner)
        self._synced = self._segments.end
        self.synced_offset = old.end_offset
        self._segments.begin_next()

    def sync(self) -> None:
        """Bring all batches that are written to the disk.

        Raises ``STORAGE_EXCEPTION`` when that failed. From then on the log refuses writes: only
        when it is opened again, its files show which batches are on the disk.
        """
        with self._lock:
            self._require_usable()
            if not self.dirty:
                return
            target = self._segments.end
            # a descriptor of its own: a roll or a close during the sync may close the segment's
            with refused_by(f"cannot sync {self.name}", self.folder):
                fd = os.dup(self._active.fd)
        try:
            self._sync_file(fd)
        finally:
            os.close(fd)
        with self._lock:
            if target.offset >= self._synced.offset:
                self._synced = target
                self.synced_offset = target.offset
            if not self.closed:
                self._point_file.note(self.start_offset, self._synced)

    def _sync_all(self, *, durable_point: bool = False) -> None:
        """Bring all batches that are written to the disk; the lock is held meanwhile."""
        self._sync_file(self._active.fd)
        self._synced = self._segments.end
        self.synced_offset = self._synced.offset
        self._point_file.note(self.start_offset, self._synced, durable=durable_point)

    def _sync_file(self, fd: int) -> None:
        with self._syncing:
            self._require_usable(closed=True)
            try:
                sync_data(fd)
            except OSError as error:
                # after a failed sync the kernel may drop the pages: a second sync would then
                # succeed without having written them
                self._poison = f"a sync failed: {error}"
                raise FlussError(
                    f"cannot sync {self.name}: {error}", ErrorCode.STORAGE_EXCEPTION
                ) from error

    def _require_usable(self, closed: bool = False) -> None:
        if self.closed and not closed:
            raise unknown_bucket(self.name)
        if self._poison is not None:
            raise FlussError(
                f"{self.name} takes no more writes, {self._poison}: open the engine again",
                ErrorCode.STORAGE_EXCEPTION,
            )

    # ---- reading

    def read(
        self, offset: int, max_bytes: int, at_least_one: bool, *, partial: bool = False
    ) -> Piece | None:
        """Return whole batches of one segment, beginning with the batch that holds an offset.

        Returns None at the high watermark, or if no batch fits ``max_bytes``. With
        ``at_least_one``, the first batch is returned even if it is larger. With ``partial``, the
        beginning of the first batch is returned if the whole batch does not fit: it tells the
        client that there is more, and the client then asks for this bucket alone.

        Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION`` for an offset below the start offset or above
        the high watermark; ``STORAGE_EXCEPTION`` when bytes of the log have changed on the disk.
        """
        with self._lock:
            high = self._require_range(offset)
            if offset == high:
                return None
            segment = next(s for s in reversed(self._segments) if s.base_offset <= offset)
            stretch = self._segments.stretch(segment, segment.index.before_offset(offset))
        return self._segments.cut(stretch, offset, high, max_bytes, at_least_one, partial)

    def stretches(self, offset: int) -> tuple[int, list[Stretch]]:
        """Return the high watermark, and the parts of segments that hold rows from an offset on.

        The first part begins at or before the offset. Each part ends where its segment ends now.
        The list is empty at the high watermark.

        Raises ``LOG_OFFSET_OUT_OF_RANGE_EXCEPTION``.
        """
        with self._lock:
            high = self._require_range(offset)
            return high, self._segments.holding_from(offset, high)

    def _require_range(self, offset: int) -> int:
        """Return the high watermark; raise FlussError for an offset that readers cannot read."""
        if self.closed:
            raise unknown_bucket(self.name)
        start, high = self.start_offset, self.high_watermark
        if not start <= offset <= high:
            raise FlussError(
                f"Received request for offset {offset} for table bucket {self.name}, but we "
                f"only have log segments from offset {start} up to {self.end_offset}.",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        return high

    def offset_for_time(self, timestamp: int) -> int:
        """Return the first offset committed at or after a time (ms); else the high watermark."""
        with self._lock:
            if self.closed:
                raise unknown_bucket(self.name)
            high = self.high_watermark
            stretch = self._segments.since(timestamp)
        return high if stretch is None else self._segments.first_since(stretch, timestamp, high)

    def last_records(self, limit: int, take: Callable[[int], None]) -> list[Piece]:
        """Return whole batches with at least the last ``limit`` records that readers may see.

        ``take`` is called with the bytes of each piece before the next is read; it may raise.
        """
        first = max(self.start_offset, self.high_watermark - limit)
        pieces = []
        while first < self.high_watermark:
            piece = self.read(first, 64 << 20, at_least_one=True)
            if piece is None or piece.headers.end_offset is None:
                break
            take(len(piece.data))
            pieces.append(piece)
            first = piece.headers.end_offset
        return pieces

    @contextlib.contextmanager
    def copy(self) -> Iterator[LogCopy]:
        """Yield the files of the log as they are on the disk now; they are open within the block.

        Raises ``STORAGE_EXCEPTION`` when the log cannot be synced.
        """
        self.sync()
        with self._lock:
            self._require_usable()
            files = self._segments.copies()
            point = SyncedPoint(self.owner, self.start_offset, *self._segments.end)
        try:
            yield LogCopy(files, first_file(point))
        finally:
            close_copies(files)

    # ---- retention and end

    def may_expire(self, now_ms: int, ttl_ms: int) -> bool:
        """Whether there are segments that :meth:`expire` would delete."""
        with self._lock:
            if self.closed:
                return False
            return self._segments.to_remove or expired(self._segments, now_ms, ttl_ms) > 0

    def expire(self, now_ms: int, ttl_ms: int, tiered: int | None = None) -> int:
        """Delete the segments that :func:`~fluss_df.engine.log.retention.expired` counts.

        Returns how many segments were deleted.

        Raises FlussError when the disk refuses. The next call tries again to remove the files that
        are left.
        """
        with self._lock:
            self._writers.expire(now_ms)
            if self.closed:
                return 0
            count = expired(self._segments, now_ms, ttl_ms, tiered)
            if not count:
                self._segments.remove_expired()
                return 0
            # The new start is noted before files are removed: a log that is opened after a crash
            # then knows that the missing segments expired, and were not lost.
            start = self._segments[count].base_offset
            noted = self._point_file.note_start(start, self._synced)
            self._segments.expire(count)
            if not noted:
                write_start(self.folder, self.owner, start)
        return count

    def close(self) -> None:
        """Sync the log, write the index of its newest segment, and close; twice does no harm."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            try:
                if self._poison is None:
                    self._sync_all(durable_point=True)
                    if self._active.size:
                        self._save_index()
            finally:
                self._give_up()

    def _save_index(self) -> None:
        """Write the index of the newest segment; without it the next opening reads the segment."""
        try:
            self._active.save_index(self._writers, self.owner)
        except FlussError as error:
            logger.warning("%s: %s", self.name, error.message)

    def abandon(self) -> None:
        """Close without a sync: the bucket was dropped."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._give_up()

    def _give_up(self) -> None:
        self._segments.release_files()
        self._point_file.release_files()

    def release_files(self) -> bool:
        """Sync the log and close its files until they are needed again, unless it is in use.

        Returns whether the log has no file open now.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.dirty and not self.closed and self._poison is None:
                self._sync_all()
            self._give_up()
            return True
        except FlussError as error:
            logger.warning("%s", error.message)
            return False
        finally:
            self._lock.release()
