"""The segments of a log, in order: where offsets and times are in them, and which have expired."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import DamagedError, refused_by, sync_folder
from fluss_df.engine.log.log_reads import Piece, Stretch, cut_beginning, cut_piece, first_since
from fluss_df.engine.log.segment import FileCopy, Segment
from fluss_df.engine.log.synced_point import LogEnd
from fluss_df.errors import FlussError
from fluss_df.hooks import undoing

# data/<table>/<partition>/<bucket>/log
_FOLDERS_ABOVE: Final = 4


class LogSegments(list[Segment]):
    """The segments of a log, the oldest first; the last one is active.

    The tablet's lock guards the list. Stretches, which are parts of segments, are read without it.
    """

    def __init__(self, folder: Path, name: str, segments: Sequence[Segment]) -> None:
        super().__init__(segments)
        self._folder = folder
        self._name = name
        # segments that are no longer part of the log, and whose files are to be removed
        self._expired: list[Segment] = []

    @property
    def end(self) -> LogEnd:
        """The end of what was written."""
        active = self[-1]
        return LogEnd(active.end_offset, active.base_offset, active.size, active.digest)

    def begin_next(self) -> None:
        """Begin a new segment behind the active one, whose file is closed."""
        old = self[-1]
        new = Segment.begin(self._folder, old.end_offset)
        # without its name on the disk, a loss of power could lose the file and all its batches
        with undoing(new.release_files):
            sync_folder(self._folder)
        self.append(new)
        old.release_files()

    def sync_names(self) -> None:
        """Bring the names of the folder, and of those above it, to the disk.

        These are the folders of the bucket, the partition, the table and all data: the process that
        created them may have ended before it synced their names.
        """
        for folder in (self._folder, *self._folder.parents[:_FOLDERS_ABOVE]):
            sync_folder(folder)

    # ---- reading

    def holding_from(self, offset: int, high: int) -> list[Stretch]:
        """Return the parts of segments that hold the rows from ``offset`` to ``high``."""
        found: list[Stretch] = []
        for segment in reversed(self):
            if offset < high and segment.base_offset < high:
                found.append(self.stretch(segment, segment.index.before_offset(offset)))
            if segment.base_offset <= offset:
                break
        return found[::-1]

    def since(self, timestamp: int) -> Stretch | None:
        """Return the part of a segment that has the first batch of a time (ms) or later."""
        for segment in self:
            if segment.last_timestamp >= timestamp:
                return self.stretch(segment, segment.index.before_time(timestamp))
        return None

    def stretch(self, segment: Segment, position: int) -> Stretch:
        """Return a segment from a position on, to the end of what was written."""
        try:
            view = segment.view(position, segment.size)
            return Stretch(segment, position, view, segment.digest)
        except DamagedError as error:
            raise damaged(self._name, segment.base_offset, segment.path, error) from error

    def cut(
        self,
        stretch: Stretch,
        offset: int,
        high: int,
        max_bytes: int,
        at_least_one: bool,
        partial: bool,
    ) -> Piece | None:
        """Return whole batches of a stretch, see :func:`~fluss_df.engine.log.log_reads.cut_piece`.

        Raises DamagedError for bytes that changed on the disk.
        """
        try:
            if partial and not at_least_one and max_bytes > 0:
                return cut_beginning(stretch, offset, high, max_bytes)
            return cut_piece(stretch, offset, high, max_bytes, at_least_one)
        except (FlussError, struct.error) as error:
            raise damaged(self._name, offset, stretch.segment.path, error) from error

    def first_since(self, stretch: Stretch, timestamp: int, high: int) -> int:
        """Return an offset, see :func:`~fluss_df.engine.log.log_reads.first_since`.

        Raises DamagedError for bytes that changed on the disk.
        """
        try:
            return first_since(stretch, timestamp, high)
        except FlussError as error:
            segment = stretch.segment
            raise damaged(self._name, segment.base_offset, segment.path, error) from error

    def copies(self) -> list[FileCopy]:
        """Return the files of the log, opened for the caller, who closes them."""
        files: list[FileCopy] = []
        with undoing(lambda: close_copies(files)):
            files.extend(FileCopy(s.path.name, s.open_again(), s.size) for s in self)
        return files

    # ---- expired segments

    @property
    def to_remove(self) -> bool:
        """Whether there are expired segments whose files are not removed yet."""
        return bool(self._expired)

    def expire(self, count: int) -> None:
        """Take the oldest segments from the log, and remove their files."""
        self._expired += self[:count]
        del self[:count]
        self.remove_expired()

    def remove_expired(self) -> None:
        """Remove the files of expired segments, the oldest first.

        Raises FlussError when the disk refuses; what is left is removed with the next call.
        """
        if not self._expired:
            return
        with refused_by(f"cannot remove expired segments of {self._name}", self._folder):
            while self._expired:
                self._expired[0].delete()
                del self._expired[0]
            sync_folder(self._folder)

    def release_files(self) -> None:
        """Give back all files until they are needed."""
        for segment in (*self._expired, *self):
            segment.release_files()


def close_copies(files: Sequence[FileCopy]) -> None:
    """Close what :meth:`LogSegments.copies` opened."""
    for file in files:
        os.close(file.fd)


def damaged(name: str, offset: int, file: Path, error: Exception) -> FlussError:
    """Return the error for bytes of a bucket's log that are not what was written."""
    return DamagedError(
        f"the log of {name} is damaged near offset {offset}, below what was"
        f" acknowledged: {error} ({file}). Restore the folder from a backup"
    )
