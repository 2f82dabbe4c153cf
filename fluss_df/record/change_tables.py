"""The virtual tables ``$changelog`` and ``$binlog`` of a table, made of its changelog.

Columns and values are those of Apache Fluss. ``$changelog`` has a row for each change, behind the
columns ``_change_type`` (``insert``, ``update_before``, ``update_after`` or ``delete``),
``_log_offset`` and ``_commit_timestamp``; those of log tables are inserts. ``$binlog`` has a row
for each insert, update or delete, with the row ``before`` and ``after`` it.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.metadata import (
    CHANGE_TYPE_COLUMN,
    CHANGELOG_COLUMNS,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    ChangeType,
)
from fluss_df.record.layout.taking import take_values

BEFORE_COLUMN: Final = "before"
AFTER_COLUMN: Final = "after"
CHANGELOG_TYPES: Final = ("insert", "insert", "update_before", "update_after", "delete")
BINLOG_TYPES: Final = ("insert", "insert", "update", "update", "delete")
_METADATA: Final = (
    pa.field(CHANGE_TYPE_COLUMN, pa.string(), nullable=False),
    pa.field(LOG_OFFSET_COLUMN, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP_COLUMN, pa.timestamp("ms", "UTC"), nullable=False),
)

Kinds = npt.NDArray[np.int64]


class ChangeTable(enum.Enum):
    """The virtual tables of a table; the values are what stands behind its name."""

    CHANGELOG = "$changelog"
    BINLOG = "$binlog"

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the virtual table of a table with these columns."""
        return (
            changelog_schema(columns) if self is ChangeTable.CHANGELOG else binlog_schema(columns)
        )


#: Behind the name of a table: its rows in the data lake.
LAKE_SUFFIX: Final = "$lake"


