"""Requests that name one bucket or one column again and again: what is asked once is done once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.embedded import EmbeddedFluss
from fluss_df.engine.lake import lake_of_table
from fluss_df.engine.requests import data_requests, dispatch, filtered_read
from fluss_df.errors import ErrorCode
from fluss_df.protocol import api
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.pushdown.batch_filter import BatchFilter
from fluss_df.record.kv.kv_batch import KvEncoder
from tests.client.support import Tables
from tests.client.test_server_filter import leaf, number
from tests.embedded.raw import RawClient

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BATCHES, ROWS = 20, 50
MANY = 2_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedFluss]:
    with EmbeddedFluss(tmp_path / "data", port=0) as engine:
        yield engine


def make_log(engine: EmbeddedFluss, buckets: int = 1) -> int:
    """Return the id of a log with statistics, which has rows in each bucket."""
    with engine.connection() as connection:
        table = Tables(connection, "fluss")(
            SCHEMA, bucket_count=buckets, properties={"table.statistics.columns": "*"}
        )
        with table.new_append().create_writer() as writer:
            for first in range(0, BATCHES * ROWS, ROWS):
                ids = range(first, first + ROWS)
                writer.write_arrow(pa.table({"id": ids, "text": ["x"] * ROWS}, schema=SCHEMA))
                writer.flush()
        return table.get_table_info().table_id


def fetch(table_id: int, offsets: list[tuple[int, int]], **asked: Any) -> pb.FetchLogRequest:
    """Return a fetch of buckets from offsets on."""
    table = pb.FetchLogRequestForTable(
        table_id=table_id,
        projection_pushdown_enabled="projected_fields" in asked,
        buckets_req=[
            pb.FetchLogRequestForBucket(bucket_id=bucket, fetch_offset=at, max_fetch_bytes=1 << 20)
            for bucket, at in offsets
        ],
        **asked,
    )
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=1 << 20, max_wait_ms=0, tables_req=[table]
    )


def no_row() -> dict[str, Any]:
    """Return a filter that no row passes."""
    return {"filter_schema_id": 1, "filter_predicate": leaf(0, number(-5))}


def answers(engine: EmbeddedFluss, request: pb.FetchLogRequest) -> list[Any]:
    with RawClient(engine.address, 60) as client:
        response = client.call(api.FETCH_LOG, request)
    return [bucket for table in response.tables_resp for bucket in table.buckets_resp]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_bucket_is_read_once(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    """The last wish for it counts, of whatever part of the request; as in Fluss."""
    table_id = make_log(engine)
    made = 0

    class Counting(BatchFilter):
        def __init__(self, *arguments: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*arguments)

    monkeypatch.setattr(data_requests, "BatchFilter", Counting)
    more = no_row() if filtered else {}
    request = fetch(table_id, [(0, 0)] * MANY + [(0, (BATCHES - 1) * ROWS)], **more)
    request.tables_req.insert(0, fetch(table_id, [(0, 0)] * MANY).tables_req[0])
    (found,) = answers(engine, request)
    assert found.error_code == 0
    assert found.high_watermark == BATCHES * ROWS
    if filtered:
        assert (found.filtered_end_offset, found.records) == (BATCHES * ROWS, b"")
        assert made == 1
    else:
        (last,) = answers(engine, fetch(table_id, [(0, (BATCHES - 1) * ROWS)]))
        assert found.records == last.records


def test_a_filter_is_read_once_for_many_buckets(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = make_log(engine, 8)
    made = 0

    class Counting(BatchFilter):
        def __init__(self, *arguments: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*arguments)

    monkeypatch.setattr(data_requests, "BatchFilter", Counting)
    found = answers(engine, fetch(table_id, [(bucket, 0) for bucket in range(8)], **no_row()))
    assert [bucket.bucket_id for bucket in found] == list(range(8))
    assert not any(bucket.error_code or bucket.records for bucket in found)
    assert made == 1


def test_what_filters_leave_out_counts_for_all_buckets(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too much was looked at, buckets are not; the client goes on with them."""
    table_id = make_log(engine, 4)
    monkeypatch.setattr(filtered_read, "_MOST_BYTES", 1)
    offsets = dict.fromkeys(range(4), 0)
    ends: dict[int, int] = {}
    calls = 0
    while len(ends) < 4:
        request = fetch(table_id, list(offsets.items()), **no_row())
        request.max_wait_ms = 30_000
        request.min_bytes = 1
        begun = time.monotonic()
        found = answers(engine, request)
        # it does not wait for rows
        assert time.monotonic() - begun < 10
        looked_at = [bucket for bucket in found if bucket.HasField("filtered_end_offset")]
        assert len(looked_at) == 1
        assert not any(bucket.error_code or bucket.records for bucket in found)
        for bucket in looked_at:
            offsets[bucket.bucket_id] = bucket.filtered_end_offset
        for bucket in found:
            if offsets[bucket.bucket_id] == bucket.high_watermark:
                ends[bucket.bucket_id] = offsets.pop(bucket.bucket_id)
        calls += 1
    assert sum(ends.values()) == BATCHES * ROWS
    assert calls <= 8


