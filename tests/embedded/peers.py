"""Two servers that get the same requests: a real Fluss and an embedded engine."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from google.protobuf.message import Message

from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from tests.embedded.raw import RawClient

DATABASE = f"beside_{uuid.uuid4().hex[:8]}"

# A property that servers from 1.0 on give primary-key tables.
STANDBY_REPLICA = "table.kv.standby-replica.enabled"
# What servers from 1.0 on answer where 0.9.1, and the embedded engine, answer otherwise.
SINCE_1_0 = {
    (49, "Bucket count 200000 exceeds the maximum limit 128000."): (
        49,
        "Bucket count 200000 exceeds the maximum limit 4096 for a non-partitioned table or"
        " partition.",
    ),
    (17, "Replication factor must be larger than 0."): (
        39,
        "'table.replication.factor' must be greater than 0.",
    ),
    (56, "The option 'table.log.ttl' is not supported to alter yet."): (0, ""),
    (56, "The option 'table.bogus' is not supported to alter yet."): (
        56,
        "The following options are not supported to alter yet: 'table.bogus'.",
    ),
    (
        56,
        "The option 'table.datalake.enabled' cannot be altered for tables that were created before"
        " the Fluss cluster enabled datalake.",
    ): (
        56,
        f"Cannot alter table {DATABASE}.log in data lake, because the Fluss cluster doesn't enable"
        " datalake tables.",
    ),
    (
        39,
        "Invalid value for config 'table.datalake.freshness'. Reason: Could not parse value 'zz'"
        " for key 'table.datalake.freshness'.",
    ): (
        56,
        "The following options cannot be altered for tables that were created before the Fluss"
        " cluster enabled datalake: 'table.datalake.freshness'.",
    ),
}


class Peer:
    """A server with a database, a table and a partitioned table.

    Parameters
    ----------
    address
        The server's.
    version
        Of a real server.
    """

    def __init__(self, address: str, version: str | None = None) -> None:
        self.since_1_0 = version is not None and int(version.partition(".")[0]) >= 1
        self.coordinator = RawClient(address)
        servers = self.coordinator.call(api.GET_METADATA, pb.MetadataRequest())
        node = servers.tablet_servers[0]
        self.tablet = RawClient(f"{node.host}:{node.port}")
        for client in (self.coordinator, self.tablet):
            client.hello()
        self.coordinator.call(
            api.CREATE_DATABASE,
            pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=False),
        )
        self.create("log")
        self.create("parted", partition_key=["b"])
        # a real server takes note of them a moment later
        moment = 1.0 if version is not None else 0.0
        time.sleep(moment)
        self.coordinator.call(
            api.CREATE_PARTITION,
            pb.CreatePartitionRequest(
                table_path=path("parted"), partition_spec=spec(b="x"), ignore_if_exists=False
            ),
        )
        time.sleep(moment)
        self.ids = {
            name: self.coordinator.call(
                api.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name))
            ).table_id
            for name in ("log", "parted")
        }

    def create(self, name: str, **changes: object) -> None:
        self.coordinator.call(
            api.CREATE_TABLE,
            pb.CreateTableRequest(
                table_path=path(name), table_json=table_json(**changes), ignore_if_exists=False
            ),
        )

    def client(self, kind: api.Api[Any, Any]) -> RawClient:
        """Return the connection on which a request is answered."""
        on_tablet = kind.key in (1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059, 1061)
        return self.tablet if on_tablet else self.coordinator

    def ask(self, kind: api.Api[Any, Any], request: Message) -> tuple[int, str, str]:
        """Return code and message of the error, else the text of the answer; without ids."""
        answer = self.client(kind).ask(kind, request)
        code, message = answer.error
        body = kind.response.FromString(answer.body) if answer.type == 0 else ""
        text = str(body)
        for name, number in self.ids.items():
            text = text.replace(f"tableId={number},", f"tableId={name},")
            message = message.replace(f"tableId={number},", f"tableId={name},")
        return code, message.split("\n")[0], text

    def table_json(self, name: str) -> dict[str, Any]:
        """Return how the server describes a table, without what 0.9.1 does not know."""
        asked = pb.GetTableInfoRequest(table_path=path(name))
        info = self.coordinator.call(api.GET_TABLE_INFO, asked)
        found: dict[str, Any] = json.loads(info.table_json)
        if self.since_1_0:
            found["properties"].pop(STANDBY_REPLICA, None)
        return found

    def as_here(self, answer: tuple[int, str, str]) -> tuple[int, str, str]:
        """Return what a server of this version says where 0.9.1 gives an answer."""
        code, message, body = answer
        if self.since_1_0:
            code, message = SINCE_1_0.get((code, message), (code, message))
        return code, message, body

    def close(self) -> None:
        self.coordinator.close()
        self.tablet.close()


def path(name: str, database: str = DATABASE) -> pb.PathOfTable:
    return pb.PathOfTable(database_name=database, table_name=name)


def spec(**values: str) -> pb.PartitionSpec:
    return pb.PartitionSpec(
        partition_key_values=[pb.KeyValue(key=key, value=value) for key, value in values.items()]
    )


def table_json(**changes: object) -> bytes:
    """Return the description of a table of an INT and a STRING, as clients send it."""
    columns = [
        {"name": "a", "data_type": {"type": "INTEGER"}, "id": 0},
        {"name": "b", "data_type": {"type": "STRING"}, "id": 1},
    ]
    value: dict[str, object] = {
        "version": 1,
        "schema": {"version": 1, "columns": columns, "highest_field_id": 1},
        "partition_key": [],
        "bucket_key": [],
        "bucket_count": 1,
        "properties": {},
        "custom_properties": {},
    }
    return json.dumps(value | changes).encode()
