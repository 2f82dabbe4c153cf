"""Random expressions of Ibis over random tables, held against Ibis's DuckDB backend.

``python -m tests.campaigns.ibis_fuzz [EXPRESSIONS=2000] [SEED=0] [-v]``

Expressions filter, compute, group, join, number, order, nest and unite columns of every type. What
one of the two backends refuses is counted, not compared. Prints each expression whose rows or types
are others, cut down to the smallest part that differs, and ends with 1 where there was one.
"""

from __future__ import annotations

import collections
import datetime as dt
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ibis
import ibis.common.exceptions as com
import ibis.expr.operations as ops
import polars as pl

from fluss_df.errors import FlussError
from tests.backend.predicates import COLUMNS
from tests.campaigns.ibis_values import Values
from tests.campaigns.sql_fuzz import plain

_FAR = [dt.date(1, 1, 1), dt.date(1582, 10, 15), dt.date(1900, 2, 28), dt.date(9999, 12, 31)]
_MORE: list[tuple[str, str, str, Any, list[Any]]] = [
    ("d3", "DATE", "DATE", pl.Date, _FAR),
    (
        "m3",
        "TIMESTAMP(3)",
        "TIMESTAMP_MS",
        pl.Datetime("ms"),
        [
            dt.datetime(1, 1, 1),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999000),
            dt.datetime(2024, 2, 29, 1, 2, 3, 4000),
            dt.datetime(9999, 12, 31, 23, 59, 59),
        ],
    ),
    (
        "n5",
        "DECIMAL(20, 5)",
        "DECIMAL(20, 5)",
        pl.Decimal(20, 5),
        [
            pl.Series([v]).cast(pl.Decimal(20, 5)).item()
            for v in ("-1.00001", "0", "2.5", "99999999999.99999", "0.005")
        ],
    ),
    (
        "e",
        "STRING",
        "VARCHAR",
        pl.String,
        ["", " ", " a ", "aXbXc", "ß", "ǆ", "😀b", "%", "2024-02-29", "-7", "a\\b", "aaa"],
    ),
]
ALL = [*COLUMNS, *_MORE]

_HANDED_ON = re.compile(
    r"\s+((\S+):\s+r\d+\.\2|r?c\d+_\w+:\s+r\d+\.\w+|\w+ +!?[a-z]\w+(\(.*\))?|(asc|desc) r\d+\.\w+)$"
)
# how Ibis says that it has no such expression
_NOT_OF_IBIS = (
    com.IbisError,
    ibis.common.annotations.ValidationError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
)


def rows(count: int, seed: str) -> pl.DataFrame:
    """Return rows with a key, of which a part of the values are null, and some rows all are."""
    chance = random.Random(seed)
    nulls = chance.choice([0.0, 0.2, 0.5, 1.0])
    made = {"k": pl.Series(range(count), dtype=pl.Int32)}
    for name, _, _, kind, values in ALL:
        column = [
            None if at % 9 == 8 or chance.random() < nulls else chance.choice(values)
            for at in range(count)
        ]
        made[name] = pl.Series(column, dtype=kind)
    return pl.DataFrame(made)


def tables(seed: str) -> tuple[Any, Any]:
    """Return two backends with the same tables: t with a key, or without one, and o."""
    rng = random.Random(seed)
    con, duck = ibis.fluss.connect(":memory:"), ibis.duckdb.connect()
    duck.raw_sql("SET TimeZone = 'UTC'")
    for table in "to":
        columns = ", ".join(f"{name} {kind}" for name, kind, *_ in ALL)
        key = ", PRIMARY KEY (k) NOT ENFORCED" if table == "t" and rng.random() < 0.5 else ""
        con.raw_sql(f"CREATE TABLE {table} (k INT, {columns}{key}) WITH ('bucket.num' = '2')")
        frame = rows(rng.choice([0, 1, 7, 20, 20, 40]), f"{seed}{table}")
        con.insert(table, frame)
        ducks = ", ".join(f"{name} {kind}" for name, _, kind, *_ in ALL)
        duck.con.execute(f"CREATE TABLE {table} (k INTEGER, {ducks})")
        duck.con.register("frame", frame.to_arrow())
        duck.con.execute(f"INSERT INTO {table} SELECT * FROM frame")
        duck.con.unregister("frame")
    return con, duck


