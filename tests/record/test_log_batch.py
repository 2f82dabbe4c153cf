from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.headers import scan_headers, verify_crcs
from fluss_df.record.log.checked import CheckedColumns
from fluss_df.record.log.cut import NOT_COMPRESSED, ArrowMessage, read_message
from fluss_df.record.log.log_batch import Codec, Compression, encode_log_batch
from fluss_df.record.log.log_decode import LogDecoder

from . import batches as b

CODECS = ["none", "lz4_frame", "zstd"]


# ---- encoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_encoded_header_is_the_one_of_magic_0(codec: str) -> None:
    batch = b.rows(0, 7)
    encoded = encode_log_batch(batch, schema_id=3, compression=Compression(codec))  # type: ignore[arg-type]
    encoded.stamp(77, 5)
    raw = encoded.to_bytes()
    assert encoded.nbytes == len(raw) == sum(len(part) for part in encoded.buffers)
    assert encoded.num_rows == 7
    (base, length, magic, timestamp, crc, schema_id, attributes, delta, writer, sequence,
     count) = struct.unpack_from("<qiBqIhBiqii", raw)  # fmt: skip
    assert (base, magic, timestamp, schema_id, attributes) == (0, 0, 0, 3, 1)
    assert (length, delta, writer, sequence, count) == (len(raw) - 12, 6, 77, 5, 7)
    assert crc == google_crc32c.value(raw[25:])
    # the payload is one message: nothing before it, no end of stream after it
    message = pa.ipc.read_message(raw[48:])
    assert message.type == "record batch"
    assert pa.ipc.read_record_batch(message, b.SCHEMA).equals(batch)
    assert raw[48:52] == b"\xff\xff\xff\xff"
    metadata = int.from_bytes(raw[52:56], "little")
    assert len(raw) == 48 + 8 + metadata + message.body.size


def test_stamping_again_replaces_writer_and_checksum() -> None:
    encoded = encode_log_batch(b.rows(0, 3), schema_id=1, compression=Compression())
    encoded.stamp(1, 1)
    old = encoded.buffers[0]
    kept = bytes(old)
    encoded.stamp(2, 9)
    headers = scan_headers(encoded.to_bytes())
    verify_crcs(encoded.to_bytes(), headers)
    assert (headers.writer_id[0], headers.sequence[0]) == (2, 9)
    assert bytes(old) == kept


def test_an_unstamped_batch_has_no_writer() -> None:
    encoded = encode_log_batch(b.rows(0, 3), schema_id=1, compression=Compression())
    headers = scan_headers(encoded.to_bytes())
    assert (headers.writer_id[0], headers.sequence[0]) == (-1, -1)


def test_a_slice_is_encoded_without_its_surroundings() -> None:
    big = b.rows(0, 100_000)
    part = big.slice(50_000, 10)
    encoded = encode_log_batch(part, schema_id=1, compression=Compression("none"))
    assert encoded.nbytes < 2000
    raw = encoded.to_bytes()
    table = LogDecoder({1: b.SCHEMA}, b.SCHEMA).decode_table(raw, scan_headers(raw))
    assert table.to_batches()[0].equals(part)


def packed(batch: pa.RecordBatch, codec: Codec) -> tuple[ArrowMessage, set[bool]]:
    """Return the message of a batch, and whether its buffers are compressed."""
    encoded = encode_log_batch(batch, schema_id=1, compression=Compression(codec))
    raw = memoryview(encoded.to_bytes())
    message = read_message(raw, 48, len(raw))
    assert message.compression == {"none": None, "lz4_frame": (0, 0), "zstd": (1, 0)}[codec]
    found = LogDecoder({1: batch.schema}, batch.schema).decode_table(raw, scan_headers(raw))
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([batch]))
    marks = (bytes(raw[message.body + at :][:8]) for at, size in message.buffers if size)
    return message, {mark != NOT_COMPRESSED for mark in marks}


