"""Makes the lake of a folder right that is at another place than where it was made.

Iceberg's files name each other by whole paths. So catalog, metadata, manifest lists and manifests
are written again; files with rows stay as they are. The catalog is replaced last, as a whole: until
then everything is as it was, and who is killed begins again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import logging
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.typedef import Record

from fluss_df.embedded import lake_paths
from fluss_df.embedded.lake_paths import (
    AvroRows,
    LakePaths,
    Manifest,
    manifests,
    places,
    read_file,
    read_manifest,
    read_metadata,
    require_inside,
)
from fluss_df.embedded.lake_rows import CATALOG_FILE, Key, catalog_rows, replacing
from fluss_df.embedded.lake_sums import Sum, Sums, sum_of
from fluss_df.engine.files.files import (
    NOT_AS_WRITTEN,
    DamagedError,
    disk_refused,
    sync_file,
    sync_folder,
)
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TablePath

logger = logging.getLogger(__name__)

_MOVED: Final = "moved-"
_METADATA: Final = ".metadata.json"
_SYNCS: Final = 8
# parts of a table's metadata that name files
_NAMES_FILES: Final = ("location", "properties", "statistics", "partition-statistics")


def move_lake(here: Path) -> tuple[int, dict[TablePath, str]]:
    """Write the catalog of a lake for its new place, and the metadata of its tables.

    Returns how many tables were moved, and for the others what is wrong with them. A table of which
    a file is missing or damaged keeps its paths, which name the old place.

    The path ``here`` of the lake must have no links in it. Raises ``STORAGE_EXCEPTION`` where the
    catalog cannot be read, or the disk refuses; the lake is as it was then.
    """
    catalog = here / CATALOG_FILE
    if not catalog.exists():
        return 0, {}
    move = _Move(here)
    moved: dict[Key, str] = {}
    damaged: dict[Key, str] = {}
    try:
        rows = catalog_rows(catalog)
        for key, at in rows.items():
            try:
                found = move.table(key, at)
            except DamagedError as error:
                damaged[key] = error.message
            else:
                if found is not None:
                    moved[key] = found
        move.sync()
        if moved:
            _replace_catalog(catalog, moved, move.paths.values())
        right = {key: moved.get(key, at) for key, at in rows.items() if key not in damaged}
        move.clean(right.values(), [rows[key] for key in damaged])
    except sqlite3.Error as error:
        raise FlussError(
            f"the catalog {catalog.name} of the lake cannot be used: {error}",
            ErrorCode.STORAGE_EXCEPTION,
        ) from error
    except OSError as error:
        raise disk_refused("the lake cannot be written again", here, error) from error
    return len(moved), {TablePath(key[1], key[2]): why for key, why in damaged.items()}


class _Move:
    def __init__(self, here: Path) -> None:
        self._here = here
        # part of the names of new files, so that those of another place are not overwritten
        self._mark = f"{_MOVED}{hashlib.sha256(os.fsencode(here)).hexdigest()[:16]}-"
        # old path -> new path and size
        self._manifests: dict[str, tuple[str, int]] = {}
        self._written: list[Path] = []
        # the checksums of the new files of one table
        self._new_sums: dict[str, Sum] = {}
        self._sums = Sums(None)
        # files that are replaced by new ones, to delete once the catalog is replaced
        self._replaced: list[Path] = []
        self.paths: dict[str, LakePaths] = {}

    def table(self, key: Key, location: str) -> str | None:
        """Write what a table is made of again; return its new metadata, None where it is right."""
        found = LakePaths.of(location, self._here)
        if found is None or found[0].made == str(self._here):
            return None
        paths, below = found
        replaced = len(self._replaced)
        self._sums, self._new_sums = Sums.of(self._here, key[1], key[2]), {}
        try:
            made = self._table(paths, below)
            # written before the catalog is replaced: checksums of unused files do no harm
            self._sums.write(self._new_sums)
        except DamagedError as error:
            # the table keeps its old files
            del self._replaced[replaced:]
            raise DamagedError(
                f"lake table {key[1]}.{key[2]}: {error.message}: put the file back, restore the"
                " folder from a backup, or drop the table"
            ) from error
        self.paths[paths.made] = paths
        return made

    def _table(self, paths: LakePaths, below: str) -> str:
        metadata = read_metadata(self._read(below), below)
        require_inside(metadata, paths)
        for name in _NAMES_FILES:
            if name in metadata:
                metadata[name] = _moved(metadata[name], paths)
        for snapshot in metadata.get("snapshots", []):
            if "manifest-list" not in snapshot:
                raise DamagedError(f"{below} is of the first version of Iceberg's format")
            snapshot["manifest-list"] = self._manifest_list(paths, snapshot["manifest-list"])
        # files of earlier states have the old paths
        metadata["metadata-log"] = []
        folder, _, name = below.rpartition("/")
        number = name.split("-")[0]
        version = int(number) + 1 if number.isdecimal() else 1
        made = uuid.uuid5(uuid.NAMESPACE_URL, f"{paths.here}/{name}")
        packed = name.endswith(f".gz{_METADATA}")
        target = f"{folder}/{version:05d}-{made}{'.gz' if packed else ''}{_METADATA}"
        body = json.dumps(metadata).encode()
        self._write(target, gzip.compress(body) if packed else body)
        return paths.at(target)

    def _manifest_list(self, paths: LakePaths, path: str) -> str:
        below = paths.relative(path)
        if below is None:
            return path
        rows = AvroRows.read(self._read(below), below)
        at = rows.places(lake_paths.MANIFEST_PATH, lake_paths.MANIFEST_LENGTH)
        for row, manifest in zip(rows.rows, list(manifests(rows)), strict=True):
            moved = self._manifests.get(manifest.path)
            if moved is None:
                moved = self._manifests[manifest.path] = self._manifest(paths, manifest)
            row[at[lake_paths.MANIFEST_PATH]], row[at[lake_paths.MANIFEST_LENGTH]] = moved
        target = self._named(below)
        self._write(target, rows.written("manifest_file"))
        return paths.at(target)

    def _manifest(self, paths: LakePaths, manifest: Manifest) -> tuple[str, int]:
        below = paths.relative(manifest.path)
        if below is None:
            return manifest.path, manifest.size
        found = read_manifest(self._read(below), below, manifest)
        top = found.places(lake_paths.STATUS, lake_paths.DATA_FILE)
        at = places(
            found.file_fields(),
            (
                lake_paths.FILE_PATH,
                lake_paths.FILE_SIZE,
                lake_paths.SPLIT_OFFSETS,
                lake_paths.CONTENT,
                lake_paths.REFERENCED,
                lake_paths.COLUMN_SIZES,
                *lake_paths.BOUNDS,
            ),
        )
        for row in found.rows:
            file = row[top[lake_paths.DATA_FILE]]
            content = at.get(lake_paths.CONTENT)
            if content is not None and file[content] == lake_paths.POSITION_DELETES:
                live = row[top[lake_paths.STATUS]] != lake_paths.DELETED
                self._positions(paths, file, at, live=live)
            file[at[lake_paths.FILE_PATH]] = paths.moved(file[at[lake_paths.FILE_PATH]])
        target = self._named(below)
        data = found.written("manifest_entry")
        # a manifest with a checksum says that its files have some, so that must stay true
        self._write(target, data, summed=below in self._sums.files)
        return paths.at(target), len(data)

    def _positions(self, paths: LakePaths, file: Record, at: dict[int, int], *, live: bool) -> None:
        """Write a file with positions of deleted rows again: it names the files with the rows."""
        if lake_paths.REFERENCED in at and file[at[lake_paths.REFERENCED]] is not None:
            file[at[lake_paths.REFERENCED]] = paths.moved(file[at[lake_paths.REFERENCED]])
        for bound in lake_paths.BOUNDS:
            values = file[at[bound]]
            if values and lake_paths.DELETED_IN in values:
                text = bytes(values[lake_paths.DELETED_IN]).decode(errors="replace")
                # a bound that is a cut-off path may stay as it is: nothing follows from it
                file[at[bound]] = {**values, lake_paths.DELETED_IN: paths.moved(text).encode()}
        below = paths.relative(file[at[lake_paths.FILE_PATH]])
        if below is None or not live:
            return
        target = self._named(below)
        data = _positions_moved(self._read(below), below, paths)
        self._write(target, data)
        self._replaced.append(self._here / below)
        file[at[lake_paths.FILE_PATH]] = paths.at(target)
        file[at[lake_paths.FILE_SIZE]] = len(data)
        for gone in (lake_paths.SPLIT_OFFSETS, lake_paths.COLUMN_SIZES):
            if gone in at:
                file[at[gone]] = None

    # ---- files

    def _read(self, below: str) -> bytes:
        """Return the bytes of a file, which are those that were written."""
        try:
            data = read_file(self._here / below)
        except FileNotFoundError as error:
            raise DamagedError(f"{below} is missing") from error
        self._sums.verify(below, data)
        return data

    def _named(self, below: str) -> str:
        """Return the name of a file that takes the place of another."""
        folder, _, name = below.rpartition("/")
        while name.startswith(_MOVED):
            name = name.split("-", 2)[2]
        return f"{folder}/{self._mark}{name}"

    def _write(self, below: str, data: bytes, *, summed: bool = True) -> None:
        """Write a file whose name nothing has yet that is in use."""
        path = self._here / below
        # a file that a killed attempt left may have hard links elsewhere, so it is not overwritten
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
        self._written.append(path)
        if summed:
            self._new_sums[below] = sum_of(data)

    def sync(self) -> None:
        """Make the new files durable."""
        with ThreadPoolExecutor(_SYNCS, "fluss-df-lake-sync") as pool:
            for _ in pool.map(sync_file, self._written):
                pass
        for folder in {path.parent for path in self._written}:
            sync_folder(folder)

    def clean(self, locations: Iterable[str], damaged: Iterable[str]) -> None:
        """Remove the files in the metadata folders of tables that none of the tables refers to.

        ``locations`` are the metadata files of all tables; one table may be there by two names.
        ``damaged`` are those of tables that were not moved, whose folders stay as they are. So do
        those of tables that cannot be read: whoever reads one is told, and the others are usable.
        """
        used: set[str] = set()
        folders: set[str] = set()
        left = list(damaged)
        for location in locations:
            found = LakePaths.of(location, self._here)
            if found is not None:
                folders.add(found[1].rpartition("/")[0])
                try:
                    used.update(self._used(*found))
                except (FlussError, OSError, *NOT_AS_WRITTEN) as error:
                    logger.warning("%s keeps all files beside it: %s", found[1], error)
                    left.append(location)
        for location in left:
            found = LakePaths.of(location, self._here)
            if found is not None:
                folders.discard(found[1].rpartition("/")[0])
        for path in self._replaced:
            path.unlink(missing_ok=True)
        for folder in folders:
            for name in os.listdir(self._here / folder):
                if name.endswith((".avro", _METADATA)) and f"{folder}/{name}" not in used:
                    (self._here / folder / name).unlink(missing_ok=True)

    def _used(self, paths: LakePaths, below: str) -> Iterator[str]:
        """Iterate over the files of metadata that a table refers to."""
        metadata = read_metadata(self._data(below), below)
        logged = [str(one["metadata-file"]) for one in metadata.get("metadata-log", [])]
        lists = [str(snapshot["manifest-list"]) for snapshot in metadata.get("snapshots", [])]
        yield below
        for path in (*logged, *lists):
            at = paths.relative(path)
            if at is not None:
                yield at
        for path in lists:
            at = paths.relative(path)
            if at is not None:
                for listed in manifests(AvroRows.read(self._data(at), at)):
                    yield paths.relative(listed.path) or listed.path

    def _data(self, below: str) -> bytes:
        return read_file(self._here / below)


def _moved(value: Any, paths: LakePaths) -> Any:
    """Return a part of a table's metadata with other paths."""
    if isinstance(value, dict):
        return {key: _moved(each, paths) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, paths) for each in value]
    return paths.moved(value) if isinstance(value, str) else value


