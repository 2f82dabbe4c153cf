"""One row at a time, against the vectorised codecs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_batch import Codec, Compression, arrow_message
from fluss_df.record.log.single_arrow import arrow_row_encoder
from fluss_df.record.python.rows import rows_to_batch
from fluss_df.record.rows.compacted import RowDecoder, RowEncoder
from fluss_df.record.rows.single import row_decoder, row_encoder
from fluss_df.types import Column, DataField, DataType, TypeRoot, arrow_schema

from . import row_models as m

R = TypeRoot
slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)

STAMP = R.TIMESTAMP_WITHOUT_TIME_ZONE
LTZ = R.TIMESTAMP_WITH_LOCAL_TIME_ZONE
TIME = R.TIME_WITHOUT_TIME_ZONE
PLAIN = (
    *(R.BOOLEAN, R.TINYINT, R.SMALLINT, R.INTEGER, R.BIGINT, R.FLOAT, R.DOUBLE),
    *(R.STRING, R.BYTES, R.DATE),
)


def as_vectors(bytes_of_rows: list[bytes]) -> tuple[bytes, Any, Any]:
    ends = np.cumsum([len(row) for row in bytes_of_rows], dtype=np.int64)
    return b"".join(bytes_of_rows), np.concatenate([[0], ends[:-1]]).astype(np.int64), ends


def to_pylist(table: pa.Table) -> list[dict[str, Any]] | None:
    """Return the rows; None where Python cannot hold one."""
    try:
        found: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError):
        return None
    return found


@slow
@given(made=m.tables(m.simple_types()))
def test_rows_are_those_of_many(made: tuple[list[Column], pa.Table]) -> None:
    check_rows(*made)


@settings(slow, max_examples=30)
@given(made=m.tables(m.types()))
def test_rows_with_nested_values_are_those_of_many(made: tuple[list[Column], pa.Table]) -> None:
    check_rows(*made)


def check_rows(columns: list[Column], table: pa.Table) -> None:
    decode = row_decoder(columns, "compacted")
    if decode is None:
        return
    rows = RowEncoder(columns).encode(table)
    expected = to_pylist(table)
    for i in range(len(rows)):
        found = decode(b"xy" + rows[i], 2)
        if expected is not None and found is not None:
            # NaN is not itself, and repr tells 1 from 1.0 and one zone from another
            assert repr(found) == repr(expected[i])
        else:
            assert found is None or expected is None


@slow
@given(made=m.tables(m.simple_types()), deleted=st.booleans())
def test_records_are_those_of_many(made: tuple[list[Column], pa.Table], deleted: bool) -> None:
    columns, table = made
    key = Column("key", DataType(R.BIGINT, nullable=False))
    columns = [key, *columns]
    numbers = pa.array(range(table.num_rows), pa.int64())
    table = table.add_column(0, "key", numbers)
    encoder = KvEncoder(1, columns, ["key"])
    for i, row in enumerate(to_pylist(table) or []):
        one = encoder.encode_values(row, deleted=deleted)
        if one is not None:
            assert one.to_bytes() == encoder.encode(table.slice(i, 1), deletes=deleted).to_bytes()


@slow
@given(made=m.tables(m.simple_types()), codec=st.sampled_from(["none", "lz4_frame", "zstd"]))
def test_messages_are_read_as_those_of_many(
    made: tuple[list[Column], pa.Table], codec: Codec
) -> None:
    columns, table = made
    encode = arrow_row_encoder(columns, Compression(codec))
    if encode is None:
        return
    for i, row in enumerate(to_pylist(table) or []):
        message = encode(list(row.values()))
        if message is not None:
            read = pa.ipc.read_record_batch(pa.py_buffer(message), table.schema)
            read.validate(full=True)
            assert pa.Table.from_batches([read]).equals(table.slice(i, 1))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DataType(R.DECIMAL, precision=9, scale=2), 7),
        (DataType(R.DECIMAL, precision=38, scale=2), Decimal("-1.5")),
        *((DataType(LTZ, precision=p), dt.datetime(1960, 1, 1)) for p in (0, 3, 6, 9)),
        *((DataType(STAMP, precision=p), dt.datetime(1960, 1, 1, 1)) for p in (0, 3, 6, 9)),
    ],
    ids=str,
)
def test_a_message_of_values_as_users_give_them(kind: DataType, value: Any) -> None:
    columns = [Column("c", kind)]
    encode = arrow_row_encoder(columns, Compression("none"))
    assert encode is not None
    message = encode([value])
    assert message is not None
    read = pa.ipc.read_record_batch(pa.py_buffer(message), arrow_schema(columns))
    assert read.equals(rows_to_batch([[value]], columns, "t"))


def test_plain_rows_are_encoded() -> None:
    """Guards the tests above: the encoders may give up on values, not on all of them."""
    row = {
        "key": 1,
        "flag": True,
        "text": "ä",
        "raw": b"x",
        "real": 1.5,
        "day": dt.date(1960, 1, 1),
        "at": dt.datetime(2026, 1, 1, microsecond=7),
        "price": Decimal("-1.25"),
        "none": None,
    }
    kinds = [R.BIGINT, R.BOOLEAN, R.STRING, R.BYTES, R.DOUBLE, R.DATE]
    types = [DataType(root) for root in kinds]
    types.append(DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=6))
    types.append(DataType(R.DECIMAL, precision=9, scale=2))
    types.append(DataType(R.INTEGER))
    columns = [Column(name, kind) for name, kind in zip(row, types, strict=True)]
    assert KvEncoder(1, columns, ["key"]).encode_values(row) is not None
    encode = arrow_row_encoder(columns, Compression())
    assert encode is not None
    assert encode(list(row.values())) is not None
    # longer than is sent without being compressed
    assert encode([*list(row.values())[:2], "x" * 2000, *list(row.values())[3:]]) is None
    letters = Column("letters", DataType(R.CHAR, length=3))
    assert arrow_row_encoder([letters], Compression()) is None


def test_plain_types_are_decoded() -> None:
    """Guards the test above: the codec may give up on types, not on all of them."""
    timed = (R.TIME_WITHOUT_TIME_ZONE, R.TIMESTAMP_WITHOUT_TIME_ZONE)
    types = [
        *(DataType(root) for root in PLAIN),
        *(DataType(root, precision=3) for root in (*timed, R.TIMESTAMP_WITH_LOCAL_TIME_ZONE)),
        DataType(R.DECIMAL, precision=9, scale=2),
        DataType(R.CHAR, length=3),
    ]
    columns = [Column(f"c{i}", t) for i, t in enumerate(types)]
    assert row_decoder(columns, "compacted") is not None
    assert row_decoder(columns, "indexed") is None
    plain = [column for column in columns if column.type.root not in (R.CHAR, timed[0])]
    assert row_encoder(plain, "compacted") is not None
    assert row_encoder(plain, "indexed") is None


def test_decimals_are_exact_in_a_thread_whose_arithmetic_is_not() -> None:
    column = Column("price", DataType(R.DECIMAL, precision=18, scale=2))
    value = Decimal("-1234567890123456.78")
    encode, decode = row_encoder([column], "compacted"), row_decoder([column], "compacted")
    assert encode is not None
    assert decode is not None
    row = RowEncoder([column]).encode(pa.table({"price": pa.array([value], pa.decimal128(18, 2))}))
    with localcontext(prec=3):
        assert encode([value]) == row[0]
        assert decode(row[0], 0) == {"price": value}


@pytest.mark.parametrize("value", ["1.00000000000000000000000000000001", "1E+999999", "1E-999999"])
def test_a_decimal_that_does_not_fit_is_for_others(value: str) -> None:
    encode = row_encoder([Column("price", DataType(R.DECIMAL, precision=9, scale=2))], "compacted")
    assert encode is not None
    assert encode([Decimal("12.30")]) is not None
    assert encode([Decimal(value)]) is None


@slow
@given(made=m.tables(m.simple_types()), data=st.data())
def test_a_fault_is_for_others(made: tuple[list[Column], pa.Table], data: st.DataObject) -> None:
    check_fault(*made, data)


@settings(slow, max_examples=30)
@given(made=m.tables(m.types()), data=st.data())
def test_a_fault_in_nested_values_is_for_others(
    made: tuple[list[Column], pa.Table], data: st.DataObject
) -> None:
    check_fault(*made, data)


def check_fault(columns: list[Column], table: pa.Table, data: st.DataObject) -> None:
    decode = row_decoder(columns, "compacted")
    rows = RowEncoder(columns).encode(table)
    if decode is None or not len(rows):
        return
    row = bytearray(rows[data.draw(st.integers(0, len(rows) - 1))])
    if data.draw(st.booleans()):
        row[data.draw(st.integers(0, len(row) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del row[data.draw(st.integers(0, len(row) - 1)) :]
    found = decode(bytes(row), 0)
    try:
        many = RowDecoder(columns).decode(*as_vectors([bytes(row)]))
    except ProtocolError:
        assert found is None
        return
    except FlussError as error:
        # Arrow has no such nanoseconds; Python may have the moment
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        return
    expected = to_pylist(many)
    if found is not None and expected is not None:
        assert repr(found) == repr(expected[0])


LARGE = b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (DataType(R.BOOLEAN), b"\1", [b"\2", b"\xff", b""]),
        (DataType(R.BIGINT), LARGE, [b"\xff" * 10, b"\x80" * 10 + b"\1", b"\x80"]),
        (DataType(R.INTEGER), b"\xff\xff\xff\xff\x0f", [b"\x80\x80\x80\x80\x80"]),
        (DataType(R.STRING), b"\1a", [b"\2a", b"\1\xff", b"\1"]),
        (DataType(R.DATE), b"\0", [b"\x80"]),
        (DataType(R.DOUBLE), bytes(8), [bytes(7), bytes(9)]),
        (DataType(R.TIME_WITHOUT_TIME_ZONE, precision=3), b"\xff\xb7\x99\x29",
         [b"\x80\xb8\x99\x29", LARGE]),
        (DataType(R.DECIMAL, precision=2, scale=1), b"\x63", [b"\x64", b"\xe4\0"]),
        (DataType(STAMP, precision=3), b"\1", [b"\x80", b"\1\1"]),
        (DataType(STAMP, precision=6), b"\1\xbf\x84\x3d",
         [b"\1\xc0\x84\x3d", b"\1", b"\1" + LARGE]),
        (DataType(STAMP, precision=0), b"\1", [b"\x80", b"\1\1"]),
        (DataType(STAMP, precision=9), b"\1\xbf\x84\x3d",
         [b"\1\xc0\x84\x3d", b"\1", b"\1" + LARGE]),
        (DataType(TIME, precision=0), b"\xff\xb7\x99\x29", [b"\x80\xb8\x99\x29", LARGE]),
        (DataType(R.BINARY, length=2), b"\2ab", [b"\1a", b"\3abc", b"\2a", b""]),
        (DataType(R.DECIMAL, precision=20, scale=1), b"\x09\x05\x6b\xc7\x5e\x2d\x63\x0f\xff\xff",
         [b"\x09\x05\x6b\xc7\x5e\x2d\x63\x10\0\0", b"\0", b"\x11" + bytes(17), b"\2\1", b"\1"]),
    ],
    ids=str,
)  # fmt: skip
def test_bytes_that_are_no_value(kind: DataType, good: bytes, bad: list[bytes]) -> None:
    """Those at the border are a value, and those behind it none: alone, and as many rows."""
    columns = [Column("c", kind)]
    one = row_decoder(columns, "compacted")
    assert one is not None
    many = RowDecoder(columns)
    found = one(b"\0" + good, 0)
    assert found is not None
    assert many.decode(*as_vectors([b"\0" + good])).to_pylist() == [found]
    assert one(b"\1", 0) == {"c": None}
    # a bit of a column that is not there
    assert one(b"\2" + good, 0) is None
    for value in bad:
        assert one(b"\0" + value, 0) is None, value
        with pytest.raises(ProtocolError):
            many.decode(*as_vectors([b"\0" + value]))
    required = row_decoder([Column("c", kind.with_nullable(False))], "compacted")
    assert required is not None
    assert required(b"\1", 0) is None
    assert required(b"\0" + good, 0) == found


@pytest.mark.parametrize("precision", [17, 18, 19, 20, 38])
def test_decimals_of_any_number_of_digits(precision: int) -> None:
    columns = [Column("c", DataType(R.DECIMAL, precision=precision, scale=2))]
    value = Decimal((1, (9,) * precision, -2))
    table = pa.table({"c": pa.array([value], pa.decimal128(precision, 2))})
    row = RowEncoder(columns).encode(table)[0]
    decode, encode = row_decoder(columns, "compacted"), row_encoder(columns, "compacted")
    assert decode is not None
    assert encode is not None
    with localcontext(prec=3):
        assert decode(row, 0) == {"c": value}
        assert encode([value]) == row


BIGINT, TEXT = DataType(R.BIGINT), DataType(R.STRING)
NESTED: list[tuple[DataType, Any]] = [
    (DataType(R.ARRAY, element=BIGINT), [1, None, -(2**63)]),
    (DataType(R.ARRAY, element=DataType(R.BOOLEAN)), [True, False]),
    (DataType(R.ARRAY, element=DataType(R.FLOAT)), []),
    (DataType(R.ARRAY, element=TEXT), ["", "a", "äöü", None, "1234567", "12345678"]),
    (DataType(R.ARRAY, element=DataType(R.BINARY, length=9)), [b"123456789", None]),
    (DataType(R.ARRAY, element=DataType(R.DATE)), [dt.date(1960, 1, 1), None]),
    (DataType(R.ARRAY, element=DataType(R.DECIMAL, precision=30, scale=2)), [Decimal("-1.25")]),
    (DataType(R.ARRAY, element=DataType(R.DECIMAL, precision=9, scale=2)), [Decimal("-1.25")]),
    *(
        (DataType(R.ARRAY, element=DataType(STAMP, precision=p)), [dt.datetime(1960, 1, 1), None])
        for p in (0, 3, 6, 9)
    ),
    (DataType(R.ARRAY, element=DataType(R.ARRAY, element=BIGINT)), [[1], None, [], [2, 3]]),
    (DataType(R.MAP, key=TEXT.with_nullable(False), value=BIGINT), [("a", 1), ("b", None)]),
    (DataType(R.ROW, fields=(DataField("x", BIGINT), DataField("y", TEXT))), {"x": 1, "y": None}),
]


@pytest.mark.parametrize(
    ("kind", "value"), [pytest.param(t, v, id=f"{i}-{t}") for i, (t, v) in enumerate(NESTED)]
)
def test_nested_values_are_those_of_many(kind: DataType, value: Any) -> None:
    """Each is decoded alone; with any byte changed, it is what it is among many, or nothing."""
    columns = [Column("c", kind), Column("d", BIGINT)]
    rows = [[value, 5], [None, None]]
    table = pa.Table.from_batches([rows_to_batch(rows, columns, "t")])
    encoded = RowEncoder(columns).encode(table)
    decode, many = row_decoder(columns, "compacted"), RowDecoder(columns)
    assert decode is not None
    for i, expected in enumerate(table.to_pylist()):
        assert repr(decode(encoded[i], 0)) == repr(expected)
    row = encoded[0]
    for place in range(len(row)):
        for byte in {0, 1, 0x7F, 0x80, 0xFF, row[place] ^ 1, row[place] ^ 8}:
            changed = row[:place] + bytes([byte]) + row[place + 1 :]
            alone = decode(changed, 0)
            try:
                expected = many.decode(*as_vectors([changed])).to_pylist()[0]
            except (FlussError, ValueError, OverflowError):
                expected = None
            assert repr(alone) == repr(expected) or alone is None


@pytest.mark.parametrize("zoned", [False, True])
def test_moments_in_nanoseconds_are_those_of_arrow(zoned: bool) -> None:
    columns = [Column("c", DataType(LTZ if zoned else STAMP, precision=9))]
    values = [0, 1, -1, 1_700_000_000_123_456_789, 2**63 - 1, -(2**63) + 1]
    table = pa.table({"c": pa.array(values, pa.timestamp("ns", "UTC" if zoned else None))})
    decode = row_decoder(columns, "compacted")
    assert decode is not None
    rows = RowEncoder(columns).encode(table)
    assert list(map(repr, (decode(rows[i], 0) for i in range(len(rows))))) == list(
        map(repr, table.to_pylist())
    )
    # a moment that 64 bits of nanoseconds do not hold
    assert decode(b"\0" + b"\xff" * 8 + b"\x7f\0", 0) is None


def test_a_message_is_the_one_of_arrow() -> None:
    """Byte for byte, where nothing is compressed; the last columns are those of two vectors."""
    values: dict[TypeRoot, list[Any]] = {
        R.BOOLEAN: [True, False, None],
        R.TINYINT: [-3, None],
        R.SMALLINT: [300, None],
        R.INTEGER: [-70_000, None],
        R.BIGINT: [2**40, None],
        R.FLOAT: [1.5, None],
        R.DOUBLE: [-2.5, None],
        R.STRING: ["", "abc", "x" * 100, None],
        R.BYTES: [b"", b"abcdefgh", None],
        R.DATE: [dt.date(1960, 2, 29), None],
    }
    last = Column("last", DataType(R.BIGINT))
    for root, given_values in values.items():
        columns = [Column("first", DataType(root)), last]
        schema = arrow_schema(columns)
        encode = arrow_row_encoder(columns, Compression("none"))
        assert encode is not None
        for value in given_values:
            row = [
                pa.array([one], field.type) for one, field in zip((value, 7), schema, strict=True)
            ]
            expected = arrow_message(pa.record_batch(row, schema=schema), Compression("none"))
            assert encode([value, 7]) == expected.to_pybytes(), (root, value)


@pytest.mark.parametrize("micros", [-3_001, -2_000, -1_999, -1, 0, 1, 3_001, 5_000, 5_999])
def test_moments_about_1970_are_those_of_many(micros: int) -> None:
    at = Column("at", DataType(R.TIMESTAMP_WITHOUT_TIME_ZONE, precision=6))
    columns = [Column("key", DataType(R.BIGINT, nullable=False)), at]
    table = pa.table({"key": [1], "at": pa.array([micros], pa.timestamp("us"))})
    encoder = KvEncoder(1, columns, ["key"])
    one = encoder.encode_values(table.to_pylist()[0], deleted=False)
    assert one is not None
    assert one.to_bytes() == encoder.encode(table, deletes=False).to_bytes()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_rows_of_as_many_columns_as_bytes_have_bits(count: int) -> None:
    columns = [Column(f"c{i}", DataType(R.BIGINT)) for i in range(count)]
    table = pa.table({f"c{i}": pa.array([i, None], pa.int64()) for i in range(count)})
    decode = row_decoder(columns, "compacted")
    assert decode is not None
    rows = RowEncoder(columns).encode(table)
    assert [decode(bytes(rows[i]), 0) for i in range(2)] == table.to_pylist()