def test_a_filtered_scan_of_many_buckets_goes_on(
    engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(engine, 4)
    monkeypatch.setattr(filtered_read, "_MOST_BYTES", 1)
    with engine.connection() as connection:
        (name,) = connection.get_admin().list_tables("fluss")
        frame = fluss.scan_fluss(name, connection=connection)
        found = frame.filter(pl.col("id") == 7).collect()
    assert found["id"].to_list() == [7]


def test_a_refused_projection_is_told_in_few_words(engine: EmbeddedFluss) -> None:
    table_id = make_log(engine, 8)
    offsets = [(bucket, 0) for bucket in range(8)]
    for columns, shown in (
        ([1, 0], "[1, 0]"),
        ([0] * 20, f"[{', '.join('0' * 20)}]"),
        ([0] * MANY, f"[{', '.join('0' * 20)}, and 1,980 more]"),
    ):
        found = answers(engine, fetch(table_id, offsets, projected_fields=columns))
        assert [bucket.error_code for bucket in found] == [34] * 8
        assert all(bucket.error_message.endswith(f"but is {shown}") for bucket in found)


def test_offsets_of_a_bucket_are_looked_for_once(engine: EmbeddedFluss) -> None:
    table_id = make_log(engine)
    request = pb.ListOffsetsRequest(
        follower_server_id=-1,
        offset_type=2,
        start_timestamp=1,
        table_id=table_id,
        bucket_id=[0, 5] * MANY,
    )
    with RawClient(engine.address, 60) as client:
        found = client.call(api.LIST_OFFSETS, request).buckets_resp
    assert [(bucket.bucket_id, bucket.offset) for bucket in found if not bucket.error_code] == [
        (0, 0)
    ]
    assert [bucket.bucket_id for bucket in found if bucket.error_code] == [5]


def test_a_table_is_described_once(engine: EmbeddedFluss, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(engine)
    with engine.connection() as connection:
        (table,) = connection.get_admin().list_tables("fluss")
    plain, calls = lake_of_table.shown, 0

    def shown(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*arguments)

    monkeypatch.setattr(dispatch, "shown", shown)
    name = pb.PathOfTable(database_name="fluss", table_name=table)
    with RawClient(engine.address, 60) as client:
        request = pb.MetadataRequest(table_path=[name] * MANY)
        found = client.call(api.GET_METADATA, request).table_metadata
    assert len(found) == MANY
    assert len({each.table_json for each in found}) == 1
    assert calls == 1


def test_target_columns_are_read_once(engine: EmbeddedFluss) -> None:
    with engine.connection() as connection:
        table = Tables(connection, "fluss")(SCHEMA, ["id"], bucket_count=1)
        info = table.get_table_info()
    encoder = KvEncoder(1, info.descriptor.schema.columns, ["id"])
    batch = encoder.encode(pa.table({"id": [1], "text": ["a"]}, schema=SCHEMA))
    batch.stamp(-1, -1)
    records = bytes(batch.to_bytes())

    def put(targets: list[int], buckets: int) -> list[Any]:
        part = pb.PutKvRequestForBucket(bucket_id=0, records=records)
        request = pb.PutKvRequest(
            acks=-1,
            table_id=info.table_id,
            timeout_ms=10_000,
            target_columns=targets,
            buckets_req=[part] * buckets,
        )
        with RawClient(engine.address, 60) as client:
            return list(client.call(api.PUT_KV, request).buckets_resp)

    begun = time.monotonic()
    refused = put([0] * 1_000_000, 300)
    # a copy for each bucket took half a minute
    assert time.monotonic() - begun < 8
    assert len(refused) == 300
    for answer in refused:
        assert answer.error_code == ErrorCode.INVALID_TARGET_COLUMN
        assert "1,000,000 target columns ([0, 0," in answer.error_message
        assert "which has 2 columns" in answer.error_message
        assert len(answer.error_message) < 300
    assert [answer.error_code for answer in put([0, 1], 3)] == [0] * 3
    (answer,) = put([0, 5], 1)
    assert answer.error_message == "target columns [0, 5] of a table with 2 columns"
