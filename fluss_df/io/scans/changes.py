"""The changes of a table as frames: rows of ``$changelog`` and ``$binlog``.

Rows of a changelog do not stand one for one for offsets, so they are counted by reading them. The
rows that a range of offsets has are those whose ``_log_offset`` is in it: an update of a binlog has
the offset of its first half, and is whole wherever the range ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from fluss_df.client.fetch.chunk_read import positions_of
from fluss_df.client.fetch.parallel import ParallelRead, default_ahead_bytes, read_table
from fluss_df.client.fetch.table_decoder import METADATA_FIELDS
from fluss_df.client.runtime.metrics import Metrics
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.base.arrow import to_polars
from fluss_df.io.scans.offsets import from_log_start
from fluss_df.io.source import ScanSource
from fluss_df.metadata import BUCKET_COLUMN, CHANGE_TYPE_COLUMN, CHANGELOG_COLUMNS, PARTITION_COLUMN
from fluss_df.pushdown.plan import Split, bind_metadata, bind_names
from fluss_df.record.change_tables import (
    AFTER_COLUMN,
    BEFORE_COLUMN,
    BinlogMaker,
    ChangeTable,
    to_changelog,
)
from fluss_df.schema import TableInfo

_Place: TypeAlias = tuple[str | None, int]

_IMAGE = "table.changelog.image"
_ROWS = (BEFORE_COLUMN, AFTER_COLUMN)


def check_changes(info: TableInfo, kind: ChangeTable) -> None:
    """Raise when a table has no such changes.

    Raises ``INVALID_TABLE_EXCEPTION`` for ``$binlog`` of a table without primary key, or whose
    changelog lacks the rows before updates; or which has a column ``_bucket`` of its own.
    """
    name = f"{info.table_path}{kind.value}"
    if kind is ChangeTable.CHANGELOG:
        return
    clash = sorted({PARTITION_COLUMN, BUCKET_COLUMN} & {*info.get_column_names()})
    if clash:
        why = f"the table has a column '{clash[0]}' of its own: use $changelog"
    elif not info.has_primary_key():
        why = f"the table has no primary key: use {info.table_path}$changelog"
    elif info.get_properties().get(_IMAGE, "").upper() == "WAL":
        why = f"'{_IMAGE}' is WAL, which keeps no rows before updates: use $changelog"
    else:
        return
    raise FlussError(f"there is no {name}: {why}", ErrorCode.INVALID_TABLE_EXCEPTION)


def changes_schema(
    info: TableInfo,
    kind: ChangeTable,
    columns: Iterable[str] | None,
    include_metadata: bool | Iterable[str],
) -> pa.Schema:
    """Return the columns of a scan of changes: those wanted, then ``_partition`` and ``_bucket``.

    ``columns`` are of the virtual table, None for all. ``include_metadata`` has the names of
    metadata columns to add; True adds all that the virtual table does not have.
    """
    whole = kind.schema(info.schema.arrow_schema)
    names = bind_names(columns, whole.names, f"table {info.table_path}{kind.value}:")
    extra = [n for n in bind_metadata(info, include_metadata) if n not in whole.names]
    return pa.schema(
        [*(whole.field(name) for name in names), *(METADATA_FIELDS[name] for name in extra)]
    )


def table_columns(info: TableInfo, kind: ChangeTable, names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of the table that columns of its changes are made of."""
    wanted, own = set(names), info.get_column_names()
    if kind is ChangeTable.BINLOG:
        return tuple(own) if wanted & {*_ROWS} else ()
    return tuple(name for name in own if name in wanted)


