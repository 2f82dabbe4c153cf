"""Limits of what a request may ask for, checked in its bytes before it is parsed.

A repeated field of two bytes becomes an object of a hundred, and an answer of more: a request of
some megabytes could take gigabytes, and stop everything else while it is read. So each kind of
request has a size, and its entries (repeated fields, at all levels) are counted first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fluss_df.engine.files.workers import give_turn
from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.protocol import api
from fluss_df.protocol.wire import BYTES, FIXED32, FIXED64, VARINT, next_field

_MB: Final = 1 << 20
# requests that carry rows
_ROWS: Final = frozenset({api.PRODUCE_LOG.key, api.PUT_KV.key})
# the most bytes of requests that name one thing, or a few servers or settings
_SMALL: Final = 64 << 10
_SIZES: Final = {
    **{
        kind.key: _SMALL
        for kind in (
            api.DESCRIBE_CLUSTER_CONFIGS,
            api.ALTER_CLUSTER_CONFIGS,
            api.ADD_SERVER_TAG,
            api.REMOVE_SERVER_TAG,
            api.REBALANCE,
            api.LIST_REBALANCE_PROGRESS,
            api.CANCEL_REBALANCE,
            api.GET_PRODUCER_OFFSETS,
            api.DELETE_PRODUCER_OFFSETS,
            api.DROP_KV_SNAPSHOT_LEASE,
            api.GET_KV_SNAPSHOT_METADATA,
            api.LIST_KV_SNAPSHOTS,
            api.LIST_REMOTE_LOG_MANIFESTS,
            api.GET_CLUSTER_HEALTH,
        )
    },
    api.API_VERSIONS.key: _SMALL,
    api.AUTHENTICATE.key: _SMALL,
    api.LOOKUP.key: 32 * _MB,
    api.PREFIX_LOOKUP.key: 32 * _MB,
}
_OTHERS: Final = 4 * _MB
# a table has 128,000 buckets at the most
_ENTRIES: Final = 128 << 10
# requests with more entries are answered one at a time, see Engine.run_large
LARGE: Final = 16 << 10
# an entry has at least two bytes but for packed numbers
_NEVER_LARGE: Final = LARGE
_CONTINUED: Final = 0x80
# tags that are there by chance, in keys and texts, and are not counted
_CHANCE: Final = 16 << 10
_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_DEPTH: Final = 100
# bytes that are looked at before other threads get a turn
_STEP_BYTES: Final = 256 << 10
# fields that are walked before others get a turn: 0.1 ms
_STEP_FIELDS: Final = 256


def most_bytes(key: int) -> int | None:
    """Return how large a request of a kind may be; None for no limit but that of all requests."""
    return None if key in _ROWS else _SIZES.get(key, _OTHERS)


def refuse_size(kind: api.Api[Any, Any], size: int) -> FlussError:
    """Return the error for a request that is larger than its kind may be."""
    return FlussError(
        f"a {kind.name} request of {size:,} bytes, where {most_bytes(kind.key) or 0:,} are"
        " accepted: ask for less in one request",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a message has repeated fields.

    Attributes
    ----------
    repeated
        Field number -> whether its entries may be packed.
    parts
        Field number -> the message type of the field, where that has repeated fields too.
    tags
        The first bytes of the tags of all of them, at all levels.
    packed
        Whether one of them may be packed, at any level.
    """

    repeated: dict[int, bool]
    parts: dict[int, Descriptor]
    tags: frozenset[int]
    packed: bool


@cache
def _shape(message: Descriptor) -> _Shape:
    return _shape_of(message, ())


def _shape_of(message: Descriptor, above: tuple[str, ...]) -> _Shape:
    repeated: dict[int, bool] = {}
    parts: dict[int, Descriptor] = {}
    tags: set[int] = set()
    packed = False
    for field in message.fields:
        inner = field.message_type
        if field.is_repeated:
            number = inner is None and field.type not in _TEXTS
            repeated[field.number] = number
            packed |= number
            # with another wire type they are unknown fields, which nothing is made of
            wires = (VARINT, FIXED64, BYTES, FIXED32) if number else (BYTES,)
            tags |= {field.number << 3 & 0x7F | wire for wire in wires}
        if inner is not None:
            # a message that is in itself, as conditions are, has the tags that it had above
            below = inner.full_name in above
            shape = None if below else _shape_of(inner, (*above, message.full_name))
            if below or (shape is not None and shape.tags):
                parts[field.number] = inner
                tags |= {field.number << 3 & 0x7F | BYTES}
            if shape is not None:
                tags |= shape.tags
                packed |= shape.packed
    return _Shape(repeated, parts, frozenset(tags), packed)


def may_be_large(kind: api.Api[Any, Any], body: pa.Buffer) -> bool:
    """Whether a request may have more entries than :data:`LARGE`; takes no time for a small one."""
    size = len(body)
    if size <= _NEVER_LARGE or kind.key in _ROWS:
        return False
    shape = _shape(kind.request.DESCRIPTOR)
    if not shape.tags:
        return False
    # every entry has a byte with its tag, which may be written longer than needed
    tags = [byte for tag in shape.tags for byte in (tag, tag | _CONTINUED)]
    most = LARGE + min(_CHANCE, size * len(tags) >> 8)
    numbers = found = 0
    for at in range(0, size, _STEP_BYTES):
        data = np.frombuffer(body, np.uint8, min(_STEP_BYTES, size - at), at)
        if shape.packed:
            numbers += int(np.count_nonzero(data < _CONTINUED))
        found += sum(int(np.count_nonzero(data == tag)) for tag in tags)
        if numbers > LARGE or found > most:
            return True
    return False


def check_entries(kind: api.Api[Any, Any], body: pa.Buffer) -> None:
    """Refuse a request that has too many entries.

    Raises ``RECORD_TOO_LARGE_EXCEPTION``. Raises ProtocolError where the bytes are no message.
    """
    data = memoryview(body).cast("B")
    found = walked = 0
    waiting = [(kind.request.DESCRIPTOR, 0, len(data), 0)]
    while waiting:
        message, start, end, depth = waiting.pop()
        if depth > _DEPTH:
            raise ProtocolError(f"a {kind.name} request cannot be read: it is nested too deeply")
        shape = _shape(message)
        repeated, parts = shape.repeated, shape.parts
        at = start
        while at < end:
            walked += 1
            if not walked % _STEP_FIELDS:
                give_turn()
            # by far the most fields are these: a short repeated text, key or message without parts
            head = data[at]
            number = head >> 3
            if (
                head & (_CONTINUED | 7) == BYTES
                and number not in parts
                and repeated.get(number) is False
                and at + 1 < end
                and (length := data[at + 1]) < _CONTINUED
                and at + 2 + length <= end
            ):
                found += 1
                at += 2 + length
            else:
                number, wire, value, length, at = next_field(data, at, end)
                packed = repeated.get(number)
                if packed is not None:
                    found += 1
                    if packed and wire == BYTES:
                        numbers = np.frombuffer(data[value : value + length], np.uint8)
                        found += int(np.count_nonzero(numbers < _CONTINUED))
                if wire == BYTES and number in parts:
                    waiting.append((parts[number], value, value + length, depth + 1))
                    found += packed is None
            if found > _ENTRIES:
                raise FlussError(
                    f"a {kind.name} request with more than {_ENTRIES:,} entries: ask for less in"
                    " one request",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