def split_virtual(name: str) -> tuple[str, str]:
    """Return the name of a table, and what is behind it for a virtual one; else an empty text.

    Raises FlussError for another virtual table.

    Examples
    --------
    >>> split_virtual("db.orders$lake")
    ('db.orders', '$lake')
    >>> split_virtual("orders")
    ('orders', '')
    """
    base, dollar, suffix = name.partition("$")
    if dollar and dollar + suffix not in (LAKE_SUFFIX, *(table.value for table in ChangeTable)):
        raise FlussError(
            f"table {name!r}: of virtual tables there are {base}$changelog, {base}$binlog and"
            f" {base}{LAKE_SUFFIX}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return base, dollar + suffix


def split_name(name: str) -> tuple[str, ChangeTable | None]:
    """Return the name of a table, and which of the virtual tables of its changes is meant.

    Raises FlussError for another virtual table.

    Examples
    --------
    >>> split_name("db.orders$binlog")
    ('db.orders', <ChangeTable.BINLOG: '$binlog'>)
    >>> split_name("orders")
    ('orders', None)
    """
    base, suffix = split_virtual(name)
    if suffix == LAKE_SUFFIX:
        raise FlussError(
            f"table {name!r}: what is in the data lake is read by scan_fluss, Ibis and SQL",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return base, ChangeTable(suffix) if suffix else None


def changelog_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of ``$changelog`` of a table with these columns."""
    return pa.schema([*_METADATA, *columns])


def binlog_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of ``$binlog`` of a table with these columns."""
    row = pa.struct(list(columns))
    return pa.schema([*_METADATA, pa.field(BEFORE_COLUMN, row), pa.field(AFTER_COLUMN, row)])


def to_changelog(changes: pa.Table) -> pa.Table:
    """Return the rows of ``$changelog`` for changes.

    The changes are as scanners return them. They have the columns ``_change_type`` (``+A``, ``+I``,
    ``-U``, ``+U`` or ``-D``), ``_log_offset`` and ``_commit_timestamp``, and any columns of the
    table.

    Examples
    --------
    >>> table = pa.table({"id": [1], "_change_type": ["+I"], "_log_offset": [7],
    ...     "_commit_timestamp": pa.array([0], pa.timestamp("ms", "UTC"))})
    >>> to_changelog(table).to_pylist()[0]["_change_type"]
    'insert'
    """
    rows = changes.drop_columns(list(CHANGELOG_COLUMNS))
    columns = [
        _named(_kinds(changes), CHANGELOG_TYPES),
        changes.column(LOG_OFFSET_COLUMN),
        changes.column(COMMIT_TIMESTAMP_COLUMN),
        *rows.columns,
    ]
    return pa.Table.from_arrays(columns, schema=changelog_schema(rows.schema))


class BinlogMaker:
    """Makes the rows of ``$binlog`` of changes that come in pieces.

    An update comes as two changes, ``-U`` and ``+U``, and becomes one row with the offset and the
    time of the first. Where a piece ends between the two, the first is kept for the next piece.

    ``columns`` are those of the table that rows have.

    Examples
    --------
    >>> maker = BinlogMaker(pa.schema([("id", pa.int64())]))
    >>> changes = pa.table({"id": [1], "_change_type": ["-D"], "_log_offset": [7],
    ...     "_commit_timestamp": pa.array([0], pa.timestamp("ms", "UTC"))})
    >>> maker.add(changes).column("before").to_pylist()
    [{'id': 1}]
    """

    def __init__(self, columns: pa.Schema) -> None:
        self.schema = binlog_schema(columns)
        self._names = columns.names
        self._row = self.schema.field(BEFORE_COLUMN).type
        self._pending: dict[Hashable, pa.Table] = {}

    def copy(self) -> BinlogMaker:
        """Return another one, which has been given the same."""
        made = copy.copy(self)
        made._pending = self._pending.copy()
        return made

    def add(self, changes: pa.Table, bucket: Hashable = None) -> pa.Table:
        """Return the rows that changes make.

        The changes are as for :func:`to_changelog`, in the order of their offsets, bucket after
        bucket. ``bucket`` names the bucket that they are of, so that the next changes of the same
        bucket join them.

        Raises FlussError for a row after an update without the row before it.
        """
        kept = self._pending.pop(bucket, None)
        if kept is not None:
            changes = pa.concat_tables([kept, changes], promote_options="permissive")
        kinds = _kinds(changes)
        if len(kinds) and kinds[-1] == ChangeType.UpdateBefore:
            self._pending[bucket] = changes.slice(len(kinds) - 1)
            changes, kinds = changes.slice(0, len(kinds) - 1), kinds[:-1]
        offsets = changes.column(LOG_OFFSET_COLUMN).to_numpy()
        self._check(kinds, offsets)
        places = np.flatnonzero(kinds != ChangeType.UpdateBefore)
        kinds = kinds[places]
        updated, deleted = kinds == ChangeType.UpdateAfter, kinds == ChangeType.Delete
        first = pa.array(places - updated)
        columns = [changes.column(name).cast(self._row.field(name).type) for name in self._names]
        parts = [
            pa.StructArray.from_arrays(part.columns, fields=list(self._row))
            for part in pa.table(columns, schema=pa.schema(list(self._row))).to_batches()
        ]
        rows = pa.chunked_array(parts, self._row)
        before = take_values(rows, pa.array(places - updated, mask=~(updated | deleted)))
        after = take_values(rows, pa.array(places, mask=deleted))
        times = [changes.column(name).take(first) for name in CHANGELOG_COLUMNS[1:]]
        columns = [_named(kinds, BINLOG_TYPES), *times, before, after]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def is_pending(self, bucket: Hashable = None) -> bool:
        """Whether the first half of an update was added, and the second is still to come."""
        return bucket in self._pending

    @staticmethod
    def _check(kinds: Kinds, offsets: npt.NDArray[np.int64]) -> None:
        begun = kinds == ChangeType.UpdateBefore
        ended = kinds == ChangeType.UpdateAfter
        torn = np.flatnonzero(ended & ~np.concatenate([[False], begun])[: len(kinds)])
        if len(torn):
            raise FlussError(
                f"the update at offset {offsets[torn[0]]} has no row before it: a table whose "
                "'table.changelog.image' is WAL has no $binlog, and one must not be read from "
                "between the two rows of an update"
            )
        lost = np.flatnonzero(begun[:-1] & ~ended[1:])
        if len(lost):
            raise ProtocolError(f"the update at offset {offsets[lost[0]]} has no row after it")


_CODES: Final = {kind.short_string(): kind.value for kind in ChangeType}


def _kinds(changes: pa.Table) -> Kinds:
    """Return the change type of each row."""
    column = changes.column(CHANGE_TYPE_COLUMN)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    parts = []
    for chunk in column.chunks:
        names = chunk.dictionary.to_pylist()
        if chunk.null_count or not set(names) <= _CODES.keys():
            raise FlussError(
                f"change types are {', '.join(_CODES)}, not {sorted(set(names) - _CODES.keys())}"
            )
        codes = np.array([_CODES[name] for name in names], np.int64)
        parts.append(codes[chunk.indices.to_numpy()])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _named(kinds: Kinds, names: tuple[str, ...]) -> pa.Array:
    return pc.take(pa.array(names), pa.array(kinds))
