"""Merges files of a bucket by key, in bounded memory: each is sorted by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.lake.paimon_writing.schema import WriteSchema
from fluss_df.lake.rounds.lake_rows import viewed

# how many rows of all runs together are in memory at once, and of one run at the least
_ROWS: Final = 1 << 17
_LEAST_ROWS: Final = 256
_BUFFER_BYTES: Final = 1 << 18
_SEQUENCE: Final = "sequence"
_ROW: Final = "row"
# inserts and rows after an update
_ALIVE: Final = (0, 2)


def file_batches(path: str, schema: WriteSchema, rows: int) -> Iterator[pa.Table]:
    """Yield the rows of a file, with the columns of files; one that it lacks is null."""
    with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet:
        for batch in parquet.iter_batches(rows):
            part = pa.Table.from_batches([batch])
            columns = [_column(part, field, path) for field in schema.file]
            yield pa.Table.from_arrays(columns, schema=schema.file)


def _column(rows: pa.Table, field: pa.Field, path: str) -> pa.ChunkedArray | pa.Array:
    at = rows.schema.get_field_index(field.name)
    if at < 0:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(at)
    if not _same(column.type, field.type):
        raise FlussError(
            f"{path}: column {field.name!r} is {column.type} where the lake table has {field.type};"
            " let Paimon's own compaction merge its files",
            ErrorCode.CORRUPT_MESSAGE,
        )
    return viewed(column, field.type)


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether types are the same but for the names of nested fields."""
    if not pa.types.is_nested(other):
        return bool(one == other)
    return (
        one.id == other.id
        and one.num_fields == other.num_fields
        and all(_same(one.field(at).type, other.field(at).type) for at in range(other.num_fields))
    )


def merged(
    runs: Sequence[tuple[int, Sequence[str]]], schema: WriteSchema, path: object
) -> Iterator[pa.Table]:
    """Yield the newest row of each key, in the order of keys, without deletes.

    A run is the number of its rows, and the names of its files: keys rise within each file, and
    from file to file. ``path`` is the table's, for errors. Raises FlussError where the keys of a
    run do not rise.
    """
    total = max(sum(rows for rows, _ in runs), 1)
    # each run has a share by its rows, so that all come to their ends together
    sources = [
        _rows_of(files, schema, max(_ROWS * rows // total, _LEAST_ROWS)) for rows, files in runs
    ]
    count = len(schema.keys)
    names = [str(at) for at in range(count)]
    pool, owners = schema.file.empty_table(), np.empty(0, dtype=np.int64)
    more = np.ones(len(sources), dtype=bool)
    hungry = list(range(len(sources)))
    edge: pl.DataFrame | None = None
    while True:
        parts, of_parts = [pool], [owners]
        for at in hungry:
            batch = next(sources[at], None)
            if batch is None:
                more[at] = False
            else:
                parts.append(batch)
                of_parts.append(np.full(batch.num_rows, at, dtype=np.int64))
        pool, owners = pa.concat_tables(parts), np.concatenate(of_parts)
        if not pool.num_rows:
            return
        own = pool.select(range(count + 1)).rename_columns([*names, _SEQUENCE])
        order = pl.DataFrame(pl.from_arrow(own)).with_row_index(_ROW).sort([*names, _SEQUENCE])
        rows = order[_ROW].to_numpy()
        keys = order.select(names)
        group = keys.select(pl.struct(names).rle_id()).to_series().to_numpy().astype(np.int64)
        _require_order(rows, owners[rows], group, edge, keys, path)
        # a run that has more rows may go on after its last key here: stop at the least of these
        last = np.zeros(len(sources), dtype=np.int64)
        np.maximum.at(last, owners[rows], group)
        fence = int(last[more].min()) if more.any() else int(group[-1])
        end = int(np.searchsorted(group, fence, side="right"))
        newest = np.append(group[1:end] != group[: end - 1], True)
        found = pool.take(pa.array(rows[:end][newest]))
        kinds = pl.Series(pl.from_arrow(found.column(count + 1)))
        yield found.filter(kinds.is_in(_ALIVE).to_arrow())
        edge = keys[end - 1]
        hungry = [int(at) for at in np.flatnonzero(more & (last <= fence))]
        rest = rows[end:]
        pool, owners = pool.take(pa.array(rest)), owners[rest]


def _rows_of(files: Sequence[str], schema: WriteSchema, rows: int) -> Iterator[pa.Table]:
    for file in files:
        yield from (batch for batch in file_batches(file, schema, rows) if batch.num_rows)


def _require_order(
    rows: np.ndarray,
    owners: np.ndarray,
    group: np.ndarray,
    edge: pl.DataFrame | None,
    keys: pl.DataFrame,
    path: object,
) -> None:
    """Look whether rows are in their runs in the order of keys, each key once."""
    by_run = np.argsort(owners, kind="stable")
    same = np.diff(owners[by_run]) == 0
    steps = (np.diff(rows[by_run].astype(np.int64)) > 0) & (np.diff(group[by_run]) > 0)
    ordered = bool(steps[same].all())
    if ordered and edge is not None:
        two = pl.concat([edge, keys[0]])
        ordered = two.sort(two.columns, maintain_order=True).equals(two) and not edge.equals(
            keys[0]
        )
    if not ordered:
        raise FlussError(
            f"lake table {path}: keys do not rise in a file of its; let Paimon's own compaction"
            " merge it",
            ErrorCode.CORRUPT_MESSAGE,
        )
