"""Protobuf's wire format by hand, against protobuf itself."""

from __future__ import annotations

import pytest
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from fluss_df.errors import ProtocolError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol import wire

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**64 - 1))
def test_varint_is_protobufs(value: int) -> None:
    encoded = wire.encode_varint(value)
    assert encoded == _VarintBytes(value)
    assert _DecodeVarint(encoded, 0) == (value, len(encoded))


@given(INT64)
def test_integer_field_round_trip(value: int) -> None:
    data = wire.varint_field(6, value)
    assert pb.ListOffsetsRequest.FromString(_REQUIRED + data).start_timestamp == value
    ((field, kind, read, length),) = wire.fields(memoryview(data), 0, len(data))
    assert (field, kind, wire.signed(read), length) == (6, wire.VARINT, value, 0)


_REQUIRED = pb.ListOffsetsRequest(
    follower_server_id=-1, offset_type=0, table_id=1
).SerializeToString()


@given(st.integers(1, 2**29 - 1), st.binary(max_size=300))
def test_bytes_field_round_trip(field: int, content: bytes) -> None:
    data = b"??" + wire.bytes_header(field, len(content)) + content + b"!!"
    ((number, kind, start, length),) = wire.fields(memoryview(data), 2, len(data) - 2)
    assert (number, kind) == (field, wire.BYTES)
    assert data[start : start + length] == content


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = list(wire.fields(memoryview(data), 0, len(data)))
    except ProtocolError:
        return
    assert len(found) <= len(data)
    for _, kind, value, length in found:
        if kind == wire.BYTES:
            assert value + length <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",  # a tag that does not end
        b"\x08",  # no value
        b"\x08" + b"\xff" * 11,  # a value longer than any
        b"\x0a\x05abc",  # longer than the rest
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a huge length
        b"\x0d\0\0\0",  # a fixed32 of three bytes
        b"\x09\0\0\0\0\0\0\0",  # a fixed64 of seven
        b"\x0b",  # groups are not used
        b"\x0c",
        b"\x0f",
    ],
)
def test_broken(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(wire.fields(memoryview(data), 0, len(data)))


def test_fixed_fields_are_stepped_over() -> None:
    data = b"\x0d\x01\0\0\0" + b"\x11\x02\0\0\0\0\0\0\0" + b"\x18\x03"
    assert list(wire.fields(memoryview(data), 0, len(data))) == [
        (1, wire.FIXED32, 1, 0),
        (2, wire.FIXED64, 2, 0),
        (3, wire.VARINT, 3, 0),
    ]
