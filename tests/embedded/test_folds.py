"""Merging a whole batch at once gives what merging record after record gives."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.embedded import kv_tablet
from fluss_df.embedded.engine import Engine
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv_batch import KvEncoder
from fluss_df.record.log_decode import LogDecoder
from fluss_df.schema import Schema, TableDescriptor
from fluss_df.types import Column

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


def changelog(
    folder: Path, case: str, seed: int
) -> tuple[list[tuple[str, list[dict[str, Any]]]], list[bytes]]:
    """Write random batches; return the changes and the rows."""
    properties, functions, targets = CASES[case]
    columns = [
        Column(c.name, c.type, None, c.column_id, functions.get(c.name))
        for c in Schema(SCHEMA, ["id"]).columns
    ]
    path = TablePath("fluss", "t")
    engine = Engine(folder)
    numbered = ["l"] if case == "numbered" else []
    try:
        schema = Schema.from_columns(columns, ["id"], auto_increment=numbered)
        descriptor = TableDescriptor(schema, bucket_count=1, properties=properties)
        engine.catalog.create_table(path, descriptor.to_json(), False)
        table = engine.catalog.table(path)
        _, kv = engine.kv_bucket(TableBucket(table.id, 0))
        encoder = KvEncoder(1, columns, ["id"], target_columns=targets)
        names = [column.name for column in encoder.columns]
        places = None if targets is None else tuple(SCHEMA.names.index(name) for name in targets)
        choose = random.Random(seed)
        for _ in range(6):
            count = choose.choice([1, 7, 60, 250])
            data = rows(choose, count, choose.choice([1, 3, 40]))
            # few, so that there are long runs
            often = 0 if numbered and choose.random() < 0.7 else 0.02
            deletes = np.array([choose.random() < often for _ in range(count)])
            batch = encoder.encode(data.select(names), deletes)
            batch.stamp(-1, -1)
            kv.put(memoryview(batch.to_bytes()), places)
            kv.log.sync()
            kv.apply()
        found = []
        offset = 0
        while offset < kv.log.end_offset:
            piece = kv.log.read(offset, 1 << 24, at_least_one=True)
            assert piece is not None
            for decoded in LogDecoder({1: SCHEMA}, SCHEMA).decode(piece.data, piece.headers):
                kinds = "" if decoded.change_types is None else str(decoded.change_types)
                found.append((kinds, decoded.batch.to_pylist()))
            offset = piece.headers.end_offset or kv.log.end_offset
        return found, list(kv.scan()[0])
    finally:
        engine.close()


@pytest.mark.parametrize("case", CASES)
def test_at_once_is_as_one_by_one(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        at_once = changelog(tmp_path / f"a{seed}", case, seed)
        with monkeypatch.context() as patched:
            patched.setattr(kv_tablet, "folded", lambda *_: None)
            one_by_one = changelog(tmp_path / f"b{seed}", case, seed)
        # as text: there are NaNs, and zeros of both signs
        assert repr(at_once) == repr(one_by_one)
