"""Scans of Parquet files as Polars' own Iceberg reader makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa


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
        Passed on to ``polars.scan_parquet``.
    """
    return pl.scan_parquet(
        list(paths),
        schema=dict(schema),
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
        # Iceberg allows columns to be changed to wider types
        cast_options=pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast"),
        _column_mapping=("iceberg-column-mapping", ids),
        _row_count=None if rows is None else (rows, 0),
        **options,
    )


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
    """Return a column in another type.

    Keys of maps get the wanted type, too, though Polars does not cast them. ``there`` is the type
    that the column has.
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