def test_small_batches_are_not_compressed_by_zstd() -> None:
    limit = pa.record_batch({"n": pa.array(range(512), pa.int64())})
    assert packed(limit, "zstd")[1] == {False}
    beyond = pa.record_batch({"n": pa.array(range(513), pa.int64())})
    assert packed(beyond, "zstd")[1] == {True}
    # many columns have as many bytes each
    wide = pa.record_batch({f"c{i}": pa.array(range(16), pa.int64()) for i in range(40)})
    assert packed(wide, "zstd")[1] == {False}
    for rows in (1, 2, 30):
        assert packed(b.rows(0, rows), "zstd")[1] == {False}
        assert packed(b.rows(50, 90).slice(7, rows), "zstd")[1] == {False}


def test_small_batches_have_the_buffers_that_arrow_writes() -> None:
    batch = pa.record_batch(
        {
            "n": [1, None, 3],
            "text": ["a", "", None],
            "none": pa.nulls(3, pa.string()),
            "list": [[1], None, []],
            "row": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
            "map": pa.array([[("k", 1.5)], [], None], pa.map_(pa.string(), pa.float64())),
            "fixed": pa.array([b"12345", None, b"67890"], pa.binary(5)),
            "flag": [True, None, False],
        }
    )
    plain, _ = packed(batch, "none")
    marked, compressed = packed(batch, "zstd")
    assert compressed == {False}
    assert (marked.rows, marked.nodes) == (plain.rows, plain.nodes)
    assert [size for _, size in marked.buffers] == [
        size + 8 if size else 0 for _, size in plain.buffers
    ]


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(FlussError, match="at least one row"):
        encode_log_batch(b.rows(0, 0), schema_id=1, compression=Compression())
    for schema_id in (-1, 2**15):
        with pytest.raises(FlussError, match="schema id"):
            encode_log_batch(b.rows(0, 1), schema_id=schema_id, compression=Compression())
    for schema_id in (0, 2**15 - 1):
        made = encode_log_batch(b.rows(0, 1), schema_id=schema_id, compression=Compression())
        assert scan_headers(made.to_bytes()).schema_id.tolist() == [schema_id]


def test_compression_of_table_properties() -> None:
    kind, level = "table.log.arrow.compression.type", "table.log.arrow.compression.zstd.level"
    assert Compression.from_properties({}) == Compression("zstd", 3)
    assert Compression.from_properties({kind: "ZSTD", level: "22"}) == Compression("zstd", 22)
    assert Compression.from_properties({kind: "LZ4_FRAME"}) == Compression("lz4_frame", None)
    assert Compression.from_properties({kind: "none", level: "9"}) == Compression("none", None)
    for bad in ({kind: "gzip"}, {level: "0"}, {level: "23"}, {level: "high"}, {level: ""}):
        with pytest.raises(FlussError) as raised:
            Compression.from_properties(bad)
        assert raised.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_level_changes_the_size() -> None:
    batch = b.rows(0, 20_000)
    sizes = [
        encode_log_batch(batch, schema_id=1, compression=Compression("zstd", level)).nbytes
        for level in (1, 19)
    ]
    assert sizes[0] > sizes[1]


# ---- headers ------------------------------------------------------------------------------------


def log(*parts: bytes) -> bytes:
    return b"".join(parts)


def test_scan_walks_the_chain_and_drops_the_tail() -> None:
    first, second = b.stored(b.rows(0, 3), 10), b.stored(b.rows(3, 4), 13, sequence=1)
    whole = log(first, second)
    for cut in range(len(second) + 1):
        headers = scan_headers(whole[: len(first) + cut])
        complete = 2 if cut == len(second) else 1
        assert len(headers) == complete
        assert headers.consumed == (len(whole) if complete == 2 else len(first))
        assert headers.end_offset == (17 if complete == 2 else 13)
    headers = scan_headers(pa.py_buffer(whole))
    assert headers.base_offset.tolist() == [10, 13]
    assert headers.record_count.tolist() == [3, 4]
    assert headers.schema_id.tolist() == [1, 1]
    assert headers.timestamp.tolist() == [1_700_000_000_000] * 2
    assert headers.writer_id.tolist() == [5, 5]
    assert headers.sequence.tolist() == [0, 1]
    assert headers.append_only.tolist() == [True, True]
    assert headers.rows == 7
    verify_crcs(pa.py_buffer(whole), headers)
    verify_crcs(memoryview(whole), headers)


