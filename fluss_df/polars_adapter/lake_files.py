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


def is_of_parquet(error: BaseException) -> bool:
    """Whether an error of Polars may be about a Parquet file; of damage, it does not say which.

    A panic does not say what it is about.
    """
    if isinstance(error, pl.exceptions.PanicException):
        return True
    if isinstance(error, FileNotFoundError):
        return ".parquet" in str(error)
    return isinstance(error, pl.exceptions.ComputeError) and str(error).startswith("parquet:")


def first_unreadable(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the first of some Parquet files that cannot be read, and why; None where all can."""
    for path in paths:
        try:
            pl.scan_parquet(path, glob=False).sink_batches(_passed, maintain_order=False)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            return path, str(error)
    return None


def without_unreadable_filters(rows: pl.LazyFrame, filters: Iterable[pl.Expr]) -> pl.LazyFrame:
    """Return rows of Parquet files before which filters stay that Polars' reader cannot take.

    With ``is_in(..., nulls_equal=True)`` and a null among the values, the reader of Polars 2.1
    panics at pages without a dictionary. The filter is then Polars' next step instead.
    """
    if any(_compares_nulls(condition) for condition in filters):
        return rows.map_batches(_same, predicate_pushdown=False, streamable=True)
    return rows


def _compares_nulls(condition: pl.Expr) -> bool:
    try:
        return '"nulls_equal":true' in condition.meta.serialize(format="json")
    except pl.exceptions.PolarsError:
        # it has a Python function, and only a text could tell what else it has
        return "is_in" in str(condition)


def _passed(rows: pl.DataFrame) -> None:
    """Take rows, of which only matters that they can be read."""


def _same(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


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
