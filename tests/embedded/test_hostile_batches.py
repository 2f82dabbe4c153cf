"""Batches that say of themselves what is not so: refused when they come, and good rows stay."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import ErrorCode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.claims import check_claims
from fluss_df.record.log.cut import ColumnLayout, read_message
from fluss_df.record.log.log_batch import Codec, Compression, encode_log_batch
from tests.client.support import Tables
from tests.embedded.raw import RawClient

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS = pa.record_batch([range(1000), [f"row {i}" for i in range(1000)]], schema=SCHEMA)
GB = 1 << 30


def encoded(codec: Codec, batch: pa.RecordBatch = ROWS) -> bytearray:
    made = encode_log_batch(batch, schema_id=1, compression=Compression(codec))
    made.stamp(-1, -1)
    return bytearray(made.to_bytes())


def stamped(data: bytearray) -> bytes:
    """Give bytes the checksum that they have."""
    import google_crc32c

    struct.pack_into("<I", data, 21, google_crc32c.value(bytes(data[25:])))
    return bytes(data)


def claims(data: bytes | bytearray) -> list[int]:
    """Return where the claims of the compressed buffers stand."""
    view = memoryview(bytes(data))
    headers = scan_headers(view)
    message = read_message(view, int(headers.payload[0]), len(view))
    return [message.body + offset for offset, length in message.buffers if length]


def with_claims(codec: Codec, claim: Callable[[int], int]) -> bytes:
    data = encoded(codec)
    for at in claims(data):
        (said,) = struct.unpack_from("<q", data, at)
        if said > 0:
            struct.pack_into("<q", data, at, claim(said))
    return stamped(data)


def with_rows(count: int) -> bytes:
    """Say everywhere that there are other rows: in the header, the message, and its fields."""
    data = encoded("none")
    old, new = struct.pack("<q", 1000), struct.pack("<q", count)
    body = claims(data)[0]
    head = bytes(data[48:body]).replace(old, new)
    data[48:body] = head
    struct.pack_into("<i", data, 28, count - 1)
    struct.pack_into("<i", data, 44, count)
    return stamped(data)


def with_frame(codec: int, frame: bytes, claim: int) -> bytes:
    """Put another frame in the place of the last buffer, where it fits."""
    data = encoded("zstd" if codec else "lz4_frame")
    at = claims(data)[-1]
    assert at + 8 + len(frame) <= len(data)
    struct.pack_into("<q", data, at, claim)
    data[at + 8 : at + 8 + len(frame)] = frame
    return stamped(data)


HOSTILE = {
    "100 GB of LZ4": with_claims("lz4_frame", lambda _: 100 * GB),
    "100 GB of ZSTD": with_claims("zstd", lambda _: 100 * GB),
    "2 MB more of LZ4": with_claims("lz4_frame", lambda said: said + (2 << 20)),
    "a byte more of ZSTD": with_claims("zstd", lambda said: said + 1),
    "a byte less of ZSTD": with_claims("zstd", lambda said: said - 1),
    "half of LZ4": with_claims("lz4_frame", lambda said: said // 2),
    "less than nothing": with_claims("zstd", lambda _: -2),
    "a frame that is none": with_frame(1, b"\x00" * 12, 5000),
    "two billion rows": with_rows(2_000_000_000),
    "one row more": with_rows(2000),
}


@pytest.fixture
def engine(tmp_path: Path) -> EmbeddedFluss:
    return EmbeddedFluss(tmp_path / "d", port=0)


@pytest.mark.parametrize("what", HOSTILE)
def test_good_rows_beside_it_stay(engine: EmbeddedFluss, what: str) -> None:
    with engine, engine.connection() as connection:
        tables = Tables(connection, "fluss")
        table = tables(SCHEMA, bucket_count=1)
        tables.write(table, pa.Table.from_batches([ROWS]))
        table_id = table.get_table_info().table_id
        with RawClient(engine.address) as client:
            part = pb.ProduceLogRequestForBucket(bucket_id=0, records=HOSTILE[what])
            request = pb.ProduceLogRequest(
                acks=-1, table_id=table_id, timeout_ms=10_000, buckets_req=[part]
            )
            (answer,) = client.call(api.PRODUCE_LOG, request).buckets_resp
        tables.write(table, pa.Table.from_batches([ROWS]))
        path = table.get_table_info().table_path
        found = fluss.scan_fluss(path, connection=connection).collect()
        assert found["n"].to_list() == 2 * list(range(1000))
    assert answer.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert "Arrow" in answer.error_message


def test_what_is_repeated_without_end(engine: EmbeddedFluss) -> None:
    """Each block of four bytes truly becomes 128 KB: the claim is right, and over the limit."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10x" * 8200 + b"\x01\x00\x00"
    assert pa.decompress(frame, 8200 << 17, "zstd").size == 8200 << 17
    texts = [str(random.Random(1).randbytes(200_000))]
    batch = pa.record_batch([[1], texts], schema=SCHEMA)
    data = encoded("zstd", batch)
    at = claims(data)[-1]
    struct.pack_into("<q", data, at, 8200 << 17)
    data[at + 8 : at + 8 + len(frame)] = frame
    with engine, engine.connection() as connection:
        table = Tables(connection, "fluss")(SCHEMA, bucket_count=1)
        part = pb.ProduceLogRequestForBucket(bucket_id=0, records=stamped(data))
        request = pb.ProduceLogRequest(
            acks=-1, table_id=table.get_table_info().table_id, timeout_ms=10_000, buckets_req=[part]
        )
        with RawClient(engine.address) as client:
            (answer,) = client.call(api.PRODUCE_LOG, request).buckets_resp
    assert answer.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert "1,073,741,824" in answer.error_message


