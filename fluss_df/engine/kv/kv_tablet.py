"""One bucket of a primary-key table: its rows in RocksDB, and the changelog that is their truth.

A batch is put in three steps. Under the lock, the old values of its keys are looked up, the changes
are computed and appended to the log, and the new values become pending. When the log is synced,
pending values go to RocksDB, which so never knows what the log might lose. Then the batch is
acknowledged. What RocksDB lacks when it is opened is replayed from the log.
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
from fluss_df.engine.kv.batch_changes import ChangeBuilder, corrupt, read_batch
from fluss_df.engine.kv.kv_loading import StoreLoader
from fluss_df.engine.kv.kv_replay import NOT_COUNTED, Changes
from fluss_df.engine.kv.kv_store import DamagedStoreError, KvResources, KvState, KvStore, StoreWork
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

# without a sync of its own, a log is synced when so much waits for it
_PENDING_BYTES: Final = 32 << 20
_MOST_BYTES: Final = 256 << 20
# after a batch that looked up more, memory goes back to the system: each of the engine's threads
# has an arena of its own, which would keep it (1.4 GB for deletes of 32 MB at a time, then 0.6)
_TRIMMED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where a batch of changes is in the changelog.

    Attributes
    ----------
    log_end_offset
        Behind its last change.
    end_offset
        What must be in RocksDB before the request is acknowledged.
    records
        How many the batch has; 0 of one that was written before.
    """

    log_end_offset: int
    end_offset: int
    records: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    """Values of a batch that is in the log, and how the store is once they are in it."""

    changes: Changes
    state: KvState
    nbytes: int


