"""Checksums of the files of a folder's lake: neither Parquet, Avro nor JSON has one of the whole.

``lake/checksums/DATABASE/TABLE`` has a line for each file, with a checksum of its own, and a line
for each snapshot all of whose files have one. Later lines win; one that is cut off is none.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import google_crc32c

from fluss_df.embedded.lake_paths import (
    CONTENT,
    DATA_FILE,
    DELETED,
    FILE_PATH,
    FILE_SIZE,
    STATUS,
    AvroRows,
    LakePaths,
    manifests,
    places,
    read_file,
    read_manifest,
    read_metadata,
)
from fluss_df.engine.files.files import DamagedError, make_folder, read_bytes, write_atomically

_FOLDER: Final = "checksums"
_FILE: Final = re.compile(r"file ([0-9a-f]{8}) (\d{1,18}) (.+)", re.DOTALL)
_SNAPSHOT: Final = re.compile(r"snapshot (-?\d{1,19})")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_PIECE: Final = 1 << 20
# a file of checksums is written again when it has this number of expired snapshots
_EXPIRED: Final = 100


@dataclass(frozen=True, slots=True)
class Sum:
    """The checksum (CRC32C) and the size of a file."""

    crc: int
    size: int


@dataclass(slots=True)
class Sums:
    """The checksums of one table's files.

    They are kept in the file ``path``, None for a table whose name cannot be that of a file.
    ``files`` has them by path relative to the lake's folder. ``snapshots`` are those whose files
    are all among them.
    """

    path: Path | None
    files: dict[str, Sum] = field(default_factory=dict)
    snapshots: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, lake: Path, database: str, table: str) -> Sums:
        """Read those of a table; there may be none."""
        if not (_NAME.fullmatch(database) and _NAME.fullmatch(table)):
            return cls(None)
        found = cls(lake / _FOLDER / database / table)
        assert found.path is not None
        # lines are separated by a zero byte, which no path has
        for line in (read_bytes(found.path) or b"").split(b"\0"):
            digits, _, text = line.partition(b" ")
            if digits == b"%08x" % google_crc32c.value(text):
                found._take(os.fsdecode(text))
        return found

    def _take(self, text: str) -> None:
        if file := _FILE.fullmatch(text):
            self.files[file[3]] = Sum(int(file[1], 16), int(file[2]))
        elif snapshot := _SNAPSHOT.fullmatch(text):
            self.snapshots.add(int(snapshot[1]))

    def add(self, files: Mapping[str, Sum], snapshots: Collection[int] = ()) -> None:
        """Add checksums of files, and then snapshots that are complete by them."""
        if self.path is None or not (files or snapshots):
            return
        make_folder(self.path.parent, durable=False)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(lines_of(files, snapshots))
        self.files.update(files)
        self.snapshots.update(snapshots)

    def write(self, files: Mapping[str, Sum]) -> None:
        """Write all of them again, with those of more files, to a file that nothing else has."""
        if self.path is not None:
            self.files.update(files)
            make_folder(self.path.parent)
            write_atomically(self.path, lines_of(self.files, self.snapshots))

    def forget_expired(self, lake: Path, snapshots: Collection[int]) -> None:
        """Leave out what is gone, once it is of many snapshots that are no more."""
        if len(self.snapshots.difference(snapshots)) < _EXPIRED:
            return
        self.snapshots.intersection_update(snapshots)
        self.files = {below: one for below, one in self.files.items() if (lake / below).exists()}
        self.write({})

    def verify(self, below: str, data: bytes) -> None:
        """Raise where a file is not what was written."""
        known = self.files.get(below)
        if known is not None and known != sum_of(data):
            raise DamagedError(f"{below} is damaged: its checksum differs")


def lines_of(files: Mapping[str, Sum], snapshots: Collection[int]) -> bytes:
    """Return the lines of files and snapshots."""
    texts = [f"file {one.crc:08x} {one.size} {below}" for below, one in files.items()]
    texts += [f"snapshot {number}" for number in snapshots]
    # the first zero ends what a killed process may have left of a line
    return b"".join(
        b"\0%08x %s\0" % (google_crc32c.value(text), text) for text in map(os.fsencode, texts)
    )


def forget_sums(lake: Path, database: str, table: str) -> None:
    """Remove the checksums of a table that is gone."""
    path = Sums(lake / _FOLDER / database / table).path
    if path is not None and _NAME.fullmatch(database) and _NAME.fullmatch(table):
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder has other files
            path.parent.rmdir()


def sum_of(data: bytes) -> Sum:
    """Return the checksum of bytes."""
    return Sum(google_crc32c.value(data), len(data))


def sum_of_file(path: Path) -> Sum:
    """Return the checksum of a file, of which little is in memory at once."""
    crc, size = 0, 0
    with open(path, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE):
            crc, size = google_crc32c.extend(crc, piece), size + len(piece)
    return Sum(crc, size)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file with rows, or with what deletes some, as a manifest says.

    ``content`` is 0 for rows; other numbers are deletes. ``size`` is in bytes.
    """

    path: str
    size: int
    content: int


