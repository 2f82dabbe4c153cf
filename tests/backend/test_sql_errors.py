"""Statements that cannot be run: the message says which part, and where it stands."""

import re

import pytest

from fluss_df.backend import Backend
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath

TABLE = "known"

# what cannot be read: the message says where, in lines and columns
UNREADABLE = """
SELEC 1
SELECT
SELECT * FROM
SELECT * FROM known WHERE
SELECT * FROM known WHERE a =
SELECT * FROM known WHERE a = 1 AND
SELECT a, FROM known WHERE (a = 1
SELECT * FROM known GROUP BY
SELECT * FROM known ORDER BY
SELECT (a FROM known
SELECT a b c FROM known
SELECT * FROM known JOIN
SELECT * FROM known JOIN known AS k ON
SELECT CASE WHEN a = 1 THEN 2 FROM known
SELECT CAST(a AS) FROM known
SELECT a FROM known LIMIT LIMIT
SELECT * FORM known
SELECT a FROM (SELECT a FROM known
SELECT a FROM known UNION
SELECT count( FROM known
SELECT 'abc FROM known
SELECT "a FROM known
SELECT `a FROM known
SELECT a FROM known WHERE a IN (1, 2
SELECT a FROM known WHERE a BETWEEN 1
WITH x AS SELECT 1 SELECT * FROM x
CREATE
CREATE TABLE
CREATE TABLE x (
CREATE TABLE x (a INT
CREATE TABLE x (a INT,, b INT)
CREATE TABLE x (a INT) WITH (
CREATE TABLE x (a INT) WITH ('bucket.num' = )
CREATE TABLE x (a ARRAY<INT)
CREATE TABLE x (a DECIMAL(10, )
CREATE TABLE x (a INT,)
CREATE TABLE x (a INT, PRIMARY KEY (a) NOT)
CREATE DATABASE
DROP
DROP TABLE
DROP TABLES known
DROP DATABASE
ALTER
ALTER TABLE
ALTER TABLE known
ALTER TABLE known ADD
ALTER TABLE known ADD PARTITION
ALTER TABLE known ADD PARTITION (dt = )
ALTER TABLE known SET
ALTER TABLE known SET ('a' = 'b'
ALTER TABLE known RESET a
ALTER TABLE known MODIFY a BIGINT
ALTER DATABASE d SET ('a' = 'b')
INSERT
INSERT INTO
INSERT INTO known
INSERT INTO known VALUES
INSERT INTO known VALUES (1
INSERT INTO known VALUES (1, 'x'
INSERT known VALUES (1,)
INSERT INTO known (a, b VALUES (1, 'x')
DELETE
DELETE FROM
DELETE FROM known WHERE
DELETE known WHERE a =
USE
SHOW
SHOW FOO
SHOW TABLE
DESCRIBE
GRANT SELECT ON known
CALL something(1)
SET x = 1
123 abc
"""

