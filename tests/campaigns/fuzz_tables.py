"""Random tables, and a plain model of what is in them: for the queries of ``scan_fuzz``."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import polars as pl
import pyarrow as pa

import fluss_df as fluss
from fluss_df.io import scan_fluss, write_fluss
from fluss_df.metadata import TablePath
from fluss_df.schema import Schema, TableDescriptor

D = decimal.Decimal
NAN, INF = float("nan"), float("inf")
_UTC = dt.UTC

# type and values of each column
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [0, 1, -1, 127, -128]),
    "i16": (pa.int16(), [0, 1, 300, 32767, -32768]),
    "i32": (pa.int32(), [0, 1, -7, 2**31 - 1, -(2**31)]),
    "i64": (pa.int64(), [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "f32": (pa.float32(), [0.0, -0.0, 0.1, 1.5, 16777216.0, NAN, INF, -INF]),
    "f64": (pa.float64(), [0.0, -0.0, 0.1, 1.5, 2.0**53, NAN, INF, -INF, 5e-324]),
    "s": (
        pa.string(),
        ["", "a", "A", "ab", "a%b", "a_b", "b\\", "é", "É", "ß", "😀", "\uffff", "%"],
    ),
    "b": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
    "t0": (pa.timestamp("s"), [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3)]),
    "t3": (pa.timestamp("ms"), [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4000)]),
    "t6": (
        pa.timestamp("us"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 2, 29)],
    ),
    "t9": (
        pa.timestamp("ns"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 2, 29)],
    ),
    "tz": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1970, 1, 1, tzinfo=_UTC), dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=_UTC)],
    ),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12)]),
    "tm3": (pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999000), dt.time(12)]),
    "dec": (pa.decimal128(10, 2), [D("0.00"), D("-1.50"), D("99999999.99"), D("0.10")]),
    "wide": (pa.decimal128(38, 0), [D(0), D(10) ** 37, -(D(10) ** 37), D(1)]),
    "bin": (pa.binary(), [b"", b"a", b"ab", b"\xff", b"\x00"]),
    "fix": (pa.binary(2), [b"ab", b"\x00\x00", b"\xff\xff"]),
    "lst": (pa.list_(pa.int32()), [[], [1], [1, None], [2, 1]]),
    "row": (
        pa.struct({"x": pa.int32(), "y": pa.string()}),
        [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": 2, "y": None}],
    ),
}
SIMPLE = [name for name in TYPES if name not in ("lst", "row")]
# keys have no nulls, and their floats are another matter
KEYS = ["i32", "i64", "s", "day", "b", "i8", "dec", "t3", "bin"]
PARTITIONS: dict[str, list[Any]] = {
    "s": ["a", "ab", "A"],
    "i8": [0, 1, -128],
    "b": [True, False],
    "day": TYPES["day"][1][:2],
    "i64": [0, -1],
    "t3": TYPES["t3"][1],
    "tz": TYPES["tz"][1],
    "time": TYPES["time"][1],
    "f64": [0.5, 1.5],
    "bin": [b"a", b"\xff"],
    "i32": [0, -7],
}


_NUMBERS = ("i8", "i16", "i32", "i64", "f32", "f64", "dec", "wide")


def comparable(one: str, other: str) -> bool:
    """Whether columns can be compared with each other."""
    return TYPES[one][0] == TYPES[other][0] or {one, other} <= {*_NUMBERS}


def polars_types(names: list[str]) -> dict[str, Any]:
    empty = pl.from_arrow(pa.schema([(n, TYPES[n][0]) for n in names]).empty_table())
    assert isinstance(empty, pl.DataFrame)
    return dict(empty.schema)


class Made:
    """A table, and what a plain model says is in it."""

    def __init__(self, rng: random.Random, connection: fluss.FlussConnection, name: str) -> None:
        self.rng = rng
        names = rng.sample(list(TYPES), rng.randint(3, 12))
        self.partitions: list[str] = []
        if rng.random() < 0.4:
            self.partitions = rng.sample(list(PARTITIONS), rng.randint(1, 2))
        self.keys: list[str] = []
        if rng.random() < 0.5:
            self.keys = rng.sample([k for k in KEYS if k not in self.partitions], rng.randint(1, 3))
        names = list(dict.fromkeys([*names, *self.partitions, *self.keys]))
        rng.shuffle(names)
        added = [n for n in names if n not in self.partitions and n not in self.keys]
        added = added[:1] if len(added) > 1 and rng.random() < 0.4 else []
        first = [n for n in names if n not in added]
        self.names = [*first, *added]
        buckets = None
        if self.keys:
            if rng.random() < 0.4:
                buckets = self.keys[: rng.randint(1, len(self.keys))]
        elif rng.random() < 0.5:
            free = [n for n in first if n in KEYS and n not in self.partitions]
            buckets = free[:1] or None
        self.bucket_keys = buckets or []
        primary = [*self.partitions, *self.keys] if self.keys else None
        fields = [(n, TYPES[n][0]) for n in first]
        self.description = (
            f"columns {first} + {added}, partitions {self.partitions}, keys {self.keys},"
            f" bucket keys {buckets}"
        )
        descriptor = TableDescriptor(
            Schema(pa.schema(fields), primary_keys=primary),
            partition_keys=self.partitions or None,
            bucket_keys=buckets,
            bucket_count=rng.randint(1, 3),
            properties={"table.statistics.columns": "*"}
            if rng.random() < 0.5 and not self.keys
            else {},
        )
        self.path = TablePath("fuzz", name)
        admin = connection.get_admin()
        admin.create_table(self.path, descriptor)
        self.rows: dict[Any, dict[str, Any]] = {}
        sizes = [rng.choice([0, 1, 3, 12, 40]) for _ in range(rng.randint(0, 3))]
        for at, size in enumerate(sizes):
            if at == 1 and added:
                admin.alter_table(
                    self.path, add_columns=pa.schema([(n, TYPES[n][0]) for n in added])
                )
                first = self.names
            self._write(connection, first, size)
        if len(sizes) < 2 and added:
            admin.alter_table(self.path, add_columns=pa.schema([(n, TYPES[n][0]) for n in added]))
        self.scan = scan_fluss(self.path, connection=connection)

    def value(self, name: str) -> Any:
        rng = self.rng
        must = name in (*self.partitions, *self.keys, *self.bucket_keys)
        if not must and rng.random() < 0.2:
            return None
        value = rng.choice(PARTITIONS[name] if name in self.partitions else TYPES[name][1])
        # rows of tables with keys hold times in whole milliseconds
        return value.replace(microsecond=0) if self.keys and name == "time" else value

    def _write(self, connection: fluss.FlussConnection, names: list[str], size: int) -> None:
        rows = [{n: self.value(n) for n in names} for _ in range(size)]
        frame = pl.DataFrame(rows, schema=polars_types(names), orient="row")
        write_fluss(frame, self.path, connection=connection, create_partitions=True)
        for row in rows:
            key: Any = len(self.rows)
            if self.keys:
                key = tuple(row[n] for n in (*self.partitions, *self.keys))
            self.rows[key] = {n: row.get(n) for n in self.names}

    def model(self) -> pl.DataFrame:
        return pl.DataFrame(list(self.rows.values()), schema=polars_types(self.names), orient="row")
