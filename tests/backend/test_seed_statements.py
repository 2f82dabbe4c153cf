"""Every statement in SQL of the documentation, as it stands there."""

import re
import threading

import polars as pl
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.backend.sql.statements import split_statements
from tests.other_peoples import pages

DOCUMENT = pages()["log-table-semantics"]
STATEMENTS = re.findall(r"(?ms)^(?:CREATE|SELECT|INSERT|ALTER|DROP)\b.*?;", DOCUMENT)
CREATES = [text for text in STATEMENTS if text.startswith("CREATE")]
SELECTS = [text for text in STATEMENTS if text.startswith("SELECT")]
ROWS = pl.DataFrame(
    {
        "id": [1, 2],
        "name": ["a", "b"],
        "timestamp": pl.Series(["2023-06-01", "2022-06-01"]).str.to_datetime(),
        "address": ["x", "y"],
        "status": ["new", "old"],
    }
)


@pytest.fixture
def seeds(con: Backend) -> Backend:
    con.raw_sql("CREATE DATABASE IF NOT EXISTS seeds")
    con.raw_sql("USE seeds")
    con.raw_sql("DROP TABLE IF EXISTS log_table")
    return con


def test_all_statements_are_known() -> None:
    assert (len(CREATES), len(SELECTS)) == (3, 1)
    assert len(STATEMENTS) == 4


@pytest.mark.parametrize("statement", CREATES)
def test_tables_are_created(seeds: Backend, statement: str) -> None:
    ((_, only),) = split_statements(statement)
    seeds.raw_sql(only)
    info = seeds.table_info("log_table")
    assert info.get_column_names() == ["order_id", "item_id", "amount", "address"]
    wanted = dict(re.findall(r"'([\w.]+)' = '(\w+)'", statement))
    if "bucket.num" in wanted:
        assert info.num_buckets == int(wanted.pop("bucket.num"))
    assert wanted.items() <= info.get_properties().items()


def test_the_streaming_select(seeds: Backend) -> None:
    (select,) = SELECTS
    seeds.create_table("log_table", ROWS, buckets=1)
    with fluss_df.track_scans() as scans:
        assert seeds.raw_sql(select).rows() == [(1, "a")]
    assert set(scans[0].columns) == {"id", "name", "timestamp"}

    stop = threading.Event()
    batches = seeds.follow(select, stop=stop, every=0.05)
    assert next(batches).to_pylist() == [{"id": 1, "name": "a"}]
    seeds.insert("log_table", ROWS.with_columns(pl.col("id") + 10))
    assert next(batches).to_pylist() == [{"id": 11, "name": "a"}]
    stop.set()
    assert not list(batches)
