"""One statement that runs: its rows in batches, bounded, and ended from outside."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df
from fluss_df.backend import Backend
from fluss_df.backend.query_run import QueryCancelledError, QueryLimitError, QueryRun
from fluss_df.errors import FlussError

ROWS = 200_000


@pytest.fixture
def numbers(con: Backend, fresh: Callable[[], str]) -> str:
    """A log table with a number and a text in each row."""
    name = fresh()
    rows = pl.DataFrame({"n": range(ROWS)}).with_columns(t=pl.format("text {}", "n"))
    fluss_df.write_fluss(
        rows, f"ibis.{name}", connection=con.connection, create_if_not_exists=True, bucket_count=1
    )
    return name


def test_the_rows_are_those_of_raw_sql_in_batches_of_their_size(con: Backend, numbers: str) -> None:
    statement = f"SELECT t, n * 2 AS m FROM {numbers} WHERE n % 3 = 0"
    with QueryRun(con, statement, batch_bytes=100_000) as run:
        assert run.is_query
        assert run.schema == pa.schema([("t", pa.string()), ("m", pa.int64())])
        batches = list(run)
    assert pl.DataFrame(pa.Table.from_batches(batches)).equals(con.raw_sql(statement))
    assert len(batches) > 5
    assert max(batch.nbytes for batch in batches) < 150_000
    assert run.rows == sum(batch.num_rows for batch in batches)
    assert run.rows_written is None


def test_it_says_what_it_will_read_and_what_it_read(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}")
    assert "columns    1 of 2: n" in run.explain()
    assert run.scans == []
    assert run.read_all().num_rows == ROWS
    # those of the other query alone, whatever else runs
    (scan,) = run.scans
    assert scan.columns == ("n",)
    assert scan.rows == ROWS
    assert 0 < run.seconds < 60


def test_two_at_once_know_their_own_scans(con: Backend, numbers: str) -> None:
    one = QueryRun(con, f"SELECT n FROM {numbers}")
    two = QueryRun(con, f"SELECT t FROM {numbers}")
    first, second = iter(one), iter(two)
    assert next(first).num_rows
    assert next(second).num_rows
    assert [scan.columns for scan in one.scans] == [("n",)]
    assert [scan.columns for scan in two.scans] == [("t",)]
    one.close()
    two.close()


def test_a_result_without_rows_has_a_schema(con: Backend, numbers: str) -> None:
    table = QueryRun(con, f"SELECT n, t FROM {numbers} WHERE n < 0").read_all()
    assert table.num_rows == 0
    assert table.schema.names == ["n", "t"]


@pytest.mark.parametrize("wanted", ["*", "n + 0 AS n"])
def test_scans_wait_while_nobody_takes(con: Backend, fresh: Callable[[], str], wanted: str) -> None:
    name = fresh()
    rows = pl.DataFrame({"n": range(4_000_000)})
    fluss_df.write_fluss(
        rows, f"ibis.{name}", connection=con.connection, create_if_not_exists=True, bucket_count=1
    )
    with QueryRun(con, f"SELECT {wanted} FROM {name}") as run:
        batches = iter(run)
        taken = next(batches).num_rows
        # until nothing moves any more
        before, read = -1, 0
        while before != read:
            before = read
            (scan,) = run.scans
            read = scan.rows
        # rows that Polars was given are counted as read
        assert read < 4_000_000 if wanted == "*" else 0 < run._flow._held < 20 << 20
        assert taken + sum(batch.num_rows for batch in batches) == 4_000_000


@pytest.fixture
def extremes(con: Backend, fresh: Callable[[], str]) -> str:
    """A log table with values at the ends of what each type has."""
    name = fresh()
    columns = ", ".join(f"{column} {kind}" for column, (kind, _) in EXTREMES.items())
    con.raw_sql(f"CREATE TABLE {name} ({columns})")
    for place in range(3):
        values = ", ".join(values[place] for _, values in EXTREMES.values())
        con.raw_sql(f"INSERT INTO {name} VALUES ({values})")
    return name


EXTREMES = {
    "flag": ("BOOLEAN", ("TRUE", "FALSE", "NULL")),
    "tiny": ("TINYINT", ("-128", "127", "NULL")),
    "small": ("SMALLINT", ("-32768", "32767", "NULL")),
    "plain": ("INT", ("-2147483648", "2147483647", "NULL")),
    "wide": ("BIGINT", ("-9223372036854775807", "9223372036854775807", "NULL")),
    "single": ("FLOAT", ("CAST('inf' AS FLOAT)", "-0.0", "NULL")),
    "doubled": ("DOUBLE", ("CAST('nan' AS DOUBLE)", "1.7976931348623157e308", "NULL")),
    "exact": ("DECIMAL(38, 10)", ("1234567890123456789012345678.0123456789", "-0.1", "NULL")),
    "text": ("STRING", ("''", "'\U0001f40b%_<script>'", "NULL")),
    "day": ("DATE", ("DATE '0001-01-01'", "DATE '9999-12-31'", "NULL")),
    "moment": (
        "TIMESTAMP(9)",
        (
            "TIMESTAMP '1700-01-01 00:00:00.000000001'",
            "TIMESTAMP '2262-01-01 23:59:59.999999999'",
            "NULL",
        ),
    ),
    "seconds": (
        "TIMESTAMP(0)",
        ("TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59'", "NULL"),
    ),
}


@pytest.mark.parametrize(
    "wanted",
    [
        "*",
        ", ".join(EXTREMES),
        "text, wide AS w, text AS again, flag",
        "e.moment, e.exact",
        "seconds",
    ],
)
def test_rows_without_polars_are_those_with_it(con: Backend, extremes: str, wanted: str) -> None:
    statement = f"SELECT {wanted} FROM {extremes} AS e"
    straight = QueryRun(con, statement).read_all()
    # a limit takes the other way
    other = QueryRun(con, statement, max_rows=1000).read_all()
    assert straight.schema == other.schema
    # as text: NaN is no number that equals itself
    assert repr(straight.to_pylist()) == repr(other.to_pylist())
    assert straight.num_rows == 3


CONDITIONS = [
    "flag",
    "NOT flag",
    "flag IS NULL OR single = 0",
    "wide > 0 AND text <> ''",
    "wide >= -9223372036854775807",
    "text = '' OR day = DATE '9999-12-31'",
    "doubled = doubled",
    "doubled > 1e308",
    "exact IN (-0.1, 7)",
    "NOT (plain BETWEEN -5 AND 5)",
    "moment < TIMESTAMP '2000-01-01 00:00:00'",
    "plain IS NOT NULL AND tiny = -128",
    "1 = 0",
    "NULL",
    "TRUE",
    "small > 5 AND NULL",
    "small < wide",
]


def test_a_condition_that_polars_refuses_is_told_as_of_other_queries(
    con: Backend, numbers: str
) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers} WHERE UPPER(t) = n")
    with pytest.raises(FlussError, match="SQL cannot be run: cannot compare string with numeric"):
        run.read_all()


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_hold_for_the_same_rows_without_polars(
    con: Backend, extremes: str, condition: str
) -> None:
    for wanted in ("*", "text, wide"):
        statement = f"SELECT {wanted} FROM {extremes} WHERE {condition}"
        straight = QueryRun(con, statement).read_all()
        # a limit takes the other way
        other = QueryRun(con, statement, max_rows=1000).read_all()
        assert straight.schema == other.schema
        assert repr(straight.to_pylist()) == repr(other.to_pylist())


@pytest.mark.parametrize(
    ("statement", "plain"),
    [
        ("SELECT * FROM {0}", True),
        ("SELECT n AS m, t FROM ibis.{0}", True),
        ("SELECT * FROM {0} /*+ OPTIONS('scan.startup.mode'='latest') */", True),
        ("SELECT t FROM {0} WHERE n > 1 AND (t <> 'a' OR n IS NULL)", True),
        ("SELECT n FROM {0} WHERE n + 1 > 1", False),
        ("SELECT n FROM {0} WHERE n = (SELECT 1)", False),
        ("SELECT n FROM {0} WHERE t LIKE '%1'", False),
        ("SELECT DISTINCT n FROM {0}", False),
        ("SELECT n FROM {0} LIMIT 3", False),
        ("SELECT n FROM {0} ORDER BY n", False),
        ("SELECT n, n + 1 FROM {0}", False),
        ("SELECT n FROM {0} UNION ALL SELECT n FROM {0}", False),
        ("WITH {0} AS (SELECT 1 AS n) SELECT n FROM {0}", False),
        ("SELECT n FROM {0}$changelog", False),
        ("SELECT n FROM {0}_view", False),
    ],
)
def test_only_what_computes_nothing_goes_without_polars(
    con: Backend, numbers: str, statement: str, plain: bool
) -> None:
    con.raw_sql(f"CREATE VIEW {numbers}_view AS SELECT n FROM {numbers} WHERE n > 5")
    run = QueryRun(con, statement.format(numbers))
    assert (run._plain_tables() is not None) == plain
    run.close()
    con.raw_sql(f"DROP VIEW {numbers}_view")


def test_a_query_that_waits_is_cancelled_at_once(
    con: Backend, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss_df.io import follow
    from fluss_df.io.scan import scan_fluss

    # the wait itself is ended: it would be longer than the test waits
    monkeypatch.setattr(follow, "_POLL_MS", 120_000)
    table = f"{numbers}_followed"
    con.create_table(table, pl.DataFrame({"n": range(10)}), buckets=1)
    with QueryRun(con, f"SELECT n FROM {table}") as planned, planned._flow.running.planned():
        # of SQL, no scan follows its table yet
        planned._frame = scan_fluss(
            f"ibis.{table}", connection=con.connection, columns=["n"], follow=True
        )
        waiting = threading.Event()
        ended: list[BaseException] = []

        def read() -> None:
            rows = 0
            try:
                for batch in planned:
                    rows += batch.num_rows
                    if rows == 10:
                        waiting.set()
            except BaseException as error:
                ended.append(error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert waiting.wait(60)
        planned.cancel("the test is over")
        reader.join(20)
        assert not reader.is_alive()
        (error,) = ended
        assert isinstance(error, QueryCancelledError)
        assert str(error) == "the query was cancelled: the test is over"
        # what computes it is done with its wait when a row comes
        statement = f"INSERT INTO {table} VALUES (10)"
        threading.Thread(target=con.raw_sql, args=(statement,)).start()
        planned._flow.join(20)
        assert not planned.is_running


def test_an_insert_that_was_cancelled_writes_no_more(con: Backend, numbers: str) -> None:
    """What Polars computes goes on for long: its rows go nowhere."""
    target = f"{numbers}_written"
    con.create_table(target, pl.DataFrame({"n": [-1]}), buckets=1)
    run = QueryRun(con, f"INSERT INTO {target} SELECT a.n FROM {numbers} a, {numbers} b")
    ended: list[BaseException] = []

    def insert() -> None:
        try:
            run.read_all()
        except QueryCancelledError as error:
            ended.append(error)

    inserting = threading.Thread(target=insert)
    inserting.start()
    count = f"SELECT COUNT(*) AS rows FROM {target}"
    while con.raw_sql(count).item() == 1:
        assert inserting.is_alive()
    run.cancel()
    inserting.join(10)
    assert ended
    run._flow.join(30)
    assert not run.is_running
    written = con.raw_sql(count).item()
    assert 1 < written < 1 + ROWS * ROWS
    assert con.raw_sql(count).item() == written
    con.drop_table(target)


def test_one_that_nobody_holds_ends(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}", batch_bytes=1000)
    batches = iter(run)
    next(batches)
    flow = run._flow
    del run, batches
    gc.collect()
    flow.join(5)
    assert not flow.is_alive


def test_a_query_that_was_cancelled_does_not_begin(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}")
    run.cancel()
    with pytest.raises(QueryCancelledError, match="the query was cancelled"):
        run.read_all()
    assert run.scans == []


@pytest.mark.parametrize("most", [1, 100, ROWS - 1])
def test_more_rows_than_allowed_are_an_error_behind_them(
    con: Backend, numbers: str, most: int
) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}", max_rows=most)
    given: list[int] = []

    def read() -> None:
        for batch in run:
            given.extend(batch.column(0).to_pylist())

    with pytest.raises(QueryLimitError, match=f"the query has more than {most} rows"):
        read()
    assert given == list(range(most))
    assert run.rows == most


def test_as_many_rows_as_allowed_are_no_error(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}", max_rows=ROWS)
    assert run.read_all().num_rows == ROWS


def test_a_query_ends_after_its_time_also_while_nobody_takes(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT n FROM {numbers}", max_seconds=0.5, batch_bytes=1000)
    batches = iter(run)
    taken = next(batches)
    # the moment comes while nobody asks
    while run.seconds < 0.5:
        time.sleep(0.05)
    assert taken.num_rows
    with pytest.raises(QueryLimitError, match=r"took longer than 0\.5 seconds"):
        next(batches)


def test_statements_run_once_and_say_what_they_wrote(
    con: Backend, fresh: Callable[[], str]
) -> None:
    name = fresh()
    made = QueryRun(con, f"CREATE TABLE {name} (id INT, s STRING, PRIMARY KEY (id))")
    assert not made.is_query
    assert made.read_all().num_columns == 0
    assert made.rows_written is None
    filled = QueryRun(con, f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    assert filled.rows_written is None
    assert filled.read_all().to_pylist() == [{"table": f"ibis.{name}", "rows": 2}]
    assert filled.rows_written == 2
    assert filled.schema.names == ["table", "rows"]
    updated = QueryRun(con, f"UPDATE {name} SET s = 'c' WHERE id = 2")
    updated.read_all()
    assert updated.rows_written == 1
    shown = QueryRun(con, "SHOW TABLES")
    assert name in str(shown.read_all().to_pylist())
    assert shown.rows_written is None
    rows = QueryRun(con, f"SELECT * FROM {name} ORDER BY id").read_all().to_pylist()
    assert rows == [{"id": 1, "s": "a"}, {"id": 2, "s": "c"}]


def test_a_statement_has_no_plan(con: Backend) -> None:
    run = QueryRun(con, "SHOW TABLES")
    with pytest.raises(FlussError, match="only queries have a plan"):
        run.explain()


def test_rows_are_given_once(con: Backend) -> None:
    run = QueryRun(con, "SELECT 1 AS one")
    assert run.read_all().to_pylist() == [{"one": 1}]
    with pytest.raises(FlussError, match="run it again"):
        iter(run)


def test_a_view_is_ended_as_a_table_is(con: Backend, numbers: str) -> None:
    con.create_view("halves", con.table(numbers).mutate(half=con.table(numbers).n / 2))
    run = QueryRun(con, "SELECT half FROM halves")
    assert run.read_all().num_rows == ROWS
    assert [scan.rows for scan in run.scans] == [ROWS]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM nowhere_to_be_found", "nowhere_to_be_found"),
        ("SELECT FROM WHERE", "SQL cannot be"),
        ("SELECT 1; SELECT 2", "expected one statement in SQL, found 2"),
        ("", "expected one statement in SQL, found 0"),
    ],
)
def test_what_cannot_be_run_is_said_when_it_is_planned(
    con: Backend, statement: str, message: str
) -> None:
    with pytest.raises(FlussError, match=message):
        QueryRun(con, statement)


def test_an_error_while_it_runs_is_one_of_fluss(con: Backend, numbers: str) -> None:
    run = QueryRun(con, f"SELECT CAST(t AS BIGINT) AS b FROM {numbers}")
    with pytest.raises(FlussError, match="SQL cannot be run"):
        run.read_all()
    failing = QueryRun(con, "INSERT INTO nowhere_to_be_found VALUES (1)")
    with pytest.raises(FlussError, match="nowhere_to_be_found"):
        failing.read_all()


@pytest.mark.parametrize("option", ["max_rows", "max_seconds", "batch_bytes"])
def test_limits_are_positive(con: Backend, option: str) -> None:
    limit: Any = {option: 0}
    with pytest.raises(FlussError, match=f"{option}=0: expected"):
        QueryRun(con, "SELECT 1", **limit)


def test_a_program_that_leaves_a_query_open_ends() -> None:
    program = (
        "import fluss_df, polars as pl\n"
        "from fluss_df.backend import Backend\n"
        "from fluss_df.backend.query_run import QueryRun\n"
        "con = fluss_df.connect(':memory:')\n"
        "rows = pl.DataFrame({'n': range(3_000_000)})\n"
        "fluss_df.write_fluss(rows, 't', connection=con, create_if_not_exists=True)\n"
        "batches = iter(QueryRun(Backend().connect(con), 'SELECT * FROM t'))\n"
        "print(next(batches).num_rows)\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) > 0


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT n FROM t WHERE n IN (SELECT a FROM read_csv('{file}'))",
        "WITH f AS (SELECT * FROM read_csv('{file}')) SELECT * FROM f",
        "SELECT 1 AS a UNION ALL SELECT a FROM read_csv('{file}')",
        "CREATE TABLE made AS SELECT * FROM read_csv('{file}')",
        "CREATE VIEW made AS SELECT * FROM read_csv('{file}')",
        "INSERT INTO made SELECT * FROM read_csv('{file}')",
        "MERGE INTO made USING (SELECT * FROM read_csv('{file}')) AS s ON made.a = s.a"
        " WHEN MATCHED THEN DELETE",
        "EXPLAIN SELECT * FROM read_csv('{file}')",
        "explain plan for SELECT * FROM read_csv('{file}')",
    ],
)
def test_files_are_read_only_where_that_is_allowed(
    con: Backend, tmp_path: Path, statement: str
) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    with pytest.raises(FlussError, match="not files") as raised:
        QueryRun(con, statement.format(file=file)).read_all()
    # whether there is such a file is not told either
    with pytest.raises(FlussError, match="not files") as missing:
        QueryRun(con, statement.format(file=tmp_path / "secret.cvs")).read_all()
    assert str(raised.value) == str(missing.value).replace("secret.cvs", "secret.csv")


def test_files_where_they_are_allowed(con: Backend, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("a\n1\n")
    run = QueryRun(con, f"SELECT * FROM read_csv('{file}')", local_files=True)
    assert run.read_all().to_pylist() == [{"a": 1}]


def test_a_statement_that_failed_is_not_run_again(con: Backend, fresh: Callable[[], str]) -> None:
    name = fresh()
    run = QueryRun(con, f"INSERT INTO {name} VALUES (1)")
    with pytest.raises(FlussError, match=f"{name} does not exist"):
        _ = run.schema
    con.raw_sql(f"CREATE TABLE {name} (id INT)")
    for ask in (run.read_all, lambda: run.schema):
        with pytest.raises(FlussError, match=f"{name} does not exist"):
            ask()
    assert con.raw_sql(f"SELECT * FROM {name}").height == 0


def test_the_rows_of_a_statement_may_be_taken_late(con: Backend) -> None:
    run = QueryRun(con, "SHOW DATABASES", max_seconds=0.5)
    assert run.schema.names
    time.sleep(0.6)
    assert run.read_all().num_rows > 0
    assert run.seconds < 0.5


@pytest.mark.parametrize("before", ["", "-- a comment\n", "/* one */ "])
def test_what_only_shows_is_known_behind_comments(con: Backend, before: str) -> None:
    assert QueryRun(con, f"{before}SHOW TABLES").only_shows
    assert QueryRun(con, f"{before}EXPLAIN SELECT 1").only_shows
    assert not QueryRun(con, f"{before}ALTER TABLE t RESET ('a')").only_shows
    assert not QueryRun(con, f"{before}SELECT 1").only_shows
