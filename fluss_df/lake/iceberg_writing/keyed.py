"""Changes of a primary-key bucket, put into its lake files by copy-on-write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import polars as pl
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import PrimitiveType

from fluss_df.hooks import undoing
from fluss_df.lake.iceberg.frames import columns, with_row_number
from fluss_df.lake.iceberg_writing.compaction import small_files
from fluss_df.lake.iceberg_writing.files import LakeFiles, RollingWriter
from fluss_df.lake.iceberg_writing.live_rows import LiveRows, PartitionFiles
from fluss_df.lake.rounds.split import Partition
from fluss_df.metadata import CHANGE_TYPE_COLUMN
from fluss_df.record.layout.columns import with_columns


@dataclass(frozen=True, slots=True)
class Replacement:
    """Files to add to a partition, and the data files that they stand for."""

    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]


def last_changes(
    changes: Iterable[pa.Table], keys: Sequence[str], in_lake: Callable[[pa.Table], pl.DataFrame]
) -> tuple[pl.DataFrame, pa.Table]:
    """Return the keys that changed, as the lake has them, and the rows that are there of them.

    ``changes`` are those of a bucket in their order, with the column ``_change_type``. ``in_lake``
    converts keys to the lake's types. Keys that are equal there are one key in Fluss, too: tables
    where they are not (timestamps of nanoseconds beside another key) have no task writer.
    """
    tables = []
    for table in changes:
        kinds = table.column(CHANGE_TYPE_COLUMN).cast(pa.string())
        new = pl.Series(pl.from_arrow(kinds)) != "-U"
        tables.append(table.filter(new.to_arrow()))
    rows = pa.concat_tables(tables)
    frame, row = with_row_number(in_lake(rows.select(list(keys))))
    last = frame.unique(columns(keys), keep="last").sort(row)
    rows = rows.take(last[row].to_arrow())
    alive = pl.Series(pl.from_arrow(rows.column(CHANGE_TYPE_COLUMN).cast(pa.string()))) != "-D"
    return last.drop(row), rows.filter(alive.to_arrow()).drop_columns([CHANGE_TYPE_COLUMN])


def replace_rows(
    files: LakeFiles,
    partition: Partition,
    existing: PartitionFiles,
    keys: Sequence[str],
    touched: pl.DataFrame,
    rows: Iterable[pa.Table],
) -> Replacement:
    """Write the files that a partition has after its rows of some keys were replaced.

    Files with a row of such a key, or with rows that delete files delete, are written again without
    them: afterwards no delete file applies to a file of the partition.

    Parameters
    ----------
    files
        Writes the new files.
    partition
        The values of the partition's fields.
    existing
        The files that the partition has.
    keys
        The columns of the primary key.
    touched
        The keys whose rows are removed.
    rows
        The rows that are added, with the columns of the lake table.
    """
    live = LiveRows(files.table, existing)
    removed = [
        (sequence, file)
        for sequence, file in existing.data
        if live.has_deletes(sequence, file) or _has(live, sequence, file, keys, touched, files)
    ]
    paths = {file.file_path for _, file in removed}
    removed += [(at, file) for at, file in small_files(existing) if file.file_path not in paths]
    writer: RollingWriter = files.writer(partition)
    with undoing(writer.abort):
        for sequence, file in removed:
            for batch in live.batches(sequence, file):
                writer.write(with_columns(_without(batch, keys, touched), files.arrow_schema))
        for table in rows:
            writer.write(table)
        return Replacement(tuple(writer.close()), tuple(file for _, file in removed))


def _has(
    live: LiveRows,
    sequence: int,
    file: DataFile,
    keys: Sequence[str],
    touched: pl.DataFrame,
    files: LakeFiles,
) -> bool:
    """Whether a file has a row of the keys."""
    if not touched.height or any(_out_of_bounds(file, key, touched, files) for key in keys):
        return False
    for batch in live.batches(sequence, file, keys):
        # the file may be older than a change of the column to a wider type
        frame = pl.DataFrame(pl.from_arrow(batch)).cast(dict(touched.schema))  # type: ignore[arg-type]
        if frame.join(touched, on=columns(keys), how="semi").height:
            return True
    return False


def _out_of_bounds(file: DataFile, key: str, touched: pl.DataFrame, files: LakeFiles) -> bool:
    """Whether the statistics of a file say that no key is in it."""
    field = files.table.schema().find_field(key)
    values = touched[key]
    if values.dtype in (pl.Date, pl.Datetime):
        # some moments of tables have no value in Python: numbers are compared, as Iceberg has them
        values = values.to_physical()
    if not values.dtype.is_integer() or not isinstance(field.field_type, PrimitiveType):
        # values of other types differ between Polars and Iceberg in Python
        return False
    lower = (file.lower_bounds or {}).get(field.field_id)
    upper = (file.upper_bounds or {}).get(field.field_id)
    if lower is None or upper is None:
        return False
    low, high = cast("int", values.min()), cast("int", values.max())
    first: Any = from_bytes(field.field_type, lower)
    last: Any = from_bytes(field.field_type, upper)
    return bool(high < first or low > last)


def _without(rows: pa.Table, keys: Sequence[str], touched: pl.DataFrame) -> pa.Table:
    if not touched.height or not rows.num_rows:
        return rows
    frame = pl.DataFrame(pl.from_arrow(rows.select(list(keys)))).cast(dict(touched.schema))  # type: ignore[arg-type]
    frame, row = with_row_number(frame)
    kept = frame.join(touched, on=columns(keys), how="anti", maintain_order="left")
    if kept.height == rows.num_rows:
        return rows
    return rows.take(kept[row].to_arrow())
