"""Ibis and SQL on a real cluster: results, and what is fetched for them."""

import gc
import pickle
from collections.abc import Callable
from pathlib import Path

import ibis
import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.cluster import LocalCluster
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath

Fresh = Callable[[], str]
ROWS = pl.DataFrame(
    {"id": range(6), "part": ["a", "a", "b", "b", "c", "c"], "v": [1.0, 2.0, 3.0, 4.0, 5.0, None]}
)


@pytest.fixture
def name(con: Backend, fresh: Fresh) -> str:
    made = fresh()
    con.create_table(made, ROWS, partition_by="part", buckets=1, comment="numbers")
    return made


def test_table_has_its_rows(con: Backend, name: str) -> None:
    table = con.table(name)
    assert table.order_by("id").to_polars().equals(ROWS)
    assert table.order_by("id").to_pyarrow().to_pydict() == ROWS.to_dict(as_series=False)
    assert table.id.sum().execute() == 15
    assert con.table(f"ibis.{name}").equals(table)
    assert con.table_info(name).comment == "numbers"


def test_ways_to_connect(
    fluss_cluster: LocalCluster, keyed_con: Backend, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh()
    keyed_con.create_table(name, ROWS)
    url = f"fluss://{fluss_cluster.bootstrap_servers}/ibis"
    for by_url in (ibis.fluss.connect(url), ibis.connect(url)):
        assert by_url.current_database == "ibis"
        assert by_url.table(name).count().execute() == 6
    options = ibis.fluss.connect(url, request_timeout_ms=5000)
    assert options.current_database == "ibis"
    assert options.connection.config.request_timeout_ms == 5000
    with pytest.raises(FlussError, match="cannot be set on an open"):
        ibis.fluss.connect(keyed_con.connection, request_timeout_ms=1)
    for place in (tmp_path / "folder", str(tmp_path / "folder"), ":memory:"):
        embedded = ibis.fluss.connect(place)
        embedded.create_table(name, ROWS, overwrite=True)
        assert embedded.table(name).count().execute() == 6
    fluss_df.set_default_connection(url)
    try:
        assert ibis.fluss.connect().current_database == "ibis"
    finally:
        fluss_df.set_default_connection(None)


def test_expressions_and_backends_are_pickled(con: Backend, name: str) -> None:
    table = con.table(name)
    again = pickle.loads(pickle.dumps(table.filter(table.id > 2)))
    assert sorted(again.to_polars()["id"]) == [3, 4, 5]


def test_interactive_shows_rows(con: Backend, name: str) -> None:
    ibis.options.interactive = True
    try:
        table = con.table(name)
        assert "part" in repr(table)
        assert "6" in repr(table.count())
        shown = table._repr_mimebundle_(["text/plain", "text/html"], [])
        assert "part" in shown["text/html"]
    finally:
        ibis.options.interactive = False


def test_errors_while_a_query_runs_name_its_tables(con: Backend, name: str) -> None:
    query = con.table(name).filter(ibis._.part.cast("int64") > 1)
    for run in (query.to_polars, lambda: con.to_pyarrow_batches(query).read_all()):
        with pytest.raises(pl.exceptions.InvalidOperationError) as caught:
            run()
        assert str(caught.value).endswith(f"The query reads ibis.{name}")
        assert "in column 'part'" in str(caught.value)


def test_rows_of_a_primary_key_table(keyed_con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con = keyed_con
    table = con.create_table(name, ROWS, primary_key="id", buckets=2)
    con.upsert(name, {"id": [0, 9], "part": ["z", "z"], "v": [0.0, 9.0]}, "id")
    con.upsert(name, {"id": [1], "part": ["y"]}, on=["id"])
    con.delete(name, {"id": [2, 77]})
    con.raw_sql(f"DELETE FROM {name} WHERE id = 3 OR id > 4 AND v IS NULL")
    want = [(0, "z", 0.0), (1, "y", 2.0), (4, "c", 5.0), (9, "z", 9.0)]
    assert table.order_by("id").to_polars().rows() == want
    assert table.count().execute() == 4
    assert table.filter(table.id == 9).v.execute().tolist() == [9.0]
    with pytest.raises(FlussError, match=r"matched by the primary key, on=\['id'\]"):
        con.upsert(name, ROWS, "part")
    with pytest.raises(FlussError, match="column 'id' does not exist"):
        con.delete(name, {"v": [1.0]})
    with pytest.raises(FlussError, match="without WHERE"):
        con.raw_sql(f"DELETE FROM {name}")


def test_overwrite_reads_the_table_before_it_goes(con: Backend, name: str) -> None:
    table = con.table(name)
    con.create_table(name, table.filter(table.id < 2), overwrite=True)
    assert sorted(con.table(name).to_polars()["id"]) == [0, 1]


def test_files(con: Backend, name: str, tmp_path: Path) -> None:
    con.to_parquet(con.table(name), tmp_path / "rows.parquet")
    con.to_csv(con.table(name), tmp_path / "rows.csv")
    for read, path in ((con.read_parquet, "rows.parquet"), (con.read_csv, "rows.csv")):
        assert read(tmp_path / path).order_by("id").to_polars().equals(ROWS)


@pytest.mark.parametrize("front", ["ibis", "sql", "table.sql"])
def test_filter_and_projection_are_pushed(con: Backend, name: str, front: str) -> None:
    table = con.table(name)
    if front == "ibis":
        query = table.filter(table.part == "b").select("v")
    elif front == "sql":
        query = con.sql(f"SELECT v FROM {name} WHERE part = 'b'")
    else:
        query = table.alias("x").sql("SELECT v FROM x WHERE part = 'b'")
    with fluss_df.track_scans() as scans:
        assert sorted(query.to_polars()["v"]) == [3.0, 4.0]
    (scan,) = scans
    assert scan.partitions == ("b",)
    assert "id" not in scan.columns
    assert scan.rows == 2


@pytest.mark.parametrize("front", ["ibis", "sql"])
def test_filters_on_join_sides_are_pushed(con: Backend, name: str, front: str) -> None:
    left, right = con.table(name), con.table(name).view()
    query = left.filter(left.part == "a").join(
        right.filter(right.part == "b"), left.id + 2 == right.id
    )
    if front == "sql":
        query = con.sql(
            f"SELECT x.id, y.v FROM {name} AS x JOIN {name} AS y ON x.id + 2 = y.id"
            " WHERE x.part = 'a' AND y.part = 'b'"
        )
    with fluss_df.track_scans() as scans:
        assert query.to_polars().height == 2
    assert {scan.partitions for scan in scans} == {("a",), ("b",)}


@pytest.mark.parametrize("front", ["ibis", "sql"])
def test_head_is_pushed(con: Backend, fresh: Fresh, front: str) -> None:
    name = fresh()
    con.create_table(name, pl.DataFrame({"id": range(100_000)}), buckets=1)
    query = con.table(name).head(2) if front == "ibis" else con.sql(f"SELECT * FROM {name} LIMIT 2")
    assert "limit      2" in fluss_df.explain(con.compile(query))
    with fluss_df.track_scans() as scans:
        assert query.to_polars()["id"].to_list() == [0, 1]
    (scan,) = scans
    assert scan.rows < 100_000


@pytest.mark.parametrize("front", ["ibis", "sql"])
def test_count_reads_no_row(con: Backend, name: str, front: str) -> None:
    table = con.table(name)
    with fluss_df.track_scans() as scans:
        if front == "ibis":
            assert table.count().execute() == 6
        else:
            assert con.raw_sql(f"SELECT count(*) FROM {name}").to_dicts() == [{"len": 6}]
    assert not [scan.columns for scan in scans if scan.columns]
    assert table.filter(table.part == "a").count().execute() == 2
    assert table.v.count().execute() == 5


def test_batches_come_lazily(con: Backend, name: str) -> None:
    with fluss_df.track_scans() as scans:
        reader = con.to_pyarrow_batches(con.table(name), chunk_size=2)
        assert not list(scans)
        rows = reader.read_all()
    assert rows.num_rows == 6
    assert rows.schema.names == ["id", "part", "v"]


def test_metadata_and_offsets(con: Backend, name: str) -> None:
    table = con.table(name, include_metadata=["_log_offset"], start={("a", 0): 1})
    assert table.order_by("id").to_polars()["_log_offset"].to_list() == [1, 0, 1, 0, 1]
    with pytest.raises(FlussError, match="has no option 'begin'"):
        con.table(name, begin=1)


def test_insert_matches_names_then_positions(con: Backend, name: str) -> None:
    con.insert(name, pl.DataFrame({"v": [7.0], "id": [6], "part": ["d"]}))
    con.insert(name, pl.DataFrame({"x": [7], "y": ["d"], "z": [8.0]}))
    there = con.table(name)
    found = there.filter(there.part == "d").order_by("id").to_polars()
    assert found.rows() == [(6, "d", 7.0), (7, "d", 8.0)]
    with pytest.raises(FlussError, match=r"1 columns \(x\) given for 3"):
        con.insert(name, pl.DataFrame({"x": [1]}))


def test_same_name_in_two_databases(con: Backend, fresh: Fresh) -> None:
    name, other = fresh(), fresh()
    con.create_database(other)
    con.create_table(name, pl.DataFrame({"a": [1]}))
    con.create_table(name, pl.DataFrame({"a": [2]}), database=other)
    one, two = con.table(name), con.table(name, database=other)
    assert sorted(ibis.union(one, two).to_polars()["a"]) == [1, 2]
    query = f"SELECT x.a, y.a AS b FROM {name} AS x CROSS JOIN {other}.{name} AS y"
    assert con.sql(query).to_polars().rows() == [(1, 2)]
    assert con.list_tables(database=other) == [name]
    assert other in con.list_databases(like=other)


def test_a_temporary_table_has_rows_of_its_own(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    source = con.create_table(name, pl.DataFrame({"a": [1], "b": [10]}))
    made = con.create_table("rows_of_then", source, temp=True)
    view = f"view_of_{name}"
    con.raw_sql(f"CREATE TEMPORARY VIEW {view} AS SELECT * FROM {name}")
    con.insert(name, pl.DataFrame({"a": [2], "b": [20]}))
    assert con.to_polars(made).rows() == [(1, 10)]
    assert sorted(con.to_polars(con.table(view)).rows()) == [(1, 10), (2, 20)]
    con.drop_view(view)
    con.drop_table(name)
    con.insert("rows_of_then", {"b": [30]})
    con.insert("rows_of_then", pl.LazyFrame({"x": [4], "y": [40]}))
    assert con.to_polars(con.table("rows_of_then")).rows() == [(1, 10), (None, 30), (4, 40)]
    with pytest.raises(FlussError, match="column 'c' is none of a, b, so"):
        con.insert("rows_of_then", {"c": [5], "a": [50]})
    with pytest.raises(FlussError, match=r"3 columns \(x, y, z\) given for 2"):
        con.insert("rows_of_then", {"x": [5], "y": [50], "z": [500]})
    con.insert("rows_of_then", con.table("rows_of_then").filter(ibis._.a == 1), overwrite=True)
    assert con.to_polars(con.table("rows_of_then")).rows() == [(1, 10)]
    con.drop_table("rows_of_then")


def test_names_that_nobody_sees_go_with_their_expressions(con: Backend, fresh: Fresh) -> None:
    name, view = fresh(), fresh()
    con.create_table(name, pl.DataFrame({"a": [1, 2]}))
    query = f"SELECT a FROM {name} WHERE a > 1"
    con.create_view(view, con.sql(query).filter(ibis._.a > 0))
    kept = con.sql(query)
    for _ in range(3):
        assert con.sql(query).to_polars()["a"].to_list() == [2]
        assert con.table(name, mode="log").count().execute() == 2
        assert con.table(view).count().execute() == 1
        gc.collect()
        assert (list(con._tables), con._unnamed, list(con._queries)) == (
            [kept.op().name],
            {kept.op().name},
            [kept.op().name],
        )
    assert kept.filter(kept.a > 0).to_polars()["a"].to_list() == [2]
    again = pickle.loads(pickle.dumps(kept))
    assert again.to_polars()["a"].to_list() == [2]
    assert name in again.get_backend().list_tables()
    assert kept.op().name not in again.get_backend().list_tables()
    con.disconnect()
    assert not con._tables
    assert not con._queries
    with pytest.raises(FlussError, match=r"has no 'ibis_fluss_sql_.*' any more"):
        kept.to_polars()


def test_a_name_that_nobody_sees_stays_for_other_expressions(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.create_table(name, pl.DataFrame({"a": [1, 2]}))
    first = con.sql(f"SELECT a FROM {name} WHERE a > 1")
    second, unbound = con.table(first.get_name()), first.unbind()
    del first
    gc.collect()
    assert second.to_polars()["a"].to_list() == [2]
    assert con.to_polars(unbound)["a"].to_list() == [2]
    del second
    gc.collect()
    assert con.to_polars(unbound.filter(unbound.a > 0))["a"].to_list() == [2]
    del unbound
    gc.collect()
    assert not con._tables
    assert not con._queries


def test_a_database_behind_a_catalog_and_a_limit_are_heeded(con: Backend, fresh: Fresh) -> None:
    name, view = fresh(), fresh()
    table = con.create_table(name, pl.DataFrame({"a": [1, 2, 3]}))
    con.create_view(view, table)
    assert name in con.list_tables(database=("fluss", "ibis"))
    assert view in con.list_views(database=("fluss", "ibis"))
    assert con.compile(table, limit=2).collect().height == 2
    assert con.compile(table, limit="default").collect().height == 3
    assert con.to_pyarrow_batches(table, limit=1).read_all().num_rows == 1


def test_temporary_tables_are_local(con: Backend, name: str) -> None:
    table = con.table(name)
    small = con.create_table("small", table.filter(table.id < 2), temp=True)
    con.create_table("local", pl.DataFrame({"id": [1, 9]}), temp=True)
    assert small.count().execute() == 2
    assert con.sql("SELECT s.id FROM small s JOIN local l ON s.id = l.id").to_polars().rows() == [
        (1,)
    ]
    assert not con.connection.get_admin().table_exists(TablePath("ibis", "small"))
    con.insert(name, pl.DataFrame({"id": [-1], "part": ["a"], "v": [0.0]}))
    assert small.count().execute() == 2
    con.truncate_table("small")
    assert con.table("small").count().execute() == 0
    con.drop_table("small")


def test_memtables_and_arrow(con: Backend, name: str) -> None:
    table = con.table(name)
    keys = ibis.memtable({"id": [1, 5]})
    assert sorted(table.join(keys, "id").to_polars()["id"]) == [1, 5]
    con.insert(name, pa.table({"id": [9], "part": ["a"], "v": [0.5]}))
    assert table.count().execute() == 7


def test_what_fluss_cannot_do_is_said(con: Backend, name: str) -> None:
    with pytest.raises(FlussError, match="cannot be renamed"):
        con.rename_table(name, "other")
    with pytest.raises(FlussError, match="has no primary key, so there is no upsert"):
        con.upsert(name, ROWS, "id")
    with pytest.raises(FlussError, match="has no primary key, so there is no delete"):
        con.delete(name, {"id": [1]})
    assert con.table(name).count().execute() == 6


def test_ddl(keyed_con: Backend, fresh: Fresh) -> None:
    con = keyed_con
    name = fresh()
    con.raw_sql(f"""CREATE TABLE {name} (
        a INT NOT NULL COMMENT 'it''s', dt STRING, d DECIMAL(10, 2), t TIMESTAMP_LTZ(3),
        `x y` BYTES, r ARRAY<INT>, PRIMARY KEY (a, dt) NOT ENFORCED
    ) COMMENT 'hello' PARTITIONED BY (dt) WITH ('bucket.num' = '3', 'table.log.ttl' = '2d')""")
    info = con.table_info(name)
    assert info.get_primary_keys() == ["a", "dt"]
    assert info.get_partition_keys() == ["dt"]
    assert (info.num_buckets, info.comment) == (3, "hello")
    assert info.get_properties()["table.log.ttl"] == "2d"
    con.raw_sql(f"ALTER TABLE {name} ADD PARTITION (dt = '2024')")
    assert con.raw_sql(f"SHOW PARTITIONS {name}")["partition"].to_list() == ["2024"]
    assert name in con.raw_sql("SHOW TABLES")["table"].to_list()
    assert con.raw_sql(f"SHOW TABLES LIKE '{name[:-1]}_'")["table"].to_list() == [name]
    shown = con.raw_sql(f"DESCRIBE {name}")
    assert shown["type"].to_list()[:3] == ["int NOT NULL", "string NOT NULL", "decimal(10,2)"]
    assert shown["comment"][0] == "it's"
    again = con.raw_sql(f"SHOW CREATE TABLE {name}").item().replace(name, f"{name}_2")
    con.raw_sql(again)
    copy = con.table_info(f"{name}_2")
    assert copy.get_schema().get_columns() == info.get_schema().get_columns()
    assert copy.get_properties() == info.get_properties()


def test_insert_statements(con: Backend, fresh: Fresh) -> None:
    one, two = fresh(), fresh()
    for name in (one, two):
        con.raw_sql(f"CREATE TABLE {name} (a INT, b STRING) WITH ('bucket.num' = '1')")
    values = f"INSERT INTO {one} VALUES (1, 'x;y'), (2, 'z')"
    con.run_script(f"{values}; INSERT INTO {one} (b) VALUES ('q');")
    con.raw_sql(f"INSERT INTO {two} (b, a) SELECT b, a FROM {one} WHERE a > 1")
    assert con.table(one).to_polars().rows() == [(1, "x;y"), (2, "z"), (None, "q")]
    assert con.table(two).to_polars().rows() == [(2, "z")]
    query = f"WITH {one} AS (SELECT a FROM {one} WHERE a = 1) SELECT * FROM {one}"
    assert con.raw_sql(query).rows() == [(1,)]


def test_hints(con: Backend, name: str) -> None:
    latest = f"SELECT * FROM {name} /*+ OPTIONS('scan.startup.mode'='latest') */ AS t"
    assert con.raw_sql(latest).is_empty()
    stamp = "'scan.startup.mode'='timestamp', 'scan.startup.timestamp'='0'"
    assert con.raw_sql(f"SELECT * FROM {name} /*+ OPTIONS({stamp}) */").height == 6
    with pytest.raises(FlussError, match="there is no option 'x'"):
        con.raw_sql(f"SELECT * FROM {name} /*+ OPTIONS('x'='y') */")
    with pytest.raises(FlussError, match="has no effect"):
        con.raw_sql(f"SELECT /*+ OPTIONS('scan.startup.mode'='latest') */ * FROM {name}")


def test_alter_and_create_as(con: Backend, fresh: Fresh, name: str) -> None:
    made = fresh()
    con.raw_sql(f"CREATE TABLE {made} WITH ('bucket.num' = '1') AS SELECT id, v FROM {name}")
    assert con.table_info(made).num_buckets == 1
    con.raw_sql(f"ALTER TABLE {made} ADD COLUMN note STRING, ADD COLUMN n INT")
    con.raw_sql(f"ALTER TABLE {made} SET ('team' = 'blue')")
    assert con.table_info(made).get_custom_properties() == {"team": "blue"}
    con.raw_sql(f"ALTER TABLE {made} RESET ('team')")
    assert con.table_info(made).get_custom_properties() == {}
    con.raw_sql(f"INSERT INTO {made} VALUES (7, 0.5, 'x', 1)")
    found = con.raw_sql(f"SELECT id, note, n FROM {made} WHERE id IN (5, 7) ORDER BY id")
    assert found.rows() == [(5, None, None), (7, "x", 1)]
    con.raw_sql(f"CREATE TEMPORARY VIEW v_{made} AS SELECT count(*) AS n FROM {made}")
    assert con.raw_sql(f"SELECT n FROM v_{made}").item() == 7
    assert "FLUSS SCAN" in con.raw_sql(f"EXPLAIN SELECT id FROM {made}").item()
