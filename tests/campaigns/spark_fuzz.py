# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random programs of PySpark over random tables, held against Spark over Parquet with the same rows.

``python -m tests.campaigns.spark_fuzz [PROGRAMS=500] [SEED=0] [-v]``

Programs filter, compute, join, group, unite and order dataframes of the format ``fluss``: read as
they are, with filters pushed, with the options ``filter``, ``columns`` and ``rows.per.task``, with
a schema, and as texts by ``fluss_df.spark.sql``; over TCP or from a folder. Tables have every type.
Rows, types and errors are compared. Prints each program that differs, and ends with 1 where one did.
"""

from __future__ import annotations

import collections
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql import types as T  # noqa: N812

from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.spark import FlussDataSource, sql
from tests.campaigns.spark_expressions import Expressions, kind_of, quoted
from tests.campaigns.spark_tables import SparkTable

_ROOT = str(Path(__file__).parents[2])
_ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Pacific/Apia", "Asia/Kathmandu"]
# what a table or a program costs is Spark's start of its Python processes
_PROGRAMS_A_TABLE = 14
_WAYS = ["plain", "pushed", "pushed", "filter", "filter", "columns", "schema", "sql", "sql", "two"]


@contextmanager
def small_spark() -> Iterator[SparkSession]:
    """Return a session for small data."""
    os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.python.daemon.module": "fluss_df.spark.daemon",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.timeType.enabled": "true",
        # Parquet's own pushdown moves days that the Julian calendar has not
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(FlussDataSource)
    yield session
    session.stop()


Outcome = tuple[str, Any]
Step = Callable[[DataFrame], DataFrame]


def exact(value: Any) -> Any:
    """Return a value whose text tells it from all others: NaN is NaN, -0.0 is not 0.0."""
    if isinstance(value, list):
        return [exact(v) for v in value]
    if isinstance(value, tuple):
        return tuple(exact(v) for v in value)
    if isinstance(value, dict):
        return {name: exact(v) for name, v in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def outcome(made: Callable[[], DataFrame]) -> Outcome:
    """Return the rows of a dataframe, sorted, and its types; or why there are none."""
    try:
        found = made()
        table = found.toArrow()
    except PySparkException as error:
        return "error", (error.getCondition() or type(error).__name__, str(error))
    except FlussError as error:
        return "refused", str(error)
    columns = [column.to_pylist() for column in table.columns]
    rows = zip(*columns, strict=True) if columns else iter([()] * table.num_rows)
    kinds = [f"{f.name} {f.dataType.simpleString()}" for f in found.schema]
    return "rows", (sorted(repr(exact(row)) for row in rows), kinds)


def of_fluss(found: Outcome) -> bool:
    """Whether this library says why."""
    return found[0] == "refused" or (found[0] == "error" and "fluss_df.errors" in found[1][1])


@dataclass
class Program:
    """What is done to a dataframe, and how it reads."""

    steps: list[Step] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, text: str, step: Step) -> None:
        self.texts.append(text)
        self.steps.append(step)

    def of(self, frame: DataFrame) -> DataFrame:
        for step in self.steps:
            frame = step(frame)
        return frame


def ordered(frame: DataFrame) -> DataFrame:
    """Order by all columns that have an order."""
    names = [f.name for f in frame.schema if kind_of(f.dataType) != "map"]
    names = [n for n in names if "map<" not in frame.schema[n].dataType.simpleString()]
    return frame.orderBy(*(F.col(quoted(n)).desc_nulls_last() for n in names))


class Programs:
    """Random steps from dataframe to dataframe, whose types are asked of the Parquet file."""

    def __init__(self, rng: random.Random, values: dict[str, list[Any]]) -> None:
        self.rng, self.values = rng, values
        self.number = 0

    def made(self, frame: DataFrame, most: int) -> Program:
        program = Program()
        for _ in range(self.rng.randint(0, most)):
            schema = frame.schema
            try:
                self.step(program, schema)
                frame = program.steps[-1](frame)
                assert frame.schema is not None
            except PySparkException:
                # Spark refuses the step: the program ends in an error
                break
        return program

    def step(self, program: Program, schema: T.StructType) -> None:
        rng = self.rng
        made = Expressions(rng, schema, self.values)
        which = rng.randrange(13)
        if which < 5:
            condition = made.condition(rng.choice([0, 1, 2, 3]))
            program.add(f".where({condition!r})", lambda f: f.where(condition))
        elif which < 7:
            self.number += 1
            exprs = [f"{made.value()} AS n{self.number}_{i}" for i in range(rng.randint(1, 3))]
            kept = ["*"] if rng.random() < 0.5 else []
            program.add(f".selectExpr(*{kept + exprs})", lambda f: f.selectExpr(*kept, *exprs))
        elif which == 7:
            names = [quoted(n) for n in rng.sample(schema.names, rng.randint(1, len(schema)))]
            program.add(f".select({names})", lambda f: f.select(*names))
        elif which == 8:
            self.number += 1
            keys = [quoted(n) for n, k in made.all if kind_of(k) != "map"][: rng.choice([0, 1, 2])]
            reductions = [
                f"{made.reduction()} AS r{self.number}_{i}" for i in range(rng.randint(1, 3))
            ]
            program.add(f".groupBy({keys}).agg({reductions})",
                        lambda f: f.groupBy(*keys).agg(*map(F.expr, reductions)))  # fmt: skip
        elif which == 9:
            low, high = rng.choice([0, 0, 1, 5, 100]), rng.choice([0, 1, 3, 10, 1000])
            program.add(
                f"ordered.offset({low}).limit({high})", lambda f: ordered(f).offset(low).limit(high)
            )
        elif which == 10:
            names = [quoted(n) for n, k in made.all if kind_of(k) != "map"][:3] or ["k"]
            program.add(f".select({names}).distinct()", lambda f: f.select(*names).distinct())
        elif which == 11:
            name, found = rng.choice(made.all)
            value = made.literal(name, found)
            column = F.col(quoted(name))
            forms: dict[str, Callable[[Any], Any]] = {
                "eqNullSafe": column.eqNullSafe, "==": lambda v: column == v, "!=": lambda v: column != v,
                "isin": lambda v: column.isin([v, v]), "<": lambda v: column < v, "~isin": lambda v: ~column.isin([v]),
            }  # fmt: skip
            word = rng.choice(list(forms))
            there = [v for v in self.values.get(name, []) if not isinstance(v, list | dict)]
            given = rng.choice(there) if there and rng.random() < 0.8 else F.expr(value)
            program.add(f".where({name!r} {word} {given!r})", lambda f: f.where(forms[word](given)))
        else:
            condition = made.condition(1)
            program.add(
                f".count of {condition!r}",
                lambda f: f.where(condition).select(F.count("*").alias("n")),
            )


@dataclass
class Case:
    """A program, how it reads, and what makes its dataframe over Parquet and over Fluss."""

    text: str
    plain: Callable[[], DataFrame]
    fluss: Callable[[], DataFrame]
    # Fluss may refuse what Spark runs, or run what Spark refuses for a row that is left out
    lenient: bool = False


class Round:
    """Two tables, and the programs over them."""

    def __init__(self, spark: SparkSession, engine: EmbeddedFluss, folder: Path, seed: str) -> None:
        self.spark, self.seed = spark, seed
        self.rng = random.Random(seed)
        connection = engine.connection()
        connection.get_admin().create_database("sparks", ignore_if_exists=True)
        name = re.sub(r"\W", "_", seed)
        self.t = SparkTable(random.Random(f"{seed}t"), connection, f"t_{name}", folder)
        self.o = SparkTable(random.Random(f"{seed}o"), connection, f"o_{name}", folder)
        self.address = self.rng.choice([str(engine.address), str(folder / "data")])
        for key, table in (("t", self.t), ("o", self.o)):
            table.plain(spark).createOrReplaceTempView(f"plain_{key}")
        self.values = {
            table: {n: [v for v in table.rows.column(n).to_pylist() if v is not None][:12]
                    for n in table.schema.names}
            for table in (self.t, self.o)
        }  # fmt: skip

    def load(self, table: SparkTable, schema: str | T.StructType = "", **options: str) -> DataFrame:
        reader = self.spark.read.format("fluss").option("connection", self.address)
        for key, value in options.items():
            reader = reader.option(key.replace("_", "."), value)
        return (reader.schema(schema) if schema else reader).load(str(table.path))

    def case(self, number: int) -> Case:
        rng = self.rng = random.Random(f"{self.seed}/{number}")
        zone = rng.choice(_ZONES)
        self.spark.conf.set("spark.sql.session.timeZone", zone)
        self.spark.conf.set("spark.sql.ansi.enabled", rng.choice(["true", "true", "false"]))
        t = rng.choice([self.t, self.t, self.o])
        plain = t.plain(self.spark)
        way = rng.choice(_WAYS)
        made = Expressions(rng, plain.schema, self.values[t])
        if way == "sql":
            return self.sql_case(made, t, zone)
        options: dict[str, str] = {}
        start: Step = lambda f: f  # noqa: E731 - one of several
        schema: T.StructType | str = ""
        if rng.random() < 0.2 and not t.keys:
            options["rows_per_task"] = rng.choice(["1", "7"])
        if way == "pushed":
            options["push_filters"] = "true"
        if way == "filter":
            condition = made.condition(rng.choice([0, 0, 1, 2]))
            options |= {"filter": condition, "filter_timezone": zone}
            start = lambda f: f.where(condition)  # noqa: E731
        if way in ("columns", "schema") or rng.random() < 0.1:
            names = rng.sample(plain.columns, rng.randint(1, len(plain.columns)))
            inner = start
            start = lambda f: inner(f).select(*map(quoted, names))  # noqa: E731
            if way == "schema":
                schema = T.StructType([plain.schema[n] for n in names])
            else:
                options["columns"] = json.dumps(names)
        programs = Programs(rng, self.values[t])
        if way == "two":
            program = self.two(programs, t)
            text = f"{t} {program.texts}"
            return Case(text, lambda: self.joined(program, plain, self.o.plain(self.spark)),
                        lambda: self.joined(program, self.load(t), self.load(self.o)))  # fmt: skip
        try:
            program = programs.made(start(plain), 3)
        except PySparkException:
            # Spark refuses the condition itself
            program = Program()
        if way == "pushed" and not any(".where" in text for text in program.texts):
            shown = Expressions(rng, start(plain).schema, self.values[t])
            condition = shown.condition(rng.choice([0, 1, 2]))
            program.steps.insert(0, lambda f: f.where(condition))
            program.texts.insert(0, f".where({condition!r})")
        text = f"{t}\n  {way} {options} {zone} ansi {self.spark.conf.get('spark.sql.ansi.enabled')}\n  {program.texts}"
        return Case(text, lambda: program.of(start(plain)),
                    lambda: program.of(self.load(t, schema, **options)), way in ("filter", "pushed"))  # fmt: skip

    def two(self, programs: Programs, t: SparkTable) -> Program:
        """Return a program whose first step is a join or a union of two tables."""
        rng = self.rng
        left, right = t.plain(self.spark).schema, self.o.plain(self.spark).schema
        program = Program()
        if rng.random() < 0.3:
            condition = Expressions(rng, left, self.values[t]).condition(1)
            word = rng.choice(["unionByName", "union", "exceptAll", "intersectAll", "subtract"])
            plain = "map<" not in left.simpleString()
            word = word if plain else "union"
            program.texts = [f"t.{word}(t.where({condition!r}))"]
            program.steps = [lambda f: getattr(f, word)(f.where(condition))]
            return program
        how = rng.choice(["inner", "left", "right", "full", "left_semi", "left_anti"])
        pairs = [(a, b) for a in left for b in right if kind_of(a.dataType) == kind_of(b.dataType)
                 and kind_of(a.dataType) not in ("map",) and (a.dataType == b.dataType or
                 kind_of(a.dataType) in ("int", "text", "decimal"))]  # fmt: skip
        a, b = rng.choice(pairs)
        program.texts = [f"join {how} t.{a.name} = o.{b.name}"]
        self.on = (a.name, b.name, how)
        return program

    def joined(self, program: Program, one: DataFrame, other: DataFrame) -> DataFrame:
        if program.steps:
            return program.of(one)
        mine, theirs, how = self.on
        other = other.toDF(*(f"o{i}" for i in range(len(other.columns))))
        at = self.o.plain(self.spark).columns.index(theirs)
        return one.join(other, one[quoted(mine)] == other[f"o{at}"], how)

    def sql_case(self, made: Expressions, t: SparkTable, zone: str) -> Case:
        rng = self.rng
        key = "t" if t is self.t else "o"
        made.prefix = "a."
        form = rng.randrange(4)
        where = f" WHERE {made.condition(rng.choice([0, 1, 2]))}" if rng.random() < 0.8 else ""
        names = [
            made.name(n)
            for n in rng.sample([n for n, _ in made.all], rng.randint(1, len(made.all)))
        ]
        if form == 0:
            query = f"SELECT {', '.join(names)} FROM {{{key}}} a{where}"
        elif form == 1:
            query = (
                f"SELECT {made.reduction()} AS r1, {made.reduction()} AS r2 FROM {{{key}}} a{where}"
            )
        elif form == 2:
            query = (
                f"SELECT {made.value()} AS v1, {made.value()} AS v2, a.k FROM {{{key}}} a{where}"
            )
        else:
            other = Expressions(rng, self.o.plain(self.spark).schema, self.values[self.o], "b.")
            how = rng.choice(["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "FULL JOIN"])
            on = f"a.k = b.k{rng.choice(['', f' AND {other.leaf()}', f' AND {made.leaf()}'])}"
            query = f"SELECT {', '.join(names)} FROM {{{key}}} a {how} {{o}} b ON {on}{where}"
        names_of = {"t": str(self.t.path), "o": str(self.o.path)}
        text = query.replace("{t}", names_of["t"]).replace("{o}", names_of["o"])
        plain = query.replace("{t}", "plain_t").replace("{o}", "plain_o")
        return Case(f"{t}\n  sql {zone} ansi {self.spark.conf.get('spark.sql.ansi.enabled')}\n  {text}",
                    lambda: self.spark.sql(plain),
                    lambda: sql(self.spark, text, connection=self.address))  # fmt: skip


def difference(want: Outcome, got: Outcome, lenient: bool) -> str | None:
    """Return how two outcomes differ; None where they do not."""
    if want[0] != "rows":
        if got[0] == "rows":
            # what fails on one row may pass where the row is left out
            return None if lenient else f"expected {want[1][0]}, found {len(got[1][0])} rows"
        if of_fluss(got) or got[1][0] == want[1][0] or lenient:
            return None
        return f"expected {want[1][1][:300]}\n  found {got[1][1][:600]}"
    if got[0] != "rows":
        if of_fluss(got):
            return None
        return f"expected {len(want[1][0])} rows\n  found {got[1][1][:900]}"
    if want[1] == got[1]:
        return None
    if want[1][1] != got[1][1]:
        return f"types {want[1][1]}\n  found {got[1][1]}"
    missing = collections.Counter(want[1][0]) - collections.Counter(got[1][0])
    extra = collections.Counter(got[1][0]) - collections.Counter(want[1][0])
    return f"expected {len(want[1][0])}, missing {sorted(missing)[:3]}\n  found {len(got[1][0])}, more {sorted(extra)[:3]}"


def main() -> None:
    """Run the campaign."""
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    programs, seed = (*numbers, *(500, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    refused: dict[str, str] = {}
    begun = time.monotonic()
    with (
        small_spark() as spark,
        tempfile.TemporaryDirectory() as folder,
        EmbeddedFluss(Path(folder) / "data", port=0) as engine,
    ):
        number = 0
        while counts["programs"] < programs:
            found = Round(spark, engine, Path(folder), f"{seed}-{number}")
            number += 1
            for at in range(_PROGRAMS_A_TABLE):
                counts["programs"] += 1
                name = f"{seed}-{number - 1} {at}"
                case = found.case(at)
                want = outcome(case.plain)
                got = outcome(case.fluss)
                counts["refused by Spark"] += want[0] != "rows"
                wrong = difference(want, got, case.lenient)
                if wrong:
                    counts["wrong"] += 1
                    print(f"WRONG {name}: {case.text}\n  {wrong}", flush=True)
                elif of_fluss(got) and want[0] == "rows":
                    counts["refused by Fluss"] += 1
                    text = got[1] if got[0] == "refused" else got[1][1]
                    line = re.search(r"fluss_df\.errors.*", text)
                    reason = re.sub(r"'[^']*'", "'...'", line[0] if line else text)[:160]
                    counts["R " + reason] += 1
                    refused.setdefault(reason, f"{name}: {line[0] if line else text}"[:400])
                elif "-v" in sys.argv:
                    size = len(want[1][0]) if want[0] == "rows" else want[1][0]
                    print(name, size, case.text[-200:].replace("\n", " "), flush=True)
            print(
                f"{counts['programs']} in {time.monotonic() - begun:.0f} s, {counts['wrong']} wrong",
                flush=True,
            )
    for reason, example in refused.items():
        print(f"refused {counts.pop('R ' + reason)}: {example}")
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
