"""Running results of aggregates over windows of time."""

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import ibis
import ibis.expr.types as ir
import polars as pl
import pyarrow as pa
import pytest
from ibis import _

from fluss_df.backend import Backend
from fluss_df.errors import FlussError

NOON = dt.datetime(2024, 3, 1, 12)


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


def rows(*given: tuple[float | None, str, float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "at": [None if m is None else at(m) for m, *_ in given],
            "page": [page for _, page, _ in given],
            "v": [v for *_, v in given],
        },
        schema={"at": pl.Datetime("us"), "page": pl.String, "v": pl.Float64},
    )


FIRST = rows((0, "a", 1.0), (0.5, "a", 3.0), (0.9, "b", None), (1.5, "a", 5.0), (None, "a", 9.0))


@pytest.fixture
def name(con: Backend, fresh: Callable[[], str]) -> str:
    made = fresh()
    con.create_table(made, FIRST, buckets=2)
    return made


def by_minute(table: ir.Table) -> ir.Table:
    return table.group_by(minute=_.at.truncate("m"), page=_.page).agg(
        n=_.count(), total=_.v.sum(), mean=_.v.mean(), low=_.v.min(), high=_.v.max()
    )


class Followed:
    """Batches of an expression, which end with the test."""

    def __init__(self, con: Backend, expr: ir.Table, **options: Any) -> None:
        self.stop = threading.Event()
        self._batches: Iterator[pa.RecordBatch] = con.follow(
            expr, every=0.02, stop=self.stop, **options
        )

    def next(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in next(self._batches).to_pylist())

    def end(self) -> list[pa.RecordBatch]:
        self.stop.set()
        return list(self._batches)


def test_changed_groups_come_with_their_values_of_now(con: Backend, name: str) -> None:
    running = Followed(con, by_minute(con.table(name)), lateness="1h")
    assert running.next() == [
        (at(0), "a", 2, 4.0, 2.0, 1.0, 3.0),
        (at(0), "b", 1, None, None, None, None),
        (at(1), "a", 1, 5.0, 5.0, 5.0, 5.0),
    ]
    con.insert(name, rows((0.1, "b", 7.0), (1.2, "c", 1.0)))
    assert running.next() == [
        (at(0), "b", 2, 7.0, 7.0, 7.0, 7.0),
        (at(1), "c", 1, 1.0, 1.0, 1.0, 1.0),
    ]
    con.insert(name, rows((0.2, "a", -2.0)))
    assert running.next() == [(at(0), "a", 3, 2.0, 2 / 3, -2.0, 3.0)]
    assert not running.end()


def test_the_last_values_are_those_of_a_batch_query(con: Backend, fresh: Callable[[], str]) -> None:
    name = fresh()
    data = pl.DataFrame(
        {
            "at": [at(i * 7919 % 600 / 10) for i in range(2000)],
            "page": [f"p{i % 11}" for i in range(2000)],
            "v": [None if i % 5 == 0 else float(i % 97) for i in range(2000)],
        }
    )
    table = con.create_table(name, data, buckets=2)
    expr = (
        table.filter(_.page != "p3")
        .mutate(window=_.at.bucket(minutes=5), big=_.v > 50)
        .group_by("page", "window")
        .agg(
            n=_.count(), few=_.v.count(), some=_.big.any(), every=_.big.all(),
            share=_.v.sum(where=_.big) / _.v.sum(), mean=_.v.mean(where=_.big),
        )
        .filter(_.n > 1)
        .mutate(label=_.page.upper())
    )  # fmt: skip
    key = itemgetter("page", "window")
    last: dict[tuple[str, dt.datetime], dict[str, Any]] = {}
    stop = threading.Event()
    batches = 0
    expected = {key(row): row for row in expr.to_pyarrow().to_pylist()}
    for batch in con.follow(expr, every=0, max_batch_rows=300, lateness="1h", stop=stop):
        batches += 1
        last.update({key(row): row for row in batch.to_pylist()})
        if sum(row["n"] for row in last.values()) == sum(row["n"] for row in expected.values()):
            stop.set()
    assert batches > 3
    assert last.keys() == expected.keys()
    for place, row in expected.items():
        assert [*last[place].values()][2:] == pytest.approx([*row.values()][2:])


