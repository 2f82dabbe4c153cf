"""Days and times whose nanoseconds 64 bits do not hold, beside times that have nanoseconds."""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import ibis
import polars as pl
import pyarrow as pa
import pytest

from fluss_df.backend import Backend

_DAY = 86_400 * 10**9
_FACTORS = {"d": _DAY, "t3": 10**6, "t6": 1000, "t9": 1, "z6": 1000, "z9": 1}
_KINDS = {
    "d": pl.Date(),
    "t3": pl.Datetime("ms"),
    "t6": pl.Datetime("us"),
    "t9": pl.Datetime("ns"),
    "z6": pl.Datetime("us", "UTC"),
    "z9": pl.Datetime("ns", "UTC"),
}
_PAIRS = [
    *(("d", "t9"), ("t9", "d"), ("t6", "t9"), ("t9", "t6"), ("t3", "t9"), ("t9", "t3")),
    *(("z6", "z9"), ("z9", "z6")),
]
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Numbers = dict[str, list[int | None]]


def _numbers(rows: int) -> Numbers:
    """Return times as nanoseconds since 1970: near each other, near the ends of 64 bits, far."""
    chance = random.Random(7)
    first, last = (
        (dt.date(year, month, day).toordinal() - dt.date(1970, 1, 1).toordinal()) * _DAY
        for year, month, day in ((1, 1, 1), (9999, 12, 31))
    )
    ends = [2**63 - 1, -(2**63) + 1]
    near = [0, 20_000 * _DAY, -300 * _DAY, *ends]

    def one(name: str) -> int | None:
        draw = chance.random()
        if draw < 0.1:
            return None
        moment = chance.choice(near)
        if draw < 0.8:
            moment += chance.choice([0, 0, 1, -1, 999, -999, 1000, -1000, 10**6, -(10**6)])
        elif draw < 0.9:
            moment = chance.choice([first, last, first + 1000, last + _DAY - 1000])
        if _FACTORS[name] == 1:
            return min(max(moment, ends[1]), ends[0])
        # a day or so further is beyond what 64 bits hold, too
        return (moment // _FACTORS[name] + chance.choice([0, 0, 0, 1])) * _FACTORS[name]

    found: Numbers = {name: [one(name) for _ in range(rows)] for name in _FACTORS}
    for name in found:
        # some are the same
        for at in range(0, rows, 5):
            others = [found[other][at] for other in found if other != name]
            same = [n for n in others if n is not None and n % _FACTORS[name] == 0]
            if same and (_FACTORS[name] > 1 or ends[1] <= same[0] <= ends[0]):
                found[name][at] = same[0]
    return found


@pytest.fixture(scope="module")
def drawn() -> Iterator[tuple[Backend, Numbers]]:
    backend = Backend()
    backend.do_connect(":memory:")
    numbers = _numbers(400)
    frame = pl.DataFrame({"id": pl.int_range(400, dtype=pl.Int32, eager=True)}).with_columns(
        pl.Series(name, [None if n is None else n // _FACTORS[name] for n in values], pl.Int64)
        .cast(pl.Int32 if name == "d" else pl.Int64)
        .cast(_KINDS[name])
        for name, values in numbers.items()
    )
    backend.create_table("r", frame)
    yield backend, numbers
    backend.disconnect()


def _both(numbers: Numbers, one: str, other: str) -> list[tuple[Any, Any]]:
    return list(zip(numbers[one], numbers[other], strict=True))


def _truth(compare: Callable[[Any, Any], Any], one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else compare(one, other)


def _sql(con: Backend, condition: str) -> list[Any]:
    found = con.raw_sql(f"SELECT id, {condition} AS x FROM r ORDER BY id")["x"]
    return list(found.to_list())


def _ibis(con: Backend, condition: Any) -> list[Any]:
    table = con.table("r")
    return list(con.compile(table.select(table.id, x=condition)).sort("id").collect()["x"])


@pytest.mark.parametrize(("one", "other"), _PAIRS)
def test_times_are_compared_as_whole_numbers_are(
    drawn: tuple[Backend, Numbers], one: str, other: str
) -> None:
    con, numbers = drawn
    t = con.table("r")
    pairs = _both(numbers, one, other)
    assert any(a == b is not None for a, b in pairs)
    for sign, compare in _COMPARED.items():
        expected = [_truth(compare, a, b) for a, b in pairs]
        assert _sql(con, f"{one} {sign} {other}") == expected
        assert _sql(con, f"NOT ({one} {sign} {other})") == [
            None if e is None else not e for e in expected
        ]
        assert _ibis(con, compare(t[one], t[other])) == expected
    same = [a == b for a, b in pairs]
    assert _sql(con, f"{one} IS NOT DISTINCT FROM {other}") == same
    assert _sql(con, f"{one} IS DISTINCT FROM {other}") == [not s for s in same]
    assert _ibis(con, t[one].identical_to(t[other])) == same
    equal = [_truth(operator.eq, a, b) for a, b in pairs]
    assert _sql(con, f"{one} IN ({other}, {other})") == equal
    assert _ibis(con, t[one].isin([t[other]])) == equal
    assert _sql(con, f"NULLIF({one}, {other}) IS NULL") == [a is None or a == b for a, b in pairs]
    assert _sql(con, f"CASE {one} WHEN {other} THEN TRUE ELSE FALSE END") == [
        e is True for e in equal
    ]
    between = [
        _truth(operator.ge, a, b) if b is None or a is None or a < b else True for a, b in pairs
    ]
    assert _sql(con, f"{one} BETWEEN {other} AND {one}") == between
    assert _ibis(con, t[one].between(t[other], t[one])) == between


@pytest.mark.parametrize(("one", "other"), [*_PAIRS, ("t3", "t6"), ("t6", "t3"), ("t9", "t9")])
def test_times_are_compared_with_all_and_any_of_a_query(
    drawn: tuple[Backend, Numbers], one: str, other: str
) -> None:
    con, numbers = drawn
    for first, last in ((0, 400), (0, 40), (7, 8)):
        query = (
            f"(SELECT {other} FROM r WHERE id >= {first} AND id < {last} AND {other} IS NOT NULL)"
        )
        others = [n for n in numbers[other][first:last] if n is not None]
        for sign, compare in _COMPARED.items():
            for word, whole in (("ALL", all), ("ANY", any)):
                found = con.raw_sql(f"SELECT id FROM r WHERE {one} {sign} {word} {query}")["id"]
                assert sorted(found) == [
                    row
                    for row, number in enumerate(numbers[one])
                    # of no value, a null is equal to all
                    if (number is not None or not others)
                    and whole(compare(number, n) for n in others)
                ], (one, sign, word, other)


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
def test_days_are_semi_joined_with_times(drawn: tuple[Backend, Numbers], kind: str) -> None:
    con, _ = drawn
    near = "(SELECT * FROM r WHERE d BETWEEN '1700-01-01' AND '2200-01-01')"
    found = con.raw_sql(f"SELECT x.id FROM {near} x {kind} JOIN r y ON x.d = y.t9")["id"]
    word = "IN" if kind == "SEMI" else "NOT IN"
    query = "(SELECT t9 FROM r WHERE t9 IS NOT NULL)"
    expected = con.raw_sql(f"SELECT id FROM {near} x WHERE d {word} {query}")["id"]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("one", "other"), _PAIRS)
def test_times_are_joined_as_whole_numbers_are(
    drawn: tuple[Backend, Numbers], one: str, other: str
) -> None:
    con, numbers = drawn
    expected = sorted(
        (at, to)
        for at, a in enumerate(numbers[one])
        for to, b in enumerate(numbers[other])
        if a is not None and a == b
    )
    assert expected
    joined = con.raw_sql(
        f"SELECT x.id AS a, y.id AS b FROM r AS x JOIN r AS y ON x.{one} = y.{other}"
    )
    assert sorted(joined.rows()) == expected
    known = {at for at, _ in expected}
    among = con.raw_sql(f"SELECT id FROM r WHERE {one} IN (SELECT {other} FROM r)")
    assert sorted(among["id"]) == sorted(known)
    computed = f"SELECT MAX({other}) FROM r WHERE {other} IS NOT NULL GROUP BY id"
    others = con.raw_sql(f"SELECT id FROM r WHERE {one} NOT IN ({computed})")
    assert sorted(others["id"]) == [
        at for at, n in enumerate(numbers[one]) if n is not None and at not in known
    ]
    t = con.table("r")
    u = t.view()
    pairs = con.compile(t.join(u, t[one] == u[other]).select(t.id, b=u.id)).collect()
    assert sorted(pairs.rows()) == expected
    ids = con.compile(t.filter(t[one].isin(u[other])).select("id")).collect()["id"]
    assert sorted(ids) == sorted({at for at, _ in expected})


@pytest.mark.parametrize("year", [1, 1677, 1678, 1970, 2024, 2262, 2263, 9999])
def test_days_that_are_literals_are_compared_as_whole_numbers_are(
    drawn: tuple[Backend, Numbers], year: int
) -> None:
    con, numbers = drawn
    t = con.table("r")
    day = dt.date(year, 1, 1)
    number = (day.toordinal() - dt.date(1970, 1, 1).toordinal()) * _DAY
    for name in ("t9", "z9", "t6"):
        for sign, compare in _COMPARED.items():
            expected = [_truth(compare, n, number) for n in numbers[name]]
            assert _sql(con, f"{name} {sign} DATE '{day}'") == expected
            assert _sql(con, f"{name} {sign} (SELECT MIN(DATE '{day}') FROM r)") == expected
            assert _ibis(con, compare(t[name], ibis.literal(day))) == expected
        equal = [_truth(operator.eq, n, number) for n in numbers[name]]
        assert _sql(con, f"{name} IN (DATE '{day}', DATE '{day}')") == equal
        assert _sql(con, f"{name} BETWEEN DATE '{day}' AND DATE '{day}'") == equal
        assert _sql(con, f"{name} BETWEEN DATE '{day}' AND d") == [
            None if n is None or (d is None and n >= number) else number <= n <= (d or 0)
            for n, d in _both(numbers, name, "d")
        ]
        assert _ibis(con, t[name].isin([day])) == equal
        assert _ibis(con, t[name].between(day, day)) == equal


@pytest.mark.parametrize("name", ["d", "t3", "t6"])
def test_coarser_times_are_compared_with_nanoseconds_of_literals(
    drawn: tuple[Backend, Numbers], name: str
) -> None:
    con, numbers = drawn
    text = "1970-01-01 00:00:00.000000001"
    for sign, compare in _COMPARED.items():
        expected = [_truth(compare, n, 1) for n in numbers[name]]
        assert _sql(con, f"{name} {sign} TIMESTAMP '{text}'") == expected
        literal = ibis.literal(text).cast("timestamp(9)")
        assert _ibis(con, compare(con.table("r")[name], literal)) == expected


def test_rows_of_far_days_are_deleted_and_changed() -> None:
    con = Backend()
    con.do_connect(":memory:")
    con.raw_sql("CREATE TABLE e (id INT, d DATE, t TIMESTAMP(9), PRIMARY KEY (id) NOT ENFORCED)")
    start = "'2024-01-01 00:00:00'"
    con.raw_sql(f"INSERT INTO e VALUES (1, '9999-12-31', {start}), (2, '0001-01-01', {start})")
    con.raw_sql("UPDATE e SET d = DATE '2000-01-01' WHERE d > t")
    assert con.table("e").filter(ibis._.id == 1).d.to_pyarrow().to_pylist() == [dt.date(2000, 1, 1)]
    con.raw_sql("DELETE FROM e WHERE t < DATE '9999-12-31'")
    assert con.table("e").count().execute() == 0
    con.disconnect()


@pytest.mark.parametrize("name", list(_FACTORS))
def test_seconds_since_1970_are_counted_in_all_years(
    drawn: tuple[Backend, Numbers], name: str
) -> None:
    con, numbers = drawn
    # one that 53 bits do not hold may be rounded twice
    known = [None if n is None else pytest.approx(n / 10**9, rel=3e-16) for n in numbers[name]]
    assert _sql(con, f"EXTRACT(EPOCH FROM {name})") == known
    assert _sql(con, f"DATE_PART('epoch', COALESCE({name}, {name}))") == known
    assert _sql(con, f"2 * EXTRACT(EPOCH FROM {name}) / 2") == known
    assert con.raw_sql(f"SELECT EXTRACT(EPOCH FROM {name}) AS x FROM r").dtypes == [pl.Float64()]
    found = con.raw_sql(
        f"SELECT id FROM r WHERE EXTRACT(EPOCH FROM {name}) > 0 AND {name} IS NOT NULL"
    )
    assert sorted(found["id"]) == [at for at, n in enumerate(numbers[name]) if n and n > 0]


def test_seconds_since_1970_have_64_bits_in_ibis() -> None:
    con = Backend()
    con.do_connect(":memory:")
    con.raw_sql("CREATE TABLE e (id INT, t TIMESTAMP(6), i INT)")
    con.raw_sql("INSERT INTO e VALUES (1, '2039-01-01 00:00:00', 7), (2, NULL, 8)")
    t = con.table("e").filter(ibis._.id == 1)
    seconds = int(dt.datetime(2039, 1, 1, tzinfo=dt.UTC).timestamp())
    made = t.select(s=t.t.epoch_seconds(), n=-t.t.epoch_seconds(), i=t.i)
    row = {"s": seconds, "n": -seconds, "i": 7}
    assert made.to_pyarrow().to_pylist() == [row]
    assert made.to_polars().to_dicts() == [row]
    assert made.to_polars().dtypes == [pl.Int64(), pl.Int64(), pl.Int32()]
    assert made.execute().to_dict("records") == [row]
    assert pa.Table.from_batches(made.to_pyarrow_batches()).to_pylist() == [row]
    assert [part.to_dict("records") for part in con.to_pandas_batches(made)] == [[row]]
    column = t.t.epoch_seconds()
    assert column.to_pyarrow().to_pylist() == [seconds]
    assert column.execute().tolist() == [seconds]
    assert column.max().execute() == seconds
    assert column.max().to_polars() == seconds
    assert t.t.date().epoch_seconds().max().to_pyarrow().as_py() == seconds
    assert t.filter(column > 2**31).count().execute() == 1
    batch = next(iter(con.follow(made)))
    assert batch.to_pylist() == [row]
    con.disconnect()


def test_texts_of_times_of_the_day_have_their_fraction() -> None:
    con = Backend()
    con.do_connect(":memory:")
    con.raw_sql("CREATE TABLE c (a TIME(0), b TIME(3), g TIME(6), s STRING)")
    con.raw_sql("INSERT INTO c VALUES ('12:00:00', '12:00:00.12', '12:00:00.123456', 'x')")
    con.raw_sql("INSERT INTO c VALUES (NULL, NULL, NULL, 'n')")
    for value, text in (
        ("CAST(a AS STRING)", "12:00:00"),
        ("CAST(b AS STRING)", "12:00:00.120"),
        ("CAST(g AS STRING)", "12:00:00.123456"),
        ("CAST((g) AS VARCHAR)", "12:00:00.123456"),
        ("g || s", "12:00:00.123456x"),
        ("s || '-' || g || '!'", "x-12:00:00.123456!"),
        ("CONCAT(s, g, s)", "x12:00:00.123456x"),
        ("CONCAT_WS('-', s, b)", "x-12:00:00.120"),
        ("CAST(COALESCE(g, b) AS STRING)", "12:00:00.123456"),
        ("CAST(TIME '01:02:03.5' AS STRING)", "01:02:03.500"),
        ("STRING_AGG(g, ',')", "12:00:00.123456"),
        ("UPPER(CAST(g AS STRING))", "12:00:00.123456"),
    ):
        assert con.raw_sql(f"SELECT {value} AS v FROM c WHERE s = 'x'")["v"].to_list() == [text]
    assert con.raw_sql("SELECT CAST(g AS STRING) AS v FROM c WHERE s = 'n'")["v"].to_list() == [
        None
    ]
    found = con.raw_sql("SELECT s FROM c WHERE CAST(g AS STRING) = '12:00:00.123456'")
    assert found["s"].to_list() == ["x"]
    t = con.table("c").filter(ibis._.s == "x")
    made = t.select(a=t.a.cast("string"), b=t.b.cast("string"), g=t.g.cast("string") + t.s)
    assert made.to_pyarrow().to_pylist() == [
        {"a": "12:00:00", "b": "12:00:00.120", "g": "12:00:00.123456x"}
    ]
    con.disconnect()
