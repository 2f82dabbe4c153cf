"""Requests about primary-key tables that are odd or wrong, answered as a real server does."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.peers import Peer, path, table_json
from tests.embedded.test_changes_beside_a_cluster import ENGINE, VERSION, Both, random_rows

A = {"name": "a", "data_type": {"type": "INTEGER"}, "id": 0}
B = {"name": "b", "data_type": {"type": "STRING"}, "id": 1}
C = {"name": "c", "data_type": {"type": "BIGINT"}, "id": 2}
ARRAY = {"name": "l", "data_type": {"type": "ARRAY", "element_type": {"type": "INTEGER"}}, "id": 3}


def schema(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    columns = columns or (A, B, C)
    return {
        "version": 1,
        "columns": list(columns),
        "primary_key": ["a"],
        "highest_field_id": 5,
    } | more


def with_function(column: dict[str, Any], name: str, **parameters: str) -> dict[str, Any]:
    function: dict[str, Any] = {"type": name}
    if parameters:
        function["parameters"] = parameters
    return {**column, "agg_function": function}


# an aggregate function in a table that does not aggregate: servers from 1.0 on refuse it
FUNCTION_ALONE = {"schema": schema(A, with_function(B, "listagg", delimiter="|"), C)}
FUNCTION_REFUSED = (
    "Aggregation function is only supported for aggregation merge engine table, but column 'b' has"
    " aggregation function 'listagg{delimiter=|}'."
)
DESCRIPTIONS: list[dict[str, Any]] = [
    {"schema": schema()},
    {"schema": schema(), "bucket_key": ["a"]},
    {"schema": schema(), "bucket_key": ["b"]},
    {"schema": schema(), "partition_key": ["b"]},
    {"schema": schema(), "partition_key": ["a"]},
    {"schema": schema(primary_key=["a", "b"]), "partition_key": ["b"]},
    {"schema": schema(primary_key=["a", "b"]), "bucket_key": ["b"]},
    {"schema": schema(primary_key=["z"])},
    {"schema": schema(primary_key=["a", "a"])},
    {"schema": schema(A, ARRAY, primary_key=["l"])},
    {"schema": schema(auto_increment_column=["c"])},
    {"schema": schema(auto_increment_column=["b"])},
    {"schema": schema(auto_increment_column=["a"])},
    *(
        {"schema": schema(), "properties": properties}
        for properties in (
            {"table.log.format": "INDEXED"},
            {ENGINE: "FIRST_ROW"},
            {ENGINE: "first_row", "table.delete.behavior": "ALLOW"},
            {ENGINE: "FIRST_ROW", "table.delete.behavior": "DISABLE"},
            {ENGINE: "VERSIONED"},
            {ENGINE: "VERSIONED", VERSION: "zz"},
            {ENGINE: "VERSIONED", VERSION: "b"},
            {ENGINE: "VERSIONED", VERSION: "c"},
            {ENGINE: "AGGREGATION"},
            {ENGINE: "AGGREGATION", "table.changelog.image": "WAL"},
            {ENGINE: "NOPE"},
            {"table.delete.behavior": "MAYBE"},
            {"table.delete.behavior": "DISABLE"},
            {"table.changelog.image": "SOME"},
            {"table.kv.format": "ARROW"},
            {"table.kv.format-version": "1"},
            {"table.kv.format-version": "9"},
            {"table.auto-increment.cache-size": "x"},
        )
    ),
    FUNCTION_ALONE,
    {
        "schema": schema(A, with_function(B, "listagg", delimiter="|"), with_function(C, "sum")),
        "properties": {ENGINE: "AGGREGATION"},
    },
]


@pytest.mark.parametrize("number", range(len(DESCRIPTIONS)))
def test_tables(real: Peer, embedded: Peer, number: int) -> None:
    text = table_json(**DESCRIPTIONS[number])
    name = f"keyed_{number}"
    request = pb.CreateTableRequest(table_path=path(name), table_json=text, ignore_if_exists=False)
    answers = [peer.ask(api.CREATE_TABLE, request) for peer in (real, embedded)]
    cleaned = [(code, plain(message), body) for code, message, body in answers]
    if real.since_1_0 and DESCRIPTIONS[number] is FUNCTION_ALONE:
        assert cleaned == [(39, FUNCTION_REFUSED, ""), (0, "", "")]
        return
    assert cleaned[1] == cleaned[0]
    if not cleaned[0][0]:
        assert embedded.table_json(name) == real.table_json(name)


def plain(message: str) -> str:
    """Return a message without Java's class of an unnamed error."""
    return re.sub(r"^java[\w.]*Exception: ", "", message)


