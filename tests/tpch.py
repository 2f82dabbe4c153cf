"""The data of TPC-H for tests, and what its queries give in DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import ibis
import polars as pl
import polars.selectors as cs
from polars.testing import assert_frame_equal

SCALE = 0.01
# Ibis's tests hold the queries as SQL, too
_SQL = Path(ibis.__file__).parent / "backends" / "tests" / "tpc" / "queries" / "duckdb" / "h"


def sql(number: int) -> str:
    """Return a query as SQL."""
    return (_SQL / f"{number:02}.sql").read_text()


def connect(files: Mapping[str, Path]) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB that has the files as views."""
    made = duckdb.connect()
    for name, path in files.items():
        made.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
    return made


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Give results the same names and types: decimals have other digits in DuckDB."""
    names = [f"c{at}" for at in range(frame.width)]
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return frame.with_columns(
        pl.col(pl.Decimal).cast(pl.Float64),
        cs.integer().cast(pl.Float64),
        cs.datetime().cast(pl.Date),
    )


def check(
    duck: duckdb.DuckDBPyConnection, number: int, found: pl.DataFrame, *, empty_sum: Any = None
) -> None:
    """Compare with DuckDB, whose sum of no rows is null."""
    rows: Any = duck.sql(sql(number)).to_arrow_table()
    expected = pl.from_arrow(rows)
    assert isinstance(expected, pl.DataFrame)
    assert expected.height
    expected = _plain(expected)
    if empty_sum is not None:
        expected = expected.with_columns(cs.numeric().fill_null(empty_sum))
    assert_frame_equal(_plain(found), expected, check_dtypes=False, abs_tol=0.01, rel_tol=1e-9)
