"""Joins with a small side: its keys are found first, and looked up rather than scanned.

Where the rows of a Fluss table are to be those whose key a small frame has (``t.semi_join(small,
"id")``, ``t.id.isin(small.id)``, ``WHERE id IN (SELECT ...)``), the small side is evaluated when
the query is planned, and its values become a condition of the scan. On a primary-key table that is
a lookup of keys or of key prefixes; on any table it leaves only the partitions and buckets of these
values. Each side is evaluated once, and the rows are those of the join.

Other joins need the rows of the small side too. So where such a query runs (not where it is
compiled, to run later), the small side is read first, for its keys and for the join.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ibis.expr.operations as ops
import polars as pl
from ibis.backends.polars.rewrites import PandasRename

from fluss_df.backend.catalog.leaves import FlussLeaf, require_types
from fluss_df.backend.translation import UNITS, nanoseconds, rule, translate
from fluss_df.client.connection import FlussConnection
from fluss_df.io.base.names import all_exact, exact
from fluss_df.io.lookup_join import lookup_join
from fluss_df.io.scans.offsets import bucket_offsets
from fluss_df.io.scans.report import planned_alone
from fluss_df.io.snapshot import CURRENT_ROWS
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.scans import Query, ScanNode, with_known_schema
from fluss_df.pushdown.prune import MAX_LOOKUPS
from fluss_df.record.change_tables import split_virtual
from fluss_df.schema import TableInfo

#: A side that reads more rows of Fluss than this is not evaluated for its keys; nor is one that
#: reads files, whose rows are not known. Of its keys, at most ``MAX_LOOKUPS`` are looked up.
SMALL_SIDE_ROWS = 100_000

#: A table of fewer changes is read quicker than the other side of a join for its keys.
LARGE_TABLE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class KeySide:
    """The small side of a semi-join.

    ``keys`` has a column for each of ``columns``, under the same name. Its rows are the values that
    these columns of the table may have.
    """

    columns: tuple[str, ...]
    keys: pl.LazyFrame


def narrows(info: TableInfo, columns: Sequence[str]) -> bool:
    """Whether values of these columns leave less of a table to read."""
    given = set(columns)
    partition, bucket = set(info.get_partition_keys()), set(info.get_bucket_keys())
    return bool(given & partition) or bool(bucket and bucket <= given)


def common_type(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    """Return the type in which values of two types are joined, where that is neither's own.

    Polars joins values of one type, and those of two integers. None where they need no cast, or
    where there is none that leaves them what they are.
    """
    numbers = one.is_numeric() and other.is_numeric()
    if one == other or not (numbers or (one.is_temporal() and other.is_temporal())):
        return None
    if one.is_integer() and other.is_integer():
        return None
    if isinstance(one, pl.Datetime) and isinstance(other, pl.Datetime):
        # a time without a zone is one in UTC beside one that has a zone
        unit = max(one.time_unit, other.time_unit, key=UNITS.index)
        return pl.Datetime(unit, one.time_zone if one.time_zone == other.time_zone else "UTC")
    try:
        frames = [pl.DataFrame(schema={"": kind}) for kind in (one, other)]
        return pl.concat(frames, how="vertical_relaxed").dtypes[0]
    except pl.exceptions.PolarsError:
        return None


def joined_alike(value: pl.Expr, kind: pl.DataType, other: pl.DataType) -> pl.Expr:
    """Return a value of a type as it is joined with one of another type."""
    common = common_type(kind, other)
    if common is None:
        return value
    if isinstance(common, pl.Datetime) and common.time_unit == "ns":
        # years such as 9999 do not fit into the unit
        return nanoseconds(value, kind)
    return value.cast(common)


def narrowed(
    table: pl.LazyFrame, path: TablePath, connection: FlussConnection, side: KeySide
) -> pl.LazyFrame:
    """Return the semi-join of a table with keys."""
    kinds, given = table.collect_schema(), side.keys.collect_schema()
    casts = {name: kinds[name] for name in side.columns if kinds[name] != given[name]}
    if not all(kind.is_integer() and given[name].is_integer() for name, kind in casts.items()):
        left, right = [], []
        for name in side.columns:
            left.append(joined_alike(exact(name), kinds[name], given[name]))
            right.append(joined_alike(exact(name), given[name], kinds[name]))
        return table.join(side.keys, left_on=left, right_on=right, how="semi")
    return with_known_schema(KeyedScan(table, path, connection, side, casts).lazy(), kinds)


class KeyedScan(ScanNode):
    """A table whose rows have keys that another frame has, as a node of a Polars plan.

    See :func:`narrowed`. ``casts`` has the table's types of the key columns whose type is another
    one in the small side.
    """

    def __init__(
        self,
        table: pl.LazyFrame,
        path: TablePath,
        connection: FlussConnection,
        side: KeySide,
        casts: Mapping[str, pl.DataType],
    ) -> None:
        self._table = table
        self._path = path
        self._connection = connection
        self._side = side
        self._casts = dict(casts)

    def schema(self) -> pl.Schema:
        """Return the schema of the table."""
        return self._table.collect_schema()

    def frame(self, query: Query) -> pl.LazyFrame:
        """Find the keys, and say what is read for them."""
        names = list(self._side.columns)
        wanted = self._fitting(self._side.keys.select(all_exact(names)))
        if not is_small(wanted, self._connection):
            return self._table.join(wanted, on=all_exact(names), how="semi")
        keys = wanted.unique().collect()
        info = self._connection.get_table(self._path).get_table_info()
        if len(keys) > MAX_LOOKUPS:
            return self._table.join(keys.lazy(), on=all_exact(names), how="semi")
        if len(names) > 1 and set(names) == set(info.get_primary_keys()):
            # looked up key by key, as conditions on each column mean all combinations of values
            return lookup_join(
                keys.lazy(),
                self._path,
                how="inner",
                columns=[n for n in self.schema() if n not in names],
                connection=self._connection,
            ).select(all_exact(self.schema()))
        values = (exact(name).is_in(keys[name].alias("key").unique().implode()) for name in names)
        rows = self._table.filter(functools.reduce(operator.and_, values))
        return rows if len(names) == 1 else rows.join(keys.lazy(), on=all_exact(names), how="semi")

    def _fitting(self, keys: pl.LazyFrame) -> pl.LazyFrame:
        """Return keys in the types of the table: what does not fit is no key there."""
        casts = (exact(name).cast(kind, strict=False) for name, kind in self._casts.items())
        return keys.with_columns(casts).drop_nulls()

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"KeyedScan({str(self._path)!r}, {', '.join(self._side.columns)})"


def is_small(frame: pl.LazyFrame, connection: FlussConnection) -> bool:
    """Whether a frame reads little: what is in memory, and few rows of Fluss."""
    found = planned_alone(frame)
    if found is None:
        return False
    rows = 0
    for plan in (planned.plan for planned in found):
        rows += plan.rows
        if plan.lake is not None:
            rows += plan.lake.rows
        if plan.reads == CURRENT_ROWS:
            info = connection.get_table(plan.table).get_table_info()
            rows += _last_offsets(connection, info)
    return rows <= SMALL_SIDE_ROWS


def _last_offsets(connection: FlussConnection, info: TableInfo) -> int:
    """Return how many rows a table has at the most: each was once one change at least."""
    return sum(last for _, last in bucket_offsets(connection, info).values())


# ---- in expressions


@rule(FlussLeaf)
def _scan(
    op: FlussLeaf, *, sides: Mapping[FlussLeaf, Sequence[KeySide]] | None = None, **_: Any
) -> pl.LazyFrame:
    """Scan a table, joined with the keys that are known for it."""
    database = op.namespace.database
    frame: pl.LazyFrame = op.source.scan_table(op.name, database, columns=tuple(op.schema))
    require_types(frame, op.schema, f"table {database}.{op.name}")
    for side in (sides or {}).get(op, ()):
        frame = narrowed(frame, TablePath(database, op.name), op.source.connection, side)
    return frame


@dataclass(frozen=True, slots=True)
class KeyedLeaf:
    """A table in an expression that can be joined with its key columns where it is read."""

    leaf: FlussLeaf
    columns: tuple[str, ...]

    def joined(self, keys: pl.LazyFrame, kw: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with which a relation is translated so that the table is joined."""
        given = zip(keys.collect_schema().names(), self.columns, strict=True)
        side = KeySide(self.columns, keys.select(exact(key).alias(name) for key, name in given))
        sides = dict(kw.get("sides") or {})
        sides[self.leaf] = (*sides.get(self.leaf, ()), side)
        return {**kw, "sides": sides}


