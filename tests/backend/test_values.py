"""``VALUES``: nothing is cut off or rounded to fit, but for decimals in FLOAT and DOUBLE."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from sqlglot import exp

from fluss_df.backend import Backend
from fluss_df.backend.sql.operands.casts import UNKNOWN, folded
from fluss_df.backend.sql.queries import SqlScope, parse
from fluss_df.errors import FlussError

COLUMNS = (
    "k INT, f FLOAT, d DOUBLE, t0 TIMESTAMP(0), t3 TIMESTAMP(3), t6 TIMESTAMP(6), t9 TIMESTAMP(9),"
    " z6 TIMESTAMP_LTZ(6), z9 TIMESTAMP_LTZ(9), m0 TIME, m6 TIME(6), a ARRAY<TIMESTAMP(3)>"
)


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    backend.raw_sql(f"CREATE TABLE l ({COLUMNS})")
    backend.raw_sql(f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (k) NOT ENFORCED)")
    backend.raw_sql("INSERT INTO t (k) VALUES (1)")
    yield backend
    backend.disconnect()


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("f", "1e300", "too large"),
        ("f", "-1e39", "too large"),
        ("d", "1e400", "too large"),
        ("f", "16777217", "it would be 16777216"),
        ("d", "9007199254740993", "it would be 9007199254740992"),
        ("t0", "'2024-01-01 00:00:00.5'", "more digits"),
        ("t3", "'2024-01-01 00:00:00.0005'", "more digits"),
        ("t3", "TIMESTAMP '2024-01-01 00:00:00.0005'", "more digits"),
        ("t6", "'2024-01-01 00:00:00.123456789'", "more digits"),
        ("t6", "'2024-01-01 00:00:00.1234567891'", "expected"),
        ("t9", "'2024-01-01 00:00:00.1234567891'", "expected"),
        ("t9", "'2024-01-01 00:00:00.123456789+02:00'", "expected"),
        ("z6", "'2024-01-01 00:00:00.123456789-05:00'", "more digits"),
        ("m0", "'12:00:00.5'", "more digits"),
        ("m6", "'12:00:00.1234567'", "expected"),
        ("a", "ARRAY['2024-01-01 00:00:00.0005']", "more digits"),
    ],
)
def test_what_would_be_cut_off_is_refused(
    con: Backend, column: str, text: str, reason: str
) -> None:
    with pytest.raises(FlussError, match=reason):
        con.raw_sql(f"INSERT INTO l ({column}) VALUES ({text})")
    assert con.raw_sql("SELECT COUNT(*) AS n FROM l WHERE k IS NULL").item() == 0
    if column == "t3":
        merge = "MERGE INTO t USING (SELECT 1 AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET"
        with pytest.raises(FlussError, match=r"digits|lose data"):
            con.raw_sql(f"{merge} {column} = {text}")


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("f", "0.1", "0.1"),
        ("f", "16777216", "16777216.0"),
        ("f", "CAST(16777217 AS FLOAT)", "16777216.0"),
        ("d", "1e300", "1e300"),
        ("d", "123456789012345678.0", "1.2345678901234568e17"),
        ("t3", "'2024-01-01 00:00:00.500000000'", "2024-01-01 00:00:00.500"),
        ("t6", "'2024-01-01 00:00:00.123456000'", "2024-01-01 00:00:00.123456"),
        ("t9", "'2024-01-01 00:00:00.123456789'", "2024-01-01 00:00:00.123456789"),
        ("z9", "'2024-01-01 00:00:00.123456789+02:00'", "2023-12-31 22:00:00.123456789+00:00"),
        ("z9", "'2024-01-01 00:00:00.123456789-05:30'", "2024-01-01 05:30:00.123456789+00:00"),
        ("z6", "'2024-01-01 00:00:00.123456-05:00'", "2024-01-01 05:00:00.123456+00:00"),
        ("z6", "'2024-01-01 00:00:00.123456000-05:00'", "2024-01-01 05:00:00.123456+00:00"),
        ("m0", "'12:00:00.000'", "12:00:00"),
    ],
)
def test_what_fits_is_written_whole(con: Backend, column: str, text: str, value: str) -> None:
    con.raw_sql(f"INSERT INTO t (k, {column}) VALUES (2, {text})")
    found = con.raw_sql(f"SELECT CAST({column} AS STRING) AS x FROM t WHERE k = 2").item()
    assert (float(found) == float(value)) if column in ("f", "d") else (found == value)


def test_a_large_number_is_rounded_once(con: Backend) -> None:
    con.raw_sql("INSERT INTO t (k, f) VALUES (2, CAST(9007199791611905 AS FLOAT))")
    # by way of a DOUBLE it would be 9007199254740992
    assert con.raw_sql("SELECT f FROM t WHERE k = 2").item() == 9007200328482816.0


@pytest.mark.parametrize("digits", [28, 6])
def test_negative_numbers_keep_all_their_digits(con: Backend, digits: int) -> None:
    """Python's minus sign rounds to the digits of the thread's context."""
    con.raw_sql("CREATE TABLE n (k DECIMAL(38, 2), PRIMARY KEY (k) NOT ENFORCED)")
    texts = [f"-1234567890123456789012345678901234{i}.25" for i in (10, 11)] + ["-0", "-0.50"]
    with localcontext(prec=digits):
        con.raw_sql(f"INSERT INTO n VALUES {', '.join(f'({text})' for text in texts)}")
    assert set(con.table("n").to_pyarrow()["k"].to_pylist()) == {Decimal(text) for text in texts}
    con.raw_sql("DROP TABLE n")


def test_a_value_may_go_into_several_columns(con: Backend) -> None:
    con.raw_sql("CREATE TABLE w (a BIGINT, b BIGINT)")
    for query in (
        "SELECT 1, 1",
        "SELECT a, a FROM w",
        "SELECT COUNT(*), COUNT(*) FROM w",
        "SELECT x.a AS c, y.b AS c FROM w x JOIN w y ON x.a = y.a WHERE x.a = 2 ORDER BY x.a",
    ):
        con.raw_sql(f"INSERT INTO w {query}")
    rows = con.raw_sql("SELECT a, b FROM w ORDER BY a").rows()
    assert rows == [(1, 1), (1, 1), (2, 2), (2, 2)]


# ---- casts of literals

_RANDOM = random.Random(7)
_NUMBERS = [
    *("0", "5", "-5", "(-5)", "-0", "0.0", "-0.0", "(-0.0)", "1.5", "((-1.5))", ".5", "5.", "007"),
    *("1e-05", "1E5", "5e-324", "-5e-324", "7e-46", "(-7e-46)", "-1e-400", "1e400", "-(-1.5)"),
    *("1.7976931348623157e+308", "3.4028234663852886e+38", "3.5e38", "(-1e39)", "16777217"),
    *("9007199254740993", "9223372036854775807", "(-9223372036854775807)", "9223372036854775808"),
    *("-9223372036854775808", "123456789012345678901234567890", "1e22", "0.30000000000000004"),
    *(f"{_RANDOM.random() * 10 ** _RANDOM.randint(-40, 40)!r}" for _ in range(40)),
    *(f"(-{_RANDOM.getrandbits(_RANDOM.randint(1, 63))})" for _ in range(20)),
]
_TEXTS = ["nan", "inf", "-inf", "NaN", "Infinity", "1.5", "1e5", "", "x"]
_DECIMALS = [
    *("0", "-0", "-0.00", "1.5", "1", "-1", "99999999.99", "100000000", "0.001", "0.005", "-0.015"),
    *("1.50000", "00001.5", "+1.5", ".5", "5.", " 1", "1e3", "x", "", "9" * 28 + "." + "1" * 10),
    *("9" * 38, "9" * 39, "0." + "9" * 38, "0." + "1" * 38, "0" * 45 + "1"),
    *(f"{_RANDOM.randint(-9999, 9999)}.{_RANDOM.randint(0, 99):02}" for _ in range(20)),
]
_INSTANTS = [
    *("2024-01-31 12:34:56+00:00", "2024-01-31 12:34:56.123456+00:00", "2024-01-31 12:34:56"),
    *("2024-01-31 12:34:56.123+00:00", "2024-01-31 12:34:56+01:00", "2024-01-31 12:34:56Z"),
    *("2024-01-31 12:34:56.123456789+00:00", "2024-13-31 12:34:56+00:00", "2024-01-31"),
    *("2023-02-29 12:34:56+00:00", "2024-01-31 24:00:00+00:00", "2024-01-31 23:59:60+00:00"),
    *("0001-01-01 00:00:00+00:00", "0000-01-01 00:00:00+00:00", "1677-01-01 00:00:00+00:00"),
    *("9999-12-31 23:59:59.999999+00:00", "1969-12-31 23:59:59.999999+00:00"),
]
_CASTS = {
    "DOUBLE": [*_NUMBERS, *(f"'{text}'" for text in _TEXTS)],
    "FLOAT": [*_NUMBERS, *(f"'{text}'" for text in _TEXTS)],
    **{
        f"DECIMAL({size})": [f"'{text}'" for text in _DECIMALS] + ["1.5", "1"]
        for size in ("10, 2", "38, 38", "38, 0", "38, 10", "1, 1", "4, 2", "10", "39, 2", "5, 6")
    },
    "TIMESTAMPTZ": [f"'{text}'" for text in _INSTANTS],
    "TIMESTAMP_LTZ": [f"'{text}'" for text in _INSTANTS],
    "TIMESTAMPTZ(3)": [f"'{text}'" for text in _INSTANTS],
}


def _cell(text: str) -> exp.Expr:
    found: exp.Expr = parse(f"SELECT {text}").expressions[0]
    return found


def _bits(value: Any) -> Any:
    """Return what tells apart values that are equal, such as 1.0 and 1.00, or 0.0 and -0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, Decimal):
        return value.as_tuple()
    assert isinstance(value, datetime)
    return value, value.utcoffset()