def test_nothing_and_less_than_one_batch() -> None:
    empty = scan_headers(b"")
    assert len(empty) == 0
    assert empty.end_offset is None
    assert empty.consumed == 0
    piece = b.stored(b.rows(0, 3), 0)[:-1]
    with pytest.raises(ProtocolError, match="one whole batch"):
        scan_headers(piece)
    assert len(scan_headers(piece, require_progress=False)) == 0


@pytest.mark.parametrize("statistics", [b"", b"stat" * 5])
def test_magic_1_and_2(statistics: bytes) -> None:
    plain = b.stored(b.rows(0, 5), 3)
    decoder = LogDecoder({1: b.SCHEMA}, b.SCHEMA)
    old = b.of_magic(plain, 1, epoch=True, statistics=None)
    new = b.of_magic(plain, 1, epoch=False, statistics=statistics)
    two = b.of_magic(plain, 2, epoch=True, statistics=statistics)
    for raw, flag in ((old, False), (new, True), (two, False), (two, True)):
        headers = scan_headers(raw, magic1_has_statistics=flag)
        verify_crcs(raw, headers)
        assert headers.base_offset.tolist() == [3]
        assert headers.record_count.tolist() == [5]
        assert headers.writer_id.tolist() == [5]
        assert decoder.decode_table(raw, headers).to_batches()[0].equals(b.rows(0, 5))
    mixed = log(plain, b.of_magic(b.stored(b.rows(5, 2), 8), 2, epoch=True, statistics=statistics))
    headers = scan_headers(mixed)
    assert headers.magic.tolist() == [0, 2]
    verify_crcs(mixed, headers)
    assert decoder.decode_table(mixed, headers).num_rows == 7


def patched(at: int, kind: str, value: int, plain: bytes | None = None) -> bytes:
    raw = bytearray(plain or b.stored(b.rows(0, 3), 10))
    struct.pack_into(kind, raw, at, value)
    return bytes(raw)


HOSTILE: list[tuple[str, Callable[[], bytes]]] = [
    ("negative length", lambda: patched(8, "<i", -1)),
    ("most negative length", lambda: patched(8, "<i", -(2**31))),
    ("length of less than a header", lambda: patched(8, "<i", 35)),
    ("magic 3", lambda: patched(12, "<B", 3)),
    ("magic 255", lambda: patched(12, "<B", 255)),
    ("negative base offset", lambda: patched(0, "<q", -1)),
    ("huge base offset", lambda: patched(0, "<q", 2**63 - 1)),
    ("negative count", lambda: patched(44, "<i", -1)),
    ("more records than offsets", lambda: patched(44, "<i", 4)),
    ("negative delta", lambda: patched(28, "<i", -1)),
    ("offsets run backwards", lambda: log(b.stored(b.rows(0, 3), 10), b.stored(b.rows(0, 3), 5))),
    ("offsets overlap", lambda: log(b.stored(b.rows(0, 3), 10), b.stored(b.rows(0, 3), 12))),
    ("change types beyond the end", lambda: patched(44, "<i", 2**30, patched(28, "<i", 2**31 - 1,
     patched(27, "<B", 0)))),
    ("magic 2 of 50 bytes", lambda: patched(12, "<B", 2, b.empty(0) + b"")),
    ("statistics beyond the end", lambda: patched(52, "<i", 2**31 - 1, b.of_magic(
        b.stored(b.rows(0, 3), 0), 2, epoch=True, statistics=b""))),
    ("negative statistics", lambda: patched(52, "<i", -5, b.of_magic(
        b.stored(b.rows(0, 3), 0), 2, epoch=True, statistics=b""))),
]  # fmt: skip


@pytest.mark.parametrize(("what", "make"), HOSTILE, ids=[what for what, _ in HOSTILE])
def test_headers_that_cannot_be(what: str, make: Callable[[], bytes]) -> None:
    with pytest.raises(ProtocolError):
        scan_headers(make())


def test_a_huge_length_is_a_batch_cut_off() -> None:
    good = b.stored(b.rows(0, 3), 0)
    headers = scan_headers(good + patched(8, "<i", 2**31 - 1))
    assert len(headers) == 1


def test_checksums_name_the_offset() -> None:
    raw = bytearray(log(b.stored(b.rows(0, 3), 10), b.stored(b.rows(3, 4), 13)))
    raw[-1] ^= 1
    headers = scan_headers(bytes(raw))
    with pytest.raises(FlussError, match="offset 13") as raised:
        verify_crcs(bytes(raw), headers)
    assert raised.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


