"""Opening a log after its process ended, however it did."""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import DamagedError, refused_by
from fluss_df.engine.log.batch_heads import heads_of
from fluss_df.engine.log.segment import Segment, segment_offsets
from fluss_df.engine.log.synced_point import (
    POINT_FILE,
    BucketIds,
    FoundPoint,
    SyncedPoint,
    find_point,
)
from fluss_df.engine.log.writer_states import WriterStates, WrittenBatch
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing
from fluss_df.record.layout.headers import (
    HEADER_SIZE,
    NO_WRITER_ID,
    OVERHEAD,
    LogHeaders,
    scan_headers,
    verify_crcs,
)

logger = logging.getLogger(__name__)

_CHUNK: Final = 16 << 20


@dataclass(slots=True)
class LoadedLog:
    """A log that was loaded: whole batches only.

    Attributes
    ----------
    segments
        Ascending.
    writers
        As they are at the end.
    found
        What the file ``synced`` says. Its point is None where the file belongs to another bucket.
    start
        The offset where the log begins.
    problems
        Messages about faults that opening the log repairs.
    """

    segments: list[Segment]
    writers: WriterStates
    found: FoundPoint
    start: int = 0
    problems: list[str] = field(default_factory=list)


def load_log(
    folder: Path,
    name: str,
    owner: BucketIds,
    *,
    used: bool,
    found: FoundPoint | None = None,
    only_look: bool = False,
) -> LoadedLog:
    """Open the segments of a log, and cut off what a crash left unfinished.

    A segment is not read if its index file was written when the segment had its present size. All
    other segments are read, and their checksums verified.

    ``name`` is the name of table and bucket, for messages. ``used`` says whether it is known that
    rows were written to the bucket. ``found`` is what the file ``synced`` says; None to read it
    here. With ``only_look``, nothing is changed on the disk, and every segment is read.

    Raises :class:`~fluss_df.engine.files.files.DamagedError` for damage below what was
    acknowledged, or may have been. In this case no file was changed.
    """
    found = found or find_point(folder, owner)
    foreign = found.point if found.point and found.point.owner not in (None, owner) else None
    if foreign is not None:
        problem = f"{folder / POINT_FILE} is the file of {foreign.owner}"
        found = FoundPoint(None, problem, 0, -1, found.start, found.noted_start)
    loading = _Loading(folder, name, owner, found, only_look)
    with undoing(loading.release_files):
        loaded = loading.load()
        if foreign is not None and _is_of(loaded.segments, foreign):
            raise DamagedError(
                f"{folder} should have the log of {name}, and has that of {foreign.owner}: folders"
                " were exchanged or renamed. Put them back; nothing was changed"
            )
        loading.compare(used)
        loading.put_right()
    for segment in loaded.segments[:-1]:
        segment.release_files()
    return loaded


def _is_of(segments: list[Segment], point: SyncedPoint) -> bool:
    """Whether a log is the one that a point was written for."""
    for segment in segments:
        if segment.base_offset == point.segment:
            return (
                point.end_offset > 0
                and point.digest is not None
                and segment.digest_at(point.position) == point.digest
            )
    return False


