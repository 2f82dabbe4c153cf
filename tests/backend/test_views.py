"""Views that are kept in the database: by SQL and by Ibis, for others and after a restart."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ibis
import ibis.expr.types as ir
import polars as pl
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.backend.catalog.expressions import expression_of_data, expression_to_data
from fluss_df.backend.sql import views
from fluss_df.backend.sql.views import View
from fluss_df.errors import FlussError
from fluss_df.io import read_fluss, scan_fluss, write_fluss
from fluss_df.metadata import VIEW_PROPERTY
from tests.backend.conftest import DATABASE, backend_on
from tests.backend.test_sql_forms import T, U, lines

Fresh = Callable[[], str]
ROWS = pl.DataFrame({"id": [1, 2, 3], "day": ["mon", "mon", "tue"], "amount": [5.0, 7.5, None]})


@pytest.fixture
def name(con: Backend, fresh: Fresh) -> str:
    made = fresh()
    con.create_table(made, ROWS, buckets=1)
    return made


def other(con: Backend) -> Backend:
    """Return a backend that knows nothing but what is stored."""
    return backend_on(con.connection)


def test_a_query_is_kept_for_others(con: Backend, name: str) -> None:
    view = f"{name}_v"
    con.raw_sql(
        f"CREATE VIEW {view} (d, total) COMMENT 'of days' AS -- by day\n"
        f"SELECT day, sum(amount) FROM {name} GROUP BY day; -- done"
    )
    mine = other(con)
    mine.raw_sql("CREATE DATABASE IF NOT EXISTS elsewhere")
    mine.raw_sql("USE elsewhere")
    query = f"SELECT * FROM {DATABASE}.{view} ORDER BY d"
    # names in the view are of the database in which it was created
    assert mine.raw_sql(query).rows() == [("mon", 12.5), ("tue", None)]
    con.insert(name, {"id": [4], "day": ["tue"], "amount": [1.0]})
    assert mine.raw_sql(query).rows() == [("mon", 12.5), ("tue", 1.0)]
    table = mine.table(view, database=DATABASE)
    assert table.columns == ("d", "total")
    assert table.filter(table.d == "mon").total.sum().execute() == 12.5
    assert con.raw_sql(f"SELECT count(*) AS n FROM {view}").item() == 2
    assert con.table(view).count().execute() == 2
    assert con.raw_sql(f"DESCRIBE {view}").select("column", "type").rows() == [
        ("d", "string"),
        ("total", "double"),
    ]
    assert con.raw_sql(f"SHOW VIEWS LIKE '{name}%'")["view"].to_list() == [view]
    assert view in con.list_tables()
    shown = con.raw_sql(f"SHOW CREATE VIEW {view}").item()
    con.raw_sql(f"DROP VIEW {view}")
    assert view not in con.list_tables()
    con.raw_sql(shown)
    assert mine.raw_sql(query).height == 2
    con.raw_sql(f"DROP VIEW IF EXISTS {view}, {view}")


def test_an_expression_is_kept_for_others(con: Backend, name: str) -> None:
    view = f"{name}_v"
    table = con.table(name)
    con.create_view(view, table.filter(table.amount > 5).select("id", big=table.amount * 2))
    mine = other(con)
    assert mine.table(view).to_polars().rows() == [(2, 15.0)]
    assert mine.raw_sql(f"SELECT sum(big) AS b FROM {view}").item() == 15.0
    above = mine.create_view(f"{view}2", mine.table(view).group_by("id").agg(n=ibis._.count()))
    assert con.raw_sql(f"SELECT * FROM {view}2").rows() == above.to_polars().rows() == [(2, 1)]
    con.create_view(view, con.sql(f"SELECT id FROM {name} WHERE id < 3"), overwrite=True)
    mixed = con.sql(f"SELECT id, day FROM {name}").filter(ibis._.id > 2)
    con.create_view(f"{view}3", mixed)
    assert mine.table(f"{view}3").to_polars().rows() == [(3, "tue")]
    assert sorted(mine.table(view).id.to_polars()) == [1, 2]
    assert "expression of Ibis" in con.raw_sql(f"SHOW CREATE VIEW {view}3").item()
    for dropped in (view, f"{view}2", f"{view}3"):
        con.drop_view(dropped)
    with pytest.raises(FlussError, match="does not exist"):
        con.drop_view(view)
    con.drop_view(view, force=True)


def test_columns_are_those_of_when_it_was_created(con: Backend, name: str) -> None:
    by_query, by_expression = f"{name}_q", f"{name}_e"
    con.raw_sql(f"CREATE VIEW {by_query} AS SELECT * FROM {name}")
    con.create_view(by_expression, con.table(name))
    con.raw_sql(f"ALTER TABLE {name} ADD COLUMN later INT")
    for view in (by_query, by_expression):
        assert con.table(view).columns == ("id", "day", "amount")
        assert con.raw_sql(f"SELECT * FROM {view}").width == 3
    con.drop_table(name)
    for view in (by_query, by_expression):
        with pytest.raises(FlussError, match=f"view ibis.{view}: .*{name} does not exist"):
            con.raw_sql(f"SELECT * FROM {view}")
    con.create_table(name, ROWS.drop("amount"), buckets=1)
    with pytest.raises(FlussError, match="column 'amount' is not there any more"):
        con.raw_sql(f"SELECT * FROM {by_query}")
    with pytest.raises(FlussError, match=f"view ibis.{by_expression}: "):
        con.table(by_expression)
    # of another type is as well
    con.create_table(name, ROWS.with_columns(amount=pl.lit("x")), buckets=1, overwrite=True)
    assert con.raw_sql(f"SELECT amount FROM {by_query}").dtypes == [pl.String]


def test_views_over_views(con: Backend, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 5  # each is a table, which takes a cluster long to make
    monkeypatch.setattr(views, "MOST_VIEWS", most)
    below = name
    for at in range(most):
        con.raw_sql(f"CREATE VIEW {name}_{at} AS SELECT id, day FROM {below} WHERE id > 0")
        below = f"{name}_{at}"
    assert con.raw_sql(f"SELECT count(*) AS n FROM {below}").item() == 3
    with pytest.raises(FlussError, match=f"{most} deep"):
        con.raw_sql(f"CREATE VIEW {name}_more AS SELECT * FROM {below}")
    with pytest.raises(FlussError, match=f"speaks of itself: ibis.{name}_0 -> ibis.{name}_1 -> ib"):
        con.raw_sql(f"CREATE OR REPLACE VIEW {name}_0 AS SELECT id, day FROM {name}_1")
    # where two are replaced at the same time, it is found when they are read
    info = con.table_info(f"{name}_0")
    kept = json.loads(info.get_custom_properties()[VIEW_PROPERTY])
    kept["sql"] = f"SELECT * FROM {name}_0"
    con.connection.get_admin().alter_table(
        info.table_path, set_properties={VIEW_PROPERTY: json.dumps(kept)}
    )
    with pytest.raises(FlussError, match="speaks of itself"):
        con.table(f"{name}_1")
    con.raw_sql(f"ALTER VIEW {name}_0 AS SELECT 7 AS id, 'day' AS day")
    assert con.raw_sql(f"SELECT id FROM {below}").item() == 7


def test_a_view_is_no_table(con: Backend, name: str) -> None:
    view = f"{name}_v"
    con.raw_sql(f"CREATE VIEW {view} AS SELECT * FROM {name}")
    con.raw_sql(f"CREATE VIEW IF NOT EXISTS {view} AS SELECT 1 AS x")
    path = f"{DATABASE}.{view}"
    for statement in (
        f"INSERT INTO {view} VALUES (1, 'x', 1.0)",
        f"INSERT OVERWRITE {view} VALUES (1, 'x', 1.0)",
        f"UPDATE {view} SET day = 'x'",
        f"DELETE FROM {view} WHERE id = 1",
        f"MERGE INTO {view} USING {name} ON FALSE WHEN MATCHED THEN DELETE",
        f"TRUNCATE TABLE {view}",
        f"DROP TABLE {view}",
        f"ALTER TABLE {view} ADD COLUMN x INT",
        f"SHOW CREATE TABLE {view}",
        f"SELECT * FROM {view}$changelog",
        f"SELECT * FROM {view} /*+ OPTIONS('scan.startup.mode'='latest') */",
        f"CREATE OR REPLACE TABLE {view} AS SELECT 1 AS a",
    ):
        with pytest.raises(FlussError, match=f"{path} is a view"):
            con.raw_sql(statement)
    with pytest.raises(FlussError, match=f"view {path} exists: CREATE OR REPLACE VIEW replaces"):
        con.raw_sql(f"CREATE VIEW {view} AS SELECT 1 AS x")
    with pytest.raises(FlussError, match=f"{path} is a view"):
        con.table(view, start="latest")
    with pytest.raises(FlussError, match=f"{path} is a view, which Spark cannot read"):
        con.to_spark(con.table(view), object())  # type: ignore[arg-type]
    for use in (
        lambda: con.insert(view, ROWS),
        lambda: con.upsert(view, ROWS, on="id"),
        lambda: con.create_table(view, ROWS, overwrite=True),
        lambda: con.truncate_table(view),
        lambda: scan_fluss(path, connection=con.connection),
        lambda: read_fluss(path, connection=con.connection),
        lambda: write_fluss(ROWS, path, connection=con.connection),
    ):
        with pytest.raises(FlussError, match=f"{path} is a view"):
            use()
    assert con.raw_sql(f"SELECT * FROM {view}").height == 3


def test_what_is_local_cannot_be_kept(con: Backend, name: str) -> None:
    con.create_table("here", ROWS, temp=True)
    con.raw_sql(f"CREATE TEMPORARY VIEW mine AS SELECT * FROM {name}")
    with pytest.raises(FlussError, match="'mine' is local to this connection"):
        con.raw_sql(f"CREATE VIEW {name}_v AS SELECT * FROM mine")
    for expr in (
        con.table("here"),
        con.table(name).join(ibis.memtable({"id": [1]}), "id"),
        con.table(name, start="latest"),
        con.table(name).sql(f"SELECT * FROM {name}"),
    ):
        with pytest.raises(FlussError, match=r"is local to this connection|cannot be kept of"):
            con.create_view(f"{name}_v", expr)
    assert f"{name}_v" not in con.list_tables()
    con.raw_sql("ALTER TABLE mine RENAME TO others")
    assert con.raw_sql("SELECT * FROM others").height == 3
    con.raw_sql("DROP VIEW others")


def test_a_view_is_data_and_nothing_else(con: Backend, fresh: Fresh) -> None:
    """What stands in the property is another user's: it is read as data, or refused."""
    view = fresh()
    con.raw_sql(f"CREATE VIEW {view} AS SELECT 1 AS a")
    path = con.table_info(view).table_path
    base = {"version": 1, "columns": ["a"], "renamed": ["a"], "database": DATABASE}
    for kept in (
        "",
        "[]",
        "{}",
        json.dumps(base),
        json.dumps({**base, "version": 99, "sql": "SELECT 1 AS a"}),
        json.dumps({**base, "columns": ["a", "b"], "sql": "SELECT 1 AS a"}),
        json.dumps({**base, "sql": "DROP TABLE x"}),
        json.dumps({**base, "sql": "SELECT * FROM read_csv('/etc/passwd')"}),
        json.dumps({**base, "sql": "SELECT a FROM"}),
        json.dumps({**base, "ibis": []}),
        json.dumps({**base, "ibis": [["os.system", {"command": "true"}]]}),
        json.dumps({**base, "ibis": [["ScalarUDF", {}]]}),
        json.dumps({**base, "ibis": [["Node", {}]]}),
        json.dumps({**base, "ibis": [["Literal", {"value": 1, "dtype": {"type": "no"}}]]}),
        json.dumps({**base, "ibis": [["Filter", {"parent": {"node": 9}, "predicates": []}]]}),
    ):
        con.connection.get_admin().alter_table(path, set_properties={VIEW_PROPERTY: kept})
        with pytest.raises(FlussError, match=f"view ibis.{view}"):
            con.raw_sql(f"SELECT * FROM {view}")
    con.raw_sql(f"CREATE OR REPLACE VIEW {view} AS SELECT 2 AS a")
    assert con.raw_sql(f"SELECT * FROM {view}").item() == 2
    with pytest.raises(FlussError, match="bytes, and at most 500,000 can be kept"):
        con.raw_sql(f"CREATE OR REPLACE VIEW {view} AS SELECT '{'x' * 600_000}' AS a")


