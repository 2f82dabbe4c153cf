"""Subqueries that speak of the rows around them, beside DuckDB's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ibis
import ibis.common.exceptions as com
import polars as pl
import pytest
from ibis import _

import fluss_df as fluss
from fluss_df.backend import Backend
from tests.backend.beside_duckdb import in_duckdb

T = pl.DataFrame({"k": [1, 2, 3], "n": [0, 1, 2]})
S = pl.DataFrame({"k": [1, 1, 2], "x": [1, 2, 3], "g": [1, 1, 2]})
# keys, needles and values that are null, a key without a value, and one without rows
U = pl.DataFrame({"k": [1, 1, 2, 2, 3, 4, None], "n": [1, 5, 3, None, 1, None, 1]})
V = pl.DataFrame(
    {
        "k": [1, 1, 1, 2, 2, 3, 3, None, 5],
        "x": [1, 2, 2, 3, None, None, None, 1, 1],
        "g": [1, 1, 2, 1, 2, 1, 1, 1, 1],
    }
)
FRAMES = {"t": T, "s": S, "u": U, "v": V}

# of Ibis, about the release of DuckDB
pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

Form = Callable[[Any, Any], Any]


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("subqueries")
    with fluss.connect(folder) as connection:
        for name, frame in FRAMES.items():
            fluss.write_fluss(
                frame, name, connection=connection, create_if_not_exists=True, bucket_count=1
            )
    backend = Backend()
    backend.do_connect(folder)
    yield backend
    backend.disconnect()


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return in_duckdb(tmp_path_factory.mktemp("duck"), FRAMES)


def column(backend: Any, form: Form, tables: tuple[str, str] = ("t", "s")) -> list[Any]:
    """Return what a form gives in the rows of the table around, in the order of their keys."""
    t, s = (backend.table(name) for name in tables)
    found = t.mutate(c=form(t, s)).order_by(["k", "n"])
    values: list[Any] = found.to_pyarrow()["c"].to_pylist()
    return values


def rows(backend: Any, found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in found.to_pyarrow().to_pylist()), key=repr)


def of(form: Callable[[Any], Any]) -> Form:
    """Return a form of the rows whose key is that of the row around."""
    return lambda t, s: form(s.filter(s.k == t.k)).as_scalar()


VALUES: dict[str, tuple[Form, list[Any]]] = {
    "distinct": (of(lambda c: c.distinct().count()), [2, 1, 0]),
    "distinct of a column": (of(lambda c: c.select("g").distinct().count()), [1, 1, 0]),
    "first by order": (of(lambda c: c.order_by(ibis.desc("x")).limit(1).x.max()), [2, 3, None]),
    "second by order": (of(lambda c: c.order_by("x").limit(1, offset=1).x.max()), [2, None, None]),
    "all but the first": (of(lambda c: c.order_by("x").limit(None, offset=1).count()), [1, 0, 0]),
    "a row": (of(lambda c: c.order_by(ibis.desc("x")).limit(1).x), [2, 3, None]),
    "first of sorted": (of(lambda c: c.order_by(ibis.desc("x")).x.first()), [2, 3, None]),
    "sum of sorted": (of(lambda c: c.order_by("x").x.sum()), [3, 3, None]),
    "drop_null": (of(lambda c: c.drop_null("x").x.sum()), [3, 3, None]),
    "fill_null": (of(lambda c: c.fill_null({"x": 9}).x.sum()), [3, 3, None]),
    "drop": (of(lambda c: c.drop("g").mutate(k=_.x).k.sum()), [3, 3, None]),
    "largest of groups": (
        of(lambda c: c.group_by("g").aggregate(z=c.x.sum()).z.max()),
        [3, 3, None],
    ),
    "groups": (of(lambda c: c.group_by("x").aggregate(z=c.count()).count()), [2, 1, 0]),
    "recomputed": (of(lambda c: c.mutate(x=_.x * 10).x.sum()), [30, 30, None]),
    "recomputed key": (of(lambda c: c.mutate(k=_.x).k.sum()), [3, 3, None]),
    "renamed": (of(lambda c: c.rename(y="x", x="k").y.sum()), [3, 3, None]),
    "new column": (of(lambda c: c.mutate(r=_.x + 1).r.max()), [3, 4, None]),
    "filtered twice": (of(lambda c: c.mutate(x=_.x * 10).filter(_.x > 10).count()), [1, 1, 0]),
    "a subquery of its own": (
        lambda t, s: s.filter(s.k == t.k, s.x > s.x.min()).count().as_scalar(),
        [1, 1, 0],
    ),
    "two filters": (
        lambda t, s: s.filter(s.k == t.k).filter(s.x == t.n + 1).count().as_scalar(),
        [1, 0, 0],
    ),
    "above a window": (
        lambda t, s: (
            s.mutate(r=ibis.row_number().over(order_by="x")).filter(_.k == t.k).r.max().as_scalar()
        ),
        [1, 2, None],
    ),
    # what no rows give
    "nunique": (of(lambda c: c.x.nunique()), [2, 1, 0]),
    "approx_nunique": (of(lambda c: c.x.approx_nunique()), [2, 1, 0]),
    "count and more": (of(lambda c: c.count() + 1), [3, 2, 1]),
    "max beside a count": (
        of(lambda c: c.aggregate(m=c.x.max(), n=c.count()).select("m")),
        [2, 3, None],
    ),
    "projected count": (of(lambda c: c.aggregate(z=c.count()).mutate(z=_.z + 1)), [3, 2, 1]),
    "coalesced": (of(lambda c: c.x.max().fill_null(7)), [2, 3, 7]),
    "collected": (of(lambda c: c.x.collect().fill_null(ibis.array([0]))), [[1, 2], [3], [0]]),
    "null for some rows": (
        of(lambda c: c.aggregate(z=c.count()).select(z=_.z.nullif(1))),
        [2, None, 0],
    ),
}


# DuckDB guesses a number of different values, collects nulls, and sorts them first when descending
GUESSED = {"collected", "approx_nunique", "a row", "first by order", "first of sorted"}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_the_rows_of_a_key(con: Backend, duck: Any, name: str) -> None:
    form, known = VALUES[name]
    assert column(con, form) == known
    if name not in GUESSED:
        # beside nulls
        assert column(con, form, ("u", "v")) == column(duck, form, ("u", "v"))


def test_batches_have_the_values_of_the_rows_of_a_key(con: Backend) -> None:
    t, s = con.table("t"), con.table("s")
    for name in ("first by order", "all but the first", "first of sorted", "largest of groups"):
        form, known = VALUES[name]
        batches = con.to_pyarrow_batches(t.mutate(c=form(t, s)).order_by("k"))
        assert batches.read_all()["c"].to_pylist() == known


# the table around after others: a column of an earlier one is one of its own
AROUND: dict[str, tuple[Callable[[Any, Any, Any], Any], list[tuple[Any, ...]]]] = {
    "filtered": (lambda t, s, c: t.filter(t.n > 0).mutate(c=c), [(2, 1, 1), (3, 2, 0)]),
    "more columns": (
        lambda t, s, c: t.mutate(n=t.n + 1).mutate(c=c),
        [(1, 1, 2), (2, 2, 1), (3, 3, 0)],
    ),
    "renamed": (
        lambda t, s, c: t.select(j="k", n="n").mutate(c=c),
        [(1, 0, 2), (2, 1, 1), (3, 2, 0)],
    ),
    "joined": (
        lambda t, s, c: t.join(s.filter(s.x > 1), t.k == s.k).select(t.k, "n").mutate(c=c),
        [(1, 0, 2), (2, 1, 1)],
    ),
    "grouped": (
        lambda t, s, c: t.group_by("k").agg(n=t.n.sum()).mutate(c=c).filter(_.c > 1),
        [(1, 0, 2)],
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_column_of_an_earlier_table_is_the_one_around(con: Backend, name: str) -> None:
    t, s = con.table("t"), con.table("s")
    form, known = AROUND[name]
    count = s.filter(s.k == t.k).count().as_scalar()
    assert rows(con, form(t, s, count)) == known


def test_a_column_that_is_not_around_is_refused(con: Backend) -> None:
    t, s, u = con.table("t"), con.table("s"), con.table("u")
    count = s.filter(s.k == u.k).count().as_scalar()
    for around in (t, t.drop("k")):
        with pytest.raises(com.UnsupportedOperationError, match=r"column 'k' of table u .* beside"):
            around.mutate(c=count).to_pyarrow()
    gone = s.filter(s.k == t.k).count().as_scalar()
    with pytest.raises(com.UnsupportedOperationError, match=r"column 'k' of table t .* beside"):
        t.mutate(k=t.k + 1).mutate(c=gone).to_pyarrow()


MEMBERS: dict[str, Form] = {
    "isin": lambda t, s: t.n.isin(s.filter(s.k == t.k).x),
    "notin": lambda t, s: t.n.notin(s.filter(s.k == t.k).x),
    "isin of distinct": lambda t, s: t.n.isin(s.filter(s.k == t.k).x.as_table().distinct().x),
    "isin recomputed": lambda t, s: t.n.isin(s.filter(s.k == t.k).mutate(x=_.x + 1).x),
    "isin without nulls": lambda t, s: t.n.isin(s.filter(s.k == t.k).drop_null("x").x),
    "isin of a number": lambda t, s: (
        ibis.literal(3, "int64").isin(s.filter(s.k == t.k).x) | (t.n > 9)
    ),
    "isin of two keys": lambda t, s: t.n.isin(s.filter(s.k == t.k, s.g == t.k).x),
    "any": lambda t, s: ((s.k == t.k) & (s.x == t.n)).any(),
    "any of more": lambda t, s: ((s.k == t.k) & (s.x > t.n)).any(),
    "not any": lambda t, s: ~((s.k == t.k) & (s.x >= t.n) & (t.n < s.k + 3)).any(),
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("tables", [("t", "s"), ("u", "v")])
def test_values_among_the_rows_of_a_key(
    con: Backend, duck: Any, name: str, tables: tuple[str, str]
) -> None:
    form = MEMBERS[name]
    found = column(con, form, tables)
    assert found == column(duck, form, tables)
    # as conditions, for which null is not true
    for form in (MEMBERS[name], lambda t, s: ~MEMBERS[name](t, s)):
        known, kept = ([b.table(n) for n in tables] for b in (duck, con))
        assert rows(con, kept[0].filter(form(*kept))) == rows(duck, known[0].filter(form(*known)))


def test_isin_depends_on_the_rows_around(con: Backend) -> None:
    t, s = con.table("t"), con.table("s")
    among = t.n.isin(s.filter(s.k == t.k).x)
    assert rows(con, t.filter(among)) == []
    assert rows(con, t.filter(~among)) == [(1, 0), (2, 1), (3, 2)]
    assert rows(con, t.filter((t.n + 2).isin(s.filter(s.k == t.k).x))) == [(1, 0), (2, 1)]
    assert column(con, lambda u, v: u.n.isin(v.filter(v.k == u.k).x), ("u", "v")) == [
        *(True, False),  # 1 and 5 among 1, 2, 2
        *(True, None),  # 3 and null among 3, null
        None,  # 1 among null, null
        False,  # null among nothing
        False,  # 1 among nothing, as no key equals null
    ]


REFUSED: dict[str, tuple[Form, str]] = {
    "a union": (of(lambda c: c.union(c).x.sum()), "column 'k' of table t .* below its Union"),
    "an intersection": (of(lambda c: c.intersect(c).x.sum()), "below its Intersection"),
    "a view": (of(lambda c: c.view().x.sum()), "below its SelfReference"),
    "a join": (of(lambda c: c.join(c.view(), "k").x.sum()), "column 'k' of table t"),
    "a window": (
        of(lambda c: c.mutate(r=ibis.row_number().over(order_by=c.x)).r.max()),
        "window function",
    ),
    "a window in a filter": (
        of(lambda c: c.filter(ibis.row_number().over(order_by=c.x) == 0).x.max()),
        "window function",
    ),
    "a condition of a count": (
        lambda t, s: s.count(where=s.k == t.k).as_scalar(),
        "column 'k' of table t around it, in its Aggregate",
    ),
    "a further subquery": (
        lambda t, s: s.filter(s.x > s.filter(s.k == t.k).x.min().as_scalar()).count().as_scalar(),
        "column 'k' of table t around it, inside a further subquery",
    ),
    "an aggregate of an aggregate": (
        of(lambda c: c.aggregate(z=c.x.sum()).filter(_.z > 0).z.max()),
        "aggregate without groups that is not its last",
    ),
    "many rows": (of(lambda c: c.x), "may have many values"),
    "some rows": (of(lambda c: c.limit(2).x), "may have many values"),
    "more than equal columns": (
        lambda t, s: s.filter(s.k < t.k).x.max().as_scalar(),
        "by equal columns only",
    ),
    "a limit of more than equal columns": (
        lambda t, s: s.filter(s.k < t.k).limit(1).x.as_scalar(),
        "more than equal columns below its Limit",
    ),
    "any of a union": (
        lambda t, s: ibis.expr.operations.ExistsSubquery(
            s.filter(s.k == t.k).union(s).op()
        ).to_expr(),
        "exists subquery .* below its Union",
    ),
    "isin of a union": (
        lambda t, s: t.n.isin(s.filter(s.k == t.k).union(s).x),
        "subquery of isin .* below its Union",
    ),
    "isin of more than equal columns": (
        lambda t, s: t.n.isin(s.filter(s.k < t.k).x),
        "by equal columns only",
    ),
    "isin of a window": (
        lambda t, s: t.n.isin(
            s.filter(s.k == t.k).mutate(r=ibis.row_number().over(order_by="x")).r
        ),
        "subquery of isin .* window function",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_for_each_row_is_refused(con: Backend, name: str) -> None:
    form, words = REFUSED[name]
    t, s = con.table("t"), con.table("s")
    value = form(t, s)
    with pytest.raises(com.UnsupportedOperationError, match=words):
        t.mutate(c=value).to_pyarrow()
    with pytest.raises(com.UnsupportedOperationError, match=words):
        t.filter(value if value.type().is_boolean() else value > 0).to_pyarrow()


def test_a_filter_by_the_rows_of_a_key(con: Backend) -> None:
    t, s = con.table("t"), con.table("s")
    large = s.filter(s.k == t.k).mutate(x=_.x * 10).filter(_.x > 5)
    assert rows(con, t.filter(large.count().as_scalar() > 0)) == [(1, 0), (2, 1)]
    assert rows(con, t.filter(large.count().as_scalar() == 0)) == [(3, 2)]


def test_a_value_in_the_place_of_a_column_leaves_it_to_others(con: Backend) -> None:
    t, s = con.table("t"), con.table("s")
    count = s.filter(s.k == t.k).count().as_scalar()
    assert rows(con, t.mutate(n=count, z=t.n + 1)) == [(1, 2, 1), (2, 1, 2), (3, 0, 3)]
    assert rows(con, t.mutate(n=ibis.literal(7), z=t.n + 1)) == [(1, 7, 1), (2, 7, 2), (3, 7, 3)]
    assert rows(con, t.select(n=ibis.literal(7))) == [(7,), (7,), (7,)]
