"""Batch statistics on the disk: segments that are passed over, damage, statistics that are none."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss, EngineOptions
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.pushdown.batch_filter import BatchFilter
from fluss_df.record.layout.headers import CRC_START, scan_headers
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from fluss_df.record.log.statistics import encode_statistics
from fluss_df.schema import Schema
from tests.client.test_server_filter import fetch, fetched, leaf, number
from tests.embedded.raw import RawClient

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
PATH = fluss.TablePath("fluss", "t")
BATCHES, ROWS = 40, 50
#: each batch is a segment
SMALL = EngineOptions(segment_bytes=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table whose batches have statistics."""
    with EmbeddedFluss(tmp_path / "d", options=SMALL) as engine, engine.connection() as connection:
        properties = {"table.statistics.columns": "*", "table.log.arrow.compression.type": "NONE"}
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA), bucket_count=1, properties=properties
        )
        connection.get_admin().create_table(PATH, descriptor)
        with connection.get_table(PATH).new_append().create_writer() as writer:
            for first in range(0, BATCHES * ROWS, ROWS):
                rows = range(first, first + ROWS)
                writer.write_arrow(
                    pa.table({"n": rows, "text": [f"row {i:08}" for i in rows]}, schema=SCHEMA)
                )
                writer.flush()
    return tmp_path / "d"


@pytest.fixture
def engine(folder: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(folder, port=0, options=SMALL) as engine:
        yield engine


def test_segments_without_rows_are_passed_over(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        request = fetch(connection.get_table(PATH))
        request.tables_req[0].filter_schema_id = 1
        request.tables_req[0].filter_predicate.CopyFrom(leaf(0, number(620)))
        assert fetched(engine.address, request) == (0, [600], None)
        # but not the whole log in one request
        request.tables_req[0].filter_predicate.CopyFrom(leaf(0, number(1_900)))
        assert fetched(engine.address, request) == (0, [], 16 * ROWS)
        frame = fluss.scan_fluss(PATH, connection=connection)
        found = frame.filter(pl.col("n").is_in([3, 1_900])).collect()
        assert found["text"].to_list() == ["row 00000003", "row 00001900"]
        report = fluss.last_scan()
        assert report is not None
        assert report.batches == 2


def test_statistics_survive_a_restart(folder: Path) -> None:
    assert check_folder(folder).findings == []
    for path in folder.rglob("*.index"):
        path.unlink()
    with EmbeddedFluss(folder, options=SMALL) as engine, engine.connection() as connection:
        assert fluss.scan_fluss(PATH, connection=connection).collect()["n"].to_list() == list(
            range(BATCHES * ROWS)
        )


def test_damaged_statistics_hide_no_rows(folder: Path) -> None:
    segment = sorted(folder.rglob("*.log"))[3]
    with segment.open("r+b") as file:
        file.seek(52 + 3 + 4 + 8 + 4 + 8)  # the smallest number of the first column
        file.write(struct.pack("<q", 10**9))
    with EmbeddedFluss(folder, port=0, options=SMALL) as engine:
        with engine.connection() as connection:
            request = fetch(connection.get_table(PATH))
        request.tables_req[0].filter_schema_id = 1
        request.tables_req[0].filter_predicate.CopyFrom(leaf(0, number(3 * ROWS)))
        assert fetched(engine.address, request) == (ErrorCode.UNKNOWN_SERVER_ERROR, [], None)


def test_statistics_that_are_none_keep_their_batch() -> None:
    """Whatever stands in the place of statistics: a verdict, and never an exception."""
    choose = random.Random(5)
    schema = Schema.from_json(Schema(SCHEMA).to_json())
    batch = pa.record_batch({"n": range(ROWS), "text": ["x" * 20] * ROWS}, schema=SCHEMA)
    good = encode_statistics(batch, schema.columns)
    filters = [
        BatchFilter(predicate, 1, {1: schema})
        for predicate in (
            leaf(0, number(99)),
            leaf(8, pb.LiteralValue(literal_type=8, is_null=False, string_value="y"), field=1),
        )
    ]
    assert [found.keeps(1, ROWS, memoryview(good)) for found in filters] == [False, False]
    assert all(found.keeps(1, ROWS, memoryview(b"")) for found in filters)
    for _ in range(20_000):
        bad = bytearray(good)
        for _ in range(choose.randrange(1, 5)):
            bad[choose.randrange(len(bad))] = choose.randrange(256)
        del bad[choose.randrange(len(bad)) if choose.random() < 0.3 else len(bad) :]
        for found in filters:
            assert found.keeps(1, ROWS, memoryview(bytes(bad))) in (True, False)
    for length in range(40):
        # too short for two rows of values
        assert all(found.keeps(1, ROWS, memoryview(good[:length])) for found in filters)


def test_a_projection_leaves_the_statistics_behind(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        request = fetch(connection.get_table(PATH), 0, [0])
        query = fluss.scan_fluss(PATH, connection=connection).select("n")
        with fluss.track_scans() as reports:
            assert query.collect()["n"].to_list() == list(range(BATCHES * ROWS))
    with RawClient(engine.address) as client:
        client.hello()
        answer = client.call(api.FETCH_LOG, request)
    records = answer.tables_resp[0].buckets_resp[0].records
    headers = scan_headers(records)
    assert headers.magic.tolist() == [1]
    assert (headers.payload - headers.position).tolist() == [52]
    # in process nothing is cut, and what is counted is the same
    (report,) = reports
    assert BATCHES * len(records) <= report.bytes_received < BATCHES * (len(records) + 60)


def test_batches_of_magic_2_are_refused(engine: EmbeddedFluss) -> None:
    batch = pa.record_batch({"n": range(3), "text": ["x"] * 3}, schema=SCHEMA)
    encoded = encode_log_batch(batch, schema_id=1, compression=Compression("none"))
    encoded.stamp(-1, -1)
    data = bytearray(encoded.to_bytes())
    data[12] = 2
    data[CRC_START - 4 : CRC_START] = google_crc32c.value(bytes(data[CRC_START:])).to_bytes(
        4, "little"
    )
    tablet = engine.engine.bucket(engine.engine.all_buckets()[0])[1]
    with pytest.raises(FlussError) as caught:
        tablet.append(memoryview(bytes(data)), {1: None})
    assert caught.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