def test_names_that_need_quotes(con: Backend, fresh: Fresh) -> None:
    table, view = fresh(), fresh()
    odd = ["*", "^a$", "select", "a b", "it's", 'a"b', "ü", "t.x"]
    con.create_table(table, pl.DataFrame({name: [at] for at, name in enumerate(odd)}), buckets=1)
    con.raw_sql(f"CREATE VIEW {view} AS SELECT * FROM {table}")
    con.create_view(f"{view}_e", con.table(table))
    for each in (view, f"{view}_e"):
        assert con.raw_sql(f"SELECT * FROM {each}").columns == odd
        assert con.table(each).to_polars().row(0) == tuple(range(len(odd)))
        assert con.raw_sql(f'SELECT `a b`, "select", `it\'s` FROM {each}').row(0) == (3, 2, 4)
    names = ", ".join("`" + name + "`" for name in odd)
    con.raw_sql(f"CREATE OR REPLACE VIEW {view} ({names}) AS SELECT 0, 1, 2, 3, 4, 5, 6, 7")
    con.raw_sql(con.raw_sql(f"SHOW CREATE VIEW {view}").item().replace(view, f"{view}_2"))
    assert con.raw_sql(f"SELECT * FROM {view}_2").columns == odd


def test_another_process_sees_it_after_a_restart(tmp_path: Path) -> None:
    with fluss_df.connect(tmp_path) as connection:
        con = Backend()
        con.do_connect(connection)
        table = con.create_table("t", ROWS)
        con.raw_sql("CREATE VIEW by_query AS SELECT id FROM t WHERE id > 1")
        con.create_view("by_expression", table.filter(table.id == 1))
    code = f"""
from fluss_df.backend import Backend
con = Backend().connect({str(tmp_path)!r})
print(sorted(con.raw_sql("SELECT * FROM by_query")["id"]))
print(con.table("by_expression").count().execute())
con.raw_sql("CREATE OR REPLACE VIEW by_query AS SELECT 'new' AS a")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[2, 3]\n1\n", done.stderr
    again = Backend()
    again.do_connect(str(tmp_path))
    assert again.raw_sql("SELECT * FROM by_query").item() == "new"
    again.connection.close()


@pytest.fixture(scope="module")
def forms() -> Iterator[Backend]:
    con: Backend = Backend().connect(":memory:")
    for name, frame, key in (("t", T, None), ("u", U, None), ("k", T, "id")):
        con.create_table(name, frame, primary_key=key)
    yield con
    con.connection.close()


def test_every_form_of_an_expression_is_the_same_when_it_is_read(forms: Backend) -> None:
    scope = {name: forms.table(name) for name in ("t", "u", "k")}
    count = 0
    for text in lines("expressions.txt"):
        expr = eval(text, {**scope, "ibis": ibis, "_": ibis._})
        expr = expr if isinstance(expr, ir.Table) else expr.as_table()
        data = json.loads(json.dumps(expression_to_data(expr, lambda _: None)))
        found = expression_of_data(data, lambda n, d: forms.table(n, database=d).op(), _no_query)
        assert found.op() == expr.op(), text
        count += 1
    assert count > 200


def _no_query(text: str, database: str) -> ir.Table:
    raise AssertionError(text)


def test_a_view_as_text() -> None:
    path = fluss_df.TablePath("db", "v")
    view = View(("a", "ü"), ("a", "b"), "SELECT 1", "db")
    assert View.of_text(path, view.to_text(path)) == view
