"""Tables of every merge engine: what this client reads of them is what the official one reads."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from tests.client.kv_support import OfficialKv, changelog, state
from tests.client.support import Official, Tables

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("version", pa.int64())])
ENGINES: dict[str, dict[str, str]] = {
    "default": {},
    "wal": {"table.changelog.image": "WAL"},
    "first_row": {"table.merge-engine": "first_row"},
    "versioned": {
        "table.merge-engine": "versioned",
        "table.merge-engine.versioned.ver-column": "version",
    },
    "aggregation": {"table.merge-engine": "aggregation"},
}
DELETABLE = ("default", "wal")
PARTIAL = ("default", "aggregation")
IDS = 12


def change(table: fluss.FlussTable, engine: str, rng: random.Random) -> None:
    """Change rows in every way that the engine has, some of it unflushed at once."""
    for _ in range(12):
        ids = [rng.randrange(IDS) for _ in range(5)]
        columns: dict[str, Any] = {
            "id": ids,
            "name": [rng.choice([None, "a", "b", "c"]) for _ in ids],
            "version": [rng.choice([None, rng.randrange(9)]) for _ in ids],
        }
        some = ["id", "name"] if engine in PARTIAL and rng.random() < 0.4 else None
        frame = pa.table(columns, schema=SCHEMA)
        with table.new_upsert(some) as writer:
            writer.write_arrow(frame if some is None else frame.select(some))
            if engine in DELETABLE and some is None and rng.random() < 0.6:
                writer.delete([rng.randrange(IDS)])


@pytest.mark.parametrize("engine", ENGINES)
def test_both_clients_read_the_same(tables: Tables, official_client: Official, engine: str) -> None:
    official = OfficialKv(official_client)
    table = tables(SCHEMA, ["id"], properties=ENGINES[engine])
    change(table, engine, random.Random(engine))
    keys = [[i] for i in range(IDS)]
    theirs = official.lookup(table, keys)
    lookuper = table.new_lookup()
    assert [lookuper.lookup(key) or None for key in keys] == theirs
    assert state(table) == {row["id"]: row for row in theirs if row}
    log = changelog(tables, table)
    offsets = log.column("_log_offset").to_pylist()
    kinds = log.column("_change_type").to_pylist()
    rows = log.select(SCHEMA.names).to_pylist()
    assert len(rows) >= IDS // 2
    changes = official.changes(table, len(rows))
    assert changes == list(zip(kinds, offsets, rows, strict=True))
