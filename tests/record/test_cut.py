"""Columns cut out of stored messages, and the sizes that compressed messages claim."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import ProtocolError
from fluss_df.record.layout.flat_table import FlatTable
from fluss_df.record.log.claims import _lz4_most, check_claims
from fluss_df.record.log.cut import (
    ArrowMessage,
    ColumnLayout,
    Cutter,
    decompressed_size,
    read_message,
)
from fluss_df.record.log.log_batch import Codec, Compression, arrow_message

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "text": pa.string(),
        "flag": pa.bool_(),
        "list": pa.list_(pa.int32()),
        "row": pa.struct([("a", pa.int16()), ("b", pa.string())]),
        "map": pa.map_(pa.string(), pa.float64()),
        "fixed": pa.binary(5),
        "dec": pa.decimal128(20, 2),
    }
)
LAYOUT = ColumnLayout(SCHEMA)
CODECS: list[Codec] = ["none", "lz4_frame", "zstd"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "text": st.text(max_size=9),
    "flag": st.booleans(),
    "list": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "row": st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.text(max_size=3)}),
    "map": st.lists(st.tuples(st.text(max_size=2), st.floats(-9, 9)), max_size=2),
    "fixed": st.binary(min_size=5, max_size=5),
    "dec": st.decimals(-999, 999, places=2),
}
BATCHES = st.integers(0, 6).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            name: st.lists(st.none() | value, min_size=n, max_size=n)
            for name, value in VALUES.items()
        }
    )
)


def message(batch: pa.RecordBatch, codec: Codec = "none", level: int | None = None) -> bytes:
    """Return the Arrow message of a batch."""
    return bytes(arrow_message(batch, Compression(codec, level)))


def read(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    found = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    found.validate(full=True)
    return found


@settings(max_examples=40, deadline=None)
@given(
    rows=BATCHES,
    codec=st.sampled_from(CODECS),
    wanted=st.sets(st.integers(0, len(SCHEMA) - 1), min_size=1).map(sorted),
    before=st.binary(max_size=9),
)
def test_the_wanted_columns_are_those_of_the_batch(
    rows: dict[str, list[Any]], codec: Codec, wanted: list[int], before: bytes
) -> None:
    batch = pa.record_batch(rows, schema=SCHEMA)
    stored = before + message(batch, codec)
    place = (memoryview(stored), len(before), len(stored))
    cutter = Cutter(LAYOUT, wanted)
    cut = b"".join(cutter.cut(*place))
    assert cutter.size(*place) == len(cut)
    # columns behind those of an older schema are not there, and take no room
    assert Cutter(LAYOUT, [*wanted, len(SCHEMA)]).size(*place) == len(cut)
    schema = pa.schema([SCHEMA.field(i) for i in wanted])
    assert read(cut, schema).equals(batch.select(wanted))


def read_whole(data: bytes, layout: ColumnLayout | None = LAYOUT) -> ArrowMessage:
    return read_message(memoryview(data), 0, len(data), layout)


BATCH = pa.record_batch(
    {
        "n": [1, None, 3],
        "text": ["a", "bc", None],
        "flag": [True, None, False],
        "list": [[1], None, []],
        "row": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
        "map": [[("k", 1.5)], [], None],
        "fixed": [b"12345", None, b"67890"],
        "dec": [None, None, None],
    },
    schema=SCHEMA,
)


def test_a_message_of_other_columns_or_rows_is_refused() -> None:
    whole = message(BATCH)
    found = read_whole(whole)
    LAYOUT.check(found, 3)
    with pytest.raises(ProtocolError, match="3 rows in a batch of 2"):
        LAYOUT.check(found, 2)
    other = ColumnLayout(pa.schema(list(SCHEMA)[:-1]))
    with pytest.raises(ProtocolError, match=r"14 fields and 29 buffers, where .* 13 and 27"):
        Cutter(other, [0]).cut(memoryview(whole), 0, len(whole))
    with pytest.raises(ProtocolError, match="14 fields"):
        Cutter(other, [0]).size(memoryview(whole), 0, len(whole))


def test_messages_that_are_alike_are_cut_each_by_itself() -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    layout = ColumnLayout(schema)
    batches = [
        pa.record_batch([[i, None], ["x" * (i % 3 * 150), str(i % 10)]], schema=schema)
        for i in range(1000)
    ]
    batches += [
        pa.record_batch([range(i), ["y"] * i], schema=schema) for i in range(3 * 256)
    ]  # more than are remembered
    batches += batches[:3]
    data = memoryview(b"".join(map(message, batches)))
    cutter, start = Cutter(layout, [1]), 0
    for batch in batches:
        end = start + len(message(batch))
        alone = b"".join(Cutter(layout, [1]).cut(data, start, end))
        assert b"".join(cutter.cut(data, start, end)) == alone
        assert cutter.size(data, start, end) == len(alone)
        assert read(alone, pa.schema([schema.field(1)])).equals(batch.select([1]))
        start = end


def test_a_message_like_one_before_whose_body_is_cut_off_is_refused() -> None:
    whole = message(BATCH)
    data = memoryview(whole)
    cutter = Cutter(LAYOUT, [0])
    kept = cutter.size(data, 0, len(whole))
    for end in range(len(whole)):
        with pytest.raises(ProtocolError, match="an Arrow message"):
            cutter.size(data, 0, end)
    assert cutter.size(data, 0, len(whole)) == kept


def test_a_message_that_is_cut_off_is_refused() -> None:
    whole = message(BATCH)
    for end in range(len(whole)):
        with pytest.raises(ProtocolError, match="an Arrow message"):
            read_message(memoryview(whole), 0, end, LAYOUT)
    # bytes behind it are not its own
    assert read_message(memoryview(whole + b"x"), 0, len(whole), LAYOUT) == read_whole(whole)


def test_a_message_without_the_mark_of_newer_arrow_is_read() -> None:
    whole = message(BATCH)
    old = whole[4:]
    assert read_whole(old).nodes == read_whole(whole).nodes
    assert read_whole(old).body == read_whole(whole).body - 4


def test_what_is_no_record_batch_is_refused() -> None:
    with pytest.raises(ProtocolError, match="it is no record batch"):
        read_whole(SCHEMA.serialize().to_pybytes())


def test_more_metadata_than_the_columns_need_is_not_read() -> None:
    wide = pa.record_batch({str(i): pa.nulls(1, pa.int8()) for i in range(1_500)})
    data = message(wide)
    assert len(read_whole(data, ColumnLayout(wide.schema)).nodes) == 1_500
    with pytest.raises(ProtocolError, match="its metadata has"):
        read_whole(data, LAYOUT)


def changed(data: bytes, old: tuple[int, int], new: tuple[int, int]) -> bytes:
    """Return a message with another pair of numbers among its nodes and buffers."""
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    at = data.index(struct.pack("<qq", *old), 8, end)
    return data[:at] + struct.pack("<qq", *new) + data[at + 16 :]


ONE = pa.schema({"n": pa.int64()})
FIVE = message(pa.record_batch({"n": [1, 2, None, 4, 5]}, schema=ONE))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ((5, 1), (5, 6), "a field of 5 rows with 6 nulls"),
        ((5, 1), (5, -1), "a field of 5 rows with -1 nulls"),
        ((5, 1), (-5, 1), "a field of -5 rows with 1 nulls"),
        ((8, 40), (8, 41), "a buffer at 8 of 41 bytes is not in its body"),
        ((8, 40), (9, 40), "a buffer at 9 of 40 bytes is not in its body"),
        ((8, 40), (49, 0), "a buffer at 49 of 0 bytes is not in its body"),
        ((8, 40), (-8, 40), "a buffer at -8 of 40 bytes is not in its body"),
        ((8, 40), (8, -1), "a buffer at 8 of -1 bytes is not in its body"),
        ((8, 40), (8, 2**63 - 1), "is not in its body"),
    ],
)
def test_numbers_that_lead_out_of_the_message_are_refused(
    old: tuple[int, int], new: tuple[int, int], text: str
) -> None:
    data = changed(FIVE, old, new)
    with pytest.raises(ProtocolError, match=text.replace("a ", "an Arrow ", 1)):
        read_whole(data)


def test_the_end_of_the_body_is_still_inside() -> None:
    assert read_whole(changed(FIVE, (8, 40), (48, 0))).buffers[1] == (48, 0)


# ---- claims


def claim(data: bytes, schema: pa.Schema, most: int = 1 << 20, *, rows: int | None = None) -> None:
    layout = ColumnLayout(schema)
    found = read_whole(data, layout)
    layout.check(found, found.rows if rows is None else rows)
    check_claims(found, layout, memoryview(data), most)


@settings(max_examples=40, deadline=None)
@given(rows=BATCHES, codec=st.sampled_from(CODECS), level=st.sampled_from([1, 3, 19]))
def test_what_arrow_writes_is_true(rows: dict[str, list[Any]], codec: Codec, level: int) -> None:
    batch = pa.record_batch(rows, schema=SCHEMA)
    claim(message(batch, codec, level), SCHEMA)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 300_000])
@pytest.mark.parametrize("kind", ["same", "mixed"])
def test_sizes_of_every_width_are_true(codec: Codec, size: int, kind: str) -> None:
    text = "x" * size if kind == "same" else random.Random(1).randbytes(size).hex()[:size]
    schema = pa.schema({"t": pa.string()})
    data = message(pa.record_batch({"t": [text]}, schema=schema), codec)
    claim(data, schema)
    # what it becomes is counted: all of it may be, and a byte less is too little
    becomes = 8 + size
    if codec != "none":
        claim(data, schema, becomes)
        with pytest.raises(ProtocolError, match=f"{becomes:,} bytes or more"):
            claim(data, schema, becomes - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_that_do_not_get_smaller_are_true(codec: Codec) -> None:
    """They stand in a frame as they are; one of Zstandard has up to 128 KiB."""
    schema = pa.schema({"b": pa.binary()})
    value = random.Random(2).randbytes(300_000)
    data = message(pa.record_batch({"b": [value]}, schema=schema), codec)
    claim(data, schema, 8 + len(value))


@pytest.mark.parametrize("at", [-1, -4, 4, 5, 1 << 40])
def test_a_table_outside_of_the_metadata(at: int) -> None:
    with pytest.raises(struct.error, match="leads out of the metadata"):
        FlatTable(memoryview(bytes(4)), at)


def lie(codec: Codec, size: int, text: str = "x" * 5_000) -> bytes:
    """Return a message whose text says that it has another size."""
    schema = pa.schema({"t": pa.string()})
    data = bytearray(message(pa.record_batch({"t": [text]}, schema=schema), codec))
    found = read_whole(bytes(data), ColumnLayout(schema))
    struct.pack_into("<q", data, found.body + found.buffers[2][0], size)
    return bytes(data)


@pytest.mark.parametrize("codec", ["lz4_frame", "zstd"])
@pytest.mark.parametrize("size", [4_999, 5_001, 70_000, 1_000_000, -2, -(2**63)])
def test_a_size_that_the_frame_cannot_have_is_refused(codec: Codec, size: int) -> None:
    schema = pa.schema({"t": pa.string()})
    claim(lie(codec, 5_000), schema)
    if codec == "lz4_frame" and 0 < size <= 5_001:
        # a frame of LZ4 could become that; what differs is found when it is decompressed
        claim(lie(codec, size), schema)
        return
    with pytest.raises(ProtocolError, match="a compressed Arrow buffer says it has"):
        claim(lie(codec, size), schema)


@pytest.mark.parametrize("codec", ["lz4_frame", "zstd"])
def test_frames_that_are_broken_are_refused(codec: Codec) -> None:
    schema = pa.schema({"t": pa.string()})
    data = lie(codec, 5_000)
    found = read_whole(data, ColumnLayout(schema))
    at, length = found.buffers[2]
    at += found.body + 8
    wrong_magic = bytearray(data)
    wrong_magic[at] ^= 1
    with pytest.raises(ProtocolError, match="cut off or broken"):
        claim(bytes(wrong_magic), schema, 1 << 20)
    # without its end; where the frame says its size, what is left of it is no matter of claims
    for cut in range(8, length):
        short = changed(data, (found.buffers[2][0], length), (found.buffers[2][0], cut))
        if codec == "lz4_frame" or cut < 12:
            with pytest.raises(ProtocolError, match=r"cut off or broken|says it has"):
                claim(short, schema)
    tiny = changed(data, (found.buffers[2][0], length), (found.buffers[2][0], 7))
    with pytest.raises(ProtocolError, match="a compressed Arrow buffer of 7 bytes"):
        claim(tiny, schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [((8, 40), (8, 39)), ((8, 40), (8, 0)), ((0, 1), (0, 0))],
    ids=["values", "no values", "no bits"],
)
def test_fewer_bytes_than_rows_need_are_refused(old: tuple[int, int], new: tuple[int, int]) -> None:
    claim(FIVE, ONE)
    with pytest.raises(ProtocolError, match="too few for the 5 rows"):
        claim(changed(FIVE, old, new), ONE)


def test_columns_of_nulls_alone_and_of_none_may_lack_buffers() -> None:
    full = message(pa.record_batch({"n": [1, 2, 3, 4, 5]}, schema=ONE))
    claim(full, ONE)
    nulls = message(pa.record_batch({"n": [None] * 5}, schema=ONE))
    claim(changed(nulls, (8, 40), (8, 0)), ONE)


def test_fields_of_other_rows_than_the_message_are_refused() -> None:
    with pytest.raises(ProtocolError, match=r"a.* field of 4 rows in a message of 5"):
        claim(changed(FIVE, (5, 1), (4, 1)), ONE)


def test_frames_of_lz4_may_name_a_dictionary() -> None:
    """What names it takes four bytes; how large the frame can become is the same."""
    block = struct.pack("<I", 5 | 1 << 31) + b"bytes" + bytes(4)
    plain = struct.pack("<IBBB", 0x184D2204, 0x40, 0x40, 0) + block
    named = struct.pack("<IBBIB", 0x184D2204, 0x41, 0x40, 7, 0) + block
    expected = _lz4_most(memoryview(plain), 0, len(plain))
    assert _lz4_most(memoryview(named), 0, len(named)) == expected
    # a header that is cut off
    with pytest.raises((IndexError, struct.error)):
        _lz4_most(memoryview(named[:11]), 0, 11)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("text", ["x" * 1000, "", "ab"])
def test_what_a_message_decompresses_to(codec: Codec, text: str) -> None:
    batch = pa.record_batch({"n": [7] * 1000, "text": [text] * 1000})
    data = memoryview(message(batch, codec))
    size = decompressed_size(data, read_message(data, 0, len(data)))
    # buffers that are left as they are have room up to a multiple of 64 bytes
    assert 1000 * (8 + 4 + len(text)) + 4 <= size <= 1000 * (8 + 4 + len(text)) + 4 + 4 * 64
