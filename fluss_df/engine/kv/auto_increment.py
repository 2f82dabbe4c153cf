"""Auto-increment columns: new rows get the next numbers of their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fluss_df.engine.kv.kv_store import KvState
from fluss_df.engine.merge.row_changes import INSERT, RowChanges, in_keys
from fluss_df.engine.merge.values_pool import Places, TableCodec, ValuePool
from fluss_df.engine.tables import options
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.layout.unaligned import Int64s


def check_targets(codec: TableCodec, name: str, targets: Sequence[int] | None) -> None:
    """Refuse a request that writes the column which the server numbers.

    Raises ``INVALID_TARGET_COLUMN``.
    """
    index = [column.name for column in codec.columns].index(name)
    if targets is None:
        raise FlussError(
            f"The table contains an auto-increment column [{name}], but update target columns"
            " are not explicitly specified. Please specify the update target columns and"
            " exclude the auto-increment column from them.",
            ErrorCode.INVALID_TARGET_COLUMN,
        )
    if index in targets:
        raise FlussError(
            f"Auto-increment column [{name}] at index {index} must not be included in target"
            " columns.",
            ErrorCode.INVALID_TARGET_COLUMN,
        )


def next_numbers(
    name: str, state: KvState, count: int, block: int, reserve: Callable[[int], int]
) -> tuple[Int64s, KvState]:
    """Return the next numbers for a bucket, and the state of its store after they are taken.

    More numbers are reserved in multiples of ``block``. ``reserve`` reserves as many numbers of the
    table for the bucket as it is told, and returns the first.

    Raises ``UNKNOWN_SERVER_ERROR`` where the table has no numbers left.
    """
    parts = []
    first, end = state.sequence_next, state.sequence_end
    while count:
        if first >= end:
            # always whole blocks: ChangeReplay computes the end of the last one from its highest
            # number
            blocks = -(-count // block)
            first = reserve(blocks * block)
            end = first + blocks * block
            if end > options.MAX_NUMBER:
                raise FlussError(
                    f"{name}: the numbers of the auto-increment column are used up: the"
                    f" next ones would be {first} to {end - 1}, and the largest is"
                    f" {options.MAX_NUMBER - 1}; write to a new table",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
        taken = min(count, end - first)
        parts.append(np.arange(first, first + taken))
        first += taken
        count -= taken
    return np.concatenate(parts), replace(state, sequence_next=first, sequence_end=end)


class Numbering:
    """Gives the new rows of one batch their numbers."""

    def __init__(self, pool: ValuePool, codec: TableCodec, take: Callable[[int], Int64s]) -> None:
        self._pool = pool
        self._column = codec.schema.auto_increment[0]
        self._take = take

    def fill(self, changes: RowChanges, ids: Int64s | None) -> RowChanges:
        """Return changes that were made without numbers, with the numbers of the new rows.

        A row that the batch inserts and then changes keeps its number. ``ids`` are the ids of keys
        that :func:`~fluss_df.engine.merge.row_changes.folded` takes.
        """
        born = changes.kind == INSERT
        if not born.any():
            return changes
        count = len(born)
        given = np.full(count, -1, np.int64)
        given[born] = self._take(int(born.sum()))
        order, begins = in_keys(ids, count)
        # for each record, in key order: the place of the latest insert up to the record itself,
        # which is of another key where it is before the place where the record's key begins
        last = np.maximum.accumulate(np.where(born[order], np.arange(count), -1))
        after = np.where(last >= begins, given[order][last], -1)
        before = np.where(begins < np.arange(count), np.roll(after, 1), -1)
        return RowChanges(
            self._numbered(changes.before, order, before),
            self._numbered(changes.after, order, after),
            changes.kind,
        )

    def _numbered(self, places: Places, order: Int64s, numbers: Int64s) -> Places:
        known = np.flatnonzero((numbers >= 0) & places.present[order])
        if not len(known):
            return places
        at = order[known]
        result = places.copy()
        result.put(at, self._with_numbers(self._pool.rows(places[at]), numbers[known]))
        return result

    def _with_numbers(self, rows: pa.Table, numbers: Int64s) -> Places:
        at = rows.column_names.index(self._column)
        field = rows.schema.field(at)
        try:
            values = pa.array(numbers).cast(field.type)
        except pa.ArrowInvalid as error:
            raise FlussError(
                f"the numbers of the auto-increment column {self._column} are used up: {error};"
                " write to a new table, where the column is a BIGINT",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            ) from None
        return self._pool.add_rows(rows.set_column(at, field, values))
