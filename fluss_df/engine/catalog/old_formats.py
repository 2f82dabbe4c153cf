"""Converts folders of formats 1 and 2 to the current format when they are opened."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.files.files import DamagedError, names_in, read_bytes, write_atomically
from fluss_df.engine.log.segment import segment_file, segment_offsets
from fluss_df.engine.log.synced_point import (
    POINT_FILE,
    BucketIds,
    FoundPoint,
    SyncedPoint,
    find_point,
    first_file,
)
from fluss_df.engine.tables.tables import Table

logger = logging.getLogger(__name__)


def convert_old_format(files: CatalogFiles, tables: Iterable[Table]) -> None:
    """Enter the buckets that have rows in the register, and write the file ``synced`` of each log.

    A second call changes nothing, nor does a call for a folder of the current format.

    Raises FlussError when the disk refuses.
    """
    for table in tables:
        register = files.register(table.id)
        for owner, folder in buckets_on_disk(files, table):
            log = folder / "log"
            bases = segment_offsets(log)
            if any(base or segment_file(log, base).stat().st_size for base in bases):
                register.add(owner)
            point = old_point(log, owner).point
            if bases and point is not None and point.owner is None:
                end = point.end_offset, point.segment, point.position
                made = SyncedPoint(owner, bases[0], *end, None)
                write_atomically(log / POINT_FILE, first_file(made))


def old_point(log: Path, owner: BucketIds) -> FoundPoint:
    """Read the file ``synced`` of a log in a folder of format 1 or 2.

    In these formats a loss of power could take the file away, so that a missing file is no damage:
    the log is then read from its first segment on.
    """
    found = find_point(log, owner)
    bases = segment_offsets(log)
    if found.point is not None or not bases or _is_of_this_format(log):
        return found
    return replace(found, problem=None, point=SyncedPoint(None, 0, bases[0], bases[0], 0, None))


def _is_of_this_format(log: Path) -> bool:
    try:
        return b"FDFSYNC2" in (read_bytes(log / POINT_FILE) or b"")
    except DamagedError:
        return False


def buckets_on_disk(files: CatalogFiles, table: Table) -> list[tuple[BucketIds, Path]]:
    """Return the buckets of a table that have a folder, by partition and bucket."""
    parts = {-1: "table"}
    if table.partitioned:
        parts = {partition.id: str(partition.id) for partition in table.partitions.values()}
    found = []
    for number, name in sorted(parts.items()):
        part = files.data_folder(table.id) / name
        names = names_in(part)
        numbers = sorted({int(each) for each in names if each.isdecimal() and each.isascii()})
        found += [
            (BucketIds(table.id, number, bucket), part / str(bucket))
            for bucket in numbers
            if bucket < table.buckets and str(bucket) in names
        ]
    return found