@pytest.mark.parametrize("kind", _CASTS)
def test_a_cast_that_needs_no_query_has_the_value_of_the_query(con: Backend, kind: str) -> None:
    known = 0
    for text in _CASTS[kind]:
        cell = _cell(f"CAST({text} AS {kind})")
        value = folded(cell)
        if value is not UNKNOWN:
            known += 1
            found = con.raw_sql(f"SELECT CAST({text} AS {kind}) AS v").to_arrow()["v"][0].as_py()
            assert _bits(value) == _bits(found), text
    refused = kind in ("DECIMAL(10)", "DECIMAL(39, 2)", "DECIMAL(5, 6)", "TIMESTAMPTZ(3)")
    assert (known == 0) == refused


def test_other_casts_need_a_query() -> None:
    for text in ("TRY_CAST('1' AS DECIMAL(3, 1))", "CAST(a AS DOUBLE)", "CAST(1 + 1 AS DOUBLE)"):
        assert folded(_cell(text)) is UNKNOWN


# ---- values that are computed


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[exp.Expr]:
    """The queries that run."""
    run: list[exp.Expr] = []
    inner = SqlScope.run

    def noted(self: SqlScope, tree: exp.Expr, hints: int = 0) -> Any:
        run.append(tree)
        return inner(self, tree, hints)

    monkeypatch.setattr(SqlScope, "run", noted)
    return run