class KvTablet:
    """The rows and the changelog of one bucket.

    Parameters
    ----------
    folder
        Of RocksDB.
    log
        Its changelog, opened.
    table
        The table that the bucket belongs to.
    resources
        What stores share.
    reserve
        Reserves numbers for the table's auto-increment column: their count -> the first.
    visible_when_synced
        Whether readers see rows once they are on the disk (else: once they are written).
    most_bytes
        Of the rows that one batch replaces or removes, and of the changes that it makes: all are
        in memory at once, some of them several times. A batch of more is refused, unless it has a
        single row.

    Raises
    ------
    FlussError
        :class:`~fluss_df.engine.files.files.DamagedError` where RocksDB cannot be used and the
        changelog, whose beginning has expired, does not hold all rows.
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
        # taken before the other one; held while RocksDB is written
        self._apply_lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        # the newest pending value of each key
        self._overlay: Changes = {}
        self._made: TableCodec | None = None
        self.closed = False
        self._loader = StoreLoader(log, table, resources, self._codec, self._sequence_block)
        self._store = self._loader.open(folder)
        self._newest = self._store.state

    # ---- damage

    def _repaired(self, error: DamagedStoreError, damaged: KvStore) -> None:
        """Put a store that is made again in place of one that turned out to be damaged.

        Readers of the damaged one that are under way end with an error of their own.

        Raises
        ------
        FlussError
            As :meth:`StoreLoader.made_again`.
        """
        with self._apply_lock:
            if self._store is not damaged:
                return  # another thread did it
            self._require_open()
            self.log.sync()
            end = self.log.synced_offset
            self._store = self._loader.made_again(error.message, damaged.folder, end)
            damaged.close()
            self._forget_pending(end)

    def _on_sound_rows(self, use: Callable[[], T]) -> T:
        """Use rows; where they turn out to be damaged, make them again and use them once more."""
        if self._store.closed and not self.closed:
            self._open_again()
        store = self._store
        try:
            return use()
        except DamagedStoreError as error:
            self._repaired(error, store)
        return use()

    def _open_again(self) -> None:
        """Open a store that could not be opened again when the disk was full."""
        with self._apply_lock:
            self._require_open()
            if self._store.closed:
                end = self.log.synced_offset
                self._store = self._loader.reopened(self._store.folder, end)
                self._forget_pending(end)

    def _sound_values(self, store: KvStore, lists: Iterator[list[bytes]]) -> Iterator[bytes]:
        """Iterate over values; where they turn out to be damaged, make them again for the next."""
        return itertools.chain.from_iterable(self._sound_lists(store, lists))

    def _sound_lists(self, store: KvStore, lists: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        try:
            yield from lists
        except DamagedStoreError as error:
            self._repaired(error, store)
            # values of both cannot be put together
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
        """Return what RocksDB takes, and does by itself."""
        return self._store.work()

    @property
    def pending(self) -> bool:
        """Whether there are changes that RocksDB has not."""
        return bool(self._pending)

    @property
    def row_count(self) -> int:
        """Rows that readers see.

        Raises
        ------
        FlussError
            ``INVALID_TABLE_EXCEPTION`` where they are not counted.
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
    def scans_at_rest(self) -> bool:
        """Whether a scan would not have it take its files again, see :meth:`KvStore.scan`."""
        return self._store.scans_at_rest

    def _codec(self) -> TableCodec:
        if self._made is None or self._made.schema_id != self._table.schema_id:
            self._made = TableCodec(self._table)
        return self._made

    def _require_open(self) -> None:
        if self.closed:
            raise unknown_bucket(self.name)

    # ---- writing

    def put(
        self, data: memoryview, targets: tuple[int, ...] | None = None, *, overwrite: bool = False
    ) -> PutResult:
        """Write a kv batch.

        Parameters
        ----------
        data
            The batch, as it came.
        targets
            Positions of the columns of a partial update; None for all columns.
        overwrite
            Replace rows, whatever merge engine the table has.

        Raises
        ------
        FlussError
            ``CORRUPT_RECORD_EXCEPTION`` for bytes that are no valid batch,
            ``OUT_OF_ORDER_SEQUENCE_EXCEPTION``, ``SCHEMA_NOT_EXIST``, ``INVALID_TARGET_COLUMN``,
            ``DELETION_DISABLED_EXCEPTION``, ``RECORD_TOO_LARGE_EXCEPTION``,
            ``STORAGE_EXCEPTION``. Nothing is stored then.
        """
        records = read_batch(self.name, data)
        self._builder.looked_up = 0
        try:
            return self._on_sound_rows(lambda: self._put_once(data, records, targets, overwrite))
        finally:
            if self._builder.looked_up > _TRIMMED_BYTES:
                give_memory_back()

    def _put_once(
        self,
        data: memoryview,
        records: KvRecords,
        targets: tuple[int, ...] | None,
        overwrite: bool,
    ) -> PutResult:
        with self._lock:
            self._require_open()
            known = self.log.written(records.writer_id, records.sequence)
            if known is not None:
                # it may still be on its way to the disk
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
                end = self.log.append_changes(batch).end_offset
            except ProtocolError as error:
                raise corrupt(self.name, error) from error
            rows = NOT_COUNTED if more is None else self._newest.rows + more
            self._newest = replace(self._newest, applied=end, rows=rows)
            self._pending.append(_Pending(values, self._newest, data.nbytes))
            self._pending_bytes += data.nbytes
            self._overlay.update(values)
            crowded = not self._visible_when_synced and self._pending_bytes > _PENDING_BYTES
        if crowded:
            self.log.sync()
            self.apply()
        return PutResult(end, end, len(records))

    def _current(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the newest values, in RocksDB or on the way there."""
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
        """Bring to RocksDB what is synced in the log.

        Raises
        ------
        FlussError
            ``KV_STORAGE_EXCEPTION`` when RocksDB refuses, ``UNKNOWN_SERVER_ERROR`` when the disk is
            full; it is tried again with the next batch.
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
            # it takes nothing more once it found no room, also where there is room by now
            logger.warning("%s: it is opened again", error.message)
            self._store.close()
            self._store = self._loader.reopened(self._store.folder, synced)
        self._forget_pending(ready[-1].state.applied)

    def _forget_pending(self, applied: int) -> None:
        """Forget the changes that RocksDB has, up to an offset."""
        with self._lock:
            while self._pending and self._pending[0].state.applied <= applied:
                self._pending_bytes -= self._pending.popleft().nbytes
            self._overlay = {}
            for entry in self._pending:
                self._overlay.update(entry.changes)

    # ---- reading

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys as readers see them; None where there is none."""
        self._require_open()
        return self._on_sound_rows(lambda: self._get(keys))

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        if self._visible_when_synced or not self._overlay:
            return self._store.get(keys)
        with self._lock:
            return self._current(keys)

    def prefix(self, prefix: bytes) -> Iterator[bytes]:
        """Return an iterator over the values whose keys begin with some bytes, in their order."""
        if not prefix:
            return self.scan(by_bytes=True)[0]
        self._on_sound_rows(self._catch_up)
        store = self._store
        return self._sound_values(store, store.prefix(prefix))

    def scan(self, by_bytes: bool = False) -> tuple[Iterator[bytes], int]:
        """Return an iterator over all values, and the offset of the changelog behind them.

        Where ``by_bytes`` is true, no more than 1 MiB, and a value, is read before it is wanted.
        """
        return self._on_sound_rows(lambda: self._scan(by_bytes))

    def _scan(self, by_bytes: bool) -> tuple[Iterator[bytes], int]:
        with self._catch_up():
            store = self._store
            lists, applied = store.scan(by_bytes), store.state.applied
        return self._sound_values(store, lists), applied

    def _catch_up(self) -> threading.Lock:
        """Have RocksDB know what readers may see; return the lock that keeps it so."""
        self._require_open()
        if not self._visible_when_synced and self._pending:
            self.log.sync()
            self.apply()
        return self._apply_lock

    # ---- end

    def expire(self, now_ms: int, ttl_ms: int, tiered: int | None = None) -> int:
        """Delete old segments of the changelog; return how many.

        What they hold goes to the disk in RocksDB first, and is nowhere else then.
        """
        if not self.log.may_expire(now_ms, ttl_ms):
            return 0
        self._catch_up()
        self.flush()
        # RocksDB brings the names in its folder to the disk, and not the folder's own
        sync_folder(self._store.folder.parent)
        return self.log.expire(now_ms, ttl_ms, tiered)

    def checkpoint(self, folder: Path) -> None:
        """Copy RocksDB, as it is now, to a folder that is not there."""
        self._on_sound_rows(lambda: self._checkpoint(folder))

    def _checkpoint(self, folder: Path) -> None:
        with self._catch_up():
            self._store.flush()
            self._store.checkpoint(folder)

    def flush(self) -> None:
        """Bring RocksDB to the disk: the changelog below is not needed for opening any more."""
        self._on_sound_rows(self._flush)

    def _flush(self) -> None:
        with self._apply_lock:
            self._require_open()
            self._store.flush()

    def close(self) -> None:
        """Close behind the log, which is synced then; a second call does nothing."""
        if self.closed:
            return
        try:
            self.apply()
            self.flush()
        except FlussError as error:
            if not self._store.deleted:
                logger.warning("%s: the changelog has what is missing", error.message)
        finally:
            self.abandon()

    def rest(self) -> bool:
        """Give back all files until they are needed, unless it is in use; return whether it did."""
        if self._lock.locked() or not self._apply_lock.acquire(blocking=False):
            return False
        try:
            if self._pending:
                self.log.sync()
                self._apply()
            with self._lock:
                # a batch may have come meanwhile
                return not self._pending and self._store.rest() and self.log.rest()
        except FlussError as error:
            logger.warning("%s", error.message)
            return False
        finally:
            self._apply_lock.release()

    def abandon(self) -> None:
        """Close at once."""
        with self._apply_lock, self._lock:
            if not self.closed:
                self.closed = True
                self._store.close()
