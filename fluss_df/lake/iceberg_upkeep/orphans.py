"""Removes files of lake tables that no snapshot has: those of rounds that were killed."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO

from fluss_df.lake.iceberg_upkeep.files import delete_files, may_delete, normal, snapshot_paths

if TYPE_CHECKING:
    from pyiceberg.table import Table

logger = logging.getLogger("fluss_df.lake.tiering")

# what tiering services and catalogs write; a hint of Hadoop's catalogs is not among them
_OURS: Final = re.compile(r"\.parquet$|\.avro$|\.metadata\.json(\.gz)?$|\.gz\.metadata\.json$")


def remove_orphans(table: Table, age_s: float, now_s: float | None = None) -> int:
    """Delete the files in the folder of a table that nothing refers to; return how many.

    Files younger than ``age_s`` seconds stay, because a service writes files before it commits
    them. ``now_s`` is the time in seconds since 1970; None takes the clock's.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO) or not may_delete(table):
        return 0
    before = (time.time() if now_s is None else now_s) - age_s

    def place(path: str) -> str:
        return normal(str(io.parse_location(path, io.properties)[2]))

    metadata = table.metadata
    used = snapshot_paths(table, metadata.snapshots)
    used.add(table.metadata_location)
    used.update(entry.metadata_file for entry in metadata.metadata_log)
    used.update(one.statistics_path for one in metadata.statistics)
    used.update(one.statistics_path for one in metadata.partition_statistics)
    kept = {place(path) for path in used}
    scheme, netloc, root = io.parse_location(table.location().rstrip("/"), io.properties)
    files = io.fs_by_scheme(scheme, netloc)
    prefix = f"{scheme}://{netloc}" if netloc else f"{scheme}://"
    orphans = []
    found: set[str] = set()
    for part in ("data", "metadata"):
        selector = pafs.FileSelector(f"{root}/{part}", allow_not_found=True, recursive=True)
        for info in files.get_file_info(selector):
            written = info.mtime_ns
            found.add(normal(info.path))
            if (
                info.type is pafs.FileType.File
                and normal(info.path) not in kept
                and _OURS.search(info.path)
                and written is not None
                and written / 1e9 < before
            ):
                # the place of a file in a bucket begins with the name of the bucket
                path = info.path.removeprefix(f"{netloc}/") if netloc else info.path
                orphans.append(f"{prefix}/{path.lstrip('/')}")
    if place(table.metadata_location) not in found:
        logger.warning(
            "table %s: files of no snapshot are kept: its metadata is not among the files at %s",
            ".".join(table.name()),
            table.location(),
        )
        return 0
    return delete_files(table, orphans)
