"""Statements that change tables: MERGE, TRUNCATE, INSERT OVERWRITE, CREATE TABLE AS."""

from collections.abc import Callable
from typing import Any

import ibis
import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.errors import FlussError, SchemaMismatchError
from fluss_df.io.sinks.writing import Writing

Fresh = Callable[[], str]


@pytest.fixture
def keyed(con: Backend, fresh: Fresh) -> str:
    """A partitioned table with a primary key."""
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (k INT, dt STRING, v DOUBLE, n BIGINT, d DATE, PRIMARY KEY (k, dt)"
        " NOT ENFORCED) PARTITIONED BY (dt) WITH ('bucket.num' = '2')"
    )
    con.raw_sql(
        f"INSERT INTO {name} VALUES (1, 'a', 1, 10, '2024-01-01'), (2, 'a', 2, NULL, NULL),"
        " (3, 'b', 3, 30, '2024-01-03')"
    )
    return name


@pytest.fixture
def log(con: Backend, fresh: Fresh) -> str:
    """A partitioned log."""
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (a INT, dt STRING) PARTITIONED BY (dt) WITH ('bucket.num' = '1')"
    )
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    return name


def rows(con: Backend, name: str) -> list[tuple[Any, ...]]:
    return sorted(con.raw_sql(f"SELECT * FROM {name}").rows(), key=repr)


# ---- MERGE


def test_a_merge_of_all_clauses(con: Backend, keyed: str) -> None:
    done = con.raw_sql(
        f"""WITH more AS (SELECT 7.0 AS w)
        MERGE INTO ibis.{keyed} USING (
            VALUES (1, 'a', 5.5), (2, 'a', NULL), (9, 'c', 7.0), (8, 'c', 1.0)
        ) AS s(k, dt, w) ON s.k = {keyed}.k AND ibis.{keyed}.dt = s.dt
        WHEN MATCHED AND w > 5 THEN UPDATE SET k = s.k, v = v + w, n = n + 1, d = '2025-05-05'
        WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED AND s.w >= (SELECT w FROM more) THEN INSERT (k, dt, v, n)
            VALUES (s.k, s.dt, s.w, DEFAULT)
        WHEN NOT MATCHED BY SOURCE AND n > 3 THEN UPDATE SET n = 0"""
    )
    assert done.rows() == [(f"ibis.{keyed}", 4, 1, 2, 1)]
    assert con.raw_sql(f"SELECT k, dt, v, n, CAST(d AS STRING) FROM {keyed} ORDER BY k").rows() == [
        (1, "a", 6.5, 11, "2025-05-05"),
        (3, "b", 3.0, 0, "2024-01-03"),
        (9, "c", 7.0, None, None),
    ]


def test_all_columns_by_name(con: Backend, keyed: str) -> None:
    rest = "2.0 AS v, 1 AS n, DATE '2024-05-05' AS d"
    con.raw_sql(
        f"MERGE INTO {keyed} AS t USING (SELECT {rest}, 'a' AS dt, 1 AS k UNION ALL SELECT {rest},"
        " 'q', 5) AS s USING (k, dt) WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert [row[:4] for row in rows(con, keyed)] == [
        (1, "a", 2.0, 1),
        (2, "a", 2.0, None),
        (3, "b", 3.0, 30),
        (5, "q", 2.0, 1),
    ]