# operations whose value for a row depends on other rows
_OF_OTHER_ROWS = (ops.Analytic, ops.WindowFunction, ops.Unnest)


def keyed_leaf(relation: ops.Relation, columns: Sequence[ops.Value]) -> KeyedLeaf | None:
    """Return the table whose columns these columns of a relation are.

    None where a condition on them would not mean the same on the table as above the relation, or
    would not leave less of the table to read.
    """
    if not all(isinstance(c, ops.Field) and c.rel == relation for c in columns):
        return None
    names = [column.name for column in columns]
    while not isinstance(relation, FlussLeaf):
        if isinstance(relation, PandasRename):
            back = {new: old for old, new in relation.mapping.items()}
            names = [back[name] for name in names]
        elif isinstance(relation, ops.Project):
            values = [relation.values[name] for name in names]
            if not all(isinstance(v, ops.Field) for v in values) or _mixes(
                relation.values.values()
            ):
                return None
            names = [value.name for value in values]
        elif isinstance(relation, ops.Filter):
            if _mixes(relation.predicates):
                return None
        elif not isinstance(relation, ops.Reference):
            return None
        relation = relation.parent
    database = relation.namespace.database
    if len(set(names)) < len(names) or split_virtual(relation.name)[1]:
        return None
    if not narrows(relation.source.table_info(relation.name, database), names):
        return None
    return KeyedLeaf(relation, tuple(names))


