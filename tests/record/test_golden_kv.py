"""A kv batch that the official client put: encoded alike, and read."""

from __future__ import annotations

import pyarrow as pa

from fluss_df.record.kv.kv_batch import KvEncoder, decode_kv_batch
from fluss_df.record.rows.compacted import RowDecoder
from fluss_df.types import Column, from_arrow

from .hostile import GOLDEN, golden_rows

KEYS = ["part", "id"]
PUT = (GOLDEN / "kv_put.bin").read_bytes()


def test_the_same_bytes() -> None:
    rows = golden_rows()
    columns = [Column(f.name, from_arrow(f.type, f.nullable)) for f in rows.schema]
    changes = pa.concat_tables([rows, rows.slice(0, 1)])
    deletes = pa.array([False] * rows.num_rows + [True]).to_numpy(zero_copy_only=False)
    batch = KvEncoder(1, columns, KEYS).encode(changes, deletes)
    found = decode_kv_batch(PUT)
    batch.stamp(found.writer_id, found.sequence)
    assert batch.to_bytes() == PUT


def test_the_same_rows() -> None:
    rows = golden_rows()
    columns = [Column(f.name, from_arrow(f.type, f.nullable)) for f in rows.schema]
    found = decode_kv_batch(PUT)
    assert (found.row_starts < 0).tolist() == [False] * rows.num_rows + [True]
    decoded = RowDecoder(columns).decode(PUT, found.row_starts[:-1], found.row_ends[:-1])
    assert decoded.equals(rows)
