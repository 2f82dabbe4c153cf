"""Kv batches and values on a real server, in both row formats and beside the official client."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import fluss_df as fluss
from fluss_df.metadata import TableBucket
from fluss_df.protocol.api import Api
from fluss_df.record.kv_batch import KvEncoder
from fluss_df.record.values import ValueDecoder
from tests.client.support import Official, Tables

F = descriptor_pb2.FieldDescriptorProto
_FIELDS: dict[str, list[tuple[str, int, int, int]]] = {
    "PutBucket": [("bucket_id", 2, F.TYPE_INT32, 0), ("records", 3, F.TYPE_BYTES, 0)],
    "PutRequest": [
        ("acks", 1, F.TYPE_INT32, 0),
        ("table_id", 2, F.TYPE_INT64, 0),
        ("timeout_ms", 3, F.TYPE_INT32, 0),
        ("buckets_req", 5, F.TYPE_MESSAGE, 1),
    ],
    "PutBucketResponse": [
        ("bucket_id", 2, F.TYPE_INT32, 0),
        ("error_code", 3, F.TYPE_INT32, 0),
        ("error_message", 4, F.TYPE_STRING, 0),
    ],
    "PutResponse": [("buckets_resp", 1, F.TYPE_MESSAGE, 1)],
    "ScanRequest": [
        ("table_id", 2, F.TYPE_INT64, 0),
        ("bucket_id", 4, F.TYPE_INT32, 0),
        ("limit", 5, F.TYPE_INT32, 0),
    ],
    "ScanResponse": [
        ("error_code", 1, F.TYPE_INT32, 0),
        ("error_message", 2, F.TYPE_STRING, 0),
        ("records", 4, F.TYPE_BYTES, 0),
    ],
}


def messages() -> dict[str, Any]:
    """Return the few messages that these tests send, as classes."""
    file = descriptor_pb2.FileDescriptorProto(
        name="kv_codec_test.proto", package="kv_codec_test", syntax="proto2"
    )
    children = {"buckets_req": "PutBucket", "buckets_resp": "PutBucketResponse"}
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if field in children:
                made.type_name = f".kv_codec_test.{children[field]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kv_codec_test.{name}"))
        for name in _FIELDS
    }


M = messages()
PUT: Api[Any, Any] = Api(1016, "PUT_KV", M["PutRequest"], M["PutResponse"])
SCAN: Api[Any, Any] = Api(1033, "LIMIT_SCAN", M["ScanRequest"], M["ScanResponse"])

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("date", pa.date32()),
        ("time", pa.time32("ms")),
        ("dec", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 4)),
        ("ts0", pa.timestamp("s")),
        ("ts3", pa.timestamp("ms")),
        ("ts6", pa.timestamp("us")),
        ("ltz9", pa.timestamp("ns", "UTC")),
    ]
)
NESTED = [
    pa.field("a", pa.list_(pa.string())),
    pa.field("ts", pa.list_(pa.timestamp("us"))),
    pa.field("w", pa.list_(pa.decimal128(30, 2))),
    pa.field("m", pa.map_(pa.string(), pa.int32())),
    pa.field("r", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.binary()))])),
]


def rows(nested: bool) -> pa.Table:
    old = dt.datetime(1960, 2, 3, 4, 5, 6)
    full = {
        "id": -1,
        "part": "ä",
        "i8": -8,
        "i16": -1600,
        "i32": -2_000_000,
        "f": 1.5,
        "d": -2.25,
        "b": True,
        "s": "héllo wörld",
        "raw": b"\0\xff",
        "date": dt.date(1950, 1, 1),
        "time": dt.time(23, 59, 59, 999_000),
        "dec": Decimal("-12345678.90"),
        "wide": Decimal("-1234567890123456789012345678.0001"),
        "ts0": old,
        "ts3": old + dt.timedelta(milliseconds=7),
        "ts6": old + dt.timedelta(microseconds=7),
        "ltz9": old + dt.timedelta(microseconds=9),
        "a": ["short", None, "a text of more bytes"],
        "ts": [old, None],
        "w": [Decimal("-1.25"), None, Decimal("12345678901234567890.12")],
        "m": [("k", 1), ("a longer key", None)],
        "r": {"x": -5, "y": [b"abc", b"12345678", None]},
    }
    schema = SCHEMA
    for field in NESTED if nested else []:
        schema = schema.append(field)
    names = schema.names
    empty = dict.fromkeys(names, None) | {"id": 2**40, "part": ""}
    made = [{name: full[name] for name in names}, empty, {**empty, "id": 3, "part": "p"}]
    return pa.Table.from_pylist(made, schema=schema)


def exchange(table: fluss.FlussTable, api: Api[Any, Any], message: Any) -> Any:
    connection = table._connection
    info = table.get_table_info()
    bucket = TableBucket(info.table_id, 0)
    return connection.io.run(
        connection.cluster.request_leader(info.table_path, bucket, api, message)
    )


def as_log_table(table: fluss.FlussTable) -> fluss.FlussTable:
    """Return a table whose changelog is read as if it were a log table's."""
    info = table.get_table_info()
    schema = fluss.Schema.from_columns(info.schema.columns)
    descriptor = fluss.TableDescriptor(schema, bucket_count=1)
    return fluss.FlussTable(table._connection, replace(info, descriptor=descriptor))