def _made(con: Backend, columns: str) -> None:
    con.raw_sql("DROP TABLE IF EXISTS c")
    con.raw_sql(f"CREATE TABLE c ({columns})")


def test_what_is_computed_for_many_rows_takes_few_queries(
    con: Backend, queries: list[exp.Expr]
) -> None:
    _made(con, "k INT, s STRING, d DOUBLE, n DECIMAL(10, 2), z TIMESTAMP_LTZ(6), a ARRAY<BIGINT>")
    count = 300
    rows = [
        f"({k} + 1, upper('a{k}'), CAST({k}.5 AS DOUBLE), CAST('{k}.25' AS DECIMAL(10, 2)),"
        f" CAST('2024-01-01 00:00:00.{k:06}+00:00' AS TIMESTAMPTZ), ARRAY[{k} * 2, {k}])"
        for k in range(count)
    ]
    con.raw_sql(f"INSERT INTO c VALUES {', '.join(rows)}")
    # 900 expressions, of which a query takes 200
    assert len(queries) == 5
    found = con.raw_sql("SELECT * FROM c ORDER BY k").to_arrow().to_pylist()
    assert [row["k"] for row in found] == [k + 1 for k in range(count)]
    assert [row["s"] for row in found] == [f"A{k}" for k in range(count)]
    assert [row["d"] for row in found] == [k + 0.5 for k in range(count)]
    assert [row["n"] for row in found] == [Decimal(f"{k}.25") for k in range(count)]
    assert [row["z"].microsecond for row in found] == list(range(count))
    assert [row["a"] for row in found] == [[k * 2, k] for k in range(count)]


