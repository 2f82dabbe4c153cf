"""Rows of the compacted and the indexed format: there and back, and what is no row."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss_df.errors import ErrorCode, FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.rows.compacted import BLOCK_ROWS, RowDecoder, RowEncoder
from fluss_df.record.rows.row_formats import decoder_of, encoder_of
from fluss_df.types import Column, DataField, DataType, TypeRoot, arrow_schema, from_arrow

from . import row_models as m

R = TypeRoot
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


def decode(decoder: RowDecoder, rows: EncodedRows) -> pa.Table:
    return decoder.decode(rows.data.tobytes(), rows.offsets[:-1], rows.offsets[1:])


def columns_of(table: pa.Table) -> list[Column]:
    return [Column(f.name, from_arrow(f.type, f.nullable)) for f in table.schema]


@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
@slow
@given(made=m.tables(), data=st.data())
def test_there_and_back(
    row_format: str, made: tuple[list[Column], pa.Table], data: st.DataObject
) -> None:
    columns, table = made
    rows = encoder_of(row_format)(columns).encode(table)
    assert len(rows) == table.num_rows
    found = decode(decoder_of(row_format)(columns), rows)
    found.validate(full=True)
    assert found.equals(table)
    names = data.draw(st.lists(st.sampled_from(table.schema.names), unique=True, min_size=1))
    part = decode(decoder_of(row_format)(columns, names), rows)
    assert part.equals(table.select(names))


@slow
@given(made=m.tables(m.simple_types()))
def test_compacted_rows_are_what_the_model_reads(made: tuple[list[Column], pa.Table]) -> None:
    columns, table = made
    rows = RowEncoder(columns).encode(table)
    assert [m.compacted_row(rows[i], columns) for i in range(len(rows))] == m.plain(table, columns)


FLAT = [
    Column("id", DataType(R.BIGINT, nullable=False)),
    Column("n", DataType(R.INTEGER)),
    Column("s", DataType(R.STRING)),
    Column("d", DataType(R.DECIMAL, precision=9, scale=2)),
    Column("w", DataType(R.DECIMAL, precision=30, scale=2)),
    Column("t", DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=6)),
    Column("z", DataType(R.TIME_WITHOUT_TIME_ZONE, precision=3)),
    Column("b", DataType(R.BOOLEAN)),
    Column("x", DataType(R.BINARY, length=3)),
    Column("f", DataType(R.SMALLINT)),
]


def flat_rows() -> pa.Table:
    arrays = [
        pa.array([1, -1, 2**40]),
        pa.array([None, -5, 300], pa.int32()),
        pa.array(["héllo wörld", None, ""]),
        pa.array([Decimal("1.25"), Decimal("-9999999.99"), None], pa.decimal128(9, 2)),
        pa.array([Decimal("-1.25"), None, Decimal(10**27)], pa.decimal128(30, 2)),
        pa.array([-1, 10**15, None], pa.int64()).view(pa.timestamp("us")),
        pa.array([0, 86_399_999, None], pa.int32()).view(pa.time32("ms")),
        pa.array([True, False, None]),
        pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
        pa.array([None, -32768, 7], pa.int16()),
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(FLAT))


def test_mutated_compacted_rows_are_refused_or_read_as_the_model_reads_them() -> None:
    chance = random.Random(1)
    rows = RowEncoder(FLAT).encode(flat_rows())
    decoder = RowDecoder(FLAT)
    refused = read = 0
    for _ in range(8000):
        data = bytearray(rows[chance.randrange(3)])
        for _ in range(chance.choice([1, 1, 2, 3])):
            at = chance.randrange(len(data))
            how = chance.random()
            if how < 0.6:
                data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            elif how < 0.8:
                del data[at : at + chance.randrange(1, 4)]
            else:
                data[at:at] = bytes(chance.randrange(256) for _ in range(3))
            if not data:
                data.append(0)
        whole = bytes(data)
        ends = np.array([len(whole)])
        try:
            expected = m.compacted_row(whole, FLAT)
        except m.BadRowError:
            with pytest.raises(FlussError) as caught:
                decoder.decode(whole, np.array([0]), ends)
            # a timestamp that only Arrow cannot hold is no damage
            assert caught.value.error_code in (
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
            )
            refused += 1
        else:
            table = decoder.decode(whole, np.array([0]), ends)
            assert m.plain(table, FLAT) == [expected]
            read += 1
    assert refused > 1000
    assert read > 1000


@pytest.mark.parametrize("precision", [6, 9])
def test_a_timestamp_that_arrow_cannot_hold_is_named(precision: int) -> None:
    """Clients for Java write it in rows: it is refused, and not taken for damage."""
    column = Column("t", DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=precision))
    column = replace(column, type=replace(column.type, nullable=False))
    least = {6: 2**63 // 1000, 9: 2**63 // 10**6}[precision]
    for millis in (-least - 2, -least, least - 1, least + 1):
        row = bytearray(b"\0")
        bits = millis & (2**64 - 1)
        while bits >= 0x80:
            row.append(bits & 0x7F | 0x80)
            bits >>= 7
        row += bytes([bits, 0])
        decoder, ends = RowDecoder([column]), np.array([len(row)])
        if -least <= millis < least:
            assert decoder.decode(bytes(row), np.array([0]), ends).num_rows == 1
            continue
        with pytest.raises(FlussError, match=r"column 't'.*beyond the .s that Arrow") as caught:
            decoder.decode(bytes(row), np.array([0]), ends)
        assert caught.value.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION


NESTED = [
    Column("a", DataType(R.ARRAY, element=DataType(R.STRING))),
    Column("m", DataType(R.MAP, key=DataType(R.STRING, nullable=False), value=DataType(R.BIGINT))),
    Column(
        "r",
        DataType(
            R.ROW,
            fields=(
                DataField("x", DataType(R.DECIMAL, precision=30, scale=0)),
                DataField(
                    "y",
                    DataType(R.ARRAY, element=DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=9)),
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
def test_mutated_nested_rows_give_valid_data_or_an_error(row_format: str) -> None:
    chance = random.Random(2)
    table = pa.table(
        {
            "a": [["short", None, "a longer text"], [], ["é" * 20] * 3],
            "m": [[("k", 1), ("a longer key", None)], None, []],
            "r": [{"x": Decimal(10**20), "y": [1, None, -1]}, {"x": None, "y": []}, None],
        },
        schema=arrow_schema(NESTED),
    )
    rows = encoder_of(row_format)(NESTED).encode(table)
    decoder = decoder_of(row_format)(NESTED)
    assert decode(decoder, rows).equals(table)
    refused = 0
    for _ in range(6000):
        data = bytearray(rows.data.tobytes())
        for _ in range(chance.choice([1, 2])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x80, 0xFF, 9, 40])
        try:
            found = decoder.decode(bytes(data), rows.offsets[:-1], rows.offsets[1:])
        except FlussError:
            refused += 1
            continue
        found.validate(full=True)
        assert found.nbytes < 100 * len(data)
    assert 1000 < refused < 6000


def test_more_rows_than_a_block_in_several_chunks() -> None:
    n = 3 * BLOCK_ROWS + 5
    texts = [None if i % 7 == 0 else "x" * (i % 23) for i in range(n)]
    table = pa.table({"id": range(n), "s": texts})
    table = pa.concat_tables([table.slice(0, 10), table.slice(10)])
    columns = columns_of(table)
    found = decode(RowDecoder(columns), RowEncoder(columns).encode(table))
    assert found.equals(table)


@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_the_first_and_the_last_timestamps_come_back(unit: str, row_format: str) -> None:
    edges = pa.array([-(2**63), -(2**63) + 1, 2**63 - 1], pa.int64()).view(pa.timestamp(unit))
    table = pa.table({"at": edges})
    columns = columns_of(table)
    rows = encoder_of(row_format)(columns).encode(table)
    assert decode(decoder_of(row_format)(columns), rows).equals(table)


def test_what_rows_cannot_hold() -> None:
    micros = pa.table({"t": pa.array([1001], pa.int64()).view(pa.time64("us"))})
    with pytest.raises(SchemaMismatchError, match=r"'t'.*row 0 has digits below the millisecond"):
        RowEncoder(columns_of(micros)).encode(micros)
    required = [Column("id", DataType(R.BIGINT, nullable=False))]
    with pytest.raises(SchemaMismatchError, match=r"'id' \(bigint NOT NULL\): null in row 1"):
        RowEncoder(required).encode(pa.table({"id": pa.array([1, None], pa.int64())}))
    with pytest.raises(SchemaMismatchError, match="'id' is int32"):
        RowEncoder(required).encode(pa.table({"id": pa.array([1], pa.int32())}))
    char = [Column("c", DataType(R.CHAR, length=3))]
    with pytest.raises(SchemaMismatchError, match="more than 3 bytes"):
        encoder_of("indexed")(char).encode(pa.table({"c": ["ééé"]}))


def test_indexed_rows_hold_no_binary_that_ends_with_zero() -> None:
    """Servers take the zeros for filling, and fail on the rest."""
    columns = [Column("b", DataType(R.BINARY, length=3))]
    encoder = encoder_of("indexed")(columns)
    good = pa.table({"b": pa.array([b"\0\0a", None], pa.binary(3))})
    assert decode(decoder_of("indexed")(columns), encoder.encode(good)).equals(good)
    bad = pa.table({"b": pa.array([b"abc", b"ab\0"], pa.binary(3))})
    with pytest.raises(SchemaMismatchError, match=r"'b' .* row 1 ends with a zero byte.*compacted"):
        encoder.encode(bad)
    RowEncoder(columns).encode(bad)


@pytest.mark.parametrize("count", [1, 8, 9, 32, 33, 70])
@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
def test_every_element_of_a_list_has_its_own_bit(row_format: str, count: int) -> None:
    columns = [Column("c", from_arrow(pa.list_(pa.int32())))]
    encoder, decoder = encoder_of(row_format)(columns), decoder_of(row_format)(columns)
    lists = [[None if i == null else i for i in range(count)] for null in range(count)]
    table = pa.table({"c": pa.array(lists, pa.list_(pa.int32()))})
    rows = encoder.encode(table)
    for null, values in enumerate(lists):
        bits = (1 << null).to_bytes((count + 31) // 32 * 4, "little")
        items = b"".join((value or 0).to_bytes(4, "little") for value in values)
        head = count.to_bytes(4, "little") + bits
        padding = bytes(-(len(head) + len(items)) % 8)
        assert rows[null].endswith(head + items + padding)
    assert decode(decoder, rows).equals(table)


@pytest.mark.parametrize("longer", range(-4, 9))
def test_keys_of_a_map_end_within_it(longer: int) -> None:
    """The length of the keys is told at the beginning of a map: it may be all the rest."""
    columns = [Column("m", DataType(R.MAP, key=DataType(R.INTEGER, nullable=False),
                                    value=DataType(R.INTEGER)))]  # fmt: skip
    rows = RowEncoder(columns).encode(pa.table({"m": [[(1, 2)]]}, schema=arrow_schema(columns)))
    row = bytearray(rows[0])
    # one byte of nulls, the length of the map, which fits into a byte, and the map
    size, at = row[1], 2
    assert len(row) == at + size
    struct.pack_into("<i", row, at, size - 4 + longer)
    decoder = RowDecoder(columns)
    text = "whose keys are longer than it is" if longer > 0 else "."
    with pytest.raises(ProtocolError, match=text):
        decoder.decode(bytes(row), np.array([0]), np.array([len(row)]))


@pytest.mark.parametrize("row_format", ["compacted", "indexed"])
@pytest.mark.parametrize("values", [[b"abc", b"xyz"], [None, b"abc", None], [None]])
def test_bytes_of_one_length_with_and_without_nulls(
    row_format: str, values: list[bytes | None]
) -> None:
    columns = [Column("b", DataType(R.BINARY, length=3))]
    table = pa.table({"b": pa.array(values, pa.binary(3))})
    assert decode(
        decoder_of(row_format)(columns), encoder_of(row_format)(columns).encode(table)
    ).equals(table)


@pytest.mark.parametrize("size", [5, 6])
def test_a_number_of_one_bit_too_many_is_refused_and_its_row_named(size: int) -> None:
    """The lowest bit that an INT has not, and a byte more than it takes."""
    columns = [Column("n", DataType(R.INTEGER))]
    good = [bytes([0, 2])] * 3
    bad = bytes([0, *[0x80] * 4, 0x10]) if size == 5 else bytes([0, *[0x80] * 5, 0x01])
    rows = [*good, bad]
    ends = np.cumsum([len(row) for row in rows])
    data = np.frombuffer(b"".join(rows) + bytes(16), np.uint8)
    with pytest.raises(ProtocolError, match=r"row 3, column 'n' .*more than 32 bits"):
        RowDecoder(columns).decode(data.tobytes(), ends - [len(row) for row in rows], ends)
