"""Fetch responses read by hand, against those that protobuf builds."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss_df.errors import FlussError, ProtocolError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.fetch import (
    FetchedBucket,
    FetchReply,
    ReplyBucket,
    fetch_response_bucket,
    fetch_response_table,
    parse_fetch_response,
)
from fluss_df.protocol.wire import Buffer, bytes_header, varint_field

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ID = st.integers(0, 2**31 - 1)


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


segments = st.builds(
    pb.RemoteLogSegment,
    remote_log_segment_id=st.text(max_size=5),
    remote_log_start_offset=INT64,
    remote_log_end_offset=INT64,
    segment_size_in_bytes=INT32,
    max_timestamp=maybe(INT64),
)
remotes = st.builds(
    pb.RemoteLogFetchInfo,
    remote_log_tablet_dir=st.text(max_size=10),
    partition_name=maybe(st.text(max_size=5)),
    remote_log_segments=st.lists(segments, max_size=3),
    first_start_pos=maybe(INT32),
)
buckets = st.builds(
    pb.FetchLogResponseForBucket,
    partition_id=maybe(INT64),
    bucket_id=ID,
    error_code=maybe(INT32),
    error_message=maybe(st.text(max_size=10)),
    high_watermark=maybe(INT64),
    log_start_offset=maybe(INT64),
    remote_log_fetch_info=maybe(remotes),
    records=maybe(st.binary(max_size=200)),
    filtered_end_offset=maybe(INT64),
)
tables = st.builds(
    pb.FetchLogResponseForTable, table_id=INT64, buckets_resp=st.lists(buckets, max_size=3)
)
responses = st.builds(pb.FetchLogResponse, tables_resp=st.lists(tables, max_size=3))


def expected(response: pb.FetchLogResponse) -> list[FetchedBucket]:
    return [
        FetchedBucket(
            table.table_id,
            b.partition_id if b.HasField("partition_id") else None,
            b.bucket_id,
            b.error_code,
            b.error_message,
            b.high_watermark if b.HasField("high_watermark") else -1,
            pa.py_buffer(b.records) if b.records else None,
            b.remote_log_fetch_info if b.HasField("remote_log_fetch_info") else None,
            b.filtered_end_offset if b.HasField("filtered_end_offset") else None,
        )
        for table in response.tables_resp
        for b in table.buckets_resp
    ]


@given(responses)
def test_reads_what_protobuf_writes(response: pb.FetchLogResponse) -> None:
    body = pa.py_buffer(response.SerializeToString())
    assert parse_fetch_response(body) == expected(response)


def test_records_are_not_copied() -> None:
    bucket = pb.FetchLogResponseForBucket(bucket_id=0, records=bytes(1000))
    table = pb.FetchLogResponseForTable(table_id=1, buckets_resp=[bucket])
    body = pa.py_buffer(pb.FetchLogResponse(tables_resp=[table]).SerializeToString())
    (fetched,) = parse_fetch_response(body)
    assert fetched.records is not None
    assert body.address < fetched.records.address < body.address + body.size


@given(responses, st.data())
def test_truncated(response: pb.FetchLogResponse, data: st.DataObject) -> None:
    whole = response.SerializeToString()
    cut = whole[: data.draw(st.integers(0, max(0, len(whole) - 1)))]
    assert_read_or_refused(cut)


@settings(max_examples=300)
@given(responses, st.data())
def test_mutated(response: pb.FetchLogResponse, data: st.DataObject) -> None:
    broken = bytearray(response.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    assert_read_or_refused(bytes(broken))


def test_a_bucket_beyond_32_bits_is_refused() -> None:
    """Protobuf drops its upper bits: it would be another bucket."""
    for number in (2**31, 2**32 + 1):
        bucket = varint_field(2, number)
        table = varint_field(1, 1) + bytes_header(2, len(bucket)) + bucket
        with pytest.raises(ProtocolError, match=f"{number} is no 32-bit number"):
            parse_fetch_response(pa.py_buffer(bytes_header(1, len(table)) + table))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_arbitrary(body: bytes) -> None:
    assert_read_or_refused(body)


def assert_read_or_refused(body: bytes) -> None:
    """What protobuf reads is read the same; what it refuses is a FlussError or skipped."""
    try:
        ours = parse_fetch_response(pa.py_buffer(body))
    except FlussError:
        return
    for bucket in ours:
        assert bucket.bucket_id >= 0
        if bucket.records is not None:
            assert bytes(bucket.records) in body
    try:
        official = pb.FetchLogResponse.FromString(body)
    except DecodeError:
        return  # ours looks only at the fields that it uses
    # protobuf may say the ids of what it read; more buckets than that there cannot be
    assert [b.bucket_id for b in ours] == [
        b.bucket_id for t in official.tables_resp for b in t.buckets_resp
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\x12\x00",  # a table without an id
        b"\x0a\x04\x08\x01\x12\x00",  # a bucket without an id
        b"\x0a\x06\x08\x01\x12\x02\x3a\x01",  # remote info beyond its end
    ],
)
def test_broken(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_fetch_response(pa.py_buffer(body))


def test_announced_sizes_take_no_memory() -> None:
    body = pa.py_buffer(b"\x0a\xff\xff\xff\xff\x07")  # a table of 2 GB
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            parse_fetch_response(body)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


PARTS = st.none() | st.lists(st.binary(max_size=20), max_size=3)


@given(responses, st.data())
def test_what_a_server_writes_is_read_as_protobuf_reads_it(
    response: pb.FetchLogResponse, data: st.DataObject
) -> None:
    """In pieces, with records that are not copied, and without bytes where both are one process."""
    reply = FetchReply()
    written: list[Buffer] = []
    for table in response.tables_resp:
        pieces: list[Buffer] = []
        for bucket in table.buckets_resp:
            parts = data.draw(PARTS)
            bucket.ClearField("records")
            bucket.ClearField("remote_log_fetch_info")
            pieces += fetch_response_bucket(bucket, parts)
            reply.buckets.append(ReplyBucket(table.table_id, pb.FetchLogResponseForBucket(), parts))
            reply.buckets[-1].answer.CopyFrom(bucket)
            if parts is not None:
                bucket.records = b"".join(parts)
        written += fetch_response_table(table.table_id, pieces)
    body = b"".join(written)
    assert pb.FetchLogResponse.FromString(body) == response
    assert parse_fetch_response(pa.py_buffer(body)) == expected(response)
    assert reply.received() == expected(response)
    assert reply.size == sum(
        bucket.answer.ByteSize() + sum(map(len, bucket.records or ())) for bucket in reply.buckets
    )


@pytest.mark.parametrize("parts", [[], [b""], [b"", b""]], ids=str)
def test_records_without_bytes_are_none(parts: list[bytes]) -> None:
    reply = FetchReply()
    reply.buckets.append(ReplyBucket(5, pb.FetchLogResponseForBucket(bucket_id=1), list(parts)))
    assert reply.received()[0].records is None


def test_a_projection_counts_only_the_bytes_that_were_asked_for() -> None:
    answer = pb.FetchLogResponseForBucket(bucket_id=1)
    reply = FetchReply()
    reply.buckets.append(ReplyBucket(5, answer, [b"x" * 100], projected_bytes=7))
    assert reply.size == answer.ByteSize() + 7
    (found,) = reply.received()
    assert found.projected_bytes == 7
    assert found.records is not None
    assert found.records.to_pybytes() == b"x" * 100


def test_more_buckets_than_were_asked_for_are_refused_before_they_are_read() -> None:
    bucket = varint_field(2, 1)
    many = (bytes_header(2, len(bucket)) + bucket) * 100_000
    table = varint_field(1, 7) + many
    body = pa.py_buffer(bytes_header(1, len(table)) + table)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more buckets than the 64 asked for"):
            parse_fetch_response(body, 64)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    two = pb.FetchLogResponse()
    for number in range(2):
        two.tables_resp.add(table_id=number).buckets_resp.add(bucket_id=0)
    body = pa.py_buffer(two.SerializeToString())
    assert len(parse_fetch_response(body, 2)) == 2
    with pytest.raises(ProtocolError, match="more buckets than the 1 asked for"):
        parse_fetch_response(body, 1)
