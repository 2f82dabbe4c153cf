"""Random conditions of SQL over nullable columns of every type, for two dialects at once."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from decimal import Decimal
from typing import Any

import polars as pl

# column, type in Fluss, type in DuckDB, type in Polars, values
COLUMNS: list[tuple[str, str, str, Any, list[Any]]] = [
    ("b", "BOOLEAN", "BOOLEAN", pl.Boolean, [True, False]),
    ("b2", "BOOLEAN", "BOOLEAN", pl.Boolean, [True, False]),
    ("i1", "TINYINT", "TINYINT", pl.Int8, [-127, -1, 0, 1, 2, 127]),
    ("i2", "SMALLINT", "SMALLINT", pl.Int16, [-1, 0, 1, 2, 300]),
    ("i4", "INT", "INTEGER", pl.Int32, [-1, 0, 1, 2, 3, 2**31 - 1]),
    ("i8", "BIGINT", "BIGINT", pl.Int64, [-1, 0, 1, 2, 3, 2**40]),
    ("f4", "FLOAT", "FLOAT", pl.Float32, [-1.5, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf]),
    ("f8", "DOUBLE", "DOUBLE", pl.Float64, [-1.5, -0.0, 0.5, 1.0, 2.0, math.nan, -math.inf]),
    ("n", "DECIMAL(10, 2)", "DECIMAL(10, 2)", pl.Decimal(10, 2),
     [Decimal(v) for v in ("-1.50", "0.00", "0.50", "1.00", "2.00", "3.25")]),
    ("s", "STRING", "VARCHAR", pl.String,
     ["", "a", "A", "ab", "a_b", "a%b", "é", "a\nb", "(a", "1"]),
    ("s2", "STRING", "VARCHAR", pl.String, ["", "a", "b", "ab", "a_b", "axb", "É"]),
    ("c", "CHAR(3)", "VARCHAR", pl.String, ["abc", "a_b", "ABC", "x.y"]),
    ("d", "DATE", "DATE", pl.Date,
     [dt.date(1969, 12, 31), dt.date(2024, 1, 1), dt.date(2024, 2, 29)]),
    ("d2", "DATE", "DATE", pl.Date, [dt.date(2024, 1, 1), dt.date(2024, 2, 29)]),
    ("w", "TIME", "TIME", pl.Time, [dt.time(0), dt.time(2, 3, 4), dt.time(23, 59, 59)]),
    ("m", "TIMESTAMP(6)", "TIMESTAMP", pl.Datetime("us"),
     [dt.datetime(1969, 12, 31), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 12, 0, 0, 5)]),
    ("z", "TIMESTAMP_LTZ(6)", "TIMESTAMPTZ", pl.Datetime("us", "UTC"),
     [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)]),
    ("y", "BYTES", "BLOB", pl.Binary, [b"", b"a", b"ab", b"\xff"]),
    ("y2", "BINARY(2)", "BLOB", pl.Binary, [b"ab", b"\x00\xff"]),
]  # fmt: skip
NUMBERS = ["i1", "i2", "i4", "i8", "f4", "f8", "n"]
# columns that are compared with one another
GROUPS = [
    ["b", "b2"], NUMBERS, ["s", "s2", "c"], ["d", "d2"], ["w"], ["m"], ["z"], ["y", "y2"],
]  # fmt: skip
_VALUES = {name: values for name, *_, values in COLUMNS}


def rows(count: int, seed: str) -> pl.DataFrame:
    """Return rows with a key, of which a third of the values are null, and a few rows all are."""
    chance = random.Random(seed)
    made: dict[str, pl.Series] = {"k": pl.Series(range(count), dtype=pl.Int32)}
    for name, _, _, kind, values in COLUMNS:
        column = [
            None if at % 9 == 8 or chance.random() < 0.33 else chance.choice(values)
            for at in range(count)
        ]
        made[name] = pl.Series(column, dtype=kind)
    return pl.DataFrame(made)


def for_duckdb(text: str) -> str:
    """Return a condition of :class:`Conditions` as DuckDB writes it."""
    text = re.sub(
        r"x'([0-9a-f]*)'", lambda m: "'" + re.sub("(..)", r"\\x\1", m[1]) + "'::BLOB", text
    )
    return re.sub(r"TIMESTAMP_LTZ '([^']*)'", r"TIMESTAMPTZ '\1+00'", text)


class Conditions:
    """Makes conditions from a seed.

    Parameters
    ----------
    seed
        The same conditions come of the same seed.
    table, other
        The name of the table that they are about, and that of another one of these columns.
    """

    def __init__(self, seed: str, table: str, other: str) -> None:
        self._chance = random.Random(seed)
        self._table, self._other = table, other

    def _one(self, *choices: Any) -> Any:
        return self._chance.choice(choices)

    def literal(self, column: str) -> str:
        """Return a value of a column, or one near, as a literal of SQL."""
        value = self._chance.choice(_VALUES[column])
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, (float, Decimal)):
            finite = math.isfinite(value)
            return f"{value:.2f}" if finite else str(self._one("0.25", "1.50", "-7.00"))
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        if isinstance(value, dt.datetime):
            name = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMP_LTZ"
            return f"{name} '{value.replace(tzinfo=None)}'"
        if isinstance(value, dt.date):
            return str(self._one(f"DATE '{value}'", f"'{value}'"))
        if isinstance(value, dt.time):
            return f"TIME '{value}'"
        return str(value)

    def _near(self, column: str, group: list[str]) -> str:
        """Return what can be compared with a column."""
        draw = self._chance.random()
        if draw < 0.1:
            return "NULL"
        if draw < 0.45:
            other: str = self._chance.choice(group)
            return other
        return self.literal(column)

    def _compare(self) -> str:
        return str(self._one("=", "<>", "!=", "<", "<=", ">", ">="))

    def _atom(self) -> str:
        group = self._chance.choice(GROUPS)
        x: str = self._chance.choice(group)
        if group[0] == "b":
            return self._of_truth(x)
        a, b = self._near(x, group), self._near(x, group)
        literal, no, is_not = self.literal(x), self._one("", "NOT "), self._one("", "NOT ")
        forms = [
            f"{x} {self._compare()} {a}",
            f"{literal} {self._compare()} {x}",
            f"{x} IS {is_not}DISTINCT FROM {a}",
            f"{x} IS {is_not}NULL",
            f"{x} {no}IN ({literal}, {a})",
            f"{x} {no}IN ({literal}, NULL)",
            f"{x} {no}IN ({literal})",
            f"{x} {no}BETWEEN {a} AND {b}",
            f"COALESCE({x}, {literal}) {self._compare()} {literal}",
            f"COALESCE({x}, {a}) IS {is_not}DISTINCT FROM {b}",
            f"NULLIF({x}, {literal}) IS {is_not}NULL",
            f"NULLIF({x}, {a}) {self._compare()} {literal}",
            f"CASE WHEN {self._truth()} THEN {x} ELSE {literal} END {self._compare()} {literal}",
            f"CASE {x} WHEN {literal} THEN 1 WHEN {a} THEN 2 END {self._compare()} 1",
            f"CASE {x} WHEN {literal} THEN 1 ELSE 0 END = 0",
            f"{x} {no}IN (SELECT {x} FROM {self._other})",
            f"{x} {no}IN (SELECT {x} FROM {self._other} WHERE {x} IS NOT NULL)",
            f"{x} {no}IN (SELECT {x} FROM {self._other} WHERE k > 1000)",
            f"{x} {self._compare()} (SELECT MIN({x}) FROM {self._other})",
            f"{no}EXISTS (SELECT 1 FROM {self._other} WHERE {x} IS NULL)",
            f"{no}EXISTS (SELECT 1 FROM {self._other} AS o WHERE o.{x} = {self._table}.{x})",
        ]
        if x not in ("f4", "f8"):
            # of NaN and a number Polars gives the number, DuckDB NaN
            forms += [
                f"GREATEST({x}, {literal}) {self._compare()} {literal}",
                f"LEAST({x}, {literal}) {self._compare()} {literal}",
            ]
        if group is NUMBERS:
            forms += [
                # small whole numbers overflow, each engine in its own way
                f"i8 {self._one('+', '-', '*')} {literal} {self._compare()} {literal}",
                f"-{x} {self._compare()} {literal}",
                f"ABS({x}) {self._compare()} {literal}",
            ]
        if group[0] == "s":
            forms += [self._like(x) for _ in range(5)]
            forms += [
                f"{self._one('UPPER', 'LOWER')}({x}) {self._compare()} {literal}",
                f"{x} || {a} {self._compare()} {literal}" if a != "NULL" else f"LENGTH({x}) > 1",
                f"STARTS_WITH({x}, {literal})",
            ]
        if x == "d":
            forms.append(f"{x} {no}BETWEEN '2024-01-01' AND '2024-01-31'")
        made: str = self._chance.choice(forms)
        return made

    def _like(self, x: str) -> str:
        pieces = ("a", "b", "A", "%", "_", "|%", "|_", "||", ".", "(", "é", "")
        pattern = "".join(self._chance.choices(pieces, k=self._one(0, 1, 2, 3, 4)))
        escape = " ESCAPE '|'" if "|" in pattern or self._one(True, False) else ""
        return f"{x} {self._one('', 'NOT ')}{self._one('LIKE', 'ILIKE')} '{pattern}'{escape}"

    def _truth(self) -> str:
        return str(self._one("b", "b2", "NOT b", "b AND b2", "b OR b2", "b IS NOT TRUE"))

    def _of_truth(self, x: str) -> str:
        return str(
            self._one(
                x,
                f"NOT {x}",
                f"{x} = {self._one('b2', 'TRUE', 'FALSE', 'NULL')}",
                f"{x} <> {self._one('b2', 'TRUE', 'FALSE')}",
                f"{x} {self._one('', 'NOT ')}IN ({self._one('TRUE', 'FALSE', 'b2')}, NULL)",
                f"{x} {self._one('<', '>=')} b2",
                f"COALESCE({x}, {self._one('b2', 'TRUE', 'FALSE')})",
                f"NULLIF({x}, {self._one('b2', 'TRUE', 'FALSE')})",
                f"CASE WHEN {x} THEN b2 ELSE NOT b2 END",
                f"CASE {x} WHEN TRUE THEN b2 WHEN FALSE THEN FALSE END",
                f"{x} AND NULL",
                f"NULL OR {x}",
                f"CASE WHEN {x} THEN NULL ELSE TRUE END",
            )
        )

    def condition(self, depth: int = 3) -> str:
        """Return a condition."""
        if depth == 0 or self._chance.random() < 0.2:
            return self._atom()
        if self._chance.random() < 0.3:
            return self._bare(depth)
        p = self.condition(depth - 1)
        form = self._chance.randrange(14)
        if form < 3:
            return f"NOT ({p})"
        if form < 6:
            asked = self._one("TRUE", "FALSE", "TRUE", "FALSE", "UNKNOWN", "NULL")
            return f"({p}) IS {self._one('', 'NOT ')}{asked}"
        q = self.condition(depth - 1)
        match form:
            case 6 | 7:
                return f"({p}) AND ({q})"
            case 8 | 9:
                return f"({p}) OR ({q})"
            case 10:
                return f"({p}) {self._one('=', '<>')} ({q})"
            case 11:
                return f"({p}) IS {self._one('', 'NOT ')}DISTINCT FROM ({q})"
            case 12:
                return f"CASE WHEN {p} THEN {q} ELSE {self._one('b', 'NOT b2', 'NULL', 'TRUE')} END"
        return f"COALESCE({p}, {q})"

    def _bare(self, depth: int) -> str:
        """Return a condition without parentheses: what binds tighter decides what it means."""
        parts = [self._one(self._atom(), self._atom(), self._truth())]
        for _ in range(depth):
            no = self._one("", "", "NOT ")
            parts += [self._one("AND", "OR"), no + self._one(self._atom(), self._truth())]
        if self._chance.random() < 0.5:
            parts.append(f"AND b IS {self._one('', 'NOT ')}DISTINCT FROM b2")
            parts.append(f"{self._one('AND', 'OR')} {self._atom()}")
        if self._chance.random() < 0.3:
            x = self._one("i1", "i4", "i8")
            parts.append(f"AND b {self._one('=', '<>')} {x} {self._one('', 'NOT ')}IN (0, 1, 2)")
        return " ".join(parts)
