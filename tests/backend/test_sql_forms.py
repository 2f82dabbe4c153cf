"""Every form of a query has the rows of DuckDB; what Polars passes over is refused."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import ibis
import polars as pl
import pytest

import fluss_df as fluss
from fluss_df.backend import Backend
from fluss_df.errors import FlussError

HERE = Path(__file__).parent
DAYS = [(2024, 1, 31), (2024, 2, 29), None, (2023, 12, 31), (2024, 1, 1), (2020, 5, 5)]
T = pl.DataFrame(
    {
        "id": pl.Series([1, 2, 3, 4, 5, 6], dtype=pl.Int32),
        "g": ["a", "b", "a", None, "b", "a"],
        "v": [1.5, None, -0.5, 2.5, 10.0, 2.5],
        "s": ["x_y", "x%y", "Ab", "ab", None, ""],
        "n": pl.Series([3, 1, None, 2, 2, 9], dtype=pl.Int32),
        "b": [True, False, None, True, False, True],
        "d": [day and dt.date(*day) for day in DAYS],
        "ts": [day and dt.datetime(*day, 23, 59, 59) for day in DAYS],
    }
)
U = pl.DataFrame(
    {
        "id": pl.Series([1, 3, 3, 7, None], dtype=pl.Int32),
        "w": ["p", "q", "r", "s", "t"],
        "n": pl.Series([1, 2, 3, 4, 5], dtype=pl.Int32),
    }
)
# each kind of value, with nulls and edges, for functions
F = pl.DataFrame(
    {
        "i": [1, -7, 3, None],
        "f": [0.25, -2.5, 100.0, None],
        "p": [0.25, 2.5, 0.5, None],
        "s": ["aXbc", "hello world", " x ", None],
        "b": [True, False, None, True],
        "d": [dt.date(2024, 1, 31), dt.date(2023, 7, 1), dt.date(2020, 2, 29), None],
        "ts": [dt.datetime(2024, 1, 31, 23, 59, 58, 123456), *[dt.datetime(2023, 7, 1)] * 2, None],
        "l": [[1, 2, 2], [3], [], None],
        "ls": [["a", "b"], ["c"], [], None],
        "r": [{"x": 1, "y": "q"}] * 4,
        "bin": [b"ab", b"\x00\xff", b"", None],
        "dec": pl.Series([Decimal(1), Decimal(-2), Decimal(3), None], dtype=pl.Decimal(10, 2)),
        "tm": [dt.time(1, 2, 3), dt.time(23, 59), dt.time(0), None],
    }
)


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("forms")
    with fluss.connect(folder) as connection:
        for name, frame in (("t", T), ("u", U), ("f", F)):
            fluss.write_fluss(frame, name, connection=connection, create_if_not_exists=True)
    backend = Backend()
    backend.do_connect(folder)
    yield backend
    backend.disconnect()


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("t", T.to_arrow())
    connection.register("u", U.to_arrow())
    return connection


def lines(name: str) -> list[str]:
    return (HERE / name).read_text().splitlines()


def plain(value: Any) -> Any:
    """Return a value so that equal ones of different types are equal."""
    if isinstance(value, (Decimal, int)) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else round(value, 6) + 0.0
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    return value


@pytest.mark.parametrize("query", lines("queries.sql"))
def test_a_query_has_the_rows_of_duckdb(
    con: Backend, duck: duckdb.DuckDBPyConnection, query: str
) -> None:
    wanted = [plain(row) for row in duck.execute(query).fetchall()]
    found = [plain(row) for row in con.sql(query).to_polars().rows()]
    if "ORDER BY" not in query.rsplit(")", 1)[-1]:
        wanted, found = sorted(wanted, key=repr), sorted(found, key=repr)
    assert found == wanted


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id, w FROM t FULL JOIN u USING (id)", r"write ON left.key = right.key"),
        ("SELECT id, w FROM t RIGHT JOIN u USING (id)", r"RIGHT JOIN u USING \(id\): write ON"),
        ("SELECT id, w FROM t NATURAL FULL JOIN u", r"write ON"),
        ("SELECT lag(n IGNORE NULLS) OVER (ORDER BY id) FROM t", "IGNORE NULLS"),
        ("SELECT first_value(n IGNORE NULLS) OVER (ORDER BY id) FROM t", "IGNORE NULLS"),
        ("SELECT * FROM t PIVOT (count(*) FOR g IN ('a'))", "PIVOT"),
        ("SELECT id INTO x FROM t", "no INTO here"),
        ("SELECT id FROM t CLUSTER BY id", "no CLUSTER here"),
        ("SELECT id FROM (SELECT id FROM t SORT BY id) q", "no SORT here"),
        ("SELECT id FROM t TABLESAMPLE (0 PERCENT)", "SAMPLE"),
        ("SELECT id FROM t FOR UPDATE", "FOR UPDATE"),
    ],
)
def test_what_would_be_passed_over_is_refused(con: Backend, query: str, reason: str) -> None:
    with pytest.raises(FlussError, match=reason):
        con.sql(query)


@pytest.mark.parametrize("expression", lines("functions.sql"))
def test_a_function_is_that_of_polars(con: Backend, expression: str) -> None:
    """The text reaches Polars by way of sqlglot, which has other names and orders of arguments."""
    query = f"SELECT {expression} AS x FROM f"
    wanted = pl.SQLContext(f=F.lazy()).execute(query, eager=True)
    found = con.sql(query).to_polars()
    # lengths and parts of times are wide enough to be reckoned with
    narrow = (pl.UInt32(), pl.Int8(), pl.Int16(), pl.Int32())
    wide = [pl.Int64()] if wanted.dtypes[0] in narrow else []
    assert found.dtypes in (wanted.dtypes, wide)
    assert [plain(row) for row in found.rows()] == [plain(row) for row in wanted.rows()]


@pytest.mark.parametrize(
    "expression",
    [
        "right(s, 3)",
        "right(s, 0)",
        "right(s, 8)",
        "right(s, -1)",
        "right(s, n)",
        "strpos(s, 'b')",
        "position('_' IN s)",
        "strpos('abc', s)",
        "strpos(right(s, 2), 'b')",
        "length(g) - length(s)",
        "length(g) - length(s) > 0",
        "bit_count(n) - 5",
        "extract(month FROM d) * 100 + extract(day FROM d)",
        "year(d) * 10000 + month(d) * 100 + day(d)",
        "date_part('dow', d) * 100",
        "hour(ts) * 3600 + minute(ts) * 60 + second(ts)",
        "week(d) * 100000000",
        "extract(doy FROM ts) * 1000",
        "sum(b) OVER () - 10",
    ],
)
def test_functions_of_which_polars_makes_something_else(con: Backend, expression: str) -> None:
    query = f"SELECT id, {expression} AS x FROM t ORDER BY id"
    wanted = duckdb.execute(query.replace("FROM t", "FROM T")).fetchall()
    assert con.raw_sql(query).rows() == wanted


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT id, id, id FROM t", ["id", "id:1", "id:2"]),
        ("SELECT t.id, w, u.id FROM t JOIN u ON t.id = u.id", ["id", "w", "id:1"]),
        ("SELECT t.*, w, t.n FROM t JOIN u ON t.id = u.id", [*T.columns, "w", "n:1"]),
        ("SELECT count(*), count(*), 1, 2 FROM t", ["len", "len:1", "literal", "literal:1"]),
        (
            "SELECT *, id AS n FROM t ORDER BY t.n",
            [*("n:1" if c == "n" else c for c in T.columns), "n"],
        ),
        ("SELECT id AS v, v AS id FROM t ORDER BY t.v", ["v", "id"]),
    ],
)
def test_columns_of_one_name_are_told_apart(con: Backend, query: str, names: list[str]) -> None:
    assert con.raw_sql(query).columns == names


def test_insert_if_absent_inserts_once(con: Backend) -> None:
    con.raw_sql("CREATE TABLE z (id INT, s STRING)")
    insert = "INSERT INTO z SELECT 1, 'a' WHERE NOT EXISTS (SELECT 1 FROM z WHERE id = 1)"
    assert [con.raw_sql(insert)["rows"].item() for _ in range(3)] == [1, 0, 0]
    assert con.raw_sql("SELECT * FROM z").rows() == [(1, "a")]
    assert con.raw_sql("INSERT INTO z SELECT 2, 'b' WHERE 1 = 0")["rows"].item() == 0


def test_a_type_that_ibis_has_not_is_named(con: Backend) -> None:
    with pytest.raises(FlussError, match="column 'x' is Int128, which expressions of Ibis"):
        con.sql("SELECT CAST(i AS HUGEINT) AS x FROM f")
    assert con.raw_sql("SELECT CAST(i AS HUGEINT) AS x FROM f")["x"].to_list() == [1, -7, 3, None]


def test_positions_are_of_characters(con: Backend) -> None:
    query = (
        "SELECT strpos('ßéx', 'x') a, strpos('ßéx', 'é') b, strpos('ßé', 'x') c,"
        " position('x' IN 'éx') d"
    )
    assert con.raw_sql(query).row(0) == (3, 2, 0, 2)
    t = con.create_table("positions", pl.DataFrame({"s": ["ßéx", "é", "", None]}))
    found = con.to_polars(t.select(a=t.s.length(), b=t.s.find("x"), c=t.s.find("")))
    assert found.rows() == [(3, 2, 0), (1, -1, 0), (0, -1, 0), (None, None, None)]


def test_keys_of_other_types_are_compared(con: Backend) -> None:
    keys = pl.DataFrame({"k": [0.5, 2.0, 7.0]})
    for name, primary in (("halves", None), ("half_keys", ["k"])):
        t = con.create_table(name, keys, primary_key=primary)
        assert con.raw_sql(f"SELECT k FROM {name} WHERE k IN (SELECT 0.5)").rows() == [(0.5,)]
        ids = con.raw_sql(f"SELECT k FROM {name} WHERE k IN (SELECT id FROM t)")
        assert ids.rows() == [(2.0,)]
        whole = con.table("t")
        assert con.to_polars(t.filter(t.k.isin(whole.id))).rows() == [(2.0,)]
        assert con.to_polars(t.join(whole, t.k == whole.id).select("k")).rows() == [(2.0,)]
        some = con.table("f")
        assert con.to_polars(t.filter(~t.k.isin(some.filter(some.dec.notnull()).dec))).height == 3


def test_an_expression_of_a_table_that_has_other_types_now(con: Backend) -> None:
    made = {"a": [1]}, {"a": [0.75]}
    then = con.create_table("changing", pl.DataFrame(made[0]))
    con.create_table("changing", pl.DataFrame(made[1]), overwrite=True)
    for run in (then.to_polars, then.a.sum().execute, then.filter(then.a > 0.5).execute):
        with pytest.raises(FlussError, match=r"column 'a' was int64 when .* and is float64 now"):
            run()
    assert con.table("changing").to_polars().rows() == [(0.75,)]


def test_columns_are_not_mixed_up(con: Backend) -> None:
    con.create_table("places", schema=ibis.schema({"x": "int64", "y": "int64"}))
    for frame in ({"y": [1], "X": [2]}, {"q": [1], "x": [2]}):
        with pytest.raises(FlussError, match="is none of x, y, so columns would be matched by"):
            con.insert("places", pl.DataFrame(frame))
    con.insert("places", pl.DataFrame({"y": [1], "x": [2]}))
    con.insert("places", pl.DataFrame({"q": [3], "r": [4]}))
    con.insert("places", pl.DataFrame({"x": [5], "r": [6]}))
    assert sorted(con.table("places").to_polars().rows()) == [(2, 1), (3, 4), (5, 6)]


def test_a_delete_makes_no_partition(con: Backend) -> None:
    rows = pl.DataFrame({"p": ["a"], "id": [1]})
    con.create_table("parted", rows, primary_key=["p", "id"], partition_by="p")
    with pytest.raises(FlussError, match="has no partition 'nope'"):
        con.delete("parted", {"p": ["nope"], "id": [7]})
    assert con.raw_sql("SHOW PARTITIONS parted").height == 1


def test_what_may_be_null_is_so_in_arrow(con: Backend) -> None:
    t = con.create_table("numbered", pl.DataFrame({"id": [1, 2]}), primary_key="id")
    before = t.mutate(before=t.id.lag().over(order_by=t.id)).order_by("id")
    expected = [{"id": 1, "before": None}, {"id": 2, "before": 1}]
    assert con.to_pyarrow_batches(before).read_all().to_pylist() == expected
    found = con.to_pyarrow(before)
    assert found.to_pylist() == expected
    assert [field.nullable for field in found.schema] == [False, True]


def test_whole_numbers_of_expressions_have_room(con: Backend) -> None:
    t = con.table("t")
    small = con.create_table("small", pl.DataFrame({"i": pl.Series([100, -128], dtype=pl.Int8)}))
    day = t.d.year() * 10000 + t.d.month() * 100 + t.d.day()
    seconds = t.ts.hour() * 3600 + t.ts.minute() * 60 + t.ts.second()
    found = con.to_polars(
        t.order_by("id").select(day=day, seconds=seconds, week=t.d.day_of_week.index() * 100)
    )
    days = [day and 10000 * day[0] + 100 * day[1] + day[2] for day in DAYS]
    assert found["day"].to_list() == days
    assert found["seconds"].to_list() == [day and 86399 for day in DAYS]
    weekdays = [day and 100 * dt.date(*day).weekday() for day in DAYS]
    assert found["week"].to_list() == weekdays
    assert con.to_polars(small.select(y=small.i - 100, z=small.i + 100)).rows() == [
        (0, 200),
        (-228, -28),
    ]
    con.drop_table("small")


LISTS = pl.DataFrame(
    {"k": [1, 2, 3, 4], "l": [[1, 2], [], None, [None, 3]], "m": [["a"], [], ["b"], ["c"]]},
    schema={"k": pl.Int64, "l": pl.List(pl.Int64), "m": pl.List(pl.String)},
)


JOINED = [
    "LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
    "LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(l) AS v(x)",
    "LEFT JOIN lists q ON u.id = q.k AND q.l IS NULL CROSS JOIN UNNEST(q.l) AS v(x)",
    "LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x) WHERE x > 1 OR u.id = 1",
    "LEFT JOIN lists o ON u.id = o.k LEFT JOIN lists q ON u.id = q.k CROSS"
    " JOIN UNNEST(q.m) AS v(x)",
    "RIGHT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
    "FULL JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
    "JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(m) AS v(x)",
]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, UNNEST(l) AS x FROM lists",
        "SELECT UNNEST(l) + 1 AS x FROM lists WHERE k > 1 OR k = 1",
        "SELECT k, x FROM lists CROSS JOIN UNNEST(l) AS u(x)",
        "SELECT t.k, x FROM lists t CROSS JOIN UNNEST(t.l) AS u(x) WHERE x IS NULL OR x > 1",
        "SELECT a.k, x FROM lists a JOIN lists b ON a.k = b.k CROSS JOIN UNNEST(a.l) AS u(x)",
        "SELECT x, COUNT(*) AS n FROM (SELECT UNNEST(l) AS x FROM lists) q GROUP BY x",
        "WITH q AS (SELECT k, l FROM lists) SELECT k, UNNEST(q.l) AS x FROM q",
        "SELECT UNNEST(m) AS x FROM lists UNION ALL SELECT UNNEST(m) FROM lists",
        "SELECT k, l, UNNEST(items) AS x FROM (SELECT *, l AS items FROM lists) q",
        *(f"SELECT u.id, q.k, x FROM u {joined}" for joined in JOINED),
        "SELECT u.id, COUNT(*) AS n FROM u LEFT JOIN lists q ON u.id = q.k"
        " CROSS JOIN UNNEST(q.l) AS v(x) GROUP BY u.id",
        "SELECT COUNT(*) AS n FROM u LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(l) AS v(x)",
        "SELECT u.*, x FROM u LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
        "SELECT u.id, q.l, x FROM u LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
        "SELECT q.*, x FROM u LEFT JOIN lists q ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
        "SELECT q.* EXCLUDE (m), x FROM lists q CROSS JOIN UNNEST(q.l) AS v(x)",
        "SELECT q.*, u.w, x FROM lists q JOIN u ON u.id = q.k CROSS JOIN UNNEST(q.l) AS v(x)",
        "SELECT k, x FROM (SELECT k, l FROM lists) CROSS JOIN UNNEST(l) AS v(x)",
        "SELECT * FROM lists CROSS JOIN UNNEST(l) AS v(x)",
        "SELECT k, x, y FROM lists CROSS JOIN UNNEST(l) AS v(x) CROSS JOIN UNNEST(l) AS w(y)",
        "SELECT a.k, b.l, UNNEST(a.l) AS x FROM lists a JOIN lists b ON a.k = b.k",
        "SELECT b.*, UNNEST(a.l) AS x FROM lists a JOIN lists b ON a.k = b.k",
        "SELECT u.w, UNNEST(l) AS x FROM lists q LEFT JOIN u ON u.id = q.k",
        "SELECT UNNEST(ARRAY_AGG(k)) AS x FROM lists WHERE k > 10",
        "SELECT UNNEST(ARRAY_AGG(k)) + 1 AS x, COUNT(*) AS n FROM lists WHERE k > 1",
        "SELECT id, UNNEST(ARRAY_AGG(n)) AS x FROM u GROUP BY id ORDER BY id, x",
        "SELECT u.id, UNNEST(ARRAY_AGG(n)) AS x FROM u GROUP BY u.id ORDER BY u.id, x",
    ],
)
def test_an_empty_list_is_no_row(con: Backend, query: str) -> None:
    con.create_table("lists", LISTS, overwrite=True)
    lists, u = LISTS.to_arrow(), U.to_arrow()  # noqa: F841
    known = duckdb.connect().execute(query).fetchall()
    assert sorted(con.raw_sql(query).rows(), key=repr) == sorted(known, key=repr)


def test_a_list_beside_its_values_is_refused(con: Backend) -> None:
    con.create_table("lists", LISTS, overwrite=True)
    for listed in ("k, l", "*"):
        with pytest.raises(FlussError, match=r"'l' stands beside UNNEST\(l\).*line 1, column"):
            con.raw_sql(f"SELECT {listed}, UNNEST(l) AS x FROM lists")
    for listed in ("a.l", "a.*", "*", "l"):
        with pytest.raises(FlussError, match=r"'l' stands beside UNNEST\(l\)"):
            con.raw_sql(f"SELECT {listed}, UNNEST(a.l) AS x FROM lists a JOIN u b ON a.k = b.id")
    joined = "FROM lists a JOIN lists b ON a.k = b.k CROSS JOIN UNNEST(l) AS u(x)"
    with pytest.raises(FlussError, match="the table of the list in front of it"):
        con.raw_sql(f"SELECT a.k, x {joined}")
    with pytest.raises(FlussError, match="give it a name with AS"):
        con.raw_sql("SELECT COUNT(*), UNNEST(ARRAY_AGG(k)) AS x FROM lists")


@pytest.mark.parametrize(
    ("order", "first"),
    [("COUNT(*) DESC", "b"), ("MIN(v)", "a"), ("t.g DESC", "b"), ("name", "a"), ("1 DESC", "b")],
)
def test_groups_whose_lists_are_unnested_are_ordered_by_what_their_rows_say(
    con: Backend, order: str, first: str
) -> None:
    con.raw_sql(
        "CREATE TEMPORARY VIEW grouped AS SELECT * FROM"
        " (VALUES ('a', 1), ('b', 2), ('b', 3), ('b', 4)) AS t(g, v)"
    )
    found = con.raw_sql(
        "SELECT t.g AS name, UNNEST(ARRAY_AGG(v)) AS v FROM grouped t GROUP BY t.g"
        f" ORDER BY {order}"
    )
    con.raw_sql("DROP VIEW grouped")
    assert found.height == 4
    assert found["name"][0] == first


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("UPPER(s) = 1", "a text is compared with a number: write '1'"),
        ("s <> -1", "a text is compared with a number: write '-1'"),
        ("d > 5", "a DATE is compared with a number: write DATE"),
        ("-5 < d", "a DATE is compared with a number"),
        ("ts IN (1, 2)", "a TIMESTAMP is compared with a number"),
        ("d BETWEEN 1 AND 5", "a DATE is compared with a number"),
        ("s = 3", "a text is compared with a number: write '3', or CAST"),
        ("s IN ('a', 3)", "a text is compared with a number"),
        ("id = '1'", r"a number is compared with a text: leave the quotes out.* column 35\)"),
        ("id NOT IN (1, '2')", "a number is compared with a text"),
        ("id BETWEEN '1' AND '3'", "a number is compared with a text"),
        ("'1' < id", "a number is compared with a text"),
        ("id IS DISTINCT FROM '1'", "a number is compared with a text"),
        ("NULLIF(id, '1') IS NULL", "a number is compared with a text"),
        ("CASE id WHEN '1' THEN true END", "a number is compared with a text"),
        ("CASE s WHEN 1 THEN true END", "a text is compared with a number: write '1'"),
        ("CAST(s AS DOUBLE) = s", "a number is compared with a text: CAST one of both"),
    ],
)
def test_numbers_beside_times_and_texts_are_refused(
    con: Backend, condition: str, told: str
) -> None:
    with pytest.raises(FlussError, match=told):
        con.raw_sql(f"SELECT count(*) FROM t WHERE {condition}")


@pytest.mark.parametrize(
    "order", ["id = 'b' DESC", "CASE id WHEN 'b' THEN 0 ELSE 1 END", "id IN ('b') DESC"]
)
def test_order_by_means_what_is_selected_under_a_name(con: Backend, order: str) -> None:
    texts = "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(id, name)"
    con.raw_sql(f"CREATE TEMPORARY VIEW named AS {texts}")
    found = con.raw_sql(f"SELECT name AS id FROM named ORDER BY {order}")
    con.raw_sql("DROP VIEW named")
    assert found["id"].to_list() == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ('SELECT * FROM t WHERE s = "Rome"', "if it is a text, write 'Rome': double quotes are"),
        (
            " \n SELEC * FROM t",
            r"SELEC begins no statement \(line 2, column 2\); did you mean 'SELECT'",
        ),
        ("SELECT nme FROM t", r'unable to find column "nme".*column 8\)$'),
        ("SELECT s FROM t WHERE id = 1 ORDER BY sx", r'"sx"; valid columns.*column 39\)$'),
    ],
)
def test_slips_are_told_with_what_is_meant(con: Backend, query: str, told: str) -> None:
    with pytest.raises(FlussError) as found:
        con.raw_sql(query)
    assert re.search(told, found.value.message)
