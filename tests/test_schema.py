"""Schemas, table descriptors and table infos: checks and JSON forms."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from fluss_df import FlussError, Schema, TableDescriptor
from fluss_df.metadata import TablePath
from fluss_df.schema import TableInfo

ALL_TYPES = pa.schema(
    [
        pa.field("tiny", pa.int8(), nullable=False),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("big", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("fixed", pa.binary(7)),
        ("blob", pa.binary()),
        ("money", pa.decimal128(38, 9)),
        ("day", pa.date32()),
        ("time0", pa.time32("s")),
        ("time9", pa.time64("ns")),
        ("local3", pa.timestamp("ms")),
        ("zoned6", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        ("map", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("row", pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.string(), nullable=False)])),
    ]
)


def test_schema_json_round_trip() -> None:
    schema = Schema(ALL_TYPES)
    read = Schema.from_json_bytes(json.dumps(schema.to_json()).encode())
    assert read.arrow_schema == schema.arrow_schema == ALL_TYPES
    assert read.get_column_types() == schema.get_column_types()
    assert [c.column_id for c in read.columns] == list(range(len(ALL_TYPES)))
    assert read.to_json()["columns"] == schema.to_json()["columns"]
    assert Schema.from_json(read.to_json()) == read


def test_fields_are_numbered_as_the_official_client_does() -> None:
    inner = pa.struct([("q", pa.int8()), ("w", pa.int8())])
    schema = Schema(
        pa.schema(
            [
                ("a", pa.int32()),
                ("r", pa.struct([("x", pa.int8()), ("y", inner), ("v", pa.int8())])),
                ("l", pa.list_(inner)),
                ("m", pa.map_(inner, inner)),
                ("z", pa.int32()),
            ]
        )
    )
    value = schema.to_json()
    assert [column["id"] for column in value["columns"]] == [0, 1, 7, 10, 15]
    fields = value["columns"][1]["data_type"]["fields"]
    assert [field["field_id"] for field in fields] == [2, 3, 6]
    assert [field["field_id"] for field in fields[1]["field_type"]["fields"]] == [4, 5]
    assert value["highest_field_id"] == 15
    read = Schema.from_json(value)
    assert read.to_json() == value


def test_field_ids_of_the_server_are_kept() -> None:
    value = {
        "version": 1,
        "columns": [
            {"name": "a", "data_type": {"type": "BIGINT"}, "comment": "first", "id": 4},
            {"name": "b", "data_type": {"type": "STRING", "nullable": False}, "id": 2},
        ],
        "primary_key": ["b"],
        "auto_increment_column": ["a"],
        "highest_field_id": 9,
    }
    assert Schema.from_json(value).to_json() == value


def test_primary_key_is_not_null() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("v", pa.int32())]), primary_keys=["id"])
    assert schema.get_column_types() == ["int NOT NULL", "int"]
    assert schema.get_primary_keys() == ["id"]
    assert schema.to_json()["primary_key"] == ["id"]
    assert "primary_keys=['id']" in repr(schema)


@pytest.mark.parametrize(
    ("fields", "keys", "message"),
    [
        ([("a", pa.int8()), ("a", pa.int8())], None, "'a' stands in the schema more than once"),
        ([("a", pa.uint8())], None, "column 'a': .*cast it to int16"),
        ([("a", pa.int8()), ("b", pa.duration("s"))], None, "column 'b'"),
        ([("number", pa.int8())], ["nmber"], "'nmber' does not exist.*did you mean 'number'"),
    ],
)
def test_bad_schemas(fields: list[Any], keys: list[str] | None, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        Schema(pa.schema(fields), primary_keys=keys)


def test_a_schema_is_made_of_an_arrow_schema() -> None:
    with pytest.raises(FlussError, match=r"takes a pyarrow\.Schema, not dict"):
        Schema({"a": "int"})


# ---- descriptors


def descriptor() -> TableDescriptor:
    return TableDescriptor(
        Schema(ALL_TYPES),
        partition_keys=["text"],
        bucket_count=3,
        bucket_keys=["big", "int"],
        comment="all types",
        properties={"table.log.ttl": "1d"},
        custom_properties={"owner": "me"},
    )


def test_descriptor_json_round_trip() -> None:
    made = descriptor()
    value = json.loads(made.to_json())
    assert value["version"] == 1
    assert value["partition_key"] == ["text"]
    assert value["bucket_key"] == ["big", "int"]
    assert value["bucket_count"] == 3
    assert value["comment"] == "all types"
    assert value["properties"] == {"table.log.ttl": "1d"}
    assert value["custom_properties"] == {"owner": "me"}
    read = TableDescriptor.from_json(made.to_json())
    # the server numbers the fields of rows; columns are numbered here
    assert read.schema.arrow_schema == made.schema.arrow_schema
    assert TableDescriptor.from_json(read.to_json()).to_json() == read.to_json()


def test_descriptor_formats_and_properties() -> None:
    made = TableDescriptor(
        Schema(pa.schema([("a", pa.int32())])),
        log_format="ARROW",
        kv_format="INDEXED",
        properties={"bucket.num": "5", "bucket.key": "a", "x": True, "y": 7},  # type: ignore[dict-item]
    )
    assert made.bucket_count == 5
    assert made.bucket_keys == ("a",)
    assert made.properties == {
        "table.log.format": "ARROW",
        "table.kv.format": "INDEXED",
        "x": "true",
        "y": "7",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_keys": ["txt"]}, "partition key column 'txt' does not exist.*'text'"),
        ({"bucket_keys": ["nix"]}, "bucket key column 'nix' does not exist"),
        ({"partition_keys": "text"}, "expected a list of names, not the string 'text'"),
        ({"bucket_count": 0}, "invalid bucket_count 0"),
        ({"bucket_count": True}, "invalid bucket_count True"),
        ({"bucket_count": "3"}, "invalid bucket_count '3'"),
        ({"log_format": "csv"}, "invalid table.log.format 'csv': expected ARROW"),
        ({"kv_format": "arrow"}, "invalid table.kv.format 'arrow'"),
        ({"properties": {"a": None}}, "invalid value None of the table property 'a'"),
        ({"properties": {"bucket.num": "x"}}, "invalid bucket.num 'x'"),
    ],
)
def test_bad_descriptors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FlussError, match=message):
        TableDescriptor(Schema(ALL_TYPES), **options)


def test_an_arrow_schema_must_be_wrapped() -> None:
    with pytest.raises(FlussError, match=r"wrap an Arrow schema in fluss_df\.Schema"):
        TableDescriptor(ALL_TYPES)


def test_table_info() -> None:
    info = TableInfo(TablePath("db", "t"), 7, 1, descriptor(), 10, 20)
    assert (info.num_buckets, info.comment) == (3, "all types")
    assert info.get_partition_keys() == ["text"]
    assert info.get_bucket_keys() == ["big", "int"]
    assert info.is_partitioned()
    assert not info.has_primary_key()
    assert info.get_primary_keys() == []
    assert info.get_column_count() == len(ALL_TYPES)
    assert info.get_column_names() == ALL_TYPES.names
    assert info.get_properties() == {"table.log.ttl": "1d"}
    assert info.get_custom_properties() == {"owner": "me"}
    assert info.log_format == "arrow"
    assert info.lake_format is None
    assert pickle.loads(pickle.dumps(info)).schema == info.schema


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"columns": 1}',
        b'{"columns": [1]}',
        b'{"columns": [{"name": "a"}]}',
        b'{"columns": [{"data_type": {"type": "INTEGER"}}]}',
        b'{"columns": [{"name": 1, "data_type": {"type": "INTEGER"}}]}',
        b'{"columns": [{"name": "a", "data_type": {"type": "NEW"}}]}',
        b'{"columns": [], "primary_key": 3}',
        b'{"columns": [], "primary_key": ["a"]}',
    ],
)
def test_json_that_is_none(text: bytes) -> None:
    """Bytes of a peer cause a FlussError and no other."""
    with pytest.raises(FlussError):
        Schema.from_json_bytes(text)
    with pytest.raises(FlussError):
        TableDescriptor.from_json(b'{"schema": ' + (text or b"?") + b"}")


@pytest.mark.parametrize(
    ("keys", "column", "problem"),
    [
        (None, "b", "primary-key table"),
        (["a"], "a", "can not be used as the primary key"),
        (["a"], "c", "must be INT or BIGINT"),
        (["a"], "missing", "'missing' does not exist"),
    ],
)
def test_an_auto_increment_column_is_checked(
    keys: list[str] | None, column: str, problem: str
) -> None:
    fields = pa.schema([("a", pa.int32()), ("b", pa.int64()), ("c", pa.string())])
    assert Schema(fields, ["a"], "b").auto_increment == ("b",)
    with pytest.raises(FlussError, match=problem):
        Schema(fields, keys, column)
