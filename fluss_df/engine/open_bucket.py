"""A bucket that is open, and the loader that opens it from its folder."""

from __future__ import annotations

import asyncio
import functools
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fluss_df.engine.catalog.catalog import Catalog
from fluss_df.engine.engine_counters import EngineCounters
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.files.files import refused_by
from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.kv.kv_store import KvResources
from fluss_df.engine.kv.kv_tablet import KvTablet
from fluss_df.engine.kv.store_folders import store_folder
from fluss_df.engine.log.synced_point import BucketIds
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.tables.buckets import java_name
from fluss_df.engine.used_buckets import UsedBuckets, missing
from fluss_df.hooks import undoing
from fluss_df.metadata import TableBucket

# Files that an open bucket has. Log: the newest segment, its memory map, and the file ``synced``.
# RocksDB: those that it always has open, and some files of rows.
_LOG_FILES: Final = 3
_KV_FILES: Final = 13


@dataclass(slots=True)
class OpenBucket:
    """A bucket that is open, with its sync under way and the readers that wait for new rows.

    ``syncing`` and ``readers`` are used by the event loop alone.
    """

    tablet: Tablet
    counters: EngineCounters
    kv: KvTablet | None = None
    syncing: asyncio.Task[None] | None = None
    readers: set[asyncio.Event] = field(default_factory=set)

    @property
    def files(self) -> int:
        """About how many files the bucket has open while it is used."""
        return _LOG_FILES if self.kv is None else _LOG_FILES + _KV_FILES

    def release_files(self) -> bool:
        """Close the files until they are needed, unless they are in use; return whether it did."""
        return (self.kv or self.tablet).release_files()

    @property
    def durable_offset(self) -> int:
        """The offset up to which writes may be acknowledged."""
        return self.tablet.synced_offset if self.kv is None else self.kv.applied

    @property
    def dirty(self) -> bool:
        """Whether batches are not synced yet, or changes are not in RocksDB yet."""
        return self.tablet.dirty or (self.kv is not None and self.kv.pending)

    def wake(self) -> None:
        """Wake the readers that wait for new rows."""
        for event in self.readers:
            event.set()

    def sync(self) -> None:
        """Sync the log, then write the synced changes to RocksDB; counted as one flush."""
        began = time.monotonic()
        failed = True
        try:
            self.tablet.sync()
            if self.kv is not None:
                self.kv.apply()
            failed = False
        finally:
            kind = "log" if self.kv is None else "kv"
            self.counters.flushes.add(kind, time.monotonic() - began, failed)

    def close(self) -> None:
        """Sync and close; the log first, since RocksDB gets only changes that are synced."""
        try:
            self.tablet.close()
        finally:
            if self.kv is not None:
                self.kv.close()

    def remove_log(self) -> None:
        """Close the log, and remove its files: the bucket was dropped.

        Before RocksDB is closed, for which there may be no room on the disk without.
        """
        self.tablet.abandon()
        shutil.rmtree(self.tablet.folder, ignore_errors=True)

    def abandon(self) -> None:
        """Close at once: the bucket was dropped."""
        self.tablet.abandon()
        if self.kv is not None:
            self.kv.abandon()


class Opening:
    """A bucket that a thread is opening.

    ``done`` is set when opening is over: the bucket is open, could not be opened, or was closed
    again. ``dropped`` says whether the bucket was dropped meanwhile, so that it is closed at once.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self.dropped = False


class BucketLoader:
    """Opens buckets, each from its folder; thread safe."""

    def __init__(
        self,
        settings: EngineOptions,
        catalog: Catalog,
        used: UsedBuckets,
        lock: FolderLock,
        end_scans: Callable[[Callable[[TableBucket], bool]], None],
        counters: EngineCounters,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._used = used
        self._folder_lock = lock
        self._end_scans = end_scans
        self._counters = counters
        self._lock = threading.Lock()
        self._resources: KvResources | None = None

    def open(self, bucket: TableBucket, folder: Path) -> OpenBucket:
        """Open a bucket.

        Raises FlussError as :meth:`Engine.bucket`.
        """
        with refused_by(f"cannot open {java_name(bucket)}", folder):
            opened = self._load(bucket, folder)
        return opened

    def _load(self, bucket: TableBucket, folder: Path) -> OpenBucket:
        owner = BucketIds.of(bucket)
        used = self._used.has(owner)
        if used and not folder.exists():
            # a partition that is being dropped leaves the catalog before its folder goes: then this
            # raises the error for an unknown bucket
            self._catalog.table_of(bucket)
            raise missing(java_name(bucket), folder)
        synced = self._settings.durability == "commit"
        tablet = Tablet(
            folder / "log",
            java_name(bucket),
            segment_bytes=self._settings.segment_bytes,
            visible_when_synced=synced,
            owner=owner,
            used=used,
            before_first=functools.partial(self._used.note, owner),
            end_scans=lambda: self._end_scans(lambda other: other == bucket),
        )
        table = self._catalog.table_by_id(bucket.table_id)
        if table is None or not table.has_primary_key:
            return OpenBucket(tablet, self._counters)
        with self._lock:
            if self._resources is None:
                self._resources = KvResources(self._folder_lock)
        with undoing(tablet.abandon):
            reserve = functools.partial(self._catalog.sequence_range, table)
            kv = KvTablet(
                store_folder(folder),
                tablet,
                table,
                self._resources,
                reserve,
                visible_when_synced=synced,
                most_bytes=self._settings.answer_bytes,
            )
        return OpenBucket(tablet, self._counters, kv)
