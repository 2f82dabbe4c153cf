"""Log batches of rows: encoding, decoding in part, and bytes that are none."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.headers import scan_headers
from fluss_df.record.log.row_log import ROW_LOG_FORMATS, RowLogDecoder, encode_row_log_batch
from fluss_df.record.rows.row_formats import encoder_of
from fluss_df.types import Column, DataType, TypeRoot
from tests.record.batches import with_crc

COLUMNS = [
    Column("id", DataType(TypeRoot.BIGINT, nullable=False)),
    Column("text", DataType(TypeRoot.STRING)),
    Column("x", DataType(TypeRoot.DOUBLE)),
]
TARGET = pa.schema([("id", pa.int64()), ("text", pa.string()), ("x", pa.float64())])


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [None if i % 3 == 0 else "ä" * (i % 5) for i in ids],
            "x": [None if i % 7 == 0 else i / 2 for i in ids],
        },
        schema=TARGET,
    )


def stored(row_format: str, first: int, count: int) -> bytes:
    """A batch as a server stores it: with the offset of its first row."""
    made = encode_row_log_batch(
        rows(first, count), schema_id=1, rows=encoder_of(row_format)(COLUMNS)
    )
    raw = bytearray(made.to_bytes())
    raw[:8] = first.to_bytes(8, "little")
    return with_crc(raw)


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
@pytest.mark.parametrize("window", [(0, None), (3, 9), (10, 2_400), (29, 30), (2_500, None)])
def test_decoded_in_part(row_format: str, window: tuple[int, int | None]) -> None:
    sizes = [10, 1, 20, 2_400, 1]
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    data = b"".join(stored(row_format, f, n) for f, n in zip(firsts, sizes, strict=True))
    headers = scan_headers(data)
    decoder = RowLogDecoder({1: COLUMNS}, TARGET, row_format)
    start, stop = window
    total = sum(sizes)
    end = total if stop is None else stop
    wanted = pa.Table.from_batches([rows(start, max(0, end - start))], TARGET)
    options = {"start_offset": start, "stop_offset": stop}
    assert decoder.decode_table(data, headers, **options).equals(wanted)  # type: ignore[arg-type]
    batches = decoder.decode(data, headers, **options)  # type: ignore[arg-type]
    assert pa.Table.from_batches([b.batch for b in batches], TARGET).equals(wanted)
    offsets = [b.base_offset + i for b in batches for i in range(b.batch.num_rows)]
    assert offsets == list(range(start, end))
    kinds = decoder.change_types(data, headers, **options)  # type: ignore[arg-type]
    assert kinds.tolist() == [0] * wanted.num_rows


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
def test_fewer_and_other_columns(row_format: str) -> None:
    data = stored(row_format, 0, 5)
    target = pa.schema([("x", pa.float64()), ("later", pa.int32()), ("id", pa.int64())])
    got = RowLogDecoder({1: COLUMNS}, target, row_format).decode_table(data, scan_headers(data))
    assert got.column("later").null_count == 5
    assert got.select(["id"]).equals(pa.Table.from_batches([rows(0, 5).select(["id"])]))
    with pytest.raises(FlussError, match="schema 1") as raised:
        RowLogDecoder({2: COLUMNS}, TARGET, row_format).decode_table(data, scan_headers(data))
    assert raised.value.error_code == ErrorCode.SCHEMA_NOT_EXIST


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
def test_mutated_bytes_are_an_error_or_rows(row_format: str) -> None:
    data = stored(row_format, 0, 30) + stored(row_format, 30, 4)
    decoder = RowLogDecoder({1: COLUMNS}, TARGET, row_format)
    draw = random.Random(5)
    errors = 0
    for _ in range(2_000):
        raw = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            raw[draw.randrange(12, len(raw))] = draw.randrange(256)
        try:
            got = decoder.decode_table(bytes(raw), scan_headers(bytes(raw)))
        except FlussError:
            errors += 1
        else:
            got.validate(full=True)
    assert 500 < errors < 2_000


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
def test_no_columns_still_have_rows(row_format: str) -> None:
    data = stored(row_format, 0, 5) + stored(row_format, 5, 2)
    headers = scan_headers(data)
    decoder = RowLogDecoder({1: COLUMNS}, pa.schema([]), row_format)
    for start, count in ((0, 7), (3, 4), (7, 0)):
        table = decoder.decode_table(data, headers, start_offset=start)
        assert (table.num_rows, table.num_columns) == (count, 0)
    parts = decoder.decode(data, headers, start_offset=3)
    assert [part.batch.num_rows for part in parts] == [2, 2]


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
def test_each_row_has_its_change_type(row_format: str) -> None:
    kinds = np.array([1, 2, 3, 4, 1], np.uint8)
    made = encode_row_log_batch(
        rows(0, 5), schema_id=1, rows=encoder_of(row_format)(COLUMNS), change_types=kinds
    )
    data = with_crc(bytearray(made.to_bytes()))
    headers = scan_headers(data)
    decoder = RowLogDecoder({1: COLUMNS}, TARGET, row_format)
    found = decoder.change_types(data, headers, start_offset=1, stop_offset=4)
    assert found.tolist() == [2, 3, 4]


@pytest.mark.parametrize("row_format", ROW_LOG_FORMATS)
def test_batches_with_other_numbers_of_rows_than_they_say_are_refused(row_format: str) -> None:
    first, second = bytearray(stored(row_format, 0, 3)), bytearray(stored(row_format, 3, 3))
    decoder = RowLogDecoder({1: COLUMNS}, TARGET, row_format)
    for counts in ((2, 4), (4, 2)):
        for raw, count in zip((first, second), counts, strict=True):
            raw[44:48] = count.to_bytes(4, "little")
        data = with_crc(first) + with_crc(second)
        with pytest.raises(ProtocolError):
            decoder.decode_table(data, scan_headers(data))
