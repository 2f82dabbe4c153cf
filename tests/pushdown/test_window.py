"""Windows hold every value for which a predicate is true, and exact ones no other."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss_df.pushdown.column import col
from fluss_df.pushdown.evaluate import bind, evaluate
from fluss_df.pushdown.predicate import Not, Predicate, and_, or_
from fluss_df.pushdown.window import ANY, Window, window_of

VALUES = list(range(-3, 12))
SMALL = st.integers(-2, 10)


def leaves(name: str) -> st.SearchStrategy[Predicate]:
    column = col(name)
    return st.one_of(
        SMALL.map(lambda v: column == v),
        SMALL.map(lambda v: column != v),
        SMALL.map(lambda v: column < v),
        SMALL.map(lambda v: column <= v),
        SMALL.map(lambda v: column > v),
        SMALL.map(lambda v: column >= v),
        st.tuples(SMALL, SMALL).map(lambda v: column.between(*v)),
        st.lists(SMALL).map(lambda v: column.is_in(pa.array(v, pa.int64()))),
        st.just(column.is_null()),
        st.just(column.is_not_null()),
    )


PREDICATES = st.recursive(
    st.one_of(leaves("at"), leaves("other")),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(and_),
        st.lists(inner, min_size=1, max_size=3).map(or_),
        inner.map(Not),
    ),
    max_leaves=6,
)


@given(PREDICATES, SMALL)
def test_no_true_value_is_outside(predicate: Predicate, other: int) -> None:
    rows = pa.table({"at": pa.array(VALUES, pa.int64()), "other": [other] * len(VALUES)})
    true = evaluate(bind(predicate, rows.schema), rows).fill_null(False).to_pylist()
    window = window_of(predicate, "at")
    inside = [window.low <= value < window.high for value in VALUES]
    assert not any(t and not i for t, i in zip(true, inside, strict=True))
    if window.exact:
        assert true == inside


MOMENT = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MS = int(MOMENT.timestamp() * 1000)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit(unit: str) -> None:
    value = pa.scalar(MOMENT, pa.timestamp(unit, "UTC"))
    assert window_of(col("t") == value, "t") == Window(MS, MS + 1, True)
    assert window_of(col("t") > value, "t").low == MS + 1
    assert window_of(col("t") < value, "t").high == MS


def test_fractions_of_a_millisecond() -> None:
    value = pa.scalar(MS * 1000 + 1, pa.timestamp("us", "UTC"))
    assert window_of(col("t") >= value, "t").low == MS + 1
    assert window_of(col("t") <= value, "t").high == MS + 1
    assert window_of(col("t") < value, "t").high == MS + 1
    empty = window_of(col("t") == value, "t")
    assert empty.high <= empty.low
    before_1970 = pa.scalar(-1, pa.timestamp("us", "UTC"))
    assert window_of(col("t") > before_1970, "t").low == 0


def test_how_windows_are_shown() -> None:
    assert [str(w) for w in (ANY, Window(3, 5), Window(low=1))] == ["[:]", "[3:5]", "[1:]"]


def test_a_window_of_alternatives_reaches_over_all() -> None:
    at = col("at")
    found = window_of(or_([at.between(8, 9), at == 2, at.between(4, 5)]), "at")
    assert (found.low, found.high, found.exact) == (2, 10, False)
