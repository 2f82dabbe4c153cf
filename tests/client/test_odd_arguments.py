"""What cannot be in a request, or in a table, is named before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df import DatabaseDescriptor, FlussError, OffsetSpec, Schema, TableDescriptor, TablePath
from fluss_df.config import Config
from fluss_df.errors import SchemaMismatchError

LOG, KEYS = TablePath("fluss", "log"), TablePath("fluss", "keys")
ARROW = pa.schema([("id", pa.int64()), ("s", pa.string())])
SCHEMA = Schema(ARROW)
LONE = "\ud800"
STRING: Any = "x"


@pytest.fixture(scope="module")
def connection() -> Iterator[fluss.FlussConnection]:
    with fluss.connect(":memory:") as made:
        admin = made.get_admin()
        admin.create_table(LOG, TableDescriptor(SCHEMA))
        admin.create_table(KEYS, TableDescriptor(Schema(ARROW, ["id"])))
        yield made


ADMIN: dict[str, tuple[Callable[[Any], object], str]] = {
    "buckets": (lambda a: a.list_offsets(LOG, 0, OffsetSpec.latest()), "invalid buckets 0"),
    "no buckets": (lambda a: a.list_offsets(LOG, "0", OffsetSpec.latest()), "invalid buckets '0'"),
    "bucket": (lambda a: a.list_offsets(LOG, ["0"], OffsetSpec.latest()), "invalid bucket '0'"),
    "time": (lambda a: a.list_offsets(LOG, [0], OffsetSpec.timestamp(STRING)), "invalid timestamp"),
    "late": (lambda a: a.list_offsets(LOG, [0], OffsetSpec.timestamp(2**70)), "timestamp 1180"),
    "no time": (lambda a: a.list_offsets(LOG, [0], offset_type="timestamp"), "needs a timestamp"),
    "database": (lambda a: a.create_database("d", "x"), "expected a DatabaseDescriptor"),
    "its comment": (lambda a: a.create_database("d", DatabaseDescriptor(LONE)), "invalid comment"),
    "comment": (lambda a: a.alter_database("fluss", comment=5), "invalid comment 5"),
    "dropped": (lambda a: a.drop_database(5), "invalid database name 5"),
    "dropped text": (lambda a: a.drop_database(LONE), "invalid database name"),
    "exists": (lambda a: a.database_exists(None), "invalid database name None"),
    "info": (lambda a: a.get_database_info(LONE), "invalid database name"),
    "tables": (lambda a: a.list_tables(None), "invalid database name None"),
    "schema": (lambda a: a.get_table_schema(LOG, "1"), "invalid schema_id '1'"),
    "boolean": (lambda a: a.get_table_schema(LOG, True), "invalid schema_id True"),
    "no table": (lambda a: a.create_table(LOG, None), "expected a TableDescriptor"),
    "partition": (lambda a: a.create_partition(LOG, {1: "a"}), "1 is no name of a column"),
    "columns": (lambda a: a.alter_table(LOG, add_columns=5), "add_columns takes"),
    "list": (lambda a: a.alter_cluster_configs(append_configs="x"), "append_configs: expected"),
}


@pytest.mark.parametrize("case", ADMIN)
def test_requests(connection: fluss.FlussConnection, case: str) -> None:
    call, message = ADMIN[case]
    with pytest.raises(FlussError, match=message):
        call(connection.get_admin())


def test_a_bucket_that_is_named_twice_is_asked_for_once(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    assert admin.list_offsets(LOG, [0, 0], OffsetSpec.latest()) == {0: 0}


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"custom_properties": "x"}, "expected a dict .* the custom property"),
    "object": ({"custom_properties": {"a": object()}}, "value .* of the custom property 'a'"),
    "properties": ({"properties": "x"}, "expected a dict .* the table property"),
    "buckets": ({"properties": {"bucket.num": "²"}}, "invalid bucket.num"),
    "digits": ({"properties": {"bucket.num": "9" * 5000}}, "invalid bucket.num"),
    "keys": ({"bucket_keys": 5}, "bucket key columns: expected a list of names, not 5"),
    "comment": ({"comment": 5}, "invalid comment of table fluss.t 5"),
    "lone": ({"comment": LONE}, "invalid comment of table"),
    "twice": ({"bucket_keys": ["id", "id"]}, "'id' stands in the bucket key more than once"),
    "partition": ({"partition_keys": ["s", "s"]}, "'s' stands in the partition key more than once"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(connection: fluss.FlussConnection, case: str) -> None:
    given, message = TABLES[case]
    with pytest.raises(FlussError, match=message):
        connection.get_admin().create_table("fluss.t", TableDescriptor(SCHEMA, **given))  # type: ignore[arg-type]


def test_numbers_and_truth_are_kept_as_texts(connection: fluss.FlussConnection) -> None:
    admin, path = connection.get_admin(), TablePath("fluss", "texts")
    custom: Any = {"a": 1, "b": True, "c": 0.5}
    admin.create_table(path, TableDescriptor(SCHEMA, custom_properties=custom))
    kept = admin.get_table_info(path).get_custom_properties()
    assert kept == {"a": "1", "b": "true", "c": "0.5"}
    admin.create_database("texts", DatabaseDescriptor("x", custom))
    found = admin.get_database_info("texts").get_database_descriptor()
    assert found.get_custom_properties() == kept


@pytest.mark.parametrize("keys", ["id", 5])
def test_keys_of_a_schema_are_a_list(keys: Any) -> None:
    with pytest.raises(FlussError, match="primary key columns: expected a list of names"):
        Schema(ARROW, keys)


def test_settings_are_named(connection: fluss.FlussConnection) -> None:
    for given in (5, {5: 5}):
        with pytest.raises(FlussError, match="INVALID_CONFIG"):
            Config(given)  # type: ignore[arg-type]
    for url in (5, "host:9123"):
        with pytest.raises(FlussError, match="invalid Fluss URL"):
            Config.from_url(url)  # type: ignore[arg-type]


SERIES = pl.Series("id", [1])
ROWS: dict[str, tuple[Callable[[Any], object], str]] = {
    "series": (lambda w: w.write_arrow(SERIES), "cannot write Series to table fluss.log"),
    "array": (lambda w: w.write_arrow(pa.array([1])), "cannot write Int64Array"),
    "batch": (lambda w: w.write_arrow_batch("x"), "cannot write str to table"),
    "none": (lambda w: w.write_pandas(None), "cannot write NoneType .* data frame of pandas"),
    "polars": (lambda w: w.write_pandas(pl.DataFrame({"id": [1]})), "data frame of pandas"),
    "twice": (
        lambda w: w.write_pandas(pd.DataFrame([[1, 2, "a"]], columns=["id", "id", "s"])),
        "column 'id' is in the data twice",
    ),
    "large": (
        lambda w: w.write_pandas(pd.DataFrame({"id": [2**70], "s": ["a"]})),
        "table fluss.log, column 'id': row 0: 1180591620717411303424 .int. does not fit bigint",
    ),
    "complex": (
        lambda w: w.write_pandas(pd.DataFrame({"id": [1], "s": ["a"], "z": [1j]})),
        "table fluss.log: column 'z' is none of id, s",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows(connection: fluss.FlussConnection, case: str) -> None:
    call, message = ROWS[case]
    with (
        connection.get_table(LOG).new_append().create_writer() as writer,
        pytest.raises(SchemaMismatchError, match=message),
    ):
        call(writer)


def test_changes(connection: fluss.FlussConnection) -> None:
    upsert = connection.get_table(KEYS).new_upsert()
    with upsert.create_writer() as writer:
        with pytest.raises(SchemaMismatchError, match="cannot write Series"):
            writer.write_changes(SERIES)
        with pytest.raises(SchemaMismatchError, match="cannot write Series"):
            writer.delete_arrow(SERIES)
        with pytest.raises(FlussError, match="column '5' does not exist"):
            writer.write_changes(pa.table({"id": [1], "s": ["a"]}), 5)  # type: ignore[arg-type]
    names: Any
    for names in (5, [1], [["id"]]):
        with pytest.raises(FlussError, match="expected a list of column names"):
            upsert.partial_update_by_name(names)
    with pytest.raises(FlussError, match="expected a list of column indexes, not 5"):
        upsert.partial_update_by_index(5)  # type: ignore[arg-type]