@pytest.mark.parametrize(
    ("source", "clauses", "message"),
    [
        (
            "SELECT 1 AS k, 'a' AS dt UNION ALL SELECT 1, 'a'",
            "WHEN MATCHED THEN UPDATE SET n = 0",
            "the row with k = 1, dt = 'a' matches 2 rows of the source",
        ),
        (
            "SELECT 7 AS k, 'a' AS dt UNION ALL SELECT 7, 'a'",
            "WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (k, dt)",
            "2 rows would be inserted with the key k = 7, dt = 'a'",
        ),
        (
            "SELECT 0 AS k, 'a' AS dt",
            "WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (k + 1, dt)",
            "a row with k = 1, dt = 'a' would be inserted, and there is one",
        ),
        (
            "SELECT 7 AS k, CAST(NULL AS STRING) AS dt",
            "WHEN NOT MATCHED BY SOURCE THEN DELETE WHEN NOT MATCHED THEN INSERT (k, dt) VALUES"
            " (k, dt)",
            "column 'dt' .*null in row 0",
        ),
        (
            "SELECT 7 AS k, 'no name' AS dt",
            "WHEN NOT MATCHED BY SOURCE THEN DELETE WHEN NOT MATCHED THEN INSERT (k, dt) VALUES"
            " (k, dt)",
            "'no name' cannot name a partition",
        ),
        ("SELECT 1 AS k, 'a' AS dt", "WHEN MATCHED THEN UPDATE SET n = 0.5", "column 'n'"),
        (
            "SELECT 1 AS k, 'a' AS dt",
            "WHEN MATCHED THEN UPDATE SET d = 'soon'",
            "column 'd': 'soon' does not go into date: expected '2024-01-31'",
        ),
    ],
)
def test_what_does_not_fit_writes_nothing(
    con: Backend, keyed: str, source: str, clauses: str, message: str
) -> None:
    before = rows(con, keyed)
    with pytest.raises(FlussError, match=message):
        con.raw_sql(
            f"MERGE INTO {keyed} AS t USING ({source}) AS s ON t.k = s.k AND t.dt = s.dt {clauses}"
        )
    assert rows(con, keyed) == before


def test_rows_that_nothing_is_done_to_may_match_often(con: Backend, keyed: str) -> None:
    con.raw_sql(
        f"MERGE INTO {keyed} AS t USING (VALUES (1), (2), (2)) AS s(x) ON TRUE"
        " WHEN MATCHED AND t.k <> s.x THEN DO NOTHING"
        " WHEN MATCHED AND s.x = 1 THEN UPDATE SET n = -1"
        " WHEN MATCHED THEN DO NOTHING"
    )
    assert sorted(row[3] or 0 for row in rows(con, keyed)) == [-1, 0, 30]


def test_what_is_deleted_may_be_inserted(con: Backend, keyed: str) -> None:
    con.raw_sql(
        f"MERGE INTO {keyed} AS t USING (VALUES (1, 10), (2, 99)) AS s(k, n) ON t.n = s.n"
        " WHEN MATCHED THEN DELETE"
        " WHEN NOT MATCHED THEN INSERT (k, dt, n) VALUES (1, 'a', s.n)"
    )
    assert rows(con, keyed)[0] == (1, "a", None, 99, None)


