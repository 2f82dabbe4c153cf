"""Requests that no client of ours sends: descriptions, batches and keys that cannot be."""

from __future__ import annotations

import json
from typing import Any

import google_crc32c
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.catalog.validation import read_descriptor
from fluss_df.engine.log.append_checks import check_batches
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from tests.embedded.raw import RawClient

# ---- descriptions of tables

COLUMNS = [
    {"name": "a", "data_type": {"type": "INTEGER"}, "id": 0},
    {"name": "b", "data_type": {"type": "BYTES"}, "id": 1},
    {"name": "l", "data_type": {"type": "ARRAY", "element_type": {"type": "INTEGER"}}, "id": 2},
]


def description(**changes: Any) -> bytes:
    value = {
        "version": 1,
        "schema": {"version": 1, "columns": COLUMNS, "highest_field_id": 3},
        "bucket_count": 1,
    }
    return json.dumps({**value, **changes}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"3",
        b'{"schema": 1}',
        b'{"schema": {}}',
        b'{"schema": {"columns": 5}}',
        b'{"schema": {"columns": [1]}}',
        b'{"schema": {"columns": [{"id": 0}]}}',
        b'{"schema": {"columns": [{"name": "a", "id": 0, "data_type": {"type": "NOPE"}}]}}',
        b"[" * 100_000,
        description(partition_key="a"),
        description(bucket_key=[1]),
        description(properties=["x"]),
        description(properties={"table.log.ttl": 5}),
        description(custom_properties={"x": None}),
        description(schema={"columns": COLUMNS, "primary_key": "a"}),
        description(schema={"columns": COLUMNS, "auto_increment_column": [None]}),
    ],
    ids=range(19),
)
def test_what_is_no_description_of_a_table(text: bytes) -> None:
    with pytest.raises(FlussError, match="Failed to parse table descriptor: ") as refused:
        read_descriptor(text, 1)
    assert refused.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize("buckets", [0, -1, "3", 1.5, None, [1]])
def test_numbers_of_buckets_that_are_none(buckets: object) -> None:
    with pytest.raises(FlussError, match="Number of buckets must be larger than 0"):
        read_descriptor(description(bucket_count=buckets), 1)


def test_without_a_number_the_servers_buckets_are_taken() -> None:
    value = json.loads(description())
    del value["bucket_count"]
    assert read_descriptor(json.dumps(value).encode(), 5).bucket_count == 5


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a", None),
        (" a , ", None),
        ("*", None),
        ("", "cannot be empty"),
        (" , ", "cannot be empty"),
        ("a,zz", "Column 'zz' specified in statistics collection does not exist"),
        ("b", "Column 'b' of type 'BYTES' is not supported for statistics"),
        ("a,l", "Column 'l' of type 'ARRAY<INT>' is not supported for statistics"),
    ],
)
def test_columns_of_statistics(columns: str, message: str | None) -> None:
    properties = {"table.statistics.columns": columns}
    if message is None:
        assert read_descriptor(description(properties=properties), 1).properties == {
            "table.replication.factor": "1",
            **properties,
        }
        return
    with pytest.raises(FlussError, match=message) as refused:
        read_descriptor(description(properties=properties), 1)
    assert refused.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_tables_with_keys_have_no_statistics() -> None:
    text = description(
        schema={"columns": COLUMNS, "primary_key": ["a"], "highest_field_id": 3},
        properties={"table.statistics.columns": "a"},
    )
    with pytest.raises(FlussError, match="not supported for primary key tables"):
        read_descriptor(text, 1)


# ---- batches

DATA = pa.record_batch({"a": pa.array(range(3), pa.int32())})
# where these stand in a batch
_MAGIC, _CRC, _CHECKED, _ATTRIBUTES, _LAST, _COUNT = 12, 21, 25, 27, 28, 44


def batch(**changes: int) -> bytearray:
    """Return a batch of schema 1, some of whose bytes are others; its checksum is right."""
    encoded = encode_log_batch(DATA, schema_id=1, compression=Compression("none"))
    encoded.stamp(-1, -1)
    data = bytearray(encoded.to_bytes())
    for place, value in changes.items():
        data[{"magic": _MAGIC, "attributes": _ATTRIBUTES, "count": _COUNT}[place]] = value
    data[_CRC:_CHECKED] = google_crc32c.value(bytes(data[_CHECKED:])).to_bytes(4, "little")
    return data


