"""Verifies the lake of a folder: each file of the snapshots that readers use; changes nothing."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from fluss_df.embedded.lake_catalog import lost_rows, pending_rows
from fluss_df.embedded.lake_paths import (
    AvroRows,
    LakePaths,
    manifests,
    read_file,
    read_manifest,
    read_metadata,
    used_snapshots,
)
from fluss_df.embedded.lake_rows import CATALOG, CATALOG_FILE, catalog_rows
from fluss_df.embedded.lake_sums import LiveFile, Sum, Sums, live_files, sum_of_file
from fluss_df.engine.files.files import DamagedError, TooManyFilesError, disk_refused
from fluss_df.engine.lake.lake_tables import LAKE_TABLES
from fluss_df.errors import FlussError
from fluss_df.lake.offsets import offsets_in
from fluss_df.metadata import TablePath

_PARQUET: Final = (b"PAR1", b"PARE")
#: Says what was found: "damage" or "note", where, and what.
Found = Callable[[Any, Path, str], None]


@dataclass(slots=True)
class LakeCounts:
    """How many files of the lake were verified, and their bytes."""

    files: int = 0
    bytes: int = 0


def check_lake(
    folder: Path,
    tables: Iterable[tuple[TablePath, Mapping[str, Any]]],
    found: Found,
    watch: Callable[[int], object] = lambda done: None,
) -> LakeCounts:
    """Verify the lake of a folder that is not in use.

    Parameters
    ----------
    folder
        The folder of the engine.
    tables
        Its tables with a lake, and what it knows of their lake's snapshot: ``id`` and ``offsets``.
    found
        Is called with each fault.
    watch
        Is called with the number of bytes that were read since its last call.
    """
    lake = (folder / "lake").resolve()
    counts = LakeCounts()
    known = list(tables)
    try:
        rows = _catalog(lake)
    except (sqlite3.Error, OSError, DamagedError) as error:
        message = error.message if isinstance(error, DamagedError) else f"cannot be read: {error}"
        if (lake / LAKE_TABLES).exists():
            # the catalog would be made from that list alone, so there is nothing more to check
            found("damage", lake / LAKE_TABLES, message)
            return counts
        found("note", lake / CATALOG_FILE, f"{message}; made again when opened")
        rows = {}
    tiered = {path: int(one["id"]) for path, one in known if one}
    lacking = {
        path: number
        for path, number in tiered.items()
        if (CATALOG, path.database_name, path.table_name) not in rows
    }
    lost, why = lost_rows(lake, lacking)
    rows = {**rows, **lost}
    for path, snapshot in known:
        row = rows.get((CATALOG, path.database_name, path.table_name))
        checked = _Table(lake, path, found, counts, watch)
        if row is not None:
            if path in lacking:
                text = f"lake table {path} is not in it; put back when opened"
                found("note", lake / CATALOG_FILE, text)
            checked.run(row, snapshot)
        elif snapshot:
            checked.damage(lake / CATALOG_FILE, f"it is not in the catalog, and {why[path]}")
        else:
            found("note", lake / CATALOG_FILE, f"lake table {path} is made when opened")
    return counts


def _catalog(lake: Path) -> dict[tuple[str, str, str], str]:
    """Read a copy of the catalog: SQLite rolls back in the file what was not committed."""
    pending = pending_rows(lake)
    if pending is not None:
        return pending
    with tempfile.TemporaryDirectory() as copies:
        copy = Path(copies) / CATALOG_FILE
        shutil.copyfile(lake / CATALOG_FILE, copy)
        for kind in ("-journal", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(lake / f"{CATALOG_FILE}{kind}", f"{copy}{kind}")
        with contextlib.closing(sqlite3.connect(copy)) as database:
            [[said], *_] = database.execute("PRAGMA integrity_check").fetchall()
            if said != "ok":
                raise DamagedError(f"is damaged: {said}")
        return catalog_rows(copy)


@dataclass(slots=True)
class _Table:
    lake: Path
    path: TablePath
    found: Found
    counts: LakeCounts
    watch: Callable[[int], object]
    sums: Sums = field(init=False)
    unknown: int = 0

    def damage(self, where: Path, message: str) -> None:
        """Say what is damaged, and of which table."""
        self.found("damage", where, f"lake table {self.path}: {message}")

    @contextlib.contextmanager
    def _damage(self, below: str) -> Iterator[None]:
        """Make a finding of a file that is not what was written."""
        try:
            yield
        except FileNotFoundError:
            self.damage(self.lake / below, "the file is missing")
        except DamagedError as error:
            self.damage(self.lake / below, error.message)
        except TooManyFilesError:
            raise
        # values of another type in JSON or Avro, and errors of the disk
        except (ValueError, KeyError, TypeError, OSError, FlussError) as error:
            refused = disk_refused("cannot check the lake", self.lake, error)
            if isinstance(refused, TooManyFilesError):
                raise refused from error
            self.damage(self.lake / below, f"cannot be read: {type(error).__name__}: {error}")

    def run(self, location: str, known: Mapping[str, Any]) -> None:
        self.sums = Sums.of(self.lake, self.path.database_name, self.path.table_name)
        at = LakePaths.of(location, self.lake)
        if at is None:
            self.damage(self.lake / CATALOG_FILE, f"its metadata is not in the lake: {location}")
            return
        paths, below = at
        if paths.made != str(self.lake):
            text = f"lake table {self.path} was made at {paths.made}; made right when opened"
            self.found("note", self.lake / below, text)
        with self._damage(below):
            metadata = read_metadata(self._read(below), below)
            self._snapshots(paths, below, metadata, known)
        if self.unknown:
            self.found(
                "note",
                self.lake,
                f"lake table {self.path}: {self.unknown} files have no checksum yet, and could be"
                " read; they get one when the folder is opened",
            )

    def _snapshots(
        self, paths: LakePaths, below: str, metadata: dict[str, Any], known: Mapping[str, Any]
    ) -> None:
        snapshots = {int(one["snapshot-id"]): one for one in metadata.get("snapshots", [])}
        wanted = int(known["id"]) if known else None
        if wanted is not None and wanted not in snapshots:
            self.damage(self.lake / below, f"it has no snapshot {wanted}, which Fluss reads")
        if wanted in snapshots:
            self._offsets(self.lake / below, snapshots[wanted], known)
        seen: set[str] = set()
        for number in used_snapshots(metadata, wanted):
            self._snapshot(paths, str(snapshots[number]["manifest-list"]), seen)

    def _offsets(self, where: Path, snapshot: Any, known: Mapping[str, Any]) -> None:
        said = offsets_in(snapshot.get("summary", {}))
        has = {(p, int(b)): int(offset) for p, b, offset in known.get("offsets", [])}
        if said is not None and said != has:
            number = snapshot["snapshot-id"]
            self.damage(where, f"snapshot {number} has the offsets {said}, and Fluss {has}")

    def _snapshot(self, paths: LakePaths, path: str, seen: set[str]) -> None:
        below = paths.relative(path)
        if below is None or below in seen:
            return
        seen.add(below)
        with self._damage(below):
            for manifest in manifests(AvroRows.read(self._read(below), below)):
                listed = paths.relative(manifest.path)
                if listed is None or listed in seen:
                    continue
                seen.add(listed)
                with self._damage(listed):
                    entries = read_manifest(self._read(listed), listed, manifest)
                    for file in live_files(entries):
                        at = paths.relative(file.path)
                        if at is not None and at not in seen:
                            seen.add(at)
                            with self._damage(at):
                                self._file(at, file)

    def _read(self, below: str) -> bytes:
        data = read_file(self.lake / below)
        self._count(len(data))
        if below in self.sums.files:
            self.sums.verify(below, data)
        else:
            self.unknown += 1
        return data

    def _file(self, below: str, file: LiveFile) -> None:
        path = self.lake / below
        found = sum_of_file(path)
        self._count(found.size)
        if found.size != file.size:
            raise DamagedError(f"the file has {found.size:,} bytes and not {file.size:,}")
        known = self.sums.files.get(below)
        if known is None:
            self.unknown += 1
            _read_all(path, found)
        elif known != found:
            raise DamagedError("the file is damaged: its checksum differs")

    def _count(self, size: int) -> None:
        self.counts.files += 1
        self.counts.bytes += size
        self.watch(size)


def _read_all(path: Path, found: Sum) -> None:
    """Read a file without a checksum as far as its format lets its damage be seen."""
    with open(path, "rb") as stream:
        if stream.read(4) not in _PARQUET:
            raise DamagedError("the file is not Parquet")
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches():
                pass
    except Exception as error:
        raise DamagedError(
            f"the file of {found.size:,} bytes is damaged: {type(error).__name__}: {error}"
        ) from error
