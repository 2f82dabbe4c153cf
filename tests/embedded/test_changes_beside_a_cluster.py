"""The same changes of primary-key tables on an embedded engine and on a real Fluss server.

Random batches go to both, in every configuration of a table; what the writer is answered, every
change in the changelog, and the rows that are left must be the same.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.fetch import parse_fetch_response
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.kv.values import ValueDecoder
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.log_decode import LogDecoder
from fluss_df.record.log.row_log import RowLogDecoder
from fluss_df.schema import TableDescriptor
from tests.embedded.peers import Peer, path

TYPES: dict[str, tuple[dict[str, Any], pa.DataType]] = {
    "k": ({"type": "STRING", "nullable": False}, pa.string()),
    "id": ({"type": "INTEGER", "nullable": False}, pa.int32()),
    "i": ({"type": "INTEGER"}, pa.int32()),
    "l": ({"type": "BIGINT"}, pa.int64()),
    "f": ({"type": "DOUBLE"}, pa.float64()),
    "s": ({"type": "STRING"}, pa.string()),
    "b": ({"type": "BOOLEAN"}, pa.bool_()),
    "d": ({"type": "DECIMAL", "precision": 5, "scale": 2}, pa.decimal128(5, 2)),
    "t": ({"type": "TINYINT"}, pa.int8()),
    "ts": ({"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 6}, pa.timestamp("us")),
}
KEYS = ["k", "id"]
NAMES = list(TYPES)


def description(
    properties: dict[str, str], functions: dict[str, str], numbered: bool, buckets: int = 1
) -> bytes:
    columns: list[dict[str, Any]] = [
        {"name": name, "data_type": kind, "id": i}
        for i, (name, (kind, _)) in enumerate(TYPES.items())
    ]
    for column in columns:
        if column["name"] in functions:
            column["agg_function"] = {"type": functions[column["name"]]}
    schema: dict[str, Any] = {
        "version": 1,
        "columns": columns,
        "primary_key": KEYS,
        "highest_field_id": len(columns) - 1,
    }
    if numbered:
        columns.append({"name": "number", "data_type": {"type": "BIGINT"}, "id": len(columns)})
        schema["auto_increment_column"] = ["number"]
        schema["highest_field_id"] += 1
    return json.dumps(
        {
            "version": 1,
            "schema": schema,
            "partition_key": [],
            "bucket_key": ["k"],
            "bucket_count": buckets,
            "properties": properties,
            "custom_properties": {},
        }
    ).encode()


class Both:
    """A table on both servers."""

    def __init__(
        self,
        real: Peer,
        embedded: Peer,
        name: str,
        properties: dict[str, str],
        functions: dict[str, str],
        numbered: bool = False,
    ) -> None:
        self.peers = (real, embedded)
        # servers from 1.0 on take a partial update of all columns for an update of the row, which
        # can be told from the changelog where it has no old rows
        self.knows_full_updates = real.since_1_0 and properties.get(IMAGE) == "WAL"
        request = pb.CreateTableRequest(
            table_path=path(name),
            table_json=description(properties, functions, numbered),
            ignore_if_exists=False,
        )
        self.infos = [self.create(peer, request) for peer in self.peers]
        assert embedded.table_json(name) == real.table_json(name)
        self.descriptor = TableDescriptor.from_json(self.infos[0].table_json)

    @classmethod
    def create(cls, peer: Peer, request: pb.CreateTableRequest) -> pb.GetTableInfoResponse:
        """Create a table, again where the coordinator missed it, as that of 0.9.1 does at times."""
        while True:
            peer.coordinator.call(api.CREATE_TABLE, request)
            info: pb.GetTableInfoResponse = peer.coordinator.call(
                api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=request.table_path)
            )
            if cls.has_leader(peer, info.table_id):
                return info
            drop = pb.DropTableRequest(table_path=request.table_path, ignore_if_not_exists=False)
            peer.coordinator.call(api.DROP_TABLE, drop)

    @staticmethod
    def has_leader(peer: Peer, table_id: int) -> bool:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            answer = peer.tablet.call(
                api.LIST_OFFSETS,
                pb.ListOffsetsRequest(
                    follower_server_id=-1, offset_type=1, table_id=table_id, bucket_id=[0]
                ),
            )
            if not answer.buckets_resp[0].error_code:
                return True
            time.sleep(0.1)
        return False

    def put(
        self, batch: bytes, targets: Sequence[int] = (), mode: int | None = None
    ) -> tuple[int, str, int]:
        """Send a batch to both; return code, message and offset, which must be equal."""
        answers = []
        for peer, info in zip(self.peers, self.infos, strict=True):
            request = pb.PutKvRequest(
                acks=-1,
                table_id=info.table_id,
                timeout_ms=5000,
                target_columns=targets,
                buckets_req=[pb.PutKvRequestForBucket(bucket_id=0, records=batch)],
                agg_mode=mode,
            )
            part = peer.tablet.call(api.PUT_KV, request).buckets_resp[0]
            message = part.error_message.split("\n")[0].replace(
                f"tableId={info.table_id},", "tableId=T,"
            )
            # an unnamed error shows the class of Java's exception there
            message = re.sub(r"^java[\w.]*Exception: ", "", message)
            if "BigDecimal precision" in message or "has more digits" in message:
                message = "too many digits"
            answers.append((part.error_code, message, part.log_end_offset))
        assert answers[1] == answers[0]
        return answers[0]

    def encode(
        self,
        rows: pa.Table,
        deletes: np.ndarray[Any, Any],
        targets: Sequence[str] | None,
        writer: tuple[int, int] = (-1, -1),
    ) -> bytes:
        columns = self.descriptor.schema.columns
        encoder = KvEncoder(
            1,
            columns,
            KEYS,
            kv_format=self.descriptor.properties.get("table.kv.format", "compacted"),
            target_columns=targets,
        )
        given = [column.name for column in encoder.columns]
        batch = encoder.encode(rows.select(given), deletes)
        batch.stamp(*writer)
        return batch.to_bytes()

    def changelogs(self) -> list[list[tuple[Any, ...]]]:
        """Return (offset, type, row) of every change, of both."""
        return [
            self.changelog(peer, info.table_id)
            for peer, info in zip(self.peers, self.infos, strict=True)
        ]

    def changelog(self, peer: Peer, table_id: int) -> list[tuple[Any, ...]]:
        target = self.descriptor.schema.arrow_schema
        schema, properties = self.descriptor.schema, self.descriptor.properties
        log_format = properties.get("table.log.format", "arrow").lower()
        decoder: LogDecoder | RowLogDecoder
        if log_format == "arrow":
            decoder = LogDecoder({1: target}, target)
        else:
            decoder = RowLogDecoder({1: schema.columns}, target, log_format)
        changes: list[tuple[Any, ...]] = []
        offset = 0
        while True:
            part = pb.FetchLogRequestForBucket(
                bucket_id=0, fetch_offset=offset, max_fetch_bytes=1 << 24
            )
            request = pb.FetchLogRequest(
                follower_server_id=-1,
                max_bytes=1 << 24,
                max_wait_ms=0,
                tables_req=[
                    pb.FetchLogRequestForTable(
                        table_id=table_id, projection_pushdown_enabled=False, buckets_req=[part]
                    )
                ],
            )
            answer = peer.tablet.ask(api.FETCH_LOG, request)
            assert answer.type == 0, answer.error
            found = parse_fetch_response(pa.py_buffer(answer.body))[0]
            assert not found.error_code, found.error_message
            if not found.records:
                assert offset == found.high_watermark
                return changes
            headers = scan_headers(found.records)
            for batch in decoder.decode(found.records, headers):
                assert batch.change_types is not None
                kinds = batch.change_types.to_pylist()
                for i, (kind, row) in enumerate(zip(kinds, batch.batch.to_pylist(), strict=True)):
                    changes.append((batch.base_offset + i, kind, tuple(row.values())))
            assert headers.end_offset is not None
            offset = headers.end_offset

    def rows(self) -> list[list[dict[str, Any]]]:
        """Return the rows of both, in the order that their scans have."""
        schema = self.descriptor.schema
        kv_format = self.descriptor.properties.get("table.kv.format", "compacted")
        decoder = ValueDecoder({1: schema.columns}, schema.arrow_schema, kv_format)
        found = []
        for peer, info in zip(self.peers, self.infos, strict=True):
            answer = peer.tablet.call(
                api.LIMIT_SCAN,
                pb.LimitScanRequest(table_id=info.table_id, bucket_id=0, limit=10_000),
            )
            assert not answer.error_code
            assert not answer.is_log_table
            found.append(decoder.decode_batch(answer.records).to_pylist())
        return found

    def check(self) -> None:
        """Compare changelogs and rows; those of the real server follow a little later."""
        real, embedded = self.changelogs()
        assert embedded == real
        until = time.monotonic() + 10
        rows = self.rows()
        while rows[0] != rows[1] and time.monotonic() < until:
            time.sleep(0.2)
            rows = self.rows()
        assert rows[1] == rows[0]


def random_rows(rng: random.Random, count: int, keys: int) -> pa.Table:
    def some(value: Any) -> Any:
        return None if rng.random() < 0.3 else value

    made: dict[str, list[Any]] = {name: [] for name in TYPES}
    for _ in range(count):
        number = rng.randrange(keys)
        made["k"].append("abc"[number % 3])
        made["id"].append(number)
        made["i"].append(some(rng.choice([0, 1, -1, 2**31 - 1, -(2**31), rng.randrange(100)])))
        made["l"].append(some(rng.choice([0, 2**62, -(2**63), rng.randrange(100)])))
        made["f"].append(some(rng.choice([0.5, -1.25, 1e300, float("inf"), rng.random()])))
        made["s"].append(some(rng.choice(["", "x", "äöü", "long " * 5])))
        made["b"].append(some(rng.random() < 0.5))
        made["d"].append(some(Decimal(rng.randrange(-99999, 99999)).scaleb(-2)))
        made["t"].append(some(rng.randrange(-128, 128)))
        made["ts"].append(some(rng.randrange(-(10**12), 10**12)))
    return pa.table({name: pa.array(made[name], kind) for name, (_, kind) in TYPES.items()})


FUNCTIONS = [
    {"i": "sum", "l": "max", "f": "min", "s": "listagg", "b": "bool_and", "d": "sum", "t": "sum"},
    {
        "i": "product",
        "l": "first_value",
        "f": "last_value",
        "s": "string_agg",
        "b": "bool_or",
        "d": "product",
        "t": "product",
        "ts": "max",
    },
    {
        "i": "last_value_ignore_nulls",
        "l": "sum",
        "f": "first_value_ignore_nulls",
        "s": "max",
        "b": "last_value",
        "d": "min",
        "t": "min",
        "ts": "min",
    },
]
ENGINE = "table.merge-engine"
LOG = "table.log.format"
IMAGE = "table.changelog.image"
VERSION = "table.merge-engine.versioned.ver-column"
# name, properties, aggregate functions, whether there are partial updates, an auto-increment column
CASES: list[tuple[str, dict[str, str], dict[str, str], bool, bool]] = [
    ("default", {}, {}, True, False),
    ("indexed", {"table.kv.format": "INDEXED"}, {}, True, False),
    ("compactedlog", {LOG: "COMPACTED"}, {}, True, False),
    ("compactedwal", {LOG: "COMPACTED", IMAGE: "WAL"}, {}, True, False),
    ("compactedsums", {LOG: "COMPACTED", ENGINE: "AGGREGATION"}, FUNCTIONS[1], True, False),
    ("wal", {IMAGE: "WAL"}, {}, True, False),
    ("ignore", {"table.delete.behavior": "IGNORE"}, {}, True, False),
    ("disable", {"table.delete.behavior": "DISABLE"}, {}, True, False),
    ("first", {ENGINE: "FIRST_ROW"}, {}, False, False),
    ("firstwal", {ENGINE: "FIRST_ROW", IMAGE: "WAL"}, {}, False, False),
    ("version_l", {ENGINE: "VERSIONED", VERSION: "l"}, {}, False, False),
    ("version_i", {ENGINE: "VERSIONED", VERSION: "i"}, {}, False, False),
    ("version_ts", {ENGINE: "VERSIONED", VERSION: "ts"}, {}, False, False),
    ("aggregate0", {ENGINE: "AGGREGATION"}, FUNCTIONS[0], True, False),
    ("aggregate1", {ENGINE: "AGGREGATION"}, FUNCTIONS[1], True, False),
    (
        "aggregate2",
        {ENGINE: "AGGREGATION", "table.delete.behavior": "ALLOW"},
        FUNCTIONS[2],
        True,
        False,
    ),
    ("numbered", {}, {}, True, True),
    ("numberedwal", {IMAGE: "WAL"}, {}, True, True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_changes(real: Peer, embedded: Peer, case: tuple[Any, ...]) -> None:
    name, properties, functions, partial, numbered = case
    both = Both(real, embedded, f"kv_{name}", properties, functions, numbered)
    rng = random.Random(name)
    names = [column.name for column in both.descriptor.schema.columns]
    sequence = 0
    for step in range(25):
        rows = random_rows(rng, rng.choice([1, 2, 10, 60, 300]), keys=rng.choice([3, 40]))
        deletes = np.array([rng.random() < 0.25 for _ in range(rows.num_rows)])
        targets: list[str] | None = None
        if numbered:
            targets = NAMES
        if partial and rng.random() < 0.5:
            others = [n for n in NAMES if n not in KEYS]
            count = rng.choice([0, 1, 3, len(others)])
            if both.knows_full_updates and not numbered:
                count = min(count, len(others) - 1)
            targets = KEYS + rng.sample(others, count)
        writer = (-1, -1)
        if step % 2:
            writer = (77, sequence)
            sequence += 1
        batch = both.encode(rows, deletes, targets, writer)
        places = [names.index(target) for target in targets or ()]
        code, _, _ = both.put(batch, places)
        if code and step % 2:
            sequence -= 1
        elif step % 2 and rng.random() < 0.5:
            # what was written is answered again, and not written again
            both.put(batch, places)
        if partial and rng.random() < 0.1:
            both.put(both.encode(rows, deletes, targets), places, mode=1)
    both.check()


def test_mistakes(real: Peer, embedded: Peer) -> None:
    both = Both(real, embedded, "kv_mistakes", {}, {})
    rows = random_rows(random.Random(1), 5, 100)
    kept = np.zeros(5, np.bool_)
    good = both.encode(rows, kept, None)
    assert both.put(good)[0] == 0
    for targets in ([2], [0, 2], [0, 1, 2]):
        both.put(good, targets)
    for sequence in (0, 2, 1, 1, 0, 5):
        both.put(both.encode(rows, kept, None, (9, sequence)))
    first = Both(real, embedded, "kv_first_mistakes", {ENGINE: "FIRST_ROW"}, {})
    assert first.put(first.encode(rows, kept, None), [0, 1, 2])[0] != 0
    numbered = Both(real, embedded, "kv_numbered_mistakes", {}, {}, True)
    plain = numbered.encode(rows, kept, NAMES)
    assert numbered.put(plain)[0] != 0
    assert numbered.put(plain, range(len(NAMES) + 1))[0] != 0
    both.check()
