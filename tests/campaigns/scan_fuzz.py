"""Random queries over random tables, held against the same queries over frames in memory.

``python -m tests.campaigns.scan_fuzz [QUERIES=2000] [SEED=0]``

Tables are logs or have keys, with and without partitions, of all types of Fluss, and columns that
were added later. Queries are those of Polars: filters with literals of other types, casts, texts,
nested columns and windows, in front of and behind slices, joins, groups and sorts. The rows of each
table are those that a plain model of it has; a query over it gives on both engines what it gives
over a frame in memory. Prints each query that does not, and ends with 1 where there was one.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from typing import Any

import polars as pl

import fluss_df as fluss
from tests.campaigns.fuzz_outcomes import Step, difference, judge
from tests.campaigns.fuzz_tables import (
    NAN,
    PARTITIONS,
    SIMPLE,
    TYPES,
    D,
    Made,
    comparable,
    polars_types,
)


class Queries:
    """Random steps on a frame; each is the same for whatever frame it is applied to."""

    def __init__(self, rng: random.Random, table: Made, rows: pl.DataFrame) -> None:
        self.rng = rng
        self.table = table
        self.rows = rows
        self.literal_first = False

    # ---- literals

    def lit(self, name: str) -> Any:
        rng = self.rng
        kind = rng.random()
        values = PARTITIONS.get(name, []) if name in self.table.partitions else []
        choices = [*TYPES[name][1], *values]
        if kind < 0.5:
            return rng.choice(choices)
        if kind < 0.58:
            return None
        if kind < 0.7:
            return pl.lit(rng.choice(choices), polars_types([name])[name])
        number = [
            0,
            1,
            -1,
            128,
            -129,
            2**31,
            2**63,
            -(2**63) - 1,
            0.1,
            0.5,
            1.5,
            NAN,
            D("0.1"),
            D("1.500"),
            True,
        ]
        if name in ("i8", "i16", "i32", "i64", "f32", "f64", "dec", "wide"):
            if kind > 0.9:
                other = rng.choice([pl.Int8, pl.Int16, pl.UInt64, pl.Float32, pl.Float64, pl.Int64])
                return pl.lit(1, other)
            return rng.choice(number)
        times = [
            dt.date(2024, 2, 29),
            dt.datetime(2024, 2, 29),
            dt.datetime(2024, 2, 29, 1, 2, 3, 4001),
            dt.datetime(1970, 1, 1),
            dt.date(9999, 12, 31),
            dt.datetime(1, 1, 1),
            pl.lit("2024-02-29"),
            pl.lit("2024-02-29").str.to_date(),
        ]
        if name in ("day", "t0", "t3", "t6", "t9"):
            if kind > 0.9:
                unit: Any = rng.choice(["ms", "us", "ns"])
                return pl.lit(dt.datetime(2024, 2, 29, 1, 2, 3, 4000), pl.Datetime(unit))
            return rng.choice(times)
        if name == "tz":
            zone = dt.timezone(dt.timedelta(hours=2))
            return rng.choice([dt.datetime(2024, 2, 29, 3, 2, 3, 4, tzinfo=zone), *choices])
        if name in ("time", "tm3"):
            return rng.choice([dt.time(12), dt.time(23, 59, 59, 999001), dt.time(0, 0, 0, 1)])
        return rng.choice(choices)

    def simple(self) -> str:
        return self.rng.choice([n for n in self.table.names if n in SIMPLE] or self.table.names[:1])

    def key(self) -> str:
        names = [*self.table.partitions, *self.table.keys, *self.table.bucket_keys]
        return self.rng.choice(names) if names and self.rng.random() < 0.5 else self.simple()

    # ---- conditions

    def leaf(self) -> Any:
        rng = self.rng
        name = self.key()
        column = pl.col(name)
        kind = rng.randrange(22)
        operators = [
            "__eq__",
            "__ne__",
            "__lt__",
            "__le__",
            "__gt__",
            "__ge__",
            "eq_missing",
            "ne_missing",
        ]
        if kind < 6:
            return getattr(column, rng.choice(operators))(self.lit(name))
        if kind == 6:
            # in memory Polars 2.1 compares a literal in front of a column, the first chunk of which
            # has one row, with this row alone: pl.select(pl.lit("x") == two_chunks) is one row
            self.literal_first = True
            value: Any = self.lit(name)
            value = value if isinstance(value, pl.Expr) else pl.lit(value)
            return getattr(value, rng.choice(operators))(column)
        if kind == 7:
            return column.is_null() if rng.random() < 0.5 else column.is_not_null()
        if kind in (8, 9):
            values = [rng.choice([*TYPES[name][1], None]) for _ in range(rng.randrange(4))]
            nulls = rng.random() < 0.5
            if rng.random() < 0.3:
                series = pl.Series(values, dtype=polars_types([name])[name])
                return column.is_in(series.implode(), nulls_equal=nulls)
            if name in ("i8", "i16", "i32", "i64", "f64") and rng.random() < 0.3:
                values = rng.choice([[0, 300], [1.5, 0.0], [1, None], [0.5, None]])
            return column.is_in(values, nulls_equal=nulls)
        if kind in (10, 11):
            closed: Any = rng.choice(["both", "left", "right", "none"])
            return column.is_between(self.lit(name), self.lit(name), closed=closed)
        if kind == 12 and name not in ("bin", "fix", "row", "lst"):
            other: Any = rng.choice(
                [
                    pl.Int8,
                    pl.Int64,
                    pl.Float32,
                    pl.Float64,
                    pl.String,
                    pl.Boolean,
                    pl.Date,
                    pl.Datetime("ms"),
                    pl.UInt8,
                ]
            )
            cast = column.cast(other, strict=False)
            if rng.random() < 0.3:
                return cast.is_null()
            value = {pl.String: "1", pl.Boolean: True, pl.Date: dt.date(2024, 2, 29)}.get(other, 1)
            if isinstance(other, pl.Datetime):
                value = dt.datetime(1970, 1, 1)
            return getattr(cast, rng.choice(operators))(value)
        if kind == 13:
            alike = [n for n in self.table.names if comparable(n, name)]
            return getattr(column, rng.choice(operators))(pl.col(rng.choice(alike or [name])))
        if kind == 14 and "s" in self.table.names:
            text = rng.choice([*TYPES["s"][1], "a.", ".", "^a", "b$", "(?i)A", "\\\\"])
            s = pl.col("s").str
            return rng.choice(
                [
                    s.starts_with(text),
                    s.ends_with(text),
                    s.contains(text, literal=True),
                    s.contains(text, strict=False),
                    s.to_lowercase() == text,
                    s.len_bytes() > 1,
                    s.strip_chars() == text,
                    s.head(1) == text,
                    pl.col("s") + "b" == text,
                    pl.lit("ab%").str.contains(pl.col("s"), literal=True),
                    pl.lit("ab%").str.starts_with(pl.col("s")),
                ]
            )
        if kind == 15:
            if "lst" in self.table.names and rng.random() < 0.5:
                lst = pl.col("lst")
                return rng.choice(
                    [
                        lst.list.len() > 1,
                        lst.list.contains(1),
                        lst.is_null(),
                        lst.list.get(0, null_on_oob=True) == 1,
                        lst == [1],
                    ]
                )
            if "row" in self.table.names:
                row = pl.col("row")
                return rng.choice(
                    [
                        row.struct.field("x") == 1,
                        row.struct.field("y").is_null(),
                        row.is_null(),
                        row.struct.field("y").str.starts_with("a"),
                    ]
                )
            return column.is_null()
        if kind == 16:
            temporal = [n for n in ("day", "t0", "t3", "t6", "t9", "tz") if n in self.table.names]
            if temporal:
                t = pl.col(rng.choice(temporal))
                return rng.choice(
                    [
                        t.dt.year() == 2024,
                        t.dt.month() > 1,
                        t.dt.truncate("1mo") == dt.date(2024, 2, 1),
                        t.dt.weekday() == 4,
                        t.dt.date() == dt.date(2024, 2, 29),
                    ]
                )
            return column.is_not_null()
        if kind == 17:
            numeric = [
                n for n in ("i8", "i16", "i32", "i64", "f32", "f64") if n in self.table.names
            ]
            if numeric:
                n = pl.col(rng.choice(numeric))
                return rng.choice(
                    [
                        n + 1 > 1,
                        n * 2 == 2,
                        -n < 0,
                        n % 2 == 0,
                        n.abs() == 1,
                        n.clip(0, 1) == n,
                        n.is_between(0, 1) == pl.lit(True),
                        n.fill_null(0) == 0,
                    ]
                )
            return column.is_null()
        if kind == 18:
            return pl.lit(rng.choice([True, False, None]), pl.Boolean)
        if kind == 19:
            floats = [n for n in ("f32", "f64") if n in self.table.names]
            if floats:
                f = pl.col(rng.choice(floats))
                return rng.choice([f.is_nan(), f.is_not_nan(), f.is_finite(), f.is_infinite()])
            return column.is_not_null()
        if kind == 20:
            return column.fill_null(self.rng.choice(TYPES[name][1])) == self.rng.choice(
                TYPES[name][1]
            )
        if "b" in self.table.names:
            return pl.col("b")
        return column.is_not_null()

    def condition(self, depth: int = 2) -> Any:
        rng = self.rng
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            return self.leaf()
        one = self.condition(depth - 1)
        if kind < 0.5:
            return ~one
        other = self.condition(depth - 1)
        if kind < 0.68:
            return one & other
        if kind < 0.84:
            return one | other
        if kind < 0.88:
            return one ^ other
        if kind < 0.91:
            return pl.when(one).then(other).otherwise(self.leaf())
        if kind < 0.94:
            return pl.any_horizontal(one, other)
        if kind < 0.97:
            return one == other
        return one.fill_null(True) & other

    # ---- steps

    def step(self, ordered: bool) -> tuple[str, Step]:
        rng = self.rng
        kind = rng.randrange(15 if not ordered else 21)
        if kind < 6:
            condition = self.condition()
            return f"filter({condition})", lambda f: f.filter(condition)
        if kind == 6:
            one, other = self.condition(1), self.condition(1)
            return f"filter({one}, {other})", lambda f: f.filter(one, other)
        if kind == 7:
            name = self.simple()
            condition = self.leaf()
            # a column by the name of another one
            return (
                f"with_columns({name}={name} where {condition})",
                lambda f: f.with_columns(pl.when(condition).then(pl.col(name)).alias(name)),
            )
        if kind == 8:
            one, other = self.simple(), self.simple()
            if TYPES[one][0] != TYPES[other][0] or one == other:
                return "nothing", lambda f: f
            return f"swap {one} {other}", lambda f: f.rename({one: other, other: one})
        if kind == 9:
            return "unique", lambda f: f.unique(maintain_order=ordered)
        if kind == 10:
            name = self.simple()
            return f"drop_nulls({name})", lambda f: f.drop_nulls(name)
        if kind == 11:
            on = self.key()
            how: Any = rng.choice(["semi", "anti"])
            condition = self.condition(1)
            side = self.rows.lazy().filter(condition).select(on).unique()
            own = rng.random() < 0.5
            return (
                f"join({how}, {on}, {condition}, own={own})",
                lambda f: f.join(
                    (self._own(f).filter(condition).select(on).unique() if own else side),
                    on=on,
                    how=how,
                    nulls_equal=False,
                    maintain_order="left",
                ),
            )
        if kind == 12:
            name = self.simple()
            window = rng.choice(
                [
                    pl.len().over(name) > 2,
                    pl.col(name).is_duplicated(),
                    pl.col(name).n_unique().over(self.key()) > 1,
                ]
            )
            return f"filter({window})", lambda f: f.filter(window)
        if kind == 13:
            condition = self.condition(1)
            return (
                f"concat filter {condition}",
                lambda f: pl.concat([f.filter(condition), f.filter(~condition)]),
            )
        if kind == 14:
            names = self.table.names
            return "select", lambda f: f.select(names)
        n = rng.choice([0, 1, 2, 5, 30, 100])
        if kind == 15:
            return f"head({n})", lambda f: f.head(n)
        if kind == 16:
            return f"tail({n})", lambda f: f.tail(n)
        if kind == 17:
            at = rng.choice([0, 1, 5, -3, -50])
            return f"slice({at}, {n})", lambda f: f.slice(at, n)
        if kind == 18:
            return (
                f"with_row_index filter {n}",
                lambda f: f.with_row_index("_nr").filter(pl.col("_nr") < n).drop("_nr"),
            )
        if kind == 19:
            name = self.simple()
            return f"first of {name}", lambda f: f.filter(pl.col(name).is_first_distinct())
        return "reverse", lambda f: f.reverse()

    def _own(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame

    def end(self) -> tuple[str, Step]:
        rng = self.rng
        kind = rng.randrange(8)
        name, key = self.simple(), self.key()
        if kind == 0:
            return "select(len)", lambda f: f.select(pl.len())
        if kind == 1:
            return (
                f"group_by({key})",
                lambda f: f.group_by(key).agg(
                    pl.len(),
                    pl.col(name).min().name.suffix("_min"),
                    pl.col(name).null_count().name.suffix("_n"),
                ),
            )
        if kind == 2:
            return f"select(max {name})", lambda f: f.select(
                pl.col(name).max(), n=pl.col(key).n_unique()
            )
        if kind == 3:
            names = rng.sample(self.table.names, rng.randint(1, len(self.table.names)))
            return f"select({names})", lambda f: f.select(names)
        if kind == 4:
            condition = self.condition(1)
            return f"select(filter {condition})", lambda f: f.select(
                pl.col(name).filter(condition).count()
            )
        if kind == 5:
            condition = self.condition(1)
            return f"select(c={condition})", lambda f: f.select(name, c=condition)
        return "", lambda f: f

    def query(self) -> tuple[str, Step]:
        ordered = not self.table.keys
        steps = []
        for _ in range(self.rng.randint(1, 4)):
            steps.append(self.step(ordered))
            # what streams is joined in no order
            ordered = ordered and not steps[-1][0].startswith("join")
        steps.append(self.end())
        text = "\n    ".join(f".{text}" for text, _ in steps if text)

        def apply(frame: pl.LazyFrame) -> pl.LazyFrame:
            for _, step in steps:
                frame = step(frame)
            return frame

        return text, apply


def main() -> None:
    queries = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    bad = asked = refused = 0
    with fluss.connect(":memory:") as connection:
        connection.get_admin().create_database("fuzz")
        number = 0
        while asked < queries:
            rng = random.Random(f"{seed}-{number}")
            table = Made(rng, connection, f"t{number}")
            number += 1
            rows = table.scan.collect()
            wrong = difference(("rows", table.model()), ("rows", rows))
            if wrong:
                bad += 1
                print(f"ROWS of {seed}-{number - 1}: {table.description}\n{wrong}", flush=True)
                continue
            for at in range(25):
                asked += 1
                source = Queries(rng, table, rows)
                text, query = source.query()
                wrongs, failed = judge(query, table.scan, rows, literal_first=source.literal_first)
                refused += failed
                for where, wrong in wrongs:
                    bad += 1
                    print(f"BAD {seed}-{number - 1} query {at}, {where}: {table.description}")
                    print(f"    {text}\n{wrong}", flush=True)
            connection.get_admin().drop_table(table.path)
    print(f"{asked} queries, {refused} of them refused by Polars, {bad} wrong, seed {seed}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
