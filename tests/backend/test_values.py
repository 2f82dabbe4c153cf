"""``VALUES``: nothing is cut off or rounded to fit, but for decimals in FLOAT and DOUBLE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluss_df.backend import Backend
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
