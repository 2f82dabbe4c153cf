"""Merging a whole batch at once gives what a simple model gives, record after record."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.engine.engine import Engine
from fluss_df.engine.merge.aggregates import aggregate_of
from fluss_df.metadata import ChangeType, TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.values import ValueDecoder
from fluss_df.record.log.log_decode import LogDecoder
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column, DataType, TypeRoot

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("i", pa.int8()),
        ("l", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(30, 2)),
        ("n", pa.list_(pa.int32())),
    ]
)
ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
SUMS = {"i": "sum", "l": "product", "f": "sum", "s": "listagg", "b": "bool_or", "d": "sum"}
BOUNDS = {"i": "max", "l": "min", "f": "max", "s": "min", "b": "bool_and", "d": "max"}
SOME = {"i": "first_value", "l": "sum", "f": "product", "s": "last_value", "n": "first_value"}
CASES: dict[str, tuple[dict[str, str], dict[str, str], list[str] | None]] = {
    "first row": ({ENGINE: "first_row"}, {}, None),
    "versions": ({ENGINE: "versioned", VERSION: "l"}, {}, None),
    "partial": ({}, {}, ["id", "i", "s", "n"]),
    "keys alone": ({}, {}, ["id"]),
    "numbered": ({}, {}, ["id", "i", "s", "n"]),
    "numbered sums": (
        {ENGINE: "aggregation", "table.delete.behavior": "allow"},
        SUMS,
        ["id", "i", "d"],
    ),
    "sums": ({ENGINE: "aggregation"}, SUMS, None),
    "bounds": ({ENGINE: "aggregation", "table.delete.behavior": "allow"}, BOUNDS, None),
    "some": ({ENGINE: "aggregation", "table.delete.behavior": "allow"}, SOME, None),
    "partial sums": ({ENGINE: "aggregation"}, SUMS, ["id", "l", "d"]),
    "partial deletes": (
        {ENGINE: "aggregation", "table.delete.behavior": "allow"},
        SOME,
        ["id", "l", "f"],
    ),
}


def rows(choose: random.Random, count: int, keys: int) -> pa.Table:
    def some(*values: Any) -> Any:
        return None if choose.random() < 0.2 else choose.choice(values)

    made = [
        {
            "id": choose.randrange(keys),
            "i": some(0, 1, -1, 100),
            "l": some(0, 3, -2, 2**40, choose.randrange(9)),
            "f": some(0.0, -0.0, 0.1, 1e300, float("nan"), float("inf"), choose.random()),
            "s": some("", "a", "ü"),
            "b": some(True, False),
            "d": some(Decimal("0.01"), Decimal("-12345678901234567890.99")),
            "n": some([], [1, None]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


Row = dict[str, Any]


class Model:
    """The rows of a table, changed one after the other."""

    def __init__(self, case: str) -> None:
        properties, functions, targets = CASES[case]
        self.rows: dict[int, Row] = {}
        self._engine = properties.get(ENGINE, "")
        ignores = "ignore" if self._engine else "allow"
        self._ignores = properties.get("table.delete.behavior", ignores) == "ignore"
        self._functions = functions
        self._targets = targets
        self._number = 1 if case.startswith("numbered") else None

    def put(self, rows: list[Row], deletes: list[bool]) -> list[tuple[str, Row]]:
        """Write records; return the changes."""
        changes: list[tuple[str, Row]] = []
        for row, delete in zip(rows, deletes, strict=True):
            key = row["id"]
            old = self.rows.get(key)
            if delete:
                new = old if self._ignores or old is None else self._deleted(old)
            else:
                new = self._inserted(row) if old is None else self._merged(old, row)
            if new is old:
                continue
            if old is not None:
                changes.append(("-U" if new is not None else "-D", old))
            if new is None:
                del self.rows[key]
            else:
                changes.append(("+I" if old is None else "+U", new))
                self.rows[key] = new
        return changes

    def _inserted(self, row: Row) -> Row:
        new = {name: row.get(name) for name in SCHEMA.names}
        if self._number is not None:
            new[NUMBER] = self._number
            self._number += 1
        return new

    def _merged(self, old: Row, row: Row) -> Row:
        if self._engine == "first_row":
            return old
        if self._engine == "versioned":
            lowest = -(2**63)
            versions = [lowest if given["l"] is None else given["l"] for given in (old, row)]
            return row if versions[1] >= versions[0] else old
        if self._engine == "aggregation":
            made = {n: self._aggregate(n, old[n], value) for n, value in row.items() if n != "id"}
            return {**old, **made}
        return {**old, **row} if row.keys() != {"id"} else old

    def _deleted(self, old: Row) -> Row | None:
        if self._targets is None:
            return None
        left = {n: None if n in self._targets and n != "id" else v for n, v in old.items()}
        return left if any(left[n] is not None for n in left if n not in self._targets) else None

    def _aggregate(self, name: str, old: Any, new: Any) -> Any:
        function = self._functions.get(name, "last_value_ignore_nulls")
        if function == "last_value":
            return new
        if old is None or new is None:
            return new if old is None else old
        match function:
            case "first_value":
                return old
            case "listagg":
                return f"{old},{new}"
            case "max" | "bool_or":
                return new if order(new) > order(old) else old
            case "min" | "bool_and":
                return new if order(new) <= order(old) else old
            case "sum" | "product":
                made = old + new if function == "sum" else old * new
                return wrapped(made, BITS[name]) if name in BITS else made
        return new


BITS = {"i": 8, "l": 64}
NUMBER = "l"


def wrapped(value: int, bits: int) -> int:
    """Return what Java makes of an integer that is too large."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def order(value: Any) -> Any:
    # NaN is the largest number, and -0.0 less than 0.0
    if isinstance(value, float):
        return value != value, value, math.copysign(1, value)
    return value


