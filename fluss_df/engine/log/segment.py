"""A segment: one file of a log, with its batches one after the other, and its sparse index."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import sys
import threading
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np

from fluss_df.engine.files.files import (
    NOT_AS_WRITTEN,
    DamagedError,
    disk_refused,
    names_in,
    read_bytes,
    set_folder_aside,
    sync_data,
    write_atomically,
)
from fluss_df.engine.files.open_files import allowed_files
from fluss_df.engine.log.batch_heads import digest_behind
from fluss_df.engine.log.sparse_index import SparseIndex
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.log.writer_states import WriterStates
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.record.layout.headers import LogHeaders

_SUFFIX: Final = ".log"
_NAME: Final = re.compile(r"\d{20}\.log")
_INDEX_VERSION: Final = 2
# how many buffers one call of pwritev takes (IOV_MAX)
_MOST_PARTS: Final = 1024
# without this, a memory map of Python keeps a descriptor open that it does not need
_MAP: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
# how many bytes are written again at once
_COPIED_BYTES: Final = 8 << 20
# the most maps of all segments together, where each map keeps a descriptor
_MOST_MAPS: Final = 256


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The contents of a segment's index file; it stays valid for the first ``size`` bytes.

    Size, digest, end offset and last timestamp are those of the segment when the file was written.
    ``index`` is the sparse index. ``writers`` has the states of the log's writers at the end of the
    segment.
    """

    size: int
    digest: int
    end_offset: int
    last_timestamp: int
    index: SparseIndex
    writers: WriterStates


