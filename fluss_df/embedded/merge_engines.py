"""The merge engines of primary-key tables: an old value and a new one to what is kept.

All work on many rows at once; values are places in a :class:`ValuePool`. A result that is the old
place is no change. An engine says what a whole batch does, all records of a key one after the other
(``fold``); where it cannot, it says what one record of each key does, and is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.embedded.aggregates import aggregate_of
from fluss_df.embedded.tables import Table
from fluss_df.embedded.values_pool import Places, TableCodec, ValuePool
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.unaligned import Int64s

Deletes = Literal["allow", "ignore", "disable"]

MERGE_ENGINE: Final = "table.merge-engine"
VERSION_COLUMN: Final = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR: Final = "table.delete.behavior"


@dataclass(frozen=True, slots=True)
class Chains:
    """What happens to the keys of a batch: of each its old value, then its records in their order.

    Attributes
    ----------
    values
        All of these; none where there is no old value, and for a delete.
    heads
        Where the old values stand.
    key
        The number of the key of each.
    """

    values: Places
    heads: Int64s
    key: Int64s


class Replace:
    """The default engine: the new row is kept."""

    # a result is known without the old value
    takes_new = True
    # only the first row of a key in a batch can change anything
    first_only = False

    def __init__(self, deletes: Deletes = "allow") -> None:
        self.deletes = deletes

    def insert(self, pool: ValuePool, new: Places) -> Places:
        """Return what is kept of new values where there are no old ones."""
        return new

    def merge(self, pool: ValuePool, old: Places, new: Places) -> Places:
        """Return what is kept where there are both."""
        return new

    def delete(self, pool: ValuePool, old: Places) -> Places:
        """Return what is left of values that are deleted."""
        return Places.none(len(old))

    def fold(self, pool: ValuePool, chains: Chains) -> Places | None:
        """Return what is kept after each value of the chains; None where that is not known."""
        return None


class FirstRow(Replace):
    """The first row of a key is kept for ever."""

    takes_new = False
    first_only = True

    def merge(self, pool: ValuePool, old: Places, new: Places) -> Places:
        """Return the old values."""
        return old

    def fold(self, pool: ValuePool, chains: Chains) -> Places | None:
        """Return the first value of each chain from there on."""
        values, heads = chains.values, chains.heads
        first = np.where(values.present[heads], heads, heads + 1)
        place = np.arange(len(values))
        return values[np.minimum(first[chains.key], place)]


class Versioned(Replace):
    """The row with the highest version is kept, of equal ones the last; null is the lowest."""

    takes_new = False

    def __init__(self, column: str, deletes: Deletes) -> None:
        super().__init__(deletes)
        self._column = column

    def merge(self, pool: ValuePool, old: Places, new: Places) -> Places:
        """Return the values with the higher version."""
        wanted = self._versions(pool, old) <= self._versions(pool, new)
        return Places(
            np.where(wanted, new.starts, old.starts), np.where(wanted, new.ends, old.ends)
        )

    def fold(self, pool: ValuePool, chains: Chains) -> Places | None:
        """Return the value with the highest version so far."""
        values, present = chains.values, chains.values.present
        ranks = np.zeros(len(values), np.int64)
        distinct, ranks[present] = np.unique(
            self._versions(pool, values[present]), return_inverse=True
        )
        ranks[present] += 1
        ranks += chains.key * (len(distinct) + 2)
        place = np.arange(len(values))
        wins = ranks == np.maximum.accumulate(ranks)
        return values[np.maximum.accumulate(np.where(wins, place, 0))]

    def _versions(self, pool: ValuePool, places: Places) -> Int64s:
        column = pool.rows(places, (self._column,)).column(0).combine_chunks()
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        lowest = pa.scalar(-(2**63) if column.type == pa.int64() else -(2**31), column.type)
        values: Int64s = (
            pc.fill_null(column, lowest).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return values


class PartialUpdate(Replace):
    """Some columns are written; a delete empties them, and removes a row without any other."""

    takes_new = False

    def __init__(self, codec: TableCodec, targets: Sequence[str], deletes: Deletes) -> None:
        super().__init__(deletes)
        keys = codec.schema.primary_keys
        missing = [name for name in keys if name not in targets]
        if missing:
            raise FlussError(
                f"The target write columns [{', '.join(targets)}] must contain the primary key"
                f" columns [{', '.join(keys)}].",
                ErrorCode.INVALID_TARGET_COLUMN,
            )
        for column in codec.columns:
            if column.name not in keys and not column.type.nullable:
                raise FlussError(
                    "Partial Update requires all columns except primary key to be nullable, but"
                    f" column {column.name} is NOT NULL.",
                    ErrorCode.INVALID_TARGET_COLUMN,
                )
        self._codec = codec
        self._targets = frozenset(targets)
        self._keys = frozenset(keys)

    def insert(self, pool: ValuePool, new: Places) -> Places:
        """Return the target columns of new values, all others null."""
        rows = pool.rows(new)
        return pool.add_rows(
            self._rows(
                column if name in self._targets else _nulls(column)
                for name, column in zip(rows.column_names, rows.columns, strict=True)
            )
        )

    def merge(self, pool: ValuePool, old: Places, new: Places) -> Places:
        """Return the old values with the new target columns."""
        if self._targets == self._keys:
            return old
        before, after = pool.rows(old), pool.rows(new)
        return pool.add_rows(
            self._rows(
                (after if name in self._targets else before).column(name)
                for name in before.column_names
            )
        )

    def delete(self, pool: ValuePool, old: Places) -> Places:
        """Return the old values without the target columns; none where nothing else is there."""
        rows = pool.rows(old)
        others = [name for name in rows.column_names if name not in self._targets]
        kept = np.zeros(len(old), np.bool_)
        for name in others:
            kept |= pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False)
        result = Places.none(len(old))
        if kept.any():
            left = rows.filter(pa.array(kept))
            emptied = self._targets - self._keys
            made = self._rows(
                _nulls(column) if name in emptied else column
                for name, column in zip(left.column_names, left.columns, strict=True)
            )
            result.put(kept, pool.add_rows(made))
        return result

    def fold(self, pool: ValuePool, chains: Chains) -> Places | None:
        """Return after each record its target columns and the others, which never change."""
        if self._targets == self._keys:
            return None
        values, heads, key = chains.values, chains.heads, chains.key
        old, present = values[heads], values.present
        before = pool.rows(old[old.present])
        # of each key, its row in there
        row = np.where(old.present, np.cumsum(old.present) - 1, -1)[key]
        others = [name for name in before.column_names if name not in self._targets]
        stays = np.zeros(len(old), np.bool_)
        for name in others:
            valid = pc.is_valid(before.column(name)).to_numpy(zero_copy_only=False)
            stays[old.present] |= valid
        is_record = np.ones(len(values), np.bool_)
        is_record[heads] = False
        upserts, emptied = is_record & present, is_record & ~present & stays[key]
        made = upserts | emptied
        given = pool.rows(values[upserts])
        from_old = pa.array(row[made], mask=row[made] < 0)
        places = np.cumsum(upserts) - 1
        from_new = pa.array(places[made], mask=emptied[made])
        is_empty = pa.array(emptied[made])
        columns = []
        for name in before.column_names:
            if name in others:
                columns.append(before.column(name).take(from_old))
                continue
            column = given.column(name).take(from_new)
            if name in self._keys:
                column = pc.if_else(is_empty, before.column(name).take(from_old), column)
            columns.append(column)
        result = values.copy()
        result.put(made, pool.add_rows(self._rows(columns)))
        return result

    def _rows(self, columns: Iterable[pa.Array]) -> pa.Table:
        return pa.Table.from_arrays(list(columns), names=list(self._codec.arrow_schema.names))


class Aggregation(PartialUpdate):
    """Each column is aggregated by its function."""

    def __init__(self, codec: TableCodec, targets: Sequence[str] | None, deletes: Deletes) -> None:
        names = [column.name for column in codec.columns]
        self._partial = targets is not None
        if targets is None:
            # whether columns may be null matters to partial updates alone
            Replace.__init__(self, deletes)
            self._codec = codec
            self._targets = frozenset(names)
            self._keys = frozenset(codec.schema.primary_keys)
        else:
            super().__init__(codec, targets, deletes)
        self._functions = {
            column.name: aggregate_of(column, column.name in self._keys)
            for column in codec.columns
            if column.name in self._targets
        }

    def insert(self, pool: ValuePool, new: Places) -> Places:
        """Return the new values."""
        return new

    def merge(self, pool: ValuePool, old: Places, new: Places) -> Places:
        """Return the aggregates of the old and the new values."""
        count = len(old)
        both = Places(*(np.stack(pair, axis=1).ravel() for pair in _pairs(old, new)))
        begins = np.repeat(2 * np.arange(count), 2)
        return self._aggregated(pool, both, begins, 2 * np.arange(count) + 1)

    def fold(self, pool: ValuePool, chains: Chains) -> Places | None:
        """Return the aggregates after each value."""
        present = chains.values.present
        is_record = np.ones(len(present), np.bool_)
        is_record[chains.heads] = False
        if self._partial and not present[is_record].all():
            return None
        first = present.copy()
        # a run begins with an old value, or behind a delete
        first[1:] &= ~present[:-1] | ~is_record[1:]
        values, first = chains.values[present], first[present]
        begins = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        later = np.flatnonzero(~first)
        kept = values.copy()
        if len(later):
            kept.put(later, self._aggregated(pool, values, begins, later))
        result = chains.values.copy()
        result.put(present, kept)
        return result

    def _aggregated(
        self, pool: ValuePool, values: Places, begins: Int64s, wanted: Int64s
    ) -> Places:
        """Return what some of the values lead to; each belongs to the run that begins there."""
        rows = pool.rows(values)
        chosen, first = pa.array(wanted), pa.array(begins[wanted])
        made = []
        for name in rows.column_names:
            column = rows.column(name).combine_chunks()
            function = self._functions.get(name)
            if function is None:
                made.append(column.take(first))
            else:
                made.append(function(column, begins).take(chosen))
        return pool.add_rows(self._rows(made))

    def delete(self, pool: ValuePool, old: Places) -> Places:
        """Return what is left of deleted values: of a partial delete the other columns."""
        return super().delete(pool, old) if self._partial else Places.none(len(old))


def _pairs(old: Places, new: Places) -> tuple[tuple[Int64s, Int64s], tuple[Int64s, Int64s]]:
    return (old.starts, new.starts), (old.ends, new.ends)


def _nulls(column: pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(column), column.type)


def merge_engine(
    table: Table, codec: TableCodec, targets: Sequence[int] | None, overwrite: bool
) -> Replace:
    """Return the engine of a table for a request.

    Parameters
    ----------
    table, codec
        The table, and how its rows are encoded.
    targets
        Positions of the columns that the request writes; None for all.
    overwrite
        Whether the request asks for the default engine, whatever the table has.

    Raises
    ------
    FlussError
        ``INVALID_TARGET_COLUMN`` for target columns that cannot be.
    """
    properties = table.descriptor.properties
    kind = properties.get(MERGE_ENGINE, "").lower()
    deletes = "allow" if overwrite else deletes_of(properties.get(DELETE_BEHAVIOR), kind)
    names = None
    if targets is not None:
        columns = codec.columns
        if any(not 0 <= i < len(columns) for i in targets):
            raise FlussError(
                f"target columns {list(targets)} of a table with {len(columns)} columns",
                ErrorCode.INVALID_TARGET_COLUMN,
            )
        names = [columns[i].name for i in targets]
    if kind == "aggregation" and not overwrite:
        return Aggregation(codec, names, deletes)
    if kind in ("first_row", "versioned") and not overwrite:
        if names is not None:
            raise FlussError(
                f"Partial update is not supported for the {kind} merge engine.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        if kind == "first_row":
            return FirstRow(deletes)
        return Versioned(properties[VERSION_COLUMN], deletes)
    if names is not None:
        return PartialUpdate(codec, names, deletes)
    return Replace(deletes)


def deletes_of(behavior: str | None, engine: str) -> Deletes:
    """Return what a table does with deletes."""
    default: Deletes = "ignore" if engine else "allow"
    found: dict[str, Deletes] = {"allow": "allow", "ignore": "ignore", "disable": "disable"}
    return default if behavior is None else found[behavior.lower()]
