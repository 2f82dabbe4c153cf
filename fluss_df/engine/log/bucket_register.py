"""Which buckets of a table rows were written to: a folder of one of them that is missing is a loss.

Two files of small records, one in ``catalog/`` and one among the data. A record is on the disk, in
the first file, before the first batch of its bucket is acknowledged; records are only added. Each
has a checksum, so one that is damaged hides no other, and both files together have them all.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import google_crc32c

from fluss_df.engine.files.files import (
    DamagedError,
    add_record,
    disk_refused,
    read_bytes,
    write_atomically,
)
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.errors import ErrorCode, FlussError

logger = logging.getLogger(__name__)

_RECORD: Final = struct.Struct("<qiI")
_IDS: Final = struct.Struct("<8sqqi")
_MAGIC: Final = b"FDFBUCKT"


def dropped(bucket: BucketIds) -> FlussError:
    """Return the error for a bucket of a table that was dropped."""
    return FlussError(
        f"Unknown table or bucket: {bucket}", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    )


class BucketRegister:
    """The buckets of one table that rows were written to; thread safe.

    There are two files. What is wrong with one of them is put right when a record is added, or by
    :meth:`put_right`.
    """

    def __init__(self, table_id: int, first: Path, second: Path) -> None:
        self._table_id = table_id
        self._files = first, second
        self._lock = threading.Lock()
        self._sound = True
        self._sizes = [0, 0]
        self._known: set[tuple[int, int]] = set()
        self._dropped = False
        #: what is wrong with the files
        self.problems: list[str] = []
        found = [self._read(path) for path in self._files]
        for i, records in enumerate(found):
            self._sizes[i] = _RECORD.size * len(records)
            self._known |= records
        # the second file is not synced: after a loss of power it may lack some
        if found[1] - found[0]:
            self.problems.append(f"{first} lacks buckets that {second} has")
        if self.problems or found[0] != found[1]:
            self._sound = False

    def _read(self, path: Path) -> set[tuple[int, int]]:
        try:
            data = read_bytes(path) or b""
        except DamagedError as error:
            self.problems.append(error.message)
            return set()
        found = set()
        whole = len(data) - len(data) % _RECORD.size
        for partition, bucket, crc in _RECORD.iter_unpack(data[:whole]):
            if crc == self._crc(partition, bucket):
                found.add((partition, bucket))
        if len(data) != _RECORD.size * len(found):
            # a loss of power leaves part of what was added, in either file
            self._sound = False
        return found

    def _crc(self, partition: int, bucket: int) -> int:
        return int(google_crc32c.value(_IDS.pack(_MAGIC, self._table_id, partition, bucket)))

    def __contains__(self, bucket: BucketIds) -> bool:
        return (bucket.partition, bucket.bucket) in self._known

    def __iter__(self) -> Iterator[BucketIds]:
        for partition, bucket in sorted(self._known):
            yield BucketIds(self._table_id, partition, bucket)

    def add(self, bucket: BucketIds) -> None:
        """Note that a bucket is about to have rows; on the disk then.

        Raises ``UNKNOWN_TABLE_OR_BUCKET_EXCEPTION`` where the table was dropped meanwhile; see
        :func:`~fluss_df.engine.files.files.disk_refused`.
        """
        with self._lock:
            if self._dropped:
                raise dropped(bucket)
            if bucket in self:
                return
            self._known.add((bucket.partition, bucket.bucket))
            try:
                if not self._sound:
                    self._write_all()
                    return
                record = self._record(bucket.partition, bucket.bucket)
                for i in (0, 1):
                    self._append(i, record)
            except FlussError:
                self._known.discard((bucket.partition, bucket.bucket))
                self._sound = False
                raise

    def drop(self) -> None:
        """Remove the first file, as the table is dropped; nothing is noted any more.

        Raises OSError where the disk refuses.
        """
        with self._lock:
            self._dropped = True
            self._files[0].unlink(missing_ok=True)

    def _record(self, partition: int, bucket: int) -> bytes:
        return _RECORD.pack(partition, bucket, self._crc(partition, bucket))

    def _append(self, number: int, record: bytes) -> None:
        path, size = self._files[number], self._sizes[number]
        try:
            add_record(path, record, size, durable=not number)
        except OSError as error:
            if number:
                logger.warning("cannot write %s, a copy of %s: %s", path, self._files[0], error)
                self._sound = False
                return
            raise disk_refused(f"cannot write {path}", path.parent, error) from error
        self._sizes[number] = size + len(record)

    def _write_all(self) -> None:
        data = b"".join(self._record(*entry) for entry in sorted(self._known))
        write_atomically(self._files[0], data)
        try:
            write_atomically(self._files[1], data, durable=False)
        except FlussError as error:
            logger.warning("%s", error.message)
            return
        self._sizes = [len(data), len(data)]
        self._sound = True

    def put_right(self, partitions: Iterable[int]) -> None:
        """Make the files sound, and forget partitions that were dropped.

        ``partitions`` are the ids of those that there are; -1 for the table itself.
        """
        with self._lock:
            known = set(partitions)
            left = {entry for entry in self._known if entry[0] in known}
            if len(left) < len(self._known):
                self._known, self._sound = left, False
            if not self._sound and (self._known or any(path.exists() for path in self._files)):
                self._write_all()
