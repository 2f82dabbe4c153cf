"""Captures the golden files of primary-key tables from a real server, through a proxy.

Not run by the tests. It starts a server of its own; those of the files here were 0.9.1 and, for
scans by SCAN_KV, a 1.0-SNAPSHOT; the official client was 1.0.0:

    python -m tests.record.golden.capture_kv put
    FLUSS_SERVER_JAR=/path/to/fluss-server.jar python -m tests.record.golden.capture_kv responses

``kv_put.bin`` is the kv batch that the official client put for the rows of ``kv_rows.arrow``, with
the delete of the first; ``kv_responses.json`` holds what the server answered to requests of this
client, one of each kind, without the head of the frame.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss_df.cluster import LocalCluster
from fluss_df.metadata import TableBucket
from fluss_df.protocol.api import FETCH_LOG, LIMIT_SCAN, LOOKUP, PREFIX_LOOKUP, SCAN_KV
from tests.client.put_recorder import recorded_cluster

HERE = Path(__file__).parent
ROWS = 40
KEYS = ["part", "id"]
SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("ratio", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(3)),
        ("price", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(38, 4)),
        ("day", pa.date32()),
        ("t6", pa.timestamp("us")),
        ("z3", pa.timestamp("ms", "UTC")),
        ("texts", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.int32())),
        ("row", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
RESPONSES = (FETCH_LOG, LOOKUP, PREFIX_LOOKUP, LIMIT_SCAN, SCAN_KV)


def row(i: int) -> dict[str, Any]:
    made = {
        "flag": i % 3 == 0,
        "small": -i,
        "number": i * 10**7,
        "ratio": i / 7,
        "text": "ä€😀"[: i % 4] + "x" * (i % 20),
        "raw": bytes(range(i % 30)),
        "fixed": b"abc",
        "price": Decimal(i - 30) / 4,
        "wide": Decimal(10) ** (i % 30) - i,
        "day": dt.date(1960, 1, 1) + dt.timedelta(days=i * 1000),
        "t6": dt.datetime(2024, 2, 29, 1, 2, 3, i),
        "z3": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC) + dt.timedelta(hours=i),
        "texts": [None if j == 1 else f"t{j}" for j in range(i % 5)],
        "map": [(f"k{j}", j) for j in range(i % 3)],
        "row": {"x": i, "y": None if i % 2 else "y"},
    }
    found: dict[str, Any] = {"part": f"p{i % 4}", "id": i}
    for at, (name, value) in enumerate(made.items()):
        found[name] = None if (i + at) % 6 == 5 else value
    return found


def put() -> None:
    """Capture what the official client puts."""
    rows = [row(i) for i in range(ROWS)]
    with recorded_cluster(LocalCluster) as recorded:
        table = recorded.tables(SCHEMA, KEYS, bucket_keys=["part"])
        recorded.official.write(table, rows, [{key: rows[0][key] for key in KEYS}])
        (batch,) = recorded.puts()
    (HERE / "kv_put.bin").write_bytes(batch)
    with pa.ipc.new_file(HERE / "kv_rows.arrow", SCHEMA) as sink:
        sink.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


def responses() -> None:
    """Capture what a server answers."""
    data = pa.Table.from_pylist([row(i) for i in range(ROWS)], schema=SCHEMA)
    with recorded_cluster(LocalCluster) as recorded:
        table = recorded.tables(SCHEMA, KEYS, bucket_keys=["part"])
        with table.new_upsert() as writer:
            writer.write_arrow(data)
            writer.flush()
            writer.delete_arrow(data.select(KEYS).slice(0, 1))
            writer.write_arrow(data.slice(1))  # updates in the changelog
        recorded.proxy.kept_keys = frozenset(api.key for api in RESPONSES)
        lookuper = table.new_lookup().create_lookuper()
        lookuper.lookup_arrow(data.select(KEYS))
        lookuper.prefix_lookup(["p1"])
        scan = table.new_scan()
        bucket = TableBucket(table.get_table_info().table_id, 0)
        scan.limit(30).create_bucket_batch_scanner(bucket).to_arrow()
        scan.create_snapshot_scanner().to_arrow()
        recorded.tables.read(table)
        answers = {
            api.name: max((f[9:] for key, f in recorded.proxy.responses if key == api.key), key=len)
            for api in RESPONSES
        }
    text = {name: base64.b64encode(body).decode() for name, body in answers.items()}
    (HERE / "kv_responses.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    {"put": put, "responses": responses}[sys.argv[1]]()
