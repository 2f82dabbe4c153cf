"""Data with the columns of Ibis's test data, for a selection of its tests that runs anywhere.

``functional_alltypes`` is as the real one is made; the others have the same types and other values.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import ibis.expr.schema as sch
import polars as pl
from ibis.backends.conftest import TEST_TABLES
from ibis.formats.polars import PolarsSchema

_DAYS = 730
_A_DAY = 10
_ROWS = 1000


def write(folder: Path) -> None:
    """Write a Parquet file for each table."""
    folder.mkdir(parents=True)
    for name, schema in TEST_TABLES.items():
        kinds = PolarsSchema.from_ibis(schema)
        rows = _alltypes() if name == "functional_alltypes" else _any_values(schema)
        rows.select(pl.col(n).cast(t) for n, t in kinds.items()).write_parquet(
            folder / f"{name}.parquet"
        )


def _alltypes() -> pl.DataFrame:
    number = pl.col("id") % _A_DAY
    day = pl.date(2009, 1, 1) + pl.duration(days=pl.col("id") // _A_DAY)
    return pl.select(id=pl.int_range(_DAYS * _A_DAY)).select(
        "id",
        bool_col=pl.col("id") % 2 == 0,
        tinyint_col=number,
        smallint_col=number,
        int_col=number,
        bigint_col=number * 10,
        float_col=number * 1.1,
        double_col=number * 10.1,
        date_string_col=day.dt.strftime("%m/%d/%y"),
        string_col=number.cast(pl.String),
        timestamp_col=day.cast(pl.Datetime("us")) + pl.duration(minutes=number),
        year=day.dt.year(),
        month=day.dt.month(),
    )


def _any_values(schema: sch.Schema) -> pl.DataFrame:
    row = pl.int_range(_ROWS)
    columns = []
    for at, (name, kind) in enumerate(schema.items(), 3):
        if kind.is_string():
            value = pl.lit(name[:3]) + (row % (at * 7)).cast(pl.String)
        elif kind.is_timestamp():
            value = pl.lit(dt.datetime(2020, 1, 1)) + pl.duration(hours=row)
        elif name.startswith("year"):
            value = row % 145 + 1871
        else:
            value = row * 31 % (at * 11)
        columns.append(value.alias(name))
    return pl.select(columns)