# what can be read and not run: a part of the message
UNRUNNABLE = [
    ("SELECT * FROM nowhere", r"nowhere does not exist.*\(line 1, column 15\)"),
    ("SELECT *\nFROM\n  nowhere", r"nowhere does not exist.*\(line 3, column 3\)"),
    ("SELECT * FROM no_db.known", r"no_db.*does not exist.*\(line 1"),
    ("SELECT * FROM a.b.c", r"databases and no catalogs"),
    ("SELECT nothing FROM known", 'unable to find column "nothing"'),
    ("SELECT nofunction(a) FROM known", "nofunction"),
    ("SELECT upper(a) FROM known", "SQL cannot be run: invalid series dtype: expected `String`"),
    ("SELECT CAST(b AS INT) FROM known", "conversion from `str` to `i32` failed in column 'b'"),
    ("SELECT * FROM known AS k (x, y)", "columns cannot be renamed there"),
    ("SELECT * FROM known WHERE a = :x", "there is no value for the parameter"),
    ("SELECT * FROM known WHERE a = ?", "there is no value for the parameter"),
    ("SELECT 1; SELECT 2", "expected one statement in SQL, found 2"),
    ("", "expected one statement in SQL, found 0"),
    ("INSERT INTO nowhere VALUES (1)", "nowhere does not exist"),
    ("INSERT INTO known VALUES (1)", r"row 1 of VALUES has 1 values for 2 columns \(a, b\)"),
    ("INSERT INTO known VALUES (1, 'x'), (2)", r"row 2 of VALUES has 1 .*\(line 1, column 37\)"),
    ("INSERT INTO known (a, z) VALUES (1, 2)", "INSERT column 'z' does not exist"),
    ("INSERT INTO known (a, a) VALUES (1, 2)", "names a column more than once"),
    ("INSERT OVERWRITE known SELECT 1, 2", "table ibis.known, column 'b': int32 does not go into"),
    ("INSERT OVERWRITE known SELECT 1", "1 columns .* given for 2"),
    ("INSERT OVERWRITE known PARTITION (b) SELECT 1", r"PARTITION takes column = value, not b"),
    ("INSERT OVERWRITE nowhere SELECT 1", "nowhere does not exist"),
    ("INSERT INTO known VALUES ('x', 1)", r"column 'a': 'x' does not go into int.*column 27\)"),
    ("INSERT INTO known (a) VALUES (1), (99999999999)", "column 'a': 99999999999 does not go"),
    ("INSERT INTO known (a) VALUES (1.5)", "'a': 1.5 does not go into int: it has a fraction"),
    ("INSERT INTO known (a) VALUES (DEFAULT)", "DEFAULT does not go into int: expected a value"),
    ("INSERT INTO known (a) VALUES (ARRAY[1])", "column 'a'"),
    ("INSERT INTO known (b) VALUES (1)", "column 'b': 1 does not go into string"),
    ("INSERT INTO known (b) VALUES (nofunction(1))", "nofunction"),
    ("INSERT INTO known PARTITION (b = 'x') VALUES (1)", "column 'b' is no partition column"),
    ("INSERT INTO known SELECT a, b + 1 FROM known", "arithmetic on dtypes"),
    ("UPDATE known SET a = 1", "has no primary key, so there is no UPDATE"),
    ("UPDATE keyed SET a = 1", r"column 'a' is of the primary key \(line 1, column 18\)"),
    ("UPDATE keyed SET b = 'x', b = 'y'", "column 'b' is set twice"),
    ("UPDATE keyed SET z = 1 WHERE a = 1", "SET column 'z' does not exist"),
    ("UPDATE keyed SET b = k.b FROM known AS k", "cannot be run with FROM"),
    ("UPDATE keyed SET b = 1 + b", "arithmetic on dtypes"),
    ("DELETE FROM keyed WHERE a = 'x' + 1", "SQL cannot be run"),
    ("DELETE FROM keyed USING known WHERE keyed.a = 1", "cannot be run with USING"),
    ("TRUNCATE TABLE known, keyed", "TRUNCATE TABLE of several tables cannot be run"),
    ("TRUNCATE TABLE known PARTITION (a = 1)", "column 'a' is no partition column"),
    ("TRUNCATE TABLE nowhere", "nowhere does not exist"),
    ("TRUNCATE TABLE known CASCADE", "cannot be run with OPTION of TRUNCATETABLE"),
    ("DELETE FROM known", "without WHERE"),
    ("DELETE FROM known WHERE a = 1", "has no primary key, so there is no DELETE"),
    ("CREATE TABLE x (a UUID)", "column 'a': SQL cannot create the type UUID"),
    ("CREATE TABLE x (a)", "column 'a' has no type"),
    ("CREATE TABLE x (a INT, a INT)", "column 'a' stands there twice"),
    ("CREATE TABLE x (a INT, PRIMARY KEY (z) NOT ENFORCED)", "primary key column 'z'"),
    ("CREATE TABLE x (a INT) PARTITIONED BY (z)", "PARTITIONED BY column 'z' does not exist"),
    ("CREATE TABLE x (a INT) PARTITIONED BY a", "stands in parentheses"),
    ("CREATE TABLE x (a INT DEFAULT 1)", "this part of column 'a' cannot be run: DEFAULT 1"),
    ("CREATE TABLE x (a INT, CHECK (a > 1))", "part of CREATE TABLE ibis.x cannot be run"),
    ("CREATE TABLE x (a DECIMAL(99, 2))", "99"),
    ("CREATE TABLE known (a INT)", "already exist"),
    ("CREATE TABLE x (a INT) WITH ('bucket.num' = 'many')", "bucket.num"),
    ("CREATE TABLE x", r"expected columns in \(\.\.\.\)"),
    ("CREATE TABLE x LIKE known", r"expected columns in \(\.\.\.\)"),
    ("CREATE TABLE x (a INT) AS SELECT 1 AS a", "takes its columns from the query"),
    ("CREATE TEMPORARY VIEW ibis.x AS SELECT 1", "temporary views are local to the connection"),
    ("CREATE TEMPORARY VIEW x (a, b) AS SELECT 1", r"view 'x': 1 columns \(literal\) given for 2"),
    ("CREATE VIEW x (a, b) AS SELECT 1", r"x: 2 names \(a, b\) given for 1 columns \(literal\)"),
    ("CREATE VIEW x (a, a) AS SELECT 1, 2", "two of its columns have one name"),
    ("CREATE VIEW x AS SELECT * FROM nowhere", "table ibis.nowhere does not exist"),
    ("CREATE VIEW x AS SELECT * FROM x", "x does not exist"),
    ("CREATE VIEW known AS SELECT 1 AS a", "view ibis.known: there is a table of this name"),
    ("CREATE OR REPLACE VIEW known AS SELECT 1 AS a", "known: there is a table of this name"),
    ("CREATE VIEW x AS SELECT * FROM read_csv('/etc/passwd')", "reads tables and views, not files"),
    ("CREATE VIEW no_db.x AS SELECT 1 AS a", "no_db"),
    ("CREATE MATERIALIZED VIEW x AS SELECT 1 AS a", "part of CREATE VIEW cannot be run: MATERIAL"),
    ("CREATE VIEW x AS DELETE FROM known", "there is no such statement"),
    ("ALTER VIEW known AS SELECT 1", "ibis.known is a table, not a view"),
    ("DROP VIEW known", "ibis.known is a table, not a view"),
    ("SHOW CREATE VIEW known", "ibis.known is a table, not a view"),
    ("CREATE TABLE x (PRIMARY KEY (z) NOT ENFORCED) AS SELECT 1 AS a", "primary key column 'z'"),
    ("CREATE OR REPLACE TABLE x (a INT)", "this statement cannot be run"),
    ("CREATE TABLE x AS SELECT * FROM nowhere", "nowhere does not exist"),
    ("CREATE TABLE x (a ROW<x INT DEFAULT 1>)", "part of column 'a.x' cannot be run: DEFAULT 1"),
    ("CREATE TABLE x (a DATETIME)", "column 'a': SQL cannot create the type"),
    ("CREATE TABLE x (a INT, PRIMARY KEY)", "part of CREATE TABLE ibis.x cannot be run"),
    ("; ;", "found 0"),
    ("CREATE INDEX i ON known (a)", "this statement cannot be run: CREATE INDEX"),
    ("DROP TABLE nowhere", "nowhere does not exist"),
    ("DROP VIEW nowhere", "view ibis.nowhere does not exist"),
    ("DROP INDEX i", "this statement cannot be run: DROP INDEX"),
    ("ALTER TABLE known DROP COLUMN a", "neither renames, changes nor drops them: DROP COLUMN a"),
    ("ALTER TABLE known RENAME COLUMN a TO c", "adds columns, and neither renames, changes nor"),
    ("ALTER TABLE known RENAME TO other", "known cannot be renamed: no server of Fluss has such"),
    ("ALTER TABLE known ADD COLUMN c INT FIRST", "adds columns behind the others"),
    ("ALTER TABLE known ADD COLUMN c INT NOT NULL", "column 'c' cannot be added"),
    ("ALTER TABLE known SET ('bucket.num' = '2')", "'bucket.num' of a table is fixed"),
    ("ALTER TABLE known SET ('a')", "expected key = 'value', not 'a'"),
    ("ALTER TABLE known ADD PARTITION (dt)", "expected key = 'value', not dt"),
    ("USE nowhere", "database 'nowhere' does not exist"),
    ("SHOW PARTITIONS", "PARTITIONS: expected the name of a table"),
    ("SHOW CREATE TABLE", "CREATE TABLE: expected the name of a table"),
    ("SHOW VIEWS known extra", "expected SHOW DATABASES"),
    ("SHOW TABLES NOT LIKE 'x'", "expected SHOW DATABASES"),
    ("EXPLAIN DROP TABLE known", "EXPLAIN is for queries"),
    ("SHOW DATABASES FROM x", "SHOW DATABASES takes no name"),
    ("SHOW PARTITIONS known LIKE 'x'", "PARTITIONS has no LIKE"),
    ("DESCRIBE nowhere", "nowhere does not exist"),
    ("SELECT * FROM known /*+ OPTIONS('x' = 'y') */", "there is no option 'x'"),
    ("SELECT * FROM known /*+ OPTIONS(x) */", r"expected OPTIONS\('key'='value', \.\.\.\)"),
    ("SELECT * FROM known /*+ OPTIONS('scan.startup.mode' = 'x') */", "expected full, earliest"),
    ("SELECT * FROM known /*+ OPTIONS('scan.startup.mode'='timestamp') */", "need each other"),
    (
        "SELECT * FROM known /*+ OPTIONS('scan.startup.mode'='timestamp',"
        " 'scan.startup.timestamp'='noon') */",
        "expected milliseconds since 1970 or '2024-01-31 12:00:00'",
    ),
    ("SELECT /*+ OPTIONS('scan.startup.mode'='latest') */ * FROM known", "has no effect"),
]