class ChangeRows:
    """The columns of a changelog to read for some columns of changes, and how to compute these."""

    def __init__(self, info: TableInfo, kind: ChangeTable, names: Sequence[str]) -> None:
        self.kind = kind
        self.names = list(names)
        self.columns = table_columns(info, kind, names)
        if kind is ChangeTable.BINLOG and not self.columns:
            # at least one column, because without any no rows could be counted
            self.columns = tuple(info.get_column_names()[:1])
        places = ({PARTITION_COLUMN, BUCKET_COLUMN} & {*names}) - {*info.get_column_names()}
        if kind is ChangeTable.BINLOG:
            places = {BUCKET_COLUMN, *((PARTITION_COLUMN,) if info.is_partitioned() else ())}
        self.metadata = (*CHANGELOG_COLUMNS, *sorted(places))
        self._places = sorted(places)
        fields = info.schema.arrow_schema
        self._maker = BinlogMaker(
            pa.schema([fields.field(name).with_nullable(True) for name in self.columns])
        )

    def changelog(self, changes: pa.Table) -> pl.DataFrame:
        """Return rows of ``$changelog``."""
        return to_polars(to_changelog(changes).select(self.names))

    def binlog(self, changes: pa.Table, place: _Place) -> pl.DataFrame:
        """Return rows of ``$binlog``; what follows has to come next of its bucket."""
        made = self._maker.add(changes.drop_columns(self._places), place)
        for name in self._places:
            value = place[1] if name == BUCKET_COLUMN else place[0]
            field = METADATA_FIELDS[name]
            made = made.append_column(field, pa.repeat(pa.scalar(value, field.type), len(made)))
        return to_polars(made.select(self.names))

    def half_an_update(self, place: _Place) -> bool:
        """Whether the row after an update of a bucket is still to come."""
        return self._maker.is_pending(place)

    def frame(self, changes: pa.Table, place: _Place) -> pl.DataFrame:
        """Return the rows that changes of one bucket are."""
        if self.kind is ChangeTable.CHANGELOG:
            return self.changelog(changes)
        return self.binlog(changes, place)


def read_changes(
    source: ScanSource,
    info: TableInfo,
    kind: ChangeTable,
    splits: Sequence[Split],
    names: Sequence[str],
    metrics: Metrics,
) -> Iterator[pl.DataFrame | None]:
    """Yield the changes of splits in order; None when nothing came for a while.

    ``names`` are the columns of the frames.
    """
    rows = ChangeRows(info, kind, names)
    convert: Callable[[pa.Table], pl.DataFrame | pa.Table] = (
        rows.changelog if kind is ChangeTable.CHANGELOG else lambda changes: changes
    )
    read = ParallelRead(
        source.connection,
        info,
        rows.columns,
        rows.metadata,
        positions_of(info.table_id, splits, from_log_start(source, info)),
        metrics,
        convert,
        ahead_bytes=default_ahead_bytes(),
        apart=kind is ChangeTable.BINLOG,
    )
    with read:
        if kind is ChangeTable.CHANGELOG:
            yield from (None if piece is None else _frame(piece) for piece in read)
            return
        by_place = {(s.partition_name, s.bucket_id): s for s in splits}
        place: _Place | None = None
        for piece in read:
            if piece is None:
                yield None
                continue
            changes = _table(piece)
            found = _place(changes)
            if found != place:
                if place is not None:
                    yield from _second_half(source, info, rows, by_place[place], metrics)
                place = found
                changes = whole_updates(changes, kind)
            yield rows.binlog(changes, place)
        if place is not None:
            yield from _second_half(source, info, rows, by_place[place], metrics)


def _frame(piece: pl.DataFrame | pa.Table) -> pl.DataFrame:
    assert isinstance(piece, pl.DataFrame)
    return piece


def _table(piece: pl.DataFrame | pa.Table) -> pa.Table:
    assert isinstance(piece, pa.Table)
    return piece


def _place(changes: pa.Table) -> _Place:
    """Return of which bucket changes are; they are all of one."""
    names = changes.column_names
    partition = changes.column(PARTITION_COLUMN)[0].as_py() if PARTITION_COLUMN in names else None
    return partition, changes.column(BUCKET_COLUMN)[0].as_py()


def whole_updates(changes: pa.Table, kind: ChangeTable) -> pa.Table:
    """Return a range's first changes without the end of an update that begins before the range."""
    first = changes.column(CHANGE_TYPE_COLUMN)[0].as_py()
    return changes.slice(1) if kind is ChangeTable.BINLOG and first == "+U" else changes


def _second_half(
    source: ScanSource, info: TableInfo, rows: ChangeRows, split: Split, metrics: Metrics
) -> Iterator[pl.DataFrame]:
    """Yield the update whose first half is the last row of a split; both are in one batch."""
    place = (split.partition_name, split.bucket_id)
    if not rows.half_an_update(place):
        return
    last = Split(split.partition_id, *place, split.stop, split.stop + 1)
    changes = read_table(
        source.connection,
        info,
        rows.columns,
        positions_of(info.table_id, [last]),
        metrics,
        rows.metadata,
    )
    yield rows.binlog(changes, place)
