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
from tests.io.conftest import MakeTable
from tests.pushdown.expressions import EDGES, EXPRESSIONS, SCHEMA, SCHEMA_PL

PARTITION_VALUES: dict[str, list[Any]] = {
    "b": [True, False],
    "i8": [0, 1, 127, -128],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
}
HOW_MANY = 400


def values(name: str, shift: int) -> list[Any]:
    choices = [*EDGES[name], None]
    return [choices[(i * (shift + 3) + i // 7 + shift) % len(choices)] for i in range(HOW_MANY)]


@pytest.fixture(scope="module")
def scan(make_table: MakeTable, connection: FlussConnection) -> pl.LazyFrame:
    """A table in partitions of three types, with buckets by a string, of several batches."""
    columns = {name: values(name, shift) for shift, name in enumerate(SCHEMA.names)}
    keys = itertools.cycle(itertools.product(*PARTITION_VALUES.values()))
    for name, column in zip(
        PARTITION_VALUES, zip(*itertools.islice(keys, HOW_MANY), strict=True), strict=True
    ):
        columns[name] = list(column)
    # a bucket key has no nulls
    columns["s"] = [value or "" for value in columns["s"]]
    rows = pl.DataFrame(columns, schema=SCHEMA_PL)
    path = make_table(
        SCHEMA,
        *rows.iter_slices(150),
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
        st.sampled_from(["_partition", "_bucket"]).map(lambda n: ("place", n)),
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
            frame = frame.filter(pl.col(name) == pl.lit({"_bucket": 1}.get(name, "true$1$x")))
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
def rows(scan: pl.LazyFrame) -> pl.DataFrame:
    return scan.collect()


def test_the_rows_are_those_that_were_written(rows: pl.DataFrame) -> None:
    assert rows.height == HOW_MANY
    for name in SCHEMA.names:
        if name in PARTITION_VALUES or name == "s":
            continue
        written = pl.Series(values(name, SCHEMA.names.index(name)), dtype=SCHEMA_PL[name])
        assert rows[name].sort().equals(written.sort())