def test_requests(real: Peer, embedded: Peer) -> None:
    """Every request on every kind of table, with rows that are there and rows that are not."""
    both = Both(real, embedded, "requests", {}, {})
    rows = random_rows(random.Random(3), 30, 10)
    good = both.encode(rows, np.zeros(30, np.bool_), None)
    assert both.put(good)[0] == 0
    encoder_keys = [
        *(f"\x01{letter}".encode() for letter in "abcd"),
        b"\x01a\x00",
        b"\x01a\x03",
        b"\xff\xff",
    ]
    damaged = bytearray(good)
    damaged[9] = 7  # the id of a schema that the table does not have
    builders: list[Callable[[int, dict[str, Any]], tuple[api.Api[Any, Any], Message]]] = [
        lambda table, where: (
            api.LOOKUP,
            pb.LookupRequest(
                table_id=table, buckets_req=[pb.LookupRequestForBucket(keys=encoder_keys, **where)]
            ),
        ),
        lambda table, where: (
            api.PREFIX_LOOKUP,
            pb.PrefixLookupRequest(
                table_id=table,
                buckets_req=[pb.PrefixLookupRequestForBucket(keys=encoder_keys, **where)],
            ),
        ),
        *(
            lambda table, where, limit=limit: (
                api.LIMIT_SCAN,
                pb.LimitScanRequest(table_id=table, limit=limit, **where),
            )
            for limit in (0, 3, 1000)
        ),
        lambda table, where: (
            api.PUT_KV,
            pb.PutKvRequest(
                acks=7,
                table_id=table,
                timeout_ms=1000,
                buckets_req=[pb.PutKvRequestForBucket(records=good, **where)],
            ),
        ),
    ]
    numbers = [info.table_id for info in both.infos]
    logs = []
    for peer in (real, embedded):
        peer.create("request_log")
        asked = pb.GetTableInfoRequest(table_path=path("request_log"))
        logs.append(peer.coordinator.call(api.GET_TABLE_INFO, asked).table_id)
        assert Both.has_leader(peer, logs[-1])
    places = [
        (numbers, {"bucket_id": 0}),
        (numbers, {"bucket_id": 5}),
        (numbers, {"bucket_id": 0, "partition_id": 10**9}),
        (logs, {"bucket_id": 0}),
        ([real.ids["parted"], embedded.ids["parted"]], {"bucket_id": 0}),
        ([10**6, 10**6], {"bucket_id": 0}),
    ]
    for step, build in enumerate(builders):
        for where, (tables, place) in enumerate(places):
            # rows are looked up where they were flushed to, which takes the real server a moment
            until = time.monotonic() + 10
            answers: list[Any] = [None, ()]
            while answers[0] != answers[1] and time.monotonic() < until:
                answers = []
                for peer, table in zip((real, embedded), tables, strict=True):
                    code, message, body = peer.ask(*build(table, place))
                    body = body.replace(f"tableId={table},", "tableId=T,")
                    answers.append((code, plain(message), body))
            assert answers[1] == answers[0], f"request {step} at place {where}"
    both.check()


def test_there_are_no_snapshots_yet(real: Peer, embedded: Peer) -> None:
    """The rows of a fresh table are all in its changelog."""
    text = table_json(schema=schema(), bucket_count=3)
    parts = table_json(schema=schema(primary_key=["a", "b"]), partition_key=["b"])
    answers = []
    for peer in (real, embedded):
        found: list[tuple[int | str, str]] = []
        for name, table in (("fresh", text), ("fresh_parts", parts)):
            create = pb.CreateTableRequest(
                table_path=path(name), table_json=table, ignore_if_exists=False
            )
            peer.coordinator.call(api.CREATE_TABLE, create)
            for partition in (None, "nope"):
                asked = pb.GetLatestKvSnapshotsRequest(
                    table_path=path(name), partition_name=partition
                )
                code, _, body = peer.ask(api.GET_LATEST_KV_SNAPSHOTS, asked)
                # a partition that is missing is an unnamed error there, and a named one here
                shown = code if partition is None or code == 0 else "error"
                found.append((shown, re.sub(r"table_id: \d+", "", body)))
        answers.append(found)
    assert answers[1] == answers[0]
