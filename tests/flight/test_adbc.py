"""The ADBC driver of Flight SQL: what it asks about tables, statements, values, rows in bulk."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import polars as pl
import pyarrow as pa
import pytest
from adbc_driver_manager import NotSupportedError, OperationalError, ProgrammingError

import fluss_df
from fluss_df.backend import Backend
from fluss_df.flight import FlightSqlServer
from tests.backend.test_sql_forms import T, U

Fresh = Callable[[], str]
QUERIES = (Path(__file__).parents[1] / "backend" / "queries.sql").read_text().splitlines()[::2]
NOON = dt.datetime(2024, 1, 31, 12, 0, 0, 500_000)
TYPES = [
    ("BOOLEAN", True),
    ("TINYINT", -1),
    ("SMALLINT", 2),
    ("INT", 3),
    ("BIGINT", 2**62),
    ("FLOAT", 0.5),
    ("DOUBLE", 1e300),
    ("CHAR(3)", "abc"),
    ("STRING", "it's; -- ? $1 \\ \" ` \n é😀"),
    ("DECIMAL(38,2)", Decimal("-7.25")),
    ("DATE", dt.date(2024, 1, 31)),
    ("TIME", dt.time(10, 11, 12)),
    ("TIMESTAMP(3)", NOON),
    ("TIMESTAMP(9)", NOON),
    ("TIMESTAMP_LTZ(3)", NOON.replace(tzinfo=dt.UTC)),
    ("BINARY(2)", b"\1\2"),
    ("BYTES", b"\0\xff'"),
]


def rows(cursor: adbc.Cursor, statement: str, values: Any = None) -> list[dict[str, Any]]:
    cursor.execute(statement, values)
    found: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
    return found


# ---- queries


@pytest.fixture(scope="session")
def forms(served: Any) -> None:
    """The tables of the queries."""
    for name, frame in (("t", T), ("u", U)):
        fluss_df.write_fluss(frame, name, connection=served[1], create_if_not_exists=True)


def test_queries_have_the_rows_that_they_have_through_ibis(
    forms: None, cursor: adbc.Cursor, con: Backend
) -> None:
    differing = []
    for query in QUERIES:
        wanted = con.sql(query).to_pyarrow()
        cursor.execute(query)
        found = cursor.fetch_arrow_table()
        same = found.column_names == wanted.column_names
        pairs = (found.to_pylist(), wanted.to_pylist())
        if "ORDER BY" not in query.rsplit(")", 1)[-1]:
            pairs = (sorted(pairs[0], key=repr), sorted(pairs[1], key=repr))
        if not same or repr(pairs[0]) != repr(pairs[1]):
            differing.append((query, pairs))
    assert differing == []
    assert len(QUERIES) > 100


def test_a_catalog_may_stand_in_front_of_names(
    forms: None, cursor: adbc.Cursor, con: Backend
) -> None:
    path = f'"fluss"."{con.current_database}"."t"'
    assert rows(cursor, f"SELECT count(*) AS n FROM {path}") == [{"n": T.height}]


def test_an_error_says_where(cursor: adbc.Cursor) -> None:
    with pytest.raises(ProgrammingError, match=r"NOT_FOUND.*nowhere does not exist.*column 15"):
        cursor.execute("SELECT * FROM nowhere")
    with pytest.raises(ProgrammingError, match=r"INVALID_ARGUMENT.*expected one statement"):
        cursor.execute("SELECT 1; SELECT 2")


def test_a_result_may_be_left_and_the_next_one_asked_for(
    cursor: adbc.Cursor, con: Backend, fresh: Fresh
) -> None:
    name = fresh()
    many = pl.DataFrame({"n": range(2_000_000)})
    fluss_df.write_fluss(many, name, connection=con.connection, create_if_not_exists=True)
    for _ in range(3):
        cursor.execute(f"SELECT * FROM {name}")
        assert cursor.fetchone() is not None
    cursor.execute(f"SELECT count(*) AS n, sum(n) AS s FROM {name}")
    assert cursor.fetchall() == [(2_000_000, sum(range(2_000_000)))]


def test_a_query_is_cancelled(cursor: adbc.Cursor, con: Backend, fresh: Fresh) -> None:
    name = fresh()
    many = pl.DataFrame({"n": range(4_000_000), "t": ["a text that takes some room"] * 4_000_000})
    fluss_df.write_fluss(many, name, connection=con.connection, create_if_not_exists=True)
    cursor.execute(f"SELECT * FROM {name}")
    cursor.fetchone()
    cursor.adbc_cancel()
    with pytest.raises(OperationalError, match="CANCELLED"):
        cursor.fetchall()


# ---- values of parameters


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=[kind for kind, _ in TYPES])
def test_a_value_of_each_type_comes_back(
    cursor: adbc.Cursor, fresh: Fresh, kind: str, value: object
) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, v {kind}, PRIMARY KEY (id))")
    assert rows(cursor, f"INSERT INTO {name} VALUES (?, ?)", (1, value))[0]["rows"] == 1
    assert rows(cursor, f"INSERT INTO {name} (v, id) VALUES ($2, $1)", (2, None))
    found = rows(cursor, f"SELECT v FROM {name} WHERE id = ?", (1,))
    assert found == [{"v": value}]
    assert rows(cursor, f"SELECT id FROM {name} WHERE v = ?", (value,)) == [{"id": 1}]


def test_values_are_never_read_as_sql(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    texts = [
        f"'); DROP TABLE {name}; --",
        "' OR '1' = '1",
        "\\' OR 1 = 1 --",
        "$1 ? :a {x} %s",
        "/*+ OPTIONS('a'='b') */",
        "\u2019\u02bc\uff07' \x1a \u0000".replace("\u0000", ""),
        "'" * 999,
    ]
    cursor.executemany(f"INSERT INTO {name} VALUES (?, ?)", list(enumerate(texts)))
    for number, text in enumerate(texts):
        assert rows(cursor, f"SELECT id, s FROM {name} WHERE s = ?", (text,)) == [
            {"id": number, "s": text}
        ]


def test_many_rows_of_values_are_inserted(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    cursor.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(n, f"text {n}") for n in range(1500)])
    assert cursor.rowcount == 1500
    cursor.executemany(f"DELETE FROM {name} WHERE id = ?", [(1,), (2,), (3,)])
    found = rows(cursor, f"SELECT count(*) AS n, max(s) AS s FROM {name}")
    assert found == [{"n": 1497, "s": "text 999"}]


@pytest.mark.parametrize(
    ("values", "given", "wanted"),
    [
        # a row of its own comes with each row of values
        ("VALUES (7, 'own'), (?, ?)", [(1, "a"), (2, "b")], "1a 2b 7own 7own"),
        ("VALUES (?, ?), (?, ?)", [(1, "a", 2, "b"), (3, "c", 4, "d")], "1a 2b 3c 4d"),
        ("VALUES (?, upper(?))", [(1, "a"), (2, "b")], "1A 2B"),
        ("VALUES (?, ?) -- (?)", [(1, "a"), (2, "b")], "1a 2b"),
        ("SELECT * FROM (VALUES (?, ?)) AS v(id, s)", [(1, "a"), (2, "b")], "1a 2b"),
    ],
)
def test_rows_of_values_are_put_together_where_it_means_the_same(
    cursor: adbc.Cursor, fresh: Fresh, values: str, given: list[Any], wanted: str
) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING)")
    cursor.executemany(f"INSERT INTO {name} {values}", given)
    found = rows(cursor, f"SELECT id, s FROM {name} ORDER BY id")
    assert " ".join(f"{row['id']}{row['s']}" for row in found) == wanted


def test_all_rows_of_values_overwrite_together(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING)")
    rows(cursor, f"INSERT INTO {name} VALUES (9999, 'old')")
    statement = f"INSERT OVERWRITE {name} VALUES (?, ?)"
    cursor.executemany(statement, [(n, "new") for n in range(1500)])
    assert cursor.rowcount == 1500
    counted = f"SELECT count(*) AS n, min(id) AS a, max(id) AS b FROM {name}"
    wanted = [{"n": 1500, "a": 0, "b": 1499}]
    assert rows(cursor, counted) == wanted
    many = pa.table({"id": pa.array(range(20_001), pa.int32()), "s": ["x"] * 20_001})
    with pytest.raises(ProgrammingError, match="it takes at most 20,000"):
        cursor.executemany(statement, many)
    with pytest.raises(ProgrammingError, match="each would overwrite the one before"):
        cursor.executemany(f"INSERT OVERWRITE {name} VALUES (?, upper(?))", [(1, "a"), (2, "b")])
    assert rows(cursor, counted) == wanted


def test_rows_of_values_that_overwrite_partitions_do_not_overwrite_each_other(
    cursor: adbc.Cursor, fresh: Fresh
) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, d STRING) PARTITIONED BY (d)")
    statement = f"INSERT OVERWRITE {name} PARTITION (d = ?) VALUES (?)"
    with pytest.raises(ProgrammingError, match="each would overwrite the one before"):
        cursor.executemany(statement, [("x", 1), ("x", 2), ("y", 3)])
    assert rows(cursor, f"SELECT count(*) AS n FROM {name}") == [{"n": 0}]
    cursor.execute(statement, ("x", 1))
    assert rows(cursor, f"SELECT id, d FROM {name}") == [{"id": 1, "d": "x"}]


def test_no_rows_of_values_write_no_rows(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    nothing = pa.schema([("id", pa.int32()), ("s", pa.string())]).empty_table()
    cursor.executemany(f"INSERT INTO {name} VALUES (?, ?)", nothing)
    assert cursor.rowcount == 0
    cursor.executemany(f"DELETE FROM {name} WHERE id = ? AND s = ?", nothing)
    assert cursor.rowcount == 0
    with pytest.raises(ProgrammingError, match="has 1 parameters, and 2 values came"):
        cursor.executemany(f"DELETE FROM {name} WHERE id = ?", nothing)
    assert rows(cursor, f"SELECT count(*) AS n FROM {name}") == [{"n": 0}]


def test_rows_that_are_written_before_an_error_are_told(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    ids = pa.array([None if n == 2100 else n for n in range(2500)], pa.int32())
    many = pa.table({"id": ids, "s": ["x"] * 2500})
    told = (
        "null in row 100.*; 2,000 rows before are written, and the rows that it names are counted"
        " behind them"
    )
    with pytest.raises(ProgrammingError, match=told):
        cursor.executemany(f"INSERT INTO {name} VALUES (?, ?)", many)
    assert rows(cursor, f"SELECT count(*) AS n FROM {name}") == [{"n": 2000}]
    with pytest.raises(ProgrammingError, match=r"'y'.*; 1 rows before are written \("):
        cursor.executemany(f"DELETE FROM {name} WHERE id = CAST(? AS INT)", [("1",), ("y",)])


def test_a_prepared_statement_says_its_parameters(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, d DATE, m DECIMAL(10,2))")
    schema = cursor.adbc_prepare(
        f"SELECT id FROM {name} WHERE d = ? AND m BETWEEN ? AND ? AND id IN (?) LIMIT ?"
    )
    assert schema is not None
    assert schema.types == [
        pa.date32(),
        pa.decimal128(10, 2),
        pa.decimal128(10, 2),
        pa.int32(),
        pa.int64(),
    ]
    inserted = cursor.adbc_prepare(f"INSERT INTO {name} VALUES (?, ?, CAST(? AS DECIMAL(10,2)))")
    assert inserted is not None
    assert inserted.types[:2] == [pa.int32(), pa.date32()]


@pytest.mark.parametrize(
    ("statement", "values", "message"),
    [
        ("SELECT ? AS a", (1, 2), "1 parameters, and 2 values came"),
        ("SELECT ? AS a, $1 AS b", (1,), "this statement has both"),
        ("SELECT $2 AS a", (1,), r"a parameter \$2 and no \$1"),
        ("SELECT ? AS a", ([1],), "no literal in SQL"),
        ("SELECT ? AS a", ("a\0b",), "the character NUL"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    cursor: adbc.Cursor, statement: str, values: tuple[object, ...], message: str
) -> None:
    with pytest.raises(ProgrammingError, match=message):
        cursor.execute(statement, values)


# ---- tables


def test_tables_are_listed(
    client: adbc.Connection, cursor: adbc.Cursor, con: Backend, fresh: Fresh
) -> None:
    name, other = fresh(), fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    rows(cursor, f"CREATE TABLE {other} (m DECIMAL(10,2))")
    database = con.current_database
    objects = client.adbc_get_objects(
        depth="all", db_schema_filter=database, table_name_filter=name
    ).read_all()
    (catalog,) = objects.to_pylist()
    assert catalog["catalog_name"] == "fluss"
    (schema,) = catalog["catalog_db_schemas"]
    assert schema["db_schema_name"] == database
    (table,) = schema["db_schema_tables"]
    assert (table["table_name"], table["table_type"]) == (name, "TABLE")
    columns = [(c["column_name"], c["xdbc_type_name"]) for c in table["table_columns"]]
    assert columns == [("id", "INT"), ("s", "STRING")]
    found = client.adbc_get_table_schema(other, db_schema_filter=database)
    assert found.field("m").type == pa.decimal128(10, 2)
    # a pattern of LIKE, whose _ is any character
    assert client.adbc_get_table_types() == ["TABLE"]
    named = client.adbc_get_objects(depth="tables", table_name_filter="t\\_%").read_all()
    assert name in str(named.to_pylist())
    nothing = client.adbc_get_objects(depth="tables", catalog_filter="another").read_all()
    assert nothing.num_rows == 0


def test_the_server_says_what_it_is(client: adbc.Connection) -> None:
    about = client.adbc_get_info()
    assert about["vendor_name"] == "fluss_df"
    assert about["vendor_version"] == fluss_df.__version__


# ---- rows in bulk


def test_rows_are_ingested_into_log_and_key_tables(
    cursor: adbc.Cursor, con: Backend, fresh: Fresh
) -> None:
    name = fresh()
    first = pa.table({"id": [1, 2], "s": ["a", None]})
    with pytest.raises(ProgrammingError, match=r"NOT_FOUND.*create it first"):
        cursor.adbc_ingest(name, first, mode="append")
    assert cursor.adbc_ingest(name, first, mode="create") == 2
    with pytest.raises(ProgrammingError, match=r"ALREADY_EXISTS.*mode 'append'"):
        cursor.adbc_ingest(name, first, mode="create")
    assert cursor.adbc_ingest(name, first, mode="append") == 2
    assert cursor.adbc_ingest(name, first, mode="create_append") == 2
    assert rows(cursor, f"SELECT count(*) AS n FROM {name}") == [{"n": 6}]
    assert cursor.adbc_ingest(name, pa.table({"x": [1.5]}), mode="replace") == 1
    assert rows(cursor, f"SELECT * FROM {name}") == [{"x": 1.5}]
    keyed = fresh()
    rows(cursor, f"CREATE TABLE {keyed} (id INT, s STRING, PRIMARY KEY (id))")
    cursor.adbc_ingest(keyed, first, mode="append")
    cursor.adbc_ingest(keyed, pa.table({"s": ["b"], "id": [2]}), mode="append")
    found = rows(cursor, f"SELECT * FROM {keyed} ORDER BY id")
    assert found == [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}]


@pytest.mark.parametrize("count", [1, 65_536, 1_000_000])
def test_as_many_rows_are_ingested_as_are_sent(
    cursor: adbc.Cursor, fresh: Fresh, count: int
) -> None:
    name = fresh()
    frame = pl.DataFrame({"n": pl.int_range(count, eager=True)}).with_columns(
        t=pl.format("text {}", "n")
    )
    table = frame.to_arrow()
    reader = pa.RecordBatchReader.from_batches(
        table.schema, table.to_batches(max_chunksize=100_000)
    )
    cursor.adbc_ingest(name, reader, mode="create")
    cursor.execute(f"SELECT count(*) AS n, sum(n) AS s FROM {name}")
    assert cursor.fetchone() == (count, sum(range(count)))


def test_rows_that_do_not_fit_are_refused(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name = fresh()
    rows(cursor, f"CREATE TABLE {name} (id INT)")
    with pytest.raises(ProgrammingError, match="column"):
        cursor.adbc_ingest(name, pa.table({"other": [1]}), mode="append")
    with pytest.raises(ProgrammingError, match="id"):
        cursor.adbc_ingest(name, pa.table({"id": ["text"]}), mode="append")
    assert rows(cursor, f"SELECT count(*) AS n FROM {name}") == [{"n": 0}]


@pytest.mark.parametrize("mode", ["create", "append", "replace"])
def test_rows_with_two_columns_of_one_name_are_refused(
    cursor: adbc.Cursor, fresh: Fresh, mode: Any
) -> None:
    name = fresh()
    if mode != "create":
        rows(cursor, f"CREATE TABLE {name} (id INT)")
    with pytest.raises(
        ProgrammingError, match=rf"INVALID_ARGUMENT.*{name}: .*more than one column 'id'"
    ):
        cursor.adbc_ingest(name, pa.table([[1], [2]], names=["id", "id"]), mode=mode)
    if mode != "create":
        assert rows(cursor, f"SELECT * FROM {name}") == []


def test_rows_in_no_batch_say_how_none_are_sent(cursor: adbc.Cursor, fresh: Fresh) -> None:
    name, schema = fresh(), pa.schema({"id": pa.int64()})
    with pytest.raises(ProgrammingError, match=r"INVALID_ARGUMENT.*send one batch without rows"):
        cursor.adbc_ingest(name, pa.RecordBatchReader.from_batches(schema, []), mode="create")
    one = pa.RecordBatch.from_pylist([], schema)
    empty = pa.RecordBatchReader.from_batches(schema, [one])
    assert cursor.adbc_ingest(name, empty, mode="create") == 0
    assert rows(cursor, f"SELECT * FROM {name}") == []


# ---- what there is not


def test_transactions_are_refused_by_name(client: adbc.Connection, cursor: adbc.Cursor) -> None:
    with pytest.raises(NotSupportedError, match="transaction"):
        client.adbc_connection.set_autocommit(False)
    for word in ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "START TRANSACTION"):
        with pytest.raises(NotSupportedError, match=r"no transactions and no savepoints"):
            cursor.execute(word)


@pytest.mark.parametrize(
    "statement",
    [
        "USE fluss",
        "; use fluss",
        "{# x #}USE fluss",
        "-- x\nUSE/**/fluss;",
        "/**/" * 40 + "USE fluss",
    ],
)
def test_who_gave_no_name_names_databases(cursor: adbc.Cursor, statement: str) -> None:
    with pytest.raises(NotSupportedError, match=r"write DATABASE\.TABLE"):
        cursor.execute(statement)


def test_comments_take_no_time(cursor: adbc.Cursor) -> None:
    assert rows(cursor, "/**/" * 1000 + "SELECT 1 AS a") == [{"a": 1}]


def test_servers_of_one_process_know_their_own_clients(server: FlightSqlServer) -> None:
    with adbc.connect(server.url, autocommit=True) as one, one.cursor() as cursor:
        assert rows(cursor, "SELECT 1 AS one") == [{"one": 1}]