class _Loading:
    """Loads one log."""

    def __init__(
        self, folder: Path, name: str, owner: BucketIds, found: FoundPoint, only_look: bool
    ) -> None:
        self._folder = folder
        self._name = name
        self._owner = owner
        self._found = found
        self._only_look = only_look
        self.segments: list[Segment] = []
        self._expired: list[Segment] = []
        # Repairs of files; they run only if the whole log has no damage.
        self._changes: list[Callable[[], None]] = []
        self.loaded = LoadedLog(self.segments, WriterStates(), found, found.start or 0)

    def release_files(self) -> None:
        """Give back all files."""
        for segment in (*self._expired, *self.segments):
            segment.release_files()

    def put_right(self) -> None:
        """Change the files: what was found to be unfinished is cut off, or removed."""
        if not self._only_look:
            for change in self._changes:
                change()
        for segment in self._expired:
            segment.release_files()

    def load(self) -> LoadedLog:
        """Take the segments in."""
        bases = segment_offsets(self._folder)
        start, loaded = self._found.start, self.loaded
        if bases:
            if start is not None and bases[0] > start:
                raise self._damage(start, f"what was before offset {bases[0]} is missing")
            loaded.start = bases[0]
        for number, base in enumerate(bases):
            if self.segments:
                # a long log has more segments than a process may have files
                self.segments[-1].release_files()
            segment = self._opened(base)
            self.segments.append(segment)
            if number and self.segments[-2].end_offset != base:
                if start is None or base > start:
                    raise self._damage(self.segments[-2].end_offset, "a segment is missing")
                self._forget_expired()
            indexed = segment.read_index(self._owner)
            size = segment.file_size()
            if indexed is not None and indexed.size == size and not self._only_look:
                segment.take_index(indexed)
                loaded.writers = indexed.writers
                continue
            if _read(segment, loaded.writers) < size:
                self._cut(segment, None if number == len(bases) - 1 else bases[number + 1])
            if indexed is not None and segment.digest_at(indexed.size) != indexed.digest:
                what = f"the batches are not those that were written, by {segment.index_path.name}"
                raise self._damage(base, what, segment.path)
            if number < len(bases) - 1:
                save = functools.partial(segment.save_index, durable=False)
                writers = loaded.writers.copy()
                self._changes.append(functools.partial(save, writers, self._owner))
        return loaded

    def _opened(self, base: int) -> Segment:
        with refused_by(f"cannot open a segment of {self._name}", self._folder):
            segment = Segment(self._folder, base)
        return segment

    def _forget_expired(self) -> None:
        """Forget all segments but the last: they expired, and not all files were removed then."""
        for segment in self.segments[:-1]:
            segment.release_files()
            self._changes.append(functools.partial(_delete, segment))
        self._expired += self.segments[:-1]
        del self.segments[:-1]
        self.loaded.start = self.segments[0].base_offset

    def _cut(self, segment: Segment, behind: int | None) -> None:
        """Cut off what is no whole valid batch, if it cannot have been acknowledged.

        ``behind`` is where the next segment begins, if there is one.
        """
        point, offset = self._found.point, segment.end_offset
        if behind is not None:
            # A segment is synced before the next one begins, so a lost batch here was acknowledged.
            if offset != behind:
                raise self._damage(offset, "a batch is damaged", segment.path)
        elif point is None or self._found.problem is not None:
            why = f"a batch is damaged, and {self._found.problem}"
            raise self._damage(offset, why, segment.path)
        elif offset < point.end_offset:
            raise self._damage(offset, "a batch is damaged", segment.path)
        lost = segment.file_size() - segment.size
        text = f"{lost} bytes behind offset {offset} were not written to the end: cut off"
        self.loaded.problems.append(f"{segment.path}: {text}")
        if not self._only_look:
            logger.warning("%s: %s", self._name, text)
        self._changes.append(functools.partial(segment.cut, segment.size))

    def compare(self, used: bool) -> None:
        """Compare the files that are there with those that must be there."""
        found, loaded, segments = self._found, self.loaded, self.segments
        end = segments[-1].end_offset if segments else 0
        point = found.point
        if point is None:
            if used and not end:
                raise self._damage(0, f"there are no batches, and {found.problem}")
            if end:
                loaded.problems.append(f"{found.problem}: it is made again from the log")
            return
        if found.problem is not None:
            loaded.problems.append(f"{found.problem}: it is made again from the log")
        if used and not segments:
            # the newest one never expires
            raise self._damage(loaded.start, "its files are missing")
        if not segments and loaded.start == point.end_offset:
            return
        if end < point.end_offset:
            raise self._damage(end, f"batches up to {point.end_offset} are missing")
        for segment in segments:
            if (
                segment.base_offset == point.segment
                and point.digest is not None
                and segment.digest_at(point.position) != point.digest
            ):
                what = "the batches are not those that were written"
                raise self._damage(segment.base_offset, what, segment.path)

    def _damage(self, offset: int, what: str, path: Path | None = None) -> FlussError:
        return DamagedError(
            f"the log of {self._name} is damaged at offset {offset}, below what was acknowledged:"
            f" {what} ({path or self._folder}). Nothing was changed; restore the folder from a"
            " backup"
        )


def _delete(segment: Segment) -> None:
    # A file that cannot be removed now is removed when the log is opened again.
    with contextlib.suppress(OSError):
        segment.delete()


def _read(segment: Segment, writers: WriterStates) -> int:
    """Read batches up to the first that is invalid or cut off; return how many bytes they take."""
    end = segment.file_size()
    chunk = _CHUNK
    while segment.size < end:
        behind = min(end, segment.size + chunk)
        # A longer chunk is mapped and not read: a damaged length could claim gigabytes.
        get = segment.read if chunk == _CHUNK else segment.view
        data = get(segment.size, behind)
        headers = _valid(data, segment.end_offset)
        if headers is None:
            headers = _longest_valid(data, segment.end_offset)
        if headers is None:
            break
        if not len(headers):
            if behind == end:
                break
            chunk *= 4  # a batch larger than a chunk
            continue
        segment.take_in(headers, heads_of(data, headers.position))
        remember(writers, headers)
        chunk = _CHUNK
    return segment.size


def _valid(view: memoryview, offset: int) -> LogHeaders | None:
    """Return the headers of the whole batches in a view, or None when one of them is not valid."""
    try:
        headers = scan_headers(view, require_progress=False)
        verify_crcs(view, headers)
    except FlussError:
        return None
    for base, delta in zip(
        headers.base_offset.tolist(), headers.last_offset_delta.tolist(), strict=True
    ):
        if base != offset:
            return None
        offset += delta + 1
    return headers


def _longest_valid(view: memoryview, offset: int) -> LogHeaders | None:
    """Return the headers of the batches before an invalid one; None where none is."""
    edges = [0]
    at = 0
    while at + HEADER_SIZE <= len(view):
        size = OVERHEAD + struct.unpack_from("<i", view, at + 8)[0]
        if not HEADER_SIZE <= size <= len(view) - at:
            break
        at += size
        edges.append(at)
    low, high, behind = 0, len(edges) - 1, offset
    while low < high:
        middle = (low + high + 1) // 2
        headers = _valid(view[edges[low] : edges[middle]], behind)
        if headers is None:
            high = middle - 1
        else:
            low, behind = middle, headers.end_offset or behind
    return _valid(view[: edges[low]], offset) if low else None


def remember(writers: WriterStates, headers: LogHeaders) -> None:
    """Add the batches of a log to the writer states."""
    for i in (headers.writer_id != NO_WRITER_ID).nonzero()[0].tolist():
        base = int(headers.base_offset[i])
        writers.add(
            int(headers.writer_id[i]),
            WrittenBatch(
                int(headers.sequence[i]),
                base,
                base + int(headers.last_offset_delta[i]),
                int(headers.timestamp[i]),
            ),
        )
