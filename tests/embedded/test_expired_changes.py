"""Segments of a changelog expire only when RocksDB has their changes on the disk."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.tables.tables import now_ms
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.schema import Schema, TableDescriptor
from tests.waiting import wait_until

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


def test_segments_expire_soon_after_a_folder_is_opened(tmp_path: Path) -> None:
    """A program that ends within the minute, as a job that runs each hour, leaves none behind."""
    folder, path = tmp_path / "d", TablePath("fluss", "t")
    properties = {"table.log.ttl": "1h"}
    # each batch begins a segment
    options = EngineOptions(segment_bytes=1)
    with EmbeddedFluss(folder, options=options) as engine, engine.connection() as connection:
        descriptor = TableDescriptor(Schema(ROWS), bucket_count=1, properties=properties)
        connection.get_admin().create_table(path, descriptor)
        with connection.get_table(path).new_append().create_writer() as writer:
            for number in range(3):
                writer.write_arrow(pa.table({"id": [number], "x": [number]}, schema=ROWS))
                writer.flush()
        bucket = TableBucket(engine.engine.catalog.table(path).id, 0)
        log = engine.engine.bucket_folder(bucket) / "log"
    assert len(list(log.glob("*.log"))) == 3
    past = time.time() - 7200
    for file in log.glob("*.log"):
        os.utime(file, (past, past))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fluss_df.engine.engine.now_ms", lambda: now_ms() + 2 * 3_600_000)
        with EmbeddedFluss(folder, options=options):
            wait_until(lambda: len(list(log.glob("*.log"))) == 1, 10)
