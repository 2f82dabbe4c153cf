# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random conditions and pushed filters, by the data source in this process, held against Spark.

``python -m tests.campaigns.spark_conditions [TABLES=30] [SEED=0]``

For each random table Spark says of many conditions for which rows of a Parquet file they are true. By
the option ``filter`` exactly these rows may come; of Spark's filters at least these, since Spark
evaluates them again. What the source reads is compared value by value. Ends with 1 where rows differ.
"""

from __future__ import annotations

import collections
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import types as T  # noqa: N812 - as Spark's own documentation has it

from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.spark import FlussDataSource
from fluss_df.spark.source import FlussReader
from tests.campaigns.spark_expressions import Expressions, kind_of, quoted, spark_literal
from tests.campaigns.spark_fuzz import exact, small_spark
from tests.campaigns.spark_tables import SparkTable, as_spark

_ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe"]
_CONDITIONS = 40


def texts(table: pa.Table) -> list[str]:
    """Return the text of each row."""
    columns = [column.to_pylist() for column in table.columns]
    return [repr(exact(row)) for row in zip(*columns, strict=True)]


def read(reader: FlussReader) -> list[str]:
    """Return the rows that all tasks of a reader hand on."""
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [row for batch in batches for row in texts(pa.Table.from_batches([batch]))]


def true_for(
    spark: SparkSession, table: SparkTable, conditions: Sequence[str]
) -> list[list[bool] | None]:
    """Return for each condition whether it is true for each row; None where Spark has an error."""
    if not conditions:
        return []
    made = [f"coalesce(({text}), false) AS c{i}" for i, text in enumerate(conditions)]
    try:
        found = table.plain(spark).selectExpr(*made).toArrow()
    except PySparkException:
        half = len(conditions) // 2
        if not half:
            return [None]
        return [
            *true_for(spark, table, conditions[:half]),
            *true_for(spark, table, conditions[half:]),
        ]
    return [column.to_pylist() for column in found.columns]


def pushed(
    rng: random.Random, table: SparkTable, schema: T.StructType
) -> tuple[ds.Filter, str] | None:
    """Return a filter as Spark pushes it, and the same in SQL."""
    name, kind = rng.choice(table.columns)
    found = schema[name].dataType
    column, path = quoted(name), (name,)
    there = [v for v in table.types[kind][1] if not isinstance(v, list | dict)]
    if kind_of(found) in ("array", "struct", "map") or rng.random() < 0.1:
        if rng.random() < 0.5:
            return ds.IsNull(path), f"{column} IS NULL"
        return ds.Not(ds.IsNull(path)), f"{column} IS NOT NULL"
    value, other = rng.choice(there), rng.choice(there)
    text, more = spark_literal(value, found), spark_literal(other, found)
    forms: list[tuple[ds.Filter, str]] = [
        (ds.EqualTo(path, value), f"{column} = {text}"),
        (ds.EqualNullSafe(path, value), f"{column} <=> {text}"),
        (ds.EqualNullSafe(path, None), f"{column} <=> NULL"),
        (ds.GreaterThan(path, value), f"{column} > {text}"),
        (ds.GreaterThanOrEqual(path, value), f"{column} >= {text}"),
        (ds.LessThan(path, value), f"{column} < {text}"),
        (ds.LessThanOrEqual(path, value), f"{column} <= {text}"),
        (ds.In(path, (value, other)), f"{column} IN ({text}, {more})"),
        (ds.In(path, (value, None)), f"{column} IN ({text}, NULL)"),
    ]
    if kind in ("s", "chr"):
        forms += [(ds.StringStartsWith(path, value), f"startswith({column}, {text})"),
                  (ds.StringEndsWith(path, value), f"endswith({column}, {text})"),
                  (ds.StringContains(path, value), f"contains({column}, {text})")]  # fmt: skip
    made, sql = rng.choice(forms)
    return (ds.Not(made), f"NOT ({sql})") if rng.random() < 0.3 else (made, sql)


class Conditions:
    """A table, its rows as Spark has them, and what differs."""

    def __init__(
        self, spark: SparkSession, table: SparkTable, address: str, rng: random.Random
    ) -> None:
        self.spark, self.table, self.rng = spark, table, rng
        self.options = {"path": str(table.path), "connection": address}
        if rng.random() < 0.3 and not table.keys:
            self.options["rows.per.task"] = rng.choice(["1", "5"])
        if table.nanos:
            self.options["truncate.nanoseconds"] = "true"
        self.schema = table.plain(spark).schema
        self.arrow = pa.schema([(f.name, as_spark(f.type)) for f in table.schema])
        self.rows = texts(table.rows.cast(self.arrow))
        self.counts: collections.Counter[str] = collections.Counter()

    def wrong(self, what: str, options: Any, missing: Any, more: Any) -> None:
        self.counts["wrong"] += 1
        print(
            f"WRONG {what} {options}\n  {self.table}\n  missing {list(missing)[:2]}\n  more {list(more)[:2]}",
            flush=True,
        )

    def reader(self, **options: str) -> FlussReader:
        found = FlussDataSource({**self.options, **options}).reader(self.schema)
        assert isinstance(found, FlussReader)
        return found

    def whole(self) -> None:
        source = FlussDataSource(self.options)
        kinds = [f"{f.name} {f.dataType.simpleString()}" for f in source.schema()]
        expected = [f"{f.name} {f.dataType.simpleString()}" for f in self.schema]
        if kinds != expected:
            self.wrong("types", "", expected, kinds)
        self.compare("rows", {}, read(self.reader()), self.rows, exactly=True)

    def compare(
        self, what: str, options: Any, found: list[str], expected: list[str], *, exactly: bool
    ) -> None:
        want, got = collections.Counter(expected), collections.Counter(found)
        if want - got or (exactly and got - want):
            self.wrong(what, options, (want - got), (got - want))
        self.counts[what] += 1

    def filters(self, zone: str, ansi: bool) -> None:
        self.spark.conf.set("spark.sql.session.timeZone", zone)
        self.spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
        values = {n: [v for v in self.table.rows.column(n).to_pylist() if v is not None][:12]
                  for n in self.table.schema.names}  # fmt: skip
        made = Expressions(self.rng, self.schema, values)
        conditions = [made.condition(self.rng.choice([0, 0, 0, 1, 2])) for _ in range(_CONDITIONS)]
        conditions += [made.simple(self.rng.choice([0, 1, 1, 2])) for _ in range(2 * _CONDITIONS)]
        conditions += [self.on(names) for names in (self.table.keys, self.table.partitions)
                       if names for _ in range(8)]  # fmt: skip
        taken: dict[str, list[str]] = {}
        for text in conditions:
            try:
                reader = self.reader(**{"filter": text, "filter.timezone": zone})
                taken[text] = read(reader)
            except FlussError as error:
                reason = re.sub(r"'[^']*'|\"[^\"]*\"", "...", error.message)
                self.counts[
                    "refused" if "cannot be evaluated" in reason else f"R {error.message[:300]}"
                ] += 1
        for text, true in zip(taken, true_for(self.spark, self.table, list(taken)), strict=True):
            if true is None:
                self.counts["error of Spark"] += 1
                continue
            expected = [row for row, kept in zip(self.rows, true, strict=True) if kept]
            self.compare("filter", (text, zone, ansi), taken[text], expected, exactly=True)

    def on(self, names: Sequence[str]) -> str:
        """Return a condition on all of some columns, as on a whole key."""
        rng, table = self.rng, self.table
        names = [*names, *(table.partitions if names == table.keys else [])]
        rows = table.rows.to_pylist()
        parts = []
        row = rng.choice(rows) if rows else {}
        for name in names:
            kind = table.types[dict(table.columns)[name]]
            found = self.schema[name].dataType
            values = (
                [row.get(name, kind[1][0]), *rng.sample(kind[1], 2)]
                if name != "k"
                else [row.get("k", 0), 3, 4]
            )
            texts_ = [spark_literal(v, found, rng) for v in values]
            parts.append(
                rng.choice(
                    [f"{quoted(name)} = {texts_[0]}", f"{quoted(name)} IN ({', '.join(texts_)})",
                     f"{quoted(name)} <=> {texts_[0]}", f"{texts_[0]} = {quoted(name)}",
                     f"{quoted(name)} >= {texts_[0]}"]
                )
            )  # fmt: skip
        rng.shuffle(parts)
        return " AND ".join(parts)

    def pushes(self) -> None:
        self.spark.conf.set("spark.sql.ansi.enabled", "true")
        made = [[p for p in (pushed(self.rng, self.table, self.schema) for _ in range(self.rng.choice([1, 1, 2]))) if p]
                for _ in range(_CONDITIONS)]  # fmt: skip
        conditions = [" AND ".join(f"({sql})" for _, sql in some) for some in made]
        for some, true in zip(made, true_for(self.spark, self.table, conditions), strict=True):
            if true is None:
                self.counts["error of Spark"] += 1
                continue
            reader = self.reader(**{"push.filters": "true"})
            list(reader.pushFilters([item for item, _ in some]))
            expected = [row for row, kept in zip(self.rows, true, strict=True) if kept]
            self.compare("pushed", some, read(reader), expected, exactly=False)


def main() -> None:
    """Run the campaign."""
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    tables, seed = (*numbers, *(30, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    with (
        small_spark() as spark,
        tempfile.TemporaryDirectory() as folder,
        EmbeddedFluss(Path(folder) / "data", port=0) as engine,
    ):
        connection = engine.connection()
        connection.get_admin().create_database("sparks")
        for number in range(tables):
            rng = random.Random(f"{seed}-{number}")
            table = SparkTable(
                rng, connection, f"t{seed}_{number}", Path(folder), nanos=rng.random() < 0.3
            )
            found = Conditions(spark, table, str(engine.address), rng)
            found.whole()
            found.filters(rng.choice(_ZONES), rng.random() < 0.5)
            found.pushes()
            counts += found.counts
            print(
                f"{number} {time.monotonic() - begun:.0f} s {dict(found.counts)}"[:300], flush=True
            )
    for reason, many in counts.items():
        if reason.startswith("R "):
            print(f"refused {many}: {reason[2:]}")
    print(
        ", ".join(f"{n} {what}" for what, n in counts.items() if not what.startswith("R "))
        + f", seed {seed}"
    )
    sys.exit(bool(counts["wrong"]))


if __name__ == "__main__":
    main()
