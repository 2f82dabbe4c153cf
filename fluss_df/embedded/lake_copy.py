"""Copies of lake tables for backups, and lake tables that a backup put into a folder.

A backup has no catalog: SQLite's files are not for bytes that others may have made. It has a list
of the tables, from which a catalog is made when the folder is opened.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog

from fluss_df.embedded.lake_move import CATALOG_FILE, Key, catalog_rows
from fluss_df.embedded.lake_paths import (
    WAREHOUSE,
    AvroRows,
    LakePaths,
    manifests,
    read_manifest,
    read_metadata,
    require_inside,
    used_snapshots,
)
from fluss_df.embedded.lake_sums import Sum, Sums, lines_of, live_files, sum_of
from fluss_df.engine.files.files import (
    NOT_AS_WRITTEN,
    DamagedError,
    read_bytes,
    sync_folder,
)
from fluss_df.engine.lake.lake_tables import LAKE_TABLES, LakeTableCopy, PinnedTable

_COPIES: Final = "copies-"
_CATALOG: Final = "fluss-iceberg-catalog"
_TRIES: Final = 5
_NO_LINKS: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)
_METADATA: Final = re.compile(
    rf"{WAREHOUSE}(/[A-Za-z0-9_=%+,@~-][A-Za-z0-9._=%+,@~-]*)+/metadata/"
    r"[A-Za-z0-9][A-Za-z0-9._-]*\.metadata\.json",
    re.ASCII,
)


@contextlib.contextmanager
def copied_tables(
    lake: Path, pinned: Iterable[PinnedTable], there: Callable[[int], bool]
) -> Iterator[dict[int, LakeTableCopy]]:
    """Give the files of lake tables as they are now, by links that stay until the end.

    Parameters
    ----------
    lake
        The folder of the lake.
    pinned
        The tables, and the snapshots that must be in the copies.
    there
        Whether a table, by its id, was not dropped meanwhile.

    Raises
    ------
    DamagedError
        Where a file is missing or damaged.
    """
    copies = Path(tempfile.mkdtemp(prefix=_COPIES, dir=lake))
    try:
        found = {}
        for table in pinned:
            made = _copied(lake, table, copies / str(table.id), there)
            if made is not None:
                found[table.id] = made
        yield found
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _copied(
    lake: Path, table: PinnedTable, copies: Path, there: Callable[[int], bool]
) -> LakeTableCopy | None:
    for left in reversed(range(_TRIES)):
        try:
            return _copy(lake, table, copies)
        except (FileNotFoundError, DamagedError) as error:
            if not there(table.id):
                return None
            # the newest metadata may have been replaced, and removed, meanwhile
            if not left:
                text = error.message if isinstance(error, DamagedError) else str(error)
                raise DamagedError(f"lake table {table.path}: {text}") from error
    return None


def _copy(lake: Path, table: PinnedTable, copies: Path) -> LakeTableCopy:
    name = (table.path.database_name, table.path.table_name)
    location = catalog_rows(lake / CATALOG_FILE).get((_CATALOG, *name))
    found = None if location is None else LakePaths.of(location, lake)
    if found is None:
        raise DamagedError("it is not in the catalog")
    paths, below = found
    metadata = _trimmed(read_metadata((lake / below).read_bytes(), below), table.snapshot)
    if table.snapshot is not None and table.snapshot not in _ids(metadata):
        raise DamagedError(f"it has no snapshot {table.snapshot}, which Fluss reads")
    if metadata.get("format-version") == 1 or not _METADATA.fullmatch(below):
        raise DamagedError(f"its metadata {below} is not one that the embedded engine made")
    shutil.rmtree(copies, ignore_errors=True)
    files: dict[str, Path] = {}

    def add(at: str) -> Path:
        if at not in files:
            files[at] = copies / at
            _link(lake / at, files[at])
        return files[at]

    for other in (*metadata.get("statistics", []), *metadata.get("partition-statistics", [])):
        at = paths.relative(str(other["statistics-path"]))
        if at is not None:
            add(at)
    for snapshot in metadata.get("snapshots", []):
        listed = paths.relative(str(snapshot["manifest-list"]))
        if listed is None:
            continue
        for manifest in manifests(AvroRows.read(add(listed).read_bytes(), listed)):
            at = paths.relative(manifest.path)
            if at is None or at in files:
                continue
            for file in live_files(read_manifest(add(at).read_bytes(), at, manifest)):
                part = paths.relative(file.path)
                if part is not None:
                    add(part)
    body = json.dumps(metadata).encode()
    # it is not compressed, whatever the original is
    below = re.sub(r"\.gz(?=\.metadata\.json$)", "", below)
    sums = Sums.of(lake, *name)
    known: dict[str, Sum] = {at: sums.files[at] for at in files if at in sums.files}
    known[below] = sum_of(body)
    return LakeTableCopy(
        {"database": name[0], "name": name[1], "metadata": below},
        {below: body, f"checksums/{name[0]}/{name[1]}": lines_of(known, ())},
        files,
    )


def _ids(metadata: dict[str, Any]) -> set[int]:
    return {int(one["snapshot-id"]) for one in metadata.get("snapshots", [])}


def _trimmed(metadata: dict[str, Any], known: int | None) -> dict[str, Any]:
    """Return metadata with the snapshots that are in use alone: others have files of their own."""
    used = set(used_snapshots(metadata, known))
    made = {**metadata, "metadata-log": []}
    for part in ("snapshots", "snapshot-log", "statistics", "partition-statistics"):
        if part in made:
            made[part] = [one for one in made[part] if int(one["snapshot-id"]) in used]
    return made


def _link(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(old, new)


# ---- tables that a backup had


def pending_rows(lake: Path) -> dict[Key, str] | None:
    """Return the tables that a backup put into a lake; None where there is no list of them.

    Raises
    ------
    DamagedError
        Where it is not one that a backup has.
    """
    data = read_bytes(lake / LAKE_TABLES)
    if data is None:
        return None
    rows = {}
    try:
        for row in json.loads(data):
            database, name, below = str(row["database"]), str(row["name"]), str(row["metadata"])
            if not (_NAME.fullmatch(database) and _NAME.fullmatch(name)):
                raise ValueError(f"{database!r}.{name!r} is no name of a table")
            if not _METADATA.fullmatch(below):
                raise ValueError(f"{below!r} is no metadata of a table")
            rows[_CATALOG, database, name] = _made_at(lake, below)
    except NOT_AS_WRITTEN as error:
        raise DamagedError(f"{LAKE_TABLES} is damaged: {error!r}") from error
    return rows


def _made_at(lake: Path, below: str) -> str:
    """Return the path of a table's metadata where it was made."""
    try:
        data = (lake / below).read_bytes()
    except FileNotFoundError:
        return f"file://{lake}/{below}"  # it is said to be missing by who reads it
    metadata = read_metadata(data, below)
    location = str(metadata["location"])
    table = below.rpartition("/metadata/")[0]
    if not location.startswith("file:///") or not location.endswith(f"/{table}"):
        raise DamagedError(f"{below} is that of a table at {location}")
    made = location.removesuffix(f"/{table}").removeprefix("file://")
    require_inside(metadata, LakePaths(made, lake))
    return f"file://{made}/{below}"


def register_pending(lake: Path) -> bool:
    """Make the catalog of a lake that a backup put into a folder; whether there was one."""
    rows = pending_rows(lake)
    if rows is None:
        return False
    new = lake / f"{CATALOG_FILE}.tmp"
    for left in (new, new.with_name(f"{new.name}-journal")):
        left.unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    catalog = SqlCatalog(_CATALOG, uri=f"sqlite:///{new}", warehouse=f"file://{lake}/{WAREHOUSE}")
    for database in {key[1] for key in rows}:
        catalog.create_namespace_if_not_exists(database)
    catalog.close()
    with contextlib.closing(sqlite3.connect(new)) as connection:
        connection.executemany(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name,"
            " metadata_location, iceberg_type) VALUES (?, ?, ?, ?, 'TABLE')",
            [(*key, at) for key, at in rows.items()],
        )
        connection.commit()
    fd = os.open(new, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, lake / CATALOG_FILE)
    sync_folder(lake)
    (lake / LAKE_TABLES).unlink()
    return True