# ---- decoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_golden_files_of_the_official_client(codec: str) -> None:
    raw = (b.GOLDEN / f"log_{codec}.bin").read_bytes()
    expected = b.golden_rows()
    headers = scan_headers(raw)
    verify_crcs(raw, headers)
    table = LogDecoder({1: expected.schema}, expected.schema).decode_table(raw, headers)
    assert table.equals(expected)
    assert headers.base_offset.tolist() == [0, 20]
    assert headers.magic.tolist() == [0, 0]
    # what we write of the same rows holds the same
    ours = b.stored(expected.to_batches()[0], 0, codec=codec)
    again = LogDecoder({1: expected.schema}, expected.schema)
    assert (
        again.decode_table(ours, scan_headers(ours))
        .to_batches()[0]
        .equals(expected.to_batches()[0])
    )


def decoder() -> LogDecoder:
    return LogDecoder({1: b.SCHEMA}, b.SCHEMA)


def three() -> bytes:
    return log(b.stored(b.rows(0, 5), 10), b.stored(b.rows(5, 5), 15), b.stored(b.rows(10, 5), 20))


@pytest.mark.parametrize("start", range(8, 28))
@pytest.mark.parametrize("stop", [None, 9, 10, 13, 15, 18, 20, 24, 25, 30])
def test_rows_outside_the_offsets_are_left_out(start: int, stop: int | None) -> None:
    raw = three()
    headers = scan_headers(raw)
    end = 25 if stop is None else stop
    expected = [i - 10 for i in range(10, 25) if start <= i < end]
    made = decoder()
    table = made.decode_table(raw, headers, start_offset=start, stop_offset=stop)
    assert table.column("id").to_pylist() == expected
    assert table.schema.equals(b.SCHEMA)
    parts = made.decode(raw, headers, start_offset=start, stop_offset=stop)
    assert [i for p in parts for i in p.batch.column("id").to_pylist()] == expected
    offsets = [p.base_offset + i for p in parts for i in range(p.batch.num_rows)]
    assert offsets == [i + 10 for i in expected]
    assert all(p.batch.num_rows for p in parts)


def test_a_range_of_batches() -> None:
    raw = three()
    headers = scan_headers(raw)
    assert decoder().decode_table(raw, headers, 1, 2).column("id").to_pylist() == [5, 6, 7, 8, 9]
    assert decoder().decode_table(raw, headers, 3, 3).num_rows == 0
    assert decoder().decode(raw, headers, 1, 1) == []


def test_timestamps_belong_to_batches() -> None:
    raw = log(b.stored(b.rows(0, 2), 0, timestamp=111), b.stored(b.rows(2, 2), 2, timestamp=222))
    parts = decoder().decode(raw, scan_headers(raw))
    assert [p.timestamp for p in parts] == [111, 222]
    assert all(p.change_types is None for p in parts)


def test_change_types_and_batches_without_rows() -> None:
    raw = log(
        b.changelog(b.rows(0, 4), 0, [1, 2, 3, 4]),
        b.empty(4),
        b.changelog(b.rows(4, 2), 5, [1, 1]),
        b.stored(b.rows(6, 1), 7),
    )
    headers = scan_headers(raw)
    verify_crcs(raw, headers)
    assert headers.append_only.tolist() == [False, False, False, True]
    assert headers.end_offset == 8
    parts = decoder().decode(raw, headers, start_offset=1)
    assert [p.base_offset for p in parts] == [1, 5, 7]
    kinds = [None if p.change_types is None else p.change_types.to_pylist() for p in parts]
    assert kinds == [[2, 3, 4], [1, 1], None]
    table = decoder().decode_table(raw, headers)
    assert table.column("id").to_pylist() == list(range(7))