EVERY_TYPE = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("fixed", pa.binary(4)),
        ("list", pa.list_(pa.int32())),
        ("row", pa.struct([("a", pa.int16()), ("b", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


def random_rows(choose: random.Random, count: int, nulls: float) -> pa.RecordBatch:
    def column(kind: pa.DataType) -> list[object]:
        return [None if choose.random() < nulls else value(choose, kind) for _ in range(count)]

    return pa.record_batch([pa.array(column(f.type), f.type) for f in EVERY_TYPE], EVERY_TYPE)


def value(choose: random.Random, kind: pa.DataType) -> object:
    if pa.types.is_boolean(kind):
        return choose.random() < 0.5
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return choose.randrange(100)
    if pa.types.is_floating(kind):
        return choose.random()
    if pa.types.is_decimal(kind):
        return Decimal(choose.randrange(10**6)) / 1000
    if pa.types.is_string(kind):
        return "x" * choose.choice((0, 3, 500))
    if pa.types.is_fixed_size_binary(kind):
        return choose.randbytes(4)
    if pa.types.is_binary(kind):
        return choose.randbytes(choose.choice((0, 3, 500)))
    if pa.types.is_map(kind):
        return [(str(i), i) for i in range(choose.randrange(3))]
    if pa.types.is_list(kind):
        return [choose.randrange(9) for _ in range(choose.randrange(4))]
    return {"a": choose.randrange(9), "b": "y" * choose.randrange(9)}


@pytest.mark.parametrize("codec", ["none", "lz4_frame", "zstd"])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_what_arrow_writes_is_taken(codec: Codec, nulls: float) -> None:
    """Each type, small and large batches: no claim of a writer that is in order is refused."""
    choose = random.Random(3)
    layout = ColumnLayout(EVERY_TYPE)
    for count in (1, 7, 8, 9, 1000, 30_000):
        data = memoryview(encoded(codec, random_rows(choose, count, nulls)))
        headers = scan_headers(data)
        message = read_message(data, int(headers.payload[0]), len(data), layout)
        layout.check(message, count)
        check_claims(message, layout, data, 1 << 30)


def test_large_and_well_compressed_batches_are_taken() -> None:
    """A column that repeats itself, of many blocks of each codec."""
    for column in (["a" * 1000] * 100_000, [random.Random(5).randbytes(20).hex()] * 1_000_000):
        batch = pa.record_batch([column], names=["text"])
        layout = ColumnLayout(batch.schema)
        for codec in ("lz4_frame", "zstd"):
            data = memoryview(encoded(codec, batch))
            message = read_message(data, 48, len(data), layout)
            check_claims(message, layout, data, 1 << 30)
