"""Kv batches and values."""

from __future__ import annotations

import random
import struct
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.errors import ErrorCode, FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.kv.kv_batch import KvEncoder, claimed_rows, decode_kv_batch, primary_key_format
from fluss_df.record.kv.primary_key import check_primary_key, key_columns, key_lake_format
from fluss_df.record.kv.values import ValueDecoder, encode_value_batch, encode_values
from fluss_df.record.rows.compacted import RowDecoder, RowEncoder
from fluss_df.record.rows.row_formats import decoder_of, encoder_of, require_milliseconds
from fluss_df.schema import TableInfo
from fluss_df.types import Column, DataType, TypeRoot, arrow_schema

R = TypeRoot
COLUMNS = [
    Column("id", DataType(R.BIGINT, nullable=False)),
    Column("name", DataType(R.STRING)),
    Column("n", DataType(R.INTEGER)),
]
ROWS = pa.table(
    {"id": [1, 300, -1], "name": ["a", None, "a longer name"], "n": [5, 6, None]},
    schema=arrow_schema(COLUMNS),
)


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
def test_a_batch_holds_keys_rows_and_deletes(kv_format: str) -> None:
    encoder = KvEncoder(3, COLUMNS, ["id"], kv_format=kv_format)
    batch = encoder.encode(ROWS, np.array([False, True, False]))
    batch.stamp(7, 2)
    raw = batch.to_bytes()
    assert len(raw) == batch.nbytes
    records = decode_kv_batch(raw)
    assert (records.schema_id, records.writer_id, records.sequence) == (3, 7, 2)
    keys = [
        raw[a:b]
        for a, b in zip(records.key_starts.tolist(), records.key_ends.tolist(), strict=True)
    ]
    found = encoder.keys(ROWS)
    assert keys == [found[0], found[1], found[2]] == [b"\1", b"\xac\2", b"\xff" * 9 + b"\1"]
    assert records.row_starts[1] == records.row_ends[1] == -1
    kept = np.array([0, 2])
    table = encoder_rows(kv_format).decode(raw, records.row_starts[kept], records.row_ends[kept])
    assert table.equals(ROWS.take([0, 2]))


def encoder_rows(kv_format: str) -> RowDecoder:
    return decoder_of(kv_format)(COLUMNS)


def test_deletes_need_keys_only_and_partial_updates_fill_nulls() -> None:
    encoder = KvEncoder(1, COLUMNS, ["id"])
    batch = encoder.encode(ROWS.select(["id"]), True)
    batch.stamp(-1, -1)
    assert (decode_kv_batch(batch.to_bytes()).row_starts == -1).all()
    partial = KvEncoder(1, COLUMNS, ["id"], target_columns=["id", "n"])
    batch = partial.encode(ROWS.select(["id", "n"]))
    batch.stamp(-1, -1)
    raw = batch.to_bytes()
    records = decode_kv_batch(raw)
    table = RowDecoder(COLUMNS).decode(raw, records.row_starts, records.row_ends)
    assert table["name"].null_count == 3
    assert table["n"].equals(ROWS["n"])
    with pytest.raises(FlussError, match="lack 'id'"):
        KvEncoder(1, COLUMNS, ["id"], target_columns=["n"])
    with pytest.raises(FlussError, match="at least one row"):
        encoder.encode(ROWS.slice(0, 0))


def test_mutated_batches_are_corrupt() -> None:
    batch = KvEncoder(1, COLUMNS, ["id"]).encode(ROWS)
    batch.stamp(1, 0)
    raw = batch.to_bytes()
    chance = random.Random(0)
    for _ in range(4000):
        data = bytearray(raw)
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        with pytest.raises(FlussError) as caught:
            decode_kv_batch(bytes(data))
        assert caught.value.error_code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        )


def test_key_encodings_of_lake_tables() -> None:
    assert primary_key_format(None) is None
    assert primary_key_format("paimon") == "paimon"
    assert primary_key_format("paimon", kv_format_version=2) == "paimon"
    assert primary_key_format("paimon", kv_format_version=2, default_bucket_key=False) is None
    assert len(KvEncoder(1, COLUMNS, ["id"], lake_format="iceberg").keys(ROWS)[0]) == 8