def test_schema_evolution_fills_missing_columns_and_reorders() -> None:
    new = pa.schema([("id", pa.int64()), ("name", pa.string()), ("extra", pa.float64())])
    later = pa.record_batch([[9], ["z"], [1.5]], schema=new)
    raw = log(b.stored(b.rows(0, 2), 0), b.stored(b.rows(2, 2), 2), b.stored(later, 4, schema_id=2))
    target = pa.schema([("extra", pa.float64()), ("id", pa.int64())])
    made = LogDecoder({1: b.SCHEMA, 2: new}, target)
    headers = scan_headers(raw)
    table = made.decode_table(raw, headers)
    assert table.to_pydict() == {"extra": [None] * 4 + [1.5], "id": [0, 1, 2, 3, 9]}
    parts = made.decode(raw, headers, start_offset=1)
    assert [p.batch.to_pydict() for p in parts] == [
        {"extra": [None], "id": [1]},
        {"extra": [None] * 2, "id": [2, 3]},
        {"extra": [1.5], "id": [9]},
    ]


def test_strings_and_binary_data_as_views() -> None:
    values = ["", "ä€😀", "more than twelve bytes", None] * 3
    columns = {
        "n": pa.array(range(12)),
        "s": pa.array(values),
        "b": pa.array(values).cast(pa.binary()),
        "l": pa.array([[v] for v in values]),
    }
    batch = pa.record_batch(columns)
    raw = log(b.stored(batch, 0), b.stored(batch, 12))
    headers = scan_headers(raw)
    plain = LogDecoder({1: batch.schema}, batch.schema).decode_table(raw, headers, start_offset=5)
    views = LogDecoder({1: batch.schema}, batch.schema, views=True)
    found = views.decode_table(raw, headers, start_offset=5)
    kinds = [pa.int64(), pa.string_view(), pa.binary_view(), pa.list_(pa.string())]
    assert found.schema.types == kinds
    assert found.cast(plain.schema).equals(plain)
    assert views.decode_table(raw, headers, start_offset=24).num_rows == 0


def test_a_projected_payload() -> None:
    projected = pa.schema([("name", pa.string())])
    raw = b.stored(b.rows(0, 3).select(["name"]), 0)
    made = LogDecoder({1: projected}, projected)
    assert made.decode_table(raw, scan_headers(raw)).to_pydict() == {"name": ["n0", "n1", "n2"]}


def test_a_target_without_columns_still_counts_rows() -> None:
    raw = three()
    headers = scan_headers(raw)
    made = LogDecoder({1: b.SCHEMA}, pa.schema([]))
    for start, count in ((0, 15), (12, 13), (25, 0)):
        table = made.decode_table(raw, headers, start_offset=start)
        assert (table.num_rows, table.num_columns) == (count, 0)
    parts = made.decode(raw, headers, start_offset=12)
    assert [p.batch.num_rows for p in parts] == [3, 5, 5]


def test_unknown_schema_ids_and_types() -> None:
    raw = b.stored(b.rows(0, 3), 0, schema_id=9)
    with pytest.raises(FlussError, match="schema 9") as raised:
        decoder().decode_table(raw, scan_headers(raw))
    assert raised.value.error_code == ErrorCode.SCHEMA_NOT_EXIST
    with pytest.raises(FlussError, match="column 'id'"):
        LogDecoder({1: b.SCHEMA}, pa.schema([("id", pa.int32())]))


@pytest.mark.parametrize("codec", CODECS)
def test_results_do_not_refer_to_the_receive_buffer(codec: str) -> None:
    raw = bytearray(b.stored(b.rows(0, 1000), 0, codec=codec))
    headers = scan_headers(memoryview(raw))
    table = decoder().decode_table(memoryview(raw), headers)
    parts = decoder().decode(memoryview(raw), headers)
    raw[:] = b"\xee" * len(raw)
    assert table.to_batches()[0].equals(b.rows(0, 1000))
    assert parts[0].batch.equals(b.rows(0, 1000))


def test_many_small_batches_in_threads() -> None:
    raw = b"".join(b.stored(b.rows(i * 50, 50), i * 50) for i in range(4000))
    headers = scan_headers(raw)
    made = decoder()
    with ThreadPoolExecutor(2) as pool:
        tables = list(
            pool.map(lambda part: made.decode_table(raw, headers, *part), [(0, 2000), (2000, 4000)])
        )
    ids = np.concatenate([t.column("id").to_numpy() for t in tables])
    assert (ids == np.arange(200_000)).all()


