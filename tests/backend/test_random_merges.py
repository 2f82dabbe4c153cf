"""Random ``MERGE INTO`` statements, held against DuckDB's on the same rows.

``FLUSS_TEST_CASES`` says how many statements, ``FLUSS_TEST_SEED`` where the random numbers begin.
A statement that DuckDB refuses, or that would leave two rows of one key or a key that is null, must
be refused here too, and leave the table as it was.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pytest

from fluss_df.backend import Backend
from fluss_df.errors import FlussError

CASES = int(os.environ.get("FLUSS_TEST_CASES", "60"))
SEED = int(os.environ.get("FLUSS_TEST_SEED", "1"))
# statements on one table, one after the other
ON_ONE_TABLE = 10

KEYS = [
    ("k INT", [], ["k"]),
    ("k BIGINT", [], ["k"]),
    ("k INT, c STRING", [], ["k", "c"]),
    ("c STRING, k BIGINT", ["c"], ["c", "k"]),
    ("k INT, c STRING, e DATE", ["c"], ["k", "c", "e"]),
]
OTHERS = "v DOUBLE, n BIGINT, s STRING, d DATE, m DECIMAL(12, 2), b BOOLEAN, f INT"
TEXTS = ["'a'", "'ab'", "'b'", "'B'"]
DATES = ["DATE '2024-01-01'", "DATE '2024-01-02'", "DATE '2024-02-01'"]
LITERALS: dict[str, list[str]] = {
    "k": [str(n) for n in range(8)],
    "c": ["'a'", "'b'", "'c-1'"],
    "e": DATES,
    "v": ["0.5", "1.25", "-3.0", "10.0"],
    "n": ["0", "1", "2", "-7", "9000000000"],
    "s": TEXTS,
    "d": DATES,
    "m": ["1.50", "-2.25", "100.00"],
    "b": ["TRUE", "FALSE"],
    "f": ["1", "2", "3"],
}


class Statements:
    """Statements about a table and a source that have the same columns."""

    def __init__(self, rng: random.Random, keys: list[str]) -> None:
        self.rng = rng
        self.keys = keys
        self.columns = [*keys, "v", "n", "s", "d", "m", "b", "f"]

    def literal(self, column: str, nulls: float = 0.3) -> str:
        of_key = column in self.keys and nulls < 0.3
        if not of_key and self.rng.random() < nulls:
            return "NULL"
        return self.rng.choice(LITERALS[column])

    def column(self, name: str, sides: str) -> str:
        return f"{self.rng.choice(sides)}.{name}"

    def condition(self, sides: str, depth: int = 2) -> str:
        rng = self.rng
        kind = rng.randrange(12 if depth else 9)
        name = rng.choice(self.columns)
        column = self.column(name, sides)
        if kind < 3:
            return (
                f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {self.literal(name, 0)}"
            )
        if kind == 3:
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        if kind == 4:
            other = self.column(name, sides)
            return f"{column} {rng.choice(['=', '<', '>='])} {other}"
        if kind == 5:
            items = ", ".join(self.literal(name, 0.2) for _ in range(3))
            return f"{column} {rng.choice(['', 'NOT '])}IN ({items})"
        if kind == 6:
            return f"{self.column('b', sides)} IS {rng.choice(['', 'NOT '])}TRUE"
        if kind == 7:
            return f"{self.column('s', sides)} LIKE 'a%'"
        if kind == 8:
            return f"{self.column('n', sides)} BETWEEN 0 AND 5"
        if kind == 9:
            return f"NOT ({self.condition(sides, depth - 1)})"
        word = rng.choice(["AND", "OR"])
        return f"({self.condition(sides, depth - 1)} {word} {self.condition(sides, depth - 1)})"

    def value(self, name: str, sides: str) -> str:
        rng = self.rng
        kind = rng.randrange(8)
        if kind == 0:
            return "NULL"
        if kind == 1:
            return self.literal(name, 0)
        if kind in (2, 3):
            return self.column(name, sides)
        one, other = self.column(name, sides), self.column(name, sides)
        if kind == 4:
            return f"COALESCE({one}, {other})"
        if kind == 5:
            return f"CASE WHEN {self.condition(sides, 1)} THEN {one} ELSE {other} END"
        if name in ("v", "n", "f"):
            return f"{one} {rng.choice('+-')} {self.column(name, sides)}"
        if name == "s":
            return f"{one} || {other}" if kind == 6 else f"UPPER({one})"
        return one

    def on(self) -> str:
        whole = " AND ".join(
            f"t.{key} = s.{key}" if self.rng.random() < 0.5 else f"s.{key} = t.{key}"
            for key in self.rng.sample(self.keys, len(self.keys))
        )
        kind = self.rng.randrange(10)
        if kind < 6:
            return whole
        if kind < 8:
            return f"{whole} AND {self.condition('ts')}"
        if kind == 8:
            return f"t.{self.keys[0]} = s.{self.keys[0]}"
        return f"t.n = s.n AND {self.condition('ts')}"

    def clause(self, kind: str, last: bool) -> str:
        rng = self.rng
        sides = {"MATCHED": "ts", "NOT MATCHED": "s", "NOT MATCHED BY SOURCE": "t"}[kind]
        text = f"WHEN {kind}"
        if not last or rng.random() < 0.5:
            text += f" AND {self.condition(sides)}"
        if rng.random() < 0.1:
            return f"{text} THEN DO NOTHING"
        if kind == "NOT MATCHED":
            others = [c for c in self.columns if c not in self.keys]
            chosen = [*self.keys, *rng.sample(others, rng.randrange(len(others) + 1))]
            rng.shuffle(chosen)
            if rng.random() < 0.2:
                values = ", ".join(f"s.{c}" for c in self.columns)
                return f"{text} THEN INSERT VALUES ({values})"
            given = ", ".join(f"s.{c}" if c in self.keys else self.value(c, sides) for c in chosen)
            return f"{text} THEN INSERT ({', '.join(chosen)}) VALUES ({given})"
        if rng.random() < 0.3:
            return f"{text} THEN DELETE"
        others = [c for c in self.columns if c not in self.keys]
        names = rng.sample(others, rng.randrange(1, len(others) + 1))
        return f"{text} THEN UPDATE SET " + ", ".join(
            f"{n} = {self.value(n, sides)}" for n in names
        )

    def rows(self, count: int, *, unique: bool) -> list[str]:
        found: dict[tuple[str, ...], str] = {}
        for at in range(count):
            keys = [self.literal(key, 0 if unique else 0.1) for key in self.keys]
            rest = [self.literal(c) for c in self.columns[len(keys) :]]
            # most sources have each key once, as statements that can be run need it
            number = () if unique or self.rng.random() < 0.9 else (str(at),)
            found[(*keys, *number)] = f"({', '.join([*keys, *rest])})"
        return list(found.values())

    def merge(self, table: str, source: str) -> str:
        kinds = ["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"]
        clauses = []
        for kind in self.rng.sample(kinds, self.rng.randrange(1, 4)):
            count = self.rng.randrange(1, 4)
            clauses += [self.clause(kind, at == count - 1) for at in range(count)]
        return "\n".join([f"MERGE INTO {table} AS t USING {source}", f"ON {self.on()}", *clauses])


def run_both(con: Backend, name: str, cases: int, seed: int) -> dict[str, int]:
    """Run statements; return how many changed rows, changed none, and were refused."""
    rng = random.Random(seed)
    outcomes = {"changed": 0, "changed nothing": 0, "refused": 0}
    done = 0
    while done < cases:
        declared, partitioned, keys = rng.choice(KEYS)
        table, source = f"{name}_{done}", f"{name}_{done}_s"
        made = Statements(rng, keys)
        listed = ", ".join(keys)
        split = f" PARTITIONED BY ({', '.join(partitioned)})" if partitioned else ""
        con.raw_sql(
            f"CREATE TABLE {table} ({declared}, {OTHERS}, PRIMARY KEY ({listed}) NOT ENFORCED)"
            f"{split} WITH ('bucket.num' = '2')"
        )
        con.raw_sql(f"CREATE TABLE {source} ({declared}, {OTHERS}) WITH ('bucket.num' = '2')")
        duck = duckdb.connect()
        for each in (table, source):
            duck.execute(f"CREATE TABLE {each} ({declared}, {OTHERS})")
        first = made.rows(12, unique=True)
        for db in (con.raw_sql, duck.execute):
            db(f"INSERT INTO {table} VALUES {', '.join(first)}")
        given: list[str] = []
        for at in range(min(ON_ONE_TABLE, cases - done)):
            if at % 3 == 0:
                more = made.rows(rng.choice([0, 1, 6, 12]), unique=False)
                if more:
                    for db in (con.raw_sql, duck.execute):
                        db(f"INSERT INTO {source} VALUES {', '.join(more)}")
                given += more
            outcomes[_one(con, duck, made, table, source, keys)] += 1
            done += 1
    return outcomes


def _one(
    con: Backend, duck: Any, made: Statements, table: str, source: str, keys: list[str]
) -> str:
    listed = ", ".join(keys)
    distinct = f"SELECT * FROM {source} WHERE f IS NOT NULL AND n >= 0"
    using = made.rng.choice([f"{source} AS s", f"({distinct}) AS s", "VALUES", "ONE EACH"])
    if using == "VALUES":
        rows = made.rows(6, unique=made.rng.random() < 0.8)
        types = {"v": "DOUBLE", "n": "BIGINT", "s": "VARCHAR", "d": "DATE", "m": "DECIMAL(12, 2)"}
        types |= {"b": "BOOLEAN", "f": "INT", "k": "BIGINT", "c": "VARCHAR", "e": "DATE"}
        casts = ", ".join(f"CAST({c} AS {types[c]}) AS {c}" for c in made.columns)
        using = (
            f"(SELECT {casts} FROM (VALUES {', '.join(rows)}) AS x({', '.join(made.columns)})) AS s"
        )
    elif using == "ONE EACH":
        rest = ", ".join(f"max({c}) AS {c}" for c in made.columns if c not in (*keys, "b"))
        using = f"(SELECT {listed}, {rest}, bool_or(b) AS b FROM {source} GROUP BY {listed}) AS s"
        using = using.replace("bool_or(b)", "max(CAST(b AS INT)) = 1")
    statement = made.merge(table, using)
    query = f"SELECT * FROM {table} ORDER BY {listed}"
    before = con.raw_sql(query)
    joined = f"{table} AS t JOIN {using} {statement.splitlines()[1]}"
    grouped = ", ".join(f"t.{key}" for key in keys)
    twice = f"SELECT 1 FROM {joined} GROUP BY {grouped} HAVING count(*) > 1"
    several = bool(duck.sql(twice).fetchall())
    duck.execute("BEGIN")
    try:
        duck.execute(statement)
        expected = pl.DataFrame(duck.sql(query).to_arrow_table())
        distinct_keys = expected.select(keys).drop_nulls().unique().height
        refused = distinct_keys < expected.height
    except duckdb.InvalidInputException:
        refused = True
    if refused:
        duck.execute("ROLLBACK")
        with pytest.raises(FlussError):
            con.raw_sql(statement)
        assert con.raw_sql(query).equals(before), statement
        return "refused"
    try:
        con.raw_sql(statement)
    except FlussError as error:
        duck.execute("ROLLBACK")
        # DuckDB may let one source row update a row that another one deletes: whichever comes last
        if several and "may be changed by one only" in str(error):
            assert con.raw_sql(query).equals(before), statement
            return "refused"
        raise AssertionError(f"{error}\n{statement}") from error
    duck.execute("COMMIT")
    found = con.raw_sql(query)
    expected = expected.cast(found.schema)
    assert found.equals(expected), f"{statement}\n{before}\n{found}\n{expected}"
    return "changed" if not found.equals(before) else "changed nothing"


def test_statements_change_what_those_of_duckdb_do(con: Backend, fresh: Callable[[], str]) -> None:
    on_cluster = con.connection.config.bootstrap_servers.startswith("127.")
    # a cluster takes longer for each
    cases = CASES // 3 if on_cluster and "FLUSS_TEST_CASES" not in os.environ else CASES
    outcomes = run_both(con, fresh(), cases, SEED)
    assert outcomes["changed"] > cases // 4
    assert sum(outcomes.values()) == cases
