"""Captures the golden files of this folder from a real server, through the official client.

Not run by the tests. It needs a running Apache Fluss (0.9.1 for the files here), pyfluss 1.0.0 and
the tablet server's data directory, as the segment files there hold the batches byte for byte:

    python tests/record/golden/capture.py 127.0.0.1:19102 /path/to/tablet-server/data

It makes and drops tables in the database ``recdb``.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fluss
import pyarrow as pa

HERE = Path(__file__).parent
DATABASE = "recdb"
BUCKETS = 16
UTC = dt.UTC

# name -> Arrow type, values of a bucket key
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [0, 1, -1, 127, -128, 42]),
    "smallint": (pa.int16(), [0, 1, -1, 32767, -32768, 300]),
    "int": (pa.int32(), [0, 1, -1, 127, 128, 16383, 16384, 2**31 - 1, -(2**31), 123456]),
    "bigint": (pa.int64(), [0, 1, -1, 127, 128, 2**35, 2**63 - 1, -(2**63), 98765432100]),
    "float": (pa.float32(), [0.0, 1.5, -2.25, 3.0e30, float("inf")]),
    "double": (pa.float64(), [0.0, 1.5, -2.25, 1e300, float("-inf"), 0.1]),
    "string": (
        pa.string(),
        ["a", "ab", "abc", "abcd", "hello", "1234567", "12345678", "é€𝄞", "x" * 300],
    ),
    "bytes": (pa.binary(), [b"a", b"\xff\x80", b"1234567", b"\x00" * 9]),
    "binary": (pa.binary(4), [b"abcd", b"\x00\xff\x80\x7f"]),
    "decimal10_2": (
        pa.decimal128(10, 2),
        [Decimal("0"), Decimal("1.23"), Decimal("-1.23"), Decimal("99999999.99")],
    ),
    "decimal38_4": (
        pa.decimal128(38, 4),
        [
            Decimal("0"),
            Decimal("0.0127"),
            Decimal("0.0128"),
            Decimal("-0.0128"),
            Decimal("-0.0129"),
            Decimal("1e30"),
            Decimal("-1e30"),
        ],
    ),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2026, 11, 21), dt.date(1901, 2, 3)]),
    "time0": (pa.time32("s"), [dt.time(0), dt.time(12, 34, 56)]),
    "time3": (pa.time32("ms"), [dt.time(0), dt.time(12, 34, 56, 789000)]),
    "time6": (pa.time64("us"), [dt.time(0), dt.time(12, 34, 56, 789000)]),
    "timestamp0": (
        pa.timestamp("s"),
        [dt.datetime(1970, 1, 1), dt.datetime(2026, 11, 21, 1, 2, 3)],
    ),
    "timestamp3": (
        pa.timestamp("ms"),
        [dt.datetime(2026, 11, 21, 1, 2, 3, 456000), dt.datetime(1960, 1, 1)],
    ),
    "timestamp6": (
        pa.timestamp("us"),
        [dt.datetime(1970, 1, 1), dt.datetime(2026, 11, 21, 1, 2, 3, 456789)],
    ),
    "timestamp_ltz6": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2026, 11, 21, 1, 2, 3, 456789, UTC)],
    ),
    "timestamp9": (pa.timestamp("ns"), [dt.datetime(2026, 11, 21, 1, 2, 3, 456789)]),
}
LOG_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("tiny", pa.int8()),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("blob", pa.binary()),
        ("fixed", pa.binary(3)),
        ("price", pa.decimal128(12, 2)),
        ("big", pa.decimal128(38, 0)),
        ("ratio", pa.float32()),
        ("score", pa.float64()),
        ("day", pa.date32()),
        ("clock", pa.time32("ms")),
        ("ntz", pa.timestamp("us")),
        ("ltz", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.map_(pa.string(), pa.int32())),
        ("point", pa.struct([("x", pa.int32()), ("label", pa.string())])),
    ]
)


def log_rows(first: int, count: int) -> pa.Table:
    rows = []
    for i in range(first, first + count):
        even = i % 2 == 0
        rows.append(
            {
                "id": i,
                "tiny": i % 100,
                "flag": even,
                "name": f"name-{i}" if even else None,
                "blob": bytes([i % 256] * (i % 4)),
                "fixed": b"abc" if even else None,
                "price": Decimal(i) / 100,
                "big": Decimal(10) ** 30 + i,
                "ratio": i / 4,
                "score": None if i % 3 else i * 1.5,
                "day": dt.date(2026, 1, 1) + dt.timedelta(days=i),
                "clock": dt.time(1, 2, 3, 4000),
                "ntz": dt.datetime(2026, 1, 1, 0, 0, 0, i),
                "ltz": dt.datetime(1969, 1, 1, 0, 0, 0, i, UTC),
                "tags": [f"t{j}" for j in range(i % 3)] if even else None,
                "attrs": [("k", i)],
                "point": {"x": i, "label": "p"} if even else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=LOG_SCHEMA)


async def make(conn: Any, name: str, schema: pa.Schema, **kwargs: Any) -> Any:
    admin = conn.get_admin()
    path = fluss.TablePath(DATABASE, name)
    await admin.drop_table(path, ignore_if_not_exists=True)
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), **kwargs))
    await asyncio.sleep(0.5)
    for _ in range(50):
        try:
            if "partition_keys" not in kwargs:
                await admin.list_offsets(path, [0], fluss.OffsetSpec.latest())
            break
        except fluss.FlussError:
            await asyncio.sleep(0.1)
    return await conn.get_table(path)


async def buckets_of(table: Any, count: int, rows: int) -> list[int | None]:
    """Return row number -> bucket."""
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(count), 0))
    found: dict[int, int] = {}
    for _ in range(40):
        records = await scanner.poll(500)
        for bucket in records:
            for record in records.records(bucket):
                found[record.row["row"]] = bucket.bucket_id
        if len(found) == rows:
            break
    return [found.get(i) for i in range(rows)]


def ipc(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


async def capture_buckets(conn: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, (kind, values) in KEYS.items():
        schema = pa.schema([pa.field("k", kind, nullable=False), ("row", pa.int32())])
        try:
            table = await make(conn, f"key_{name}", schema, bucket_count=BUCKETS, bucket_keys=["k"])
        except fluss.FlussError as error:
            result[name] = {"refused": str(error)[:200]}
            continue
        data = pa.table(
            [pa.array(values, kind), pa.array(range(len(values)), pa.int32())], schema=schema
        )
        writer = table.new_append().create_writer()
        try:
            for row, value in enumerate(values):
                writer.append({"k": value, "row": row})
            await writer.flush()
        except fluss.FlussError as error:
            result[name] = {"write_refused": str(error)[:200]}
            continue
        got = await buckets_of(table, BUCKETS, len(values))
        result[name] = {"ipc": ipc(data.select(["k"])), "buckets": got}
        print(name, got)
    return result


async def capture_logs(conn: Any, data_dir: str) -> dict[str, int]:
    result: dict[str, int] = {}
    kinds = {"none": "NONE", "lz4_frame": "LZ4_FRAME", "zstd": "ZSTD"}
    for name, kind in kinds.items():
        table = await make(
            conn,
            f"log_{name}",
            LOG_SCHEMA,
            bucket_count=1,
            properties={"table.log.arrow.compression.type": kind},
        )
        for first in (0, 20):
            writer = table.new_append().create_writer()
            writer.write_arrow(log_rows(first, 20))
            await writer.flush()
        await asyncio.sleep(0.5)
        info = await conn.get_admin().get_table_info(fluss.TablePath(DATABASE, f"log_{name}"))
        files = list(Path(data_dir).glob(f"**/{DATABASE}/log_{name}-{info.table_id}/log-0/*.log"))
        print(name, files)
        (HERE / f"log_{name}.bin").write_bytes(files[0].read_bytes())
        result[name] = info.table_id
    return result


async def main(bootstrap: str, data_dir: str) -> None:
    conn = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap}))
    admin = conn.get_admin()
    await admin.create_database(DATABASE, ignore_if_exists=True)
    what = sys.argv[3:] or ["logs", "buckets"]
    if "logs" in what:
        await capture_logs(conn, data_dir)
        table = log_rows(0, 40)
        (HERE / "log_rows.json").write_text(json.dumps({"ipc": ipc(table)}) + "\n")
    if "buckets" in what:
        (HERE / "buckets.json").write_text(json.dumps(await capture_buckets(conn), indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
    # the official client sometimes aborts at a normal exit
    os._exit(0)
