"""Segments of a changelog expire only when RocksDB has their changes on the disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa

from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.schema import Schema, TableDescriptor

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])


def test_changes_that_rocksdb_did_not_take_yet_survive_a_crash(tmp_path: Path) -> None:
    # each batch begins a segment
    options = EngineOptions(segment_bytes=1)
    engine = Engine(tmp_path / "a", options)
    schema, path = Schema(ROWS, ["id"]), TablePath("fluss", "t")
    descriptor = TableDescriptor(schema, bucket_count=1)
    engine.catalog.create_table(path, descriptor.to_json(), False)
    bucket = TableBucket(engine.catalog.table(path).id, 0)
    _, kv = engine.kv_bucket(bucket)
    encoder = KvEncoder(1, schema.columns, ["id"])
    for number in range(3):
        batch = encoder.encode(pa.table({"id": [number], "x": [number]}, schema=ROWS))
        batch.stamp(-1, -1)
        kv.put(memoryview(batch.to_bytes()))
        # synced, and not applied: as after RocksDB refused a write
        kv.log.sync()
    assert kv.applied == 0
    assert kv.expire(int(time.time() * 1000) + 1000, 1) == 2
    assert kv.log.start_offset == 2
    # what a kill leaves
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    engine.close()
    again = Engine(tmp_path / "b", options)
    _, kv = again.kv_bucket(bucket)
    assert kv.row_count == 3
    assert len(list(kv.scan()[0])) == 3
    again.close()