ON = "MERGE INTO keyed AS t USING known AS s ON t.a = s.a"
# what stands behind ON, or a whole statement, and the message
MERGES = [
    (
        "WHEN MATCHED THEN INSERT VALUES (1, 'x')",
        "WHEN MATCHED THEN takes UPDATE SET, DELETE or DO",
    ),
    (
        "WHEN NOT MATCHED THEN DELETE",
        "WHEN NOT MATCHED THEN takes INSERT or DO NOTHING, not DELETE",
    ),
    ("WHEN NOT MATCHED BY SOURCE THEN INSERT *", "BY SOURCE THEN takes UPDATE SET, DELETE"),
    ("WHEN MATCHED THEN UPDATE SET z = 1", "SET column 'z' does not exist; there are a, b"),
    ("WHEN MATCHED THEN UPDATE SET b = z", r"WHEN MATCHED has no column 'z' \(columns of t: a, b;"),
    ("WHEN MATCHED THEN UPDATE SET b = s.z", r"s has no column 'z' \(columns: a, b\)"),
    ("WHEN MATCHED THEN UPDATE SET b = b", r"column 'b' is of both sides: write t.b or s.b"),
    ("WHEN MATCHED THEN UPDATE SET a = 1", "column 'a' is of the primary key, and cannot be set"),
    ("WHEN MATCHED THEN UPDATE SET b = 'x', b = 'y'", "column 'b' is set twice"),
    (
        "WHEN MATCHED THEN UPDATE SET b = max(s.b)",
        r"is about one row, and MAX\(s.b\) about several",
    ),
    ("WHEN MATCHED AND count(*) > 1 THEN DELETE", "is about one row, and"),
    (
        "WHEN MATCHED THEN UPDATE SET b = (SELECT k.b FROM known AS k WHERE k.a = t.a)",
        "a subquery cannot speak of the row around it, as t.a does",
    ),
    ("WHEN MATCHED THEN DELETE WHEN MATCHED AND t.a = 1 THEN DELETE", "no row reaches this clause"),
    ("WHEN NOT MATCHED THEN INSERT (a) VALUES (t.a)", "has no column 't.a'"),
    ("WHEN NOT MATCHED THEN INSERT VALUES (a)", r"INSERT has 1 values for 2 columns \(a, b\)"),
    ("WHEN NOT MATCHED THEN INSERT (b) VALUES ('x')", "no value for column 'a', which is NOT NULL"),
    ("WHEN NOT MATCHED THEN INSERT (a, a) VALUES (1, 2)", "names a column more than once"),
    ("WHEN NOT MATCHED THEN INSERT (a, z) VALUES (1, 2)", "INSERT column 'z' does not exist"),
    ("WHEN MATCHED THEN DELETE RETURNING *", "cannot be run with RETURNING"),
    ("WHEN NOT MATCHED THEN INSERT (a, b) VALUES (a, 1.5)", "column 'b'.* does not go into string"),
    ("WHEN NOT MATCHED THEN INSERT (a) VALUES (nofunction(a))", "nofunction"),
    ("WHEN MATCHED AND t.a = 'x' + 1 THEN DELETE", "SQL cannot be run"),
    ("MERGE INTO keyed USING known ON keyed.a = nowhere.a WHEN MATCHED THEN DELETE", "nowhere.a"),
    ("MERGE INTO keyed USING nowhere ON TRUE WHEN MATCHED THEN DELETE", "nowhere does not exist"),
    ("MERGE INTO nowhere USING known ON TRUE WHEN MATCHED THEN DELETE", "nowhere does not exist"),
    ("MERGE INTO known USING keyed ON TRUE WHEN MATCHED THEN DELETE", "there is no DELETE, only"),
    ("MERGE INTO keyed USING keyed ON TRUE WHEN MATCHED THEN DELETE", "both called 'keyed'"),
    ("MERGE INTO keyed USING (SELECT 1 AS a) ON TRUE WHEN MATCHED THEN DELETE", "needs a name"),
    ("MERGE INTO keyed USING known WHEN MATCHED THEN DELETE", "expected ON"),
    ("MERGE INTO keyed AS t USING known AS s USING (z) WHEN MATCHED THEN DELETE", "column 'z'"),
    (
        "MERGE INTO keyed /*+ OPTIONS('scan.startup.mode'='latest') */ AS t USING known AS s ON"
        " t.a = s.a WHEN MATCHED THEN DELETE",
        "has an effect in USING only",
    ),
]