def _mixes(values: Iterable[ops.Value]) -> bool:
    return any(value.find(_OF_OTHER_ROWS, filter=ops.Value) for value in values)


@dataclass(frozen=True, slots=True)
class JoinSide:
    """A side of a join.

    ``on`` are the values that are compared with the other side. ``columns`` are the same values,
    translated to Polars, under names that both sides share.
    """

    relation: ops.Relation
    on: Sequence[ops.Value]
    columns: Sequence[pl.Expr]


def joined_sides(
    left: JoinSide, right: JoinSide, how: str, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Translate the sides of a join; of a table only what a small other side has keys of.

    ``how`` is the kind of the join. It may keep rows of a table that have no match: then all rows
    of that table are read. ``kw`` are the arguments of the translation. Only with ``running`` among
    them may a side be read here.
    """
    if kw.get("running"):
        if how in ("inner", "left") and (found := _looked_up(right, left, kw)) is not None:
            return found[1], found[0]
        if how in ("inner", "right") and (found := _looked_up(left, right, kw)) is not None:
            return found
    return translate(left.relation, **kw), translate(right.relation, **kw)


def _looked_up(
    table: JoinSide, small: JoinSide, kw: dict[str, Any]
) -> tuple[pl.LazyFrame, pl.LazyFrame] | None:
    """Return the rows of a table that have keys of the other side, and the other side."""
    leaf = keyed_leaf(table.relation, table.on)
    if leaf is None:
        return None
    source, name = leaf.leaf.source, leaf.leaf.name
    info = source.table_info(name, leaf.leaf.namespace.database)
    if _last_offsets(source.connection, info) < LARGE_TABLE_ROWS:
        return None
    frame = translate(small.relation, **kw)
    if not is_small(frame, source.connection):
        return None
    rows = frame.collect()
    keys = rows.select(small.columns).unique()
    if len(keys) <= MAX_LOOKUPS:
        kw = leaf.joined(keys.lazy(), kw)
    return translate(table.relation, **kw), rows.lazy()
