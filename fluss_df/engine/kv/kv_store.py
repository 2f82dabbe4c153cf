"""The current rows of one bucket of a primary-key table: a RocksDB, and how far it got.

Every write carries, under a key that no row has, the offset of the changelog behind the last change
that is in it, in one atomic batch. RocksDB's own log is off: what its memory held when the process
ended is replayed from the changelog.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import rocksdict

from fluss_df.engine.files.files import DamagedError, disk_refused, read_bytes
from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.files.private_files import FOLDER, make_private
from fluss_df.engine.log.synced_point import NO_BUCKET, BucketIds
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.rocks_manifest import verify_manifest
from fluss_df.record.kv.rocks_rows import take_values

logger = logging.getLogger(__name__)

# keys of rows have at least one byte; this one sorts before them all
STATE_KEY: Final = b""
FIRST_ROW_KEY: Final = b"\0"
_STATE: Final = struct.Struct("<Bqqqqqqq")
_STATE_VERSION: Final = 2
# the state in formats 1 and 2, which do not say whose rows the store has
_OLD_STATE: Final = struct.Struct("<Bqqqq")
# Bytes of the memory table of a store with many changes, and of one with few: there may be hundreds
# of these, and RocksDB allocates a tenth at once.
_MEMTABLE_BYTES: Final = 64 << 20
_FIRST_MEMTABLE_BYTES: Final = 4 << 20
_CACHE_BYTES: Final = 256 << 20
# a store of more files is not scanned while it rests: it would open all of them
_FILES_AT_REST: Final = 16
# values in the first list of a scan and in later ones, which have fewer where values are large
_FIRST_LIST_VALUES: Final = 8
_MOST_LIST_VALUES: Final = 128
_LIST_BYTES: Final = 1 << 20
# keys of a batch that are sorted at once
_SORTED_KEYS: Final = 64 << 10
# how RocksDB's messages begin where files are missing, cut off or changed
_DAMAGE: Final = ("Corruption", "IO error")
#: What RocksDB says of a folder that is still in use, another user's, or on a disk that fails.
NO_DAMAGE: Final = (
    "lock hold by",
    "No locks available",
    "Permission denied",
    "Input/output error",
    "Cannot allocate memory",
    "Stale file handle",
    "Read-only file system",
    "Operation not permitted",
    "Connection timed out",
)


class DamagedStoreError(FlussError):
    """RocksDB's files are not what it wrote: the rows are to be made again from the changelog."""


@dataclass(frozen=True, slots=True)
class KvState:
    """How far a store is.

    Attributes
    ----------
    applied
        The offset of the changelog behind the last change that is in the store.
    rows
        Rows in the store; -1 where they are not counted.
    sequence_next, sequence_end
        The next number for the auto-increment column, and the first that the bucket may not give.
    owner
        The bucket; None where the store does not say, as those of formats 1 and 2.
    """

    applied: int = 0
    rows: int = 0
    sequence_next: int = 0
    sequence_end: int = 0
    owner: BucketIds | None = field(default=None, compare=False)

    def pack(self) -> bytes:
        """Return the bytes that are stored."""
        numbers = self.applied, self.rows, self.sequence_next, self.sequence_end
        return _STATE.pack(_STATE_VERSION, *numbers, *(self.owner or NO_BUCKET))

    @classmethod
    def unpack(cls, data: bytes) -> KvState:
        """Read what was stored.

        Raises ``KV_STORAGE_EXCEPTION`` where it is something else.
        """
        if len(data) == _OLD_STATE.size and data[0] == 1:
            return cls(*_OLD_STATE.unpack(data)[1:])
        if len(data) != _STATE.size or data[0] != _STATE_VERSION:
            raise DamagedStoreError(
                "the state of a store is damaged", ErrorCode.KV_STORAGE_EXCEPTION
            )
        _, applied, rows, first, end, *ids = _STATE.unpack(data)
        return cls(applied, rows, first, end, BucketIds(*ids))


