"""The sizes of an engine's tables, computed when metrics are read."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from fluss_df.engine.engine import Engine
from fluss_df.engine.kv.kv_store import StoreWork
from fluss_df.metadata import TableBucket
from fluss_df.observe.counters import OTHER


class LogSizes:
    """The bytes of logs, by table.

    Logs in use know their sizes. Of the others, which do not change, the files are looked at once.
    """

    def __init__(self) -> None:
        self._at_rest: weakref.WeakKeyDictionary[Engine, dict[TableBucket, int]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, engine: Engine, label: Callable[[str], str]) -> dict[str, int]:
        """Return the bytes by label; ``label`` returns the label of a table by its name.

        Tables without a label of their own may be very many: of these, logs that are not in use are
        left out.
        """
        before = self._at_rest.get(engine, {})
        at_rest: dict[TableBucket, int] = {}
        sizes: dict[str, int] = {}
        opened = engine.open_buckets()
        paths = {table.id: str(table.path) for table in engine.catalog.all_tables()}
        for bucket, in_use in opened.items():
            if bucket.table_id in paths:
                name = label(paths[bucket.table_id])
                sizes[name] = sizes.get(name, 0) + in_use.tablet.size
        for table in engine.catalog.all_tables():
            name = label(str(table.path))
            if name == OTHER:
                continue
            sizes.setdefault(name, 0)
            parts: list[int | None] = [None]
            if table.partitioned:
                parts = [partition.id for partition in list(table.partitions.values())]
            for part in parts:
                for number in range(table.buckets):
                    bucket = TableBucket(table.id, number, part)
                    if bucket in opened:
                        continue
                    size = before.get(bucket)
                    if size is None:
                        size = _files_in(engine.bucket_folder(bucket) / "log")
                    if size:
                        # not noted where there are no files yet, because some may come
                        at_rest[bucket] = size
                    sizes[name] += size
        self._at_rest[engine] = at_rest
        return sizes


def kv_work(engine: Engine) -> Iterator[tuple[str, StoreWork]]:
    """Iterate over the primary-key tables' buckets in use: the table, and what RocksDB does."""
    paths = {table.id: str(table.path) for table in engine.catalog.all_tables()}
    for bucket, in_use in engine.open_buckets().items():
        if in_use.kv is not None and bucket.table_id in paths:
            yield paths[bucket.table_id], in_use.kv.work()


def _files_in(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                size += entry.stat().st_size
    return size
