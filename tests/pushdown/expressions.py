"""Any rows and any filter expression over columns of every comparable type."""

import datetime as dt
import decimal
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema(
    {
        "i64": pa.int64(),
        "i8": pa.int8(),
        "f64": pa.float64(),
        "f32": pa.float32(),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("ms"),
        "tz": pa.timestamp("us", "UTC"),
        "time": pa.time64("us"),
        "dec": pa.decimal128(10, 2),
        "bin": pa.binary(),
    }
)


def frame(rows: pa.Table) -> pl.DataFrame:
    made = pl.from_arrow(rows)
    assert isinstance(made, pl.DataFrame)
    return made


SCHEMA_PL = frame(SCHEMA.empty_table()).schema
EDGES: dict[str, list[Any]] = {
    "i64": [0, 1, -1, 2**63 - 1, -(2**63)],
    "i8": [0, 1, 127, -128],
    "f64": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324],
    "f32": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf")],
    "s": ["", "a", "ab", "b", "\U0001f600", "é", "a\x00b", "%"],
    "b": [True, False],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)],
    "ts": [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4000)],
    "tz": [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC),
    ],
    "time": [dt.time(0), dt.time(23, 59, 59, 999999)],
    "dec": [decimal.Decimal("0.00"), decimal.Decimal("-1.50"), decimal.Decimal("99999999.99")],
    "bin": [b"", b"a", b"ab", b"\xff"],
}
ROWS = st.integers(0, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            name: st.lists(st.none() | st.sampled_from(values), min_size=n, max_size=n)
            for name, values in EDGES.items()
        }
    )
)


@st.composite
def leaves(draw: st.DrawFn) -> pl.Expr:
    name = draw(st.sampled_from(list(EDGES)))
    column = pl.col(name)
    kind = draw(st.sampled_from(["compare", "missing", "null", "in", "between", "own"]))
    value = st.sampled_from(EDGES[name])
    if kind == "compare":
        operator = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__"]))
        made: pl.Expr = getattr(column, operator)(pl.lit(draw(value), SCHEMA_PL[name]))
    elif kind == "missing":
        other = draw(st.none() | value)
        made = column.eq_missing(other) if draw(st.booleans()) else column.ne_missing(other)
    elif kind == "null":
        made = column.is_null() if draw(st.booleans()) else column.is_not_null()
    elif kind == "in":
        choices = pl.Series(draw(st.lists(st.none() | value, max_size=4)), dtype=SCHEMA_PL[name])
        made = column.is_in(choices.implode(), nulls_equal=draw(st.booleans()))
    elif kind == "between":
        closed: Any = draw(st.sampled_from(["both", "left", "right", "none"]))
        low, high = (pl.lit(draw(value), SCHEMA_PL[name]) for _ in range(2))
        made = column.is_between(low, high, closed=closed)
    elif name == "s":
        text = draw(value)
        made = draw(
            st.sampled_from(
                [
                    column.str.starts_with(text),
                    column.str.ends_with(text),
                    column.str.contains(text, literal=True),
                ]
            )
        )
    elif name in ("f64", "f32"):
        made = column.is_nan() if draw(st.booleans()) else column.is_not_nan()
    else:
        made = pl.col("b")
    return made


EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda e: ~e),
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
    ),
    max_leaves=6,
)