class Expressions:
    """Random steps from table to table; all columns may be used, whatever they come from."""

    def __init__(self, seed: str, t: Any, o: Any) -> None:
        self.rng = random.Random(seed)
        self.t, self.o = t, o
        self.values = Values(self.rng)
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return f"c{self.number}"

    def all_of(self, t: Any) -> list[Any]:
        """Return keys that leave the order of no two different rows open."""
        names = [n for n, kind in t.schema().items() if not kind.is_nested()]
        self.rng.shuffle(names)
        return [
            self.rng.choice([ibis.asc, ibis.desc])(t[n], nulls_first=self.rng.random() < 0.5)
            for n in names
        ]

    def few(self, t: Any, most: int) -> Any:
        names = list(t.columns)
        return t.select(sorted(self.rng.sample(names, min(len(names), self.rng.randint(1, most)))))

    def side(self) -> Any:
        """Return another table, plain or of a few steps, with columns of other names."""
        found = self.rng.choice([self.o, self.o, self.t]).view()
        if self.rng.random() < 0.4:
            found = found.filter(self.values.of("boolean", found, 1))
        if self.rng.random() < 0.2:
            found = self.grouped(found)
        return found.rename({f"r{self.name()}_{n}"[:40]: n for n in found.columns})

    def grouped(self, t: Any) -> Any:
        v, rng = self.values, self.rng
        keys = {self.name(): v.any(t, rng.choice([0, 0, 1])) for _ in range(rng.randint(1, 2))}
        found = t.group_by(**keys).agg(**{self.name(): v.reduction(t) for _ in range(2)})
        return found

    def joined(self, t: Any) -> Any:
        rng, other = self.rng, self.side()
        how = rng.choice(["inner", "left", "right", "outer", "semi", "anti", "inner", "left"])
        on = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            kind = rng.choice(["int", "string", "date", "boolean", "timestamp", "decimal"])
            mine, theirs = self.values.columns(t, kind), self.values.columns(other, kind)
            if not mine or not theirs:
                kind = "int"
                mine, theirs = self.values.columns(t, kind), self.values.columns(other, kind)
            if mine and theirs:
                left = self.values.of(kind, t, 1) if rng.random() < 0.15 else t[rng.choice(mine)]
                on.append(left == other[rng.choice(theirs)])
        if rng.random() < 0.1:
            on.append(self.values.of("boolean", rng.choice([t, other]), 0))
        return t.join(other, on or [ibis.literal(rng.random() < 0.5)], how=how)

    def subquery(self, t: Any) -> Any:
        rng, other = self.rng, self.side()
        kind = rng.choice(["int", "string", "date", "decimal"])
        mine, theirs = self.values.columns(t, kind), self.values.columns(other, kind)
        if not mine or not theirs:
            return t
        one, two = t[rng.choice(mine)], other[rng.choice(theirs)]
        forms: list[Callable[[], Any]] = [
            lambda: one.isin(two),
            lambda: one.notin(two),
            lambda: (one == two).any(),
            lambda: ~(one == two).any(),
            lambda: one > two.max(),
            lambda: one <= two.min(),
            lambda: one.isin(two) | self.values.of("boolean", t, 1),
            lambda: other.filter(one == two).count() > 1,
            lambda: ((one == two) & self.values.of("boolean", other, 0)).any(),
        ]
        condition = rng.choice(forms)()
        return t.filter(condition) if rng.random() < 0.6 else t.mutate(**{self.name(): condition})

    def united(self, t: Any) -> Any:
        rng = self.rng
        one = self.few(t, 3)
        other = one.filter(self.values.of("boolean", one, 1)) if rng.random() < 0.6 else one
        word = rng.choice(["union", "intersect", "difference"])
        one = one.filter(self.values.of("boolean", one, 1))
        return getattr(one, word)(other, distinct=rng.random() < 0.5)

    def step(self, t: Any) -> Any:
        rng, v = self.rng, self.values
        kind = rng.randrange(22)
        if kind < 4:
            return t.filter(v.of("boolean", t, rng.choice([1, 2, 3])))
        if kind < 10:
            return t.mutate(**{self.name(): v.any(t, rng.choice([1, 2, 2, 3]))})
        if kind == 10:
            return self.grouped(t)
        if kind == 11:
            return t.aggregate(**{self.name(): v.reduction(t) for _ in range(3)})
        if kind in (12, 13):
            return self.joined(t)
        if kind in (14, 15):
            return t.mutate(**{self.name(): v.windowed(t, self.all_of(t))})
        if kind == 16:
            return t.order_by(self.all_of(t)).limit(
                rng.choice([0, 1, 5, 30]), offset=rng.choice([0, 0, 2, 50])
            )
        if kind == 17:
            return self.few(t, 3).distinct()
        if kind == 18:
            return self.united(t)
        if kind == 19:
            return self.subquery(t)
        if kind == 20:
            forms: list[Callable[[], Any]] = [
                lambda: t.drop_null(rng.sample(list(t.columns), 1)),
                lambda: self.few(t, 3).drop_null(how=rng.choice(["any", "all"])),
                lambda: t.fill_null(dict.fromkeys(v.columns(t, "int")[:2], 1)),
                lambda: self.few(t, 4).select(**{self.name(): ibis.literal(1)}),
                lambda: t.count().as_table(),
                lambda: self.few(t, 1).value_counts(),
                lambda: t.select(v.columns(t, "int")[:3]).pivot_longer("c"),
                lambda: t.drop(*rng.sample(list(t.columns), 1)) if len(t.columns) > 1 else t,
            ]
            return rng.choice(forms)()
        name = rng.choice(list(t.columns))
        value = v.any(t, 1)
        # a column in the place of another one
        return t.mutate(**{name: value})

    def steps(self) -> list[Any]:
        """Return an expression, behind all that it is made of."""
        found = [self.rng.choice([self.t, self.t, self.o])]
        for _ in range(self.rng.randint(1, 4)):
            found.append(self.step(found[-1]))
        return found


