"""Computes what a batch of rows with keys changes: a batch of the changelog, and new values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import numpy as np

from fluss_df.engine.files.workers import give_turn
from fluss_df.engine.kv.auto_increment import Numbering, check_targets
from fluss_df.engine.kv.kv_replay import Changes
from fluss_df.engine.kv.read_steps import ReadSteps
from fluss_df.engine.log.append_checks import corrupt
from fluss_df.engine.merge.merge_engines import merge_engine
from fluss_df.engine.merge.row_changes import (
    INSERT,
    UPDATE_AFTER,
    RowChanges,
    change_batch,
    change_rows,
    folded,
    replaced,
)
from fluss_df.engine.merge.values_pool import Places, TableCodec, ValuePool
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.kv.kv_batch import KvRecords, claimed_rows, decode_kv_batch
from fluss_df.record.layout.unaligned import Int64s
from fluss_df.record.log.log_batch import Compression

V = TypeVar("V")

CHANGELOG_IMAGE: Final = "table.changelog.image"
# keys that are put into a dictionary (6 ms) before other threads get a turn
_KEYS_IN_A_TURN: Final = 64 << 10
# The error for a batch that is too large advises a number of rows whose old rows have 1/8 of the
# limit, since rows are in memory several times. fluss_df's writers cut the batch by this number and
# not by halves: for each half that is refused, the old rows would have been read in vain.
_ADVISED_SHARE: Final = 8
# What the rows may take in Arrow, as a multiple of that limit. Honest batches may take more than
# their bytes: one of 2 MB, as Java's writers send it, of rows with a thousand numbers that are
# null, takes 130 MB, and 260 MB if it replaces such rows.
_ARROW_FACTOR: Final = 2
# The most rows of a batch. Apache Fluss 0.9.1 fails with this many new rows, and with half as many
# that replace others. Here, a batch of a million rows would block other threads for 0.2 s.
_MOST_ROWS: Final = 128 << 10


def read_batch(name: str, data: memoryview) -> KvRecords:
    """Check a kv batch; return where its rows are.

    Raises ``RECORD_TOO_LARGE_EXCEPTION`` for too many rows, ``CORRUPT_RECORD_EXCEPTION`` for bytes
    that are not a valid batch.
    """
    # counted before the rows are decoded: a row of six bytes takes hundreds of bytes then
    count = claimed_rows(data)
    if count > _MOST_ROWS:
        raise FlussError(
            f"a batch of {count:,} rows for {name}, more than {_MOST_ROWS:,}: write fewer"
            f" at once (such as {_MOST_ROWS // 2:,} rows): writer.batch-rows",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    try:
        return decode_kv_batch(data)
    except FlussError as error:
        raise corrupt(name, error) from error


def counts_rows(table: Table) -> bool:
    """Return whether the changelog has the old row of an update, so that rows can be counted."""
    return table.descriptor.properties.get(CHANGELOG_IMAGE, "full").lower() == "full"


class ChangeBuilder:
    """Computes what batches change in one bucket; used by one thread at a time.

    ``full_image`` says whether the changelog has the old row of an update. ``looked_up`` is how
    many bytes the old rows of the last batch have, and ``made`` how many its new rows and their
    keys take. ``steps`` reads old rows, also for lookups.
    """

    def __init__(self, name: str, table: Table, most_bytes: int) -> None:
        self._name = name
        self._table = table
        self._most_bytes = most_bytes
        properties = table.descriptor.properties
        self._compression = Compression.from_properties(properties)
        self.full_image = counts_rows(table)
        self.looked_up = 0
        self.made = 0
        self.steps = ReadSteps()

    def build(
        self,
        data: memoryview,
        records: KvRecords,
        codec: TableCodec,
        targets: tuple[int, ...] | None,
        overwrite: bool,
        current: Callable[[list[bytes]], list[bytes | None]],
        numbers: Callable[[int], Int64s],
    ) -> tuple[bytes, Changes, int | None]:
        """Return what a batch changes.

        That is: the batch for the changelog; the new value of each key; and by how many rows the
        bucket grows, or None if the changelog has no old rows.

        ``records`` says where the rows are in ``data``. ``targets`` and ``overwrite`` are as for
        :meth:`KvTablet.put`. ``current`` reads the newest values of keys. ``numbers`` returns as
        many numbers for the auto-increment column as it is told to.

        Raises FlussError as :meth:`KvTablet.put`.
        """
        numbered = codec.schema.auto_increment
        if numbered:
            check_targets(codec, numbered[0], targets)
        engine = merge_engine(self._table, codec, targets, overwrite)
        deleted = records.row_starts < 0
        kept: Int64s | None = None
        if engine.deletes != "allow" and deleted.any():
            if engine.deletes == "disable":
                raise FlussError(
                    "Delete operations are disabled for this table. The table.delete.behavior is"
                    " set to 'disable'.",
                    ErrorCode.DELETION_DISABLED_EXCEPTION,
                )
            kept = np.flatnonzero(~deleted)
        rows = len(records)
        pool = ValuePool(codec, lambda size: self._require_arrow_room(size, rows, codec))
        new = pool.add_batch(data, records)
        starts, ends = records.key_starts, records.key_ends
        if kept is not None:
            new, starts, ends = new[kept], starts[kept], ends[kept]
        raw = bytes(data)
        # one object for each key: RocksDB's binding takes no arrays
        keys = [raw[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        unique = _dict_of(keys, itertools.repeat(None))
        ids: Int64s | None = None
        distinct = keys
        if len(unique) < len(keys):
            distinct = list(unique)
            number = {key: i for i, key in enumerate(distinct)}
            ids = np.fromiter(map(number.__getitem__, keys), np.int64, len(keys))
        blind = engine.takes_new and not self.full_image and not numbered
        if blind and bool(new.present.all()):
            # the old rows are needed neither for the changelog nor for the new ones
            none = Places.none(len(new))
            changes = RowChanges(none, new, np.full(len(new), UPDATE_AFTER, np.uint8))
        else:
            old = pool.add(self._old_values(distinct, len(keys), current))
            if engine.takes_new and not numbered:
                changes = replaced(old, new, ids)
                if blind:
                    changes.kind[changes.kind == INSERT] = UPDATE_AFTER
            else:
                changes = folded(pool, engine, old, new, ids)
                if numbered:
                    changes = Numbering(pool, codec, numbers).fill(changes, ids)
        types, places = change_rows(changes, self.full_image)
        self._require_room(int((places.ends - places.starts).sum()), len(keys), len(keys))
        batch = change_batch(
            pool, types, places, self._compression, records.writer_id, records.sequence
        )
        some = np.flatnonzero(changes.kind)
        self.made = int((ends[some] - starts[some]).sum())
        if len(some):
            widths = changes.after.ends[some] - changes.after.starts[some]
            self.steps.largest = max(self.steps.largest, int(widths.max()))
            # of several changes of a key one is kept: this is at least what is held
            self.made += int(widths.sum())
        values = pool.values(changes.after if len(some) == len(keys) else changes.after[some])
        changed_keys = keys if len(some) == len(keys) else [keys[i] for i in some.tolist()]
        # of several changes of a key, the dictionary keeps the last
        made: Changes = _dict_of(changed_keys, values)
        return batch, made, changes.row_count if self.full_image else None

    def _old_values(
        self, keys: list[bytes], rows: int, current: Callable[[list[bytes]], list[bytes | None]]
    ) -> list[bytes | None]:
        """Return the newest values of keys; raise FlussError when they have too many bytes.

        ``rows`` is the number of rows of the batch, which may have a key several times.
        """
        found: list[bytes | None] = []
        size = 0
        parts = self.steps.parts(current, keys, lambda: self._most_bytes - size)
        for some, sizes in parts:
            size += sum(sizes)
            found += some
            self.looked_up = size
            self._require_room(size, rows, len(found) * rows // len(keys))
        return found

    def _require_room(self, size: int, rows: int, seen: int = 0) -> None:
        """Refuse a batch whose rows would take too much memory.

        ``size`` is the bytes of old rows, or of changes, so far; ``rows`` is the number of rows of
        the whole batch. These bytes belong to ``seen`` of them, from which the error computes the
        number of rows that it advises; 0 for an error without advice.

        Raises ``RECORD_TOO_LARGE_EXCEPTION``; fluss_df's writers cut the batch and send it again.
        """
        if size > self._most_bytes and rows > 1:
            fewer = max(1, seen * self._most_bytes // (_ADVISED_SHARE * size))
            advice = f" (such as {fewer:,} rows)" if seen else ""
            raise FlussError(
                f"the rows that a batch of {rows:,} rows changes in {self._name} have more than"
                f" {self._most_bytes:,} bytes (EngineOptions.answer_bytes): write fewer at once"
                f"{advice}: writer.batch-rows, writer.batch-size",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )

    def _require_arrow_room(self, size: int, rows: int, codec: TableCodec) -> None:
        """Refuse a batch whose rows would take too much memory in Arrow, however small they are.

        Raises ``RECORD_TOO_LARGE_EXCEPTION``, also for a batch of one row: it would be as large
        for whoever reads the changelog.

        Parameters
        ----------
        size
            What the rows take at least, nulls included.
        rows
            How many rows the batch has.
        codec
            The codec of the table's rows.
        """
        most = _ARROW_FACTOR * self._most_bytes
        if size > most:
            widest = codec.widest
            fewer = max(1, rows * most // (_ADVISED_SHARE * size))
            advice = f"write fewer at once (such as {fewer:,} rows): writer.batch-rows"
            raise FlussError(
                f"the rows that a batch of {rows:,} rows changes in {self._name} take {size:,}"
                f" bytes in Arrow, more than {most:,} ({_ARROW_FACTOR} times"
                f" EngineOptions.answer_bytes). In column {widest.name} ({widest.type}), a null"
                f" takes as much as a value: {f'{advice}, or ' if rows > 1 else ''}have BYTES or"
                " STRING there",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )


def _dict_of(keys: list[bytes], values: Iterable[V]) -> dict[bytes, V]:
    """Return ``dict(zip(keys, values))``, and let other threads run in between for many keys.

    Python's own functions keep the GIL until they are done: 0.1 s for a million keys.
    """
    if len(keys) <= _KEYS_IN_A_TURN:
        return dict(zip(keys, values, strict=False))
    made: dict[bytes, V] = {}
    remaining = iter(values)
    for first in range(0, len(keys), _KEYS_IN_A_TURN):
        made.update(zip(keys[first : first + _KEYS_IN_A_TURN], remaining, strict=False))
        give_turn()
    return made
