"""Random typed values of Ibis over the columns of a table: for the expressions of ``ibis_fuzz``."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable
from typing import Any

import ibis

KINDS = ["boolean", "int", "float", "decimal", "string", "date", "timestamp", "time"]
_LITERALS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-1, 0, 1, 2, 3, 7, 300],
    "float": [-1.5, 0.0, 0.5, 1.0, 2.0, 1e300, float("nan"), float("inf")],
    "decimal": [decimal.Decimal(v) for v in ("-1.50", "0.00", "0.5", "2.25", "100")],
    "string": ["", "a", "ab", "A", "b", "é", "%", "_", "x.y", "a_b", " "],
    "date": [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2024, 1, 1),
        dt.datetime(2024, 1, 1, 12, 0, 0, 5),
        dt.datetime(1, 1, 1),
    ],
    "time": [dt.time(0), dt.time(2, 3, 4), dt.time(23, 59, 59)],
}


def kind_of(kind: Any) -> str:
    if kind.is_integer():
        return "int"
    if kind.is_floating():
        return "float"
    return str(kind).split("(")[0].lower().lstrip("!")


class Values:
    """Makes random values, of one kind or of any."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def columns(self, t: Any, kind: str) -> list[str]:
        # times with a zone are a kind of their own to Ibis's operations, and one in four here
        return [n for n, of in t.schema().items() if kind_of(of) == kind]

    def any(self, t: Any, depth: int) -> Any:
        return self.of(self.rng.choice(KINDS), t, depth)

    def literal(self, kind: str) -> Any:
        if self.rng.random() < 0.07:
            return ibis.null(
                {"int": "int32", "float": "float64", "decimal": "decimal(10, 2)"}.get(kind, kind)
            )
        return ibis.literal(
            self.rng.choice(_LITERALS[kind]), "decimal(10, 2)" if kind == "decimal" else None
        )

    def of(self, kind: str, t: Any, depth: int) -> Any:
        """Return a value of a kind, of operations that lie at most so deep."""
        names = self.columns(t, kind)
        if depth <= 0 or self.rng.random() < 0.1:
            if names and self.rng.random() < 0.85:
                return t[self.rng.choice(names)]
            return self.literal(kind)

        def v(of: str = kind) -> Any:
            return self.of(of, t, depth - 1)

        def c(of: str = kind) -> Any:
            """A column where there is one: what is computed of literals alone is folded."""
            return self.of(of, t, depth - 1) if self.rng.random() < 0.5 else self.of(of, t, 0)

        forms: list[Callable[[], Any]] = getattr(self, "_" + kind)(v, c)
        if self.rng.random() < 0.15:
            forms = self._of_any(kind, v, c)
        return self.rng.choice(forms)()

    def _of_any(self, kind: str, v: Any, c: Any) -> list[Callable[[], Any]]:
        one = self.rng.choice(_LITERALS[kind])
        found = [
            lambda: ibis.ifelse(v("boolean"), c(), v()),
            lambda: ibis.coalesce(c(), v()),
            lambda: c().nullif(v()),
            lambda: c().fill_null(v()),
            lambda: ibis.cases((v("boolean"), c()), (v("boolean"), v()), else_=v()),
            lambda: c().cases((v(), c()), (one, v()), else_=v()),
            lambda: ibis.cases((v("boolean"), c())),
        ]
        if kind not in ("float", "boolean"):
            # Polars passes over NaN
            found += [lambda: ibis.greatest(c(), v()), lambda: ibis.least(c(), v(), c())]
        return found

    def _boolean(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        kind = rng.choice(KINDS)
        text = rng.choice(_LITERALS["string"])
        some = [rng.choice(_LITERALS[kind]) for _ in range(rng.randint(1, 3))] + [
            None
        ] * rng.randrange(2)
        pattern = "".join(rng.choices(["a", "b", "%", "_", "é", "A", "."], k=rng.randint(0, 3)))
        other = rng.choice(["int", "float", "decimal"])
        return [
            lambda: c(kind) == v(kind),
            lambda: c(kind) != v(kind),
            lambda: c(kind) < v(kind),
            lambda: c(kind) <= v(kind),
            lambda: c(kind) > v(kind),
            lambda: c(kind) >= v(kind),
            lambda: c("int") < v(other),
            lambda: c("decimal") == v(other),
            lambda: c("date") <= c("timestamp"),
            lambda: c(kind).isnull(),
            lambda: c(kind).notnull(),
            lambda: c(kind).isin(some),
            lambda: c(kind).notin(some),
            lambda: c(kind).between(v(kind), v(kind)),
            lambda: c(kind).identical_to(v(kind)),
            lambda: c(kind).isin([v(kind), v(kind)]),
            lambda: v() & v(),
            lambda: v() | v(),
            lambda: ~v(),
            lambda: v() ^ v(),
            lambda: ~(v() & v()),
            lambda: c("string").like(pattern),
            lambda: c("string").ilike(pattern),
            lambda: c("string").startswith(text),
            lambda: c("string").endswith(text),
            lambda: c("string").contains(text),
            lambda: c("string").re_search(rng.choice(["^a", "b$", "[ab]+", "a.b", "^$"])),
            lambda: c("float").isnan(),
            lambda: c("float").isinf(),
            lambda: c("int").cast("boolean"),
            lambda: c("string").length() > 1,
            lambda: c("string").startswith(c("string")),
            lambda: c("string").contains(c("string")),
        ]

    def _int(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        when = rng.choice(["date", "timestamp"])
        small = rng.choice([1, 2, 3, -2])
        part = rng.choice(
            ["year", "month", "day", "quarter", "week_of_year", "day_of_year", "iso_year"]
        )
        clock = rng.choice(["hour", "minute", "second", "millisecond", "microsecond"])
        unit = rng.choice(["day", "hour", "second", "month", "year", "quarter"])
        return [
            lambda: c().cast("int64") + v(),
            lambda: c() - v(),
            lambda: c() * small,
            lambda: c() // small,
            lambda: c() % small,
            lambda: c() % v(),
            lambda: c() // v(),
            lambda: c().abs(),
            lambda: -c().cast("int64"),
            lambda: c().sign(),
            lambda: c().clip(0, 2),
            lambda: c().clip(lower=1),
            lambda: c() + c(),
            lambda: c() * c(),
            lambda: c() & v(),
            lambda: c() | v(),
            lambda: c() ^ v(),
            lambda: c().cast("int64") << rng.randrange(4),
            lambda: c() >> rng.randrange(4),
            lambda: ~c(),
            lambda: c("float").floor(),
            lambda: c("float").ceil(),
            lambda: (c("float") + 0.1).round(),
            lambda: c("decimal").floor(),
            lambda: c("decimal").ceil(),
            lambda: c("decimal").round(),
            lambda: (c("float") + 0.1).round(0).cast("int32"),
            lambda: c("decimal").round().cast("int64"),
            lambda: c("boolean").cast("int8"),
            lambda: c("string").cast("int32"),
            lambda: c("string").try_cast("int32"),
            lambda: c("string").length(),
            lambda: c("string").find(rng.choice(["a", "b", "", "é"])),
            lambda: c("string").ascii_str(),
            lambda: getattr(c(when), part)(),
            lambda: getattr(c(rng.choice(["timestamp", "time"])), clock)(),
            lambda: c(when).day_of_week.index(),
            lambda: c("timestamp").epoch_seconds(),
            lambda: c("string").split("_").length(),
            lambda: c("date").delta(c("date"), unit=unit),
            lambda: c("timestamp").delta(c("timestamp"), unit=unit),
            lambda: ibis.array([c(), v()]).length(),
            lambda: ibis.array([c(), v()])[rng.choice([0, 1, -1])],
            lambda: ibis.struct({"a": c(), "b": v()})["a"],
            lambda: c("string").levenshtein(v("string")),
            lambda: c("int").cast("int8"),
        ]

    def _float(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        number = rng.choice(["int", "float", "decimal"])
        digits = rng.choice([0, 1, 2, -1])
        return [
            lambda: c() + v(),
            lambda: c() - v(),
            lambda: c() * v(),
            lambda: c() / v(),
            lambda: c("int") / v("int"),
            lambda: c(number) / v(number),
            lambda: c("int") + v(),
            lambda: c().abs(),
            lambda: -c(),
            lambda: c(number).abs().sqrt(),
            lambda: (c(number).abs() + 1).ln(),
            lambda: (c(number).abs() + 1).log2(),
            lambda: (c(number).abs() + 1).log10(),
            lambda: (c(number).abs() + 1).log(3),
            lambda: c(number).clip(1, 3).exp(),
            lambda: c(number) ** 2,
            lambda: c("int") ** -1,
            lambda: c().abs() ** 0.5,
            lambda: (c() + 0.1).round(digits),
            lambda: c("int").cast("float64"),
            lambda: c("int").cast("float32"),
            lambda: c("decimal").cast("float64"),
            lambda: c("string").try_cast("float64"),
            lambda: c() % rng.choice([1.5, -2.0]),
            lambda: c() // 2.0,
            lambda: c(number).sin(),
            lambda: c(number).cos(),
            lambda: c(number).atan(),
            lambda: ibis.atan2(c(), v()),
            lambda: c().degrees(),
            lambda: c().radians(),
            lambda: c("int") * 0.5,
            lambda: c("decimal") * v(),
            lambda: c("decimal") / v("int"),
        ]

    def _decimal(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        return [
            lambda: c() + v(),
            lambda: c() - v(),
            lambda: c() * v(),
            lambda: c() * v("int"),
            lambda: c() + v("int"),
            lambda: c().abs(),
            lambda: -c(),
            lambda: c().round(rng.choice([0, 1, 2, 4])),
            lambda: c().cast(rng.choice(["decimal(18, 5)", "decimal(38, 10)"])),
            lambda: c("int").cast("decimal(18, 2)"),
            lambda: c("string").try_cast("decimal(10, 2)"),
            lambda: c() % 2,
            lambda: c() // 2,
            lambda: c().clip(0, 2),
            lambda: c().sign(),
        ]

    def _string(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        n, m = rng.choice([0, 1, 2, 5]), rng.choice([0, 1, 2, 5])
        text = rng.choice(["a", "b", "_", "X", "é", "ab"])
        when = rng.choice(["date", "timestamp"])
        return [
            lambda: c().upper(),
            lambda: c().lower(),
            lambda: c().strip(),
            lambda: c().lstrip(),
            lambda: c().rstrip(),
            lambda: c().reverse(),
            lambda: c().capitalize(),
            lambda: c().substr(n, m),
            lambda: c().substr(n),
            lambda: c()[n : n + m],
            lambda: c()[-1],
            lambda: c()[n],
            lambda: c()[-n - 1 :],
            lambda: c()[: -n - 1],
            lambda: c().left(n),
            lambda: c().right(n),
            lambda: c().replace(text, v()),
            lambda: c().replace(text, "zz"),
            lambda: c().replace(v(), "z"),
            lambda: c().re_replace("[ab]", "q"),
            lambda: c() + v(),
            lambda: c().concat(v(), c()),
            lambda: c().lpad(n, text),
            lambda: c().rpad(n, text),
            lambda: c().repeat(rng.randrange(3)),
            lambda: c().split(text)[rng.choice([0, 1, -1])],
            lambda: ibis.literal(text).join([c(), v()]),
            lambda: c("int").cast("string"),
            lambda: c("boolean").cast("string"),
            lambda: c("date").cast("string"),
            lambda: c("decimal").cast("string"),
            lambda: c("time").cast("string"),
            lambda: c(when).strftime(
                rng.choice(["%Y/%m", "%d.%m.%Y", "%j", "%H:%M:%S", "%B %a", "%y"])
            ),
            lambda: c(when).day_of_week.full_name(),
            lambda: c().translate("ab", "xy"),
            lambda: ibis.array([c(), v()]).join(","),
            lambda: c().split("_").join("+"),
            lambda: c().re_split("[_X]")[0],
            lambda: ibis.struct({"a": c(), "b": v()})["b"],
            lambda: c().substr(c("int").abs(), m),
        ]

    def _interval(self, *names: str) -> Any:
        rng = self.rng
        return ibis.interval(**{rng.choice(names): rng.choice([0, 1, 7, -1, 13])})

    def _date(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        by = self._interval("days", "weeks", "months", "years", "quarters")
        return [
            lambda: c() + by,
            lambda: c() - by,
            lambda: c().truncate(rng.choice("YQMWD")),
            lambda: c("timestamp").date(),
            lambda: c("timestamp").cast("date"),
            lambda: c("string").try_cast("date"),
            lambda: ibis.date(c("int").clip(1, 9999), 2, 28),
            lambda: ibis.literal("2024-02-29").cast("date"),
            lambda: c("date") + c("int").clip(0, 100).as_interval("D"),
        ]

    def _timestamp(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        rng = self.rng
        by = self._interval(
            "days",
            "weeks",
            "months",
            "years",
            "hours",
            "minutes",
            "seconds",
            "milliseconds",
            "microseconds",
        )
        unit = rng.choice(["Y", "Q", "M", "W", "D", "h", "m", "s", "ms", "us"])
        return [
            lambda: c() + by,
            lambda: c() - by,
            lambda: c().truncate(unit),
            lambda: c("date").cast("timestamp"),
            lambda: c().bucket(**{rng.choice(["days", "hours", "minutes"]): rng.choice([1, 2, 7])}),
            lambda: c().cast("timestamp(6)"),
            lambda: c().truncate("s").cast("timestamp(3)"),
            lambda: c().truncate("s").cast("timestamp(0)"),
            lambda: c("int").clip(-(10**9), 10**9).as_timestamp("s"),
            lambda: c("int").clip(0, 10**9).as_timestamp("ms"),
            lambda: ibis.timestamp(c("int").clip(1, 9999), 2, 28, 1, 2, 3),
        ]

    def _time(self, v: Any, c: Any) -> list[Callable[[], Any]]:
        return [
            lambda: c("timestamp").time(),
            lambda: ibis.time(c("int").clip(0, 23), 5, 6),
            lambda: c().truncate(self.rng.choice(["h", "m", "s"])),
            lambda: c() + self._interval("hours", "seconds"),
        ]

    def reduction(self, t: Any, *, frame: bool = False) -> Any:
        """Return one value of all rows, or of the rows of a group."""
        rng = self.rng
        d = rng.choice([0, 0, 1])
        where = self.of("boolean", t, 1) if rng.random() < 0.25 else None
        any_kind = rng.choice([k for k in KINDS if k != "float"])
        number = rng.choice(["int", "decimal"])

        def c(kind: str) -> Any:
            return self.of(kind, t, d)

        forms = [
            lambda: t.count(where=where),
            lambda: c(any_kind).count(where=where),
            lambda: c(number).sum(where=where),
            lambda: c(number).mean(where=where),
            lambda: c(any_kind).min(where=where),
            lambda: c(any_kind).max(where=where),
            lambda: c("float").sum(where=where),
            lambda: c("float").mean(where=where),
            lambda: c("boolean").any(where=where),
            lambda: c("boolean").all(where=where),
            lambda: c("boolean").sum(where=where),
            lambda: c("int").std(where=where, how=rng.choice(["pop", "sample"])),
            lambda: c(number).var(where=where, how=rng.choice(["pop", "sample"])),
            lambda: c("boolean").mean(where=where),
        ]
        if not frame:
            forms += [
                lambda: c(any_kind).nunique(where=where),
                lambda: c("int").median(where=where),
                lambda: c("int").quantile(rng.choice([0, 0.25, 0.9, 1]), where=where),
                lambda: c("int").bit_and(where=where),
                lambda: c("int").bit_or(where=where),
                lambda: c("int").bit_xor(where=where),
                lambda: c("int").cov(c("int"), where=where, how=rng.choice(["pop", "sample"])),
                lambda: c("int").corr(c("int"), where=where, how="pop"),
                lambda: c("int").sum(where=where) + c("int").max(),
                lambda: ibis.ifelse(t.count() > 3, c("int").max(), None),
                lambda: c(any_kind).collect(where=where).length(),
                lambda: c("float").nunique(where=where),
                lambda: c("string").group_concat(",", where=where).length(),
                lambda: c("decimal").median(where=where),
                lambda: c("boolean").sum() / t.count(),
            ]
            if "k" in t.columns:
                order = rng.choice([ibis.asc, ibis.desc])(t["k"])
                forms += [
                    lambda: c("string").group_concat(
                        "-", where=where, order_by=[order, *self._rest(t)]
                    ),
                    lambda: c(any_kind).first(where=where, order_by=[order, *self._rest(t)]),
                    lambda: c(any_kind).last(
                        where=where,
                        order_by=[order, *self._rest(t)],
                        include_null=rng.random() < 0.5,
                    ),
                    lambda: c("int").collect(where=where, order_by=[order, *self._rest(t)]),
                ]
        made: Callable[[], Any] = rng.choice(forms)
        return made()

    def _rest(self, t: Any) -> list[Any]:
        return [t[n] for n, kind in t.schema().items() if n != "k" and not kind.is_nested()]

    def windowed(self, t: Any, total: list[Any]) -> Any:
        """Return a value of each row's window; ``total`` is an order without ties."""
        rng = self.rng
        group = [self.any(t, rng.choice([0, 0, 1])) for _ in range(rng.randrange(3))]
        kind = rng.choice(KINDS)
        tied = [rng.choice([ibis.asc, ibis.desc])(self.any(t, 0), nulls_first=rng.random() < 0.5)]

        def c() -> Any:
            # a literal alone is a scalar, which has no first value
            names = self.columns(t, kind)
            return t[rng.choice(names)] if names else t[rng.choice(list(t.columns))]

        form = rng.randrange(7)
        if form == 0:
            return ibis.row_number().over(group_by=group, order_by=total)
        if form == 1:
            rank = rng.choice([ibis.rank, ibis.dense_rank, ibis.percent_rank, ibis.cume_dist])()
            return rank.over(group_by=group, order_by=tied)
        if form == 2:
            given = rng.choice([(), (1,), (2,), (0,), (1, self.literal(kind))])
            return getattr(c(), rng.choice(["lag", "lead"]))(*given).over(
                group_by=group, order_by=total
            )
        if form == 3:
            makers: list[Callable[[], Any]] = [
                lambda: c().first(include_null=True),
                lambda: c().last(include_null=True),
                lambda: c().nth(rng.randrange(3)),
                lambda: ibis.ntile(rng.choice([1, 2, 3, 50])),
            ]
            return rng.choice(makers)().over(group_by=group, order_by=total)
        if form == 4:
            return self.reduction(t).over(group_by=group)
        if form == 5:
            rows = rng.choice(
                [
                    (None, 0),
                    (0, None),
                    (-2, 0),
                    (-1, 1),
                    (1, 3),
                    (-3, -1),
                    (None, None),
                    (None, -1),
                    (2, None),
                ]
            )
            return self.reduction(t, frame=True).over(
                ibis.window(group_by=group, order_by=total, rows=rows)
            )
        if rng.random() < 0.5:
            return self.reduction(t, frame=True).over(
                ibis.window(group_by=group, order_by=tied, range=(None, 0))
            )
        order = self.of(rng.choice(["int", "int", "date"]), t, 0)
        near = (
            (-1, rng.choice([0, 2]))
            if kind_of(order.type()) == "int"
            else (ibis.interval(days=-1), ibis.interval(days=30))
        )
        return self.reduction(t, frame=True).over(
            ibis.window(group_by=group, order_by=order, range=near)
        )
