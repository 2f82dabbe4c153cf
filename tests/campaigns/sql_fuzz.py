"""Random SQL over random tables, held against DuckDB on the same rows.

``python -m tests.campaigns.sql_fuzz [STATEMENTS=2000] [SEED=0]``

Queries join, group, order, number, nest and unite; between them statements insert, update, delete
and overwrite, and the tables are compared after each. What one of the two refuses is counted, not
compared. Prints each statement whose rows are others, and ends with 1 where there was one.
"""

# ruff: noqa: E501 - a statement is read best on one line

from __future__ import annotations

import collections
import datetime as dt
import decimal
import math
import random
import sys
from typing import Any

import duckdb
import ibis
import polars as pl

from fluss_df.errors import FlussError
from tests.backend.predicates import COLUMNS, Conditions, for_duckdb, rows

_TYPES = {name: kind for name, kind, *_ in COLUMNS}
_WHOLE = ["k", "i1", "i2", "i4", "i8"]
_NUMBERS = [*_WHOLE, "f4", "f8", "n"]
_TEXTS = ["s", "s2", "c"]
_TIMES = ["d", "d2", "m"]
# their minimum, maximum and equality are the same in both engines
_PLAIN = ["b", "f4", "f8", "i1", "i4", "i8", "n", "s", "s2", "c", "d", "m", "z", "w", "y"]
_FUNCTIONS_OF_TEXTS = [
    "UPPER({0})", "LOWER({0})", "{0} || {1}", "SUBSTR({0}, 2)", "SUBSTR({0}, 1, 1)", "LEFT({0}, 1)",
    "RIGHT({0}, 1)", "REPLACE({0}, 'a', 'xy')", "TRIM({0})", "REVERSE({0})", "CONCAT({0}, {1})",
    "CONCAT_WS('-', {0}, {1})", "COALESCE({0}, {1}, 'none')", "NULLIF({0}, {1})",
    "CASE WHEN {0} = {1} THEN 'same' WHEN {0} > {1} THEN {0} END", "LPAD({0}, 3, '*')", "RPAD({0}, 3, '*')",
    "SPLIT_PART({0}, '_', 1)", "SUBSTRING({0} FROM 2 FOR 1)", "LTRIM({0})",
    "CAST(LENGTH({0}) AS STRING)", "REGEXP_REPLACE({0}, '[ab]', 'q')", "SUBSTR({0}, 0, 2)",
    "LEFT({0}, -1)", "RIGHT({0}, -1)", "LEFT({0}, 0)", "RTRIM({0}, 'b')", "TRIM(BOTH 'a' FROM {0})",
    "STRPOS({0}, {1})", "LENGTH({0})", "OCTET_LENGTH({0})", "POSITION('b' IN {0})", "STARTS_WITH({0}, {1})", "ENDS_WITH({0}, {1})",
]  # fmt: skip
_FUNCTIONS_OF_NUMBERS = [
    "CAST({0} AS DOUBLE) + CAST({1} AS DOUBLE)", "CAST({0} AS DOUBLE) * 2 - 1", "{0} / 2.0", "ABS({0})",
    "COALESCE({0}, {1}, 0)", "NULLIF({0}, {1})", "CASE WHEN {0} > {1} THEN 1 WHEN {0} < {1} THEN -1 ELSE 0 END",
    "CAST({0} AS DOUBLE) / NULLIF({1}, 0)", "FLOOR(CAST({0} AS DOUBLE))", "CEIL(CAST({0} AS DOUBLE))",
    "ROUND(CAST({0} AS DOUBLE) / 3, 2)", "CAST({0} AS DECIMAL(18, 3))", "MOD({0}, 3)", "{0} % 2", "-CAST({0} AS DOUBLE)",
    "POWER(CAST({0} AS DOUBLE), 2)", "SQRT(ABS(CAST({0} AS DOUBLE)))", "{0} IN (1, 2)", "{0} / 2", "ROUND({0} + 0.25)", "TRUNC({0})",
    "IF({0} > 0, {0}, {1})", "{0} + 0.5", "{0} * 1.5", "1 - {0}", "CAST({0} AS FLOAT)",
]  # fmt: skip
_FUNCTIONS_OF_TIMES = [
    "EXTRACT(YEAR FROM {0})", "EXTRACT(MONTH FROM {0})", "EXTRACT(DAY FROM {0})", "EXTRACT(DOW FROM {0})", "EXTRACT(QUARTER FROM {0})", "EXTRACT(WEEK FROM {0})",
    "EXTRACT(DOY FROM {0})", "{0} + INTERVAL '1 day'", "{0} - INTERVAL '1 month'", "CAST({0} AS DATE)", "CAST({0} AS TIMESTAMP)", "DATE_TRUNC('month', {0})",
    "COALESCE({0}, DATE '2000-01-01')", "DATE_PART('isodow', {0})", "STRFTIME({0}, '%Y/%m')", "EXTRACT(CENTURY FROM {0})",
    "EXTRACT(HOUR FROM CAST({0} AS TIMESTAMP))", "EXTRACT(DECADE FROM {0})", "YEAR({0})", "MONTH({0})", "{0} + INTERVAL '36 hours'", "CAST({0} AS TIMESTAMP) - INTERVAL '1 second'",
]  # fmt: skip


