"""The file ``synced`` of a log: whose it is, where it begins, and up to where it is on the disk.

The file has two slots, each in a sector of its own, with a checksum; they are written in turn. So
a loss of power leaves one of them as it was, and a slot that cannot be read is damage. It is on the
disk before the log has its first batch. Later points are written after each sync of the log and
not synced themselves: after a loss of power the file may have an earlier point, never a later one.

Where the log begins is also in the file ``start``, once segments have expired: a missing first
segment is told from one that expired.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from fluss_df.engine.files.files import (
    DamagedError,
    disk_refused,
    read_bytes,
    sync_data,
    write_atomically,
)
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket

logger = logging.getLogger(__name__)

POINT_FILE: Final = "synced"
START_FILE: Final = "start"
_MAGIC: Final = b"FDFSYNC2"
_POINT: Final = struct.Struct("<8sqqqqqqqqII")
_CRC: Final = struct.Struct("<I")
_POINT_BYTES: Final = _POINT.size + _CRC.size
_SECTOR: Final = 512
# the file in formats 1 and 2
_OLD: Final = struct.Struct("<8sqqq")
_OLD_MAGIC: Final = b"FDFSYNC1"
_HAS_DIGEST: Final = 1
_START_MAGIC: Final = b"FDFSTART"
_START: Final = struct.Struct("<8sqqqq")


class BucketIds(NamedTuple):
    """Which bucket a log is of; -1 for the partition of a table that has none."""

    table: int
    partition: int
    bucket: int

    @classmethod
    def of(cls, bucket: TableBucket) -> BucketIds:
        """Return the ids of a bucket."""
        partition = -1 if bucket.partition_id is None else bucket.partition_id
        return cls(bucket.table_id, partition, bucket.bucket_id)

    def __str__(self) -> str:
        partition = "" if self.partition < 0 else f"partition {self.partition}, "
        return f"bucket {self.bucket} ({partition}table {self.table})"


# the ids of a log that is used without a table
NO_BUCKET: Final = BucketIds(-1, -1, -1)


class LogEnd(NamedTuple):
    """The end of a batch: its offset, and where it is in which segment, with the digest there."""

    offset: int
    segment: int
    position: int
    digest: int


@dataclass(frozen=True, slots=True)
class SyncedPoint:
    """Up to where a log is known to be on the disk.

    It is written after each sync and never before it: what is below was acknowledged, or may have
    been, and must be there in full.

    Attributes
    ----------
    owner
        The bucket; None in files of formats 1 and 2.
    start
        The offset where the log begins; 0 in files of formats 1 and 2.
    end_offset
        The offset behind the last batch that is on the disk.
    segment, position
        The segment that it is in, by its first offset, and where in its file the batch ends.
    digest
        The digest of the segment up to there, see :mod:`~fluss_df.engine.log.batch_heads`; None if
        it is not known.
    """

    owner: BucketIds | None
    start: int
    end_offset: int
    segment: int
    position: int
    digest: int | None

    def pack(self, generation: int) -> bytes:
        """Return the bytes of a slot."""
        flags = 0 if self.digest is None else _HAS_DIGEST
        end = self.end_offset, self.segment, self.position, self.digest or 0, flags
        body = _POINT.pack(_MAGIC, generation, *(self.owner or NO_BUCKET), self.start, *end)
        return body + _CRC.pack(google_crc32c.value(body))


@dataclass(frozen=True, slots=True)
class FoundPoint:
    """The contents of the file ``synced`` of a log.

    Attributes
    ----------
    point
        The newest point that can be read, if any.
    problem
        What is wrong with the file; None where nothing is. What is behind the point may then have
        been acknowledged as well.
    generation
        The generation of the point.
    slot
        Where the point stands; -1 in files of formats 1 and 2, and where there is none.
    start
        Where the log begins, by both files; None where neither can be read.
    noted_start
        The same by the file ``start`` alone.
    """

    point: SyncedPoint | None
    problem: str | None
    generation: int
    slot: int
    start: int | None
    noted_start: int | None


def find_point(folder: Path, owner: BucketIds) -> FoundPoint:
    """Read the files of a log; change nothing."""
    start = noted = _read_start(folder / START_FILE, owner)
    path = folder / POINT_FILE
    try:
        data = read_bytes(path)
    except DamagedError as error:
        return FoundPoint(None, error.message, 0, -1, start, noted)
    if data is None:
        return FoundPoint(None, f"{path} is missing", 0, -1, start, noted)
    old = _unpack_old(data)
    if old is not None:
        return FoundPoint(old, None, 0, -1, start, noted)
    newest: tuple[int, int, SyncedPoint] | None = None
    problem = None
    for slot in (0, 1):
        part = data[slot * _SECTOR : slot * _SECTOR + _POINT_BYTES]
        unpacked = _unpack(part)
        if unpacked is None:
            if part.strip(b"\0"):
                problem = f"{path} is damaged"
        elif newest is None or unpacked[0] > newest[0]:
            newest = (unpacked[0], slot, unpacked[1])
    if newest is None:
        return FoundPoint(None, problem or f"{path} is empty", 0, -1, start, noted)
    generation, slot, point = newest
    if point.owner == owner:
        start = max(start or 0, point.start)
    return FoundPoint(point, problem, generation, slot, start, noted)


def _unpack(data: bytes) -> tuple[int, SyncedPoint] | None:
    if len(data) != _POINT_BYTES:
        return None
    body = data[: _POINT.size]
    if google_crc32c.value(body) != _CRC.unpack_from(data, _POINT.size)[0]:
        return None
    magic, generation, *ids, start, end, segment, position, digest, flags = _POINT.unpack(body)
    if magic != _MAGIC:
        return None
    known = digest if flags & _HAS_DIGEST else None
    return generation, SyncedPoint(BucketIds(*ids), start, end, segment, position, known)


def _unpack_old(data: bytes) -> SyncedPoint | None:
    """Read a file of format 1 or 2."""
    if len(data) != _OLD.size + _CRC.size:
        return None
    body = data[: _OLD.size]
    magic, end_offset, segment, position = _OLD.unpack(body)
    if magic != _OLD_MAGIC or google_crc32c.value(body) != _CRC.unpack(data[_OLD.size :])[0]:
        return None
    return SyncedPoint(None, 0, end_offset, segment, position, None)


def first_file(point: SyncedPoint) -> bytes:
    """Return a file that has one point, as an archive and a folder of an older format get it."""
    return point.pack(1).ljust(_SECTOR, b"\0")


# ---- where a log begins


def write_start(folder: Path, owner: BucketIds, start: int) -> None:
    """Note where a log begins."""
    body = _START.pack(_START_MAGIC, *owner, start)
    write_atomically(folder / START_FILE, body + _CRC.pack(google_crc32c.value(body)))


def _read_start(path: Path, owner: BucketIds) -> int | None:
    """Return what the file says; None where it is not there, damaged, or of another bucket."""
    try:
        data = read_bytes(path) or b""
    except DamagedError:
        return None
    body = data[: _START.size]
    if len(data) != _START.size + _CRC.size:
        return None
    magic, *ids, start = _START.unpack(body)
    if magic != _START_MAGIC or tuple(ids) != owner:
        return None
    return int(start) if google_crc32c.value(body) == _CRC.unpack(data[_START.size :])[0] else None


class PointFile:
    """Writes the file; guarded by the tablet's lock."""

    def __init__(self, folder: Path, name: str, owner: BucketIds, found: FoundPoint) -> None:
        self._name = name
        self._owner = owner
        self._path = folder / POINT_FILE
        self._generation = found.generation
        self._slot = found.slot
        #: whether the file has no point of this format yet
        self.is_new = found.slot < 0
        self._file: int | None = None
        # why the file has not the newest point
        self._problem: str | None = None

    @property
    def _fd(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def write(self, start: int, end_offset: int, segment: int, position: int, digest: int) -> None:
        """Write a point, see :class:`SyncedPoint`.

        It is on the disk when the file has none yet, else with :meth:`sync`.

        Raises FlussError, see :func:`~fluss_df.engine.files.files.disk_refused`; the file has the
        point before.
        """
        if self.is_new:
            # what is there, if anything, cannot be read, or is of an older format
            self.release_files()
            point = SyncedPoint(self._owner, start, end_offset, segment, position, digest)
            write_atomically(self._path, first_file(point))
            self._generation, self._slot, self.is_new = 1, 0, False
            return
        slot, generation = 1 - self._slot, self._generation + 1
        # written after each sync: no object is made of it
        table, partition, bucket = self._owner
        body = _POINT.pack(
            _MAGIC,
            generation,
            table,
            partition,
            bucket,
            start,
            end_offset,
            segment,
            position,
            digest,
            _HAS_DIGEST,
        )
        data = body + _CRC.pack(google_crc32c.value(body))
        try:
            os.pwrite(self._fd, data, slot * _SECTOR)
        except OSError as error:
            raise self._refused(error) from error
        # a slot that was not written is the next one again: the other has the newest point
        self._slot, self._generation = slot, generation

    def note(self, start: int, end: LogEnd, *, durable: bool = False) -> None:
        """Note up to where the log is on the disk.

        Where that fails, the point lags behind, as it does after a loss of power; what was synced
        is no less on the disk.
        """
        try:
            self.write(start, *end)
            if durable:
                self.sync()
        except FlussError as error:
            # the folder of a table that was dropped meanwhile is gone, and nobody misses it
            level = logging.WARNING if self._path.parent.exists() else logging.DEBUG
            if self._problem != error.message:
                logger.log(level, "%s: %s", self._name, error.message)
            self._problem = error.message
        else:
            self._problem = None

    def note_start(self, start: int, end: LogEnd) -> bool:
        """Note on the disk where the log begins; return whether both files have it.

        Raises FlussError as :meth:`write`, where this file has not.
        """
        self.write(start, *end)
        self.sync()
        try:
            write_start(self._path.parent, self._owner, start)
        except FlussError as error:
            # a disk that is full gets room by what is removed; this file has it
            logger.warning("%s: %s", self._name, error.message)
            return False
        return True

    def sync(self) -> None:
        """Bring the file to the disk.

        Raises FlussError as :meth:`write`.
        """
        try:
            sync_data(self._fd)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> FlussError:
        return disk_refused(f"cannot write {self._path}", self._path.parent, error)

    def release_files(self) -> None:
        """Give back the descriptor until it is needed."""
        if self._file is not None:
            fd, self._file = self._file, None
            os.close(fd)
