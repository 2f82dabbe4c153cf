"""Columns whose names Polars takes for patterns."""

import re
from pathlib import Path

import polars as pl
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.io.base.names import exact

NAMES = ["*", "^a.*$", "ab", "^", "$", "a b", "a.b", "select"]
ROWS = pl.DataFrame({"k": [1, 2], **{name: [2 * i, 2 * i + 1] for i, name in enumerate(NAMES)}})

# a struct's field of such a name, too, is another one
_TAKEN = re.compile(r"\bpl\.col\((?!\")|\.struct\.field\((?!\")")


@pytest.fixture
def named(con: Backend) -> Backend:
    con.raw_sql("CREATE DATABASE IF NOT EXISTS odd_names")
    con.raw_sql("USE odd_names")
    con.raw_sql("DROP TABLE IF EXISTS t")
    con.create_table("t", ROWS, buckets=1)
    return con


def test_expressions(named: Backend) -> None:
    table = named.table("t")
    for name in NAMES:
        assert table[[name]].to_polars().equals(ROWS.select(exact(name)))
        assert table.filter(table[name] == ROWS[name][1]).to_polars().equals(ROWS[1:])


def test_own_columns_named_like_metadata(named: Backend) -> None:
    rows = pl.DataFrame({"_bucket": [70, 80], "_partition": ["a", "b"]})
    named.raw_sql("DROP TABLE IF EXISTS of_metadata")
    table = named.create_table("of_metadata", rows, buckets=1)
    for name, value in (("_bucket", "70"), ("_partition", "'a'")):
        assert table[[name]].to_polars().equals(rows.select(name))
        found = named.sql(f"SELECT {name} FROM of_metadata WHERE {name} = {value}")
        assert found.to_polars().equals(rows.select(name)[:1])


def test_groups(named: Backend) -> None:
    table = named.table("t")
    for name in NAMES:
        counted = table.group_by(name).agg(k=table.k.sum()).to_polars()
        assert counted.sort("k").equals(ROWS.select(exact(name), "k"))


def test_a_group_does_not_hide_the_column_of_its_name(named: Backend) -> None:
    table = named.table("t")
    found = table.group_by(k=table.k % 2).agg(sum=table.k.sum()).to_polars()
    assert dict(found.rows()) == {0: 2, 1: 1}


def test_whole_tables(named: Backend) -> None:
    table = named.table("t")
    nulls = table.mutate({name: table[name].nullif(ROWS[name][1]) for name in NAMES})
    for name in NAMES:
        assert table.drop(name).columns == tuple(n for n in ROWS.columns if n != name)
        assert nulls.drop_null([name]).k.to_polars().to_list() == [1]
        filled = nulls.fill_null({name: 70}).to_polars()
        assert filled.select(exact(name)).to_series().to_list() == [ROWS[name][0], 70]
        assert filled.null_count().sum_horizontal().item() == len(NAMES) - 1
    assert nulls.drop_null(NAMES, how="all").k.to_polars().to_list() == [1]
    assert nulls.drop_null(how="all").to_polars().height == 2


def test_filled_columns_keep_their_types(named: Backend) -> None:
    times = pl.Series([1, 86_400_000_000_001]).cast(pl.Datetime("ns"))
    frame = pl.DataFrame({"at": times, "n": [1, None]})
    named.create_table("times", frame, overwrite=True)
    filled = named.table("times").fill_null({"n": 0}).to_polars()
    assert filled.equals(frame.with_columns(n=pl.Series([1, 0])))
    assert filled.schema == frame.schema


def test_sql(named: Backend) -> None:
    for name in NAMES:
        text = f'SELECT "{name}" FROM t WHERE "{name}" = {ROWS[name][1]}'
        assert named.raw_sql(text).equals(ROWS.select(exact(name))[1:])
        grouped = f'SELECT "{name}", sum(k) AS k FROM t GROUP BY "{name}" ORDER BY "{name}"'
        assert named.raw_sql(grouped).equals(ROWS.select(exact(name), "k"))
        inside = f'SELECT k FROM t WHERE "{name}" IN (SELECT max("{name}") FROM t)'
        assert named.raw_sql(inside)["k"].to_list() == [2]
        renamed = named.raw_sql(f'SELECT k AS "{name}" FROM t')
        assert renamed.equals(ROWS.select(pl.col("k").alias(name)))
    assert named.raw_sql("SELECT * FROM t").equals(ROWS)


def test_statements(named: Backend) -> None:
    named.raw_sql("DROP TABLE IF EXISTS keyed")
    named.raw_sql(
        'CREATE TABLE keyed ("*" BIGINT, "^a.*$" BIGINT, ab BIGINT, PRIMARY KEY ("*") NOT ENFORCED)'
    )
    named.raw_sql('INSERT INTO keyed ("*", "^a.*$", ab) VALUES (1, 10, 100), (2, 20, 200)')
    named.raw_sql('UPDATE keyed SET "^a.*$" = ab + 1 WHERE "*" = 1')
    named.raw_sql('DELETE FROM keyed WHERE "^a.*$" = 20')
    assert named.raw_sql("SELECT * FROM keyed").rows() == [(1, 101, 100)]


def test_names_that_a_result_would_have_twice(named: Backend) -> None:
    both = named.raw_sql('SELECT a."*", b."*" FROM t a JOIN t b ON a.k = b.k')
    assert [name.partition(":")[0] for name in both.columns] == ["*", "*"]
    counted = named.sql('SELECT count("*"), count(DISTINCT "*") FROM t').schema()
    assert [name.partition(":")[0] for name in counted] == ["*", "*"]


