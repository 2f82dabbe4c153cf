"""What the requests of :mod:`tests.client.request_calls` find on a server: tables with rows."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TableBucket, TablePath
from fluss_df.client.admin import leases
from tests.embedded.raw import RawClient

EVENTS = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("sub", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
    ]
)
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]}, schema=EVENTS)
CURRENT = pa.table({"id": [1, 1, 2], "sub": [1, 2, 3], "name": ["x", "y", None]}, schema=KEYED)
LIMIT = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"
NOBODY = 10**9

Answer = object


@dataclass
class World:
    """A server, and what every call finds there."""

    address: str
    connection: fluss.FlussConnection
    database: str = field(default_factory=lambda: f"every_{uuid.uuid4().hex[:12]}")

    def __post_init__(self) -> None:
        self.admin = self.connection.get_admin()
        self.known: set[int] = set()
        for node in self.admin.get_server_nodes():
            client = RawClient(node.address)
            self.known |= {version.api_key for version in client.hello().api_versions}
            client.close()
        self.admin.create_database(self.database)
        self.events = self.table("events", fluss.Schema(EVENTS), bucket_count=1)
        self.keyed = self.table(
            "keyed", fluss.Schema(KEYED, ["id", "sub"]), bucket_count=1, bucket_keys=["id"]
        )
        self.parted = self.table(
            "parted", fluss.Schema(EVENTS), bucket_count=2, partition_keys=["name"]
        )
        self.admin.create_partition(self.parted.get_table_path(), {"name": "p"})
        with self.events.new_append().create_writer() as writer:
            writer.write_arrow(ROWS)
        with self.keyed.new_upsert().create_writer() as upserts:
            upserts.write_arrow(CURRENT)
        self.bucket = TableBucket(self.keyed.get_table_info().table_id, 0)

    def path(self, name: str) -> TablePath:
        return TablePath(self.database, name)

    def table(self, name: str, schema: fluss.Schema, **options: Any) -> fluss.FlussTable:
        self.admin.create_table(self.path(name), fluss.TableDescriptor(schema, **options))
        return self.connection.get_table(self.path(name))

    @contextlib.contextmanager
    def another_connection(self, **settings: object) -> Iterator[fluss.FlussConnection]:
        """Give a connection of its own, to which nothing is known yet."""
        with fluss.connect({"bootstrap.servers": self.address, **settings}) as connection:
            yield connection

    def rows(self, connection: fluss.FlussConnection) -> list[dict[str, Any]]:
        scan = connection.get_table(self.path("events")).new_scan()
        scanner = scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        rows: list[dict[str, Any]] = scanner.to_arrow().to_pylist()
        return rows

    def code(self, call: Callable[[], object]) -> int:
        """Return the code of an error that has to come; settings have -1 in 0.9.1."""
        with pytest.raises(FlussError) as raised:
            call()
        code = raised.value.error_code
        return ErrorCode.CONFIG_EXCEPTION if code == ErrorCode.UNKNOWN_SERVER_ERROR else code

    def code_at_once(self, call: Callable[[], object]) -> int:
        """Return the same of a lease of no table, for which clients wait: it may be a new one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "_TABLE_WAIT_MS", 100)
            return self.code(call)
