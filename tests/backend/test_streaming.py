"""Expressions and queries over logs that grow."""

import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import ibis
import polars as pl
import pytest
from ibis import _
from polars.testing import assert_frame_equal

from fluss_df.backend import Backend
from fluss_df.errors import FlussError

ROWS = pl.DataFrame({"id": [1, 2, 3], "k": ["a", "b", "a"]})
NAMES = pl.DataFrame({"k": ["a", "b"], "name": ["ann", "bob"]})


@pytest.fixture
def name(con: Backend, fresh: Callable[[], str]) -> str:
    made = fresh()
    con.create_table(made, ROWS, buckets=1)
    return made


def test_rows_come_once_as_they_arrive(con: Backend, name: str, fresh: Callable[[], str]) -> None:
    table = con.table(name)
    names = con.create_table(fresh(), NAMES, buckets=1)
    expr = table.filter(_.id != 2).join(names, "k").select("id", "name", twice=_.id * 2)
    stop = threading.Event()
    batches = con.follow(expr, stream=f"ibis.{name}", every=0.05, stop=stop)
    first = next(batches)
    assert first.schema.names == ["id", "name", "twice"]
    assert sorted(first.to_pydict()["twice"]) == [2, 6]
    con.insert(name, pl.DataFrame({"id": [2, 9], "k": ["a", "b"]}))
    assert next(batches).to_pylist() == [{"id": 9, "name": "bob", "twice": 18}]
    stop.set()
    assert not list(batches)