def live_files(manifest: AvroRows) -> Iterator[LiveFile]:
    """Iterate over the files of a manifest that are not deleted."""
    top = manifest.places(STATUS, DATA_FILE)
    at = places(manifest.file_fields(), (FILE_PATH, FILE_SIZE, CONTENT))
    for row in manifest.rows:
        if row[top[STATUS]] != DELETED:
            file = row[top[DATA_FILE]]
            content = int(file[at[CONTENT]] or 0) if CONTENT in at else 0
            yield LiveFile(str(file[at[FILE_PATH]]), int(file[at[FILE_SIZE]]), content)


def add_sums(lake: Path, sums: Sums, metadata_path: str, closing: Callable[[], bool]) -> None:
    """Add the checksums of all files of a table that have none yet.

    ``metadata_path`` is where the catalog says that the table's metadata is. When ``closing``
    returns True, the rest is left for later.

    Raises DamagedError where a file cannot be read; :mod:`~fluss_df.embedded.lake_check` says more
    of it.
    """
    found = LakePaths.of(metadata_path, lake)
    if found is None:
        return
    paths, below = found
    data = read_file(lake / below)
    metadata = read_metadata(data, below)
    if below not in sums.files:
        sums.add({below: sum_of(data)})
    for snapshot in metadata.get("snapshots", []):
        number = int(snapshot["snapshot-id"])
        if number in sums.snapshots:
            continue
        if closing() or not _add_snapshot(lake, sums, paths, snapshot, closing):
            return
        sums.add({}, {number})
    sums.forget_expired(lake, {int(one["snapshot-id"]) for one in metadata.get("snapshots", [])})


def _add_snapshot(
    lake: Path, sums: Sums, paths: LakePaths, snapshot: Any, closing: Callable[[], bool]
) -> bool:
    """Add those of one snapshot; whether that is done."""
    below = paths.relative(snapshot["manifest-list"])
    if below is None:
        return True
    data = read_file(lake / below)
    for manifest in manifests(AvroRows.read(data, below)):
        listed = paths.relative(manifest.path)
        # a manifest's checksum is added after those of its files, so they are complete
        if listed is None or listed in sums.files:
            continue
        content = read_file(lake / listed)
        new: dict[str, Sum] = {}
        for file in live_files(read_manifest(content, listed, manifest)):
            at = paths.relative(file.path)
            if at is None or at in sums.files:
                continue
            if closing():
                return False
            made = sum_of_file(lake / at)
            if made.size != file.size:
                raise DamagedError(f"{at} has {made.size:,} bytes and not {file.size:,}")
            new[at] = made
        sums.add(new)
        sums.add({listed: sum_of(content)})
    sums.add({below: sum_of(data)})
    return True
