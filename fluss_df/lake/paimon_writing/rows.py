"""Makes Paimon's binary rows, byte for byte as Java makes them: rows of partitions are compared."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from fluss_df.lake.paimon.binary_rows import (
    BYTES,
    FIXED,
    LONGEST_COMPACT_DECIMAL,
    MILLISECONDS,
    TEXTS,
    TIMES,
)
from fluss_df.lake.paimon.types import FieldType

_LONGEST_INLINE: Final = 7
_DECIMAL_BYTES: Final = 16
# tables with keys or partitions of FLOAT and DOUBLE are left to Flink's service
_FIXED: Final = {kind: code for kind, code in FIXED.items() if kind not in ("FLOAT", "DOUBLE")}
#: The types whose values stand in such rows here.
KNOWN: Final = frozenset({*_FIXED, *TEXTS, *BYTES, *TIMES, "DECIMAL"})


def binary_row(values: Sequence[Any], kinds: Sequence[FieldType]) -> bytes:
    """Return a row of values, as :func:`fluss_df.lake.paimon.binary_rows.value_at` returns them.

    Their types must be among :data:`KNOWN`.
    """
    count = len(values)
    bits = bytearray((count + 63 + 8) // 64 * 8)
    start = len(bits) + 8 * count
    fields: list[bytes] = []
    tail = bytearray()
    for position, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if value is None:
            bits[(8 + position) // 8] |= 1 << (8 + position) % 8
        fields.append(_field(value, kind, tail, start))
    return struct.pack(">i", count) + bytes(bits) + b"".join(fields) + bytes(tail)


def _field(value: Any, kind: FieldType, tail: bytearray, start: int) -> bytes:
    root = kind.root
    if root == "DECIMAL" and kind.precision > LONGEST_COMPACT_DECIMAL:
        number = b"" if value is None else _signed(_unscaled(value, kind.scale))
        return _long_value(number.ljust(_DECIMAL_BYTES, b"\0"), len(number), tail, start)
    if root in TIMES and kind.precision > MILLISECONDS:
        millis, nanos = (0, 0) if value is None else divmod(value, 1_000_000)
        return _long_value(struct.pack("<q", millis), nanos, tail, start)
    if value is None:
        return bytes(8)
    if root in _FIXED:
        return struct.pack(_FIXED[root], value).ljust(8, b"\0")
    if root == "DECIMAL":
        return struct.pack("<q", _unscaled(value, kind.scale))
    if root in TIMES:
        return struct.pack("<q", value // 1_000_000)
    content = value.encode() if root in TEXTS else bytes(value)
    if len(content) <= _LONGEST_INLINE:
        return content.ljust(_LONGEST_INLINE, b"\0") + bytes([0x80 | len(content)])
    padded = content.ljust(-(-len(content) // 8) * 8, b"\0")
    return _long_value(padded, len(content), tail, start)


def _long_value(content: bytes, size: int, tail: bytearray, start: int) -> bytes:
    """Append what is longer than a field; return the field, which says where it is."""
    offset = start + len(tail)
    tail += content
    return struct.pack("<Q", offset << 32 | size)


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole: int = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    return -whole if sign else whole


def _signed(value: int) -> bytes:
    """Return a whole number in as few bytes as hold it, the greatest first, as Java does."""
    bits = value.bit_length() if value >= 0 else (value + 1).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)
