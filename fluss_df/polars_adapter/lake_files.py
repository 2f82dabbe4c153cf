"""Scans of Parquet files as Polars' own Iceberg reader makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source


def scan_by_ids(
    paths: Sequence[str],
    schema: Mapping[str, pl.DataType],
    ids: pa.Schema,
    *,
    rows: int | None = None,
    **options: Any,
) -> pl.LazyFrame:
    """Return the rows of Parquet files whose columns are found by their field ids.

    Parameters
    ----------
    paths
        The files.
    schema
        The columns of the result.
    ids
        The same columns with their ids, as ``PARQUET:field_id`` in the metadata of the fields.
    rows
        How many rows the files have, by which Polars chooses the side of a join; None if unknown.
    options
        Others of ``polars.scan_parquet``.
    """
    return pl.scan_parquet(
        list(paths),
        schema=dict(schema),
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
        # as Iceberg allows columns to be widened
        cast_options=pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast"),
        _column_mapping=("iceberg-column-mapping", ids),
        _row_count=None if rows is None else (rows, 0),
        **options,
    )


def scan_frames(
    read: Callable[[list[str], int | None], Iterable[pl.DataFrame]], schema: Mapping[str, Any]
) -> pl.LazyFrame:
    """Return the rows of files that Polars has no reader of.

    Parameters
    ----------
    read
        Yields parts of the rows, given the names of the columns to have, in this order, and how
        many rows are enough; it is called at each collect.
    schema
        All columns.
    """
    names = list(schema)

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for found in read(names if with_columns is None else with_columns, n_rows):
            if left is not None:
                found = found.head(left)
                left -= found.height
            yield found if predicate is None else found.filter(predicate)
            if left == 0:
                return

    return register_io_source(source, schema=dict(schema))


def is_of_parquet(error: Exception) -> bool:
    """Whether an error of Polars is about a Parquet file; of damage, it does not say which."""
    if isinstance(error, FileNotFoundError):
        return ".parquet" in str(error)
    return isinstance(error, pl.exceptions.ComputeError) and str(error).startswith("parquet:")


def first_unreadable(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the first of some Parquet files that cannot be read, and why; None where all can."""
    for path in paths:
        try:
            for _ in pl.scan_parquet(path, glob=False).collect_batches(maintain_order=False):
                pass
        except (pl.exceptions.PolarsError, OSError) as error:
            return path, str(error)
    return None


def retyped(column: pl.Expr, there: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    """Return a column in another type; keys of maps, which Polars does not cast, in theirs, too.

    Parameters
    ----------
    column, there
        The column, and the type that it has.
    wanted
        The type that it is to have.
    """
    if there == wanted:
        return column
    plain, plain_wanted = _without_maps(there), _without_maps(wanted)
    if plain != there:
        column = column.cast(plain)
    if plain_wanted != wanted:
        column = column.cast(plain_wanted)
    return column.cast(wanted)


def _without_maps(kind: Any) -> Any:
    """Return a type with lists of entries in place of maps."""
    match kind:
        case pl.Map():
            return pl.List(
                pl.Struct({"key": _without_maps(kind.key), "value": _without_maps(kind.value)})
            )
        case pl.List():
            return pl.List(_without_maps(kind.inner))
        case pl.Struct():
            return pl.Struct({field.name: _without_maps(field.dtype) for field in kind.fields})
    return kind