@pytest.mark.parametrize(("statement", "message"), MERGES)
def test_a_merge_that_cannot_be_run(known: Backend, statement: str, message: str) -> None:
    text = statement if statement.startswith("MERGE") else f"{ON} {statement}"
    before = known.raw_sql("SELECT * FROM keyed").rows()
    with pytest.raises(FlussError, match=message):
        known.raw_sql(text)
    assert known.raw_sql("SELECT * FROM keyed").rows() == before


@pytest.fixture
def known(con: Backend) -> Backend:
    if not con.connection.get_admin().table_exists(TablePath("ibis", TABLE)):
        con.run_script(
            f"CREATE TABLE {TABLE} (a INT, b STRING) WITH ('bucket.num' = '1');"
            " CREATE TABLE keyed (a INT PRIMARY KEY NOT ENFORCED, b STRING);"
            f" INSERT INTO {TABLE} VALUES (1, 'x')"
        )
    return con


def test_there_are_a_hundred() -> None:
    assert len(UNREADABLE.split("\n")) - 2 + len(UNRUNNABLE) >= 100


@pytest.mark.parametrize("statement", UNREADABLE.strip().split("\n"))
def test_what_cannot_be_read(known: Backend, statement: str) -> None:
    with pytest.raises(FlussError) as caught:
        known.raw_sql(statement)
    message = caught.value.message
    assert re.search(r"line \d+, column \d+|expected|, in: ", message), message
    assert not re.search(r"<class|<Token|\x1b|TokenType|__fluss", message), message