OLD = COLUMNS[:2]


def test_values_of_several_schemas_keep_their_order() -> None:
    new = encode_values(2, RowEncoder(COLUMNS).encode(ROWS))
    old = encode_values(1, RowEncoder(OLD).encode(ROWS.select(["id", "name"])))
    decoder = ValueDecoder({1: OLD, 2: COLUMNS}, ROWS.schema)
    found = decoder.decode_values([old[0], new[1], old[2], new[0]])
    assert found.to_pylist() == [
        {"id": 1, "name": "a", "n": None},
        {"id": 300, "name": None, "n": 6},
        {"id": -1, "name": "a longer name", "n": None},
        {"id": 1, "name": "a", "n": 5},
    ]
    assert decoder.decode_batch(encode_value_batch(list(new))).equals(ROWS)
    assert decoder.decode_batch(b"").num_rows == 0
    with pytest.raises(FlussError) as caught:
        ValueDecoder({1: OLD}, ROWS.schema).decode_values([new[0]])
    assert caught.value.error_code == ErrorCode.SCHEMA_NOT_EXIST


def test_value_batches_that_cannot_be() -> None:
    raw = encode_value_batch(list(encode_values(2, RowEncoder(COLUMNS).encode(ROWS))))
    decoder = ValueDecoder({2: COLUMNS}, ROWS.schema)
    for count in (-1, 2, 4, 2**31 - 1):
        data = bytearray(raw)
        struct.pack_into("<i", data, 5, count)
        with pytest.raises(ProtocolError):
            decoder.decode_batch(bytes(data))
    for cut in range(1, len(raw)):
        with pytest.raises(ProtocolError):
            decoder.decode_batch(raw[:cut])
    chance = random.Random(3)
    for _ in range(4000):
        data = bytearray(raw)
        data[chance.randrange(9, len(raw))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            decoder.decode_batch(bytes(data)).validate(full=True)
        except FlussError:
            continue


@pytest.mark.parametrize("rows", [2, 3, 999, 5_000])
def test_halves_are_the_records_in_their_order(rows: int) -> None:
    encoder = KvEncoder(3, COLUMNS, ["id"])
    data = pa.table(
        {"id": range(rows), "name": ["x" * (i % 300) for i in range(rows)], "n": range(rows)},
        schema=arrow_schema(COLUMNS),
    )
    deletes = np.arange(rows) % 3 == 0
    whole = encoder.encode(data, deletes)
    first, second = whole.halves()
    middle = rows // 2
    for half, wanted, flags in [
        (first, data.slice(0, middle), deletes[:middle]),
        (second, data.slice(middle), deletes[middle:]),
    ]:
        alone = encoder.encode(wanted, flags)
        for batch in (half, alone):
            batch.stamp(9, 4)
        assert half.to_bytes() == alone.to_bytes()
        assert half.num_rows == len(flags)


# ---- keys of tables, and names of formats


def keyed_table(**properties: str) -> TableInfo:
    schema = fluss.Schema(
        pa.schema({"a": pa.int64(), "p": pa.string(), "b": pa.string(), "x": pa.int64()}),
        primary_keys=["p", "b", "a"],
    )
    descriptor = fluss.TableDescriptor(
        schema,
        partition_keys=["p"],
        bucket_keys=properties.pop("bucket_keys", "b,a").split(","),
        bucket_count=1,
        properties=properties,
    )
    return TableInfo(fluss.TablePath("db", "t"), 7, 1, descriptor, 0, 0)


def test_the_key_within_a_partition_has_the_order_of_the_primary_key() -> None:
    assert [column.name for column in key_columns(keyed_table())] == ["b", "a"]


@pytest.mark.parametrize(
    ("version", "bucket_keys", "expected"),
    [("1", "b,a", "paimon"), ("1", "b", "paimon"), ("2", "b,a", "paimon"), ("2", "b", None)],
)
def test_keys_are_in_the_encoding_of_the_lake_unless_prefixes_are_looked_up(
    version: str, bucket_keys: str, expected: str | None
) -> None:
    info = keyed_table(
        **{"table.kv.format-version": version, "table.datalake.format": "paimon"},
        bucket_keys=bucket_keys,
    )
    assert key_lake_format(info) == expected


def test_an_unknown_version_of_keys_is_refused() -> None:
    with pytest.raises(FlussError, match="format-version 3; this client knows 1 and 2") as caught:
        key_lake_format(keyed_table(**{"table.kv.format-version": "3"}))
    assert caught.value.error_code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(FlussError, match="format-version 3 is not supported"):
        primary_key_format(None, kv_format_version=3)


def test_a_table_without_a_primary_key_is_named() -> None:
    check_primary_key(keyed_table())
    descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema({"x": pa.int64()})), bucket_count=1)
    log = TableInfo(fluss.TablePath("db", "log"), 7, 1, descriptor, 0, 0)
    with pytest.raises(FlussError, match=r"db\.log has no primary key") as caught:
        check_primary_key(log)
    assert caught.value.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION


def test_row_formats_have_names() -> None:
    assert encoder_of("Compacted") is RowEncoder
    assert decoder_of("COMPACTED") is RowDecoder
    assert encoder_of("indexed") is not encoder_of("compacted")
    for find in (encoder_of, decoder_of):
        with pytest.raises(FlussError, match="unknown row format 'arrow': compacted or indexed"):
            find("arrow")


def test_times_in_rows_have_whole_milliseconds() -> None:
    fine = Column("at", DataType(R.TIME_WITHOUT_TIME_ZONE, precision=6))
    coarse = Column("at", DataType(R.TIME_WITHOUT_TIME_ZONE, precision=3))
    whole = pa.table({"at": pa.array([0, 1_000, None, 86_399_999_000], pa.time64("us"))})
    torn = pa.table({"at": pa.array([0, 1_001, None], pa.time64("us"))})
    require_milliseconds(whole, [fine], "db.t")
    require_milliseconds(whole.slice(0, 0), [fine], "db.t")
    moment = Column("at", DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=6))
    require_milliseconds(pa.table({"at": pa.array([1], pa.timestamp("us"))}), [moment], "db.t")
    require_milliseconds(pa.table({"at": pa.array([5], pa.time32("ms"))}), [coarse], "db.t")
    with pytest.raises(SchemaMismatchError, match=r"db\.t, column 'at' \(.*whole"):
        require_milliseconds(torn, [fine], "db.t")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"schema_id": 2**15}, "schema id 32768 does not fit"),
        ({"schema_id": -1}, "schema id -1 does not fit"),
        ({"key_columns": ["idd"]}, "no column 'idd' among id, name, n"),
        ({"target_columns": ["id", "x"]}, "no column 'x'"),
        ({"key_columns": []}, "a key needs at least one column"),
        ({"target_columns": ["n"]}, "the target columns lack 'id' of the key"),
        ({"kv_format": "arrow"}, "unknown row format"),
    ],
    ids=str,
)
def test_encoders_that_cannot_be_are_refused(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"schema_id": 1, "columns": COLUMNS, "key_columns": ["id"]} | arguments
    with pytest.raises(FlussError, match=text):
        KvEncoder(**given)
    KvEncoder(2**15 - 1, COLUMNS, ["id"])
    KvEncoder(0, COLUMNS, ["id"])