class Queries:
    """Random queries over the tables ``t`` and ``o``, which have the columns of ``COLUMNS``."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.number = 0

    def one(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def condition(self, depth: int = 1) -> str:
        self.number += 1
        return Conditions(f"{self.rng.random()}", "t", "o").condition(depth)

    def source(self, table: str | None = None) -> str:
        """Return a table, or a derived one, with all columns; it is called t within itself."""
        table = table or self.one("t", "o")
        if self.rng.random() < 0.5:
            return table
        if table == "t":
            where = self.one(
                self.condition(),
                f"k {self.one('<', '>=', '=')} {self.rng.randrange(30)}",
                "k IN (1, 5, 7, 99)",
                "i4 = 1 AND k > 3",
            )
            return f"(SELECT * FROM t WHERE {where})"
        return f"(SELECT * FROM o WHERE k {self.one('<', '>=', '<>')} {self.rng.randrange(30)})"

    def value(self, side: str) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return f"{side}.{rng.choice(list(_TYPES))}"
        names, forms = rng.choice([
            (_TEXTS, _FUNCTIONS_OF_TEXTS), (_NUMBERS, _FUNCTIONS_OF_NUMBERS), (_TIMES, _FUNCTIONS_OF_TIMES)
        ])  # fmt: skip
        return rng.choice(forms).format(*(f"{side}.{rng.choice(names)}" for _ in range(2)))

    def aggregate(self, side: str) -> str:
        rng = self.rng
        plain, whole = f"{side}.{rng.choice(_PLAIN)}", f"{side}.{rng.choice(_WHOLE)}"
        number = f"{side}.{rng.choice(['k', 'i1', 'i2', 'i4', 'i8', 'n'])}"
        found = rng.choice([
            "COUNT(*)", f"COUNT({plain})", f"COUNT(DISTINCT {plain})", f"SUM({number})", f"AVG({whole})", f"MIN({side}.s)",
            f"MAX({side}.d)", f"SUM(CASE WHEN {plain} IS NULL THEN 1 ELSE 0 END)", f"MIN({side}.n)", f"COUNT({self.value(side)})",
            f"SUM({whole} * 2)", f"STDDEV({whole})", f"VARIANCE({whole})", f"MEDIAN({whole})",
            f"SUM(DISTINCT {whole})", "AVG(n)".replace("n", f"{side}.n"), f"COUNT({side}.b AND {side}.b2)", f"COUNT(DISTINCT {self.value(side)})",
            f"STRING_AGG({side}.s, ',' ORDER BY {side}.k)",
            f"QUANTILE_CONT({whole}, 0.5)", f"CORR({whole}, {side}.k)", f"COVAR_SAMP({whole}, {side}.k)",
        ])  # fmt: skip
        if rng.random() < 0.2 and "(" in found and " IS " not in found:
            found += f" FILTER (WHERE {side}.{rng.choice(['b', 'i4 > 0', 's IS NOT NULL', 'b2', 'k > 1000'])})"
        return found

    def window(self, side: str) -> str:
        rng = self.rng
        part = rng.choice(
            ["", f"PARTITION BY {side}.{rng.choice(_PLAIN)} ", f"PARTITION BY {side}.b, {side}.d "]
        )
        nulls = self.one(" NULLS FIRST", " NULLS LAST")
        order = f"ORDER BY {side}.{rng.choice(_PLAIN)}{self.one('', ' DESC', ' ASC')}{nulls}"
        unique = f"{order}, {side}.k"
        column = f"{side}.{rng.choice(_PLAIN)}"
        kind = rng.randrange(8)
        if kind == 0:
            return f"ROW_NUMBER() OVER ({part}{unique})"
        if kind == 1:
            return f"{self.one('RANK', 'DENSE_RANK', 'PERCENT_RANK', 'CUME_DIST')}() OVER ({part}{order})"
        if kind == 2:
            return f"{self.one('LAG', 'LEAD')}({column}{self.one('', ', 1', ', 2')}) OVER ({part}{unique})"
        if kind == 3:
            return f"{self.one('FIRST_VALUE', 'LAST_VALUE')}({column}) OVER ({part}{unique})"
        if kind == 4:
            return f"{self.one('SUM', 'COUNT', 'AVG')}({side}.{rng.choice(_WHOLE)}) OVER ({part.strip()})"
        if kind == 5:
            return f"{self.one('SUM', 'COUNT', 'MIN', 'MAX')}({side}.{rng.choice(_WHOLE)}) OVER ({part}{unique})"
        if kind == 6:
            frame = self.one(
                "UNBOUNDED PRECEDING AND CURRENT ROW",
                "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                "2 PRECEDING AND CURRENT ROW",
            )
            return f"{self.one('SUM', 'COUNT', 'MIN', 'MAX')}({side}.{rng.choice(_WHOLE)}) OVER ({part}{unique} ROWS BETWEEN {frame})"
        # rows that are equal in the order are summed as one
        return f"{self.one('SUM', 'COUNT', 'MIN', 'MAX', 'AVG')}({side}.{rng.choice(_WHOLE)}) OVER ({part}{order})"

    def on(self) -> str:
        rng = self.rng
        key = rng.choice(["k", "i1", "i4", "i8", "s", "d", "b", "n", "m", "z", "c", "y"])
        found = f"x.{key} = y.{key}"
        kind = rng.random()
        if kind < 0.15:
            found += (
                f" AND x.{rng.choice(_WHOLE)} {self.one('<', '>=', '<>')} y.{rng.choice(_WHOLE)}"
            )
        elif kind < 0.25:
            found += f" AND {self.one('x', 'y')}.{self.one('b', 'i4 > 0', 's IS NULL', 'k IN (1, 2, 3)')}"
        elif kind < 0.35:
            other = rng.choice(["i4", "s", "b", "d"])
            found += f" AND x.{other} = y.{other}"
        elif kind < 0.42:
            found = f"x.i4 = y.k{self.one('', ' AND x.b')}"
        elif kind < 0.46:
            found = f"x.k {self.one('<', '>', '<=')} y.k AND y.k < 4"
        elif kind < 0.5:
            found = "x.i2 = y.i8 + 1"
        elif kind < 0.54:
            found = "UPPER(x.s) = UPPER(y.s2)"
        elif kind < 0.58:
            found = "x.i4 IS NOT DISTINCT FROM y.i4"
        return found

    def query(self) -> str:
        rng = self.rng
        kind = rng.randrange(18)
        if kind < 2:
            values = ", ".join(f"{self.value('x')} AS e{i}" for i in range(3))
            return f"SELECT x.k, {values} FROM {self.source()} AS x"
        if kind == 2:
            return f"SELECT k, i4, s FROM t WHERE {self.condition(2)}"
        if kind in (3, 4):
            keys = [f"x.{c}" for c in rng.sample(_PLAIN, rng.randint(1, 2))]
            if rng.random() < 0.25:
                keys = [self.value("x")]
            having = self.one(
                "",
                "",
                f" HAVING {self.aggregate('x')} IS NOT NULL",
                " HAVING COUNT(*) > 2",
                " HAVING SUM(x.i4) > 0",
            )
            named = ", ".join(f"{key} AS g{i}" for i, key in enumerate(keys))
            return f"SELECT {named}, {self.aggregate('x')} AS a1, {self.aggregate('x')} AS a2 FROM {self.source()} AS x GROUP BY {', '.join(keys)}{having}"
        if kind == 5:
            return f"SELECT {self.aggregate('x')} AS a1, {self.aggregate('x')} AS a2, {self.aggregate('x')} AS a3 FROM {self.source()} AS x"
        if kind in (6, 7):
            join = self.one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "INNER JOIN")
            where = self.one(
                "",
                "",
                " WHERE x.i4 > 0",
                " WHERE y.k IS NULL",
                " WHERE x.k IS NULL",
                " WHERE y.b",
                " WHERE x.s = y.s2 OR y.s IS NULL",
                " WHERE NOT (y.i4 = 1)",
            )
            return f"SELECT x.k AS xk, y.k AS yk, x.{rng.choice(_PLAIN)} AS e1, y.{rng.choice(_PLAIN)} AS e2 FROM {self.source('t')} AS x {join} {self.source('o')} AS y ON {self.on()}{where}"
        if kind == 8:
            return f"SELECT x.k, {self.window('x')} AS w FROM {self.source()} AS x"
        if kind == 9:
            columns = ", ".join(rng.sample(_PLAIN, rng.randint(1, 3)))
            word = self.one(
                "UNION",
                "UNION ALL",
                "INTERSECT",
                "EXCEPT",
                "INTERSECT ALL",
                "EXCEPT ALL",
                "UNION DISTINCT",
            )
            return f"SELECT {columns} FROM {self.source('t')} AS x {word} SELECT {columns} FROM {self.source('o')} AS y"
        if kind == 10:
            columns = ", ".join(f"x.{c}" for c in rng.sample(_PLAIN, rng.randint(1, 3)))
            return f"SELECT DISTINCT {columns} FROM {self.source()} AS x"
        if kind == 11:
            order = f"x.{rng.choice(_PLAIN)}{self.one('', ' DESC')}{self.one(' NULLS FIRST', ' NULLS LAST')}, x.k{self.one('', ' DESC')}"
            return f"SELECT x.k, x.i4, x.s FROM {self.source()} AS x ORDER BY {order} LIMIT {rng.choice([0, 1, 5, 100])}{self.one('', ' OFFSET 2', ' OFFSET 50')}"
        if kind == 12:
            inner = f"SELECT x.s AS s, {self.aggregate('x')} AS a, COUNT(*) AS n FROM t AS x GROUP BY x.s"
            return f"WITH q AS ({inner}), r AS (SELECT s, a FROM q WHERE n > 1) SELECT x.k, r.a FROM {self.source('o')} AS x {self.one('JOIN', 'LEFT JOIN')} r ON x.s = r.s"
        if kind == 13:
            column = rng.choice(["i4", "s", "d", "b", "k", "i8"])
            no = self.one("", "NOT ")
            inner = self.one("o.b", f"o.{column} IS NOT NULL", "o.k < 5", "o.k > 1000", "o.i1 > 0")
            return self.one(
                f"SELECT x.k FROM t AS x WHERE x.{column} {no}IN (SELECT o.{column} FROM o WHERE {inner})",
                f"SELECT x.k FROM t AS x WHERE {no}EXISTS (SELECT 1 FROM o WHERE o.{column} = x.{column} AND {inner})",
                f"SELECT x.k, (SELECT COUNT(*) FROM o WHERE o.{column} = x.{column}) AS c FROM t AS x",
                f"SELECT x.k, (SELECT MAX(o.i4) FROM o WHERE {inner}) AS c FROM t AS x",
                f"SELECT x.k FROM t AS x WHERE x.{column} {self.one('=', '>', '<=')} (SELECT {self.one('MIN', 'MAX')}(o.{column}) FROM o WHERE {inner})",
                "SELECT x.k FROM t AS x WHERE x.i4 > (SELECT AVG(o.i4) FROM o WHERE o.s = x.s)",
                f"SELECT x.k FROM t AS x WHERE x.{column} {no}IN (SELECT o.{column} FROM o WHERE o.b = x.b)",
                f"SELECT x.k FROM t AS x WHERE x.{column} IN (SELECT o.{column} FROM o) AND x.k {no}IN (SELECT k FROM o WHERE {inner})",
                f"SELECT x.k FROM t AS x WHERE x.{column} IN (SELECT o.{column} FROM o) OR x.b",
            )
        if kind == 14:
            join = self.one("JOIN", "LEFT JOIN")
            using = rng.choice(["k", "i4", "s"])
            return f"SELECT {using}, x.b AS xb, y.b AS yb FROM {self.source('t')} AS x {join} {self.source('o')} AS y USING ({using})"
        if kind == 15:
            return f"SELECT x.k, y.k AS yk, z.k AS zk FROM t AS x {self.one('JOIN', 'LEFT JOIN')} o AS y ON x.{(a := rng.choice(['i4', 's', 'k']))} = y.{a} {self.one('JOIN', 'LEFT JOIN')} t AS z ON {self.one('y', 'x')}.{(b := rng.choice(['d', 'i1', 'k']))} = z.{b}"
        if kind == 16:
            return f"SELECT g, COUNT(*) AS c, SUM(a) AS a FROM (SELECT x.b AS g, x.i4 AS i, SUM(x.i8) AS a FROM {self.source()} AS x GROUP BY x.b, x.i4) AS q GROUP BY g"
        return f"SELECT x.k, x.i4 FROM {self.source()} AS x QUALIFY ROW_NUMBER() OVER (PARTITION BY x.{rng.choice(_PLAIN)} ORDER BY x.k) = 1"

    def statement(self) -> str:
        rng = self.rng
        value = {
            "i4": self.one("1", "NULL", "i4", "COALESCE(i4, 7)", "k"),
            "s": self.one("'new'", "NULL", "s2", "s || 'x'", "UPPER(s)", "''"),
            "n": self.one("1.5", "n", "-0.25", "NULL", "n + 1"),
            "d": self.one("DATE '2024-05-06'", "d2", "NULL", "'2024-05-07'"),
            "f8": self.one("0.5", "f8 * 2", "NULL"),
            "b": self.one("TRUE", "NOT b", "NULL", "b2", "i4 > 0"),
            "m": self.one("TIMESTAMP '2024-05-06 07:08:09'", "m", "NULL"),
        }
        names = rng.sample(list(value), rng.randint(1, 3))
        kind = rng.randrange(8)
        if kind < 3:
            sets = ", ".join(f"{n} = {value[n]}" for n in names)
            return f"UPDATE t SET {sets} WHERE {self.condition()}"
        if kind == 3:
            return f"DELETE FROM t WHERE ({self.condition()}) AND k % 4 = {rng.randrange(4)}"
        columns = list(_TYPES)
        listed = ", ".join(["k", *columns])
        where = f"k {self.one('<', '>=')} {rng.randrange(30)}"
        if kind == 4:
            shift = rng.randrange(100, 1000)
            chosen = ", ".join([f"k + {shift}", *columns])
            return (
                f"INSERT INTO {self.one('t', 'l')} ({listed}) SELECT {chosen} FROM o WHERE {where}"
            )
        if kind == 5:
            some = ", ".join(["k", *names])
            made = ", ".join(
                [
                    f"{rng.randrange(1000, 10**6)}",
                    *(
                        value[n]
                        if value[n][0] in "'0123456789TDN-"
                        and " "
                        not in value[n].replace("DATE '", "").replace("TIMESTAMP '2024-05-06 ", "")
                        else "NULL"
                        for n in names
                    ),
                ]
            )
            return f"INSERT INTO {self.one('t', 'l')} ({some}) VALUES ({made})"
        if kind == 6:
            return f"INSERT INTO l ({listed}) SELECT {listed} FROM t WHERE {self.condition()}"
        return f"INSERT INTO l ({listed}) SELECT {listed} FROM l WHERE {where}"


def plain(value: Any) -> Any:
    """Return a value as both engines give it."""
    if value is None or isinstance(value, bool | str | bytes):
        return value if not isinstance(value, bool) else ("bool", value)
    if isinstance(value, int | float | decimal.Decimal):
        number = float(value)
        if math.isnan(number):
            return "nan"
        # sums in another order differ in their last digits, also about 0
        return float(f"{number:.8g}") + 0.0 if abs(number) > 1e-9 else 0.0
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    return str(value)


def as_rows(found: list[tuple[Any, ...]]) -> list[str]:
    return sorted(repr(tuple(map(plain, row))) for row in found)


def frame_rows(frame: pl.DataFrame) -> list[str]:
    return as_rows(frame.rows())


def duck_rows(answer: Any) -> list[str]:
    found = pl.from_arrow(answer.to_arrow_table())
    assert isinstance(found, pl.DataFrame)
    return frame_rows(found)


def made(seed: str) -> tuple[Any, Any]:
    """Return two engines with the same tables: t with keys, o and l logs."""
    rng = random.Random(seed)
    con = ibis.fluss.connect(":memory:")
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    keys = rng.choice(["k", "k", "k, c", "c, k"])
    parts = " PARTITIONED BY (c)" if "c" in keys and rng.random() < 0.6 else ""
    columns = ", ".join(f"{name} {kind}" for name, kind, *_ in COLUMNS)
    con.raw_sql(f"CREATE TABLE t (k INT, {columns}, PRIMARY KEY ({keys}) NOT ENFORCED){parts}")
    con.raw_sql(f"CREATE TABLE o (k INT, {columns})")
    con.raw_sql(f"CREATE TABLE l (k INT, {columns})")
    ducks = ", ".join(f"{name} {kind}" for name, _, kind, *_ in COLUMNS)
    for at, table in enumerate("tol"):
        frame = rows(rng.choice([0, 1, 20, 40]), f"{seed}{table}")
        if table == "t":
            frame = frame.with_columns(
                pl.col("c").fill_null("nul").str.replace(".", "-", literal=True)
            )
        # small and many equal values
        frame = frame.with_columns(pl.col("k") + at)
        con.insert(table, frame)
        duck.execute(
            f"CREATE TABLE {table} (k INT, {ducks}{', PRIMARY KEY (k)' if table == 't' else ''})"
        )
        duck.register("frame", frame.to_arrow())
        duck.execute(f"INSERT INTO {table} SELECT * FROM frame")
        duck.unregister("frame")
    return con, duck


def main() -> None:
    statements = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts: collections.Counter[str] = collections.Counter()
    refused: dict[str, str] = {}
    number = 0
    while counts["asked"] < statements:
        con, duck = made(f"{seed}-{number}")
        source = Queries(f"{seed}-{number}")
        for at in range(60):
            counts["asked"] += 1
            changes = at % 6 == 5
            text = source.statement() if changes else source.query()
            name = f"{seed}-{number} {at}"
            try:
                answer = duck.execute(for_duckdb(text))
                expected = None if changes else duck_rows(answer)
            except duckdb.Error as error:
                counts["refused by DuckDB"] += 1
                if "-v" in sys.argv:
                    print("DUCK", str(error)[:150].replace("\n", " "), "\n    ", text)
                if not changes:
                    continue
                expected = None
                failed = True
            else:
                failed = False
            try:
                frame = con.raw_sql(text)
            except FlussError as error:
                counts["refused by Fluss"] += 1
                reason = str(error).split(", in:")[0][:70]
                refused.setdefault(reason, text)
                counts["R " + reason] += 1
                if changes and not failed:
                    # the two are to go on with the same rows
                    number += 1
                    break
                continue
            except BaseException as error:
                counts["wrong"] += 1
                print(f"RAISED {name}: {type(error).__name__} {error}\n    {text}", flush=True)
                if isinstance(error, KeyboardInterrupt):
                    raise
                continue
            if changes and failed:
                break
            if changes:
                wrong = False
                for table in "tl":
                    want = duck_rows(duck.execute(f"SELECT * FROM {table}"))
                    got = frame_rows(con.raw_sql(f"SELECT * FROM {table}"))
                    wrong = wrong or report(name, text, want, got, counts)
                if wrong:
                    break
            elif expected is not None:
                report(name, text, expected, frame_rows(frame), counts)
        number += 1
        con.disconnect()
        duck.close()
    for reason, text in refused.items():
        print(f"refused {counts.pop('R ' + reason)}: {reason}\n    {text[:300]}")
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"]))


def report(
    name: str, text: str, want: list[str], got: list[str], counts: collections.Counter[str]
) -> bool:
    if want == got:
        return False
    counts["wrong"] += 1
    missing = collections.Counter(want) - collections.Counter(got)
    extra = collections.Counter(got) - collections.Counter(want)
    print(
        f"WRONG {name}: {text}\n  expected {len(want)}: {list(missing)[:3]}\n"
        f"  found {len(got)}: {list(extra)[:3]}",
        flush=True,
    )
    return True


if __name__ == "__main__":
    main()
