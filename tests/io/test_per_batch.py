"""Aggregates of one batch that would replace those of the batches before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, run, scan_fluss
from fluss_df.io.polars_reader import plan_digest
from fluss_df.metadata import TablePath
from fluss_df.polars_adapter.plans import reduction_of_rows
from fluss_df.schema import Schema
from fluss_df.types import Column, from_arrow
from tests.io.conftest import Place, write

SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64()})
Query = Callable[[pl.LazyFrame], pl.LazyFrame]


def rows(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"key": [1] * len(values), "value": list(values)})


REPLACING: dict[str, Query] = {
    "sum": lambda lf: lf.group_by("key").agg(pl.col("value").sum()),
    "mean": lambda lf: lf.group_by("key").agg(pl.col("value").mean().cast(pl.Int64)),
    "len": lambda lf: lf.group_by("key").agg(value=pl.len().cast(pl.Int64)),
    "first": lambda lf: lf.group_by("key").agg(pl.col("value").first()),
    "max": lambda lf: lf.group_by("key").max(),
    "no group": lambda lf: lf.select(key=pl.lit(1, pl.Int64), value=pl.col("value").sum()),
    "a count alone": lambda lf: lf.select(key=pl.lit(1, pl.Int64), value=pl.len().cast(pl.Int64)),
    "window": lambda lf: lf.with_columns(pl.col("value").cum_sum()),
    "over": lambda lf: lf.with_columns(value=pl.col("value").sum().over("key")),
    "of rows beside lists": lambda lf: lf.with_columns(
        value=pl.concat_list("value").list.agg(pl.element().sum()) + pl.col("value").sum()
    ),
    "of what lists gave": lambda lf: lf.with_columns(
        value=pl.concat_list("value").list.agg((pl.element() + 1).sum()).sum()
    ),
    "up to each row": lambda lf: lf.with_columns(
        value=pl.col("value").cumulative_eval(pl.element().last())
    ),
    "sql": lambda lf: lf.sql("SELECT key, SUM(value) AS value FROM self GROUP BY key"),
    "row index": lambda lf: (
        lf.drop("key").with_row_index("key").select(pl.col("key").cast(pl.Int64), "value")
    ),
    "behind a filter": lambda lf: (
        lf.group_by("key").agg(pl.col("value").sum()).filter(pl.col("value") > 0)
    ),
}
HARMLESS: dict[str, Query] = {
    "rows": lambda lf: lf.filter(pl.col("value") > 0),
    "columns": lambda lf: lf.with_columns(pl.col("value") * 2),
    "last of a key": lambda lf: lf.group_by("key").agg(pl.col("value").last()),
    "unique": lambda lf: lf.unique("key", keep="last"),
    "of lists": lambda lf: lf.with_columns(value=pl.concat_list("value", "value").list.sum()),
    "of elements": lambda lf: lf.with_columns(
        value=pl.concat_list("value", "value").list.agg(pl.element().sum())
    ),
    "of elements of elements": lambda lf: lf.with_columns(
        value=pl.concat_list("value", "value")
        .list.eval(((pl.element() + pl.element().max()) * 2).rank("dense"))
        .list.len()
        .cast(pl.Int64)
    ),
    "of elements of arrays": lambda lf: lf.with_columns(
        value=pl.concat_list("value", "value").list.to_array(2).arr.agg(pl.element().sum())
    ),
    "of arrays": lambda lf: lf.with_columns(
        value=pl.concat_list("value", "value").list.to_array(2).arr.sum()
    ),
    "of a row": lambda lf: lf.with_columns(value=pl.max_horizontal("value", "key")),
    "a name like one": lambda lf: lf.select("key", pl.col("value").alias("x.sum()")).rename(
        {"x.sum()": "value"}
    ),
    "of a day": lambda lf: lf.with_columns(
        value=pl.lit("abc").str.len_chars().cast(pl.Int64) + pl.col("value")
    ),
}


@pytest.mark.parametrize("name", REPLACING)
def test_a_result_that_would_replace_others_is_refused(
    place: Place, tmp_path: Path, name: str
) -> None:
    source = place.make_table(SCHEMA, rows(1, 2, 3))
    keyed, log = place.make_table(SCHEMA, primary_keys=["key"]), place.make_table(SCHEMA)
    query = REPLACING[name](scan_fluss(source, connection=place.connection))
    with pytest.raises(FlussError, match=r"would replace what earlier batches .*'aggregation'"):
        run(query, to=keyed, checkpoint=tmp_path / "c")
    assert read_fluss(keyed, connection=place.connection).is_empty()
    run(query, to=keyed, checkpoint=tmp_path / "c", replace_aggregates=True)
    assert not read_fluss(keyed, connection=place.connection).is_empty()
    # where results stand beside each other, none is replaced
    run(query, to=log, checkpoint=tmp_path / "d")
    run(query, to=tmp_path / "folder", checkpoint=tmp_path / "e")


@pytest.mark.parametrize("name", HARMLESS)
def test_rows_of_their_own_are_not(name: str) -> None:
    frame = pl.DataFrame(schema={"key": pl.Int64, "value": pl.Int64}).lazy()
    assert reduction_of_rows(HARMLESS[name](frame)) is None
    assert HARMLESS[name](frame).collect().is_empty()


def unchanged(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def test_a_digest_is_of_all_that_a_query_is() -> None:
    def query(last: int) -> pl.LazyFrame:
        found = pl.LazyFrame({"x": [1, last]})
        return found.filter(pl.col("x").is_in([*range(50), last, *range(50)]))

    assert plan_digest(query(7)) == plan_digest(query(7)) != plan_digest(query(8))
    rounded = [query(7).select(pl.col("x").cast(pl.Float64).round(n)) for n in (1, 2)]
    assert plan_digest(rounded[0]) != plan_digest(rounded[1])
    assert plan_digest(query(7).map_batches(unchanged)) is None


def test_what_adds_up_is_right(place: Place, tmp_path: Path) -> None:
    """The way that the message names: sums and counts in a table that adds up."""
    source = place.make_table(SCHEMA)
    columns = [
        Column("key", from_arrow(pa.int64(), False)),
        Column("total", from_arrow(pa.int64(), True), aggregate="sum"),
        Column("rows", from_arrow(pa.int64(), True), aggregate="sum"),
    ]
    target: TablePath = place.make_table(
        Schema.from_columns(columns, ["key"]), properties={"table.merge-engine": "aggregation"}
    )
    query = (
        scan_fluss(source, connection=place.connection)
        .group_by("key")
        .agg(total=pl.col("value").sum(), rows=pl.len().cast(pl.Int64))
    )
    for values in ((1, 2), (100,), (0,)):
        write(place.connection, source, rows(*values))
        run(query, to=target, checkpoint=tmp_path)
    found = read_fluss(target, connection=place.connection)
    assert found.select(pl.col("total") / pl.col("rows")).item() == 25.75
