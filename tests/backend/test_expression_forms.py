"""Every form of an expression of Ibis has the rows and types that Ibis's DuckDB backend has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ibis
import ibis.common.exceptions as com
import ibis.expr.types as ir
import pytest

import fluss_df as fluss
from fluss_df.backend import Backend
from tests.backend.beside_duckdb import in_duckdb
from tests.backend.test_sql_forms import T, U, lines, plain


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("forms")
    with fluss.connect(folder) as connection:
        for name, frame, keys in (("t", T, None), ("u", U, None), ("k", T, ["id"])):
            fluss.write_fluss(
                frame, name, connection=connection, create_if_not_exists=True, primary_keys=keys
            )
    backend = Backend()
    backend.do_connect(folder)
    yield backend
    backend.disconnect()


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Any:
    backend = in_duckdb(tmp_path_factory.mktemp("duck"), {"t": T, "u": U})
    backend.con.execute("CREATE VIEW k AS SELECT * FROM t")
    return backend


def value(backend: Any, expression: str, table: str) -> tuple[list[str], list[Any], list[str]]:
    """Return names, rows and types of what an expression is in a backend."""
    scope = {"t": backend.table(table), "u": backend.table("u"), "ibis": ibis, "_": ibis._}
    found = eval(expression, scope)
    if not isinstance(found, ir.Table):
        found = found.as_table()
    rows = [plain(tuple(row.values())) for row in found.to_pyarrow().to_pylist()]
    if not expression.startswith("t.order_by"):
        rows.sort(key=repr)
    # columns of keys are not null here
    kinds = [str(kind).replace("!", "") for kind in found.schema().types]
    return [name.replace(f"({table})", "") for name in found.columns], rows, kinds


# of Ibis, about the release of DuckDB
@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
@pytest.mark.parametrize(
    ("expression", "table"),
    [
        (text, table)
        for text in lines("expressions.txt")
        for table in ("t", "k")
        # Ibis wants equal columns for set operations, and keys are not null
        if table == "t" or "u[[" not in text
    ],
)
def test_an_expression_is_that_of_duckdb(
    con: Backend, duck: Any, expression: str, table: str
) -> None:
    assert value(con, expression, table) == value(duck, expression, table)


def test_a_join_by_other_conditions_says_what_to_do(con: Backend) -> None:
    t, u = con.table("t"), con.table("u")
    for condition in (t.id < u.id, (t.id == u.id) | (t.n == u.n), t.id.identical_to(u.id)):
        with pytest.raises(com.UnsupportedOperationError, match=r"filter.* its result .* con\.sql"):
            t.join(u, condition).execute()


def test_an_expression_without_a_backend_reads_the_tables_of_its_names(con: Backend) -> None:
    t = con.table("t")
    assert con.to_pyarrow(t.filter(t.n > 1).unbind()) == t.filter(t.n > 1).to_pyarrow()
    assert con.execute(t.n.sum().unbind()) == t.n.sum().execute()
    with pytest.raises(fluss.FlussError, match="column 'n' was string when"):
        con.execute(ibis.table({"n": "string"}, name="t"))
    with pytest.raises(fluss.FlussError, match="column 'other' does not exist"):
        con.execute(ibis.table({"other": "string"}, name="t"))
    with pytest.raises(fluss.FlussError, match="nowhere"):
        con.execute(ibis.table({"n": "int64"}, name="nowhere"))
    con.create_view("of_t", t.select("n"))
    assert con.execute(ibis.table({"n": "int32"}, name="of_t").n.sum()) == t.n.sum().execute()
