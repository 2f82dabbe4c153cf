"""Key-value batches and values: there and back, and what a hostile peer sends."""

from __future__ import annotations

import random
import struct

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.kv_batch import KvEncoder
from fluss_df.record.values import ValueDecoder
from fluss_df.schema import Schema
from fluss_df.types import Column
from tests.client.test_types import COLUMNS

FLAT = {
    name: column
    for name, column in COLUMNS.items()
    if not pa.types.is_nested(column.type) and name not in ("time(6)", "time(9)")
}


def everything(rows: int = 11) -> pa.Table:
    columns = {"id": pa.array(range(rows), pa.int64())}
    for name, column in FLAT.items():
        columns[name] = column.take(pa.array([i % len(column) for i in range(rows)]))
    return pa.table(columns)


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    return Schema(schema, ["id"]).columns


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def records(batch: bytes) -> list[tuple[bytes, bytes]]:
    """Read a batch record by record: (key, row)."""
    at, found = 28, []
    while at < len(batch):
        end = at + 4 + struct.unpack_from("<i", batch, at)[0]
        length, at = varint(batch, at + 4)
        found.append((batch[at : at + length], batch[at + length : end]))
        at = end
    return found


def values_of(table: pa.Table, schema_id: int = 1) -> list[bytes]:
    batch = KvEncoder(schema_id, columns_of(table.schema), ["id"]).encode(table)
    return [struct.pack("<h", schema_id) + row for _, row in records(batch.to_bytes())]


def decoder(schema: pa.Schema, target: pa.Schema | None = None) -> ValueDecoder:
    target = schema if target is None else target
    nullable = pa.schema([field.with_nullable(True) for field in target])
    return ValueDecoder({1: columns_of(schema)}, nullable, "compacted")


def test_every_type() -> None:
    table = everything()
    got = decoder(table.schema).decode_values(values_of(table))
    for name in table.schema.names:
        assert got.column(name).equals(table.column(name)), name
    got.validate(full=True)


def test_some_columns_in_another_order() -> None:
    table = everything()
    target = pa.schema([table.schema.field(name) for name in ("string", "date", "id")])
    got = decoder(table.schema, target).decode_values(values_of(table))
    assert got.equals(table.select(["string", "date", "id"]).cast(got.schema))


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=5),
            st.none() | st.integers(-(2**31), 2**31 - 1),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_there_and_back(rows: list[tuple[int, str | None, int | None, bool]]) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("n", pa.int32())])
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=False)) for row in rows], schema=schema
    )
    deletes = np.array([row[3] for row in rows])
    batch = KvEncoder(1, columns_of(schema), ["id"]).encode(table, deletes)
    found = records(batch.to_bytes())
    assert [row == b"" for _, row in found] == deletes.tolist()
    alive = table.filter(pa.array(~deletes))
    values = [b"\1\0" + row for _, row in found if row]
    assert decoder(schema).decode_values(values).equals(alive)


def test_header_and_stamp() -> None:
    table = everything(3)
    batch = KvEncoder(7, columns_of(table.schema), ["id"]).encode(table)
    first = batch.buffers[0]
    batch.stamp(12, 34)
    data = batch.to_bytes()
    length, magic, crc, schema, attributes, writer, sequence, count = struct.unpack_from(
        "<ibIhbqii", data
    )
    assert (length, magic, schema, attributes) == (len(data) - 4, 0, 7, 0)
    assert (writer, sequence, count) == (12, 34, 3)
    assert crc == google_crc32c.value(data[9:])
    assert bytes(first[12:24]) == struct.pack("<qi", -1, -1)


def test_values_of_several_schemas() -> None:
    old = pa.schema([("id", pa.int64())])
    new = pa.schema([("id", pa.int64()), ("more", pa.string())])
    some = decoder(new)
    some._schemas[2] = columns_of(old)
    first = values_of(pa.table([[1, 2], ["a", None]], schema=new))
    second = values_of(pa.table([[3]], schema=old), schema_id=2)
    got = some.decode_values([first[0], *second, first[1]])
    assert got.to_pydict() == {"id": [1, 3, 2], "more": ["a", None, None]}
    with pytest.raises(FlussError) as raised:
        some.decode_values([struct.pack("<h", 3) + first[0][2:]])
    assert raised.value.error_code == ErrorCode.SCHEMA_NOT_EXIST


def value_batch(values: list[bytes]) -> bytes:
    body = b"".join(struct.pack("<i", len(value)) + value for value in values)
    return struct.pack("<ibi", 5 + len(body), 0, len(values)) + body


def test_value_batches() -> None:
    table = everything()
    got = decoder(table.schema).decode_batch(value_batch(values_of(table)))
    assert got.column("id").equals(table.column("id"))
    assert decoder(table.schema).decode_batch(b"").num_rows == 0
    assert decoder(table.schema).decode_batch(value_batch([])).num_rows == 0


def test_broken_values_are_noticed() -> None:
    """Whatever bytes come, they are rows or a FlussError, and nothing large is made of them."""
    rng = random.Random(0)
    table = everything(4)
    good = value_batch(values_of(table))
    read = decoder(table.schema)
    noticed = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        cut = rng.randrange(len(bad)) if rng.random() < 0.2 else len(bad)
        try:
            got = read.decode_batch(bytes(bad[:cut]))
        except FlussError:
            noticed += 1
        else:
            got.validate(full=True)
            assert got.num_rows <= 4
    assert noticed > 500


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (b"", "beyond its end"),
        (b"\0", "beyond its end"),
        (b"\0\x01\x05ab", "beyond its end"),
        (b"\0\x01\x02ab!", "does not end"),
        (b"\0\x01\xff\xff\xff\xff\x0fab", "negative"),
        (b"\0\x01\xff\xff\xff\xff\x1fab", "32 bits"),
        (b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00", "64 bits"),
        (b"\0\x01\x02\xff\xff", "text"),
    ],
)
def test_what_is_wrong_is_named(row: bytes, match: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pytest.raises(ProtocolError, match=match):
        decoder(schema).decode_values([b"\1\0" + row])
