"""Log batches for the tests, built as a server would hand them out."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import google_crc32c
import pyarrow as pa

from fluss_df.record.log.log_batch import Compression, encode_log_batch

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([ids, [f"n{i}" for i in ids]], schema=SCHEMA)


def stored(
    batch: pa.RecordBatch,
    base_offset: int,
    *,
    schema_id: int = 1,
    codec: str = "zstd",
    timestamp: int = 1_700_000_000_000,
    writer_id: int = 5,
    sequence: int = 0,
) -> bytes:
    """Return a batch with the offset and the timestamp that a server sets."""
    compression = Compression(codec)  # type: ignore[arg-type]
    encoded = encode_log_batch(batch, schema_id=schema_id, compression=compression)
    encoded.stamp(writer_id, sequence)
    raw = bytearray(encoded.to_bytes())
    struct.pack_into("<q", raw, 0, base_offset)
    struct.pack_into("<q", raw, 13, timestamp)
    return bytes(raw)


def changelog(batch: pa.RecordBatch, base_offset: int, kinds: list[int]) -> bytes:
    """Return a batch with change types: not append only."""
    plain = stored(batch, base_offset)
    raw = bytearray(plain[:48] + bytes(kinds) + plain[48:])
    struct.pack_into("<i", raw, 8, len(raw) - 12)
    raw[27] = 0
    return with_crc(raw)


def empty(base_offset: int) -> bytes:
    """Return the batch of an upsert that changed nothing: no rows, one offset."""
    raw = bytearray(48)
    struct.pack_into("<qiBqIhBiqii", raw, 0, base_offset, 36, 0, 7, 0, 1, 0, 0, 5, 0, 0)
    return with_crc(raw)


def of_magic(plain: bytes, magic: int, *, epoch: bool, statistics: bytes | None) -> bytes:
    """Return a magic 0 batch in the layout of a newer magic."""
    raw = bytearray(plain[:21])
    if epoch:
        raw += struct.pack("<i", 9)
    raw += plain[21:48]
    if statistics is not None:
        raw += struct.pack("<i", len(statistics)) + statistics
    raw += plain[48:]
    raw[12] = magic
    struct.pack_into("<i", raw, 8, len(raw) - 12)
    return with_crc(raw, 25 if epoch else 21)


def with_crc(raw: bytearray, at: int = 21) -> bytes:
    struct.pack_into("<I", raw, at, google_crc32c.value(bytes(raw[at + 4 :])))
    return bytes(raw)


def golden_rows() -> pa.Table:
    """Return the rows of the golden log files."""
    text = json.loads((GOLDEN / "log_rows.json").read_text())["ipc"]
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()
