"""Properties at and beyond their limits: one table does no harm to the others."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions, Limits
from fluss_df.engine.auto_partitions import keep_partitions
from fluss_df.engine.tables import options as properties_of
from fluss_df.engine.tables.tables import Table
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket
from tests.embedded.raw import RawClient

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False)]
)
NUMBERED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("v", pa.int64()),
    ]
)
GIVEN = pa.schema([NUMBERED.field("id"), NUMBERED.field("v")])
PATH = fluss.TablePath("fluss", "extreme")
ZONE = "table.auto-partition.time-zone"
RETENTION = "table.auto-partition.num-retention"
CACHE = "table.auto-increment.cache-size"


def partitioned(**properties: str) -> fluss.TableDescriptor:
    return fluss.TableDescriptor(
        fluss.Schema(SCHEMA),
        partition_keys=["day"],
        bucket_count=1,
        properties={"table.auto-partition.enabled": "true", **properties},
    )


def numbered(size: int) -> fluss.TableDescriptor:
    schema = fluss.Schema(NUMBERED, primary_keys=["id"], auto_increment_column="n")
    return fluss.TableDescriptor(schema, bucket_count=1, properties={CACHE: str(size)})


def write(connection: fluss.FlussConnection, count: int = 1) -> None:
    upsert = connection.get_table(PATH).new_upsert().partial_update_by_name(["id", "v"])
    with upsert.create_writer() as writer:
        writer.write_arrow(pa.table({"id": range(count), "v": range(count)}, schema=GIVEN))


@pytest.mark.parametrize("unit", ["YEAR", "QUARTER", "MONTH", "DAY", "HOUR"])
def test_a_retention_before_year_1_keeps_all(tmp_path: Path, unit: str) -> None:
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        wanted = {RETENTION: "2147483647", "table.auto-partition.time-unit": unit}
        connection.get_admin().create_table(PATH, partitioned(**wanted))
        keep_partitions(engine.engine)
        assert len(connection.get_admin().list_partition_infos(PATH)) == 2


def test_a_table_that_fails_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def keep(engine: object, table: Table, properties: object) -> None:
        if table.path == PATH:
            raise struct.error("it cannot be")
        kept.append(table.path.table_name)

    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        for path in (PATH, fluss.TablePath("fluss", "next")):
            connection.get_admin().create_table(path, partitioned())
        monkeypatch.setattr("fluss_df.engine.auto_partitions._keep", keep)
        keep_partitions(engine.engine)
        assert kept == ["next"]


@pytest.mark.parametrize("zone", ["America", "Europe", "x" * 300, "../zone", "No/Where"])
def test_no_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        with pytest.raises(fluss.FlussError, match="time zone") as raised:
            admin.create_table(PATH, partitioned(**{ZONE: zone}))
        assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
        assert admin.list_tables("fluss") == []


@pytest.mark.parametrize("size", [0, -1, 10_000_001, 2**63 - 1])
def test_a_sequence_cache_has_bounds(tmp_path: Path, size: int) -> None:
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        admin = connection.get_admin()
        with pytest.raises(fluss.FlussError, match="between 1 and 10000000"):
            admin.create_table(PATH, numbered(size))
        assert admin.list_tables("fluss") == []


@pytest.mark.parametrize("size", [0, -1, 2**63 - 1])
def test_an_older_table_with_such_a_cache_is_written(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(properties_of, "check_option", lambda key, value: None)
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, numbered(size))
        write(connection, 3)
    with EmbeddedFluss(tmp_path) as engine:
        table = engine.engine.catalog.table(PATH)
        assert engine.engine.kv_bucket(TableBucket(table.id, 0))[1].row_count == 3


def test_numbers_that_are_used_up_are_refused_before_the_log(tmp_path: Path) -> None:
    with EmbeddedFluss(tmp_path) as engine, engine.connection() as connection:
        connection.get_admin().create_table(PATH, numbered(1))
        table = engine.engine.catalog.table(PATH)
        table.sequence = 2**63 - 1
        with pytest.raises(fluss.FlussError, match="used up"):
            write(connection)
        _, kv = engine.engine.kv_bucket(TableBucket(table.id, 0))
        assert (kv.log.end_offset, kv.row_count) == (0, 0)
    EmbeddedFluss(tmp_path).close()


def test_what_is_wrong_with_one_bucket_does_not_keep_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddedFluss(tmp_path, options=EngineOptions(durability="none"))
    with engine.connection() as connection:
        for name in ("bad", "good"):
            path = fluss.TablePath("fluss", name)
            connection.get_admin().create_table(
                path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
            )
            with connection.get_table(path).new_append().create_writer() as writer:
                writer.write_arrow(pa.table({"id": [1], "day": ["a"]}, schema=SCHEMA))
    bad, good = engine.engine._open.values()

    def fail() -> None:
        raise struct.error("int too large to convert")

    monkeypatch.setattr(bad.tablet, "close", fail)
    with pytest.raises(fluss.FlussError, match="int too large"):
        engine.close()
    assert good.tablet.closed
    assert good.tablet.synced_offset == good.tablet.end_offset == 1
    bad.tablet.abandon()
    EmbeddedFluss(tmp_path).close()


def test_a_byte_now_and_then_holds_no_memory(tmp_path: Path) -> None:
    size = 1 << 20
    limits = Limits(total_bytes=8 * size, request_bytes=size, connection_bytes=size, stalled_s=1.0)
    done = threading.Event()
    with EmbeddedFluss(tmp_path, port=0, limits=limits) as engine:
        host, _, port = engine.address.rpartition(":")
        peers = [socket.create_connection((host, int(port))) for _ in range(8)]
        for peer in peers:
            peer.sendall(struct.pack(">ihhi", size - 92, 1014, 0, 1) + bytes(10))

        def trickle() -> None:
            while not done.wait(0.3):
                for peer in peers:
                    try:
                        peer.send(b"\0")
                    except OSError:
                        continue

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with RawClient(engine.address, 10) as client:
                client.send(1014, 0, bytes(200 << 10))
                assert client.receive().request_id == 1
        finally:
            done.set()
            thread.join()
            for peer in peers:
                peer.close()


def test_descriptions_have_a_largest_size(tmp_path: Path) -> None:
    """Each change writes the description again, and that of a database those of all others."""
    path = fluss.TablePath("fluss", "t")
    schema = fluss.Schema(pa.schema([("n", pa.int64())]))
    part, much = "x" * 600_000, "x" * (1 << 20)
    with EmbeddedFluss(tmp_path / "d") as engine, engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_table(path, fluss.TableDescriptor(schema, custom_properties={"a": part}))
        admin.create_database("d", fluss.DatabaseDescriptor(part))
        refused: list[Callable[[], object]] = [
            lambda: admin.create_table(
                fluss.TablePath("fluss", "u"), fluss.TableDescriptor(schema, comment=much)
            ),
            lambda: admin.alter_table(path, set_properties={"b": part}),
            lambda: admin.create_database("e", fluss.DatabaseDescriptor(much)),
            lambda: admin.alter_database("d", set_properties={"b": part}),
        ]
        for change in refused:
            with pytest.raises(FlussError, match=r"bytes of JSON, and may be 1,048,576"):
                change()
        assert admin.list_tables("fluss") == ["t"]
        assert admin.list_databases() == ["d", "fluss"]
    assert (tmp_path / "d" / "catalog" / "databases.json").stat().st_size < 1 << 20
