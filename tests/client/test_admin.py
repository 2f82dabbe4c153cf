"""Databases, tables, partitions: as the official client sees them, with its error codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TablePath
from fluss_df.client.cluster.metadata import Cluster
from fluss_df.protocol import api
from tests.client.support import Official, Tables
from tests.peer import official
from tests.test_schema import ALL_TYPES

ID = pa.schema([("id", pa.int64())])
DAYS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("hour", pa.string())])


def both(
    official_client: Official, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> tuple[FlussError, official.FlussError]:
    """Return the errors of two calls that must fail."""
    with pytest.raises(FlussError) as our_error:
        ours()
    with pytest.raises(official.FlussError) as their_error:
        official_client.run(theirs)
    return our_error.value, their_error.value


# ---- databases


def test_databases(admin: fluss.FlussAdmin, database: str, official_client: Official) -> None:
    name = f"{database}_x"
    assert not admin.database_exists(name)
    admin.create_database(name, fluss.DatabaseDescriptor("sales", {"owner": "me"}))
    try:
        assert admin.database_exists(name)
        assert name in admin.list_databases()
        assert admin.list_databases() == sorted(
            official_client.run(lambda: official_client.admin.list_databases())
        )
        info = admin.get_database_info(name)
        theirs = official_client.run(lambda: official_client.admin.get_database_info(name))
        assert info.database_name == name
        assert (info.created_time, info.modified_time) == (
            theirs.created_time,
            theirs.modified_time,
        )
        descriptor = info.get_database_descriptor()
        assert descriptor.comment == "sales"
        assert descriptor.get_custom_properties() == {"owner": "me"}
        admin.create_database(name, ignore_if_exists=True)
        with pytest.raises(FlussError, match=name) as raised:
            admin.create_database(name)
        assert raised.value.error_code == ErrorCode.DATABASE_ALREADY_EXIST
        path = TablePath(name, "t")
        admin.create_table(path, fluss.TableDescriptor(fluss.Schema(ID), bucket_count=1))
        with pytest.raises(FlussError, match=name) as raised:
            admin.drop_database(name, cascade=False)
        assert raised.value.error_code == ErrorCode.DATABASE_NOT_EMPTY
    finally:
        admin.drop_database(name)
    assert not admin.database_exists(name)
    admin.drop_database(name, ignore_if_not_exists=True)


def test_missing_database(admin: fluss.FlussAdmin, official_client: Official) -> None:
    theirs = official_client.admin
    calls: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: admin.drop_database("nix"), lambda: theirs.drop_database("nix")),
        (lambda: admin.get_database_info("nix"), lambda: theirs.get_database_info("nix")),
        (lambda: admin.list_tables("nix"), lambda: theirs.list_tables("nix")),
    ]
    for our_call, their_call in calls:
        our_error, their_error = both(official_client, our_call, their_call)
        assert our_error.error_code == their_error.error_code == ErrorCode.DATABASE_NOT_EXIST
        assert "nix" in our_error.message
        assert "create the database, or correct its name" in our_error.message


@pytest.mark.parametrize("name", ["", "a b", "__x", "a.b", "x" * 201])
def test_bad_database_name(admin: fluss.FlussAdmin, official_client: Official, name: str) -> None:
    ours, theirs = both(
        official_client,
        lambda: admin.create_database(name),
        lambda: official_client.admin.create_database(name),
    )
    assert ours.error_code == theirs.error_code == ErrorCode.INVALID_DATABASE_EXCEPTION


# ---- tables


def test_table_as_the_server_returns_it(tables: Tables, official_client: Official) -> None:
    table = tables(
        ALL_TYPES,
        bucket_count=3,
        bucket_keys=["big", "int"],
        comment="all types",
        properties={"table.log.ttl": "1d"},
        custom_properties={"owner": "me"},
    )
    info = table.get_table_info()
    theirs = official_client.run(
        lambda: official_client.admin.get_table_info(official_client.path(table))
    )
    assert info.schema.arrow_schema == ALL_TYPES
    assert official_client.table(table).arrow_schema.names == ALL_TYPES.names
    assert (info.table_id, info.schema_id) == (theirs.table_id, theirs.schema_id)
    assert (info.created_time, info.modified_time) == (theirs.created_time, theirs.modified_time)
    assert info.num_buckets == theirs.num_buckets == 3
    assert info.comment == theirs.comment == "all types"
    assert info.get_bucket_keys() == theirs.get_bucket_keys() == ["big", "int"]
    assert info.get_partition_keys() == theirs.get_partition_keys() == []
    assert info.get_properties() == theirs.get_properties()
    assert info.get_properties()["table.log.ttl"] == "1d"
    assert info.get_custom_properties() == theirs.get_custom_properties() == {"owner": "me"}
    assert info.get_column_names() == theirs.get_column_names()
    assert info.get_schema().get_columns() == [
        (name, kind) for name, kind in theirs.get_schema().get_columns()
    ]


def test_table_that_the_official_client_made(
    admin: fluss.FlussAdmin, tables: Tables, official_client: Official
) -> None:
    path = tables.path()
    descriptor = official.TableDescriptor(
        official.Schema(DAYS),
        partition_keys=["day"],
        bucket_count=2,
        bucket_keys=["id"],
        comment="theirs",
        properties={"table.log.ttl": "2d"},
    )
    their_path = official.TablePath(path.database_name, path.table_name)
    official_client.run(lambda: official_client.admin.create_table(their_path, descriptor))
    info = admin.get_table_info(path)
    assert info.schema.arrow_schema == DAYS
    assert info.get_partition_keys() == ["day"]
    assert info.get_bucket_keys() == ["id"]
    assert (info.num_buckets, info.comment) == (2, "theirs")
    assert info.get_properties()["table.log.ttl"] == "2d"
    assert not info.has_primary_key()


def test_nested_fields_are_numbered_as_the_official_client_does(
    admin: fluss.FlussAdmin, tables: Tables, official_client: Official
) -> None:
    inner = pa.struct([("q", pa.int8()), ("w", pa.int8())])
    schema = pa.schema(
        [
            ("a", pa.int32()),
            ("r", pa.struct([("x", pa.int8()), ("y", inner), ("v", pa.int8())])),
            ("l", pa.list_(inner)),
            ("m", pa.map_(pa.string(), inner)),
            ("z", pa.int32()),
        ]
    )
    path = tables.path()
    their_path = official.TablePath(path.database_name, path.table_name)
    descriptor = official.TableDescriptor(official.Schema(schema), bucket_count=1)
    official_client.run(lambda: official_client.admin.create_table(their_path, descriptor))
    stored = admin.get_table_info(path).schema.to_json()
    assert stored == fluss.Schema(schema).to_json()
    assert tables(schema).get_table_info().schema.to_json() == stored


def test_primary_key_table(tables: Tables) -> None:
    table = tables(DAYS, ["id"], bucket_count=2)
    info = table.get_table_info()
    assert table.has_primary_key()
    assert info.get_primary_keys() == info.get_bucket_keys() == ["id"]
    assert info.schema.get_column_types()[0] == "bigint NOT NULL"
    with pytest.raises(FlussError, match="has a primary key: it takes upserts") as raised:
        table.new_append()
    assert raised.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_list_exists_drop(admin: fluss.FlussAdmin, tables: Tables) -> None:
    path = tables(ID).get_table_path()
    assert admin.table_exists(path)
    assert path.table_name in admin.list_tables(path.database_name)
    assert admin.list_tables(path.database_name) == sorted(admin.list_tables(path.database_name))
    descriptor = fluss.TableDescriptor(fluss.Schema(ID))
    admin.create_table(path, descriptor, ignore_if_exists=True)
    with pytest.raises(FlussError, match=path.table_name) as raised:
        admin.create_table(path, descriptor)
    assert raised.value.error_code == ErrorCode.TABLE_ALREADY_EXIST
    admin.drop_table(path)
    assert not admin.table_exists(path)
    admin.drop_table(path, ignore_if_not_exists=True)
    with pytest.raises(FlussError, match=path.table_name) as raised:
        admin.drop_table(path)
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST


def test_missing_table_names_what_there_is(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin
) -> None:
    # of many tables the first ones are named
    admin.create_database("few_tables")
    there = TablePath("few_tables", "this_one")
    admin.create_table(there, fluss.TableDescriptor(fluss.Schema(ID)))
    path = TablePath("few_tables", "nix")
    for ask in (connection.get_table, admin.get_table_info, admin.get_table):
        with pytest.raises(FlussError) as raised:
            ask(path)
        assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
        assert f"table {path} does not exist" in raised.value.message
        assert there.table_name in raised.value.message
    admin.drop_database("few_tables", cascade=True)


def test_missing_database_of_a_table(connection: fluss.FlussConnection, database: str) -> None:
    with pytest.raises(FlussError) as raised:
        connection.get_table("nix.t")
    assert raised.value.error_code == ErrorCode.DATABASE_NOT_EXIST
    assert "there is no database 'nix'" in raised.value.message
    assert database in raised.value.message


def test_missing_table_has_the_official_code(
    admin: fluss.FlussAdmin, database: str, official_client: Official
) -> None:
    path, their_path = TablePath(database, "nix"), official.TablePath(database, "nix")
    ours, theirs = both(
        official_client,
        lambda: admin.get_table_info(path),
        lambda: official_client.admin.get_table_info(their_path),
    )
    assert ours.error_code == theirs.error_code
    ours, theirs = both(
        official_client,
        lambda: admin.drop_table(path),
        lambda: official_client.admin.drop_table(their_path),
    )
    assert ours.error_code == theirs.error_code


@pytest.mark.parametrize("name", ["", "a b", "__x", "a/b", "..", "x" * 201])
def test_bad_table_name(admin: fluss.FlussAdmin, database: str, name: str) -> None:
    with pytest.raises(FlussError, match="invalid table name") as raised:
        admin.create_table(TablePath(database, name), fluss.TableDescriptor(fluss.Schema(ID)))
    assert raised.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_what_the_server_refuses(admin: fluss.FlussAdmin, tables: Tables) -> None:
    schema = fluss.Schema(DAYS)
    for key, value, code in (
        ("table.no-such-option", "1", ErrorCode.INVALID_CONFIG_EXCEPTION),
        ("table.replication.factor", "9", ErrorCode.INVALID_REPLICATION_FACTOR),
    ):
        with pytest.raises(FlussError) as raised:
            admin.create_table(
                tables.path(), fluss.TableDescriptor(schema, properties={key: value})
            )
        assert raised.value.error_code == code


# ---- partitions


def test_partitions(admin: fluss.FlussAdmin, tables: Tables, official_client: Official) -> None:
    table = tables(DAYS, partition_keys=["day", "hour"], bucket_count=2)
    path = table.get_table_path()
    assert admin.list_partition_infos(path) == []
    for hour in ("02", "01"):
        admin.create_partition(path, {"day": "20261121", "hour": hour})
    admin.create_partition(path, {"hour": "01", "day": "20261122"})
    infos = admin.list_partition_infos(path)
    names = ["20261121$01", "20261121$02", "20261122$01"]
    assert [info.partition_name for info in infos] == names
    assert infos[0].spec == {"day": "20261121", "hour": "01"}
    theirs = official_client.run(
        lambda: official_client.admin.list_partition_infos(official_client.path(table))
    )
    assert {(i.partition_id, i.partition_name) for i in infos} == {
        (i.partition_id, i.partition_name) for i in theirs
    }
    some = admin.list_partition_infos(path, {"hour": "01"})
    assert [info.partition_name for info in some] == [names[0], names[2]]
    admin.drop_partition(path, {"day": "20261121", "hour": "01"})
    assert [i.partition_name for i in admin.list_partition_infos(path)] == names[1:]


def test_partition_errors_have_the_official_codes(
    admin: fluss.FlussAdmin, tables: Tables, official_client: Official
) -> None:
    table = tables(DAYS, partition_keys=["day"])
    plain = tables(ID)
    path, their_path = table.get_table_path(), official_client.path(table)
    their_admin = official_client.admin
    admin.create_partition(path, {"day": "a"})
    admin.create_partition(path, {"day": "a"}, ignore_if_exists=True)
    admin.drop_partition(path, {"day": "b"}, ignore_if_not_exists=True)
    calls: list[tuple[Callable[[], Any], Callable[[], Any], int]] = [
        (
            lambda: admin.create_partition(path, {"day": "a"}),
            lambda: their_admin.create_partition(their_path, {"day": "a"}),
            ErrorCode.PARTITION_ALREADY_EXISTS,
        ),
        (
            lambda: admin.drop_partition(path, {"day": "b"}),
            lambda: their_admin.drop_partition(their_path, {"day": "b"}),
            ErrorCode.PARTITION_NOT_EXISTS,
        ),
        (
            lambda: admin.create_partition(path, {"hour": "a"}),
            lambda: their_admin.create_partition(their_path, {"hour": "a"}),
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        ),
        (
            lambda: admin.list_partition_infos(plain.get_table_path()),
            lambda: their_admin.list_partition_infos(official_client.path(plain)),
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
        ),
    ]
    for our_call, their_call, code in calls:
        ours, theirs = both(official_client, our_call, their_call)
        assert ours.error_code == theirs.error_code == code


@pytest.mark.parametrize("spec", ["day=1", None, {"day": "a b"}, {"day": ""}, {"day": 3}])
def test_bad_partition(admin: fluss.FlussAdmin, tables: Tables, spec: Any) -> None:
    path = tables(DAYS, partition_keys=["day"]).get_table_path()
    with pytest.raises(FlussError) as raised:
        admin.create_partition(path, spec)
    assert raised.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


@pytest.mark.parametrize("method", ["create_partition", "drop_partition"])
def test_partition_columns_that_are_missing_are_named(
    admin: fluss.FlussAdmin, tables: Tables, method: str
) -> None:
    columns = pa.schema([("day", pa.string()), ("region", pa.string()), ("v", pa.int64())])
    path = tables(columns, partition_keys=["day", "region"]).get_table_path()
    for spec, missing in (({"day": "a"}, "region"), ({"region": "a"}, "day"), ({}, "day, region")):
        with pytest.raises(FlussError, match=f"no value of {missing}; .* day, region") as raised:
            getattr(admin, method)(path, spec)
        assert str(path) in str(raised.value)
        assert raised.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


# ---- awaiting


async def test_results_can_be_awaited(address: str, database: str) -> None:
    """The documented examples await some calls and not others."""
    connection = await fluss.FlussConnection.create({"bootstrap.servers": address})
    admin = await connection.get_admin()
    path = TablePath(database, "awaited")
    descriptor = fluss.TableDescriptor(fluss.Schema(ID), bucket_count=1)
    assert await admin.create_table(path, descriptor) is None
    assert await admin.table_exists(path) is True
    assert "awaited" in await admin.list_tables(database)
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.latest()) == {0: 0}
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    await writer.append({"id": 1}).wait()
    await writer.flush()
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert scanner.to_arrow().num_rows == 1
    assert not admin.table_exists(TablePath(database, "nix"))
    await admin.drop_table(path)
    connection.close()


def test_a_table_that_its_lake_has_already(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fluss 0.9.1 creates the lake's table first, and says that this one is there."""
    schema = pa.schema([("id", pa.int64())])
    admin, path = tables.connection.get_admin(), tables(schema).get_table_path()
    descriptor = fluss.TableDescriptor(fluss.Schema(schema))
    asked = Cluster.request_coordinator

    async def answer(self: Cluster, kind: Any, *args: Any, **options: Any) -> Any:
        if kind is api.CREATE_TABLE:
            raise FlussError("the table exists in Iceberg", ErrorCode.LAKE_TABLE_ALREADY_EXIST)
        return await asked(self, kind, *args, **options)

    monkeypatch.setattr(Cluster, "request_coordinator", answer)
    admin.create_table(path, descriptor, ignore_if_exists=True)
    with pytest.raises(FlussError, match=path.table_name) as raised:
        admin.create_table(path, descriptor)
    assert raised.value.error_code == ErrorCode.TABLE_ALREADY_EXIST
    # of a table that is in the lake alone, that is said
    with pytest.raises(FlussError) as raised:
        admin.create_table(tables.path(), descriptor, ignore_if_exists=True)
    assert raised.value.error_code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
