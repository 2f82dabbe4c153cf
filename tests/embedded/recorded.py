"""Questions without a history, and what a real Fluss 0.9.1 answered them: for tests without Java.

``python -m tests.embedded.recorded`` starts a real server, and records its answers again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from fluss_df.cluster import LocalCluster
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.peers import DATABASE, Peer, path, spec, table_json
from tests.embedded.test_beside_a_cluster import CHANGES, NAMES, REQUESTS, alter, config
from tests.embedded.test_key_requests_beside_a_cluster import (
    ARRAY,
    DESCRIPTIONS,
    A,
    B,
    schema,
    with_function,
)

ANSWERS: Final = Path(__file__).parent / "golden" / "answers-0.9.1.json"
#: Code, message and body.
Answer = tuple[int, str, str]

# Java's class of an error without a code
_JAVA: Final = r"^(java|org\.apache)[\w.]*Exception: "
_DECIMAL = {"name": "d", "data_type": {"type": "DECIMAL", "precision": 5, "scale": 2}, "id": 2}
_MAP: Final = {"type": "MAP", "key_type": {"type": "INTEGER"}, "value_type": {"type": "DATE"}}
# its field has the id 1
_ROW: Final = {
    "name": "r",
    "data_type": {
        "type": "ROW",
        "fields": [{"name": "x", "field_type": {"type": "INTEGER"}, "field_id": 1}],
    },
}
# a type of whose parts the names, precisions and what may be null are told
_DEEP: Final = {
    "type": "ROW",
    "nullable": False,
    "fields": [
        {"name": name, "field_type": kind, "field_id": 6 + number}
        for number, (name, kind) in enumerate(
            [
                ("x y", {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 0}),
                ("l", {"type": "ARRAY", "element_type": _MAP}),
                ("t", {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 6}),
                ("z", {"type": "TIMESTAMP_WITH_LOCAL_TIME_ZONE", "precision": 3}),
                ("d", _DECIMAL["data_type"]),
                ("c", {"type": "CHAR", "length": 3, "nullable": False}),
            ]
        )
    ],
}
_AUTO: Final = "table.auto-partition"


def _log(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    value = schema(*columns)
    del value["primary_key"]
    return {"schema": value, **more}


def _properties(**more: str) -> dict[str, Any]:
    return {"properties": {key.replace("__", "-").replace("_", "."): v for key, v in more.items()}}


#: Tables that are odd or wrong in other ways. Where the engine says more of a value than Java does,
#: or refuses one that is used later only, nothing is asked.
TABLES: Final[list[dict[str, Any]]] = [
    _log(A, B, ARRAY, bucket_key=["l"]),
    _log(A, _DECIMAL, partition_key=["d"]),
    _log(A, ARRAY, partition_key=["l"]),
    _log(A, {**A, "id": 1}),
    _log(A, {**B, "id": 0}),
    {"schema": schema(A, {**B, "id": 0})},
    _log(A, {**_ROW, "id": 1}),
    _log(A, {**_ROW, "id": 5}),
    _log(A, {**B, "name": "__offset"}),
    _log(A, {**B, "name": "_change_type"}, partition_key=["_change_type"]),
    {"schema": schema(A, {**B, "name": "_log_offset"})},
    _log(A, {**B, "auto_increment": True}),
    {"schema": {**_log(A, B)["schema"], "auto_increment_column": ["a"]}},
    {"schema": schema(primary_key=["a", "b"]), "partition_key": ["b"], "bucket_key": ["b"]},
    {"schema": schema(primary_key=["a", "b"]), "partition_key": ["b", "a"]},
    {"schema": schema(primary_key=["a"]), "partition_key": ["b"], "bucket_key": ["b"]},
    {"schema": schema(A, ARRAY, primary_key=["a", "l"])},
    _log(A, {**_ROW, "id": 7}),
    _log({**A, "id": -1}, B),
    {"schema": schema(highest_field_id=1)},
    {"schema": schema(with_function(A, "sum"), B)},
    {"bucket_count": 0},
    {"bucket_count": -3},
    _log(A, {**B, "data_type": _MAP}, bucket_key=["b"]),
    {"bucket_key": ["a", "zz"]},
    {"schema": {**_log(A, {**B, "data_type": _DEEP})["schema"], "highest_field_id": 11},
     "bucket_key": ["b"]},
    {"partition_key": ["b"], **_properties(table_auto__partition_enabled="true")},
    {
        "partition_key": ["a", "b"],
        "properties": {
            f"{_AUTO}.enabled": "true", f"{_AUTO}.key": "b", f"{_AUTO}.num-precreate": "2",
        },
    },
    {
        "partition_key": ["a", "b"],
        "properties": {f"{_AUTO}.enabled": "true", f"{_AUTO}.key": "b"},
    },
    *(
        {"properties": {key: value}}
        for key, value in (
            ("table.datalake.format", "delta"),
            ("table.replication.factor", "-1"),
            (f"{_AUTO}.num-precreate", "x"),
            (f"{_AUTO}.num-precreate", " 4 "),
            (f"{_AUTO}.num-retention", "2147483648"),
            (f"{_AUTO}.num-retention", "1_0"),
            ("table.log.ttl", "0"),
            ("table.log.ttl", "100"),
            ("table.log.ttl", "100 ms"),
            ("table.auto-increment.cache-size", "5_000"),
            ("table.log.tiered.local-segments", "-1"),
            ("table.log.arrow.compression.zstd.level", "x"),
            ("table.merge-engine", "NOPE"),
            ("table.merge-engine", "versioned"),
            ("table.delete.behavior", "DISABLE"),
        )
    ),
]  # fmt: skip

_NOT_NULL: Final = b'{"type":"INTEGER","nullable":false}'


def _added(name: str, kind: bytes = b'{"type":"INTEGER"}', place: int = 0) -> pb.AddColumn:
    return pb.AddColumn(column_name=name, data_type_json=kind, column_position_type=place)


#: Changes of the table ``log``, which is one of the columns a and b.
ALTERATIONS: Final = [
    alter(config_changes=config("my.own", "1"), add_columns=[_added("c")]),
    alter(config_changes=config("my.own", "1", 2)),
    alter(config_changes=config("table.log.tiered.local-segments", "x")),
    alter(config_changes=config("table.log.tiered.local-segments", "0")),
    alter(config_changes=config("table.datalake.freshness", "100")),
    alter(
        config_changes=[
            *config("table.datalake.freshness", "x"),
            *config("table.datalake.freshness", None, 1),
        ]
    ),
    alter(drop_columns=[pb.DropColumn(column_name="b")]),
    alter(rename_columns=[pb.RenameColumn(old_column_name="b", new_column_name="c")]),
    alter(add_columns=[_added("c", place=1)]),
    alter(add_columns=[_added("c", _NOT_NULL)]),
    alter(add_columns=[_added("b")]),
    alter("nope", add_columns=[_added("c")]),
    alter("nope", config_changes=config("my.own", "1"), add_columns=[_added("c")]),
    alter("nope", config_changes=config("my.own", "1", 2)),
    alter("nope", add_columns=[_added("c", place=1)]),
    alter(config_changes=config("table.datalake.enabled", "7 d")),
    alter(add_columns=[_added("__offset"), _added("_change_type")]),
]


def _snapshots(name: str, partition: str | None = None) -> pb.GetLatestKvSnapshotsRequest:
    return pb.GetLatestKvSnapshotsRequest(table_path=path(name), partition_name=partition)


# ``keyed_5`` is partitioned
SNAPSHOTS: Final = [_snapshots("log", "x"), _snapshots("keyed_0", "x"), _snapshots("keyed_5")]


def questions() -> Iterator[tuple[str, api.Api[Any, Any], Message]]:
    """Return all questions, by name; they are asked in this order."""

    def table(name: str, value: dict[str, Any]) -> Message:
        return pb.CreateTableRequest(
            table_path=path(name), table_json=table_json(**value), ignore_if_exists=False
        )

    for number, name in enumerate(NAMES):
        database = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False)
        yield f"database name {number}", api.CREATE_DATABASE, database
        yield f"table name {number}", api.CREATE_TABLE, table(name, {})
        partition = pb.CreatePartitionRequest(
            table_path=path("parted"), partition_spec=spec(b=name), ignore_if_exists=False
        )
        yield f"partition name {number}", api.CREATE_PARTITION, partition
    for what, tables in (("change", CHANGES), ("keyed", DESCRIPTIONS), ("table", TABLES)):
        for number, value in enumerate(tables):
            name = f"{what} {number}"
            yield name, api.CREATE_TABLE, table(f"{what}_{number}", value)
    for number, question in enumerate(SNAPSHOTS):
        yield f"snapshots {number}", api.GET_LATEST_KV_SNAPSHOTS, question
    for what, requests in (("request", REQUESTS), ("alteration", ALTERATIONS)):
        for number, (kind, request) in enumerate(requests):
            yield f"{what} {number}", kind, request


def asked(peer: Peer) -> dict[str, Answer]:
    """Ask a server that is new; return its answers, by the name of the question."""
    found = {}
    for name, kind, request in questions():
        code, message, body = peer.ask(kind, request)
        # a list of them in Java's words, which is left out here
        message = message.partition(" Current columns is")[0]
        texts = (re.sub(_JAVA, "", message), body)
        message, body = (text.replace(DATABASE, "beside") for text in texts)
        found[name] = (code, message, body)
    return found


def recorded() -> dict[str, Answer]:
    """Return what the real server answered."""
    found: dict[str, list[Any]] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return {name: (code, message, body) for name, (code, message, body) in found.items()}


def main() -> None:
    """Record the answers of a real server."""
    with LocalCluster() as cluster:
        peer = Peer(cluster.bootstrap_servers, cluster.server_version)
        found = asked(peer)
        peer.close()
    text = json.dumps(found, indent=1, ensure_ascii=False)
    ANSWERS.write_text(text + "\n", encoding="utf-8")
    print(f"{len(found)} answers in {ANSWERS}")


if __name__ == "__main__":
    main()