def hostile_payloads() -> dict[str, bytes]:
    good = b.stored(b.rows(0, 3), 0, codec="none")
    message = good[48:]
    other = encode_log_batch(
        pa.record_batch({"x": pa.array([1, 2, 3], pa.int8())}),
        schema_id=1, compression=Compression("none"),
    ).to_bytes()[48:]  # fmt: skip
    fewer = b.stored(b.rows(0, 2), 0, codec="none")[48:]
    metadata = int.from_bytes(message[4:8], "little")
    reversed_offsets = bytearray(message)
    body = 8 + metadata
    at = message.index(struct.pack("<4i", 0, 2, 4, 6), body)
    struct.pack_into("<4i", reversed_offsets, at, 0, 5, 1, 6)
    wild_offsets = bytearray(message)
    struct.pack_into("<4i", wild_offsets, at, 0, 2, 4, 2**31 - 1)
    no_utf8 = bytearray(message)
    no_utf8[message.index(b"n0n1", body)] = 0xFF
    return {
        "nothing": b"",
        "an end of stream": b"\xff\xff\xff\xff\x00\x00\x00\x00",
        "zeros": bytes(64),
        "noise": bytes(range(256)) * 4,
        "a schema": b.SCHEMA.serialize().to_pybytes(),
        "other columns": other,
        "fewer rows": fewer,
        "two messages": message + message,
        "cut off": message[:-8],
        "metadata cut off": message[:40],
        "offsets out of order": bytes(reversed_offsets),
        "offsets out of range": bytes(wild_offsets),
        "not UTF-8": bytes(no_utf8),
    }


@pytest.mark.parametrize("what", hostile_payloads())
def test_payloads_that_are_no_such_batch(what: str) -> None:
    head = bytearray(b.stored(b.rows(0, 3), 0, codec="none")[:48])
    raw = head + hostile_payloads()[what]
    struct.pack_into("<i", raw, 8, len(raw) - 12)
    after = b.stored(b.rows(3, 3), 3)
    for data in (bytes(raw), bytes(raw) + after):
        headers = scan_headers(data)
        with pytest.raises(ProtocolError, match="offsets 0 to"):
            decoder().decode_table(data, headers)
        with pytest.raises(ProtocolError):
            decoder().decode(data, headers)


@pytest.mark.parametrize("claimed", [2**62, 2**40, -2, 2**33, 1])
@pytest.mark.parametrize("codec", ["zstd", "lz4_frame"])
def test_claims_about_the_decompressed_size(claimed: int, codec: str) -> None:
    raw = bytearray(b.stored(b.rows(0, 1000), 0, codec=codec))
    at = raw.index(struct.pack("<q", 8000))
    struct.pack_into("<q", raw, at, claimed)
    with pytest.raises(ProtocolError):
        decoder().decode_table(bytes(raw), scan_headers(bytes(raw)))