@pytest.mark.parametrize(("statement", "message"), UNRUNNABLE)
def test_what_cannot_be_run(known: Backend, statement: str, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        known.raw_sql(statement)


def test_times_beyond_nanoseconds(con: Backend) -> None:
    con.raw_sql("CREATE TABLE fine (k INT, t TIMESTAMP(9))")
    try:
        for text in ("'9999-12-31'", "TIMESTAMP '1600-01-01 00:00:00'"):
            with pytest.raises(FlussError, match=r"'t': .* beyond 1677-09-21 to 2262-04-11, .* 6"):
                con.raw_sql(f"INSERT INTO fine VALUES (1, {text})")
    finally:
        con.drop_table("fine")


def test_a_difference_in_units_says_what_to_write(con: Backend) -> None:
    for call in ("DATEDIFF('day', a, b)", "DATEDIFF(b, a)", "TIMESTAMPDIFF(DAY, a, b)"):
        name = call.partition("(")[0]
        rows = "(SELECT DATE '2024-01-31' AS a, TIMESTAMP '2024-03-01 12:00:00' AS b) q"
        with pytest.raises(FlussError, match=rf"there is no {name} here.*line 1, column 8"):
            con.raw_sql(f"SELECT {call} AS x FROM {rows}")
        instead = "CAST(CAST(b AS DATE) AS INT) - CAST(CAST(a AS DATE) AS INT)"
        assert con.raw_sql(f"SELECT {instead} AS x FROM {rows}").item() == 30
