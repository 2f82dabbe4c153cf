"""Conditions of SQL on nulls: SELECT, UPDATE and DELETE find the rows that DuckDB finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from tests.backend.predicates import COLUMNS, Conditions, for_duckdb, rows

CASES = int(os.environ.get("FLUSS_TEST_CASES", "20"))
SEED = os.environ.get("FLUSS_TEST_SEED", "1")
ROWS = rows(60, "rows")
OTHER = rows(7, "other")


class Pair:
    """The same two tables in Fluss and in DuckDB."""

    def __init__(self, con: Backend, name: str) -> None:
        self.con, self.table, self.other = con, name, f"{name}_o"
        self._duck = duckdb.connect()
        self._duck.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f"{name} {kind}" for name, kind, *_ in COLUMNS)
        for table, frame in ((self.table, ROWS), (self.other, OTHER)):
            con.raw_sql(
                f"CREATE TABLE {table} (k INT, {columns}, mark INT, PRIMARY KEY (k) NOT ENFORCED)"
                " WITH ('bucket.num' = '2')"
            )
            con.insert(table, frame)
            arrow = frame.to_arrow()
            self._duck.register("arrow", arrow)
            casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, _, kind, *_ in COLUMNS)
            self._duck.execute(f"CREATE TABLE {table} AS SELECT k, {casts} FROM arrow")

    def truths(self, condition: str) -> dict[int, bool | None]:
        """Return what a condition is for each key, by DuckDB."""
        text = f"SELECT k, ({for_duckdb(condition)}) FROM {self.table}"
        return dict(self._duck.execute(text).fetchall())

    def check(self, condition: str, number: int) -> None:
        truths = self.truths(condition)
        wanted = sorted(k for k, truth in truths.items() if truth)
        run, t = self.con.raw_sql, self.table
        found = run(f"SELECT k FROM {t} WHERE {condition}")["k"]
        assert sorted(found) == wanted, f"SELECT ... WHERE {condition}"
        values = run(f"SELECT k, ({condition}) AS p FROM {t}")
        assert dict(values.rows()) == truths, f"SELECT {condition}"
        done = run(f"UPDATE {t} SET mark = {number} WHERE {condition}")
        assert done["rows"].item() == len(wanted), f"UPDATE ... WHERE {condition}"
        marked = run(f"SELECT k FROM {t} WHERE mark = {number}")["k"]
        assert sorted(marked) == wanted, f"UPDATE ... WHERE {condition}"
        run(f"DELETE FROM {t} WHERE {condition}")
        left = run(f"SELECT k FROM {t}")["k"]
        assert sorted(left) == sorted(set(truths) - set(wanted)), f"DELETE ... WHERE {condition}"
        if wanted:
            self.con.insert(t, ROWS.filter(pl.col("k").is_in(wanted)))


@pytest.fixture
def pair(con: Backend, fresh: Callable[[], str]) -> Iterator[Pair]:
    made = Pair(con, fresh())
    yield made
    for table in (made.table, made.other):
        con.drop_table(table)


@pytest.mark.timeout(7200)
def test_random_conditions(pair: Pair) -> None:
    for number in range(CASES):
        condition = Conditions(f"{SEED}-{number}", pair.table, pair.other).condition()
        try:
            pair.check(condition, number)
        except FlussError as error:
            raise AssertionError(f"case {number}: {condition}") from error


NAMED = """
b IS NOT TRUE
b IS NOT FALSE
NOT (b IS TRUE)
NOT (b IS FALSE)
(b IS TRUE) IS NOT TRUE
NULL IS NOT TRUE
(i4 IN (1, NULL)) IS NOT TRUE
(i4 > 1) IS NOT FALSE
i4 IS NOT NULL AND b IS NOT TRUE
CASE WHEN b IS NOT TRUE THEN 1 ELSE 2 END = 1
i4 IS NOT TRUE
b AND NULL
NULL AND NULL
NOT (b OR NULL)
CASE WHEN NULL THEN TRUE ELSE b END
s LIKE NULL
s NOT LIKE NULL
s LIKE 'a|_b' ESCAPE '|'
s NOT LIKE 'a|%b' ESCAPE '|'
NOT (s NOT ILIKE 'A|_%' ESCAPE '|')
s LIKE '(%' ESCAPE ''
COALESCE(m, '2024-01-01') = '2024-01-01'
COALESCE(d, '2024-01-01') = '2024-01-01'
d IS DISTINCT FROM '2024-01-01'
m IS NOT DISTINCT FROM '2024-01-01'
NULLIF(d, '2024-01-01') IS NULL
GREATEST(m, '2024-01-01') = '2024-01-01'
CASE d WHEN '2024-01-01' THEN 1 ELSE 2 END = 2
CASE WHEN b THEN m ELSE '2024-01-01' END = '2024-01-01'
b IS DISTINCT FROM TRUE AND i4 > 0
i4 IS DISTINCT FROM 1 AND i8 IS NOT DISTINCT FROM 2 OR b
b IS NOT DISTINCT FROM b2 OR i4 > 1
NOT b IS DISTINCT FROM b2 AND i4 = 1
b = i4 IN (1, 2)
b <> i4 BETWEEN 0 AND 2
b = s LIKE 'a%'
b IS NOT DISTINCT FROM i4 IN (1, 2)
i4 = 1 IS NOT DISTINCT FROM b
i4 = 1 IS NULL
b OR NOT b2 AND i4 > 1
NOT b OR b2
NOT i4 = 1 IS NULL
- i8 + 2 * i8 - 3 - i8 > 1 - i8
i4 IN (1, 2) IS NULL
i4 BETWEEN 1 AND 2 AND b
f4 IS NOT DISTINCT FROM 0.1
f4 IS DISTINCT FROM 0.1
0.1 IS NOT DISTINCT FROM f4
f4 IN (0.1, 0.5)
f4 NOT IN (0.1, 0.5, -0.1)
f4 BETWEEN 0.1 AND 0.1
f4 <= 0.1
0.1 >= f4
f4 < 1e30
f8 IN (0.1, 0.5)
n IS NOT DISTINCT FROM 1
z NOT IN (DATE '2024-01-01', '2024-01-01 12:00:00', DATE '2024-02-29')
m NOT IN (DATE '2024-01-01', '2024-01-01 12:00:00.000005', DATE '2024-02-29')
"""


# between them is the double 0.1
FLOATS = pl.DataFrame(
    {"k": [0, 1, 2, 3], "x": [0.1, 0.5, -0.1, None]}, schema={"k": pl.Int32, "x": pl.Float32}
)


@pytest.mark.parametrize(
    "condition",
    [
        "x = 0.1",
        "x IN (0.1, 0.5)",
        "x NOT IN (0.1, 7)",
        "x BETWEEN -0.1 AND 0.1",
        "x NOT BETWEEN 0.1 AND 1",
        "x IS NOT DISTINCT FROM 0.1",
        "x IS DISTINCT FROM 0.1",
        "x <=> 0.1",
        "0.1 <= x",
        "x IN (0.1, NULL)",
    ],
)
def test_a_number_beside_a_float_is_a_float(
    con: Backend, fresh: Callable[[], str], condition: str
) -> None:
    table = fresh()
    con.raw_sql(f"CREATE TABLE {table} (k INT, x FLOAT)")
    con.insert(table, FLOATS)
    duck, arrow = duckdb.connect(), FLOATS.to_arrow()
    duck.register("arrow", arrow)
    there = condition.replace("<=>", "IS NOT DISTINCT FROM")
    wanted = sorted(k for (k,) in duck.execute(f"SELECT k FROM arrow WHERE {there}").fetchall())
    assert sorted(con.raw_sql(f"SELECT k FROM {table} WHERE {condition}")["k"]) == wanted
    con.drop_table(table)


def test_named_conditions(pair: Pair) -> None:
    for number, condition in enumerate(NAMED.strip().splitlines()):
        pair.check(condition, number)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("s LIKE 'a|' ESCAPE '|'", "ends in its escape character"),
        ("s LIKE 'a' ESCAPE 'xy'", "one character behind ESCAPE"),
        ("s LIKE s2 ESCAPE '|'", "a text as the pattern"),
        # a difference of times would be compared in microseconds
        ("d - DATE '2024-01-01' = 1", "INTERVAL '1 days'"),
        ("3 < m - m", "INTERVAL '3 days'"),
        # a decimal would be compared as a text, which 0.50 is not
        ("n = '0.5'", "leave the quotes out"),
        ("n NOT IN ('0.5', '1')", "leave the quotes out"),
        ("'0.5' IS DISTINCT FROM n", "leave the quotes out"),
        ("n BETWEEN '0.5' AND '3'", "leave the quotes out"),
        ("s < n", "CAST one of both"),
    ],
)
def test_what_cannot_be_meant_is_said(pair: Pair, condition: str, message: str) -> None:
    for statement in (
        f"SELECT k FROM {pair.table} WHERE {condition}",
        f"UPDATE {pair.table} SET mark = 1 WHERE {condition}",
        f"DELETE FROM {pair.table} WHERE {condition}",
    ):
        with pytest.raises(FlussError, match=message):
            pair.con.raw_sql(statement)
    assert pair.con.raw_sql(f"SELECT count(*) AS n FROM {pair.table}").item() == ROWS.height


def test_whole_numbers_beside_a_float_are_not_rounded(
    con: Backend, fresh: Callable[[], str]
) -> None:
    table = fresh()
    con.raw_sql(f"CREATE TABLE {table} (k INT, x FLOAT)")
    con.raw_sql(f"INSERT INTO {table} VALUES (1, 16777216), (2, 1), (3, -16777216)")
    t = con.table(table)
    between = 16777217  # no FLOAT is it: it would be rounded to the first row's
    conditions: list[tuple[Any, str, list[int]]] = [
        (t.x == between, "x = 16777217", []),
        (t.x == -between, "x = -16777217", []),
        (t.x == 16777216, "x = 16777216", [1]),
        (t.x < between, "x < 16777217", [1, 2, 3]),
        (t.x > -between, "x > -16777217", [1, 2, 3]),
        (t.x != between, "x <> 16777217", [1, 2, 3]),
        (t.x >= between, "16777217 <= x", []),
        (t.x.between(between, 16777220), "x BETWEEN 16777217 AND 16777220", []),
        (t.x.isin([between]), "x IN (16777217)", []),
        (t.x.isin([between, 1]), "x IN (16777217, 1)", [2]),
        (t.x.identical_to(between), "x IS NOT DISTINCT FROM 16777217", []),
        (t.x.nullif(between).isnull(), "NULLIF(x, 16777217) IS NULL", []),
        (
            t.x.cases((between, True), else_=False),
            "CASE x WHEN 16777217 THEN TRUE ELSE FALSE END",
            [],
        ),
    ]
    for condition, text, wanted in conditions:
        found = con.compile(t.filter(condition).order_by("k").select("k")).collect()
        assert found["k"].to_list() == wanted, text
        rows = con.raw_sql(f"SELECT k FROM {table} WHERE {text} ORDER BY k")
        assert rows["k"].to_list() == wanted, text
