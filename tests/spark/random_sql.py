# ruff: noqa: E501
"""Random queries in Spark SQL, the same for the same seed, over two tables and a view."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import polars as pl
import pyarrow as pa

_N = random.Random(7)


def _some(values: list[object], rows: int, nulls: float = 0.15) -> list[object]:
    return [None if _N.random() < nulls else _N.choice(values) for _ in range(rows)]


# clocks change in New York, Berlin, on Lord Howe and in Apia
TIMES = [
    dt.datetime(2024, 3, 10, 1, 59, 59), dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 3, 10, 3),
    dt.datetime(2024, 11, 3, 1, 30), dt.datetime(2024, 11, 3, 2), dt.datetime(2024, 3, 31, 2, 15),
    dt.datetime(2024, 10, 27, 2, 45), dt.datetime(2011, 12, 30, 5), dt.datetime(2024, 6, 1, 12),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
]  # fmt: skip
TEXTS = ["n1", "n2", "it's", 'a"b', "a\\b", "", "N1", "été", "%", "x_y", "a) AND (b", "--no", "/*"]
SCHEMA = {
    "a": pa.schema({
        "id": pa.int64(), "k": pa.int32(), "name": pa.string(), "v": pa.float64(),
        "f": pa.float32(), "d": pa.decimal128(10, 2), "day": pa.date32(), "t": pa.timestamp("us"),
        "z": pa.timestamp("us", "UTC"), "ok": pa.bool_(),
    }),
    "b": pa.schema({"k": pa.int32(), "label": pa.string(), "w": pa.int32(), "f": pa.float32()}),
}  # fmt: skip
_FLOATS: list[object] = [0.1, 0.5, 0.25, -0.0, 0.0, 1e30, float("nan"), 3.0]
ROWS = {
    "a": pl.DataFrame(pa.table({
        "id": list(range(40)),
        "k": _some([0, 1, 2, 3, 4], 40),
        "name": _some(list(TEXTS), 40),
        "v": _some(_FLOATS, 40),
        "f": _some(_FLOATS, 40),
        "d": _some([Decimal("0.10"), Decimal("1.50"), Decimal("-2.00"), Decimal("99.99")], 40),
        "day": _some([t.date() for t in TIMES], 40),
        "t": _some(list(TIMES), 40),
        "z": _some([t.replace(tzinfo=dt.UTC) for t in TIMES], 40),
        "ok": _some([True, False], 40),
    }, schema=SCHEMA["a"])),
    "b": pl.DataFrame(pa.table({
        "k": [0, 1, 1, 2, 7, None],
        "label": ["zero", "it's", None, "n1", "n2", "x_y"],
        "w": [0, 1, 2, None, 4, 5],
        "f": [0.1, 0.5, None, 3.0, 0.25, 0.0],
    }, schema=SCHEMA["b"])),
}  # fmt: skip
COLUMNS = {
    "a": {"id": "int", "k": "int", "name": "text", "v": "double", "f": "float", "d": "decimal",
          "day": "date", "t": "ntz", "z": "ltz", "ok": "bool"},
    "b": {"k": "int", "label": "text", "w": "int", "f": "float"},
}  # fmt: skip


@dataclass
class Relation:
    """What stands behind FROM: its text, its alias, and its columns with their kinds."""

    text: str
    alias: str
    columns: dict[str, str]


def text_literal(rng: random.Random, value: str) -> str:
    """Write a text in one of the ways that Spark reads."""
    ways = ["'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"]
    ways.append("'" + value.replace("\\", "\\\\").replace("'", "''") + "'")
    ways.append('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    if "'" not in value:
        ways.append(f"r'{value}'")
    if len(value) > 1 and "\\" not in value and "'" not in value:
        ways.append(f"'{value[:1]}' '{value[1:]}'")
    if value:
        ways.append(f"concat({ways[0]}, '')")
        code = f"\\u{ord(value[0]):04x}"
        ways.append("'" + code + value[1:].replace("\\", "\\\\").replace("'", "\\'") + "'")
    return ways[0] if rng.random() < 0.6 else rng.choice(ways)


class Conditions:
    """Random conditions on columns of known kinds."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def literal(self, kind: str) -> str:
        """Return a literal to compare a column of a kind with."""
        pick = self.rng.choice
        if kind == "int":
            return pick(["0", "1", "2", "3", "-1", "1.5", "20L", "1e0", "3S", "7BD"])
        if kind in ("double", "float"):
            return pick(["0.1", "0.5", "0", "-0.0", "3", "0.25D", "1e-1", "0.1F", "1e30", "'0.1'"])
        if kind == "decimal":
            return pick(["0.1", "1.5", "1.50", "1.505", "-2", "99.99", "0.1D", "1e0", "'1.5'"])
        if kind == "text":
            return text_literal(self.rng, pick(TEXTS))
        if kind == "bool":
            return pick(["true", "false"])
        if kind == "date":
            day = pick(TIMES).date()
            return pick([f"DATE '{day}'", f"'{day}'", f"CAST('{day}' AS DATE)"])
        moment = pick(TIMES)
        return pick(
            [f"TIMESTAMP '{moment}'", f"TIMESTAMP_NTZ '{moment}'", f"'{moment}'",
             f"TIMESTAMP '{moment}+02:00'", f"TIMESTAMP_LTZ '{moment}'", f"DATE '{moment.date()}'"]
        )  # fmt: skip

    def leaf(self, name: str, kind: str) -> str:
        """Return a condition on one column."""
        rng = self.rng
        if rng.random() < 0.15:
            # the same column, written otherwise
            table, dot, column = name.rpartition(".")
            name = table + dot + rng.choice([f"`{column}`", column.upper(), f"`{column.upper()}`"])

        def value() -> str:
            return self.literal(kind)

        op = rng.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!="])
        forms: list[Callable[[], str]] = [
            lambda: f"{name} {op} {value()}",
            lambda: f"{value()} {op} {name}",
            lambda: f"{name} IS {rng.choice(['', 'NOT '])}NULL",
            lambda: f"{name} {rng.choice(['', 'NOT '])}IN ({', '.join(value() for _ in range(3))})",
            lambda: f"{name} {rng.choice(['', 'NOT '])}IN ({value()}, NULL)",
            lambda: f"{name} {rng.choice(['', 'NOT '])}BETWEEN {value()} AND {value()}",
            lambda: f"{name} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {value()}",
        ]
        if kind == "text":
            some = rng.choice(["n%", "%1", "%'%", "%\\\\_%", "x_y", "%", "n1", "%t%"]).replace(
                "'", "\\'"
            )
            word = rng.choice(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE", "RLIKE"])
            forms += 4 * [lambda: f"{name} {word} '{some}'"]
            forms += [
                lambda: f"{name} {rng.choice(['', 'NOT '])}LIKE 'x!_%' ESCAPE '!'",
                lambda: f"{rng.choice(['startswith', 'endswith', 'contains'])}({name}, {value()})",
                lambda: (
                    f"{name} {rng.choice(['', 'NOT '])}LIKE {rng.choice(['ANY', 'ALL'])} ('n%', '%2')"
                ),
                lambda: f"upper({name}) = 'N1'",
                lambda: f"{name} COLLATE UTF8_LCASE = 'n1'",
            ]
        if kind == "bool":
            forms += [lambda: name, lambda: f"NOT {name}",
                      lambda: f"{name} IS {rng.choice(['TRUE', 'NOT FALSE', 'UNKNOWN'])}"]  # fmt: skip
        if kind in ("ntz", "ltz"):
            # what a clock shows depends on the zone, and twice a year on the hour
            forms += [
                lambda: f"hour({name}) {op} {rng.choice(['1', '2', '3'])}",
                lambda: f"CAST({name} AS DATE) {op} {self.literal('date')}",
                lambda: f"date_trunc('HOUR', {name}) {op} {value()}",
                lambda: f"{name} + INTERVAL '1' HOUR {op} {value()}",
                lambda: f"{name} - INTERVAL '1' DAY > {value()}",
                lambda: f"to_utc_timestamp({name}, 'Europe/Berlin') {op} {value()}",
                lambda: f"CAST({name} AS STRING) LIKE '2024-%:30:00'",
            ]
        if kind == "date":
            forms += [
                lambda: f"{name} + 1 {op} {value()}",
                lambda: f"CAST({name} AS TIMESTAMP) {op} {self.literal('ltz')}",
            ]
        if kind == "int":
            forms += [lambda: f"{name} % 3 = 1", lambda: f"{name} + 1 > 2", lambda: f"-{name} < 0"]
        return rng.choice(forms)()

    def condition(self, columns: dict[str, str], depth: int = 2) -> str:
        """Return a condition on some of the columns, each name as it is to be written."""
        rng = self.rng
        if depth and rng.random() < 0.55:
            op = rng.choice(["AND", "AND", "OR"])
            both = [self.condition(columns, depth - 1) for _ in range(2)]
            inner = (
                f"({both[0]}) {op} ({both[1]})"
                if rng.random() < 0.7
                else f"({both[0]} {op} {both[1]})"
            )
            return f"NOT ({inner})" if rng.random() < 0.15 else inner
        name = rng.choice(list(columns))
        return self.leaf(name, columns[name])


class Queries(Conditions):
    """Random queries; ``{a}`` and ``{b}`` are tables, ``{qa}`` and ``{qb}`` with their database."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        self._aliases = 0
        self._common: list[tuple[str, dict[str, str]]] = []

    def query(self) -> str:
        """Return a query."""
        rng = self.rng
        self._aliases, self._common = 0, []
        head = ""
        if rng.random() < 0.35:
            head = self._with()
        body = self.select(0)
        if rng.random() < 0.15:
            n = rng.choice([1, 2])
            op = rng.choice(
                [
                    "UNION",
                    "UNION ALL",
                    "INTERSECT",
                    "EXCEPT",
                    "MINUS",
                    "INTERSECT ALL",
                    "EXCEPT ALL",
                ]
            )
            body = f"{self._plain(n)} {op} {self._plain(n)}"
            if rng.random() < 0.3:
                other = rng.choice(["UNION", "EXCEPT"])
                body = f"({body}) {other} {self._plain(n)}"
        space = rng.choice([" ", " /* {b} */ ", "\n-- FROM nothing '\n"])
        return head + body.replace(" FROM ", f"{space}FROM ", 1)

    def _with(self) -> str:
        rng = self.rng
        found = []
        for _ in range(rng.choice([1, 1, 2])):
            # one that hides a table of Fluss, or stands for itself
            name = rng.choice(["{a}", "{b}", "c1", "c2", "local_c"])
            if any(name == other for other, _ in self._common):
                continue
            source = rng.choice(["a", "b"])
            table = rng.choice([f"{{q{source}}}", f"{{{source}}}"])
            columns = COLUMNS[source]
            where = f" WHERE {self.condition(columns, 1)}" if rng.random() < 0.5 else ""
            if table == name or not any(table == other for other, _ in self._common):
                found.append(f"{name} AS (SELECT * FROM {table}{where})")
                self._common.append((name, columns))
        if not found:
            return ""
        if rng.random() < 0.15:
            found.append("r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3)")
            return f"WITH RECURSIVE {', '.join(found)} "
        return f"WITH {', '.join(found)} "

    def _alias(self) -> str:
        self._aliases += 1
        return self.rng.choice(["t{}", "T{}", "`t {}`", "from{}"]).format(self._aliases)

    def relation(self, depth: int) -> Relation:
        """Return what may stand behind FROM or JOIN."""
        rng = self.rng
        alias = self._alias()
        source = rng.choice(["a", "a", "b"])
        columns = COLUMNS[source]
        hidden = {name for name, _ in self._common}
        form = rng.random()
        if self._common and form < 0.3:
            name, columns = rng.choice(self._common)
            return Relation(f"{name} AS {alias}", alias, columns)
        if form < 0.6:
            plain = f"{{{source}}}"
            name = f"{{q{source}}}" if plain in hidden or rng.random() < 0.5 else plain
            return Relation(f"{name} {rng.choice(['', 'AS '])}{alias}", alias, columns)
        if form < 0.7:
            return (
                Relation(f"local_c AS {alias}", alias, COLUMNS["b"])
                if "local_c" not in hidden
                else self.relation(depth)
            )
        if form < 0.75:
            return Relation(
                f"(VALUES (0, 'zero'), (1, {self.literal('text')}), (NULL, NULL)) AS {alias}(k, label)",
                alias, {"k": "int", "label": "text"},
            )  # fmt: skip
        if form < 0.8:
            return Relation(f"range(5) AS {alias}(k)", alias, {"k": "int"})
        table = f"{{q{source}}}"
        if form < 0.9 or depth > 1:
            where = f" WHERE {self.condition(columns, 1)}" if rng.random() < 0.6 else ""
            return Relation(f"(SELECT * FROM {table}{where}) AS {alias}", alias, columns)
        kept = dict(rng.sample(sorted(columns.items()), rng.randint(1, len(columns))))
        where = f" WHERE {self.condition(columns, 1)}" if rng.random() < 0.6 else ""
        # an inner name that hides an outer one
        inner = f"WITH {{b}} AS (SELECT * FROM {table}{where}) SELECT {', '.join(kept)} FROM {{b}}"
        return Relation(f"({inner}) AS {alias}", alias, kept)

    def select(self, depth: int) -> str:
        """Return a SELECT."""
        rng = self.rng
        first = self.relation(depth)
        visible = {f"{first.alias}.{n}": k for n, k in first.columns.items()}
        text = first.text
        stars = True
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            kind = rng.choice(
                ["JOIN", "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN",
                 "LEFT ANTI JOIN", "CROSS JOIN", "USING", "NATURAL JOIN", ",", "LATERAL"]
            )  # fmt: skip
            other = self.relation(depth)
            theirs = {f"{other.alias}.{n}": k for n, k in other.columns.items()}
            if kind == "USING":
                shared = [
                    n for n in other.columns if f"{first.alias}.{n}" in visible and n in ("k",)
                ]
                if not shared or len(visible) != len(first.columns):
                    continue
                side = rng.choice(["", "LEFT ", "RIGHT ", "FULL "])
                text += f" {side}JOIN {other.text} USING ({shared[0]})"
                visible |= theirs
            elif kind == "NATURAL JOIN":
                if len(visible) != len(first.columns):
                    continue
                text += f" NATURAL {rng.choice(['', 'LEFT '])}JOIN {other.text}"
                visible |= theirs
            elif kind == "LATERAL":
                ints = [n for n, k in visible.items() if k == "int"]
                if not ints:
                    continue
                inner, alias = self._alias(), self._alias()
                source = f"{{qb}} {inner} WHERE {inner}.k = {rng.choice(ints)}"
                text += f" {rng.choice(['', 'LEFT '])}JOIN LATERAL (SELECT max({inner}.w) AS lw, count(*) AS n FROM {source}) {alias}"
                visible = visible | {f"{alias}.lw": "int", f"{alias}.n": "int"}
            elif kind in ("CROSS JOIN", ","):
                text += f"{kind if kind == ',' else ' ' + kind} {other.text}"
                if kind == ",":
                    kind = "CROSS"
                visible |= theirs
                if kind == "CROSS":
                    break
            else:
                both = visible | theirs
                on = self._join_condition(visible, theirs)
                if rng.random() < 0.5:
                    on += f" AND {self.condition(both, 1)}"
                text += f" {kind} {other.text} ON {on}"
                if "SEMI" not in kind and "ANTI" not in kind:
                    visible = both
        where = ""
        if rng.random() < 0.75:
            where = f" WHERE {self._where(visible, depth)}"
        if rng.random() < 0.08:
            text += " LATERAL VIEW explode(array(1, 2)) e AS x"
            visible = visible | {"x": "int"}
        return self._selected(first, visible, text + where, stars)

    def _join_condition(self, left: dict[str, str], right: dict[str, str]) -> str:
        rng = self.rng
        pairs = [
            (x, y)
            for x, k in left.items()
            for y, other in right.items()
            if k == other and k != "bool"
        ]
        if not pairs:
            return "1 = 1"
        x, y = rng.choice(pairs)
        return f"{x} {rng.choice(['=', '=', '=', '<=>', '<'])} {y}"

    def _where(self, visible: dict[str, str], depth: int) -> str:
        rng = self.rng
        found = self.condition(visible)
        ints = [name for name, kind in visible.items() if kind == "int"]
        if depth < 1 and ints and rng.random() < 0.3:
            x, inner = rng.choice(ints), self._alias()
            extra = self.condition({f"{inner}.w": "int", f"{inner}.label": "text"}, 1)
            source = f"{{qb}} {inner} WHERE {extra}"
            found += rng.choice(
                [f" AND {x} IN (SELECT {inner}.k FROM {source})",
                 f" AND {x} NOT IN (SELECT {inner}.w FROM {source} AND {inner}.w IS NOT NULL)",
                 f" AND EXISTS (SELECT * FROM {source} AND {inner}.k = {x})",
                 f" AND NOT EXISTS (SELECT 1 FROM {source} AND {inner}.k = {x})",
                 f" OR {x} IN (SELECT {inner}.k FROM {source})",
                 f" AND {x} > (SELECT min({inner}.w) FROM {source})",
                 f" AND {x} >= (SELECT count(*) - 3 FROM {source} AND {inner}.k = {x})"]
            )  # fmt: skip
        return found

    def _plain(self, n: int) -> str:
        source = self.rng.choice(["a", "b"])
        alias = self._alias()
        columns = [c for c, kind in COLUMNS[source].items() if kind in ("int", "text")]
        ints = [c for c in columns if COLUMNS[source][c] == "int"]
        names = [self.rng.choice(ints), self.rng.choice(["name" if source == "a" else "label"])][:n]
        where = self.condition({f"{alias}.{c}": k for c, k in COLUMNS[source].items()}, 1)
        return f"SELECT {', '.join(names)} FROM {{q{source}}} {alias} WHERE {where}"

    def _selected(self, first: Relation, visible: dict[str, str], rest: str, stars: bool) -> str:
        rng = self.rng
        names = list(visible)
        some = rng.sample(names, min(len(names), rng.randint(1, 3)))
        form = rng.random()
        if form < 0.15:
            return f"SELECT * FROM {rest}"
        if form < 0.22:
            return f"SELECT {first.alias}.* FROM {rest}"
        if form < 0.27:
            gone = rng.choice(list(first.columns))
            if len(first.columns) > 1:
                return f"SELECT {first.alias}.* EXCEPT ({gone}) FROM {rest}"
        if form < 0.45:
            star = rng.choice(["*", f"{first.alias}.*"])
            call = rng.choice(
                ["count(DISTINCT {s})", "count({s})", "sum(hash({s}) % 1000)", "max(to_json(struct({s})))",
                 "sum(length(concat_ws(',', {s})))", "min(md5(to_json(struct({s}))))",
                 "count(DISTINCT hash({s}))", "sum(xxhash64({s}) % 1000)"]
            )  # fmt: skip
            return f"SELECT {call.format(s=star)} AS u FROM {rest}"
        if form < 0.65:
            keys = some[:2]
            call = rng.choice(
                ["count(*)", f"count(DISTINCT {names[0]})", f"max({names[-1]})", f"min({names[0]})"]
            )
            group = ", ".join(keys)
            how = rng.choice([group, group, f"ROLLUP ({group})", f"GROUPING SETS (({group}), ())"])
            having = rng.choice(["", "", f" HAVING {call} IS NOT NULL", " HAVING count(*) > 1"])
            return f"SELECT {group}, {call} AS n FROM {rest} GROUP BY {how}{having}"
        if form < 0.75:
            order = ", ".join(names)
            call = rng.choice(
                [
                    "row_number()",
                    "rank()",
                    "dense_rank()",
                    "count(*)",
                    f"lag({names[0]})",
                    f"max({names[-1]})",
                ]
            )
            frame = rng.choice(["", "", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"])
            if frame and not call.startswith(("count", "max")):
                frame = ""
            window = f"PARTITION BY {some[0]} ORDER BY {order}{frame}"
            if rng.random() < 0.2 and " WINDOW " not in rest:
                return f"SELECT {', '.join(some)}, {call} OVER w9 AS r FROM {rest} WINDOW w9 AS ({window})"
            return f"SELECT {', '.join(some)}, {call} OVER ({window}) AS r FROM {rest}"
        if form < 0.82:
            ints = [n for n in names if visible[n] == "int"]
            if ints:
                return f"SELECT {ints[0]} + 1 AS u, u * 2 AS w2 FROM {rest}"
        distinct = "DISTINCT " if rng.random() < 0.3 else ""
        end = f" ORDER BY {', '.join(names)} LIMIT 7" if not distinct and rng.random() < 0.3 else ""
        return f"SELECT {distinct}{', '.join(some)} FROM {rest}{end}"