def test_different_rows_and_values(named: Backend) -> None:
    table = named.table("t")
    assert table.nunique().to_polars() == 2
    assert table.nunique(where=table["*"] == ROWS["*"][0]).to_polars() == 1
    # a null is no value
    one = table["*"].nullif(ROWS["*"][0])
    found = table.aggregate(
        one=one.nunique(), about=one.approx_nunique(), some=one.nunique(where=table.k == 1)
    ).to_polars()
    assert found.row(0) == (1, 1, 0)


def test_errors_have_the_names_as_given(named: Backend) -> None:
    with pytest.raises(FlussError, match=re.escape('"^none$"; valid columns: ["k", "*"')):
        named.raw_sql('SELECT "^none$" FROM t')


def test_names_in_variables_go_one_way() -> None:
    """Where a name is in a variable, ``pl.col`` would take some names for patterns."""
    root = Path(fluss_df.__file__).parent
    found = []
    for file in sorted(root.rglob("*.py")):
        where = file.relative_to(root).as_posix()
        if where == "io/base/names.py":
            continue
        lines = file.read_text().splitlines()
        found += [f"{where}: {line}" for line in lines if _TAKEN.search(line)]
    assert [line for line in found if ">>>" not in line and "``" not in line] == []


STRUCTS = pl.DataFrame(
    {
        "k": [1, 2, 3],
        "s": [
            {"*": 10, "^a.*$": {"^b$": "x", "ab": 1}, "ab": 5},
            {"*": 20, "^a.*$": None, "ab": None},
            None,
        ],
        "l": [[{"*": 1, "^a.*$": 2}, None], [], None],
    }
)


@pytest.fixture
def rows(named: Backend) -> Backend:
    named.raw_sql("DROP TABLE IF EXISTS r")
    named.raw_sql(
        'CREATE TABLE r (k BIGINT, s ROW<"*" BIGINT, "^a.*$" ROW<"^b$" STRING, ab BIGINT>,'
        ' ab BIGINT>, l ARRAY<ROW<"*" BIGINT, "^a.*$" BIGINT>>, PRIMARY KEY (k) NOT ENFORCED)'
        " WITH ('bucket.num'='1')"
    )
    named.insert("r", STRUCTS)
    return named


def test_fields_in_queries(rows: Backend) -> None:
    for name, values in (("*", [10, 20, None]), ("ab", [5, None, None])):
        for text in (f's."{name}"', f'r.s."{name}"', f"s->'{name}'", f'odd_names.r.s."{name}"'):
            found = rows.raw_sql(f"SELECT k, {text} FROM odd_names.r ORDER BY k")
            assert found.rows() == list(enumerate(values, 1)), text
            assert found.columns == ["k", name]
    assert rows.raw_sql("SELECT * FROM r ORDER BY k").equals(STRUCTS)
    assert rows.raw_sql("SELECT s.* FROM r WHERE k = 1").columns == ["*", "^a.*$", "ab"]
    assert rows.raw_sql('SELECT k FROM r WHERE s."*" > 10').rows() == [(2,)]
    assert rows.raw_sql('SELECT k FROM r WHERE s."*" IS NULL').rows() == [(3,)]
    assert rows.raw_sql('SELECT sum(s."*") AS "^$" FROM r').to_dict(as_series=False) == {"^$": [30]}
    assert rows.raw_sql('SELECT s."*" FROM r GROUP BY s."*" ORDER BY s."*"').height == 3


def test_fields_within_fields(rows: Backend) -> None:
    for text in ('s."^a.*$"."^b$"', 'r.s."^a.*$"."^b$"', 'odd_names.r.s."^a.*$"."^b$"'):
        found = rows.raw_sql(f"SELECT {text} FROM odd_names.r WHERE k < 3 ORDER BY k")
        assert found.rows() == [("x",), (None,)], text
    assert rows.raw_sql('SELECT s."^a.*$".ab FROM r WHERE k = 1').rows() == [(1,)]
    inside = 'SELECT u."*" AS v FROM (SELECT unnest(l) AS u FROM r WHERE k = 1) AS x'
    assert rows.raw_sql(inside)["v"].to_list() == [1, None]


def test_fields_in_statements(rows: Backend) -> None:
    rows.raw_sql('UPDATE r SET l = NULL WHERE s."*" = 10')
    assert rows.raw_sql("SELECT l FROM r WHERE k = 1").rows() == [(None,)]
    rows.raw_sql('DELETE FROM r WHERE s."^a.*$"."^b$" = \'x\'')
    assert rows.raw_sql("SELECT k, s FROM r ORDER BY k").equals(STRUCTS[1:].select("k", "s"))
    rows.raw_sql("INSERT INTO r SELECT k + 10 AS k, s, l FROM r")
    assert rows.raw_sql("SELECT s FROM r WHERE k = 12").equals(STRUCTS[1:2].select("s"))


def test_fields_in_expressions(rows: Backend) -> None:
    table = rows.table("r")
    assert table.order_by("k").s["*"].to_polars().to_list() == [10, 20, None]
    nested = table.order_by("k").s["^a.*$"]["^b$"]
    assert nested.to_polars().to_list() == ["x", None, None]
    assert table.filter(table.s["*"] == 20).k.to_polars().to_list() == [2]
    unpacked = table.filter(table.k == 1).unpack("s").to_polars()
    assert unpacked.select(exact("*")).item() == 10
    assert table.filter(table.k == 1).l[0]["*"].to_polars().to_list() == [1]


def test_fields_that_are_not_there(rows: Backend) -> None:
    for text, name in (('s."^none$"', "^none$"), ("s->'none'", "none"), ('s."^a.*$"."*"', "*")):
        expected = re.escape(f'the row has no field "{name}"')
        with pytest.raises(FlussError, match=expected):
            rows.raw_sql(f"SELECT {text} FROM r")