def wide(count: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "b": generator.random(count) > 0.5,
        "i": generator.integers(-(2**62), 2**62, count),
        "f": generator.random(count),
        "s": [str(x) if x % 3 else None for x in generator.integers(0, 999, count)],
    }


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1023, 70_000])
@pytest.mark.parametrize("codec", CODECS)
def test_round_trips(count: int, codec: str) -> None:
    batch = pa.RecordBatch.from_pydict(wide(count, count))
    raw = b.stored(batch, 0, codec=codec)
    made = LogDecoder({1: batch.schema}, batch.schema)
    assert made.decode_table(raw, scan_headers(raw)).to_batches()[0].equals(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_large_messages_are_read_where_they_are(codec: str) -> None:
    values = np.random.default_rng(3).integers(0, 2**62, 60_000)
    parts = [
        pa.record_batch([values[at : at + 20_000], values[at : at + 20_000].astype(str)], b.SCHEMA)
        for at in range(0, 60_000, 20_000)
    ]
    raw = pa.py_buffer(
        b"".join(b.stored(part, 20_000 * i, codec=codec) for i, part in enumerate(parts))
    )
    headers = scan_headers(raw)
    checked = CheckedColumns()
    window: dict[str, Any] = {"start_offset": 10, "stop_offset": 50_001}
    for target in (b.SCHEMA, b.SCHEMA.remove(0), b.SCHEMA.remove(1)):
        decoder = LogDecoder({1: b.SCHEMA}, target)
        kept = decoder.decode_table(raw, headers, checked=checked, **window)
        assert kept.equals(decoder.decode_table(raw, headers, **window))
        kept.validate(full=True)
    if codec == "none":
        decoder = LogDecoder({1: b.SCHEMA}, b.SCHEMA.remove(1))
        ids = decoder.decode_table(raw, headers, checked=checked)
        _, data = ids.column(0).chunk(0).buffers()
        assert data is not None
        assert raw.address < data.address < raw.address + raw.size


def test_values_of_a_log_that_never_changes_are_checked_once() -> None:
    """Each column of each run of batches; shown by a log that does change."""
    size = 30_000
    batch = pa.record_batch([np.arange(size), np.full(size, "abc")], b.SCHEMA)
    raw = bytearray(b.stored(batch, 0, codec="none") + b.stored(batch, size, codec="none"))
    headers = scan_headers(raw)
    broken = [bytes(raw).index(b"abcabc"), bytes(raw).rindex(b"abcabc")]

    def read(columns: list[int], checked: CheckedColumns, first: int, last: int) -> None:
        target = pa.schema([b.SCHEMA.field(i) for i in columns])
        decoder = LogDecoder({1: b.SCHEMA}, target)
        table = decoder.decode_table(pa.py_buffer(raw), headers, first, last, checked=checked)
        assert table.num_rows == size * (last - first)

    checked, numbers = CheckedColumns(), CheckedColumns()
    read([0, 1], checked, 0, 1)
    read([0], numbers, 0, 1)
    raw[broken[0]] = raw[broken[1]] = 0xFF
    read([0, 1], checked, 0, 1)
    read([1], checked, 0, 1)
    for unseen, first, last in ((checked, 1, 2), (checked, 0, 2), (numbers, 0, 1)):
        for _ in range(2):
            with pytest.raises(ProtocolError, match="UTF8"):
                read([1], unseen, first, last)
    read([0], checked, 1, 2)


def test_other_batches_between_the_same_offsets_were_not_checked() -> None:
    """As two filters leave them out: of three batches between others, each time another one."""
    size = 10_000
    batch = pa.record_batch([np.arange(size), np.full(size, "abc")], b.SCHEMA)
    parts = [bytearray(b.stored(batch, at * size, codec="none")) for at in range(4)]
    parts[2][bytes(parts[2]).index(b"abcabc")] = 0xFF
    checked = CheckedColumns()

    def read(*chosen: int) -> None:
        raw = pa.py_buffer(b"".join(bytes(parts[i]) for i in chosen))
        decoder = LogDecoder({1: b.SCHEMA}, b.SCHEMA)
        decoder.decode_table(raw, scan_headers(raw), checked=checked)

    read(0, 1, 3)
    with pytest.raises(ProtocolError, match="UTF8"):
        read(0, 2, 3)


def test_headers_of_more_batches_than_are_taken_at_once() -> None:
    batch = bytearray(b.stored(b.rows(0, 1), 0, codec="none"))
    raw = bytearray(batch * 10_001)
    for i in range(10_001):
        struct.pack_into("<q", raw, i * len(batch), i)
    headers = scan_headers(raw)
    assert headers.base_offset.tolist() == list(range(10_001))
    assert set(headers.size.tolist()) == {len(batch)}
    assert headers.rows == 10_001


@pytest.mark.parametrize("seed", range(40))
def test_damage_in_large_messages_is_an_error_or_other_rows(seed: int) -> None:
    choose = random.Random(seed)
    values = np.arange(20_000)
    batch = pa.record_batch([values, values.astype(str)], b.SCHEMA)
    raw = bytearray(b.stored(batch, 0, codec=choose.choice(["none", "zstd"])))
    for _ in range(choose.randrange(1, 4)):
        # mostly in the metadata, where lengths and offsets are
        raw[choose.randrange(48, choose.choice([300, 300, len(raw)]))] = choose.randrange(256)
    with contextlib.suppress(ProtocolError):
        table = LogDecoder({1: b.SCHEMA}, b.SCHEMA).decode_table(
            pa.py_buffer(bytes(raw)), scan_headers(raw), checked=CheckedColumns()
        )
        assert table.num_rows == 20_000
        table.validate(full=True)
