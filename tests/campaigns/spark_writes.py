# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random writes by the data source in this process, held against a plain model of the table.

``python -m tests.campaigns.spark_writes [TABLES=200] [SEED=0]``

Dataframes have the columns of a random table in any order, some of them of another type, some left
out or more than there are, some nulls where there may be none. A write must be refused, or each value
must be in the table as it was given. Needs no JVM. Ends with 1 where a value is another one.
"""

from __future__ import annotations

import collections
import datetime as dt
import math
import random
import re
import sys
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from fluss_df.client.connection import FlussConnection
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.metadata import TablePath
from fluss_df.spark import FlussDataSource
from fluss_df.spark.plan.options import ReadOptions
from fluss_df.spark.plan.planning import TableScan
from fluss_df.spark.plan.types import arrow_schema
from fluss_df.spark.read.reading import _log, _snapshot
from tests.campaigns.spark_tables import SparkTable, as_spark

_OTHERS: dict[str, list[pa.DataType]] = {
    "int": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.float32(), pa.decimal128(20, 0),
            pa.decimal128(5, 2), pa.string(), pa.bool_()],
    "text": [pa.binary(), pa.int32(), pa.date32(), pa.string()],
    "time": [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.string(), pa.int64()],
}  # fmt: skip


def canonical(value: Any) -> Any:
    """Return what two equal values have in common, whatever their types are."""
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, float) and value == 0:
        return "-0" if math.copysign(1, value) < 0 else Fraction(0)
    if isinstance(value, int | float | Decimal):
        return Fraction(value)
    if isinstance(value, dt.datetime):
        return (
            value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"
            if value.tzinfo
            else value.isoformat()
        )
    if isinstance(value, list):
        return [canonical(v) for v in value]
    if isinstance(value, tuple):
        return tuple(canonical(v) for v in value)
    if isinstance(value, dict):
        return {name: canonical(v) for name, v in sorted(value.items())}
    return value


def other_type(rng: random.Random, kind: pa.DataType) -> pa.DataType:
    """Return a type from which a column of a type may be written, or may not."""
    if pa.types.is_struct(kind):
        fields = [(f.name, other_type(rng, f.type)) for f in kind]
        rng.shuffle(fields)
        return pa.struct(fields if rng.random() < 0.8 else fields[1:])
    if pa.types.is_list(kind):
        return pa.list_(other_type(rng, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(other_type(rng, kind.key_type), other_type(rng, kind.item_type))
    group = "int"
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
        group = "text"
    if pa.types.is_temporal(kind):
        group = "time"
    return rng.choice([as_spark(kind), as_spark(kind), *_OTHERS[group]])


def converted(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a column as one of another type that means the same, as near as there is."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: converted(value[f.name], f.type) for f in kind}
    if pa.types.is_list(kind):
        return [converted(v, kind.value_type) for v in value]
    if pa.types.is_map(kind):
        return [(converted(k, kind.key_type), converted(v, kind.item_type)) for k, v in value]
    return pa.scalar(value).cast(kind, safe=False).as_py() if not _direct(value, kind) else value


def large(kind: pa.DataType) -> pa.DataType:
    """Return a type with large strings and large binary data."""
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, large(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(large(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(large(kind.key_type), large(kind.item_type))
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def _direct(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return False
    return True


class Write:
    """A dataframe for a table, and what must be in the table after."""

    def __init__(
        self, rng: random.Random, connection: FlussConnection, name: str, folder: Path, address: str
    ) -> None:
        self.rng, self.connection, self.address = rng, connection, address
        self.table = SparkTable(rng, connection, name, folder)
        self.before = self.table.rows.to_pylist()

    def data(self, rows: list[dict[str, Any]]) -> tuple[pa.Table, list[dict[str, Any]]] | None:
        """Return a dataframe of rows in types of its own, and the values that it has."""
        rng, table = self.rng, self.table
        change = rng.random() < 0.7
        fields = []
        for name, _ in table.columns:
            kind = as_spark(table.schema.field(name).type)
            if change and rng.random() < 0.25:
                kind = other_type(rng, table.schema.field(name).type)
            fields.append((name, kind))
        if rng.random() < 0.7:
            rng.shuffle(fields)
        word = rng.random()
        if word < 0.05:
            fields.pop()
        elif word < 0.1:
            fields.append(("more", pa.int32()))
        elif word < 0.13:
            fields[0] = (fields[0][0].upper(), fields[0][1])
        kinds = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
        schema = arrow_schema(kinds, f"table {table.path}")
        made = []
        for row in rows:
            if rng.random() < 0.03:
                row = {**row, rng.choice(list(row)): None}
            try:
                made.append({n: converted(row.get(n), schema.field(n).type) for n in schema.names})
            except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError):
                return None
        try:
            data = pa.Table.from_pylist(made, schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
        return data, data.to_pylist()

    def run(self) -> tuple[str, str]:
        """Return what came of a write: ``right``, ``wrong``, ``refused`` or ``skipped``, and why."""
        rng, table = self.rng, self.table
        given = self.data([table._row(1000 + i) for i in range(rng.choice([0, 1, 5, 30]))])
        if given is None:
            return "skipped", ""
        data, values = given
        options = {"path": str(table.path), "connection": self.address, "create.partitions": "true"}
        mode = (
            rng.choice(["auto", "auto", "upsert", "delete", "partial-update", "operation"])
            if table.keys
            else "auto"
        )
        if mode == "operation":
            options["operation.column"] = "op "
            words = [rng.choice(["insert", "+U", "delete", "-D", "-U", "Upsert"]) for _ in values]
            data = data.append_column("op ", pa.array(words, pa.string()))
        else:
            words = ["delete" if mode == "delete" else "+U"] * len(values)
            options["write.mode"] = mode
        if mode in ("delete", "partial-update"):
            primary = [*table.partitions, *table.keys]
            some = [n for n in data.schema.names if n in primary or rng.random() < 0.5]
            data = data.select(some)
        if not table.keys and rng.random() < 0.1:
            options["write.mode"] = "append"
        whole = not table.keys and rng.random() < 0.3
        if whole:
            options["all.or.nothing"] = "true"
        schema = from_arrow_schema(data.schema, prefer_timestamp_ntz=True)
        if rng.random() < 0.2:
            # as the setting spark.sql.execution.arrow.useLargeVarTypes has them
            data = data.cast(pa.schema([(f.name, large(f.type)) for f in data.schema]))
        text = f"{mode} {table}\n  {data.schema.to_string()[:1500]}"
        try:
            writer: Any = FlussDataSource(options).writer(schema=schema, overwrite=False)
            batches = data.to_batches(max_chunksize=7)
            # two tasks, the second of which may have no rows
            messages = [writer.write(iter(some)) for some in (batches[:2], batches[2:])]
            writer.commit(messages)
        except FlussError as error:
            if whole and self.found() != collections.Counter(map(self._text, self.before)):
                return "wrong", f"rows of a write that failed as a whole: {text}"
            return "refused", f"{error.message}"
        except Exception as error:
            return "raised", f"{type(error).__name__}: {error}\n  {text}"
        expected = self.expected(values, words, data.schema.names, partial=mode == "partial-update")
        found = self.found()
        missing, more = expected - found, found - expected
        if missing or more:
            return "wrong", f"{text}\n  missing {list(missing)[:2]}\n  more {list(more)[:2]}"
        return "right", ""

    def expected(
        self, values: list[dict[str, Any]], words: list[str], names: list[str], *, partial: bool
    ) -> collections.Counter[str]:
        table = self.table
        if not table.keys:
            return collections.Counter(map(self._text, [*self.before, *values]))
        primary = [*table.partitions, *table.keys]
        rows: dict[str, dict[str, Any]] = {}
        for row in self.before:
            rows[repr([canonical(row[n]) for n in primary])] = row
        for row, word in zip(values, words, strict=True):
            key = repr([canonical(row[n]) for n in primary])
            if word in ("delete", "-D"):
                rows.pop(key, None)
            elif word != "-U":
                rows[key] = (
                    {**rows.get(key, {}), **{n: row[n] for n in names if n in row}}
                    if partial
                    else row
                )
        return collections.Counter(map(self._text, rows.values()))

    def _text(self, row: dict[str, Any]) -> str:
        return repr([canonical(row.get(n)) for n, _ in self.table.columns])

    def found(self) -> collections.Counter[str]:
        """Return what is in the table, by a reader that is none of Spark's."""
        rows = raw_rows(self.connection, self.table.path, self.address)
        return collections.Counter(map(self._text, rows))