class KvResources:
    """The resources that an engine's stores share: the cache of blocks, the limit on memory tables.

    ``owned`` is the folder that they are in; None where it cannot be renamed meanwhile.
    """

    def __init__(self, owned: FolderLock | None = None) -> None:
        self._owned = owned
        self.cache = rocksdict.Cache(_CACHE_BYTES)
        self.buffers = rocksdict.WriteBufferManager(4 * _MEMTABLE_BYTES, False)

    def path_of(self, folder: Path) -> str:
        """Return the path by which RocksDB is given a folder."""
        return str(folder) if self._owned is None else self._owned.anchored(folder)

    def readable(self, text: str) -> str:
        """Return a message of RocksDB with the paths that users know."""
        return text if self._owned is None else self._owned.readable(text)

    def options(self) -> rocksdict.Options:
        """Return the options of a store."""
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_FIRST_MEMTABLE_BYTES)
        options.set_max_write_buffer_number(4)
        options.set_write_buffer_manager(self.buffers)
        # one thread writes to a store at a time
        options.set_allow_concurrent_memtable_write(False)
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_keep_log_file_num(1)
        options.set_max_open_files(256)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        # `check` can compute it
        blocks.set_checksum_type(rocksdict.ChecksumType.crc32c())
        blocks.set_block_cache(self.cache)
        options.set_block_based_table_factory(blocks)
        return options


class StoreWork(NamedTuple):
    """The disk and memory that a store uses, and its background work."""

    #: the bytes of its files and its memory tables
    bytes: int = 0
    running_compactions: int = 0
    pending_compactions: int = 0