def test_what_means_something_else_beside_others_is_computed_alone(con: Backend) -> None:
    _made(con, "k BIGINT, s STRING")
    con.raw_sql(
        "INSERT INTO c VALUES (1 + 1, upper('a')), (count(*), lower('B')), (sum(5), 'x'),"
        " (CAST((SELECT min(k) FROM t) AS BIGINT), NULL)"
    )
    found = con.raw_sql("SELECT k, s FROM c").rows()
    assert found == [(2, "A"), (1, "b"), (5, "x"), (1, None)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # the first wrong one of the first column with a wrong one, whoever finds it
        (
            "(1 + 1, 'a'), (CAST('x' AS INT), 'b'), ('y', 'c')",
            "SQL cannot be run: conversion from `str` to `i32` failed in column 'scalar' for 1"
            ' out of 1 values: ["x"]',
        ),
        ("(1 + 1, 'a'), ('y', 'b'), (CAST('x' AS INT), 'c')", "column 'k': 'y' does not go into"),
        ("(1 + 1, 'a'), (upper('a'), 'b'), ('y', 'c')", "column 'k': UPPER('a') does not go into"),
        ("(1 + 1, 2), (5000000000 * 2, 'b'), ('y', 'c')", "column 'k': 'y' does not go into"),
        ("(1 + 1, 2), (5000000000 * 2, 'b')", "column 'k': 5000000000 * 2 does not go into int"),
        ("(1 + 1, 2), (1, nothing('b'))", "column 's': 2 does not go into string"),
        ("(1 + 1, 'a'), (1, nothing('b'))", "nothing"),
        ("(1 + 1, 'a'), (1 + b, 'b')", 'unable to find column "b"'),
        ("(CAST('nan' AS DOUBLE), 'a')", "it is no whole number"),
        ("(1 + 1, 'a'), (CAST(1e39 AS FLOAT), 'a')", "it is no whole number"),
        ("(CAST(1.5 AS DOUBLE), 'a')", "column 'k': CAST(1.5 AS DOUBLE"),
        ("(1, CAST('1.5' AS DECIMAL(10, 2)))", "it is of another type; cast it"),
    ],
)
def test_the_first_wrong_value_is_named(con: Backend, rows: str, message: str) -> None:
    _made(con, "k INT, s STRING")
    with pytest.raises(FlussError) as refused:
        con.raw_sql(f"INSERT INTO c VALUES {rows}")
    assert message in str(refused.value)


def test_a_cast_is_no_literal_where_a_literal_is_asked_for(con: Backend) -> None:
    con.raw_sql("CREATE TABLE p (p DATE, k INT) PARTITIONED BY (p)")
    with pytest.raises(FlussError, match="expected a literal"):
        con.raw_sql(
            "INSERT INTO p PARTITION (p = CAST('2024-01-31 00:00:00+00:00' AS TIMESTAMPTZ))"
            " VALUES (1)"
        )
