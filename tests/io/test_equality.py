"""Whatever is pushed down, a query answers as plain Polars does, on both engines."""

import datetime as dt
import itertools
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss_df.client.connection import FlussConnection
from fluss_df.io import scan_fluss
from tests.io.conftest import MakeTable, sorted_rows
from tests.pushdown.expressions import EDGES, EXPRESSIONS, SCHEMA, SCHEMA_PL

PARTITION_VALUES: dict[str, list[Any]] = {
    "b": [True, False],
    "i8": [0, 1, 127, -128],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
}
PLACES = {"_partition": "true$1$2024-02-29", "_bucket": 1}
HOW_MANY = 400


def values(name: str, shift: int) -> list[Any]:
    choices = [*EDGES[name], None]
    return [choices[(i * (shift + 3) + i // 7 + shift) % len(choices)] for i in range(HOW_MANY)]


@pytest.fixture(scope="module")
def written() -> pl.DataFrame:
    """The rows as they are given to the table."""
    columns = {name: values(name, shift) for shift, name in enumerate(SCHEMA.names)}
    keys = itertools.cycle(itertools.product(*PARTITION_VALUES.values()))
    for name, column in zip(
        PARTITION_VALUES, zip(*itertools.islice(keys, HOW_MANY), strict=True), strict=True
    ):
        columns[name] = list(column)
    # a bucket key has no nulls
    columns["s"] = [value or "" for value in columns["s"]]
    return pl.DataFrame(columns, schema=SCHEMA_PL)


@pytest.fixture(scope="module")
def scan(make_table: MakeTable, connection: FlussConnection, written: pl.DataFrame) -> pl.LazyFrame:
    """A table in partitions of three types, with buckets by a string, of several batches."""
    path = make_table(
        SCHEMA,
        *written.iter_slices(150),
        partition_keys=list(PARTITION_VALUES),
        bucket_keys=["s"],
        bucket_count=3,
    )
    return scan_fluss(path, connection=connection, include_metadata=True)


STEPS = st.lists(
    st.one_of(
        EXPRESSIONS.map(lambda e: ("filter", e)),
        st.integers(0, 300).map(lambda n: ("head", n)),
        st.integers(0, 300).map(lambda n: ("tail", n)),
        st.tuples(st.integers(-300, 300), st.integers(0, 100)).map(lambda n: ("slice", *n)),
        st.integers(0, 250).map(lambda n: ("offset", n)),
        st.sampled_from(list(PLACES)).map(lambda n: ("place", n)),
    ),
    max_size=4,
)
COLUMNS = st.lists(st.sampled_from([*SCHEMA.names, "_bucket", "_log_offset"]), unique=True)


def build(frame: pl.LazyFrame, steps: list[Any], columns: list[str]) -> pl.LazyFrame:
    for kind, *arguments in steps:
        if kind == "filter":
            frame = frame.filter(arguments[0])
        elif kind == "offset":
            frame = frame.filter(pl.col("_log_offset") >= arguments[0] % 9)
        elif kind == "place":
            name = arguments[0]
            frame = frame.filter(pl.col(name) == pl.lit(PLACES[name]))
        else:
            frame = getattr(frame, kind)(*arguments)
    return frame.select(columns) if columns else frame.select(pl.len(), pl.col("i64").max())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, columns=COLUMNS, engine=st.sampled_from(["streaming", "in-memory"]))
def test_a_query_answers_as_plain_polars(
    scan: pl.LazyFrame,
    rows: pl.DataFrame,
    steps: list[Any],
    columns: list[str],
    engine: Literal["streaming", "in-memory"],
) -> None:
    expected = build(rows.lazy(), steps, columns).collect()
    found = build(scan, steps, columns).collect(engine=engine)
    if expected.is_empty():
        # see the gap of what is never true behind a limit
        found = found.select(expected.columns)
    assert found.schema == expected.schema
    assert found.equals(expected)


@pytest.fixture(scope="module")
def rows(scan: pl.LazyFrame, written: pl.DataFrame) -> pl.DataFrame:
    """All rows, with where each of them is; queries of them are what scans are compared with."""
    found = scan.collect()
    # or a fault of the scan would be in both that are compared
    assert sorted_rows(found.select(SCHEMA.names)).equals(sorted_rows(written))
    return found


def test_rows_say_where_they_are(rows: pl.DataFrame) -> None:
    by_values = rows.group_by(*PARTITION_VALUES).agg(pl.col("_partition").unique())
    assert by_values.height == rows["_partition"].n_unique()
    assert PLACES["_partition"] in rows["_partition"]
    assert by_values["_partition"].list.len().unique().to_list() == [1]
    # a string is in one bucket of each partition, and offsets have no gaps
    assert rows.group_by("_partition", "s").agg(pl.col("_bucket").n_unique())["_bucket"].max() == 1
    assert rows["_bucket"].n_unique() == 3
    for _, bucket in rows.group_by("_partition", "_bucket"):
        assert sorted(bucket["_log_offset"]) == list(range(bucket.height))