class KvStore:
    """A RocksDB of values by key.

    One thread writes at a time; any number read. It opens again by itself behind
    :meth:`release_files`.

    Raises ``KV_STORAGE_EXCEPTION`` where RocksDB cannot open it.
    """

    def __init__(self, folder: Path, name: str, resources: KvResources) -> None:
        self.folder = folder
        self._name = name
        self._resources = resources
        self._write_options = rocksdict.WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        # Guards what follows; held while RocksDB is opened and closed. An iterator that nobody
        # holds any more may be collected, and stop using RocksDB, in a thread that has the lock.
        self._guard = threading.RLock()
        self._users = 0
        self._closed = False
        self._grown = False
        # whether it rests, with few enough files to open them all for a scan
        self.scans_at_rest = False
        self._db: rocksdict.Rdict | None
        self._db, stored = self._open()
        self.state = stored or KvState()
        self._work = StoreWork()

    def _open(self) -> tuple[rocksdict.Rdict, KvState | None]:
        """Open RocksDB; return it, and how far it is."""
        try:
            path = self._resources.path_of(self.folder)
            os.makedirs(path, FOLDER, exist_ok=True)
            db = open_rocks(path, self._resources.options())
            self._make_private()
            stored = db.get(STATE_KEY)
        except FlussError:
            raise
        except Exception as error:
            raise self._failed("open", error) from error
        try:
            return db, None if stored is None else KvState.unpack(stored)
        except FlussError:
            db.close()
            raise

    def _make_private(self) -> None:
        # by the path that leads nowhere else after the folder was renamed
        make_private(Path(self._resources.path_of(self.folder)))

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[rocksdict.Rdict]:
        """Give RocksDB, which does not rest meanwhile, and raise its errors as ours."""
        with self._guard:
            if self._closed:
                raise self._failed(what, ValueError("they are closed"))
            if self._db is None:
                db, stored = self._open()
                if (stored or KvState()) != self.state:
                    db.close()
                    raise self._not_as_left()
                self._db = db
                self.scans_at_rest = False
            db = self._db
            self._users += 1
        try:
            yield db
        except Exception as error:
            raise self._failed(what, error) from error
        finally:
            with self._guard:
                self._users -= 1

    def work(self) -> StoreWork:
        """Return what it uses and does.

        Where RocksDB rests, or is being opened or closed, that is what was last known.
        """
        if self._guard.acquire(blocking=False):
            try:
                if self._db is not None:
                    self._work = _work(self._db)
            finally:
                self._guard.release()
        return self._work

    def release_files(self) -> bool:
        """Bring everything to the disk and close RocksDB until it is needed, unless it is in use.

        Returns whether it is closed now.
        """
        if not self._guard.acquire(blocking=False):
            return False
        try:
            if self._users:
                return False
            if self._db is not None:
                try:
                    self._db.flush(True)
                except Exception as error:
                    logger.warning("%s", self._failed("flush", error).message)
                    return False
                self._close()
                self.scans_at_rest = sum(1 for _ in self.folder.glob("*.sst")) <= _FILES_AT_REST
            return True
        finally:
            self._guard.release()

    def _close(self) -> None:
        if self._db is not None:
            db, self._db, self._grown = self._db, None, False
            try:
                self._work = StoreWork(_work(db).bytes)
                db.close()
                self._make_private()
            except Exception as error:
                # it flushes as it closes
                level = logging.DEBUG if self.deleted else logging.WARNING
                logger.log(level, "%s", self._failed("flush", error).message)

    def _failed(self, what: str, error: Exception) -> FlussError:
        text = f"RocksDB cannot {what} the rows of {self._name} in {self.folder}"
        refused = disk_refused(text, self.folder, error, ErrorCode.KV_STORAGE_EXCEPTION)
        refused.message = self._resources.readable(refused.message)
        if any(text in str(error) for text in NO_DAMAGE):
            # the files may be sound: nothing is made again
            return FlussError(refused.message, ErrorCode.STORAGE_EXCEPTION)
        if refused.error_code == ErrorCode.KV_STORAGE_EXCEPTION and str(error).startswith(_DAMAGE):
            return DamagedStoreError(refused.message, refused.error_code)
        return refused

    def _not_as_left(self) -> FlussError:
        return self._failed("open", ValueError("Corruption: not as they were left"))

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None; one call for all of them."""
        with self._using("read") as db:
            found: list[bytes | None] = db.get(keys)  # type: ignore[arg-type, assignment]
            return found

    def write(self, changes: Mapping[bytes, bytes | None], state: KvState) -> None:
        """Write values, or remove keys (None), and how far the store is then: all or nothing."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        # In the order of keys, RocksDB takes them half again as fast. Very many are sorted in
        # parts: nobody else runs while Python sorts.
        keys = list(changes)
        for first in range(0, len(keys), _SORTED_KEYS):
            for key in sorted(keys[first : first + _SORTED_KEYS]):
                value = changes[key]
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        put(STATE_KEY, state.pack())
        with self._using("write") as db:
            db.write(batch, self._write_options)
            self.state = state
            if not self._grown:
                self._grow(db)

    def _grow(self, db: rocksdict.Rdict) -> None:
        """Give a store that has many changes more memory from its next memory table on."""
        used = db.property_int_value("rocksdb.cur-size-active-mem-table") or 0
        if used > _FIRST_MEMTABLE_BYTES // 2:
            db.set_options({"write_buffer_size": str(_MEMTABLE_BYTES)})
            self._grown = True

    def prefix(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Return an iterator over lists of the values whose keys begin with some bytes, in order.

        Raises :class:`DamagedStoreError`, while iterating, where RocksDB's files are damaged.
        """
        if not prefix:
            return self.scan()
        options = rocksdict.ReadOptions()
        end = prefix.rstrip(b"\xff")
        if end:
            options.set_iterate_upper_bound(end[:-1] + bytes([end[-1] + 1]))
        return self._read(options, prefix)

    def scan(self) -> Iterator[list[bytes]]:
        """Return an iterator over lists of all values as they are now, in the order of their keys.

        A list ends with the value that makes it larger than 1 MiB, also where values before it are
        small: a reader may want no more of them, or go on in ten minutes.

        No other thread may write when it begins. A small store that is closed at the moment is
        opened for reading alone. That takes 3 ms; to open it for writing and close it again takes
        12 ms, as RocksDB then writes its metadata. So scans of more stores than may be open are
        quicker.

        Raises FlussError as :meth:`prefix`.
        """
        with self._guard:
            read = self._read_at_rest if self.scans_at_rest else self._read_now
            values = read()
            next(values)  # takes the snapshot
        return values

    def _read_at_rest(self) -> Iterator[list[bytes]]:
        options = self._resources.options()
        # all files at once: they stay readable when the store is opened meanwhile and drops them
        options.set_max_open_files(-1)
        try:
            path = self._resources.path_of(self.folder)
            db = open_rocks(path, options, read_only=True)
        except FlussError:
            raise
        except Exception as error:
            raise self._failed("open", error) from error
        try:
            stored = db.get(STATE_KEY)
            if (KvState() if stored is None else KvState.unpack(stored)) != self.state:
                raise self._not_as_left()
            rows = db.iter()
            rows.seek(FIRST_ROW_KEY)
            yield []
            yield from _value_lists(rows)
        except FlussError:
            raise
        except Exception as error:
            raise self._failed("read", error) from error
        finally:
            db.close()

    def _read_now(self) -> Iterator[list[bytes]]:
        with self._using("read") as db:
            rows = db.snapshot().iter()
            rows.seek(FIRST_ROW_KEY)
            yield []
            yield from _value_lists(rows)

    def _read(self, options: rocksdict.ReadOptions, first: bytes) -> Iterator[list[bytes]]:
        with self._using("read") as db:
            rows = db.iter(options)
            rows.seek(first)
            yield from _value_lists(rows)

    def flush(self) -> None:
        """Bring everything to the disk, synced."""
        if self._db is None and not self._closed:
            return  # it was, before it rested
        with self._using("flush") as db:
            db.flush(True)
        self._make_private()

    def close(self) -> None:
        """Close; what was not flushed comes from the changelog again."""
        with self._guard:
            self._closed = True
            self.scans_at_rest = False
            self._close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def deleted(self) -> bool:
        """Whether its folder was deleted, as temporary folders are before a program's end."""
        return not self.folder.exists()

    def checkpoint(self, folder: Path) -> None:
        """Make a consistent copy in another folder, which must not be there, by hard links."""
        with self._using("copy") as db:
            rocksdict.Checkpoint(db).create_checkpoint(str(folder))
        make_private(folder)


def _work(db: rocksdict.Rdict) -> StoreWork:
    def value(name: str) -> int:
        return db.property_int_value(f"rocksdb.{name}") or 0

    size = value("total-sst-files-size") + value("cur-size-all-mem-tables")
    return StoreWork(size, value("num-running-compactions"), value("compaction-pending"))


def _value_lists(rows: rocksdict.RdictIter) -> Iterator[list[bytes]]:
    """Iterate over the values from where RocksDB's iterator is, in lists.

    One generator step a list, and not one a value, makes a scan a fifth quicker. The lists grow:
    who wants a few values makes few.
    """
    count = _FIRST_LIST_VALUES
    while values := take_values(rows, count, None, _LIST_BYTES):
        few = sum(map(len, values)) < _LIST_BYTES // 2
        yield values
        count = min(2 * count, _MOST_LIST_VALUES) if few else max(1, count // 2)


def open_rocks(
    path: str, options: rocksdict.Options, *, read_only: bool = False
) -> rocksdict.Rdict:
    """Open a RocksDB whose MANIFEST does not hold it up."""

    def opened(name: str) -> BinaryIO:
        try:
            return io.BytesIO(read_bytes(Path(path, name)) or b"")
        except DamagedError as error:
            # begins as RocksDB's own messages do
            raise ValueError(f"IO error: {error}") from error

    verify_manifest(opened)
    access = rocksdict.AccessType
    kind = access.read_only(False) if read_only else access.read_write()
    return rocksdict.Rdict(path, options, access_type=kind)