def _positions_moved(data: bytes, below: str, paths: LakePaths) -> bytes:
    try:
        table = pq.read_table(pa.BufferReader(data))
        at = table.schema.get_field_index("file_path")
        field = table.schema.field(at)
        old = table.column(at).unique().to_pylist()
    except (pa.ArrowException, IndexError, OSError) as error:
        raise DamagedError(f"{below} is damaged: {error}") from error
    names = {path: paths.moved(path) for path in old}
    column = table.column(at).to_pylist()
    moved = pa.array([names[path] for path in column], field.type)
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, field, moved), sink, compression="zstd")
    return bytes(sink.getvalue())


def _replace_catalog(catalog: Path, moved: dict[Key, str], all_paths: Iterable[LakePaths]) -> None:
    """Put a catalog with other places in place of one that stays as it is to who reads it.

    A copy, as links may lead to the old one from elsewhere.
    """
    with (
        replacing(catalog) as new,
        contextlib.closing(sqlite3.connect(catalog)) as old,
        contextlib.closing(sqlite3.connect(new)) as database,
    ):
        old.backup(database)
        database.executemany(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = NULL"
            " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            [(at, *key) for key, at in moved.items()],
        )
        for paths in all_paths:
            _move_namespaces(database, paths)
        database.commit()


def _move_namespaces(database: sqlite3.Connection, paths: LakePaths) -> None:
    found: Iterable[tuple[int, str]] = database.execute(
        "SELECT rowid, property_value FROM iceberg_namespace_properties"
        " WHERE property_value IS NOT NULL"
    ).fetchall()
    changed = [(paths.moved(value), row) for row, value in found if paths.relative(value)]
    database.executemany(
        "UPDATE iceberg_namespace_properties SET property_value = ? WHERE rowid = ?", changed
    )
