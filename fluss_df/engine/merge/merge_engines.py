"""The merge engines of primary-key tables: compute new values from old values and a batch.

An engine says what a whole batch does at once, with all records of a key one after the other;
values are places in a :class:`ValuePool`. A result that is the place before is no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.engine.merge.aggregates import Aggregate, aggregate_of, last_value
from fluss_df.engine.merge.values_pool import Places, TableCodec, ValuePool
from fluss_df.engine.tables.buckets import listed
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.record.layout.unaligned import Bools, Int64s

Deletes = Literal["allow", "ignore", "disable"]

MERGE_ENGINE: Final = "table.merge-engine"
VERSION_COLUMN: Final = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR: Final = "table.delete.behavior"


@dataclass(frozen=True, slots=True)
class Chains:
    """What happens to the keys of a batch: of each its old value, then its records in their order.

    ``values`` are all of these; none where there is no old value, and for a delete. ``heads`` are
    the places of the old values. ``key`` is the number of the key of each value.
    """

    values: Places
    heads: Int64s
    key: Int64s


class Replace:
    """The default engine: the new row is kept."""

    # a result is known without the old value
    takes_new = True

    def __init__(self, deletes: Deletes = "allow") -> None:
        self.deletes = deletes

    def fold(self, pool: ValuePool, chains: Chains) -> Places:
        """Return what is kept after each value of the chains."""
        return chains.values


class FirstRow(Replace):
    """The first row of a key is kept for ever."""

    takes_new = False

    def fold(self, pool: ValuePool, chains: Chains) -> Places:
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

    def fold(self, pool: ValuePool, chains: Chains) -> Places:
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
    # whether a new row has what a client sent for columns that it does not write
    _keeps_others = False

    def __init__(self, codec: TableCodec, targets: Sequence[str], deletes: Deletes) -> None:
        super().__init__(deletes)
        keys = codec.schema.primary_keys
        missing = [name for name in keys if name not in targets]
        if missing:
            raise FlussError(
                f"The target write columns {listed(targets)} must contain the primary key"
                f" columns {listed(keys)}.",
                ErrorCode.INVALID_TARGET_COLUMN,
            )
        for column in codec.columns:
            if column.name not in keys and not column.type.nullable:
                raise FlussError(
                    "Partial Update requires all columns except primary key to be nullable, but"
                    f" column {column.name} is NOT NULL.",
                    ErrorCode.INVALID_TARGET_COLUMN,
                )
        self._set_functions(codec, dict.fromkeys(targets, last_value))

    def _set_functions(self, codec: TableCodec, functions: Mapping[str, Aggregate]) -> None:
        """Say which columns are written, and what becomes of the values of each."""
        self._codec = codec
        self._functions = functions
        self._keys = frozenset(codec.schema.primary_keys)
        self._others = [c.name for c in codec.columns if c.name not in functions]
        self._numbered = bool(codec.schema.auto_increment)

    def fold(self, pool: ValuePool, chains: Chains) -> Places:
        """Return after each record its target columns, and the others, which never change."""
        values, present = chains.values, chains.values.present
        is_record = np.ones(len(values), np.bool_)
        is_record[chains.heads] = False
        # where a row begins if a delete ends it; it begins again with its target columns, if not
        begins = present.copy()
        begins[1:] &= ~present[:-1] | ~is_record[1:]
        rows, row = pool.rows(values[present]), np.cumsum(present) - 1
        births, stays = self._lives(chains, begins, self._outlives(rows, present, is_record))
        birth = np.maximum.accumulate(np.where(births, np.arange(len(values)), 0))
        emptied = is_record & ~present & stays
        made = emptied | self._made(is_record & present, births)
        result = values.copy()
        if made.any():
            first = row[birth[made]]
            own = np.where(emptied[made], first, row[made])
            begun = np.maximum.accumulate(np.where(begins, row, 0))[present]
            given = pa.array(own, mask=emptied[made])
            kept = pa.array(first, mask=is_record[birth[made]] & (not self._keeps_others))
            columns = []
            for name in rows.column_names:
                column = rows.column(name).combine_chunks()
                function = self._functions.get(name)
                if name in self._keys:
                    columns.append(column.take(pa.array(own)))
                elif function is None:
                    columns.append(column.take(kept))
                else:
                    columns.append(function(column, begun).take(given))
            names = self._codec.arrow_schema.names
            result.put(made, pool.add_rows(pa.Table.from_arrays(columns, names=names)))
        # what is not made is as it was before: there was such a row, or the value is kept itself
        idle = is_record & present & ~made & ~births
        return result[np.maximum.accumulate(np.where(idle, 0, np.arange(len(values))))]

    def _outlives(self, rows: pa.Table, present: Bools, is_record: Bools) -> Bools:
        """Return which values, if a row begins with them, leave a row when they are deleted."""
        left = np.zeros(rows.num_rows, np.bool_)
        for name in self._others:
            left |= pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False)
        found = np.zeros(len(present), np.bool_)
        found[present] = left
        if not self._keeps_others:
            found &= ~is_record
        # the number that a new row is about to get is left, too
        return found | (is_record & present) if self._numbered else found

    @staticmethod
    def _lives(chains: Chains, begins: Bools, outlives: Bools) -> tuple[Bools, Bools]:
        """Return where rows begin, and from where on the row of a key is never gone again."""
        lasting = begins & outlives
        count: Int64s = np.cumsum(lasting)
        of_key: Int64s = count - (count - lasting)[chains.heads][chains.key]
        return begins & (of_key == 0) | lasting & (of_key == 1), of_key > 0

    def _made(self, upserts: Bools, births: Bools) -> Bools:
        """Return which of the upserts give a row that is encoded again."""
        # with no column but the key's to write, a row that is there stays as it is
        return upserts if self._functions.keys() != self._keys else upserts & births


class Aggregation(PartialUpdate):
    """Each column is aggregated by its function."""

    _keeps_others = True

    def __init__(self, codec: TableCodec, targets: Sequence[str] | None, deletes: Deletes) -> None:
        if targets is None:
            # whether columns may be null matters to partial updates alone
            Replace.__init__(self, deletes)
        else:
            super().__init__(codec, targets, deletes)
        keys = codec.schema.primary_keys
        functions = {
            column.name: aggregate_of(column, column.name in keys)
            for column in codec.columns
            if targets is None or column.name in targets
        }
        self._set_functions(codec, functions)

    def _made(self, upserts: Bools, births: Bools) -> Bools:
        return upserts & ~births


def merge_engine(
    table: Table, codec: TableCodec, targets: Sequence[int] | None, overwrite: bool
) -> Replace:
    """Return the engine of a table for a request.

    ``targets`` are the positions of the columns that the request writes; None for all. With
    ``overwrite``, the request asks for the default engine, whatever the table has.

    Raises ``INVALID_TARGET_COLUMN`` for target columns that cannot be.
    """
    properties = table.descriptor.properties
    kind = properties.get(MERGE_ENGINE, "").lower()
    deletes = "allow" if overwrite else deletes_of(properties.get(DELETE_BEHAVIOR), kind)
    names = None
    if targets is not None:
        columns = codec.columns
        if any(not 0 <= i < len(columns) for i in targets):
            raise FlussError(
                f"target columns {listed(targets)} of a table with {len(columns)} columns",
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