def test_windows_close_and_leave_memory(
    con: Backend, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expr = con.table(name).group_by(minute=_.at.truncate("m")).agg(n=_.count())
    running = Followed(con, expr, max_groups=2)
    assert running.next() == [(at(0), 3), (at(1), 1)]
    con.insert(name, rows((3.5, "a", 1.0)))
    assert running.next() == [(at(3), 1)]
    # the first is of a window that has closed
    con.insert(name, rows((1.1, "a", 1.0), (3.1, "a", 1.0)))
    assert running.next() == [(at(3), 2)]
    assert "1 rows of windows that had closed were left out" in caplog.text
    con.insert(name, rows((6, "a", 1.0), (7, "a", 1.0), (8, "a", 1.0)))
    assert running.next() == [(at(6), 1), (at(7), 1), (at(8), 1)]


def test_windows_stay_open_for_late_rows(con: Backend, name: str) -> None:
    expr = con.table(name).group_by(minute=_.at.truncate("m")).agg(n=_.count())
    running = Followed(con, expr, lateness="2m")
    running.next()
    con.insert(name, rows((3.5, "a", 1.0)))
    assert running.next() == [(at(3), 1)]
    con.insert(name, rows((0.7, "a", 1.0), (1.1, "a", 1.0)))
    # the one of 12:00 has closed: that of 12:03 begins two minutes behind its end
    assert running.next() == [(at(1), 2)]


def test_final_results_come_once(con: Backend, name: str) -> None:
    expr = con.table(name).group_by(day=_.at.date().truncate("D"), page=_.page).agg(n=_.count())
    running = Followed(con, expr, emit="final")
    con.insert(name, rows((24 * 60, "a", 1.0)))
    assert running.next() == [(NOON.date(), "a", 3), (NOON.date(), "b", 1)]
    con.insert(name, rows((24 * 60 + 1, "z", 1.0), (48 * 60, "z", 1.0)))
    assert running.next() == [(at(24 * 60).date(), "a", 1), (at(24 * 60).date(), "z", 1)]
    assert not running.end()


def test_results_go_into_a_primary_key_table(
    con: Backend, name: str, fresh: Callable[[], str]
) -> None:
    expr = con.table(name).group_by(minute=_.at.truncate("m")).agg(n=_.count())
    totals = con.create_table(fresh(), schema=expr.schema(), primary_key="minute", buckets=1)
    stop = threading.Event()
    for batch in con.follow(expr, every=0.02, lateness="1h", stop=stop):
        con.upsert(totals.op().name, batch, on="minute")
        if batch.num_rows == 1:
            stop.set()
        else:
            con.insert(name, rows((1.7, "a", 0.0)))
    assert totals.order_by("minute").to_polars().rows() == [(at(0), 3), (at(1), 2)]


def test_joined_with_another_table(con: Backend, name: str, fresh: Callable[[], str]) -> None:
    titles = con.create_table(
        fresh(), pl.DataFrame({"page": ["a", "b"], "title": ["Ann", "Bob"]}), buckets=1
    )
    expr = (
        con.table(name).join(titles, "page")
        .group_by(_.title, hour=_.at.truncate("h")).agg(n=_.count())
    )  # fmt: skip
    running = Followed(con, expr, stream=f"ibis.{name}")
    assert running.next() == [("Ann", NOON, 3), ("Bob", NOON, 1)]


def test_what_cannot_be_told_of_parts_is_refused(con: Backend, name: str) -> None:
    table = con.table(name)
    minutes = table.group_by(minute=_.at.truncate("m"))
    with pytest.raises(FlussError, match=r"a Median cannot be followed.*there are .*Mean.*Sum"):
        con.follow(minutes.agg(x=_.v.median()))
    for expr in (
        table.group_by("page").agg(n=_.count()),
        table.agg(n=_.count()),
        minutes.agg(n=_.count()).order_by("n"),
        minutes.agg(n=_.count()).agg(_.n.max()),
        minutes.agg(n=_.count()).mutate(r=ibis.row_number()),
    ):
        with pytest.raises(FlussError, match="cannot be followed"):
            con.follow(expr)
    with pytest.raises(FlussError, match=r"window of time, as in group_by\(t.at.truncate"):
        con.follow(table.group_by("page").agg(n=_.count()))
    with pytest.raises(FlussError, match="emit='all': expected one of 'updates', 'final'"):
        con.follow(minutes.agg(n=_.count()), emit="all")  # type: ignore[arg-type]
    with pytest.raises(FlussError, match=r"3 groups in windows that are open.*max_groups=2"):
        list(con.follow(by_minute(table), max_groups=2, lateness="1h"))


def test_a_run_refuses_what_needs_all_rows(con: Backend, name: str, tmp_path: Any) -> None:
    places = {"to": tmp_path / "rows", "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(FlussError, match="Aggregate cannot be followed"):
        con.run(con.table(name).group_by("page").agg(n=_.count()), **places)
    with pytest.raises(FlussError, match="COUNT cannot be followed"):
        con.run(f"SELECT count(*) FROM {name}", **places)


def in_berlin(con: Backend, made: str) -> ir.Table:
    table = con.table(made).mutate(
        at=_.at.cast("timestamp('UTC')").cast("timestamp('Europe/Berlin')")
    )
    return table.group_by(hour=table.at.truncate("h")).agg(n=_.count())


def moments(*given: dt.datetime) -> pl.DataFrame:
    return pl.DataFrame({"at": given}, schema={"at": pl.Datetime("us")})


def test_windows_close_where_the_clock_skips_an_hour(
    con: Backend, fresh: Callable[[], str]
) -> None:
    day = dt.datetime(2024, 3, 31)
    made = fresh()
    con.create_table(made, moments(day.replace(minute=30)), buckets=1)
    running = Followed(con, in_berlin(con, made), lateness="30m")
    assert running.next() == [(day.replace(hour=1), 1)]
    # the clock shows ten past three, ten minutes after two would have been
    con.insert(made, moments(day.replace(hour=1, minute=10)))
    assert running.next() == [(day.replace(hour=3), 1)]
    con.insert(made, moments(day.replace(minute=40)))
    assert running.next() == [(day.replace(hour=1), 2)]
    con.insert(made, moments(day.replace(hour=2)))
    assert running.next() == [(day.replace(hour=4), 1)]
    con.insert(made, moments(day.replace(minute=50), day.replace(hour=1, minute=50)))
    assert running.next() == [(day.replace(hour=3), 2)]
    assert not running.end()


def test_windows_do_not_open_again_where_the_clock_is_set_back(
    con: Backend, fresh: Callable[[], str]
) -> None:
    day = dt.datetime(2024, 10, 27)
    made = fresh()
    con.create_table(made, moments(day.replace(minute=30)), buckets=1)
    running = Followed(con, in_berlin(con, made), lateness="10m")
    assert running.next() == [(day.replace(hour=2), 1)]
    # half past two again, in winter now
    con.insert(made, moments(day.replace(hour=1, minute=30)))
    assert running.next() == [(day.replace(hour=2), 2)]
    con.insert(made, moments(day.replace(hour=3)))
    assert running.next() == [(day.replace(hour=4), 1)]
    con.insert(made, moments(day.replace(minute=50), day.replace(hour=2)))
    assert running.next() == [(day.replace(hour=3), 1)]
    assert not running.end()


@pytest.mark.parametrize(
    ("first", "kind", "lateness"),
    [
        (dt.datetime(1, 1, 1), pl.Datetime("us"), "1h"),
        (dt.datetime(2024, 1, 1), pl.Datetime("us"), dt.timedelta(days=365 * 3000)),
        (dt.datetime(2024, 1, 1), pl.Datetime("ns"), dt.timedelta(days=365 * 400)),
        (dt.datetime(1, 1, 1), pl.Datetime("us", "Europe/Berlin"), "3h"),
        (dt.date(1, 1, 1), pl.Date(), "1d"),
    ],
)
def test_no_window_closes_before_there_are_times(
    con: Backend, fresh: Callable[[], str], first: Any, kind: Any, lateness: Any
) -> None:
    made = fresh()
    zone = getattr(kind, "time_zone", None)
    stored = pl.Datetime("us") if zone else kind
    con.create_table(made, pl.DataFrame({"at": [first]}, schema={"at": stored}), buckets=1)
    table = con.table(made)
    if zone:
        table = table.mutate(at=_.at.cast("timestamp('UTC')").cast(f"timestamp('{zone}')"))
    running = Followed(
        con, table.group_by(y=_.at.truncate("D")).agg(n=_.count()), lateness=lateness
    )
    assert [n for _day, n in running.next()] == [1]
    con.insert(made, pl.DataFrame({"at": [first]}, schema={"at": stored}))
    assert [n for _day, n in running.next()] == [2]
    assert not running.end()


def test_a_lateness_without_end_is_refused(con: Backend, name: str) -> None:
    with pytest.raises(FlussError, match="lateness=inf: expected a duration of at most"):
        con.follow(by_minute(con.table(name)), lateness=float("inf"))
