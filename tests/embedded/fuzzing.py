"""Frames made from real traffic by flipping, cutting, joining and lying about lengths."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.errors import FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.raw import RawClient
from tests.memory import anonymous_memory

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LOG = fluss.TablePath("fluss", "log")
ROWS = fluss.TablePath("fluss", "rows")
_FRAMES_PER_CONNECTION = 25


def traffic(engine: EmbeddedFluss) -> list[tuple[int, bytes]]:
    """Create tables, and return requests about them as clients send them: key and body."""
    ids: dict[fluss.TablePath, fluss.TableInfo] = {}
    with engine.connection() as connection:
        for path, primary in ((LOG, None), (ROWS, ["n"])):
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, primary), bucket_count=1)
            connection.get_admin().create_table(path, descriptor)
            ids[path] = connection.get_table(path).get_table_info()
    rows = pa.table({"n": range(40), "text": [f"text {i}" for i in range(40)]}, schema=SCHEMA)
    batches = []
    for codec in ("none", "zstd", "lz4_frame"):
        log = encode_log_batch(rows.to_batches()[0], schema_id=1, compression=Compression(codec))
        log.stamp(-1, -1)
        batches.append(log.to_bytes())
    encoder = KvEncoder(1, ids[ROWS].schema.columns, ["n"])
    put = encoder.encode(rows, np.arange(40) % 5 == 0)
    put.stamp(-1, -1)
    keys = encoder.keys(rows)
    log_id, rows_id = ids[LOG].table_id, ids[ROWS].table_id
    name = pb.PathOfTable(database_name="fluss", table_name="rows")
    part = pb.FetchLogRequestForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20)
    requests: list[tuple[api.Api[Any, Any], Message]] = [
        *(
            (
                api.PRODUCE_LOG,
                pb.ProduceLogRequest(
                    acks=-1,
                    table_id=log_id,
                    timeout_ms=1000,
                    buckets_req=[pb.ProduceLogRequestForBucket(bucket_id=0, records=batch)],
                ),
            )
            for batch in batches
        ),
        (
            api.PUT_KV,
            pb.PutKvRequest(
                acks=-1,
                table_id=rows_id,
                timeout_ms=1000,
                buckets_req=[pb.PutKvRequestForBucket(bucket_id=0, records=put.to_bytes())],
            ),
        ),
        (
            api.PUT_KV,
            pb.PutKvRequest(
                acks=-1,
                table_id=rows_id,
                timeout_ms=1000,
                target_columns=[0, 1],
                buckets_req=[pb.PutKvRequestForBucket(bucket_id=0, records=put.to_bytes())],
            ),
        ),
        (
            api.LOOKUP,
            pb.LookupRequest(
                table_id=rows_id,
                buckets_req=[
                    pb.LookupRequestForBucket(bucket_id=0, keys=[keys[i] for i in range(9)])
                ],
            ),
        ),
        (
            api.PREFIX_LOOKUP,
            pb.PrefixLookupRequest(
                table_id=rows_id,
                buckets_req=[pb.PrefixLookupRequestForBucket(bucket_id=0, keys=[keys[3], b"\1"])],
            ),
        ),
        (api.LIMIT_SCAN, pb.LimitScanRequest(table_id=rows_id, bucket_id=0, limit=7)),
        (
            api.SCAN_KV,
            pb.ScanKvRequest(
                bucket_scan_req=pb.ScanKvRequestForBucket(table_id=rows_id, bucket_id=0),
                call_seq_id=0,
                batch_size_bytes=100,
            ),
        ),
        (
            api.FETCH_LOG,
            pb.FetchLogRequest(
                follower_server_id=-1,
                max_bytes=1 << 20,
                max_wait_ms=0,
                tables_req=[
                    pb.FetchLogRequestForTable(
                        table_id=log_id,
                        projection_pushdown_enabled=True,
                        projected_fields=[1],
                        buckets_req=[part],
                    )
                ],
            ),
        ),
        (
            api.LIST_OFFSETS,
            pb.ListOffsetsRequest(
                follower_server_id=-1, offset_type=1, table_id=log_id, bucket_id=[0]
            ),
        ),
        (api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=name)),
        (api.GET_METADATA, pb.MetadataRequest(table_path=[name])),
        (
            api.GET_TABLE_STATS,
            pb.GetTableStatsRequest(
                table_id=rows_id, buckets_req=[pb.TableStatsRequestForBucket(bucket_id=0)]
            ),
        ),
        (api.INIT_WRITER, pb.InitWriterRequest()),
    ]
    return [(kind.key, message.SerializeToString()) for kind, message in requests]


def mutated(body: bytes, choose: random.Random, others: list[bytes]) -> bytes:
    """Return a body that is damaged in one of many ways; now and then in none."""
    data = bytearray(body)
    for _ in range(choose.choice([0, 1, 1, 2, 8])):
        way = choose.randrange(7)
        at = choose.randrange(len(data) + 1)
        if way == 0 and data:
            data[at % len(data)] ^= 1 << choose.randrange(8)
        elif way == 1:
            del data[at:]
        elif way == 2:
            data[at:at] = choose.randbytes(choose.randrange(1, 20))
        elif way == 3 and len(data) >= 4:
            number = choose.choice([0, -1, 2**31 - 1, -(2**31), choose.randrange(10**6)])
            struct.pack_into("<i", data, min(at, len(data) - 4), number)
        elif way == 4 and len(data) >= 8:
            struct.pack_into("<q", data, min(at, len(data) - 8), choose.choice([-1, 2**62, 2**31]))
        elif way == 5:
            other = choose.choice(others)
            data[at:] = other[choose.randrange(len(other) + 1) :]
        else:
            end = min(len(data), at + choose.randrange(1, 30))
            data[at:at] = data[at:end] * choose.randrange(1, 4)
    return bytes(data)


def campaign(folder: Path, frames: int, seed: int) -> int:
    """Send frames; return how many were answered. The server lives on, and within bounds.

    Every connection is either answered in time or closed; afterwards a client is served, and what
    is stored can be read.
    """
    choose = random.Random(seed)
    answered = sent = 0
    with EmbeddedFluss(folder, port=0) as engine:
        known = traffic(engine)
        bodies = [body for _, body in known]
        before = anonymous_memory()
        while sent < frames:
            with RawClient(engine.address, timeout=20.0) as client:
                for _ in range(_FRAMES_PER_CONNECTION):
                    key, body = choose.choice(known)
                    if choose.random() < 0.05:
                        key = choose.choice([0, -1, 30_001, 1057, choose.randrange(1000, 1070)])
                        # dropping what the others are about would end the trial early
                        key = 0 if key in (1002, 1006, 1013, 1036) else key
                    client.send(key, choose.choice([0, 0, 1, 9]), mutated(body, choose, bodies))
                    sent += 1
                    if choose.random() < 0.01:
                        client.socket.sendall(choose.randbytes(choose.randrange(1, 40)))
                        break
                    try:
                        client.receive()
                        answered += 1
                    except (EOFError, ConnectionError):
                        break
        grown = anonymous_memory() - before
        assert grown < 1 << 30, f"{grown} bytes more than before"
        with engine.connection() as connection:
            began = time.monotonic()
            for path in (LOG, ROWS):
                try:
                    fluss.scan_fluss(path, connection=connection).collect()
                except FlussError as error:
                    raise AssertionError(f"{path} cannot be read any more: {error}") from error
            assert time.monotonic() - began < 60
    return answered
