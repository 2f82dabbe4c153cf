"""SQL as users write it: values of every type, statements that read and write, odd forms."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import ibis
import polars as pl
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError

Fresh = Callable[[], str]

NOON = dt.datetime(2024, 1, 31, 12, 0, 0, 500_000)
# a type as SHOW CREATE TABLE writes it, ways to write a value of it, what is read
TYPES: list[tuple[str, list[str], object]] = [
    ("BOOLEAN", ["TRUE", "1 = 1"], True),
    ("TINYINT", ["-1", "1 - 2"], -1),
    ("SMALLINT", ["2"], 2),
    ("INT", ["3", "CAST('3' AS INT)", "6 / 2.0"], 3),
    ("BIGINT NOT NULL", ["4"], 4),
    ("FLOAT", ["0.5", "1e0 / 2"], 0.5),
    ("DOUBLE", ["1e10", "10000000000"], 1e10),
    ("CHAR(3)", ["'abc'"], "abc"),
    ("STRING", ["'it''s; -- x'", "'it' || ('''s' || '; -- x')"], "it's; -- x"),
    ("DECIMAL(38,2)", ["7.25", "(7.25)", "CAST(7.25 AS DECIMAL(10, 2))"], Decimal("7.25")),
    ("DATE", ["DATE '2024-01-31'", "'2024-01-31'"], dt.date(2024, 1, 31)),
    ("TIME", ["TIME '10:11:12'", "'10:11:12'"], dt.time(10, 11, 12)),
    ("TIMESTAMP(3)", ["TIMESTAMP '2024-01-31 12:00:00.5'", "'2024-01-31T12:00:00.500'"], NOON),
    ("TIMESTAMP(9)", ["'2024-01-31 12:00:00.500000000'"], NOON),
    (
        "TIMESTAMP_LTZ(3)",
        [
            "TIMESTAMP_LTZ '2024-01-31 12:00:00.5'",
            "TIMESTAMP '2024-01-31 12:00:00.5'",
            "'2024-01-31 14:00:00.5+02:00'",
            "CAST('2024-01-31 12:00:00.5' AS TIMESTAMP_LTZ(3))",
        ],
        NOON.replace(tzinfo=dt.UTC),
    ),
    ("BINARY(2)", ["x'0102'"], b"\1\2"),
    ("BYTES", ["X'ff'"], b"\xff"),
    ("ARRAY<INT NOT NULL>", ["ARRAY[1, 2]", "[1, 2]"], [1, 2]),
    ("ARRAY<ARRAY<DATE>>", ["ARRAY[ARRAY['2024-01-31'], NULL]"], [[dt.date(2024, 1, 31)], None]),
    ("MAP<STRING NOT NULL, INT>", ["MAP['a', 1]", "MAP(ARRAY['a'], ARRAY[1])"], {"a": 1}),
    (
        "ROW<`x` INT NOT NULL COMMENT 'an x', `y z` ARRAY<STRING>> NOT NULL",
        ["ROW(1, ARRAY['a'])", "(1, ARRAY['a'])"],
        {"x": 1, "y z": ["a"]},
    ),
]


def test_every_type_is_created_shown_written_and_read(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    columns = [f"`c {at}` {kind}" for at, (kind, _, _) in enumerate(TYPES)]
    con.raw_sql(f"CREATE TABLE {name} ({', '.join(columns)}) WITH ('bucket.num' = '1')")
    shown = con.raw_sql(f"SHOW CREATE TABLE {name}").item()
    assert [line.strip(" ,") for line in shown.splitlines()[1 : len(TYPES) + 1]] == columns
    con.raw_sql(shown.replace(name, f"{name}_2"))
    schema = con.table_info(f"{name}_2").get_schema()
    assert schema.get_columns() == con.table_info(name).get_schema().get_columns()

    ways = max(len(literals) for _, literals, _ in TYPES)
    rows = [[literals[way % len(literals)] for _, literals, _ in TYPES] for way in range(ways)]
    con.raw_sql(f"INSERT INTO {name} VALUES " + ", ".join(f"({', '.join(r)})" for r in rows))
    con.raw_sql(f"INSERT INTO {name}_2 SELECT * FROM {name}")
    for table in (name, f"{name}_2"):
        found = con.raw_sql(f"SELECT * FROM {table}").to_arrow().to_pylist(maps_as_pydicts="strict")
        assert found == [{f"c {at}": value for at, (*_, value) in enumerate(TYPES)}] * ways


def test_columns_that_are_not_given_are_null(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (a INT, r ROW<x INT>, n INT NOT NULL)")
    con.raw_sql(f"INSERT INTO {name} (n, r) VALUES (1, NULL), (2, ROW(NULL))")
    con.raw_sql(f"WITH w AS (SELECT 3 AS x) INSERT INTO {name} (n) SELECT x FROM w")
    rows = [(None, None, 1), (None, {"x": None}, 2), (None, None, 3)]
    assert con.raw_sql(f"SELECT * FROM {name} ORDER BY n").rows() == rows
    with pytest.raises(FlussError, match="column 'n'"):
        con.raw_sql(f"INSERT INTO {name} (a) VALUES (1)")


def keyed_by_day(con: Backend, fresh: Fresh) -> str:
    """Create a table with a primary key and partitions; return its name."""
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (k INT, dt STRING, v DOUBLE, note STRING,"
        " PRIMARY KEY (k, dt) NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num' = '1')"
    )
    return name


def test_an_insert_of_some_columns_leaves_the_others_of_rows(con: Backend, fresh: Fresh) -> None:
    """As Flink writes into a primary-key table; of new rows they are null."""
    name = keyed_by_day(con, fresh)
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 'a', 1, 'x'), (2, 'a', 2, 'y')")
    con.raw_sql(f"INSERT INTO {name} (v, dt, k) VALUES (10, 'a', 1), (30, 'b', 3)")
    con.raw_sql(f"INSERT INTO {name} PARTITION (dt = 'a') (k, note) SELECT 2, 'new'")
    con.raw_sql(f"INSERT INTO {name} (k, dt) SELECT k, dt FROM {name}")
    whole: list[tuple[object, ...]]
    whole = [(1, "a", 10.0, "x"), (2, "a", 2.0, "new"), (3, "b", 30.0, None)]
    assert con.raw_sql(f"SELECT * FROM {name} ORDER BY k").rows() == whole
    # a null that is written is one, and so is what is left out of rows that take all others' place
    con.raw_sql(f"INSERT INTO {name} (k, dt, note) VALUES (1, 'a', NULL)")
    con.raw_sql(f"INSERT OVERWRITE {name} PARTITION (dt = 'b') (k, note) VALUES (3, 'z')")
    whole = [(1, "a", 10.0, None), (2, "a", 2.0, "new"), (3, "b", None, "z")]
    assert con.raw_sql(f"SELECT * FROM {name} ORDER BY k").rows() == whole
    with pytest.raises(FlussError, match="column 'dt'"):
        con.raw_sql(f"INSERT INTO {name} (k, v) VALUES (1, 2)")


def test_an_insert_of_some_columns_that_cannot_leave_the_others(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (k INT, n INT NOT NULL, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 1, 1)")
    for columns in ("k, n", "k, v"):
        with pytest.raises(FlussError, match="column 'n' is NOT NULL; rows can be updated in part"):
            con.raw_sql(f"INSERT INTO {name} ({columns}) VALUES (1, 2)")
    assert con.raw_sql(f"SELECT * FROM {name}").rows() == [(1, 1, 1)]
    first = fresh()
    con.raw_sql(
        f"CREATE TABLE {first} (k INT, v INT, w INT, PRIMARY KEY (k) NOT ENFORCED)"
        " WITH ('table.merge-engine' = 'first_row')"
    )
    con.raw_sql(f"INSERT INTO {first} (k, v) VALUES (1, 1)")
    con.raw_sql(f"INSERT INTO {first} (k, w) VALUES (1, 2), (2, 2)")
    assert con.raw_sql(f"SELECT * FROM {first} ORDER BY k").rows() == [(1, 1, None), (2, None, 2)]


def test_update_and_delete(con: Backend, fresh: Fresh) -> None:
    name = keyed_by_day(con, fresh)
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 'a', 1, 'x'), (2, 'a', 2, 'y'), (1, 'b', 3, 'z')")
    done = con.raw_sql(f"UPDATE {name} AS t SET v = t.v * 10, note = NULL WHERE t.dt = 'a'")
    assert done["rows"].to_list() == [2]
    con.raw_sql(f"UPDATE {name} SET v = 0.5 WHERE k = 1 AND dt = 'b'")
    assert con.raw_sql(f"DELETE FROM {name} WHERE k > (SELECT min(k) FROM {name})")["rows"][0] == 1
    assert con.raw_sql(f"UPDATE {name} SET v = 1 WHERE k = 77")["rows"][0] == 0
    found = con.raw_sql(f"SELECT * FROM {name} ORDER BY dt").rows()
    assert found == [(1, "a", 10.0, None), (1, "b", 0.5, "z")]

    whole = fresh()
    con.raw_sql(f"CREATE TABLE {whole} (k INT PRIMARY KEY NOT ENFORCED, a INT NOT NULL, b INT)")
    con.raw_sql(f"INSERT INTO {whole} VALUES (1, 2, 3)")
    con.raw_sql(f"UPDATE {whole} SET b = a + b")
    assert con.raw_sql(f"SELECT * FROM {whole}").rows() == [(1, 2, 5)]


def test_times_in_queries(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (i TIMESTAMP_LTZ(3), f FLOAT) WITH ('bucket.num' = '1')")
    con.raw_sql(f"INSERT INTO {name} VALUES ('2024-01-01', 1), ('2025-01-01', 2)")
    for condition in (
        "i > '2024-06-01'",
        "i > TIMESTAMP_LTZ '2024-06-01 00:00:00'",
        "i > CAST('2024-06-01' AS TIMESTAMP_LTZ(3))",
        "CAST(i AS TIMESTAMP) > TIMESTAMP '2024-06-01 00:00:00'",
    ):
        assert con.raw_sql(f"SELECT f FROM {name} WHERE {condition}").item() == 2.0
    kinds = con.raw_sql(f"SELECT CAST(f AS FLOAT) AS f, CAST(f AS DOUBLE) AS d FROM {name}").dtypes
    assert kinds == [pl.Float32, pl.Float64]
    stamp = "'scan.startup.mode'='timestamp', 'scan.startup.timestamp'="
    assert con.raw_sql(f"SELECT * FROM {name} /*+ OPTIONS({stamp}'2024-01-31') */").height == 2
    assert con.raw_sql(f"EXPLAIN SELECT f FROM {name} /*+ OPTIONS({stamp}'0') */").height == 1


def test_comments_semicolons_and_views(con: Backend, fresh: Fresh) -> None:
    name, view = fresh(), fresh()
    con.run_script(f"""
        -- clicks; of a page
        CREATE TABLE {name} (a INT) COMMENT 'it''s; one' WITH ('bucket.num' = '1'); -- made
        /* three; rows */ INSERT INTO {name} VALUES (1), (2), (3);;
        CREATE TEMPORARY VIEW {view} (b, c) AS SELECT a, a * 2 FROM {name} WHERE a > 1; -- done
    """)
    rows = con.raw_sql(f"-- all\nSELECT * FROM {view} ORDER BY b; -- of it").rows()
    assert rows == [(2, 4), (3, 6)]
    assert name in con.raw_sql("/* x */ SHOW TABLES; -- y")["table"].to_list()
    described = con.raw_sql(f"DESCRIBE {view} -- the view")
    assert described.select("column", "type").rows() == [("b", "int"), ("c", "bigint")]
    with pytest.raises(FlussError, match="CREATE OR REPLACE TEMPORARY VIEW replaces it"):
        con.raw_sql(f"CREATE TEMPORARY VIEW {view} AS SELECT 1")
    con.raw_sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS SELECT 1 AS one")
    assert con.raw_sql(f"EXPLAIN PLAN FOR SELECT * FROM {view}").height == 1
    assert con.raw_sql("VALUES (1, 'a'), (2, 'b')").rows() == [(1, "a"), (2, "b")]
    assert con.raw_sql("SHOW CURRENT DATABASE").item() == "ibis"
    con.raw_sql(f"ALTER TABLE IF EXISTS {name}_none ADD COLUMN a INT")
    con.raw_sql(f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS a INT, ADD COLUMN b FLOAT")
    assert [str(c.type) for c in con.table_info(name).schema.columns] == ["int", "float"]


def test_tables_are_altered_and_listed_as_flink_does(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (k VARCHAR NOT NULL, dt STRING, n BIGINT, PRIMARY KEY (k, dt) NOT"
        " ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num' = '1')"
    )
    con.raw_sql(f"ALTER TABLE {name} ADD (c CHAR(3) COMMENT 'it''s c', t TIMESTAMP(4))")
    added = con.table_info(name).schema.columns[-2:]
    assert [(c.name, str(c.type), c.comment) for c in added] == [
        ("c", "char(3)", "it's c"),
        ("t", "timestamp(4)", None),
    ]
    for day in ("2024", "2025"):
        con.raw_sql(f"ALTER TABLE {name} ADD PARTITION (dt = '{day}')")
    shown = con.raw_sql(f"SHOW PARTITIONS {name} PARTITION (dt = '2025')")
    assert shown["partition"].to_list() == ["2025"]


def test_columns_that_a_merge_engine_aggregates(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"""CREATE TABLE {name} (
        k INT, total BIGINT, names STRING, PRIMARY KEY (k) NOT ENFORCED
    ) WITH (
        'bucket.num' = '1', 'table.merge-engine' = 'aggregation', 'fields.total.agg' = 'sum',
        'fields.names.agg' = 'listagg', 'fields.names.listagg.delimiter' = '; '
    )""")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 2, 'a'), (1, 3, 'b')")
    assert con.raw_sql(f"SELECT * FROM {name}").rows() == [(1, 5, "a; b")]
    shown = con.raw_sql(f"SHOW CREATE TABLE {name}").item()
    con.raw_sql(shown.replace(name, f"{name}_2"))
    assert con.table_info(f"{name}_2").schema.columns == con.table_info(name).schema.columns


def test_windows_on_the_streaming_engine(con: Backend, fresh: Fresh) -> None:
    """A projection below a window: Polars 2.1 alone gives no rows here, and no error."""
    name = fresh()
    table = con.create_table(name, pl.DataFrame({"a": [1, 2], "b": [3, 4], "c": [5, 6]}))
    numbered = table.select("b", n=ibis.row_number().over(order_by="b"))
    assert con.to_pyarrow_batches(numbered).read_all().to_pydict() == {"b": [3, 4], "n": [0, 1]}
    with fluss_df.track_scans() as scans:
        query = f"SELECT b, row_number() OVER (ORDER BY b) AS n FROM {name} ORDER BY b"
        assert con.raw_sql(query).rows() == [(3, 1), (4, 2)]
    assert scans[0].columns == ("b",)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DATE", "2024-01-31"),
        ("TIMESTAMP(3)", "2024-01-31"),
        ("TIMESTAMP_LTZ(3)", "1 + 1"),
        ("TIME", "40 + 2"),
        ("TIME", "'12:34:56+02:00'"),
        ("DATE", "CAST('2024-01-31 10:00:00' AS TIMESTAMP) + INTERVAL '1' DAY"),
        ("BYTES", "'a' || 'b'"),
        ("STRING", "1 + 1"),
        ("INT", "5 / 2.0"),
        ("BOOLEAN", "1 + 0"),
        ("DATE", "TRUE AND TRUE"),
    ],
)
def test_what_is_computed_is_not_taken_for_another_type(
    con: Backend, fresh: Fresh, kind: str, value: str
) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (`a b` {kind})")
    with pytest.raises(FlussError, match=f"{name}.*a b"):
        con.raw_sql(f"INSERT INTO {name} VALUES ({value})")
    assert con.raw_sql(f"SELECT * FROM {name}").is_empty()


def test_what_is_local_to_the_connection_is_not_changed(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (k INT PRIMARY KEY NOT ENFORCED, v INT, note STRING)")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 10, 'a'), (2, 20, 'b')")
    con.raw_sql(f"CREATE TEMPORARY VIEW {name} AS SELECT k, 99 AS v, note FROM {name} WHERE k < 2")
    for statement in (
        f"DELETE FROM {name} WHERE v = 99",
        f"UPDATE {name} SET v = v + 1",
        f"INSERT INTO {name} VALUES (3, 30, 'c')",
    ):
        with pytest.raises(FlussError, match=f"{name}: it is local to the connection"):
            con.raw_sql(statement)
    con.raw_sql(f"DROP VIEW {name}")
    found = con.raw_sql(f"SELECT k, v FROM {name} ORDER BY k")
    assert found.rows() == [(1, 10), (2, 20)]


def test_update_sets_the_column_that_is_named_and_no_other(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (k INT PRIMARY KEY NOT ENFORCED, r ROW<x INT>, x INT)")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, ROW(2), 3)")
    for target in ("r.x", "nosuch.x", f"nosuch.{name}.x"):
        with pytest.raises(FlussError, match=f"{name}: SET .*{target}.*expected a column of"):
            con.raw_sql(f"UPDATE {name} SET {target} = 5")
    assert con.raw_sql(f"SELECT x FROM {name}").item() == 3
    con.raw_sql(f"UPDATE {name} SET {name}.x = 5")
    con.raw_sql(f"UPDATE {name} AS u SET u.x = u.x + 1")
    assert con.raw_sql(f"SELECT x FROM {name}").item() == 6


def test_update_of_a_column_that_cannot_be_null(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (k INT PRIMARY KEY NOT ENFORCED, a INT NOT NULL, b INT)")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 2, 3), (2, 3, NULL)")
    con.raw_sql(f"UPDATE {name} SET a = a + 10 WHERE k = 1")
    found = con.raw_sql(f"SELECT * FROM {name} ORDER BY k")
    assert found.rows() == [(1, 12, 3), (2, 3, None)]
