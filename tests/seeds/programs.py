"""Programs of our own that use every name that the client's documentation has."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss_df as fluss

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def settings(address: str) -> fluss.Config:
    """Read and set every setting."""
    config = fluss.Config({"bootstrap.servers": address})
    assert config.bootstrap_servers == address
    config.writer_request_max_size = 1 << 20
    config.writer_acks = "all"
    config.writer_retries = 5
    config.writer_batch_size = 1 << 16
    config.writer_batch_timeout_ms = 10
    config.writer_bucket_no_key_assigner = "round_robin"
    config.scanner_remote_log_prefetch_num = 2
    config.remote_file_download_thread_num = 2
    config.scanner_remote_log_read_concurrency = 2
    config.scanner_log_max_poll_records = 100
    config.connect_timeout_ms = 5_000
    assert fluss.Config({"writer.bucket.no-key-assigner": "sticky"}) is not None
    assert (config.security_protocol, config.security_sasl_mechanism) == ("PLAINTEXT", "PLAIN")
    assert not config.security_sasl_username
    assert not config.security_sasl_password
    return config


async def administration(connection: fluss.FlussConnection, database: str) -> None:
    """Create, list and drop databases, tables and partitions."""
    admin = await connection.get_admin()
    described = fluss.DatabaseDescriptor(comment="ours", custom_properties={"team": "a"})
    assert described.comment == "ours"
    assert described.get_custom_properties() == {"team": "a"}
    await admin.create_database(database, described, ignore_if_exists=True)
    assert database in await admin.list_databases()
    assert await admin.database_exists(database)
    info = await admin.get_database_info(database)
    assert (info.database_name, info.created_time > 0) == (database, True)
    assert info.modified_time >= info.created_time
    assert info.get_database_descriptor().comment == "ours"
    for node in await admin.get_server_nodes():
        assert node.host
        assert node.port > 0
        assert (node.uid, node.id >= 0) != ("", False)
        assert node.server_type in ("CoordinatorServer", "TabletServer")

    path = fluss.TablePath(database, "by_region")
    fields = [*SCHEMA, pa.field("region", pa.string())]
    descriptor = fluss.TableDescriptor(
        fluss.Schema(pa.schema(fields)),
        partition_keys=["region"],
        bucket_count=2,
        bucket_keys=["id"],
        comment="rows by region",
        log_format="ARROW",
        properties={"table.log.ttl": "1d"},
        custom_properties={"owner": "b"},
    )
    assert descriptor.get_schema().get_column_names() == ["id", "name", "region"]
    assert descriptor.get_schema().get_column_types() == ["bigint", "string", "string"]
    await admin.create_table(path, descriptor, ignore_if_exists=True)
    assert await admin.table_exists(path)
    assert path.table_name in await admin.list_tables(path.database_name)
    table = await admin.get_table_info(path)
    assert (table.table_path, table.num_buckets, table.comment) == (path, 2, "rows by region")
    assert min(table.table_id, table.schema_id, table.created_time, table.modified_time) >= 0
    assert (table.get_primary_keys(), table.get_partition_keys()) == ([], ["region"])
    assert (table.get_bucket_keys(), table.has_primary_key()) == (["id"], False)
    assert (table.is_partitioned(), table.get_column_count()) == (True, 3)
    assert table.get_column_names() == table.get_schema().get_column_names()
    assert table.get_properties()["table.log.ttl"] == "1d"
    assert table.get_custom_properties() == {"owner": "b"}
    await admin.create_partition(path, {"region": "eu"}, ignore_if_exists=True)
    (partition,) = await admin.list_partition_infos(path)
    assert (partition.partition_name, partition.partition_id >= 0) == ("eu", True)
    earliest = fluss.OffsetSpec.earliest()
    assert await admin.list_partition_offsets(path, "eu", [0, 1], earliest) == {0: 0, 1: 0}

    opened = await connection.get_table(path)
    with opened.new_append().create_writer() as writer:
        writer.append({"id": 1, "name": "a", "region": "eu"})
    scanner = await opened.new_scan().create_log_scanner()
    scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
    scanner.unsubscribe_partition(partition.partition_id, 0)
    both = {(partition.partition_id, bucket): fluss.EARLIEST_OFFSET for bucket in (0, 1)}
    scanner.subscribe_partition_buckets(both)
    (record,) = [found for _ in range(1) for found in scanner.poll(10_000)]
    assert record.row == {"id": 1, "name": "a", "region": "eu"}
    with pytest.raises(fluss.FlussError) as raised:
        await admin.get_latest_lake_snapshot(path)
    assert raised.value.message
    assert raised.value.error_code
    await admin.drop_partition(path, {"region": "eu"}, ignore_if_not_exists=True)
    await admin.drop_table(path, ignore_if_not_exists=True)
    await admin.drop_database(database, ignore_if_not_exists=True, cascade=True)


async def log_table(connection: fluss.FlussConnection, path: fluss.TablePath) -> None:
    """Append rows in every form, and read them in every form."""
    admin = await connection.get_admin()
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
    table = await connection.get_table(path)
    assert (table.get_table_path(), table.has_primary_key()) == (path, False)
    writer = table.new_append().create_writer()
    await writer.append({"id": 0, "name": "a"}).wait()
    data: dict[str, list[Any]] = {"id": [1], "name": ["b"]}
    writer.write_arrow(pa.table(data, SCHEMA))
    writer.write_arrow_batch(pa.record_batch(data, SCHEMA))
    writer.write_pandas(pd.DataFrame(data))
    await writer.flush()
    latest = await admin.list_offsets(path, [0], fluss.OffsetSpec.latest())
    assert latest == {0: 4}
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.timestamp(1)) == {0: 0}
    for scan in (table.new_scan().project([1]), table.new_scan().project_by_name(["name"])):
        batches = await scan.create_record_batch_log_scanner()
        batches.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert batches.to_arrow()["name"].to_pylist() == ["a", "b", "b", "b"]
    whole = await table.new_scan().create_record_batch_log_scanner()
    whole.subscribe(0, 0)
    assert len(whole.to_pandas()) == 4
    whole.unsubscribe(0)
    whole.subscribe(0, 0)
    assert whole.poll_arrow(10_000).num_rows
    whole.subscribe(0, 3)
    (piece,) = whole.poll_record_batch(10_000)
    assert (piece.bucket.bucket_id, piece.base_offset, piece.last_offset) == (0, 3, 3)
    assert piece.batch.num_rows == 1
    rows = await table.new_scan().create_log_scanner()
    rows.subscribe(bucket_id=0, start_offset=0)
    records = rows.poll(10_000)
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    assert records.buckets() == [bucket] == list(records.keys())
    assert records.count() == len(records) == len(records.records(bucket))
    assert not records.is_empty()
    assert bucket in records
    assert records[0].offset == 0
    assert records[-1] == list(records)[-1]
    assert list(records[0:1]) == [records[0]]
    assert list(records[bucket]) == list(records.records(bucket))
    assert [len(found) for found in records.values()] == [records.count()]
    assert [found for found, _ in records.items()] == [bucket]
    assert records[0].timestamp > 0
    assert records[0].change_type is fluss.ChangeType.AppendOnly


async def primary_key_table(connection: fluss.FlussConnection, path: fluss.TablePath) -> None:
    """Upsert, update parts of rows, delete, look up; read what changed."""
    admin = await connection.get_admin()
    schema = fluss.Schema(SCHEMA, primary_keys=["id"])
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, kv_format="COMPACTED")
    await admin.create_table(path, descriptor)
    table = await connection.get_table(path)
    writer = table.new_upsert().create_writer()
    await writer.upsert({"id": 1, "name": "a"}).wait()
    for upsert in (
        table.new_upsert().partial_update_by_name(["id", "name"]),
        table.new_upsert().partial_update_by_index([0, 1]),
    ):
        part = upsert.create_writer()
        part.upsert({"id": 1, "name": "b"})
        await part.flush()
    lookuper = table.new_lookup().create_lookuper()
    assert await lookuper.lookup({"id": 1}) == {"id": 1, "name": "b"}
    await writer.delete({"id": 1}).wait()
    await writer.flush()
    assert await lookuper.lookup({"id": 1}) is None
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
    kinds = [record.change_type for record in scanner.poll(10_000)]
    assert kinds[:3] == [
        fluss.ChangeType.Insert,
        fluss.ChangeType.UpdateBefore,
        fluss.ChangeType.UpdateAfter,
    ]
    assert kinds[-1] is fluss.ChangeType.Delete


def values() -> None:
    """Make what is known without a server."""
    bucket = fluss.TableBucket.with_partition(7, 5, 1)
    assert (bucket.table_id, bucket.partition_id, bucket.bucket_id) == (7, 5, 1)
    snapshot = fluss.LakeSnapshot(3, {bucket: 9})
    assert (snapshot.snapshot_id, snapshot.table_buckets_offset) == (3, {bucket: 9})
    assert snapshot.get_bucket_offset(bucket) == 9
    assert snapshot.get_table_buckets() == [bucket]


async def everything(address: str, database: str) -> None:
    """Run all of it on a server, in a database of its own and in ``fluss``."""
    values()
    conn = await fluss.FlussConnection.create(settings(address))
    await administration(conn, database)
    await (await conn.get_admin()).create_database("fluss", ignore_if_exists=True)
    await log_table(conn, fluss.TablePath("fluss", f"{database}_log"))
    await primary_key_table(conn, fluss.TablePath("fluss", f"{database}_pk"))
    conn.close()
