"""Small chunks of several buckets that are decoded as one give what each gives alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import fluss_df as fluss
from fluss_df.client.fetch.chunk_read import ChunkRead
from fluss_df.client.fetch.parallel import ParallelRead
from fluss_df.client.fetch.position import Chunk, Position
from fluss_df.client.fetch.small_chunks import Room
from fluss_df.client.fetch.table_decoder import METADATA_FIELDS, TableDecoder
from fluss_df.client.runtime.metrics import ScanMetrics
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket
from fluss_df.record.layout.headers import LogHeaders, scan_headers
from tests.client.support import Tables
from tests.record.batches import rows, stored

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64()), ("text", pa.string())])
BUCKETS = 3
WRITES = 3
BATCH = stored(rows(0, 5), 0)


@pytest.fixture(scope="module", params=["arrow", "indexed"])
def table(request: pytest.FixtureRequest, tables: Tables) -> fluss.FlussTable:
    """A table of many small buckets, some of them empty, each of a few log batches."""
    table = tables(
        SCHEMA,
        partition_keys=["day"],
        bucket_keys=["id"],
        bucket_count=BUCKETS,
        properties={"table.log.format": request.param},
    )
    admin = tables.connection.get_admin()
    for day in range(30):
        admin.create_partition(table.get_table_path(), {"day": f"d{day:02}"})
    rng = np.random.default_rng(7)
    with table.new_append().create_writer() as writer:
        for _ in range(WRITES):
            days = [f"d{day:02}" for day in range(30) if day % 7 for _ in range(day)]
            ids = rng.integers(0, 5, len(days))
            writer.write_arrow(pa.table([days, ids, [f"ü{i}" for i in ids]], schema=SCHEMA))
            writer.flush()
    return table


def positions(table: fluss.FlussTable, tables: Tables, lack: int = 0) -> list[Position]:
    """Return all buckets with rows, every third one without ``lack`` offsets at both its ends."""
    info = table.get_table_info()
    found: list[Position] = []
    admin = tables.connection.get_admin()
    path = table.get_table_path()
    for name, partition in sorted(tables.partitions(table).items()):
        ends = admin.list_partition_offsets(
            path, name, list(range(BUCKETS)), fluss.OffsetSpec.latest()
        )
        for bucket, end in ends.items():
            cut = 0 if len(found) % 3 else lack
            if end > 2 * cut:
                where = TableBucket(info.table_id, bucket, partition)
                found.append(Position(where, name, cut, end - cut))
    return found


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("lack", [0, 2])
@pytest.mark.parametrize("columns", [SCHEMA.names, ["text"], []])
def test_many_buckets_are_what_each_of_them_is(
    table: fluss.FlussTable, tables: Tables, lack: int, columns: list[str], views: bool
) -> None:
    names = tuple(METADATA_FIELDS)

    def read(apart: bool) -> list[pa.Table]:
        info, where = table.get_table_info(), positions(table, tables, lack)
        read = ParallelRead[pa.Table](
            tables.connection,
            info,
            columns,
            names,
            where,
            ScanMetrics(),
            lambda rows: rows,
            ahead_bytes=None,
            views=views,
            apart=apart,
        )
        with read:
            return [found for found in read if found is not None]

    together, alone = read(apart=False), read(apart=True)
    assert len(together) < len(alone) / 3
    joined = pa.concat_tables(together)
    joined.validate(full=True)
    assert joined.equals(pa.concat_tables(alone))
    assert joined.num_rows > 800


def test_a_scan_has_every_row_once(table: fluss.FlussTable, tables: Tables) -> None:
    found = pl.scan_fluss(  # type: ignore[attr-defined]
        str(table.get_table_path()), connection=tables.connection, include_metadata=True
    ).collect()
    assert found.height == WRITES * sum(day for day in range(30) if day % 7)
    assert (found["day"] == found["_partition"]).all()
    assert found.select("_partition", "_bucket", "_log_offset").is_unique().all()
    assert (found["text"] == "ü" + found["id"].cast(pl.String)).all()


@pytest.mark.parametrize(
    "part",
    [
        lambda rows: rows.head(150),
        lambda rows: rows.tail(150),
        lambda rows: rows.slice(50, 200),
        lambda rows: rows.filter(pl.col("_log_offset").is_between(1, 7)),
    ],
)
def test_parts_of_a_scan(table: fluss.FlussTable, tables: Tables, part: Any) -> None:
    """Texts and bytes come as views, of which Arrow computes less than of others."""
    rows = pl.scan_fluss(  # type: ignore[attr-defined]
        str(table.get_table_path()), connection=tables.connection, include_metadata=True
    )
    assert_frame_equal(part(rows).collect(), part(rows.collect().lazy()).collect())


def test_damage_among_rows_that_are_not_wanted(table: fluss.FlussTable, tables: Tables) -> None:
    """Joined chunks are decoded with what is behind a stop: it does not fail what is wanted."""
    chunks = next(chunks_of(table, tables))
    position, chunk = chunks[7]
    assert len(chunk.headers) > 1
    broken = bytearray(chunk.records)
    at = int(chunk.headers.payload[-1])
    broken[at : at + 8] = b"\xff" * 8
    chunks[7] = position, Chunk(pa.py_buffer(broken), chunk.headers, chunk.start, projected=True)
    chunks = [(p, Chunk(c.records, c.headers, c.start, projected=True)) for p, c in chunks]
    position.stop = int(chunk.headers.base_offset[-1])
    decoder = TableDecoder(
        tables.connection, table.get_table_info(), SCHEMA.names, (), ScanMetrics(), views=True
    )
    (decode,) = decoder.pieces(chunks)
    rows = sum(c.headers.rows for _, c in chunks) - int(chunk.headers.record_count[-1])
    assert decode().num_rows == rows


def test_rows_without_columns_are_counted_where_one_by_one_is_needed(
    table: fluss.FlussTable, tables: Tables
) -> None:
    chunks = next(chunks_of(table, tables))
    decoder = TableDecoder(tables.connection, table.get_table_info(), (), (), ScanMetrics())
    (decode,) = decoder.pieces(chunks)
    decode_part, calls = decoder._table, 0

    def table_of(part: Any) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise FlussError("a schema could not be asked for")
        return decode_part(part)

    decoder._table = table_of  # type: ignore[method-assign]
    assert decode().num_rows == sum(c.headers.rows for _, c in chunks)
    assert calls > 1


def test_views_stay_views_beside_metadata_columns(table: fluss.FlussTable, tables: Tables) -> None:
    chunks = next(chunks_of(table, tables))
    decoder = TableDecoder(
        tables.connection,
        table.get_table_info(),
        SCHEMA.names,
        tuple(METADATA_FIELDS),
        ScanMetrics(),
        views=True,
    )
    (decode,) = decoder.pieces(chunks)
    found = decode().schema
    assert found.names == [*SCHEMA.names, *METADATA_FIELDS]
    if table.get_table_info().log_format == "arrow":
        assert found.field("text").type == pa.string_view()


def test_small_chunks_that_become_large_are_decoded_apart(tables: Tables) -> None:
    schema = pa.schema([("line", pa.string())])
    table = tables(schema, bucket_count=8)
    lines = pa.table([["the same words " * 3000] * 200], schema=schema)
    with table.new_append().create_writer() as writer:
        for _ in range(16):
            writer.write_arrow(lines)
            writer.flush()
    info = table.get_table_info()
    admin = tables.connection.get_admin()
    ends = admin.list_offsets(table.get_table_path(), list(range(8)), fluss.OffsetSpec.latest())
    where = [
        Position(TableBucket(info.table_id, b), None, 0, end) for b, end in ends.items() if end
    ]
    read = ParallelRead[int](
        tables.connection,
        info,
        ["line"],
        (),
        where,
        ScanMetrics(),
        lambda rows: rows.nbytes,
        ahead_bytes=None,
    )
    with read:
        sizes = [size for size in read if size is not None]
    assert sum(sizes) > 16 * 200 * 45_000
    # a batch of the log is decoded whole
    assert max(sizes) <= 2 * 200 * 45_100


def chunks_of(
    table: fluss.FlussTable, tables: Tables, apart: bool = False
) -> Iterator[list[tuple[Position, Chunk]]]:
    return ChunkRead(
        tables.connection,
        table.get_table_info(),
        None,
        positions(table, tables),
        ScanMetrics(),
        apart=apart,
    ).steps()


def test_a_broken_bucket_among_others_is_told_as_alone(
    table: fluss.FlussTable, tables: Tables
) -> None:
    chunks = next(chunks_of(table, tables))
    assert len(chunks) > 10
    position, chunk = chunks[7]
    broken = bytearray(chunk.records)
    # the row's or the message's length
    at = int(chunk.headers.payload[0])
    broken[at : at + 8] = b"\xff" * 8
    # so that the checksum does not tell it first
    chunks[7] = position, Chunk(pa.py_buffer(broken), chunk.headers, chunk.start, projected=True)
    chunks = [(p, Chunk(c.records, c.headers, c.start, projected=True)) for p, c in chunks]
    decoder = TableDecoder(
        tables.connection, table.get_table_info(), SCHEMA.names, (), ScanMetrics()
    )
    messages = []
    for part in (chunks, [chunks[7]]):
        (decode,) = decoder.pieces(part)
        with pytest.raises(FlussError) as caught:
            decode()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    (decode,) = decoder.pieces(chunks[:7])
    assert decode().num_rows == sum(c.headers.rows for _, c in chunks[:7])


def chunk_of(records: bytes) -> Chunk:
    return Chunk(pa.py_buffer(records), scan_headers(records), 0, projected=False)


@pytest.mark.parametrize(
    ("chunk", "taken"),
    [
        (chunk_of(BATCH), True),
        (chunk_of(BATCH + BATCH[:30]), True),
        (chunk_of(stored(rows(0, 100_000), 0)), False),
    ],
)
def test_only_small_chunks_are_taken(chunk: Chunk, taken: bool) -> None:
    assert Room().takes(chunk) == taken


@pytest.mark.parametrize(
    ("full", "what"), [({"size": 1 << 20}, "bytes"), ({"rows": 16_380}, "rows")]
)
def test_there_is_room_for_some(full: dict[str, int], what: str) -> None:
    room = Room(**full)
    assert not room.takes(chunk_of(BATCH)), what
    assert room == Room(**full)


def test_headers_are_joined_without_what_was_cut_off() -> None:
    parts = [BATCH, BATCH + stored(rows(5, 3), 5), stored(rows(0, 2), 40)]
    joined = LogHeaders.joined([scan_headers(part + BATCH[:20]) for part in parts])
    whole = scan_headers(b"".join(parts), ascending=False)
    for field in fields(LogHeaders):
        found: Any = getattr(joined, field.name)
        assert np.array_equal(found, getattr(whole, field.name)), field.name
