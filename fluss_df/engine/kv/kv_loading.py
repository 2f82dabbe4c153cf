"""Opening the rows of a bucket, and making them again from the changelog where they are damaged."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from fluss_df.engine.files.files import DamagedError, sync_folder
from fluss_df.engine.kv.kv_replay import ChangeReplay, Changes
from fluss_df.engine.kv.kv_store import DamagedStoreError, KvResources, KvStore
from fluss_df.engine.kv.store_folders import next_store_folder, remove_older_stores
from fluss_df.engine.log.tablet import Tablet
from fluss_df.engine.merge.values_pool import TableCodec
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.hooks import undoing

logger = logging.getLogger(__name__)

# of the changelog that are read at once; of its rows, in Arrow, that are written at once
_REPLAY_BYTES: Final = 16 << 20
_WRITTEN_BYTES: Final = 64 << 20


class StoreLoader:
    """Brings the RocksDB of one bucket to where its changelog is."""

    def __init__(
        self,
        log: Tablet,
        table: Table,
        resources: KvResources,
        codec: Callable[[], TableCodec],
        block: int,
    ) -> None:
        self._log = log
        self._table = table
        self._resources = resources
        self._codec = codec
        self._block = block

    def open(self, folder: Path) -> KvStore:
        """Open a RocksDB and give it what it lacks; make it again where it is damaged.

        Raises FlussError as :meth:`made_again`; ``UNKNOWN_SERVER_ERROR`` where the disk is full.
        """
        start, end = self._log.start_offset, self._log.end_offset
        store = None
        try:
            store = KvStore(folder, self._log.name, self._resources)
            owner = store.state.owner
            if owner not in (None, self._log.owner):
                problem = f"{folder} has the rows of {owner}"
            elif start <= store.state.applied <= end:
                self._own(store)
                self._replay(store, end)
                remove_older_stores(folder)
                return store
            else:
                applied = store.state.applied
                problem = f"RocksDB is at offset {applied} of a changelog from {start} to {end}"
        except FlussError as error:
            if store is not None:
                store.close()
            damaged = isinstance(error, DamagedStoreError)
            if not damaged and (store or error.error_code != ErrorCode.KV_STORAGE_EXCEPTION):
                raise  # the disk is full, or the changelog is damaged
            problem = error.message
        except BaseException:
            if store is not None:
                store.close()
            raise
        if store is not None:
            store.close()
        return self.made_again(problem, folder, end)

    def reopened(self, folder: Path, end: int) -> KvStore:
        """Open a RocksDB that was closed, and bring it to an offset; scans of it end."""
        self._log.end_scans()
        store = KvStore(folder, self._log.name, self._resources)
        with undoing(store.close):
            self._replay(store, end)
        return store

    def made_again(self, problem: str, damaged: Path, end: int) -> KvStore:
        """Make a RocksDB from the changelog, up to an offset, in place of one that is damaged.

        ``problem`` is what is wrong with the damaged one, for messages. ``damaged`` is its folder,
        which is removed when the new one is complete and on the disk. Rows are made of the
        changelog up to the offset ``end``.

        Raises :class:`~fluss_df.engine.files.files.DamagedError` where the beginning of the
        changelog has expired; nothing is changed then.
        """
        name, start = self._log.name, self._log.start_offset
        if start:
            raise DamagedError(
                f"the rows of {name} are lost: {problem}, and the changelog below {start} has"
                f" expired. Restore the folder from a backup ({damaged})"
            )
        logger.warning("%s: the rows are made again from the changelog: %s", name, problem)
        folder = next_store_folder(damaged)
        store = KvStore(folder, name, self._resources)
        try:
            self._own(store)
            self._replay(store, end)
            store.flush()
        except BaseException:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync_folder(folder.parent)
        remove_older_stores(folder)
        return store

    def _own(self, store: KvStore) -> None:
        """Note in a store whose rows it has."""
        state = store.state
        if state.owner is None:
            if state.applied:
                store.write({}, replace(state, owner=self._log.owner))
            else:
                # written with the first rows
                store.state = replace(state, owner=self._log.owner)

    def _replay(self, store: KvStore, end: int) -> None:
        """Bring a store to an offset of the changelog."""
        position = store.state.applied
        if position == end:
            return
        replay = ChangeReplay(self._table, self._codec(), self._block)
        while position < end:
            piece = self._log.read(position, _REPLAY_BYTES, at_least_one=True)
            assert piece is not None
            changes: Changes = {}
            state, size = store.state, 0
            for batch in replay.decode(piece.data, piece.headers, position):
                # what is behind may not be synced yet
                if batch.base_offset >= end:
                    break
                if size > _WRITTEN_BYTES:
                    state = replace(state, applied=batch.base_offset)
                    store.write(changes, state)
                    changes, size = {}, 0
                state = replay.add(batch, changes, state)
                size += batch.batch.nbytes
            position = min(end, piece.headers.end_offset or end)
            store.write(changes, replace(state, applied=position))
