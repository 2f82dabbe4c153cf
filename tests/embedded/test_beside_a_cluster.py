"""The same requests to an embedded engine and to a real Fluss server, answered alike.

What differs on purpose stands in docs/embedded.md.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from fluss_df.errors import ErrorCode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.peers import DATABASE, Peer, path, spec, table_json

NAMES = ["", ".", "..", "a b", "__x", "x" * 201, "ä", "a/b", "../../etc"]


def test_a_name_that_is_not_utf_8(real: Peer, embedded: Peer) -> None:
    good = pb.CreateDatabaseRequest(database_name="xyz", ignore_if_exists=False)
    body = good.SerializeToString().replace(b"xyz", b"\xff\xfeA")
    malformed = pb.CreateDatabaseRequest.FromString(body)
    expected = real.ask(api.CREATE_DATABASE, malformed)
    assert expected[0] == ErrorCode.INVALID_DATABASE_EXCEPTION
    assert embedded.ask(api.CREATE_DATABASE, malformed) == expected


@pytest.mark.parametrize("name", NAMES)
def test_names(real: Peer, embedded: Peer, name: str) -> None:
    database = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False)
    table = pb.CreateTableRequest(
        table_path=path(name), table_json=table_json(), ignore_if_exists=False
    )
    partition = pb.CreatePartitionRequest(
        table_path=path("parted"), partition_spec=spec(b=name), ignore_if_exists=False
    )
    requests = (
        (api.CREATE_DATABASE, database),
        (api.CREATE_TABLE, table),
        (api.CREATE_PARTITION, partition),
    )
    for kind, request in requests:
        expected = real.ask(kind, request)
        assert expected[0] != 0
        assert embedded.ask(kind, request) == expected


PROPERTIES = [
    ("bogus", "1"),
    ("table.bogus", "1"),
    ("table.log.format", "foo"),
    ("table.log.arrow.compression.type", "gzip"),
    ("table.log.arrow.compression.zstd.level", "0"),
    ("table.log.arrow.compression.zstd.level", "99"),
    ("table.log.ttl", "abc"),
    ("table.log.ttl", "-1"),
    ("table.replication.factor", "0"),
    ("table.replication.factor", "2"),
    ("table.auto-partition.enabled", "true"),
    ("table.auto-partition.enabled", "maybe"),
    ("table.auto-partition.time-unit", "FORTNIGHT"),
    ("table.merge-engine", "first_row"),
    ("table.delete.behavior", "ignore"),
    ("table.log.tiered.local-segments", "0"),
    ("table.log.ttl", "7 d"),
    ("table.log.format", "INDEXED"),
    ("table.datalake.freshness", "3 min"),
]
CHANGES: list[dict[str, object]] = [
    {"bucket_count": 200_000},
    {"bucket_key": ["zz"]},
    {"partition_key": ["zz"]},
    {"partition_key": ["b"], "bucket_key": ["b"]},
    {"partition_key": ["a", "b"], "properties": {"table.auto-partition.enabled": "true"}},
    {
        "partition_key": ["a", "b"],
        "properties": {"table.auto-partition.enabled": "true", "table.auto-partition.key": "q"},
    },
    {"bucket_key": ["a"]},
    *[dict[str, object](properties={key: value}) for key, value in PROPERTIES],
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_tables(real: Peer, embedded: Peer, number: int) -> None:
    request = pb.CreateTableRequest(
        table_path=path(f"made_{number}"),
        table_json=table_json(**CHANGES[number]),
        ignore_if_exists=False,
    )
    expected = real.as_here(embedded.ask(api.CREATE_TABLE, request))
    assert real.ask(api.CREATE_TABLE, request) == expected


def alter(name: str = "log", **changes: Any) -> tuple[api.Api[Any, Any], Message]:
    return api.ALTER_TABLE, pb.AlterTableRequest(
        table_path=path(name), ignore_if_not_exists=False, **changes
    )


def config(key: str, value: str | None, kind: int = 0) -> list[pb.AlterConfig]:
    return [pb.AlterConfig(config_key=key, config_value=value, op_type=kind)]


def offsets(kind: int, table: str = "log", bucket: int = 0, **more: Any) -> tuple[Any, ...]:
    return (
        table,
        api.LIST_OFFSETS,
        pb.ListOffsetsRequest(
            follower_server_id=-1, offset_type=kind, table_id=0, bucket_id=[bucket], **more
        ),
    )


REQUESTS: list[tuple[api.Api[Any, Any], Message]] = [
    (api.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=False)),
    (api.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=True)),
    (api.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="nope")),
    (
        api.DROP_DATABASE,
        pb.DropDatabaseRequest(database_name="nope", ignore_if_not_exists=False, cascade=False),
    ),
    (
        api.DROP_DATABASE,
        pb.DropDatabaseRequest(database_name=DATABASE, ignore_if_not_exists=False, cascade=False),
    ),
    (api.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="nope")),
    (api.LIST_TABLES, pb.ListTablesRequest(database_name="nope")),
    (api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path("nope"))),
    (api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path("nope", "nope"))),
    (api.TABLE_EXISTS, pb.TableExistsRequest(table_path=path("log"))),
    (api.TABLE_EXISTS, pb.TableExistsRequest(table_path=path("nope"))),
    (api.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path("log"), schema_id=9)),
    (api.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path("nope"))),
    (api.DROP_TABLE, pb.DropTableRequest(table_path=path("nope"), ignore_if_not_exists=False)),
    (api.DROP_TABLE, pb.DropTableRequest(table_path=path("nope"), ignore_if_not_exists=True)),
    (
        api.CREATE_TABLE,
        pb.CreateTableRequest(
            table_path=path("log"), table_json=table_json(), ignore_if_exists=False
        ),
    ),
    (
        api.CREATE_TABLE,
        pb.CreateTableRequest(
            table_path=path("t", "nope"), table_json=table_json(), ignore_if_exists=False
        ),
    ),
    *(
        (
            api.CREATE_PARTITION,
            pb.CreatePartitionRequest(
                table_path=path(name), partition_spec=values, ignore_if_exists=ignore
            ),
        )
        for name, values, ignore in (
            ("log", spec(b="x"), False),
            ("nope", spec(b="x"), False),
            ("parted", spec(b="x"), False),
            ("parted", spec(b="x"), True),
            ("parted", spec(q="x"), False),
            ("parted", spec(b="x", q="y"), False),
        )
    ),
    *(
        (
            api.DROP_PARTITION,
            pb.DropPartitionRequest(
                table_path=path(name), partition_spec=values, ignore_if_not_exists=ignore
            ),
        )
        for name, values, ignore in (
            ("log", spec(b="x"), False),
            ("nope", spec(b="x"), False),
            ("parted", spec(b="no"), False),
            ("parted", spec(b="no"), True),
            ("parted", spec(q="x"), False),
        )
    ),
    (api.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=path("log"))),
    (api.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=path("nope"))),
    (api.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path("log"))),
    (api.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path("nope"))),
    alter(config_changes=config("table.log.ttl", "3d")),
    alter(config_changes=config("table.bogus", "3d")),
    alter(config_changes=config("table.datalake.enabled", "true")),
    alter(config_changes=config("table.datalake.freshness", "zz")),
    alter(config_changes=config("my.own", "1")),
    alter(config_changes=config("my.own", None, 1)),
    alter(),
    alter(
        add_columns=[
            pb.AddColumn(
                column_name="a", data_type_json=b'{"type":"INTEGER"}', column_position_type=0
            )
        ]
    ),
    *(
        (
            api.GET_METADATA,
            pb.MetadataRequest(
                partitions_path=[
                    pb.PathOfPartition(
                        database_name=database, table_name=table, partition_name="missing"
                    )
                ]
            ),
        )
        for database, table in (
            (DATABASE, "parted"),
            (DATABASE, "log"),
            (DATABASE, "nope"),
            ("nope", "log"),
        )
    ),
    (api.GET_METADATA, pb.MetadataRequest(partitions_id=[10**9])),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_administration(real: Peer, embedded: Peer, number: int) -> None:
    kind, request = REQUESTS[number]
    assert real.ask(kind, request) == real.as_here(embedded.ask(kind, request))


@pytest.mark.parametrize("missing", [False, True])
def test_a_wrong_change_of_a_table_that_may_be_missing(
    real: Peer, embedded: Peer, missing: bool
) -> None:
    """What is wrong whatever the table is comes before the table itself."""
    column = pb.AddColumn(
        column_name="c", data_type_json=b'{"type":"INTEGER"}', column_position_type=0
    )
    for changes in (
        {"config_changes": config("my.own", "1"), "add_columns": [column]},
        {"config_changes": config("my.own", "1", 2)},
    ):
        request = pb.AlterTableRequest(
            table_path=path("nope" if missing else "log"), ignore_if_not_exists=True, **changes
        )
        expected = real.as_here(embedded.ask(api.ALTER_TABLE, request))
        code, message, body = real.ask(api.ALTER_TABLE, request)
        message = message.removeprefix("java.lang.IllegalArgumentException: ")
        assert (code, message, body) == expected


def test_what_is_set_and_removed_at_once_is_gone(real: Peer, embedded: Peer) -> None:
    found = []
    for peer in (real, embedded):
        peer.create("both_at_once", custom_properties={"my.own": "1", "other": "2"})
        changes = [*config("my.own", None, 1), *config("my.own", "3"), *config("new", "4")]
        peer.ask(*alter("both_at_once", config_changes=changes))
        found.append(peer.table_json("both_at_once")["custom_properties"])
    assert found == [{"other": "2", "new": "4"}] * 2


def batch(writer: int = -1, sequence: int = -1) -> bytes:
    data = pa.record_batch({"a": pa.array(range(3), pa.int32()), "b": ["x", "y", "z"]})
    encoded = encode_log_batch(data, schema_id=1, compression=Compression("none"))
    encoded.stamp(writer, sequence)
    return encoded.to_bytes()


def test_records(real: Peer, embedded: Peer) -> None:
    """One history of appends, reads and offsets, with every mistake that a client can make."""

    def produce(
        records: bytes, table: str = "log", bucket: int = 0, partition: int | None = None
    ) -> tuple[str, Any, Message]:
        part = pb.ProduceLogRequestForBucket(bucket_id=bucket, records=records)
        if partition is not None:
            part.partition_id = partition
        request = pb.ProduceLogRequest(acks=-1, table_id=0, timeout_ms=3000, buckets_req=[part])
        return table, api.PRODUCE_LOG, request

    def fetch(
        offset: int, table: str = "log", bucket: int = 0, columns: list[int] | None = None
    ) -> tuple[str, Any, Message]:
        part = pb.FetchLogRequestForBucket(
            bucket_id=bucket, fetch_offset=offset, max_fetch_bytes=1 << 20
        )
        tables = pb.FetchLogRequestForTable(
            table_id=0,
            projection_pushdown_enabled=columns is not None,
            projected_fields=columns or [],
            buckets_req=[part],
        )
        request = pb.FetchLogRequest(
            follower_server_id=-1, max_bytes=1 << 20, max_wait_ms=0, tables_req=[tables]
        )
        return table, api.FETCH_LOG, request

    def twice(*fetches: tuple[str, Any, Message]) -> tuple[str, Any, Message]:
        found = pb.FetchLogRequest()
        found.CopyFrom(cast(pb.FetchLogRequest, fetches[-1][2]))
        for _, _, request in reversed(fetches[:-1]):
            asked = cast(pb.FetchLogRequest, request).tables_req[0]
            if asked.projected_fields == found.tables_req[-1].projected_fields:
                found.tables_req[0].buckets_req.insert(0, asked.buckets_req[0])
            else:
                found.tables_req.insert(0, asked)
        return "log", api.FETCH_LOG, found

    many = pb.ListOffsetsRequest(
        follower_server_id=-1, offset_type=0, table_id=0, bucket_id=[0, 0, 0]
    )
    history = [
        produce(batch()),
        produce(batch() + batch()),
        produce(b""),
        produce(batch(), bucket=7),
        produce(batch(), partition=10**9),
        produce(batch(), table="parted"),
        *(produce(batch(50, sequence)) for sequence in (0, 0, 2, 1, 2, 3, 4, 5, 6)),
        *(produce(batch(50, sequence)) for sequence in (6, 2, 1, 0)),
        produce(batch(51, 3)),
        fetch(10**9),
        fetch(-1),
        fetch(0, bucket=9),
        fetch(0, table="parted"),
        fetch(0, columns=[1, 0]),
        fetch(0, columns=[9]),
        fetch(0, columns=[1, 1]),
        offsets(0),
        offsets(1),
        offsets(2, start_timestamp=0),
        offsets(2, start_timestamp=-5),
        offsets(0, bucket=9),
        offsets(0, table="parted"),
        # a bucket that is named twice is read once, from where the last one says
        twice(fetch(0), fetch(10**9)),
        twice(fetch(0), fetch(0), fetch(10**9, columns=[1])),
        twice(fetch(10**9), fetch(0, columns=[1, 0])),
        ("log", api.LIST_OFFSETS, many),
    ]
    for step, (table, kind, request) in enumerate(history):
        answers = []
        for peer in (real, embedded):
            sent = kind.request()
            sent.CopyFrom(request)
            if kind is api.FETCH_LOG:
                for asked in sent.tables_req:
                    asked.table_id = peer.ids[table]
            else:
                sent.table_id = peer.ids[table]
            answer = peer.ask(kind, sent)
            # a fetch names the table's id, each server its own
            answers.append(
                tuple(
                    text.replace(f"table_id: {peer.ids[table]}\n", "")
                    if isinstance(text, str)
                    else text
                    for text in answer
                )
            )
        assert answers[1] == answers[0], f"step {step}"
