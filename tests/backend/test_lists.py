"""Long lists behind IN: what one literal of them stands for is what all of them mean."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from fluss_df.backend import Backend
from fluss_df.backend.sql.dialect import Fluss, Text
from fluss_df.backend.sql.operands.listed import shorten
from fluss_df.backend.sql.queries import SqlScope, parse
from fluss_df.errors import FlussError

COUNT = 100
VALUES = {
    "i": (range(-COUNT, COUNT), "{0}"),
    "d": (range(-COUNT, COUNT), "{0}.5"),
    "f": (range(-COUNT, COUNT), "{0}.1"),
    "n": (range(-COUNT, COUNT), "{0}.25"),
    "s": (range(-COUNT, COUNT), "'it''s {0}'"),
    "t": (range(COUNT), "'2024-01-01 00:00:00.{0:03}'"),
    "z": (range(COUNT), "'2024-01-01 00:00:00.{0:09}'"),
}


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    backend.raw_sql(
        "CREATE TABLE t (k INT, i INT, d DOUBLE, f FLOAT, n DECIMAL(10, 2), s STRING,"
        " t TIMESTAMP(3), z TIMESTAMP(9), l ARRAY<INT>)"
    )
    rows = [
        f"({k}, " + ", ".join(text.format(some[k]) for some, text in VALUES.values()) + ", NULL)"
        for k in range(COUNT)
    ]
    backend.raw_sql(f"INSERT INTO t VALUES {', '.join(rows)}")
    yield backend
    backend.disconnect()


def _listed(column: str, places: list[int]) -> str:
    some, text = VALUES[column]
    return ", ".join(text.format(some[place]) for place in places)


@pytest.mark.parametrize("column", VALUES)
@pytest.mark.parametrize("form", ["{c} IN ({l})", "NOT {c} IN ({l}) IS TRUE", "({c}) IN ({l})"])
def test_a_long_list_means_what_short_ones_mean(con: Backend, column: str, form: str) -> None:
    random_ = random.Random(1)
    places = random_.sample(range(COUNT), 60)
    found = con.raw_sql(f"SELECT k FROM t WHERE {form.format(c=column, l=_listed(column, places))}")
    inside = set(places)
    wanted = inside if not form.startswith("NOT") else set(range(COUNT)) - inside
    assert set(found["k"]) == wanted


def test_lists_in_all_parts_of_a_query(con: Backend) -> None:
    some = list(range(40))
    whole, other = _listed("i", some), _listed("s", some[10:])
    found = con.raw_sql(
        f"WITH w AS (SELECT k, s, CASE WHEN i IN ({whole}) THEN 1 ELSE 0 END AS c FROM t)"
        f" SELECT c, SUM(k) AS n FROM w WHERE k IN (SELECT k FROM t WHERE s IN ({other}))"
        f" GROUP BY c HAVING c IN ({whole}, 1)"
    )
    assert found.rows() == [(1, sum(some[10:]))]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("i IN ({s})", "a number is compared with a text: leave the quotes out"),
        ("s IN ({i})", "a text is compared with a number: write '-100', or CAST one of both"),
        ("t IN ({i})", "a TIMESTAMP is compared with a number"),
        ("nothing IN ({i})", "nothing"),
        ("i IN ({i},)", "SQL cannot be read: nothing follows ','"),
        ("i IN ({i}", "SQL cannot be read: Expecting )"),
        ("i IN ({i} 5)", "SQL cannot be read"),
    ],
)
def test_errors_are_those_of_short_lists(con: Backend, condition: str, message: str) -> None:
    messages = []
    for count in (20, 60):
        lists = {c: _listed(c, list(range(count))) for c in VALUES}
        with pytest.raises(FlussError) as refused:
            con.raw_sql(f"SELECT k FROM t WHERE {condition.format(**lists)}")
        messages.append(str(refused.value))
    assert message in messages[1]
    if "cannot be read" not in message:
        assert messages[0] == messages[1]


def _positions(tree: Any) -> list[Any]:
    return [(type(node), node.args.get("this"), node.meta) for node in tree.walk()]


@pytest.mark.parametrize(
    "items",
    [
        *("1", "1, 2", "1, 'a'", "'it''s', 'b'", ".5, 1.5, 1e5", "1,\n  2", "-1, 2", "(1), 2"),
        *("1 + 1, 2", "'a' 'b', 'c'", "NULL, 1", "SELECT 1", "1 /* one */, 2", "1, 2 /* two */"),
        *("/* begins */ 1, 2", "x'00', 1", "$1, 2", "DATE '2024-01-31', 1", "TRUE, FALSE", "a, 1"),
        *("E'a', 'b'", "1::INT, 2", "1 AS b, 2", "(1, 2), (3, 4)", "U&'a', 'b'"),
    ],
)
def test_lists_are_parsed_as_before(monkeypatch: pytest.MonkeyPatch, items: str) -> None:
    def outcome(text: str) -> Any:
        try:
            tree = parse(text)
        except FlussError as error:
            return str(error)
        return tree.sql(Fluss), _positions(tree)

    queries = [
        f"SELECT a FROM t WHERE a {word} ({items}){behind}"
        for word in ("IN", "NOT IN", "IN /* x */")
        for behind in ("", " AND b = 1", " /* y */ OR b")
    ]
    found = [outcome(query) for query in queries]
    monkeypatch.delattr(Fluss.Parser, "_parse_in")
    assert found == [outcome(query) for query in queries]


def test_a_list_of_one_kind_is_one_literal_to_walks_and_copies() -> None:
    text = f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(5000)))})"
    tree = parse(text)
    assert shorten(tree)
    assert len(list(tree.copy().walk())) < 20
    assert tree.copy().sql(Fluss) == text
    for items in ("1, 'a', " * 40 + "2", "NULL, " * 40 + "2", "'00:00.1234567', " * 40 + "'a'"):
        assert not shorten(parse(f"SELECT a FROM t WHERE a IN ({items})"))


def test_lists_that_differ_are_no_equal_nodes() -> None:
    one, other = (
        parse(f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(last)))})")
        for last in (50, 60)
    )
    assert shorten(one)
    assert shorten(other)
    assert one != other
    assert one == one.copy()


def test_the_text_of_a_statement_is_tokenised_once(
    con: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    inner = sqlglot.tokenize

    def noted(sql: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(sql)
        return inner(sql, *args, **kwargs)

    monkeypatch.setattr(sqlglot, "tokenize", noted)
    con.raw_sql("SELECT k FROM t WHERE k IN (1, 2)")
    SqlScope(con).execute("SELECT k FROM t")
    assert len(calls) == 2
    assert Text("SELECT 1").tokens[0].text == "SELECT"
    assert isinstance(parse("SELECT 1"), exp.Select)