def test_rows_that_are_none_of_the_table_are_refused() -> None:
    encoder = KvEncoder(1, COLUMNS, ["id"])
    with pytest.raises(SchemaMismatchError, match="rows lack the key column 'id'"):
        encoder.keys(ROWS.select(["name"]))
    with pytest.raises(SchemaMismatchError, match="columns id, name, not id, name, n"):
        encoder.encode(ROWS.select(["id", "name"]))
    with pytest.raises(FlussError, match="at least one row"):
        encoder.encode(ROWS.slice(0, 0))
    with pytest.raises(FlussError, match="2 flags of deletes for 3 rows"):
        encoder.encode(ROWS, np.array([True, False]))
    nulls = ROWS.set_column(0, "id", pa.array([1, None, 2], pa.int64()))
    with pytest.raises(SchemaMismatchError, match="'id'"):
        encoder.encode(nulls)


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_halves_have_the_rows_of_the_whole(rows: int) -> None:
    table = pa.table(
        {"id": range(rows), "name": ["x" * i for i in range(rows)], "n": [None] * rows},
        schema=arrow_schema(COLUMNS),
    )
    whole = KvEncoder(5, COLUMNS, ["id"]).encode(table)
    decoded = []
    for half in whole.halves():
        half.stamp(3, 4)
        raw = half.to_bytes()
        records = decode_kv_batch(raw)
        assert (records.schema_id, len(records)) == (5, half.num_rows)
        decoded.append(RowDecoder(COLUMNS).decode(raw, records.row_starts, records.row_ends))
    assert [len(part) for part in decoded] == [rows // 2, rows - rows // 2]
    assert pa.concat_tables(decoded).equals(table)


def test_a_batch_says_no_more_rows_than_its_bytes_can_hold() -> None:
    batch = KvEncoder(1, COLUMNS, ["id"]).encode(ROWS)
    batch.stamp(-1, -1)
    raw = bytearray(batch.to_bytes())
    assert claimed_rows(bytes(raw)) == 3
    assert claimed_rows(bytes(raw[:27])) == 0
    most = (len(raw) - 28) // 6
    for said, taken in [(2**31 - 1, most), (-1, 0), (most, most), (most + 1, most)]:
        struct.pack_into("<i", raw, 24, said)
        assert claimed_rows(bytes(raw)) == taken


def test_a_key_that_is_none_is_refused() -> None:
    """Records whose key is empty, too long, or whose length does not end."""
    for record in (b"\0\0", b"\5abc", b"\xff\xff\xff\xff\xff\xff\1a", b"\x80"):
        body = struct.pack("<i", len(record)) + record
        raw = bytearray(struct.pack("<iBIhBqii", 24 + len(body), 0, 0, 1, 0, -1, -1, 1) + body)
        struct.pack_into("<I", raw, 5, google_crc32c.value(bytes(raw[9:])))
        with pytest.raises(ProtocolError):
            decode_kv_batch(bytes(raw))


def test_values_are_read_only_as_the_types_that_are_wanted() -> None:
    target = pa.schema([("id", pa.int32())])
    with pytest.raises(FlussError, match="column 'id' is int64 in schema 2, not int32"):
        ValueDecoder({2: COLUMNS}, target)


def test_places_of_values_are_within_the_bytes() -> None:
    values = encode_values(2, RowEncoder(COLUMNS).encode(ROWS))
    data = b"".join(values[i] for i in range(3))
    ends = np.cumsum([len(values[i]) for i in range(3)])
    starts = np.concatenate([[0], ends[:-1]])
    decoder = ValueDecoder({2: COLUMNS}, ROWS.schema)
    assert decoder.decode_values((data, starts, ends)).equals(ROWS)
    assert decoder.decode_values((data, starts[:0], ends[:0])).num_rows == 0
    for place, bad_start, bad_end in [(0, -1, 5), (2, int(starts[2]), len(data) + 1), (1, 9, 8)]:
        first, last = starts.copy(), ends.copy()
        first[place], last[place] = bad_start, bad_end
        with pytest.raises(ProtocolError, match=f"value {place} is not within the bytes"):
            decoder.decode_values((data, first, last))
    with pytest.raises(ProtocolError, match="value 1 is shorter than a schema id"):
        decoder.decode_values([values[0], b"\2"])


def test_a_batch_may_have_a_header_alone() -> None:
    raw = bytearray(struct.pack("<iBIhBqii", 24, 0, 0, 1, 0, -1, -1, 0))
    struct.pack_into("<I", raw, 5, google_crc32c.value(bytes(raw[9:])))
    assert len(decode_kv_batch(bytes(raw))) == 0
    with pytest.raises(ProtocolError, match="a kv batch of 27 bytes"):
        decode_kv_batch(bytes(raw[:27]))