class Segment:
    """A file of batches; its name is the offset of the first.

    The file is open for writing from the first append until :meth:`release_files`.

    Attributes
    ----------
    size
        How many bytes the whole batches have.
    end_offset, last_timestamp
        The offset behind the last batch, and its commit timestamp (-1 in an empty segment).
    digest
        The digest of all batches, see :mod:`~fluss_df.engine.log.batch_heads`.
    verified
        How many bytes from the beginning had their checksums compared since the segment was opened.
    """

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.path = segment_file(folder, base_offset)
        self._file = str(self.path)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.last_timestamp = -1
        self.size = 0
        self.digest = 0
        self.verified = 0
        self.index = SparseIndex()
        self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: memoryview | None = None

    @classmethod
    def begin(cls, folder: Path, base_offset: int) -> Segment:
        """Begin a new segment, whose file must be new or empty.

        Raises :class:`~fluss_df.engine.files.files.DamagedError` when the file has bytes: they are
        not overwritten. Raises OSError when the file cannot be created.
        """
        segment = cls(folder, base_offset)
        if size := segment.file_size():
            segment.release_files()
            raise DamagedError(
                f"{segment.path} has {size:,} bytes, and was not found when the log was opened:"
                " open the engine again"
            )
        return segment

    @property
    def fd(self) -> int:
        """The descriptor of the file, which is opened if it is not open.

        Raises FlussError when the file cannot be opened, see
        :func:`~fluss_df.engine.files.files.disk_refused`.
        """
        if self._fd is None:
            self._fd = self._opened(os.O_RDWR)
        return self._fd

    def _opened(self, flags: int) -> int:
        try:
            return os.open(self.path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise self._refused("open", error) from error

    def _refused(self, what: str, error: OSError) -> FlussError:
        return disk_refused(f"cannot {what} {self.path}", self.path.parent, error)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[int]:
        """Yield a descriptor for reading; it is closed afterwards unless the file was open before.

        So segments that are only read keep no file open.
        """
        fd = self._fd
        if fd is not None:
            yield fd
            return
        fd = self.open_again()
        try:
            yield fd
        finally:
            os.close(fd)

    def open_again(self) -> int:
        """Return another descriptor of the file, for reading."""
        return self._opened(os.O_RDONLY)

    def release_files(self) -> None:
        """Close the file and drop the memory map until they are needed; slices stay valid."""
        self._map = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def file_size(self) -> int:
        """Return how many bytes the file has, with those behind the last whole batch."""
        with self._readable() as fd:
            return os.fstat(fd).st_size

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from ``start`` to ``end`` as a slice of the file's memory map.

        A slice stays valid when the segment grows, is closed or is deleted. Reading a slice behind
        the end of the file would end the process (SIGBUS), so each call looks at the file's size.
        No other program may truncate a file while the engine is open.

        Raises :class:`~fluss_df.engine.files.files.DamagedError` where the file is shorter.
        """
        if not end:
            return memoryview(b"")
        fd = self._fd
        try:
            size = os.stat(self._file if fd is None else fd).st_size
        except OSError as error:
            raise self._refused("read", error) from error
        if size < end:
            raise DamagedError(
                f"{self.path} has {size:,} bytes, but {end:,} bytes were written to it: it was cut"
                " while it was open, or is damaged. Restore the folder from a backup"
            )
        found = self._map
        if found is None or len(found) < end:
            with self._readable() as opened:
                try:
                    found = memoryview(mmap.mmap(opened, 0, access=mmap.ACCESS_READ, **_MAP))
                except (OSError, ValueError) as error:
                    # ValueError is raised for an empty file: it was truncated after stat
                    raise disk_refused(
                        f"cannot read {self.path}", self.path.parent, error
                    ) from error
            self._map = found
            if not _MAP:
                _kept_maps.add(self)
        return found[start:end]

    def read(self, start: int, end: int) -> memoryview:
        """Return a copy of the bytes from ``start`` to ``end``, or to the end of the file."""
        with self._readable() as fd:
            try:
                return memoryview(os.pread(fd, end - start, start))
            except OSError as error:
                raise self._refused("read", error) from error

    def digest_at(self, position: int) -> int | None:
        """Return the digest of the batches before a position; None if no batch ends there."""
        if position == self.size:
            return self.digest
        if position > self.size:
            return None
        at, digest = self.index.entry_before(position)
        return digest_behind(self.read(at, position), digest)

    def append(self, batches: list[bytes | memoryview], headers: LogHeaders, heads: bytes) -> None:
        """Append batches: all of them, or none.

        ``batches`` are the bytes of the batches, in parts. ``headers`` have the values that are
        written; the first batch begins at position 0. ``heads`` are the first ``HEAD_BYTES`` bytes
        of each batch, see :mod:`~fluss_df.engine.log.batch_heads`.

        Raises OSError when the disk did not take them all. What was written is cut off again; if
        that fails, the segment is :attr:`torn`. Raises FlussError when the file cannot be opened.
        """
        fd = self.fd
        total = sum(len(part) for part in batches)
        if len(batches) > _MOST_PARTS:
            batches = [b"".join(batches)]
        with undoing(lambda: os.ftruncate(fd, self.size)):
            written = os.pwritev(fd, batches, self.size)
            if written < total:
                rest = memoryview(b"".join(batches))[written:]
                while rest:
                    count = os.pwrite(fd, rest, self.size + written)
                    written += count
                    rest = rest[count:]
        self.take_in(headers, heads)

    @property
    def torn(self) -> bool:
        """Whether a failed write left bytes behind the last whole batch."""
        return self.file_size() != self.size

    def take_in(self, headers: LogHeaders, heads: bytes) -> None:
        """Add batches that are in the file behind the last one to index, digest and size."""
        self.digest = self.index.add(headers, self.size, heads, self.digest)
        # the caller has verified the checksums of these batches
        if self.verified == self.size:
            self.verified += headers.consumed
        self.size += headers.consumed
        self.end_offset = headers.end_offset or self.end_offset
        if len(headers):
            self.last_timestamp = int(headers.timestamp[-1])

    def write_again(self, position: int) -> None:
        """Write the bytes behind a position once more, as they are, so that a sync has them."""
        while position < self.size:
            part = self.read(position, min(self.size, position + _COPIED_BYTES))
            while part:
                try:
                    written = os.pwrite(self.fd, part, position)
                except OSError as error:
                    raise self._refused("write", error) from error
                part, position = part[written:], position + written

    def forget_map(self) -> None:
        """Drop the memory map until it is needed; slices stay valid."""
        self._map = None

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes, where its last whole batch ends."""
        # the old map reaches behind the new end of the file
        self._map = None
        os.ftruncate(self.fd, size)
        sync_data(self.fd)

    # ---- the index file, so that a segment need not be read when it is opened

    @property
    def index_path(self) -> Path:
        """The file of the index."""
        return self.path.with_suffix(".index")

    def save_index(self, writers: WriterStates, owner: BucketIds, *, durable: bool = True) -> None:
        """Write the index file, with the states of the log's writers at the segment's end."""
        head = {
            "version": _INDEX_VERSION,
            "owner": list(owner),
            "base": self.base_offset,
            "size": self.size,
            "digest": self.digest,
            "entries": len(self.index.offsets),
            "end_offset": self.end_offset,
            "last_timestamp": self.last_timestamp,
            "writers": writers.to_json(),
        }
        index = self.index
        columns = [index.offsets, index.positions, index.timestamps, index.digests]
        numbers = np.array([np.frombuffer(column, "=i8") for column in columns], "<i8")
        body = json.dumps(head).encode() + b"\n" + numbers.tobytes()
        data = google_crc32c.value(body).to_bytes(4, "little") + body
        write_atomically(self.index_path, data, durable=durable)

    def read_index(self, owner: BucketIds) -> IndexFile | None:
        """Read the index file; None if it is missing, damaged, or belongs to another segment.

        Raises FlussError when it cannot be opened now, see
        :func:`~fluss_df.engine.files.files.read_bytes`.
        """
        try:
            data = read_bytes(self.index_path) or b""
        except DamagedError:
            return None
        try:
            # an empty file passes the comparison: the CRC of no bytes is 0
            if google_crc32c.value(data[4:]) != int.from_bytes(data[:4], "little") or not data:
                return None
            text, _, rest = data[4:].partition(b"\n")
            head = json.loads(text)
            # index files of folder formats 1 and 2 have no version and no digests: not used
            expected = (_INDEX_VERSION, list(owner), self.base_offset)
            if tuple(head.get(key) for key in ("version", "owner", "base")) != expected:
                return None
            arrays = np.frombuffer(rest, "<i8").reshape(4, head["entries"])
            return IndexFile(
                int(head["size"]),
                int(head["digest"]),
                int(head["end_offset"]),
                int(head["last_timestamp"]),
                SparseIndex(*(array("q", row.tobytes()) for row in arrays.astype("=i8"))),
                WriterStates.from_json(head["writers"]),
            )
        except (FlussError, *NOT_AS_WRITTEN):
            return None

    def take_index(self, found: IndexFile) -> None:
        """Use the contents of an index file, so that the segment need not be read."""
        self.index, self.size, self.digest = found.index, found.size, found.digest
        self.end_offset, self.last_timestamp = found.end_offset, found.last_timestamp

    def drop_index(self) -> None:
        """Remove the index file, before the segment grows."""
        try:
            self.index_path.unlink(missing_ok=True)
        except OSError as error:
            if not self.index_path.is_dir():
                raise self._refused("remove the index of", error) from error
            set_folder_aside(self.index_path)

    def delete(self) -> None:
        """Close the segment and remove its files."""
        self.release_files()
        self.drop_index()
        self.path.unlink(missing_ok=True)


class _KeptMaps:
    """The segments that have a map; those that were mapped longest ago drop theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # in the order in which they were mapped
        self._segments: weakref.WeakKeyDictionary[Segment, None] = weakref.WeakKeyDictionary()

    def add(self, segment: Segment) -> None:
        """Take note of a segment that has a new map."""
        with self._lock:
            self._segments.pop(segment, None)
            self._segments[segment] = None
            most = max(1, min(_MOST_MAPS, allowed_files() // 4))
            while len(self._segments) > most:
                oldest = next(iter(self._segments))
                del self._segments[oldest]
                oldest.forget_map()


_kept_maps: Final = _KeptMaps()


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy: its name, a descriptor, and how many of its first bytes to copy.

    The file may grow while it is copied.
    """

    name: str
    fd: int
    size: int


@dataclass(frozen=True, slots=True)
class LogCopy:
    """The files of a log at one moment.

    ``segments`` are in their order. ``point`` is the contents of the file ``synced`` that belongs
    to them.
    """

    segments: list[FileCopy]
    point: bytes


def segment_offsets(folder: Path) -> list[int]:
    """Return the base offsets of the segments in a folder, ascending."""
    return [int(name.removesuffix(_SUFFIX)) for name in names_in(folder) if _NAME.fullmatch(name)]


def segment_file(folder: Path, base_offset: int) -> Path:
    """Return the file of a segment."""
    return folder / f"{base_offset:020d}{_SUFFIX}"
