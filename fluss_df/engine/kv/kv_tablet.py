"""One bucket of a primary-key table: its changelog, and its rows in RocksDB.

The changelog is the truth, and RocksDB follows it. A batch is put in three steps. (1) Under the
lock, the old values of its keys are looked up, the changes are computed and appended to the
changelog, and the new values become pending. (2) When the changelog is synced, pending values are
written to RocksDB; so RocksDB has no row that the changelog could lose. (3) The batch is
acknowledged. When a bucket is opened, changes that RocksDB does not have are replayed from the
changelog.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from fluss_df.engine.files.files import sync_folder
from fluss_df.engine.kv.auto_increment import next_numbers
from fluss_df.engine.kv.batch_changes import ChangeBuilder, read_batch
from fluss_df.engine.kv.kv_loading import StoreLoader
from fluss_df.engine.kv.kv_replay import NOT_COUNTED, Changes
from fluss_df.engine.kv.kv_store import DamagedStoreError, KvResources, KvState, KvStore, StoreWork
from fluss_df.engine.kv.read_steps import ReadSteps
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.engine.tables import options
from fluss_df.engine.tables.buckets import unknown_bucket
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.memory import give_memory_back
from fluss_df.record.kv.kv_batch import KvRecords
from fluss_df.record.layout.unaligned import Int64s

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Bytes of rows that may be pending when batches are acknowledged without a sync: with more, the log
# is synced, so that pending values can go to RocksDB.
_PENDING_BYTES: Final = 32 << 20
_MOST_BYTES: Final = 256 << 20
# After a batch whose old rows have more bytes, free memory is returned to the system. Otherwise the
# allocator keeps it, in an arena for each thread: for deletes of 32 MB at a time the process then
# had 1.4 GB instead of 0.6 GB.
_TRIMMED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where a batch of changes is in the changelog.

    ``log_end_offset`` is the offset behind the last change of the batch. RocksDB must have the
    changelog up to ``durable_at`` before the request is acknowledged. ``records`` is how many rows
    the batch has; 0 for a batch that was written before.
    """

    log_end_offset: int
    durable_at: int
    records: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    """New values of a batch that is in the log, and the store's state once it has them."""

    changes: Changes
    state: KvState
    nbytes: int


