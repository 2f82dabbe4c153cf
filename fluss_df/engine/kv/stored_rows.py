"""Reads the rows of a RocksDB store that no engine has open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import rocksdict

from fluss_df.engine.files.ownership import FolderLock
from fluss_df.engine.kv.kv_store import FIRST_ROW_KEY, NO_DAMAGE, STATE_KEY, KvState, open_rocks
from fluss_df.engine.kv.sst_blocks import verify_other_blocks
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.rocks_rows import take_values

# rows that are read at a time: at first, and at the most
_FIRST_VALUES: Final = 128
_READ_VALUES: Final = 1 << 14
_READ_BYTES: Final = 4 << 20


class NotAskedError(FlussError):
    """RocksDB could not look at the files: they may be sound, or damaged."""


def _read_only(folder: Path, lock: FolderLock | None) -> rocksdict.Rdict:
    if not folder.exists():
        raise FlussError(f"there is no {folder}", ErrorCode.KV_STORAGE_EXCEPTION)
    # RocksDB takes paths in UTF-8 only, which those by the descriptor of the folder are
    path = str(folder) if lock is None else lock.anchored(folder)
    return open_rocks(path, rocksdict.Options(raw_mode=True), read_only=True)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except (FlussError, GeneratorExit, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, UnicodeError) or any(text in str(error) for text in NO_DAMAGE):
            raise NotAskedError(
                f"could not be verified: RocksDB cannot look at {folder}: {error}",
                ErrorCode.STORAGE_EXCEPTION,
            ) from error
        raise FlussError(
            f"RocksDB cannot read {folder}: {error}", ErrorCode.KV_STORAGE_EXCEPTION
        ) from error


def stored_state(folder: Path, lock: FolderLock | None = None) -> KvState:
    """Read how far a store is that no engine has open.

    ``lock`` is that of the folder that it is in.

    Raises ``KV_STORAGE_EXCEPTION`` where RocksDB cannot read it, and :class:`NotAskedError`.
    """
    with _reading(folder), contextlib.closing(_read_only(folder, lock)) as db:
        stored = db.get(STATE_KEY)
        return KvState() if stored is None else KvState.unpack(stored)


def stored_rows(
    folder: Path, lock: FolderLock | None = None
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Iterate over everything that a store has on the disk, verifying its checksums.

    Yields keys and their values, in the order of keys, a few MB at a time. ``lock`` is that of the
    folder that the store is in.

    Raises ``KV_STORAGE_EXCEPTION`` where RocksDB cannot read it, and :class:`NotAskedError`.
    """
    with _reading(folder), contextlib.closing(_read_only(folder, lock)) as db:
        rows = db.iter()
        rows.seek(FIRST_ROW_KEY)
        count = _FIRST_VALUES
        keys: list[bytes] = []
        while values := take_values(rows, count, keys):
            yield keys, values
            size = sum(map(len, values)) + sum(map(len, keys))
            count = max(1, min(4 * count, _READ_VALUES, _READ_BYTES * len(values) // (size + 1)))
            keys = []
        live = [Path(str(part["name"]).lstrip("/")).name for part in db.live_files()]
    for name in live:
        verify_other_blocks(folder / name)