def test_a_merge_looks_keys_up(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.create_table(name, pl.DataFrame({"k": range(1000), "v": 0}), primary_key="k", buckets=1)
    merge = f"MERGE INTO {name} AS t USING (SELECT 5 AS k) AS s ON t.k = s.k WHEN MATCHED THEN"
    with fluss_df.track_scans() as scans:
        con.raw_sql(f"{merge} UPDATE SET v = 1")
    assert [scan.rows for scan in scans] == [1]
    assert con.raw_sql(f"SELECT sum(v) AS v FROM {name}").item() == 1


def test_a_merge_into_a_log_adds_what_is_not_there(con: Backend, log: str) -> None:
    for expected in (1, 0):
        done = con.raw_sql(
            f"MERGE INTO {log} AS t USING (VALUES (1, 'x'), (4, 'x')) AS s(a, dt)"
            " ON t.a = s.a AND t.dt = s.dt WHEN NOT MATCHED THEN INSERT VALUES (a, dt)"
        )
        assert done["inserted"].item() == expected
    assert rows(con, log) == [(1, "x"), (2, "y"), (3, "z"), (4, "x")]


def test_tables_that_merge_by_themselves(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (k INT PRIMARY KEY NOT ENFORCED, v STRING) WITH ('bucket.num' = '1',"
        " 'table.merge-engine' = 'first_row')"
    )
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 'a')")
    merge = f"MERGE INTO {name} AS t USING (VALUES (1), (2)) AS s(k) ON t.k = s.k"
    for action in ("DELETE", "UPDATE SET v = 'x'"):
        with pytest.raises(FlussError, match=r"'table.merge-engine' = 'first_row'"):
            con.raw_sql(f"{merge} WHEN MATCHED THEN {action}")
    for statement in (f"UPDATE {name} SET v = 'x'", f"DELETE FROM {name} WHERE k = 1"):
        with pytest.raises(FlussError, match=r"'table.merge-engine' = 'first_row'"):
            con.raw_sql(statement)
    con.raw_sql(f"{merge} WHEN NOT MATCHED THEN INSERT VALUES (k, 'new')")
    assert rows(con, name) == [(1, "a"), (2, "new")]
    con.raw_sql(f"INSERT OVERWRITE {name} VALUES (1, 'z')")
    assert rows(con, name) == [(1, "z")]
    con.truncate_table(name)
    assert rows(con, name) == []


def test_numbers_that_the_server_gives(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    schema = fluss_df.Schema(ROWS_WITH_NUMBERS.to_arrow().schema, ["k"], auto_increment_column="id")
    con.connection.get_admin().create_table(
        fluss_df.TablePath("ibis", name), fluss_df.TableDescriptor(schema, bucket_count=1)
    )
    con.raw_sql(f"INSERT INTO {name} (k, v) VALUES ('a', 1), ('b', 2)")
    con.raw_sql(
        f"MERGE INTO {name} AS t USING (VALUES ('b', 20), ('c', 30)) AS s(k, v) ON t.k = s.k"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v)"
    )
    assert [row[1:] for row in rows(con, name)] == [(1, 1), (2, 20), (3, 30)]
    with pytest.raises(FlussError, match="column 'id' is numbered by the server"):
        con.raw_sql(
            f"MERGE INTO {name} AS t USING (SELECT 'a' AS k) AS s ON t.k = s.k WHEN MATCHED THEN"
            " UPDATE SET id = 7"
        )


ROWS_WITH_NUMBERS = pl.DataFrame(schema={"k": pl.String, "id": pl.Int64, "v": pl.Int64})


def test_odd_names(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    odd = ["key", "*", "^a$", "select", "a b", "it's", "t.x"]
    con.create_table(name, pl.DataFrame({c: [1, 2] for c in odd}), primary_key="key", buckets=1)
    sets = ", ".join(f"`{c}` = s.`{c}` + t.`{c}`" for c in odd[1:])
    values = ", ".join(f"s.`{c}`" for c in odd)
    con.raw_sql(
        f"MERGE INTO {name} AS t USING (SELECT `key` + 1 AS `key`, `*`, `^a$`, `select`, `a b`,"
        f" `it's`, `t.x` FROM {name}) AS s ON t.`key` = s.`key` AND t.`*` > s.`^a$` - 9"
        f" WHEN MATCHED AND s.`it's` = 1 THEN UPDATE SET {sets}"
        f" WHEN NOT MATCHED THEN INSERT VALUES ({values})"
    )
    assert rows(con, name) == [(1,) * 7, (2, *(3,) * 6), (3, *(2,) * 6)]


# ---- TRUNCATE and INSERT OVERWRITE


def test_partitions_are_replaced(con: Backend, log: str) -> None:
    con.raw_sql(f"INSERT OVERWRITE {log} VALUES (9, 'x'), (8, 'w')")
    assert rows(con, log) == [(2, "y"), (3, "z"), (8, "w"), (9, "x")]
    con.raw_sql(f"INSERT OVERWRITE TABLE {log} PARTITION (dt = 'y') SELECT a + 100 FROM {log}")
    assert rows(con, log)[:4] == [(102, "y"), (103, "y"), (108, "y"), (109, "y")]
    con.raw_sql(f"INSERT OVERWRITE {log} PARTITION (dt = 'y') SELECT 1 WHERE FALSE")
    con.raw_sql(f"INSERT INTO {log} PARTITION (dt = 'w') (a) VALUES (7)")
    assert rows(con, log) == [(3, "z"), (7, "w"), (8, "w"), (9, "x")]
    con.raw_sql(f"TRUNCATE TABLE {log} PARTITION (dt = 'w')")
    assert rows(con, log) == [(3, "z"), (9, "x")]
    before = con.raw_sql(f"SHOW PARTITIONS {log}")
    con.raw_sql(f"TRUNCATE TABLE {log}")
    assert rows(con, log) == []
    assert con.raw_sql(f"SHOW PARTITIONS {log}").equals(before)
    with pytest.raises(FlussError, match="has no partition with dt = 'nope'"):
        con.raw_sql(f"TRUNCATE TABLE {log} PARTITION (dt = 'nope')")
    for values, message in (("(9, 'x y')", "'x y' cannot name"), ("(9, NULL)", "null in row 0")):
        con.raw_sql(f"INSERT INTO {log} VALUES (1, 'x')")
        with pytest.raises(SchemaMismatchError, match=message):
            con.raw_sql(f"INSERT OVERWRITE {log} VALUES {values}")
        assert (1, "x") in rows(con, log)
    assert _beside(con, log) == []


def _beside(con: Backend, name: str) -> list[str]:
    return [table for table in con.list_tables() if table.startswith(f"{name}_")]


def test_a_log_is_replaced(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (a INT NOT NULL COMMENT 'an a', b STRING) COMMENT 'kept' WITH"
        " ('bucket.num' = '2', 'table.log.ttl' = '9d', 'mine' = 'too')"
    )
    made = con.raw_sql(f"SHOW CREATE TABLE {name}").item()
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y')")
    con.raw_sql(f"INSERT OVERWRITE {name} SELECT a + 10, b FROM {name}")
    assert rows(con, name) == [(11, "x"), (12, "y")]
    for wrong in (
        "SELECT a, 5 FROM",
        "SELECT CAST(NULL AS INT), b FROM",
        "SELECT CAST(b AS INT), b FROM",
    ):
        with pytest.raises(FlussError, match=f"table ibis.{name}|conversion"):
            con.raw_sql(f"INSERT OVERWRITE {name} {wrong} {name}")
        assert rows(con, name) == [(11, "x"), (12, "y")]
    con.insert(name, {"a": [5], "b": ["z"]}, overwrite=True)
    assert rows(con, name) == [(5, "z")]
    con.truncate_table(name)
    assert rows(con, name) == []
    assert con.raw_sql(f"SHOW CREATE TABLE {name}").item() == made
    assert _beside(con, name) == []


def test_rows_of_a_primary_key_are_replaced(con: Backend, keyed: str) -> None:
    con.raw_sql(f"INSERT OVERWRITE {keyed} (k, dt, v) VALUES (1, 'a', 9), (5, 'c', 8)")
    assert [row[:4] for row in rows(con, keyed)] == [
        (1, "a", 9.0, None),
        (3, "b", 3.0, 30),
        (5, "c", 8.0, None),
    ]
    con.raw_sql(f"INSERT OVERWRITE {keyed} PARTITION (dt = 'b') (k) VALUES (1)")
    con.raw_sql(f"TRUNCATE TABLE {keyed} PARTITION (dt = 'a')")
    assert [row[:2] for row in rows(con, keyed)] == [(1, "b"), (5, "c")]
    con.insert(keyed, {"k": [7], "dt": ["b"]}, overwrite=True)
    assert [row[:2] for row in rows(con, keyed)] == [(7, "b")]
    changes = con.raw_sql(f"SELECT _change_type FROM {keyed}$changelog")
    # those who follow the table saw each row go
    assert changes["_change_type"].to_list().count("delete") == 5
    con.truncate_table(keyed)
    assert rows(con, keyed) == []


def test_an_overwrite_that_fails_loses_nothing(
    con: Backend, log: str, keyed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers stop taking rows after the new ones are all stored."""
    before = rows(con, keyed)
    written = Writing.write_arrow

    def fail(self: Writing, table: object) -> None:
        if str(self._target.path).rpartition(".")[2] in (log, keyed):
            raise FlussError("no room")
        written(self, table)

    monkeypatch.setattr(Writing, "write_arrow", fail)
    with pytest.raises(FlussError, match=r"no room; nothing was written|no room; table"):
        con.raw_sql(f"INSERT OVERWRITE {keyed} (k, dt) VALUES (1, 'z')")
    assert rows(con, keyed) == before
    with pytest.raises(FlussError, match=r"no room.*the new rows are all in table") as caught:
        con.raw_sql(f"INSERT OVERWRITE {log} SELECT a + 10, 'x' FROM {log}")
    monkeypatch.undo()
    (beside,) = _beside(con, log)
    assert beside in str(caught.value)
    assert rows(con, beside) == [(11, "x"), (12, "x"), (13, "x")]
    con.raw_sql(f"INSERT OVERWRITE {log} SELECT * FROM {beside}")
    con.drop_table(beside)
    assert rows(con, log) == [(11, "x"), (12, "x"), (13, "x"), (2, "y"), (3, "z")]


# ---- CREATE TABLE AS


def test_a_table_with_a_key_is_made_of_a_query(con: Backend, log: str, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (PRIMARY KEY (a, dt) NOT ENFORCED) COMMENT 'c' PARTITIONED BY (dt)"
        f" WITH ('bucket.num' = '2') AS SELECT a, dt, a * 2 AS b FROM {log}"
    )
    info = con.table_info(name)
    assert (info.get_primary_keys(), info.get_partition_keys()) == (["a", "dt"], ["dt"])
    assert (info.num_buckets, info.comment) == (2, "c")
    assert rows(con, name) == [(1, "x", 2), (2, "y", 4), (3, "z", 6)]
    con.raw_sql(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT 1 AS one")
    con.raw_sql(f"CREATE OR REPLACE TABLE {name} AS SELECT sum(a) AS s FROM {name}")
    assert rows(con, name) == [(6,)]


def test_a_table_whose_query_fails_is_not_there(con: Backend, log: str, fresh: Fresh) -> None:
    name = fresh()
    with pytest.raises(FlussError):
        con.raw_sql(f"CREATE TABLE {name} AS SELECT CAST(dt AS INT) AS a FROM {log}")
    with pytest.raises(FlussError, match="was dropped again"):
        con.raw_sql(
            f"CREATE TABLE {name} PARTITIONED BY (d) AS SELECT a, dt || ' !' AS d FROM {log}"
        )
    with pytest.raises(pl.exceptions.PolarsError):
        con.create_table(name, con.table(log).select(a=ibis._.dt.cast("int64")))
    assert name not in con.list_tables()
    assert len(rows(con, log)) == 3


def test_zeros_of_either_sign_are_two_keys() -> None:
    """As in Fluss; to Polars they are equal."""
    con = Backend()
    con.do_connect(":memory:")
    con.raw_sql("CREATE TABLE z (k DOUBLE, v INT, PRIMARY KEY (k) NOT ENFORCED)")

    def keys() -> list[str]:
        found = fluss_df.read_fluss("z", connection=con._connection)
        return sorted(repr(k) for k in found["k"])

    rows = pl.DataFrame({"k": [0.0, -0.0, float("nan"), 1.5], "v": [1, 2, 3, 4]})
    rows = rows.with_columns(pl.col("v").cast(pl.Int32))
    fluss_df.write_fluss(rows, "z", connection=con._connection)
    assert keys() == ["-0.0", "0.0", "1.5", "nan"]
    assert con.raw_sql("INSERT OVERWRITE z SELECT 0.0E0, 9").height == 1
    assert keys() == ["0.0"]
    fluss_df.write_fluss(rows, "z", connection=con._connection)
    con.raw_sql(
        "MERGE INTO z USING (SELECT 0.0E0 AS k UNION ALL SELECT 1.5E0) s ON z.k = s.k"
        " WHEN MATCHED THEN UPDATE SET v = 7 WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert keys() == ["-0.0", "0.0", "1.5"]
    con.disconnect()


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("WITH ('table.log.ttl' = '1 dya')", "table.log.ttl"),
        ("WITH ('no.such' = '1')", "no.such"),
        ("(PRIMARY KEY (k) NOT ENFORCED)", "null"),
    ],
)
def test_a_table_that_cannot_be_replaced_stays(
    con: Backend, fresh: Fresh, what: str, wrong: str
) -> None:
    name = fresh()
    con.raw_sql(f"CREATE TABLE {name} (k INT, v INT)")
    con.raw_sql(f"INSERT INTO {name} VALUES (1, 10), (CAST(NULL AS INT), 20)")
    before = con.connection.get_admin().get_table_info(fluss_df.TablePath("ibis", name)).table_id
    with pytest.raises(
        FlussError, match=f"(?s){wrong}.*table ibis.{name} stays as it is"
    ) as caught:
        con.raw_sql(f"CREATE OR REPLACE TABLE {name} {what} AS SELECT k, v FROM {name}")
    assert "_replace_" not in caught.value.message
    assert sorted(con.raw_sql(f"SELECT v FROM {name}")["v"]) == [10, 20]
    after = con.connection.get_admin().get_table_info(fluss_df.TablePath("ibis", name)).table_id
    assert before == after
    with pytest.raises(FlussError, match="stays as it is"):
        con.create_table(
            name, pl.DataFrame({"a": [1]}), overwrite=True, properties={"table.log.ttl": "1 dya"}
        )
    assert not [t for t in con.list_tables() if "_replace_" in t]
    con.raw_sql(f"CREATE OR REPLACE TABLE {name} AS SELECT v FROM {name} WHERE v > 10")
    assert con.raw_sql(f"SELECT * FROM {name}").to_dicts() == [{"v": 20}]
    assert not [t for t in con.list_tables() if "_replace_" in t]


def test_an_update_beside_a_number_of_the_server(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    columns = [
        pa.field("k", pa.string(), nullable=False),
        ("id", pa.int64()),
        ("v", pa.int64()),
        ("w", pa.int64()),
    ]
    schema = fluss_df.Schema(pa.schema(columns), ["k"], auto_increment_column="id")
    con.connection.get_admin().create_table(
        fluss_df.TablePath("ibis", name), fluss_df.TableDescriptor(schema, bucket_count=1)
    )
    con.raw_sql(f"INSERT INTO {name} (k, v, w) VALUES ('a', 1, 10), ('b', 2, 20)")
    con.raw_sql(f"UPDATE {name} SET w = w + 1 WHERE k = 'b'")
    con.raw_sql(f"UPDATE {name} SET w = 5, v = v + 7 WHERE k = 'a'")
    found = con.raw_sql(f"SELECT * FROM {name} ORDER BY k")
    assert found.rows() == [("a", 1, 8, 5), ("b", 2, 2, 21)]
    with pytest.raises(FlussError, match=r"column 'id' is numbered by the server"):
        con.raw_sql(f"UPDATE {name} SET id = 7 WHERE k = 'a'")


def test_overwritten_rows_of_a_key_stay_in_their_order(con: Backend, fresh: Fresh) -> None:
    name = fresh()
    con.raw_sql(
        f"CREATE TABLE {name} (k INT, at INT, PRIMARY KEY (k) NOT ENFORCED)"
        " WITH ('bucket.num' = '4', 'table.merge-engine' = 'first_row')"
    )
    rows = pl.DataFrame({"k": [n % 1000 for n in range(400_000)], "at": range(400_000)})
    con.insert(name, ibis.memtable(rows.cast(pl.Int32)), overwrite=True)
    found = con.raw_sql(f"SELECT k, at FROM {name} ORDER BY k")
    assert found["at"].to_list() == list(range(1000))