class Bucket:
    """A table of the embedded engine with one bucket."""

    def __init__(self, folder: Path, case: str) -> None:
        properties, functions, targets = CASES[case]
        columns = [
            Column(c.name, c.type, None, c.column_id, functions.get(c.name))
            for c in Schema(SCHEMA, ["id"]).columns
        ]
        numbered = [NUMBER] if case.startswith("numbered") else []
        schema = Schema.from_columns(columns, ["id"], auto_increment=numbered)
        descriptor = TableDescriptor(schema, bucket_count=1, properties=properties)
        path = TablePath("fluss", "t")
        self.engine = Engine(folder)
        self.engine.catalog.create_table(path, descriptor.to_json(), False)
        bucket = TableBucket(self.engine.catalog.table(path).id, 0)
        _, self._kv = self.engine.kv_bucket(bucket)
        self._encoder = KvEncoder(1, columns, ["id"], target_columns=targets)
        self.names = [column.name for column in self._encoder.columns]
        self._places = None if targets is None else tuple(map(SCHEMA.names.index, targets))
        self._offset = 0

    def put(self, data: pa.Table, deletes: list[bool]) -> list[tuple[str, Row]]:
        """Write records; return the changes."""
        batch = self._encoder.encode(data, np.array(deletes))
        batch.stamp(-1, -1)
        kv = self._kv
        kv.put(memoryview(batch.to_bytes()), self._places)
        kv.log.sync()
        kv.apply()
        piece = kv.log.read(self._offset, 1 << 24, at_least_one=True)
        assert piece is not None
        self._offset = kv.log.end_offset
        return [
            (ChangeType(kind).short_string(), row)
            for decoded in LogDecoder({1: SCHEMA}, SCHEMA).decode(piece.data, piece.headers)
            if decoded.change_types is not None
            for kind, row in zip(
                decoded.change_types.to_pylist(), decoded.batch.to_pylist(), strict=True
            )
        ]

    def rows(self) -> list[Row]:
        """Return all rows."""
        decoder = ValueDecoder({1: Schema(SCHEMA, ["id"]).columns}, SCHEMA)
        found: list[Row] = decoder.decode_values(list(self._kv.scan()[0])).to_pylist()
        return found


@pytest.mark.parametrize("case", CASES)
def test_at_once_is_as_one_by_one(tmp_path: Path, case: str) -> None:
    for seed in range(2):
        choose = random.Random(seed)
        bucket, model = Bucket(tmp_path / str(seed), case), Model(case)
        try:
            for _ in range(8):
                count = choose.choice([1, 7, 60, 250])
                data = rows(choose, count, choose.choice([1, 3, 40])).select(bucket.names)
                # few, so that there are long runs, or many
                often = choose.choice([0, 0.02, 0.3])
                deletes = [choose.random() < often for _ in range(count)]
                # as text: there are NaNs, and zeros of both signs
                assert repr(bucket.put(data, deletes)) == repr(model.put(data.to_pylist(), deletes))
            left = sorted(bucket.rows(), key=lambda row: row["id"])
            assert repr(left) == repr([model.rows[key] for key in sorted(model.rows)])
        finally:
            bucket.engine.close()


@pytest.mark.parametrize("kind", [TypeRoot.FLOAT, TypeRoot.DOUBLE])
def test_a_zero_with_a_sign_is_less_than_one_without(kind: TypeRoot) -> None:
    arrow = pa.float32() if kind is TypeRoot.FLOAT else pa.float64()
    values = pa.array([None, -0.0, 0.0, -0.0, 1.5, -1.5, float("inf"), float("nan")], arrow)
    begins = np.zeros(len(values), np.int64)
    found = {
        name: aggregate_of(Column("f", DataType(kind), aggregate=name), False)(values, begins)
        for name in ("max", "min")
    }
    expected = {
        "max": [None, -0.0, 0.0, 0.0, 1.5, 1.5, float("inf"), float("nan")],
        "min": [None, -0.0, -0.0, -0.0, -0.0, -1.5, -1.5, -1.5],
    }
    assert repr({name: row.to_pylist() for name, row in found.items()}) == repr(expected)


def test_a_sum_of_38_digits_is_kept() -> None:
    kind = DataType(TypeRoot.DECIMAL, precision=38, scale=0)
    total = aggregate_of(Column("d", kind, aggregate="sum"), False)
    largest = 10**38 - 1
    values = pa.array([Decimal(largest - 1), Decimal(1), Decimal(1)], pa.decimal128(38, 0))
    # a sum that does not fit is null
    found = total(values, np.zeros(3, np.int64)).to_pylist()
    assert found == [Decimal(largest - 1), Decimal(largest), None]
