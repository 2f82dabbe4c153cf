"""Rows that a user gives, as frames with the columns of the table they are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ibis
import ibis.expr.operations as ops
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa

from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact
from fluss_df.schema import TableInfo
from fluss_df.types import TypeRoot


def frame_of(obj: Any, compiled: Callable[[ir.Expr], pl.LazyFrame]) -> pl.LazyFrame | pl.DataFrame:
    """Return what a user gave as a frame; data in memory stays in memory."""
    if isinstance(obj, (pl.LazyFrame, pl.DataFrame)):
        return obj
    if isinstance(obj, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        rows = obj.read_all() if isinstance(obj, pa.RecordBatchReader) else obj
        made = pl.from_arrow(rows)
        assert isinstance(made, pl.DataFrame)
        return made
    expr = obj if isinstance(obj, ir.Expr) else ibis.memtable(obj)
    node = expr.as_table().op()
    if isinstance(node, ops.InMemoryTable):
        # taken as it is, without registering a name in this connection
        frame: pl.DataFrame = node.data.to_polars(node.schema)
        return frame
    return compiled(expr)


def by_position(
    frame: pl.LazyFrame | pl.DataFrame, columns: Sequence[str], path: object
) -> pl.LazyFrame | pl.DataFrame:
    """Name a frame's columns as those they are written to, in order."""
    names = frame.collect_schema().names()
    if len(names) != len(columns):
        raise FlussError(
            f"table {path}: {len(names)} columns ({', '.join(names)}) given for {len(columns)}"
            f" ({', '.join(columns)})"
        )
    return frame.rename(dict(zip(names, columns, strict=True)))


def require_places(names: Sequence[str], columns: Sequence[str], path: object) -> None:
    """Refuse names of which some are the table's, at other places, and some are not."""
    known = frozenset(columns)
    for at, name in enumerate(names):
        if name in known and columns[at : at + 1] != [name]:
            other = next(each for each in names if each not in known)
            raise FlussError(
                f"table {path}: column '{other}' is none of {', '.join(columns)}, so columns would"
                f" be matched by position, and '{name}' is at another one: name all of them as the"
                " table does"
            )


def with_nulls(frame: pl.LazyFrame | pl.DataFrame, info: TableInfo) -> pl.LazyFrame | pl.DataFrame:
    """Add the nullable columns of a table that a frame does not have."""
    # columns that the server numbers (auto increment) are not written
    there = {*frame.collect_schema().names(), *info.schema.auto_increment}
    missing = [c.name for c in info.schema.columns if c.name not in there and c.type.nullable]
    return frame.with_columns(pl.lit(None).alias(name) for name in missing)


def floats_of_decimals(
    frame: pl.LazyFrame | pl.DataFrame, info: TableInfo
) -> pl.LazyFrame | pl.DataFrame:
    """Make floats of decimals for columns of floats: a number with a point is a decimal in SQL."""
    kinds = frame.collect_schema()
    wanted = [
        exact(c.name).cast(pl.Float64)
        for c in info.schema.columns
        if c.type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE)
        and isinstance(kinds.get(c.name), pl.Decimal)
    ]
    return frame.with_columns(wanted) if wanted else frame
