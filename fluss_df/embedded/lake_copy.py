"""Copies of lake tables for backups: the files of the snapshots that are in use, by links."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from fluss_df.embedded.lake_catalog import METADATA
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
from fluss_df.embedded.lake_sums import Sum, Sums, lines_of, live_files, sum_of
from fluss_df.engine.files.files import DamagedError, refused_by
from fluss_df.engine.lake.lake_tables import LakeTableCopy, PinnedTable

_COPIES: Final = "copies-"
_TRIES: Final = 5
_NO_LINKS: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


@contextlib.contextmanager
def copied_tables(
    lake: Path, pinned: Iterable[PinnedTable], there: Callable[[int], bool]
) -> Iterator[dict[int, LakeTableCopy]]:
    """Yield hard links to the current files of lake tables; they are deleted when the block ends.

    The snapshots of ``pinned`` must be in the copies. ``there`` returns whether the table with an
    id still exists.

    Raises DamagedError where a file is missing or damaged, ``STORAGE_EXCEPTION`` or another
    FlussError where the lake's disk refuses.
    """
    # named with the folder of the lake, whose disk need not be that of the backup
    with refused_by("cannot make a folder for links to files of the lake", lake):
        copies = Path(tempfile.mkdtemp(prefix=_COPIES, dir=lake))
    try:
        found = {}
        for table in pinned:
            with refused_by(f"cannot copy lake table {table.path}", lake):
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
    location = catalog_rows(lake / CATALOG_FILE).get((CATALOG, *name))
    found = None if location is None else LakePaths.of(location, lake)
    if found is None:
        raise DamagedError("it is not in the catalog")
    paths, below = found
    metadata = _trimmed(read_metadata(read_file(lake / below), below), table.snapshot)
    if table.snapshot is not None and table.snapshot not in _ids(metadata):
        raise DamagedError(f"it has no snapshot {table.snapshot}, which Fluss reads")
    if metadata.get("format-version") == 1 or not METADATA.fullmatch(below):
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
        for manifest in manifests(AvroRows.read(read_file(add(listed)), listed)):
            at = paths.relative(manifest.path)
            if at is None or at in files:
                continue
            for file in live_files(read_manifest(read_file(add(at)), at, manifest)):
                part = paths.relative(file.path)
                if part is not None:
                    add(part)
    body = json.dumps(metadata).encode()
    # the copy of the metadata is not compressed: drop .gz from its name
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
    """Return metadata without the snapshots that nobody uses, whose files are not copied."""
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
