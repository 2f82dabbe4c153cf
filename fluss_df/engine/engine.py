"""A folder and its one owner: the catalog, the buckets, and what happens to them in the background.

Buckets are opened when they are first used. Writes are synced in groups: while one sync of a bucket
runs, further requests are written, and the next sync covers all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from fluss_df.engine.access.acl_store import AclStore
from fluss_df.engine.background import check_for_ever, sync_for_ever, watch_folder
from fluss_df.engine.catalog.catalog import Catalog
from fluss_df.engine.catalog.catalog_files import CatalogFiles
from fluss_df.engine.catalog.cluster_state import ClusterState
from fluss_df.engine.catalog.old_formats import convert_old_format
from fluss_df.engine.engine_counters import EngineCounters
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.files.files import CHECKSUMS_SINCE, FORMAT, TooManyFilesError, refused_by
from fluss_df.engine.files.open_files import OpenFiles, allow_files
from fluss_df.engine.files.ownership import FolderLock, FolderLostError
from fluss_df.engine.files.private_files import make_private
from fluss_df.engine.files.workers import Workers
from fluss_df.engine.group_commit import synced_to
from fluss_df.engine.kv.kv_tablet import KvTablet
from fluss_df.engine.lake.lake_of_table import TieredLogs, has_lake
from fluss_df.engine.lake.lake_tables import LakeTables
from fluss_df.engine.log.retention import may_expire
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.open_bucket import BucketLoader, OpenBucket, Opening
from fluss_df.engine.tables import options
from fluss_df.engine.tables.buckets import java_name, unknown_bucket
from fluss_df.engine.tables.tables import Partition, Table, now_ms
from fluss_df.engine.used_buckets import UsedBuckets
from fluss_df.engine.write_turns import WriteTurns
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing
from fluss_df.metadata import TableBucket

logger = logging.getLogger(__name__)

T = TypeVar("T")

# the folder for copies of RocksDB while a backup is written
COPIES: Final = ".backup-copies"
# buckets that are opened at once: each may have to make rows again, some megabytes at a time
_OPENED_AT_ONCE: Final = 4


class Engine:
    """The owner of a folder.

    Raises ``STORAGE_EXCEPTION`` when another process has the folder, or it cannot be read.
    """

    def __init__(self, folder: Path, settings: EngineOptions | None = None) -> None:
        self.folder = folder
        self.settings = settings or EngineOptions()
        self.counters = EngineCounters()
        # guards what is open; never held while files are read, as the event loop may wait for it
        self._lock = threading.RLock()
        self._open: dict[TableBucket, OpenBucket] = {}
        self._opening: dict[TableBucket, Opening] = {}
        self._may_open = threading.BoundedSemaphore(_OPENED_AT_ONCE)
        self._files: OpenFiles[TableBucket] = OpenFiles(
            self.settings.open_files or allow_files() // 2
        )
        self._closed = False
        self.lock = FolderLock(folder)
        with undoing(self.lock.release), refused_by("cannot open the folder", folder):
            make_private(folder)
            self._catalog_files = CatalogFiles(
                folder, plain=self.lock.format < CHECKSUMS_SINCE, before_change=self.lock.verify
            )
            self.catalog = Catalog(self._catalog_files, self.settings.default_buckets)
            files = self._catalog_files
            self.cluster = ClusterState(files.cluster(), files.cluster_changes())
            self.acls = AclStore(files.acls())
            for part in folder.iterdir():
                # earlier versions, and users by hand, made them readable for others
                if part.is_dir() and not part.is_symlink():
                    make_private(part)
            if self.lock.format < FORMAT:
                convert_old_format(self._catalog_files, self.catalog.all_tables())
                # now that every small file is written as this version does
                self.lock.write_format()
            self._tidy()
            self._used = UsedBuckets(self._catalog_files, self.catalog)
        self.workers = Workers(8)
        self._large_requests = Workers(1)
        self.turns = WriteTurns()
        self._loader = BucketLoader(
            self.settings, self.catalog, self._used, self.lock, self._end_scans, self.counters
        )
        # set by whoever opens the folder, where it is to have a lake
        self.lake: LakeTables | None = None
        self.tiered = TieredLogs()
        # held while segments are removed, and while those of a bucket have to stay for a moment
        self.expiring = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._at_closing: list[Callable[[], None]] = []
        self._at_checks: list[Callable[[], None]] = []
        self._at_ends: list[Callable[[Callable[[TableBucket], bool]], None]] = []

    def _tidy(self) -> None:
        """Remove what is left of dropped tables and partitions; set aside what is not known."""
        files = self._catalog_files
        shutil.rmtree(self.folder / COPIES, ignore_errors=True)
        files.remove_dropped()
        tables = {table.id: table for table in self.catalog.all_tables()}
        for part in list(files.unknown(tables)):
            files.set_aside(part)
        for table in tables.values():
            known = {str(p.id) for p in table.partitions.values()}
            known |= set() if table.partitioned else {"table"}
            removed = {each for each in table.dropped if files.remove_partition(table.id, each)}
            self.catalog.forget_dropped(table, removed)
            known |= {str(each) for each in table.dropped}
            for part in list(files.unknown_partitions(table.id, known)):
                files.set_aside(part)

    # ---- buckets

    def bucket(self, bucket: TableBucket) -> tuple[Table, Tablet]:
        """Return a bucket and its table; opens it.

        Raises ``UNKNOWN_TABLE_OR_BUCKET_EXCEPTION`` where there is none, ``STORAGE_EXCEPTION``
        where its data is damaged.
        """
        return self.catalog.table_of(bucket), self._opened(bucket).tablet

    def are_open(self, buckets: Iterable[TableBucket]) -> bool:
        """Return whether buckets need not be opened to answer for them: in use, or empty."""
        return not self.having_folders([each for each in buckets if each not in self._open])

    def having_folders(self, buckets: Iterable[TableBucket]) -> set[TableBucket]:
        """Return the buckets that have a folder, or should have one."""
        return self._used.having_folders(buckets, self._folder_of)

    def log_bounds(
        self, bucket: TableBucket, having_folders: Container[TableBucket] | None = None
    ) -> tuple[int, int]:
        """Return the first offset of a bucket's log, and the one behind the last visible record.

        No file is opened for a bucket that is known, or that nobody has written to. A caller that
        asks for several buckets passes what :meth:`having_folders` says of them all.

        Raises FlussError as :meth:`bucket`.
        """
        self.catalog.table_of(bucket)
        self._require_open()
        if bucket not in self._open:
            known = self.having_folders((bucket,)) if having_folders is None else having_folders
            if bucket not in known:
                return 0, 0
        tablet = self._opened(bucket, files=False).tablet
        return tablet.start_offset, tablet.high_watermark

    def kv_bucket(self, bucket: TableBucket, *, scans: bool = False) -> tuple[Table, KvTablet]:
        """Return a bucket of a primary-key table, and the table; opens it.

        ``scans`` says that the bucket is to be scanned only. A small one that gave its files back
        does not take them again for that.

        Raises FlussError as :meth:`bucket`; ``NON_PRIMARY_KEY_TABLE_EXCEPTION`` for a log table.
        """
        table = self.catalog.table_of(bucket)
        opened = self._opened(bucket, files=not scans)
        kv = opened.kv
        if kv is None:
            raise FlussError(
                f"the primary key table not exists for {java_name(bucket)}",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        if scans and not kv.scans_at_rest:
            self._files.use(bucket, opened)
        return table, kv

    def _opened(self, bucket: TableBucket, *, files: bool = True) -> OpenBucket:
        """Return a bucket that is open; ``files`` says whether it is about to use its files."""
        found = None
        while found is None:
            with self._lock:
                self._require_open()
                self.lock.require()
                found = self._open.get(bucket)
                opening = None if found is not None else self._opening.get(bucket)
                first = found is None and opening is None
                if first:
                    opening = self._opening[bucket] = Opening()
            if opening is None:
                continue
            files = True
            with self.workers.aside():
                if first:
                    found = self._open_first(bucket, opening)
                else:
                    # where that fails, this thread tries it, too
                    opening.done.wait()
        if files:
            self._files.use(bucket, found)
            if self._open.get(bucket) is not found:
                self._files.forget(bucket)  # it was dropped meanwhile
        return found

    def _open_first(self, bucket: TableBucket, opening: Opening) -> OpenBucket:
        """Open a bucket; other threads that want it wait until that is done."""
        found = None
        try:
            with self._may_open:
                # raises where the bucket was dropped before it was known that this thread opens it
                self.catalog.table_of(bucket)
                self.lock.verify()
                try:
                    found = self._open_bucket(bucket)
                except TooManyFilesError:
                    # other parts of this process have more than their half of the files
                    self._files.rest_all()
                    found = self._open_bucket(bucket)
            with self._lock:
                wanted = not (opening.dropped or self._closed)
                if wanted:
                    self._open[bucket] = found
            if not wanted:
                found.abandon()
        finally:
            with self._lock:
                del self._opening[bucket]
            opening.done.set()
        if not wanted:
            self._require_open()
            self.lock.require()
            raise unknown_bucket(java_name(bucket))
        return found

    def _require_open(self) -> None:
        if self._closed:
            raise FlussError("the engine is closed", ErrorCode.NETWORK_EXCEPTION)

    def _open_bucket(self, bucket: TableBucket) -> OpenBucket:
        return self._loader.open(bucket, self.bucket_folder(bucket))

    def _folder_of(self, bucket: TableBucket) -> Path:
        part = "table" if bucket.partition_id is None else str(bucket.partition_id)
        return self._catalog_files.data_folder(bucket.table_id) / part

    def bucket_folder(self, bucket: TableBucket) -> Path:
        """Return the folder of a bucket."""
        return self._folder_of(bucket) / str(bucket.bucket_id)

    def all_buckets(self) -> list[TableBucket]:
        """Return all buckets that were ever used, also where their folders are missing."""
        found = []
        for table in self.catalog.all_tables():
            parts: list[int | None] = [None]
            if table.partitioned:
                parts = [partition.id for partition in list(table.partitions.values())]
            buckets = [TableBucket(table.id, i, p) for p in parts for i in range(table.buckets)]
            there = self.having_folders(buckets)
            found += [bucket for bucket in buckets if bucket in there]
        return found

    def open_buckets(self) -> dict[TableBucket, OpenBucket]:
        """Return the buckets that are in use now."""
        with self._lock:
            return dict(self._open)

    def refusing_writes(self) -> int:
        """Return how many buckets take no more writes, as their disk failed."""
        with self._lock:
            return sum(opened.tablet.poisoned for opened in self._open.values())

    def drop_table(self, table: Table) -> None:
        """Remove the data of a table that was dropped from the catalog."""
        self._catalog_files.lead_to_dropped(table.id)
        self._drop(lambda bucket: bucket.table_id == table.id)
        self._catalog_files.remove_place(table.id)
        if self.lake is not None and has_lake(table):
            self.catalog.while_gone(table.path, self.lake.drop)
        self._used.forget(table.id)
        self._catalog_files.remove_dropped()

    def drop_partition(self, table: Table, partition: Partition) -> None:
        """Remove the data of a partition that was dropped from the catalog."""
        self._drop(lambda bucket: bucket.partition_id == partition.id)
        if self._catalog_files.remove_partition(table.id, partition.id):
            self.catalog.forget_dropped(table, {partition.id})

    def _drop(self, wanted: Callable[[TableBucket], bool], *, remove: bool = True) -> None:
        with self._lock:
            buckets = [bucket for bucket in self._open if wanted(bucket)]
            dropped = [self._open.pop(bucket) for bucket in buckets]
            for bucket in buckets:
                self._files.forget(bucket)
            opening = [entry for bucket, entry in self._opening.items() if wanted(bucket)]
            for entry in opening:
                entry.dropped = True
        self._end_scans(wanted)
        # their files are removed next
        with self.workers.aside():
            for entry in opening:
                entry.done.wait()
        for opened in dropped if remove else ():
            opened.remove_log()
        for opened in dropped:
            opened.abandon()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(opened.wake)

    def _end_scans(self, wanted: Callable[[TableBucket], bool]) -> None:
        for function in self._at_ends:
            function(wanted)

    # ---- on the event loop

    def start(self) -> None:
        """Begin the background work; called on the event loop that serves the engine."""
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        works = [
            check_for_ever(self.run, self._works),
            watch_folder(self.lock, lambda: self.run(self._give_up)),
        ]
        if self.settings.durability == "interval":
            works.append(sync_for_ever(self._open, self.run))
        self._tasks += map(asyncio.ensure_future, works)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run something that touches the disk on a worker thread."""
        return await asyncio.wrap_future(self.workers.submit(function, *args))

    async def run_large(self, function: Callable[..., T], *args: object) -> T:
        """Run a request of very many entries, one at a time: others have the threads meanwhile."""
        return await asyncio.wrap_future(self._large_requests.submit(function, *args))

    async def acknowledged(self, bucket: TableBucket, end_offset: int) -> None:
        """Wait until a bucket is as durable as the settings ask, up to an offset.

        Raises ``STORAGE_EXCEPTION`` when the disk refused.
        """
        opened = self._open.get(bucket)
        if opened is None:
            self._require_open()
            self.lock.require()
            raise unknown_bucket(java_name(bucket))
        if self.settings.durability != "commit" or opened.durable_offset >= end_offset:
            self.lock.verify()
            opened.wake()
            return
        await synced_to(opened, end_offset, self.run)
        self.lock.verify()

    @contextlib.contextmanager
    def watching(self, buckets: Iterable[TableBucket], event: asyncio.Event) -> Iterator[None]:
        """Have an event set whenever one of some buckets has something new for readers."""
        # buckets that could not be opened, or were dropped, are answered at once
        found = map(self._open.get, buckets)
        watched = [opened for opened in found if opened is not None]
        for opened in watched:
            opened.readers.add(event)
        try:
            yield
        finally:
            for opened in watched:
                opened.readers.discard(event)

    def before_closing(self, function: Callable[[], None]) -> None:
        """Have a function called before buckets are closed: to let go of what uses them."""
        self._at_closing.append(function)

    def at_checks(self, function: Callable[[], None]) -> None:
        """Have a function called once a minute, on a worker thread."""
        self._at_checks.append(function)

    def before_ends(self, function: Callable[[Callable[[TableBucket], bool]], None]) -> None:
        """Have a function called before buckets are dropped, or their rows opened again.

        It is given which ones, and lets go of what uses them.
        """
        self._at_ends.append(function)

    def _works(self) -> list[Callable[[], object]]:
        return [self.expire, self.cluster.expire, *self._at_checks]

    def _begin_closing(self) -> None:
        for function in self._at_closing:
            function()

    def _give_up(self) -> None:
        """Leave the folder, wherever it is, to whoever opens it next."""
        self._begin_closing()
        self._drop(lambda _bucket: True, remove=False)
        self.lock.release()

    def expire(self) -> int:
        """Delete segments older than ``table.log.ttl``; return how many.

        A bucket that is not open is opened only if it has a segment that may have expired.
        """
        deleted = 0
        now = now_ms()
        for bucket in self.all_buckets():
            if self._closed:
                break  # this goes on when the folder is opened again
            # files at a path that leads elsewhere are another engine's
            self.lock.verify()
            table = self.catalog.table_by_id(bucket.table_id)
            ttl = options.log_ttl_ms(table.descriptor.properties) if table else None
            if ttl is None:
                continue
            with self._lock:
                opened = self._open.get(bucket)
            try:
                if opened is None and not may_expire(self.bucket_folder(bucket) / "log", now, ttl):
                    continue
                opened = opened or self._opened(bucket)
                with self.expiring:
                    deleted += (opened.kv or opened.tablet).expire(
                        now, ttl, self.tiered.end(table, bucket)
                    )
            except (FlussError, OSError) as error:
                # segments of other buckets expire all the same; this bucket may have been dropped
                dropped = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
                if getattr(error, "error_code", None) != dropped and not self._closed:
                    logger.warning("%s: %s", java_name(bucket), error)
        return deleted

    async def stop(self) -> None:
        """End the background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Sync and close everything, and give up the folder; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            opened = list(self._open.values())
            self._open.clear()
            opening = list(self._opening.values())
        problems: list[str] = []
        try:
            self.workers.close()
            self._large_requests.close()
            for unfinished in opening:
                unfinished.done.wait()
            self._begin_closing()
            with contextlib.suppress(FolderLostError):
                self.lock.verify()
            for entry in opened:
                try:
                    # files at a path that leads elsewhere are another engine's
                    entry.close() if self.lock.lost is None else entry.abandon()
                except Exception as error:
                    # whatever it is, the other buckets are synced and closed
                    logger.exception("a bucket could not be closed")
                    problems.append(str(error) or repr(error))
            if self.lock.lost is None:
                self.cluster.close()
        finally:
            self.lock.release()
        if problems:
            raise FlussError("; ".join(problems), ErrorCode.STORAGE_EXCEPTION)
