"""Joining a frame with a primary-key table by looking its keys up, batch by batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import polars as pl
import pyarrow as pa

from fluss_df.client.connection import FlussConnection, resolve_connection
from fluss_df.client.lookup.lookuper import Lookuper
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.errors import ErrorCode, FlussError, SchemaMismatchError
from fluss_df.io.base.arrow import polars_schema, to_polars
from fluss_df.io.base.names import all_exact, exact
from fluss_df.io.scans.planning import check_schema, frame_schema
from fluss_df.io.scans.report import Runs, ScanRun
from fluss_df.io.source import ScanSource
from fluss_df.metadata import TablePath, require_columns
from fluss_df.polars_adapter.plans import NOT_SERIALIZED, serialized
from fluss_df.pushdown.plan import ScanPlan, bind_columns

if TYPE_CHECKING:
    from fluss_df.schema import TableInfo
from fluss_df.types import TypeRoot

JoinHow: TypeAlias = Literal["left", "inner", "semi", "anti"]
_HOWS: Final = ("left", "inner", "semi", "anti")
# how many keys are looked up at once
_KEYS: Final = 50_000


def lookup_join(
    frame: pl.LazyFrame,
    table: str | TablePath,
    *,
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    how: JoinHow = "left",
    columns: Sequence[str] | None = None,
    suffix: str = "_right",
    connection: object | None = None,
) -> pl.LazyFrame:
    """Join a frame with a primary-key table by looking keys up; also ``lf.fluss.lookup_join(...)``.

    Nothing of the table is read but the rows whose keys the frame has: for a small frame, or one
    that follows a log. Each batch of the frame sees the table as it is when the batch is joined.
    Rows keep their order; a row whose key is null, or no value of the key's type, has no match.

    Parameters
    ----------
    frame
        The left side.
    table
        The right side: a primary-key table, as for :func:`scan_fluss`.
    on
        The columns of the frame that are the primary key: names that are the same on both sides, or
        a dict of the frame's names to those of the table. By default the names of the primary key.
    how
        ``"left"`` keeps rows without a match, with nulls; ``"inner"`` leaves them out; ``"semi"``
        and ``"anti"`` keep the rows of the frame that have a match, or none.
    columns
        The columns of the table to add; by default all besides its key.
    suffix
        Appended to names of the table's columns that the frame also has.
    connection
        As for :func:`scan_fluss`.

    Raises
    ------
    FlussError
        When the table has no primary key, or ``on`` does not name all of it; names both.
    SchemaMismatchError
        When a column has not the type of its key, and when two columns of the result would have
        the same name.

    Examples
    --------
    >>> flights.fluss.lookup_join("planes", on="tailnum")  # doctest: +SKIP
    """
    opened = resolve_connection(connection)
    path = TablePath.parse(table, opened.default_database)
    info = opened.get_table(path).get_table_info()
    if not info.has_primary_key():
        raise FlussError(
            f"table {path} has no primary key, by which rows could be looked up: join with"
            " scan_fluss(...) instead",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    if how not in _HOWS:
        raise FlussError(f"how={how!r}: expected one of {', '.join(map(repr, _HOWS))}")
    left = frame.collect_schema()
    keys = _key_columns(info, on, left)
    names = bind_columns(info, columns)
    added = [name for name in names if name not in keys] if columns is None else list(names)
    if how in ("left", "inner"):
        _require_free_names(path, added, left.names(), suffix)
    needed = {*added, *keys}
    wanted = tuple(n for n in info.get_column_names() if n in needed)
    source = ScanSource(opened, path, wanted, (), frame_schema(info, wanted, ()), keyed=True)
    join = LookupJoin(source, keys, added, how, suffix)
    return frame.map_batches(
        join,
        schema=join.apply(left.to_frame(), None).schema,
        predicate_pushdown=False,
        projection_pushdown=False,
        streamable=True,
    )


def _require_free_names(
    path: TablePath, added: Sequence[str], left: Sequence[str], suffix: str
) -> None:
    taken = dict.fromkeys(left, "the frame")
    for name in added:
        new = f"{name}{suffix}" if name in left else name
        if new in taken:
            raise SchemaMismatchError(
                f"lookup_join: column '{name}' of table {path} would be called '{new}', as a column"
                f" of {taken[new]} is: choose another suffix={suffix!r}, or fewer columns=[...]"
            )
        taken[new] = "the table"


def _key_columns(
    info: TableInfo, on: str | Sequence[str] | Mapping[str, str] | None, left: pl.Schema
) -> dict[str, str]:
    """Return for each column of the primary key the frame's column that has its values."""
    wanted = info.get_primary_keys()
    if on is None:
        on = wanted
    if isinstance(on, str):
        on = [on]
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    by_key = {key: name for name, key in pairs.items()}
    if sorted(by_key) != sorted(wanted) or len(by_key) != len(pairs):
        raise FlussError(
            f"on={on!r}: rows of table {info.table_path} are looked up by its whole primary key:"
            f" {', '.join(wanted)}"
        )
    require_columns(list(pairs), left.names(), "lookup_join: the frame:")
    types = polars_schema(pa.schema([info.schema.arrow_schema.field(key) for key in wanted]))
    for key in wanted:
        found, needed = left[by_key[key]], types[key]
        if found != needed and not (found.is_integer() and needed.is_integer()):
            raise SchemaMismatchError(
                f"lookup_join: column '{by_key[key]}' is {found}, and column '{key}' of the primary"
                f" key of table {info.table_path} is {needed}: cast the one of the frame"
            )
    return {key: by_key[key] for key in wanted}


