"""Times of different precision that are compared with each other, and with texts of more digits."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

import ibis
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.backend.translation import PolarsType
from fluss_df.errors import FlussError

DAY = "2024-01-01 00:00:00"


@pytest.fixture(scope="module")
def con() -> Iterator[Backend]:
    backend = Backend()
    backend.do_connect(":memory:")
    backend.raw_sql(
        "CREATE TABLE t (k0 TIMESTAMP(0), k3 TIMESTAMP(3), k6 TIMESTAMP(6), k9 TIMESTAMP(9),"
        " z3 TIMESTAMP_LTZ(3), z9 TIMESTAMP_LTZ(9), v INT)"
    )
    nine = f"{DAY}.999500001"
    backend.raw_sql(
        f"INSERT INTO t VALUES ('{DAY}', '{DAY}.999', '{DAY}.999500', '{nine}', '{DAY}.999',"
        f" '{nine}', 1)"
    )
    yield backend
    backend.disconnect()


def holds(con: Backend, condition: str) -> bool:
    return con.raw_sql(f"SELECT v FROM t WHERE {condition}").height == 1


@pytest.mark.parametrize("literal", ["TIMESTAMP {}", "{}"])
@pytest.mark.parametrize(
    ("column", "text", "is_less", "is_equal"),
    [
        ("k0", ".000005", True, False),
        ("k0", "", False, True),
        ("k3", ".999999", True, False),
        ("k3", ".999", False, True),
        ("k3", ".998999", False, False),
        ("k6", ".999500", False, True),
        ("k6", ".999500001", True, False),
        ("k9", ".9995", False, False),
        ("k9", ".999500001", False, True),
        ("k9", ".999500002", True, False),
        ("z3", ".999999", True, False),
        ("z9", ".999500001", False, True),
        ("z9", ".999500002", True, False),
    ],
)
def test_no_digit_is_cut_off_before_times_are_compared(
    con: Backend, column: str, literal: str, text: str, is_less: bool, is_equal: bool
) -> None:
    moment = literal.format(f"'{DAY}{text}'")
    if column.startswith("z"):
        moment = moment.replace("TIMESTAMP ", "TIMESTAMP_LTZ ")
    is_more = not is_less and not is_equal
    assert holds(con, f"{column} < {moment}") == is_less
    assert holds(con, f"{moment} > {column}") == is_less
    assert holds(con, f"{column} = {moment}") == is_equal
    assert holds(con, f"{column} IN ({moment})") == is_equal
    assert holds(con, f"{column} <> {moment}") != is_equal
    assert holds(con, f"{column} IS DISTINCT FROM {moment}") != is_equal
    assert holds(con, f"{column} > {moment}") == is_more
    assert holds(con, f"{column} BETWEEN {moment} AND {moment}") == is_equal
    assert holds(con, f"NULLIF({column}, {moment}) IS NULL") == is_equal
    assert holds(con, f"CASE {column} WHEN {moment} THEN TRUE ELSE FALSE END") == is_equal
    assert holds(con, f"COALESCE({column}, {column}) < {moment}") == is_less


@pytest.mark.parametrize("literal", ["TIMESTAMP {}", "{}"])
def test_a_time_whose_nanoseconds_64_bits_do_not_hold_is_compared(
    con: Backend, literal: str
) -> None:
    late, early = (literal.format(f"'{year}-12-31 00:00:00'") for year in ("9999", "1600"))
    assert holds(con, f"k9 < {late}")
    assert holds(con, f"k9 > {early}")
    assert holds(con, f"k9 BETWEEN {early} AND {late}")
    assert not holds(con, f"k9 = {late}")
    assert not holds(con, f"k9 IN ({late}, {early})")
    assert holds(con, f"k9 <> {late}")


def test_columns_are_compared_with_all_of_their_digits(con: Backend) -> None:
    assert holds(con, "k3 < k6")
    assert holds(con, "k6 < k9")
    assert not holds(con, "k3 = k6")
    assert holds(con, "k3 IS DISTINCT FROM k9")
    joined = con.raw_sql("SELECT x.v FROM t AS x JOIN t AS y ON x.k3 = y.k6")
    assert joined.is_empty()
    derived = "SELECT q.v FROM (SELECT v, k3 AS a, k6 AS b FROM t) AS q WHERE q.a < q.b"
    assert con.raw_sql(derived).height == 1


@pytest.mark.parametrize("exists", ["EXISTS", "NOT EXISTS"])
def test_a_subquery_about_the_row_cuts_no_digits_off(con: Backend, exists: str) -> None:
    con.raw_sql("CREATE TABLE fine (x INT, at TIMESTAMP(9))")
    con.raw_sql("CREATE TABLE coarse (y INT, at TIMESTAMP(6))")
    con.raw_sql("INSERT INTO fine VALUES (1, '2024-01-31 10:00:00.123456789')")
    con.raw_sql("INSERT INTO coarse VALUES (1, '2024-01-31 10:00:00.123456')")
    query = f"SELECT x FROM fine WHERE {exists} (SELECT 1 FROM coarse WHERE coarse.at = fine.at)"
    with pytest.raises(FlussError, match=r"write IN .*all of their digits \(line 1, column"):
        con.raw_sql(query)
    same = f"SELECT x FROM fine WHERE {exists} (SELECT 1 FROM fine AS f WHERE f.at = fine.at)"
    assert con.raw_sql(same).height == (exists == "EXISTS")
    assert con.raw_sql("SELECT x FROM fine WHERE at IN (SELECT at FROM coarse)").is_empty()
    con.drop_table("fine")
    con.drop_table("coarse")


def test_values_keep_their_digits(con: Backend) -> None:
    def texts(query: str) -> list[Any]:
        return con.raw_sql(query).to_series().cast(pl.String).to_list()

    nine = f"{DAY}.999500001"
    assert texts(f"SELECT COALESCE(k9, TIMESTAMP '{DAY}') AS x FROM t") == [nine]
    assert texts(f"SELECT CASE WHEN v = 2 THEN TIMESTAMP '{DAY}' ELSE k9 END AS x FROM t") == [nine]
    assert texts(f"SELECT TIMESTAMP '{nine}' AS x") == [nine]
    united = "SELECT k3 AS x FROM t UNION ALL SELECT k6 FROM t UNION ALL SELECT k9 FROM t"
    assert sorted(texts(united)) == [f"{DAY}.999000000", f"{DAY}.999500000", nine]
    with pytest.raises(FlussError, match="9999-12-31"):
        con.raw_sql("SELECT CAST('9999-12-31 00:00:00' AS TIMESTAMP(9)) AS x")


def test_a_row_whose_key_is_another_one_stays(con: Backend) -> None:
    con.raw_sql("CREATE TABLE kept (k TIMESTAMP(9), v INT, PRIMARY KEY (k) NOT ENFORCED)")
    con.raw_sql(f"INSERT INTO kept VALUES ('{DAY}.000000004', 4)")
    other = f"TIMESTAMP '{DAY}.000000009'"
    con.raw_sql(f"DELETE FROM kept WHERE k = {other}")
    con.raw_sql(f"UPDATE kept SET v = 5 WHERE k = {other}")
    assert con.table("kept").v.to_pyarrow().to_pylist() == [4]
    con.raw_sql(f"DELETE FROM kept WHERE k = TIMESTAMP '{DAY}.000000004'")
    assert con.table("kept").count().execute() == 0


def test_ibis_compares_times_with_all_of_their_digits(con: Backend) -> None:
    t = con.table("t")
    finer = dt.datetime(2024, 1, 1, 0, 0, 0, 999999)
    late = dt.datetime(9999, 12, 31)
    true = [
        t.k3 < finer,
        t.k3 != finer,
        t.k3 < t.k6,
        t.k6 < t.k9,
        t.k9 < late,
        t.k9.between(dt.datetime(1600, 1, 1), late),
        t.k9 > dt.datetime(2024, 1, 1, 0, 0, 0, 999500),
        t.z3 < finer.replace(tzinfo=dt.UTC),
        t.k3.isin([None, dt.datetime(2024, 1, 1, 0, 0, 0, 999000)]),
        ~t.k3.identical_to(t.k6),
        t.k3 < t.k6.max(),
    ]
    false = [
        t.k3 == finer,
        t.k3 >= finer,
        t.k3 == t.k6,
        t.k3.isin([finer, late]),
        t.k3.between(finer, late),
        t.k9 == dt.datetime(2024, 1, 1, 0, 0, 0, 999500),
        t.k9 == late,
        t.k3.identical_to(finer),
        t.k6.identical_to(t.k9),
    ]
    assert [t.filter(condition).count().execute() for condition in true] == [1] * len(true)
    assert [t.filter(condition).count().execute() for condition in false] == [0] * len(false)


@pytest.mark.parametrize("column", ["k9", "z9"])
def test_ibis_compares_texts_with_all_of_their_digits(con: Backend, column: str) -> None:
    t = con.table("t")
    nine, less, more = (f"{DAY}.99950000{digit}" for digit in (1, 0, 2))
    elsewhere = "2024-01-01 05:30:00.999500001+05:30"
    true = [
        t[column] == nine,
        t[column] == elsewhere,
        t[column] > less,
        t[column] < more,
        t[column].between(nine, "2024-02-01"),
        t[column].isin([nine, DAY]),
        t[column].identical_to(nine),
        t[column].cases((nine, True), else_=False),
    ]
    false = [
        t[column] == less,
        t[column] >= more,
        t[column] != nine,
        t[column].between(more, "2024-02-01"),
        t[column].isin([less, more]),
        t[column].cases((more, True), else_=False),
    ]
    assert [t.filter(condition).count().execute() for condition in true] == [1] * len(true)
    assert [t.filter(condition).count().execute() for condition in false] == [0] * len(false)


def test_ibis_compares_a_coarser_time_with_a_text_of_nanoseconds(con: Backend) -> None:
    t = con.table("t")
    text = f"{DAY}.999500001"
    found = t.select(
        same=t.k6 == text,
        less=t.k6 < text,
        among=t.k6.isin([text]),
        case=t.k6.cases((text, True), else_=False),
        coarse=t.k3.cases((f"{DAY}.999000001", True), else_=False),
        elsewhere=t.k6 == "2024-01-01 05:30:00.999500+05:30",
    )
    assert con.compile(found).collect().row(0) == (False, True, False, False, False, True)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2024-1-1", 0), ("2024-1-1 0:00:00.999", 1), ("2024/01/1 00:00:00.999", 1), ("2024-1-2", 0)],
)
def test_ibis_reads_texts_of_times_with_parts_of_one_digit(
    con: Backend, text: str, count: int
) -> None:
    t = con.table("t")
    assert t.filter(t.k3 == text).count().execute() == count
    assert t.filter(t.k3.between("2024-1-1", "2024-1-2")).count().execute() == 1
    assert t.filter(t.k3.date().between("2024-1-2", "2024-1-3")).count().execute() == 0


def test_ibis_leaves_the_hours_of_bounds_of_days(con: Backend) -> None:
    t = con.table("t")
    noon, day = dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1)
    for condition, count in (
        (t.k6.date().between(noon, dt.datetime(2025, 1, 1)), 0),
        (t.k6.date().between(t.k6, t.k9), 0),
        (t.k6.date().between(day, noon), 1),
    ):
        assert t.filter(condition).count().execute() == count


def test_texts_of_times_need_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    backend = Backend()
    backend.do_connect(":memory:")
    backend.raw_sql("CREATE TABLE n (k TIMESTAMP(9))")
    backend.raw_sql(f"INSERT INTO n VALUES ('{DAY}.123456789')")
    n = backend.table("n")
    for text, count in ((f"{DAY}.123456789", 1), ("2024-01-01 05:30:00.123456+05:30", 0)):
        assert backend.compile(n.filter(n.k == text)).collect().height == count
    backend.disconnect()


@pytest.mark.parametrize("digits", range(10))
def test_ibis_casts_times_to_as_many_digits_as_they_are_to_have(con: Backend, digits: int) -> None:
    t = con.table("t")
    early = t.k9 - ibis.interval(years=100)
    text = ibis.literal(f"{DAY}.123456")
    made = t.select(
        a=t.k9.cast(f"timestamp({digits})"),
        b=t.z9.cast(f"timestamp('UTC', {digits})"),
        c=early.cast(f"timestamp({digits})"),
        d=text.cast(f"timestamp({digits})"),
    )
    frame = con.compile(made).collect()
    (row,) = frame.cast(pl.Datetime("ns")).cast(pl.String).rows()
    fraction = "999500001"[:digits].ljust(9, "0")
    assert row[:3] == (f"{DAY}.{fraction}", f"{DAY}.{fraction}", f"1924-01-01 00:00:00.{fraction}")
    assert row[3] == f"{DAY}.{'123456'[:digits].ljust(9, '0')}"
    assert frame.dtypes == [PolarsType.from_ibis(kind) for kind in made.schema().types]


def test_ibis_cuts_times_off_in_their_zone(con: Backend) -> None:
    moment = dt.datetime(2024, 7, 1, 23, 30, tzinfo=dt.UTC)
    con.create_table("zoned", pl.DataFrame({"z": [moment, None]}), overwrite=True)
    t = con.table("zoned").drop_null()
    there = t.z.cast("timestamp('Europe/Berlin', 6)")
    made = t.select(
        day=there.truncate("D"),
        hour=there.truncate("h"),
        month=there.truncate("M"),
        two=there.bucket(hours=2),
        date=there.date(),
        cast=there.cast("date"),
        time=there.time(),
        number=there.hour(),
        utc=t.z.truncate("D"),
        utc_date=t.z.date(),
    )
    assert made.to_pyarrow().to_pylist() == [
        {
            "day": dt.datetime(2024, 7, 2),
            "hour": dt.datetime(2024, 7, 2, 1),
            "month": dt.datetime(2024, 7, 1),
            "two": dt.datetime(2024, 7, 2),
            "date": dt.date(2024, 7, 2),
            "cast": dt.date(2024, 7, 2),
            "time": dt.time(1, 30),
            "number": 1,
            "utc": dt.datetime(2024, 7, 1),
            "utc_date": dt.date(2024, 7, 1),
        }
    ]


def test_ibis_writes_and_reads_fractions_as_python_does(con: Backend) -> None:
    moment = dt.datetime(2024, 1, 1, 12, 0, 0, 5)
    con.create_table("fractions", pl.DataFrame({"t": [moment]}), overwrite=True)
    t = con.table("fractions")
    for form in ("%f", "%H:%M:%S.%f", "%%f %f", "100%%%f"):
        assert t.t.strftime(form).to_pyarrow().to_pylist() == [moment.strftime(form)]
    for text in ("2024-01-01 00:00:00.5", "2024-01-01 00:00:00.000123"):
        form = "%Y-%m-%d %H:%M:%S.%f"
        read = ibis.literal(text).as_timestamp(form).name("x")
        known = dt.datetime.strptime(text, form).replace(tzinfo=dt.UTC)
        assert con.to_pyarrow(t.select(read)).to_pylist() == [{"x": known}]
