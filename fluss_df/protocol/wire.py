"""Protobuf's wire format, as far as the fast paths read and write it by hand.

Parsing a fetch response with protobuf copies every byte of its records, and so does building a
produce request. These few functions walk tags and lengths and leave the records where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fluss_df.errors import ProtocolError
from fluss_df.record.layout.unaligned import varint

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5

Buffer = bytes | bytearray | memoryview

_SIGN_BIT = 1 << 63
_LONG_MASK = (1 << 64) - 1


MessageT = TypeVar("MessageT", bound=Message)


def parsed(kind: type[MessageT], data: Buffer, what: str) -> MessageT:
    """Return a message; raise ProtocolError, naming ``what``, where the bytes are no such one."""
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as error:
        raise ProtocolError(f"{what} cannot be read: {error}") from error
    # not every protobuf runtime checks this while it parses
    if not message.IsInitialized():
        raise ProtocolError(f"{what} lacks required fields")
    return message


def encode_varint(value: int) -> bytes:
    """Return the varint of an int32 or int64, negative ones in ten bytes as protobuf does."""
    return varint(value & _LONG_MASK)


def tag(field: int, wire_type: int) -> bytes:
    """Return the tag of a field."""
    return varint(field << 3 | wire_type)


def varint_field(field: int, value: int) -> bytes:
    """Return a field that holds an integer."""
    return varint(field << 3 | VARINT) + varint(value & _LONG_MASK)


def bytes_header(field: int, length: int) -> bytes:
    """Return what stands before the ``length`` bytes of a bytes or message field."""
    return varint(field << 3 | BYTES) + varint(length)


def signed(value: int) -> int:
    """Return the unsigned value of a varint as an int64."""
    return value - (_SIGN_BIT << 1) if value & _SIGN_BIT else value


def int32(value: int) -> int:
    """Return the int32 that a varint stands for.

    Raises ProtocolError for a number that an int32 cannot hold, of which protobuf would drop the
    upper bits.
    """
    number = signed(value)
    if not -(2**31) <= number < 2**31:
        raise ProtocolError(f"{number} is no 32-bit number")
    return number


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & (_SIGN_BIT << 1) - 1, position
        shift += 7
    raise ProtocolError("a varint is cut off, or longer than 10 bytes")


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk the fields of the message in ``data[start:end]``.

    Yields ``(field, wire type, value, length)``. Of a varint or fixed field these are the unsigned
    value and 0, of a bytes field the position of its first byte and its length.

    Raises ProtocolError where the bytes are not a message or reach beyond ``end``.
    """
    position = start
    while position < end:
        field, wire_type, value, length, position = next_field(data, position, end)
        yield field, wire_type, value, length


def next_field(data: memoryview, position: int, end: int) -> tuple[int, int, int, int, int]:
    """Return one of what :func:`fields` yields, and where the next one begins.

    Raises ProtocolError as :func:`fields`.
    """
    key, position = _varint(data, position, end)
    field, wire_type = key >> 3, key & 7
    if wire_type == VARINT:
        value, position = _varint(data, position, end)
        return field, wire_type, value, 0, position
    if wire_type == BYTES:
        length, position = _varint(data, position, end)
        if length > end - position:
            raise ProtocolError(f"field {field} of a message reaches beyond its end")
        return field, wire_type, position, length, position + length
    if wire_type in (FIXED32, FIXED64):
        width = 4 if wire_type == FIXED32 else 8
        if width > end - position:
            raise ProtocolError(f"field {field} of a message reaches beyond its end")
        number = int.from_bytes(data[position : position + width], "little")
        return field, wire_type, number, 0, position + width
    raise ProtocolError(f"field {field} of a message has wire type {wire_type}")