class LookupJoin:
    """Joins the batches of a frame; it can be pickled.

    ``keys`` has the frame's column for each column of the table's primary key. ``added`` are the
    table's columns to add. ``how`` and ``suffix`` are those of :func:`lookup_join`.
    """

    def __init__(
        self,
        source: ScanSource,
        keys: Mapping[str, str],
        added: Sequence[str],
        how: JoinHow,
        suffix: str,
    ) -> None:
        self._source = source
        self._keys = dict(keys)
        self._added = list(added)
        self._how = how
        self._suffix = suffix
        self._types = polars_schema(source.schema)
        self._lookuper: Lookuper | None = None
        self.runs = Runs()
        self._plan: ScanPlan | None = None

    def __reduce__(self) -> tuple[object, ...]:
        found = getattr(_looking, "joins", None)
        if found is not None:
            found.append(self)
        return LookupJoin, (self._source, self._keys, self._added, self._how, self._suffix)

    def __call__(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Join a batch."""
        return self.apply(batch, self._opened() if batch.height else None)

    @property
    def plan(self) -> ScanPlan:
        """What is looked up, as the table was when it was first asked for."""
        if self._plan is None:
            source = self._source
            info = self._connection.get_table(source.table).get_table_info()
            on = ", ".join(
                key if key == name else f"{key} = {name}" for key, name in self._keys.items()
            )
            self._plan = ScanPlan(
                table=source.table,
                table_id=info.table_id,
                schema_id=info.schema_id,
                columns=source.columns,
                metadata_columns=(),
                splits=(),
                pushed=(on,),
                of_columns=info.get_column_count(),
                of_buckets=info.num_buckets,
                reads="lookup of the keys of each batch",
            )
        return self._plan

    def _opened(self) -> Lookuper:
        if self._lookuper is None:
            table = self._connection.get_table(self._source.table)
            check_schema(table.get_table_info(), self._source)
            self._lookuper = table.new_lookup().create_lookuper()
        return self._lookuper

    @property
    def _connection(self) -> FlussConnection:
        return self._source.connection

    def apply(self, batch: pl.DataFrame, lookuper: Lookuper | None) -> pl.DataFrame:
        """Join a batch with the rows that a lookuper finds; with none, where there is none."""
        # names that no column of a frame can have
        sides = {key: f"\0{key}" for key in self._keys}
        left = batch.with_columns(
            exact(name).cast(self._types[key], strict=False).alias(sides[key])
            for key, name in self._keys.items()
        )
        rows = [pl.DataFrame(schema=self._types)]
        if lookuper is not None:
            keys = left.select(exact(side).alias(key) for key, side in sides.items())
            keys = self._possible(keys.unique().drop_nulls())
            rows += self._found(lookuper, _with_both_zeros(keys))
        right = pl.concat(rows).select(
            *(exact(key).alias(side) for key, side in sides.items()), *all_exact(self._added)
        )
        joined = left.join(
            right,
            on=list(sides.values()),
            how=self._how,
            suffix=self._suffix,
            maintain_order="left" if self._how in ("left", "inner") else None,
        )
        return joined.drop(list(sides.values()))

    def _possible(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Leave out keys whose texts or bytes are of a length that their column does not hold."""
        info = self._connection.get_table(self._source.table).get_table_info()
        for column in info.schema.columns:
            length = column.type.length
            if column.name not in self._keys or length is None:
                continue
            if column.type.root is TypeRoot.CHAR:
                keys = keys.filter(exact(column.name).str.len_chars() <= length)
            elif column.type.root is TypeRoot.BINARY:
                keys = keys.filter(exact(column.name).bin.size() == length)
        return keys

    def _found(self, lookuper: Lookuper, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        run = ScanRun(self.plan, ScanMetrics())
        run.opened()
        self.runs.began(run)
        try:
            for part in keys.iter_slices(_KEYS):
                run.looks_up(self._source.columns, part.height)
                rows = lookuper.lookup_arrow(part.to_arrow(), metrics=run.metrics)
                found = rows.filter(rows.column(keys.columns[0]).is_valid())
                yield to_polars(found.select(list(self._source.columns)))
        finally:
            run.dropped()


def _with_both_zeros(keys: pl.DataFrame) -> pl.DataFrame:
    """Return keys with -0.0 for 0.0 too, and the other way: Polars joins both as equal."""
    for name, kind in keys.schema.items():
        if kind.is_float():
            zero = exact(name) == 0
            zeros = keys.filter(zero)
            if zeros.height:
                signs = [zeros.with_columns(pl.lit(z, kind).alias(name)) for z in (0.0, -0.0)]
                keys = pl.concat([keys.filter(~zero), *signs])
    return keys


_looking = threading.local()


def lookup_joins(frame: pl.LazyFrame) -> list[LookupJoin]:
    """Return the lookup joins of a query; none of one that cannot be pickled."""
    found: list[LookupJoin] = []
    _looking.joins = found
    try:
        with contextlib.suppress(*NOT_SERIALIZED):
            serialized(frame)
    finally:
        _looking.joins = None
    return found
