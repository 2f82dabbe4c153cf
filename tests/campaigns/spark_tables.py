# ruff: noqa: E501 - conditions and expressions are read best on one line
"""Random tables of Fluss, and Parquet files with the same rows, for ``spark_fuzz``."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from fluss_df.client.admin import FlussAdmin
from fluss_df.client.connection import FlussConnection
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, DataType, TypeRoot, from_arrow

_WIDE = decimal.Context(prec=60)
_DAYS = [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(1969, 12, 31), dt.date(1970, 1, 1),
         dt.date(2024, 2, 29), dt.date(9999, 12, 31)]  # fmt: skip
_TIMES = [dt.time(0), dt.time(12), dt.time(23, 59, 59, 999999), dt.time(1, 2, 3, 4000)]
_MOMENTS = [dt.datetime(1, 1, 1), dt.datetime(1900, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            dt.datetime(1970, 1, 1), dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 11, 3, 1, 30),
            dt.datetime(2024, 2, 29, 1, 2, 3, 4005), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]  # fmt: skip
_NAN, _INF = math.nan, math.inf
TEXTS = ["", " ", "a", "A", "ab", "a%b", "a_b", "a\\b", "\\", "%", "é", "e\u0301", "ß", "😀", "it's",
         '"', "\0", "\n", "null", "1", "-7", "1.5", "2024-02-29", "true", "\uffff", "a   "]  # fmt: skip
NAMES = ["a", "b c", "é", "x`y", "a.b", "%", "select", "_", "'", '"q"', "long name with words", "1", "😀",
         "a_", "C", "partition", "value", "tab\tbed", "\\", "a,b", "[x]", "{y}", "$z", "n n", "#", "@", "?"]  # fmt: skip


def decimals(precision: int, scale: int) -> list[Decimal]:
    """Return edges of a type of decimals."""
    largest = _WIDE.scaleb(Decimal(10**precision - 1), -scale)
    return [largest, largest.copy_negate(), Decimal(0), _WIDE.scaleb(Decimal(1), -scale), _WIDE.scaleb(Decimal(-15), -scale)
            if precision > 1 else Decimal(0)]  # fmt: skip


def moments(unit: str) -> list[dt.datetime]:
    """Return times that a unit holds."""
    found = _MOMENTS
    if unit == "ns":
        found = [m for m in found if 1900 <= m.year < 2100]
    if unit == "s":
        found = [m.replace(microsecond=0) for m in found]
    if unit == "ms":
        found = [m.replace(microsecond=m.microsecond // 1000 * 1000) for m in found]
    return found


def _types(rng: random.Random) -> dict[str, tuple[pa.DataType, list[Any]]]:
    p = rng.choice([1, 2, 5, 9, 10, 18, 19, 28, 37, 38])
    s = rng.choice([0, p, p // 2, min(p, 6)])
    unit = rng.choice(["s", "ms", "us", "ns"])
    zoned = [m.replace(tzinfo=dt.UTC) for m in moments(unit)]
    times = [t.replace(microsecond=0) if unit == "s" else t.replace(microsecond=t.microsecond // 1000 * 1000)
             if unit == "ms" else t for t in _TIMES]  # fmt: skip
    time = {"s": pa.time32("s"), "ms": pa.time32("ms")}.get(unit, pa.time64("us"))
    inner = pa.struct([("x", pa.int32()), ("y", pa.string()), ("m", pa.timestamp(unit))])
    rows = [None, {"x": 1, "y": "", "m": moments(unit)[-1]}, {"x": None, "y": None, "m": None}]
    return {
        "i8": (pa.int8(), [0, 1, -1, 127, -128]),
        "i16": (pa.int16(), [0, 1, 300, 32767, -32768]),
        "i32": (pa.int32(), [0, 1, -7, 2**31 - 1, -(2**31)]),
        "i64": (pa.int64(), [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
        "f32": (pa.float32(), [0.0, -0.0, 0.1, 1.5, 16777216.0, _NAN, _INF, -_INF, 1e-45]),
        "f64": (pa.float64(), [0.0, -0.0, 0.1, 1.5, 2.0**53, _NAN, _INF, -_INF, 5e-324, 1e308]),
        "s": (pa.string(), TEXTS),
        "chr": (pa.string(), [t for t in TEXTS if len(t) <= 3]),
        "b": (pa.bool_(), [True, False]),
        "day": (pa.date32(), _DAYS),
        "ntz": (pa.timestamp(unit), moments(unit)),
        "ltz": (pa.timestamp(unit, "UTC"), zoned),
        "tim": (time, times),
        "dec": (pa.decimal128(p, s), decimals(p, s)),
        "bin": (pa.binary(), [b"", b"a", b"ab", b"\xff", b"\0", b"\xff\xfe"]),
        "fix": (pa.binary(2), [b"ab", b"\0\0", b"\xff\xff"]),
        "lst": (pa.list_(pa.int32()), [[], [1], [1, None], [2, 1]]),
        "lsd": (pa.list_(pa.decimal128(p, s)), [[], [decimals(p, s)[0], None]]),
        "lss": (pa.list_(inner), [[], rows]),
        "row": (inner, rows[1:]),
        "deep": (pa.struct([("r", inner), ("l", pa.list_(pa.timestamp(unit, "UTC")))]),
                 [{"r": rows[1], "l": [zoned[0], None]}, {"r": None, "l": None}]),
        "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("", None), ("é", 2**63 - 1)]]),
        "mpt": (pa.map_(pa.date32(), pa.list_(time)), [[], [(_DAYS[0], [times[1], None])]]),
    }  # fmt: skip


# kinds that may be keys, or partitions
_KEYS = (
    "i8",
    "i16",
    "i32",
    "i64",
    "s",
    "b",
    "day",
    "dec",
    "bin",
    "fix",
    "ntz",
    "ltz",
    "chr",
    "tim",
)
_PARTITIONS = ("i8", "i32", "i64", "s", "b", "day", "ntz", "ltz", "tim", "bin", "f32", "f64", "i16")


def as_spark(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of Parquet files that Spark reads as the type that a column has."""
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(as_spark(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(as_spark(kind.key_type), as_spark(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, as_spark(f.type)) for f in kind])
    return kind


class SparkTable:
    """A random table, and a Parquet file of the rows that it should have."""

    def __init__(
        self,
        rng: random.Random,
        connection: FlussConnection,
        name: str,
        folder: Path,
        *,
        nanos: bool = False,
    ) -> None:
        self.rng = rng
        self.nanos = nanos
        self.path = TablePath("sparks", name)
        types = _types(rng)
        kinds = rng.sample(list(types), rng.choice([3, 5, 8, 12]))
        if rng.random() < 0.06:
            kinds = [k for k in types for _ in range(4)]
        names = _names(rng, len(kinds) + 1)
        self.columns = [("k", "i32"), *zip(names[1:], kinds, strict=True)]
        rng.shuffle(self.columns)
        self.types = types
        self.keys: list[str] = []
        self.partitions: list[str] = []
        if rng.random() < 0.4:
            some = [n for n, kind in self.columns if kind in _PARTITIONS and n != "k"]
            rng.shuffle(some)
            self.partitions = some[: rng.randint(1, 2)]
        if rng.random() < 0.45:
            more = [
                n
                for n, kind in self.columns
                if kind in _KEYS and n != "k" and n not in self.partitions
            ]
            self.keys = ["k", *rng.sample(more, min(len(more), rng.choice([0, 0, 1, 2])))]
            rng.shuffle(self.keys)
        self._added: list[str] = []
        if rng.random() < 0.3:
            fixed = {"k", *self.keys, *self.partitions}
            some = [n for n, kind in self.columns if n not in fixed and kind != "chr"]
            self._added = some[:2]
            # columns that are added stand last
            self.columns.sort(key=lambda item: item[0] in self._added)
        fields = [self._column(n, kind) for n, kind in self.columns if n not in self._added]
        primary = [*self.partitions, *self.keys] if self.keys else []
        self.buckets = rng.randint(1, 3)
        self.properties: dict[str, str] = {}
        if rng.random() < 0.5 and not self.keys:
            self.properties["table.statistics.columns"] = "*"
        admin = connection.get_admin()
        admin.create_table(
            self.path,
            TableDescriptor(
                Schema.from_columns(fields, primary),
                partition_keys=self.partitions or None,
                bucket_count=self.buckets,
                properties=self.properties,
            ),
        )
        self.nulls = rng.choice([0.0, 0.1, 0.2, 0.5, 0.9])
        self.schema = pa.schema([(n, types[kind][0]) for n, kind in self.columns])
        rows: dict[Any, dict[str, Any]] = {}
        at = 0
        for size in [rng.choice([0, 1, 3, 12, 40]) for _ in range(rng.randint(1, 3))]:
            if at:
                self._add_columns(admin)
            made = [self._row(at + i) for i in range(size)]
            at += size
            self._write(connection, made)
            for row in made:
                rows[tuple(map(repr, (row[n] for n in primary))) or row["k"]] = row
        self._add_columns(admin)
        if self.keys and rows and rng.random() < 0.5:
            gone = rng.sample(list(rows), max(1, len(rows) // 4))
            keys = pa.Table.from_pylist([{n: rows[g][n] for n in primary} for g in gone],
                                        pa.schema([self.schema.field(n) for n in primary]))  # fmt: skip
            with connection.get_table(self.path).new_upsert().create_writer() as writer:
                writer.delete_arrow(keys)
            for g in gone:
                del rows[g]
        self.rows = pa.Table.from_pylist(list(rows.values()), self.schema)
        self.file = folder / f"{name}.parquet"
        spark = pa.schema([(f.name, as_spark(f.type)) for f in self.schema])
        pq.write_table(self.rows.cast(spark), self.file)
        self._plain: DataFrame | None = None

    def _add_columns(self, admin: FlussAdmin) -> None:
        if self._added:
            added, self._added = self._added, []
            admin.alter_table(
                self.path, add_columns=pa.schema([self.schema.field(n) for n in added])
            )

    def _column(self, name: str, kind: str) -> Column:
        must = name in self.keys or name in self.partitions
        if kind == "chr":
            return Column(name, DataType(TypeRoot.CHAR, not must, length=3))
        return Column(name, from_arrow(self.types[kind][0], not must))

    def _row(self, number: int) -> dict[str, Any]:
        rng = self.rng
        row: dict[str, Any] = {}
        for name, kind in self.columns:
            values = self.types[kind][1]
            if name in self.partitions:
                # names of partitions: servers take letters, digits and a few others
                values = [v for v in values if v != b"" and _names_a_partition(v)][:3] or values[:1]
            if name in self._added:
                row[name] = None
            elif name == "k":
                row[name] = number if not self.keys else rng.randrange(12)
            elif (
                name not in self.keys and name not in self.partitions and rng.random() < self.nulls
            ):
                row[name] = None
            else:
                row[name] = rng.choice(values)
                if self.keys and isinstance(row[name], dt.time):
                    # rows of tables with keys hold times in whole milliseconds
                    row[name] = row[name].replace(microsecond=row[name].microsecond // 1000 * 1000)
        return row

    def _write(self, connection: FlussConnection, rows: list[dict[str, Any]]) -> None:
        table = connection.get_table(self.path)
        data = pa.Table.from_pylist(rows, self.schema)
        if self._added:
            data = data.drop_columns(self._added)
        if self.nanos:
            data = self._finer(data)
        way: Any = table.new_upsert() if self.keys else table.new_append()
        with way.create_writer(create_partitions=True) as writer:
            writer.write_arrow(data)

    def _finer(self, data: pa.Table) -> pa.Table:
        """Add nanoseconds to times that have room for them, which Spark does not see."""
        for at, item in enumerate(data.schema):
            kind = item.type
            fixed = item.name in self.keys or item.name in self.partitions
            if not pa.types.is_timestamp(kind) or kind.unit != "ns" or fixed:
                continue
            more = pa.array(
                [self.rng.choice([0, 1, 500, 999]) for _ in range(len(data))], pa.int64()
            )
            column = data.column(at).cast(pa.int64())
            data = data.set_column(at, item, pc.add(column, more).cast(kind))
        return data

    def plain(self, spark: SparkSession) -> DataFrame:
        """Return the rows as Spark reads them from Parquet."""
        if self._plain is None:
            self._plain = spark.read.parquet(str(self.file))
        return self._plain

    def __repr__(self) -> str:
        columns = ", ".join(f"{n!r} {self.schema.field(n).type}" for n, _ in self.columns)
        return f"{self.path} ({columns}), keys {self.keys}, partitions {self.partitions}, {self.rows.num_rows} rows"


def _names_a_partition(value: Any) -> bool:
    return not isinstance(value, str) or (value.isalnum() and value.isascii())


def _names(rng: random.Random, count: int) -> list[str]:
    """Return names, no two of which are one to Spark."""
    if rng.random() < 0.5:
        return [f"c{i}" for i in range(count)]
    some = rng.sample(NAMES, min(count, len(NAMES)))
    return [*some, *(f"c{i}" for i in range(count - len(some)))]
