"""The lake of one table: what clients are told of it, and which part of a log may expire."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from fluss_df.engine.lake.lake_tables import LakeTables
from fluss_df.engine.tables import options
from fluss_df.engine.tables.tables import Table, TableVersion
from fluss_df.metadata import TableBucket
from fluss_df.schema import TableDescriptor, descriptor_with


def has_lake(table: Table | TableVersion) -> bool:
    """Return whether a table is tiered into the lake of the folder."""
    return options.boolean(table.descriptor.properties, options.DATALAKE_ENABLED)


def shown(table: TableVersion, lake: LakeTables | None) -> TableDescriptor:
    """Return what clients are told of a table: with the place of the lake, where it has one."""
    descriptor = table.descriptor
    if lake is None or not has_lake(table):
        return descriptor
    return descriptor_with(descriptor, properties={**descriptor.properties, **lake.properties()})


class TieredLogs:
    """Which part of a log may expire, as the lake has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let nothing expire that a lake has: a backup has an older snapshot."""
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1

    def end(self, table: Table | None, bucket: TableBucket) -> int | None:
        """Return where the rows of a bucket begin that its lake lacks; None without a lake."""
        if table is None or not has_lake(table):
            return None
        # read before _held: a backup holds the logs first, and asks for the offsets afterwards
        snapshot = table.lake.get("snapshot", {})
        if not self._held:
            for partition, number, offset in snapshot.get("offsets", []):
                if (partition, number) == (bucket.partition_id, bucket.bucket_id):
                    return int(offset)
        return 0
