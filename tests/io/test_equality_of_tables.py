"""Any table, any rows, any filters: a query answers as plain Polars does, on both engines."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.io import count, scan_fluss, write_fluss
from fluss_df.io.scan import explain
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from tests.pushdown.expressions import EDGES, EXPRESSIONS, SCHEMA, SCHEMA_PL

# more of them for a campaign
CASES = int(os.environ.get("FLUSS_TEST_CASES", "60"))
# types that partitions and hashes of buckets have
PARTITION_COLUMNS = ["s_key", "i8_key", "b_key", "day_key"]
_KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "s_key": (pa.string(), ["a", "b-1", "Z_"]),
    "i8_key": (pa.int8(), [0, 1, -128]),
    "b_key": (pa.bool_(), [True, False]),
    "day_key": (pa.date32(), EDGES["day"][:2]),
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def engine_connection() -> Iterator[fluss.FlussConnection]:
    with fluss.connect(":memory:") as connection:
        connection.get_admin().create_database("any")
        yield connection


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableDescriptor, list[pl.DataFrame]]:
    """Draw a table: columns in any order, maybe partitions and a bucket key, and some batches."""
    names = draw(st.permutations(SCHEMA.names))
    keys = draw(st.lists(st.sampled_from(PARTITION_COLUMNS), max_size=2, unique=True))
    partitions = keys if draw(st.booleans()) else []
    bucket_keys = [key for key in keys if key not in partitions][:1]
    fields = [(name, SCHEMA.field(name).type) for name in names]
    fields += [(key, _KEYS[key][0]) for key in keys]
    descriptor = TableDescriptor(
        Schema(pa.schema(fields)),
        partition_keys=partitions or None,
        bucket_keys=bucket_keys or None,
        bucket_count=draw(st.integers(1, 3)),
    )
    frames = []
    for _ in range(draw(st.integers(0, 3))):
        height = draw(st.integers(0, 12))
        columns: dict[str, list[Any]] = {
            name: draw(
                st.lists(st.none() | st.sampled_from(EDGES[name]), min_size=height, max_size=height)
            )
            for name in names
        }
        for key in keys:
            values = st.sampled_from(_KEYS[key][1])
            columns[key] = draw(st.lists(values, min_size=height, max_size=height))
        types: dict[str, Any] = {
            **SCHEMA_PL,
            "s_key": pl.String,
            "i8_key": pl.Int8,
            "b_key": pl.Boolean,
        }
        types["day_key"] = pl.Date
        frames.append(pl.DataFrame(columns, schema={name: types[name] for name in columns}))
    return descriptor, frames


@st.composite
def key_filters(draw: st.DrawFn) -> tuple[str, Any, str]:
    key = draw(st.sampled_from(PARTITION_COLUMNS))
    how = draw(st.sampled_from(["__eq__", "__ne__", "__gt__", "is_in", "is_null"]))
    return key, draw(st.sampled_from(_KEYS[key][1])), how


STEPS = st.lists(
    st.one_of(
        EXPRESSIONS.map(lambda e: ("filter", e)),
        key_filters().map(lambda f: ("key", f)),
        st.integers(0, 40).map(lambda n: ("head", n)),
        st.integers(0, 40).map(lambda n: ("tail", n)),
        st.tuples(st.integers(-30, 30), st.integers(0, 20)).map(lambda n: ("slice", *n)),
        st.integers(0, 12).map(lambda n: ("offset", n)),
        st.sampled_from([0, 1, 2]).map(lambda n: ("bucket", n)),
    ),
    max_size=4,
)


def build(frame: pl.LazyFrame, names: list[str], steps: list[Any]) -> pl.LazyFrame:
    for kind, *arguments in steps:
        if kind == "filter":
            frame = frame.filter(arguments[0])
        elif kind == "key":
            key, value, how = arguments[0]
            if key not in names:
                continue
            column = pl.col(key)
            if how == "is_in":
                frame = frame.filter(column.is_in([value]))
            elif how == "is_null":
                frame = frame.filter(column.is_null() | (column == value))
            else:
                frame = frame.filter(getattr(column, how)(value))
        elif kind == "offset":
            frame = frame.filter(pl.col("_log_offset") >= arguments[0])
        elif kind == "bucket":
            frame = frame.filter(pl.col("_bucket") == arguments[0])
        else:
            frame = getattr(frame, kind)(*arguments)
    return frame


@settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    table=tables(),
    steps=STEPS,
    columns=st.lists(st.sampled_from([*SCHEMA.names, "_bucket", "_log_offset"]), unique=True),
)
def test_a_query_answers_as_plain_polars(
    engine_connection: fluss.FlussConnection,
    table: tuple[TableDescriptor, list[pl.DataFrame]],
    steps: list[Any],
    columns: list[str],
) -> None:
    descriptor, frames = table
    admin = engine_connection.get_admin()
    path = TablePath("any", f"t{next(_numbers)}")
    admin.create_table(path, descriptor)
    try:
        for frame in frames:
            write_fluss(frame, path, connection=engine_connection, create_partitions=True)
        scan = scan_fluss(path, connection=engine_connection, include_metadata=True)
        rows = scan.collect()
        names = descriptor.schema.get_column_names()
        written = pl.concat([frame.select(names) for frame in frames]) if frames else None
        assert rows.height == (0 if written is None else written.height)
        if written is not None:
            assert_frame_equal(
                rows.select(names).sort(pl.struct(names).hash(1)),
                written.sort(pl.struct(names).hash(1)),
                check_row_order=True,
            )
        query = build(scan, names, steps)
        plain = build(rows.lazy(), names, steps)
        wanted = columns or names
        expected = plain.select(wanted).collect()
        # with everything read, and filtered by Polars alone
        unpushed = build(scan.cache(), names, steps).select(wanted).collect()
        explain(query)
        engines: tuple[Literal["streaming", "in-memory"], ...] = ("streaming", "in-memory")
        for engine in engines:
            found = query.select(wanted).collect(engine=engine)
            if expected.is_empty():
                # see the gap of what is never true behind a limit
                found = found.select(expected.columns)
            assert found.schema == expected.schema
            assert found.equals(expected)
        assert unpushed.is_empty() == expected.is_empty()
        assert unpushed.select(wanted).equals(expected)
        assert count(query) == plain.select(pl.len()).collect().item()
    finally:
        admin.drop_table(path)