def scan(table: fluss.FlussTable, kv_format: str) -> pa.Table:
    info = table.get_table_info()
    answer = exchange(table, SCAN, M["ScanRequest"](table_id=info.table_id, bucket_id=0, limit=100))
    assert not answer.error_code, answer.error_message
    decoder = ValueDecoder(
        {info.schema_id: info.schema.columns}, info.schema.arrow_schema, kv_format
    )
    return decoder.decode_batch(answer.records).sort_by("id")


@pytest.mark.parametrize(
    ("kv_format", "nested"), [("compacted", True), ("indexed", True), ("compacted", False)]
)
def test_what_is_put_is_scanned(tables: Tables, kv_format: str, nested: bool) -> None:
    data = rows(nested)
    table = tables(data.schema, ["id", "part"], bucket_keys=["id"], kv_format=kv_format)
    info = table.get_table_info()
    encoder = KvEncoder(info.schema_id, info.schema.columns, ["id", "part"], kv_format=kv_format)

    def put(batch: Any) -> None:
        batch.stamp(-1, -1)
        bucket = M["PutBucket"](bucket_id=0, records=batch.to_bytes())
        request = M["PutRequest"](
            acks=-1, table_id=info.table_id, timeout_ms=10_000, buckets_req=[bucket]
        )
        (answer,) = exchange(table, PUT, request).buckets_resp
        assert not answer.error_code, answer.error_message

    put(encoder.encode(data))
    assert scan(table, kv_format).equals(data.sort_by("id").cast(info.schema.arrow_schema))
    # the changelog is Arrow that the server made of the rows: it understood every value
    log = tables.scanner(as_log_table(table)).to_arrow()
    assert log.select(data.schema.names).sort_by("id").to_pylist() == data.sort_by("id").to_pylist()
    put(encoder.encode(data.slice(0, 1), True))
    assert scan(table, kv_format).num_rows == 2


def test_rows_of_the_official_client(tables: Tables, official_client: Official) -> None:
    data = rows(False)
    # it refuses timestamps before 1970 with digits below the millisecond
    data = data.drop_columns(["ts6", "ltz9"])
    table = tables(data.schema, ["id", "part"], bucket_keys=["id"])

    theirs = official_client.table(table)

    async def write() -> None:
        writer = theirs.new_upsert().create_writer()
        for row in data.to_pylist():
            writer.upsert(row)
        await writer.flush()

    official_client.run(write)
    found = scan(table, "compacted")
    assert found.to_pylist() == data.sort_by("id").to_pylist()