def test_products_of_decimals_that_come_are_not_rounded(
    con: Backend, fresh: Callable[[], str]
) -> None:
    cents = pl.Series([Decimal("2.25"), Decimal("0.05")], dtype=pl.Decimal(10, 2))
    moments = [dt.datetime(2024, 1, 1, 0, 0, second) for second in (1, 2)]
    table = con.create_table(fresh(), pl.DataFrame({"at": moments, "d": cents}), buckets=1)
    square = table.d * table.d
    stop = threading.Event()
    batches = con.follow(table.select(v=square), every=0.05, stop=stop)
    assert next(batches)["v"].to_pylist() == [Decimal("5.0625"), Decimal("0.0025")]
    stop.set()
    assert not list(batches)
    minutes = table.group_by(minute=table.at.truncate("m")).agg(v=square.sum())
    stop = threading.Event()
    batches = con.follow(minutes, every=0.05, stop=stop, lateness="1h")
    assert next(batches)["v"].to_pylist() == [Decimal("5.0650")]
    stop.set()
    assert not list(batches)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT count(*) FROM {}", r"COUNT cannot be followed.*line 1"),
        ("SELECT DISTINCT k FROM {}", "DISTINCT cannot be followed"),
        ("SELECT id FROM {} ORDER BY id", "ORDER cannot be followed"),
        ("SELECT id FROM {} LIMIT 3", "LIMIT cannot be followed"),
        ("SELECT k FROM {} GROUP BY k", "GROUP cannot be followed"),
        ("SELECT id FROM {} FETCH FIRST 1 ROWS ONLY", "FETCH cannot be followed.*line 1"),
        # what only Polars knows as an aggregate
        ("SELECT QUANTILE_CONT(id, 0.5) AS q FROM {}", "many rows .*quantile.* cannot be followed"),
    ],
)
def test_what_needs_all_rows_is_refused(con: Backend, name: str, query: str, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        con.follow(query.format(name))


def test_expressions_that_need_all_rows_are_refused(con: Backend, name: str) -> None:
    table = con.table(name)
    for expr in (
        table.group_by("k").agg(n=_.count()),
        table.order_by("id"),
        table.distinct(),
        table.head(1),
        table.mutate(n=ibis.row_number()),
    ):
        with pytest.raises(FlussError, match="cannot be followed"):
            con.follow(expr)


def others_of(table: Any, other: Any) -> dict[str, Any]:
    """Return expressions in which a row of the other table depends on rows of the first."""
    name, beside = table.get_name(), other.get_name()
    k = table.k.cast(other.k.type())
    minutes = table.group_by(m=table.id.cast("timestamp").truncate("m"), k=table.k).agg(n=_.count())
    return {
        "union": table.select(k=k).union(other[["k"]]),
        "distinct union": table.select(k=k).union(other[["k"]], distinct=True),
        "left join": other.left_join(table, "k"),
        "right join": table.right_join(other, "k"),
        "outer join": table.outer_join(other, "k"),
        "semi join": other.semi_join(table, "k"),
        "anti join": other.anti_join(table, "k"),
        "isin": other.filter(other.k.isin(table.k)),
        "not isin": other.filter(~other.k.isin(table.k)),
        "any": other.filter((other.k == table.k).any()),
        "below a window": other.left_join(table, "k")
        .group_by(m=_.id.cast("timestamp").truncate("m"))
        .agg(n=_.count()),
        "above a window": other.left_join(minutes, "k"),
        "UNION": f"SELECT k FROM {name} UNION SELECT k FROM {beside}",
        "UNION ALL": f"SELECT k FROM {name} UNION ALL SELECT k FROM {beside}",
        "RIGHT JOIN": f"SELECT o.k FROM {name} t RIGHT JOIN {beside} o ON t.k = o.k",
        "JOIN ON": f"SELECT o.k FROM {beside} o LEFT JOIN {name} t ON t.k > o.k",
        "IN": f"SELECT k FROM {beside} WHERE k IN (SELECT k FROM {name})",
        "NOT IN": f"SELECT k FROM {beside} WHERE k NOT IN (SELECT k FROM {name})",
        "EXISTS": f"SELECT k FROM {beside} o WHERE EXISTS (SELECT 1 FROM {name} t WHERE t.k = o.k)",
    }


@pytest.mark.parametrize("primary_key", [None, "k"])
def test_rows_of_other_tables_that_need_those_that_come_are_refused(
    con: Backend, name: str, fresh: Callable[[], str], tmp_path: Path, primary_key: str | None
) -> None:
    other = con.create_table(fresh(), NAMES, buckets=1, primary_key=primary_key)
    stream = f"ibis.{name}"
    for form, expr in others_of(con.table(name), other).items():
        with pytest.raises(FlussError, match=r"cannot be followed: .*; "):
            pytest.fail(f"{form} is followed: {con.follow(expr, stream=stream)}")
        if "window" not in form:
            with pytest.raises(FlussError, match="cannot be followed"):
                con.run(expr, to=tmp_path / "rows", checkpoint=tmp_path / "c", stream=stream)


def test_what_a_view_or_a_query_needs_all_rows_for_is_refused(
    con: Backend, name: str, fresh: Callable[[], str]
) -> None:
    distinct = con.sql(f"SELECT DISTINCT k FROM {name}")
    for expr in (distinct, con.create_view(fresh(), distinct)):
        with pytest.raises(FlussError, match=r"DISTINCT, or a UNION .* cannot be followed"):
            con.follow(expr)


def test_rows_that_come_are_joined_with_other_tables(
    con: Backend, name: str, fresh: Callable[[], str], tmp_path: Path
) -> None:
    """Each gives batch by batch what it gives of all rows."""
    table = con.table(name)
    some = NAMES.filter(pl.col("k") == "a")
    con.insert(name, pl.DataFrame({"id": [4], "k": ['a "k"\n']}))
    beside = fresh()
    for primary_key in (None, "k"):
        other = con.create_table(beside, some, buckets=1, primary_key=primary_key, overwrite=True)
        exprs = [
            table.join(other, "k"),
            other.join(table, "k").select("id", "name"),
            table.left_join(other, "k").select("id", "name"),
            other.right_join(table, "k").select("id", "name"),
            table.semi_join(other, "k"),
            table.anti_join(other, "k"),
            table.filter(~table.k.isin(other.k)),
            table.filter(table.k != 'a "k"\n').mutate(one=1),
            table.filter(table.id.isin([1, None])),
            f"SELECT id, name FROM {name} t LEFT JOIN {beside} o ON t.k = o.k",
            f"SELECT id, name FROM {name} t LEFT JOIN {beside} o ON t.k = o.k AND t.k > o.name",
            f"SELECT id FROM {name} WHERE k NOT IN (SELECT k FROM {beside})",
            f"SELECT id FROM {name} WHERE k IN (SELECT k FROM {beside})",
        ]
        for at, expr in enumerate(exprs):
            to = tmp_path / f"rows-{primary_key}-{at}"
            checkpoint = tmp_path / f"checkpoint-{primary_key}-{at}"
            con.run(expr, to=to, checkpoint=checkpoint, stream=f"ibis.{name}", max_batch_rows=2)
            whole = (con.sql(expr) if isinstance(expr, str) else expr).to_polars()
            assert_frame_equal(pl.read_parquet(to), whole, check_row_order=False)


def test_a_run_goes_on_where_it_ended(con: Backend, name: str, tmp_path: Path) -> None:
    expr = con.table(name).filter(_.k == "a")
    places: dict[str, Any] = {"to": tmp_path / "rows", "checkpoint": tmp_path / "checkpoint"}
    assert con.run(expr, **places).rows_written == 2
    assert con.run(expr, **places).batches == 0
    con.insert(name, pl.DataFrame({"id": [8], "k": ["a"]}))
    assert con.run(f"SELECT * FROM {name} WHERE k = 'a'", **places).rows_written == 1
    assert sorted(pl.read_parquet(tmp_path / "rows")["id"]) == [1, 3, 8]


def test_a_query_with_joins_is_the_same_when_it_comes_again(
    con: Backend,
    name: str,
    fresh: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ibis makes up other names each time for what it joins and sorts by."""
    names = con.create_table(fresh(), NAMES, buckets=1)
    target = fresh()
    con.create_table(target, schema=ibis.schema({"id": "int64", "name": "string"}), buckets=1)

    def run(checkpoint: str, **options: Any) -> int:
        expr = con.table(name).join(names, "k").select("id", "name")
        to, stream = f"ibis.{target}", f"ibis.{name}"
        done = con.run(expr, to=to, checkpoint=tmp_path / checkpoint, stream=stream, **options)
        return done.rows_written

    assert run("one") == 3
    con.insert(name, pl.DataFrame({"id": [8], "k": ["a"]}))
    assert run("one") == 1
    assert not caplog.records
    with pytest.raises(FlussError, match="the same query; go on with it"):
        run("two")
    # where a literal tells two queries apart it still does
    other = con.table(name).filter(_.k == f"ibis_{'k' * 5}").select("id", name=_.k)
    con.run(other, to=f"ibis.{target}", checkpoint=tmp_path / "one")
    assert "the query is another one than before" in caplog.text