def test_a_batch_of_another_format_is_taken_as_it_is() -> None:
    assert len(check_batches("t", memoryview(batch()), {1: None})) == 1
    assert check_batches("t", memoryview(batch() + batch()), {1: None}).record_count.sum() == 6


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (batch() + b"\0" * 5, "5 bytes behind the last whole batch"),
        (batch()[:-1], "do not hold one whole batch"),
        (batch(magic=7), "magic 7"),
        (batch(count=2), "the number of records differs from the offsets they take"),
        (batch(attributes=0), "change types belong to the log of a primary-key table"),
        (batch()[:-1] + b"\x55", "checksum"),
    ],
    ids=["behind", "cut", "magic", "count", "changes", "checksum"],
)
def test_batches_that_are_damaged_are_refused(records: bytearray, message: str) -> None:
    with pytest.raises(FlussError, match=rf"Record is corrupt in table bucket t: .*{message}") as e:
        check_batches("t", memoryview(records), {1: None})
    assert e.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def test_a_batch_of_a_schema_that_the_table_has_not() -> None:
    with pytest.raises(FlussError, match="Schema with id 1 does not exist for table bucket t") as e:
        check_batches("t", memoryview(batch()), {2: None})
    assert e.value.error_code == ErrorCode.SCHEMA_NOT_EXIST


# ---- keys


def table(engine: EmbeddedFluss, name: str, **more: Any) -> int:
    path = fluss.TablePath("fluss", name)
    columns = pa.schema([("id", pa.int32()), ("text", pa.string()), ("day", pa.string())])
    schema = fluss.Schema(columns, more.pop("keys", None))
    with engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1, **more))
        return admin.get_table_info(path).table_id


def lookup(number: int, *keys: bytes, insert: bool = True, **where: int) -> pb.LookupRequest:
    part = pb.LookupRequestForBucket(bucket_id=0, keys=keys, **where)  # type: ignore[arg-type]
    return pb.LookupRequest(table_id=number, insert_if_not_exists=insert, buckets_req=[part])


def test_missing_keys_are_inserted_once(engine: EmbeddedFluss, client: RawClient) -> None:
    number = table(engine, "keyed", keys=["id"])
    # a key of one INT below 64 is one byte
    keys = [b"\x05", b"\x07", b"\x05"]
    for _ in range(2):
        [answer] = client.call(api.LOOKUP, lookup(number, *keys)).buckets_resp
        assert not answer.error_code
        values = [one.values for one in answer.values]
        assert all(values)
        assert values[0] == values[2] != values[1]
    with engine.connection() as connection:
        found = fluss.read_fluss("keyed", connection=connection).sort("id")
        assert found.equals(
            pl.DataFrame(
                {"id": [5, 7], "text": [None, None], "day": [None, None]},
                schema={"id": pl.Int32, "text": pl.String, "day": pl.String},
            )
        )
        changes = fluss.scan_fluss("keyed$changelog", connection=connection).collect()
        assert changes.height == 2
    # who does not ask for that finds nothing
    [answer] = client.call(api.LOOKUP, lookup(number, b"\x09", insert=False)).buckets_resp
    assert [one.values for one in answer.values] == [b""]


def test_bytes_that_are_no_key_are_not_inserted(engine: EmbeddedFluss, client: RawClient) -> None:
    """And not asked for again without end, as what was damaged on its way would be."""
    number = table(engine, "no_keys", keys=["id"])
    for key in (b"", b"\x80", b"\x05\x05", b"x" * 100):
        [answer] = client.call(api.LOOKUP, lookup(number, key)).buckets_resp
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "as its key is none of table fluss.no_keys" in answer.error_message
    with engine.connection() as connection:
        assert fluss.read_fluss("no_keys", connection=connection).is_empty()


def test_keys_of_a_partition_are_not_inserted(engine: EmbeddedFluss, client: RawClient) -> None:
    number = table(engine, "parted", keys=["id", "day"], partition_keys=["day"])
    path = fluss.TablePath("fluss", "parted")
    with engine.connection() as connection:
        admin = connection.get_admin()
        admin.create_partition(path, {"day": "mon"})
        [partition] = admin.list_partition_infos(path)
    asked = lookup(number, b"\x05", partition_id=partition.partition_id)
    [answer] = client.call(api.LOOKUP, asked).buckets_resp
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.partition_id == partition.partition_id
    assert "rows of missing keys are inserted for tables without" in answer.error_message
    with engine.connection() as connection:
        assert fluss.read_fluss("parted", connection=connection).is_empty()


def test_a_log_has_no_keys(engine: EmbeddedFluss, client: RawClient) -> None:
    number = table(engine, "log")
    [answer] = client.call(api.LOOKUP, lookup(number, b"\x05")).buckets_resp
    assert answer.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
    part = pb.PrefixLookupRequestForBucket(bucket_id=0, partition_id=10**9, keys=[b"\x05"])
    asked = pb.PrefixLookupRequest(table_id=number, buckets_req=[part])
    [found] = client.call(api.PREFIX_LOOKUP, asked).buckets_resp
    assert found.error_code
    assert found.partition_id == 10**9
    part.ClearField("partition_id")
    asked = pb.PrefixLookupRequest(table_id=number, buckets_req=[part])
    [found] = client.call(api.PREFIX_LOOKUP, asked).buckets_resp
    assert found.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
    assert "non primary key table: fluss.log" in found.error_message
