"""The buckets that have a folder on the disk, whatever the register of their table says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.files.files import names_in
from fluss_df.engine.log.segment import segment_file, segment_offsets
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.tables.tables import Table


def enter_buckets(files: CatalogFiles, tables: Iterable[Table]) -> None:
    """Enter the buckets that have rows in the registers of their tables.

    Raises FlussError when the disk refuses.
    """
    for table in tables:
        register = files.register(table.id)
        for owner, folder in buckets_on_disk(files, table):
            log = folder / "log"
            bases = segment_offsets(log)
            if any(base or segment_file(log, base).stat().st_size for base in bases):
                register.add(owner)


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
