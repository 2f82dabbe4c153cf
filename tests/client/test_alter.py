"""Altering tables and databases, the history of schemas, row counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import ErrorCode, FlussError, TableBucket
from tests.client.support import Tables

ID = pa.schema([("id", pa.int64())])
# one of the few that servers of 0.9.1 change
KEY = "table.log.tiered.local-segments"
DAYS = pa.schema([("id", pa.int64()), ("day", pa.string())])


def test_add_columns_and_the_history_of_schemas(
    admin: fluss.FlussAdmin, tables: Tables, connection: fluss.FlussConnection
) -> None:
    table = tables(ID)
    path = table.get_table_path()
    tables.write(table, pa.table({"id": [1]}, schema=ID))
    more = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.int32()))])
    admin.alter_table(path, add_columns=more)
    info = admin.get_table_info(path)
    assert info.schema_id == 2
    assert info.get_column_names() == ["id", "name", "tags"]
    assert admin.get_table_schema(path, 1).arrow_schema == ID
    assert admin.get_table_schema(path, 2) == info.get_schema() == admin.get_table_schema(path)
    again = connection.get_table(path)
    assert tables.read(again).to_pylist() == [{"id": 1, "name": None, "tags": None}]
    with pytest.raises(FlussError, match="no schema 3: its schemas are 1 to 2") as raised:
        admin.get_table_schema(path, 3)
    assert raised.value.error_code == ErrorCode.SCHEMA_NOT_EXIST


def test_properties(admin: fluss.FlussAdmin, tables: Tables) -> None:
    path = tables(ID, custom_properties={"owner": "me"}).get_table_path()
    admin.alter_table(path, set_properties={"owner": "you", "age": 3, KEY: "3"})
    info = admin.get_table_info(path)
    assert info.get_custom_properties() == {"owner": "you", "age": "3"}
    assert info.get_properties()[KEY] == "3"
    admin.alter_table(path, reset_properties=["owner", KEY])
    info = admin.get_table_info(path)
    assert info.get_custom_properties() == {"age": "3"}
    assert KEY not in info.get_properties()


def test_what_is_refused(admin: fluss.FlussAdmin, tables: Tables) -> None:
    path = tables(ID).get_table_path()
    with pytest.raises(FlussError, match="nothing to change"):
        admin.alter_table(path)
    with pytest.raises(FlussError, match="already exists") as raised:
        admin.alter_table(path, add_columns=ID)
    assert raised.value.error_code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    new = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(FlussError, match="'n' cannot be added"):
        admin.alter_table(path, add_columns=new)
    with pytest.raises(FlussError, match="column 'd'"):
        admin.alter_table(path, add_columns=pa.schema([("d", pa.duration("s"))]))
    with pytest.raises(FlussError, match="both to be set and to be reset"):
        admin.alter_table(path, set_properties={"a": 1}, reset_properties=["a"])
    with pytest.raises(FlussError, match="not the string"):
        admin.alter_table(path, reset_properties="owner")
    missing = fluss.TablePath(path.database_name, "missing")
    with pytest.raises(FlussError, match="missing") as raised:
        admin.alter_table(missing, set_properties={"a": 1})
    assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    admin.alter_table(missing, set_properties={"a": 1}, ignore_if_not_exists=True)


def test_row_counts(admin: fluss.FlussAdmin, tables: Tables) -> None:
    table = tables(ID, bucket_count=2)
    tables.write(table, pa.table({"id": range(10)}, schema=ID))
    stats = admin.get_table_stats(table.get_table_path())
    ids = table.get_table_info().table_id
    assert set(stats.bucket_row_counts) == {TableBucket(ids, 0), TableBucket(ids, 1)}
    assert stats.row_count == 10


def test_row_counts_of_partitions(admin: fluss.FlussAdmin, tables: Tables) -> None:
    table = tables(DAYS, partition_keys=["day"])
    data = pa.table({"id": [1, 2, 3], "day": ["a", "b", "b"]}, schema=DAYS)
    tables.write(table, data, create_partitions=True)
    path = table.get_table_path()
    assert admin.get_table_stats(path).row_count == 3
    assert admin.get_table_stats(path, "b").row_count == 2
    with pytest.raises(FlussError, match="no partition 'c'"):
        admin.get_table_stats(path, "c")


def error_of(call: Callable[[], None]) -> FlussError | None:
    try:
        call()
    except FlussError as error:
        return error
    return None


def test_alter_database(admin: fluss.FlussAdmin, database: str) -> None:
    """Servers of 0.9.1 do not know the request: that is said, rather than waited for."""
    name = f"{database}_altered"
    admin.create_database(name, fluss.DatabaseDescriptor("old", {"a": "1", "b": "2"}))
    with pytest.raises(FlussError, match="nothing to change"):
        admin.alter_database(name)
    changes: dict[str, Any] = {
        "comment": "new",
        "set_properties": {"a": "3"},
        "reset_properties": ["b"],
    }
    error = error_of(lambda: admin.alter_database(name, **changes))
    if error is not None:
        assert error.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "ALTER_DATABASE" in error.message
        return
    descriptor = admin.get_database_info(name).get_database_descriptor()
    assert descriptor.comment == "new"
    assert descriptor.get_custom_properties() == {"a": "3"}
