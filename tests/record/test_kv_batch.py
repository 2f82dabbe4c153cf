"""Kv batches and values."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.kv.kv_batch import KvEncoder, decode_kv_batch, primary_key_format
from fluss_df.record.kv.values import ValueDecoder, encode_value_batch, encode_values
from fluss_df.record.rows.compacted import RowDecoder, RowEncoder
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
    from fluss_df.record.rows.row_formats import decoder_of

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