def raw_rows(connection: FlussConnection, path: TablePath, address: str) -> list[dict[str, Any]]:
    """Return the rows of a table as they were decoded, in no type of Spark's."""
    scan = TableScan(ReadOptions.parse({"path": str(path), "connection": address}))
    read = _snapshot if scan.info.has_primary_key() else _log
    tables = [t for task in scan.tasks() for t in read(connection, scan.info, task)]
    return [row for t in tables for row in t.to_pylist()]


def main() -> None:
    """Run the campaign."""
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    tables, seed = (*numbers, *(200, 0)[len(numbers) :])
    counts: collections.Counter[str] = collections.Counter()
    reasons: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedFluss(Path(folder) / "data", port=0) as engine,
    ):
        connection = engine.connection()
        connection.get_admin().create_database("sparks")
        for number in range(tables):
            rng = random.Random(f"{seed}-{number}")
            write = Write(rng, connection, f"t{seed}_{number}", Path(folder), str(engine.address))
            word, why = write.run()
            counts[word] += 1
            if word in ("wrong", "raised"):
                print(f"{word.upper()} {number}: {why}", flush=True)
            elif word == "refused":
                reason = re.sub(r"'[^']*'|\"[^\"]*\"|\\d+", "...", why.split(":", 1)[-1])[:90]
                counts["R " + reason] += 1
                reasons.setdefault("R " + reason, f"{number}: {why}"[:300])
    for reason, example in reasons.items():
        print(f"refused {counts.pop(reason)}: {example}")
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", seed {seed}")
    sys.exit(bool(counts["wrong"] + counts["raised"]))


if __name__ == "__main__":
    main()