def answer(con: Any, expression: Any) -> tuple[list[str], list[str]]:
    """Return the sorted rows of an expression, and their types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = con.to_pyarrow(expression)
    columns = [column.to_pylist() for column in found.columns]
    # Arrow names the values of lists as it likes
    kinds = [str(kind).replace("list<l:", "list<item:") for kind in found.schema.types]
    return sorted(repr(tuple(map(value, row))) for row in zip(*columns, strict=True)), kinds


def value(found: Any) -> Any:
    if isinstance(found, list):
        return [value(v) for v in found]
    if isinstance(found, dict):
        return {name: value(v) for name, v in found.items()}
    return plain(found)


Outcome = tuple[str, Any]


def outcome(con: Any, expression: Any) -> Outcome:
    """Return rows, or why there are none."""
    try:
        return "rows", answer(con, expression)
    except (FlussError, com.IbisError, NotImplementedError) as error:
        return "refused", f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {error}"


def differs(con: Any, duck: Any, expression: Any) -> tuple[Outcome, Outcome] | None:
    want = outcome(duck, expression)
    if want[0] != "rows":
        return None
    got = outcome(con, expression)
    return (want, got) if got[0] != "refused" and got != want else None


def parts(expression: Any) -> Iterator[Any]:
    """Return tables with one value of an expression each, the smallest values first."""
    node = expression.op()
    parent = getattr(node, "parent", None)
    if parent is None:
        return
    table = parent.to_expr()
    values = [
        n
        for n in node.find(
            ops.Value, filter=lambda n: n is node or isinstance(n, ops.Value | ops.SortKey)
        )
        if not isinstance(n, ops.Field | ops.Literal | ops.SortKey | ops.Reduction | ops.Analytic)
    ]
    for found in reversed(values):
        if list(found.relations) == [parent]:
            shown = table[
                list(dict.fromkeys(f.name for f in found.find(ops.Field, filter=ops.Value)))
            ]
            yield shown, table.mutate(__x=found.to_expr())[[*shown.columns, "__x"]]


def report(name: str, con: Any, duck: Any, steps: list[Any]) -> None:
    """Print the smallest part of an expression that differs."""
    at = next((n for n, part in enumerate(steps) if differs(con, duck, part)), len(steps) - 1)
    smallest = steps[at]
    for _, part in parts(smallest):
        if differs(con, duck, part):
            smallest = part
            break
    found = differs(con, duck, smallest)
    assert found is not None
    (_, (want, kinds)), got = found
    print(f"WRONG {name}, step {at}:\n{shortened(smallest)}")
    if got[0] != "rows":
        print(f"  {got[0]} {str(got[1])[:600]}", flush=True)
        return
    rows_found, kinds_found = got[1]
    missing = collections.Counter(want) - collections.Counter(rows_found)
    extra = collections.Counter(rows_found) - collections.Counter(want)
    print(
        f"  expected {len(want)}: {sorted(missing)[:3]}\n"
        f"  found {len(rows_found)}: {sorted(extra)[:3]}"
    )
    if kinds != kinds_found:
        print(f"  types {kinds}\n  found {kinds_found}", flush=True)


def shortened(expression: Any) -> str:
    """Return the text of an expression without the columns that it only hands on."""
    lines = repr(expression).splitlines()
    return "\n".join(line for line in lines if line and not _HANDED_ON.match(line))


def main() -> None:
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    expressions, seed = (*numbers, *(2_000, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    refused: dict[str, str] = {}
    number = 0
    while counts["asked"] < expressions:
        con, duck = tables(f"{seed}-{number}")
        t, o = con.table("t"), con.table("o")
        t, o = (ibis.table(x.schema(), name=n) for x, n in ((t, "t"), (o, "o")))
        for at in range(50):
            counts["asked"] += 1
            name = f"{seed}-{number} {at}"
            try:
                steps = Expressions(name, t, o).steps()
            except _NOT_OF_IBIS as error:
                counts["not of Ibis"] += 1
                if "-v" in sys.argv:
                    print("IBIS", str(error)[:300].replace("\n", " "))
                continue
            want = outcome(duck, steps[-1])
            if want[0] != "rows":
                counts["refused by DuckDB"] += 1
                if "-v" in sys.argv:
                    print("DUCK", want[1][:200].replace("\n", " "))
                continue
            got = outcome(con, steps[-1])
            if got[0] == "refused":
                counts["refused by Fluss"] += 1
                reason = got[1][:100]
                counts["R " + reason] += 1
                refused.setdefault(reason, name)
            elif got != want:
                counts["wrong"] += 1
                report(name, con, duck, steps)
        number += 1
        con.disconnect()
        duck.disconnect()
    for reason, name in refused.items():
        print(f"refused {counts.pop('R ' + reason)}: {reason} ({name})")
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