class KvTablet:
    """The rows and the changelog of one bucket.

    Raises :class:`~fluss_df.engine.files.files.DamagedError` where RocksDB cannot be used and the
    changelog, whose beginning has expired, does not hold all rows.

    Parameters
    ----------
    folder
        The folder of RocksDB.
    reserve
        Reserves numbers for the table's auto-increment column: how many -> the first of them.
    visible_when_synced
        Whether readers see rows once they are on the disk (else: once they are written).
    most_bytes
        How many bytes the rows that one batch replaces or removes may have, and how many the
        changes that it makes: all of them are in memory at once, some of them several times. A
        batch with more is refused, unless it has a single row.
    """

    def __init__(
        self,
        folder: Path,
        log: Tablet,
        table: Table,
        resources: KvResources,
        reserve: Callable[[int], int],
        *,
        visible_when_synced: bool = True,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.name = log.name
        self.log = log
        self._table = table
        self._reserve = reserve
        self._visible_when_synced = visible_when_synced
        self._builder = ChangeBuilder(self.name, table, most_bytes)
        self._sequence_block = options.sequence_cache(table.descriptor.properties)
        self._lock = threading.Lock()
        # held while RocksDB is written; a thread that needs both locks takes this one first
        self._apply_lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        # the newest pending value of each key
        self._overlay: Changes = {}
        self._table_codec: TableCodec | None = None
        self.closed = False
        self._loader = StoreLoader(log, table, resources, self._codec, self._sequence_block)
        self._store = self._loader.open(folder)
        self._newest = self._store.state

    # ---- damage

    def _replace_damaged(self, error: DamagedStoreError, damaged: KvStore) -> None:
        """Replace a store that turned out to be damaged by one made from the changelog.

        Reads of the damaged store that are under way end with an error.

        Raises FlussError as :meth:`StoreLoader.made_again`.
        """
        with self._apply_lock:
            if self._store is not damaged:
                return  # another thread has replaced it
            self._require_open()
            self.log.sync()
            end = self.log.synced_offset
            self._store = self._loader.made_again(error.message, damaged.folder, end)
            damaged.close()
            self._forget_pending(end)

    def _on_sound_rows(self, use: Callable[[], T]) -> T:
        """Call ``use``; if the store turns out to be damaged, make it again and call once more."""
        if self._store.closed and not self.closed:
            self._open_again()
        store = self._store
        try:
            return use()
        except DamagedStoreError as error:
            self._replace_damaged(error, store)
        return use()

    def _open_again(self) -> None:
        """Open the store, if an earlier attempt left it closed, as on a full disk."""
        with self._apply_lock:
            self._require_open()
            if self._store.closed:
                end = self.log.synced_offset
                self._store = self._loader.reopened(self._store.folder, end)
                self._forget_pending(end)

    def _sound_lists(self, store: KvStore, lists: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Iterate over values; if the store is damaged, make it again and raise an error."""
        try:
            yield from lists
        except DamagedStoreError as error:
            self._replace_damaged(error, store)
            # values that were yielded already are of another state than those of the new store
            raise FlussError(
                f"the rows of {self.name} were damaged and are made again from the changelog:"
                f" read them again ({error.message})",
                ErrorCode.KV_STORAGE_EXCEPTION,
            ) from error

    # ---- state

    @property
    def applied(self) -> int:
        """The offset behind the last change that RocksDB has."""
        return self._store.state.applied

    def work(self) -> StoreWork:
        """Return RocksDB's use of disk and memory, and its background work."""
        return self._store.work()

    @property
    def pending(self) -> bool:
        """Whether there are changes that RocksDB does not have yet."""
        return bool(self._pending)

    @property
    def row_count(self) -> int:
        """How many rows readers see.

        Raises ``INVALID_TABLE_EXCEPTION`` for a table whose rows are not counted.
        """
        count = (self._store.state if self._visible_when_synced else self._newest).rows
        if count == NOT_COUNTED or not self._builder.full_image:
            raise FlussError(
                f"Row count is disabled for this table '{self._table.path}'. This usually happens"
                " when the table is created before v0.9 or the changelog image is set to WAL, as"
                " maintaining row count in WAL mode is costly and not necessary for most use"
                " cases. If you want to enable row count, please set changelog image to FULL.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return count

    @property
    def steps(self) -> ReadSteps:
        """The steps in which rows are read that are looked up."""
        return self._builder.steps

    @property
    def scans_at_rest(self) -> bool:
        """Whether a scan does not open RocksDB again, see :meth:`KvStore.scan`."""
        return self._store.scans_at_rest

    def _codec(self) -> TableCodec:
        if self._table_codec is None or self._table_codec.schema_id != self._table.schema_id:
            self._table_codec = TableCodec(self._table)
        return self._table_codec

    def _require_open(self) -> None:
        if self.closed:
            raise unknown_bucket(self.name)

    # ---- writing

    def put(
        self, data: memoryview, targets: tuple[int, ...] | None = None, *, overwrite: bool = False
    ) -> PutResult:
        """Write a kv batch.

        ``data`` is the batch as the client sent it. ``targets`` are the positions of the columns of
        a partial update; None for all columns. With ``overwrite``, rows are replaced whatever the
        merge engine of the table is.

        Raises ``CORRUPT_RECORD_EXCEPTION`` for bytes that are no valid batch,
        ``OUT_OF_ORDER_SEQUENCE_EXCEPTION``, ``SCHEMA_NOT_EXIST``, ``INVALID_TARGET_COLUMN``,
        ``DELETION_DISABLED_EXCEPTION``, ``RECORD_TOO_LARGE_EXCEPTION``, ``STORAGE_EXCEPTION``.
        After an error nothing of the batch is stored.
        """
        records = read_batch(self.name, data)
        if not self._visible_when_synced and self._pending_bytes > _PENDING_BYTES:
            # before the batch is stored, which an error here says that it is not
            self.log.sync()
            self.apply()
        self._builder.looked_up = 0
        try:
            return self._on_sound_rows(lambda: self._put_once(data, records, targets, overwrite))
        finally:
            if self._builder.looked_up > _TRIMMED_BYTES:
                give_memory_back()

    def _put_once(
        self, data: memoryview, records: KvRecords, targets: tuple[int, ...] | None, overwrite: bool
    ) -> PutResult:
        with self._lock:
            self._require_open()
            known = self.log.written(records.writer_id, records.sequence)
            if known is not None:
                # the batch may not be synced yet: the answer waits for all of the changelog
                return PutResult(known, self.log.end_offset)
            codec = self._codec()
            if records.schema_id > codec.schema_id or not codec.has(records.schema_id):
                raise FlussError(
                    f"Invalid schema id: {records.schema_id}, latest schema id: {codec.schema_id}",
                    ErrorCode.SCHEMA_NOT_EXIST,
                )
            try:
                batch, values, more = self._builder.build(
                    data, records, codec, targets, overwrite, self._current, self._numbers
                )
                end = self.log.append_changes(batch).durable_at
            except ProtocolError as error:
                # the checksum holds: corrupt records are sent again, and this would be the same
                raise FlussError(
                    f"A record for table bucket {self.name} cannot be stored: {error.message}",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                ) from error
            rows = NOT_COUNTED if more is None else self._newest.rows + more
            self._newest = replace(self._newest, applied=end, rows=rows)
            # not the bytes of the request: a partial update of a wide row makes a whole row
            self._pending.append(_Pending(values, self._newest, self._builder.made))
            self._pending_bytes += self._builder.made
            self._overlay.update(values)
        return PutResult(end, end, len(records))

    def _current(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the newest values of keys, pending or in RocksDB."""
        overlay = self._overlay
        if not overlay:
            return self._store.get(keys)
        missing = [key for key in keys if key not in overlay]
        if not missing:
            return [overlay[key] for key in keys]
        found = dict(zip(missing, self._store.get(missing), strict=True))
        return [overlay[key] if key in overlay else found[key] for key in keys]

    def _numbers(self, count: int) -> Int64s:
        numbers, self._newest = next_numbers(
            self.name, self._newest, count, self._sequence_block, self._reserve
        )
        return numbers

    def apply(self) -> None:
        """Write the pending values to RocksDB whose changes are synced in the log.

        Raises ``KV_STORAGE_EXCEPTION`` when RocksDB refuses, ``UNKNOWN_SERVER_ERROR`` when the disk
        is full. The next call tries again.
        """
        with self._apply_lock:
            self._apply()

    def _apply(self) -> None:
        with self._lock:
            self._require_open()
            synced = self.log.synced_offset
            ready = [p for p in self._pending if p.state.applied <= synced]
        if not ready:
            return
        changes = ready[0].changes
        if len(ready) > 1:
            changes = {}
            for entry in ready:
                changes.update(entry.changes)
        try:
            self._store.write(changes, ready[-1].state)
        except DamagedStoreError as error:
            damaged = self._store
            self._store = self._loader.made_again(error.message, damaged.folder, synced)
            damaged.close()
        except FlussError as error:
            # after a full disk RocksDB refuses all writes until it is opened again
            logger.warning("%s: it is opened again", error.message)
            self._store.close()
            self._store = self._loader.reopened(self._store.folder, synced)
        self._forget_pending(ready[-1].state.applied)

    def _forget_pending(self, applied: int) -> None:
        """Forget the changes that RocksDB has, up to an offset."""
        with self._lock:
            while self._pending and self._pending[0].state.applied <= applied:
                self._pending_bytes -= self._pending.popleft().nbytes
            overlay: Changes = {}
            for entry in self._pending:
                overlay.update(entry.changes)
            # replaced in one step, as readers look at it without the lock
            self._overlay = overlay

    # ---- reading

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys that readers see; None for a key without a row."""
        self._require_open()
        if all(keys):
            return self._on_sound_rows(lambda: self._get(keys))
        # no row has an empty key: RocksDB has the state of the store there
        found = iter(self._on_sound_rows(lambda: self._get([key for key in keys if key])))
        return [next(found) if key else None for key in keys]

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        if self._visible_when_synced or not self._overlay:
            return self._store.get(keys)
        with self._lock:
            return self._current(keys)

    def prefix(self, prefix: bytes) -> Iterator[bytes]:
        """Return an iterator over the values whose keys begin with some bytes, in their order."""
        if not prefix:
            return self.scan()[0]
        self._on_sound_rows(self._catch_up)
        store = self._store
        return itertools.chain.from_iterable(self._sound_lists(store, store.prefix(prefix)))

    def scan(self) -> tuple[Iterator[bytes], int]:
        """Return an iterator over all values, and the offset of the changelog behind them."""
        lists, offset = self.scan_lists()
        return itertools.chain.from_iterable(lists), offset

    def scan_lists(self) -> tuple[Iterator[list[bytes]], int]:
        """Return what :meth:`scan` returns, in lists of at most 1 MiB and one value."""
        return self._on_sound_rows(self._scan)

    def _scan(self) -> tuple[Iterator[list[bytes]], int]:
        with self._catch_up():
            store = self._store
            lists, applied = store.scan(), store.state.applied
        return self._sound_lists(store, lists), applied

    def _catch_up(self) -> threading.Lock:
        """Bring RocksDB to the state that readers see; return the lock that keeps it there."""
        self._require_open()
        if not self._visible_when_synced and self._pending:
            self.log.sync()
            self.apply()
        return self._apply_lock

    # ---- end

    def expire(self, now_ms: int, ttl_ms: int, tiered: int | None = None) -> int:
        """Delete old segments of the changelog; return how many.

        RocksDB is synced to the disk first: it is then the only place of the rows in them.
        """
        if not self.log.may_expire(now_ms, ttl_ms):
            return 0
        self._catch_up()
        # changes that are synced, and that RocksDB could not take before, as on a full disk
        self.apply()
        self.flush()
        # RocksDB syncs the names of the files in its folder, but not the name of the folder
        sync_folder(self._store.folder.parent)
        return self.log.expire(now_ms, ttl_ms, tiered)

    def checkpoint(self, folder: Path) -> None:
        """Copy RocksDB in its current state to a folder that does not exist yet."""
        self._on_sound_rows(lambda: self._checkpoint(folder))

    def _checkpoint(self, folder: Path) -> None:
        with self._catch_up():
            self._store.flush()
            self._store.checkpoint(folder)

    def flush(self) -> None:
        """Sync RocksDB to the disk: opening it no longer needs the changelog up to here."""
        self._on_sound_rows(self._flush)

    def _flush(self) -> None:
        with self._apply_lock:
            self._require_open()
            self._store.flush()

    def close(self) -> None:
        """Close after the log was closed, which syncs it; a second call does nothing."""
        if self.closed:
            return
        try:
            self.apply()
            self.flush()
        except FlussError as error:
            if not self._store.deleted:
                logger.warning("%s: the changelog has the changes that are missing", error.message)
        finally:
            self.abandon()

    def release_files(self) -> bool:
        """Close all files until they are needed, unless they are in use; return whether it did."""
        if self._lock.locked() or not self._apply_lock.acquire(blocking=False):
            return False
        try:
            if self._pending:
                self.log.sync()
                self._apply()
            with self._lock:
                # a batch may have been put since
                return (
                    not self._pending and self._store.release_files() and self.log.release_files()
                )
        except FlussError as error:
            logger.warning("%s", error.message)
            return False
        finally:
            self._apply_lock.release()

    def abandon(self) -> None:
        """Close without a sync."""
        with self._apply_lock, self._lock:
            if not self.closed:
                self.closed = True
                self._store.close()
