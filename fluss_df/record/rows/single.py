"""One key, one row: what the vectorised codecs do for many, without what they cost at least.

To encode a key, hash it and decode a value with arrays of one item takes 0.2 ms, more than a server
takes to answer. Everything here is for plain values only and gives up (None) on all others, on
every doubt and on every fault: the vectorised codecs are asked then, and have the errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from fluss_df.record.layout.unaligned import varint
from fluss_df.record.rows.single_reads import Read, value_reader
from fluss_df.record.rows.single_values import Encode, value_encoder
from fluss_df.types import Column, TypeRoot

_R = TypeRoot
_MASK: Final = 0xFFFFFFFF
# longer keys are hashed faster with NumPy
_MOST_HASHED: Final = 64

_LENGTH: Final = struct.Struct("<i")


# ---- keys


def key_encoder(
    columns: Sequence[Column], lake_format: str | None
) -> Callable[[Sequence[Any]], bytes | None] | None:
    r"""Return what encodes one key; None where that takes ``keys.encode_keys``.

    Examples
    --------
    >>> encode = key_encoder([Column("id", DataType(TypeRoot.BIGINT))], None)
    >>> encode([300]), encode(["no number"])
    (b'\xac\x02', None)
    """
    parts = [value_encoder(column.type) for column in columns]
    if (lake_format or "").lower() not in ("", "lance") or None in parts:
        return None
    encoders = [part for part in parts if part is not None]

    def encode(values: Sequence[Any]) -> bytes | None:
        made = b""
        for part, value in zip(encoders, values, strict=True):
            try:
                piece = part(value)
            except (UnicodeEncodeError, OverflowError):
                return None
            if piece is None:
                return None
            made += piece
        return made

    return encode


def bucket_id(key: bytes, num_buckets: int) -> int | None:
    r"""Return the bucket of one key of Fluss's own encoding, as ``bucketing.bucket_ids`` does.

    Examples
    --------
    >>> bucket_id(b"\xac\x02", 4)
    1
    """
    size = len(key)
    if not 0 < size <= _MOST_HASHED:
        return None
    if num_buckets == 1:
        return 0
    state = 42
    for i in range(0, size & ~3, 4):
        state = _mixed(state, int.from_bytes(key[i : i + 4], "little"))
    for byte in key[size & ~3 :]:
        # signed, as Java does
        state = _mixed(state, (byte - 256 if byte >= 0x80 else byte) & _MASK)
    code = _finished(state ^ size)
    again = _finished(_mixed(0, code) ^ 4)
    signed = again - (1 << 32) if again >> 31 else again
    return 0 if signed == -(1 << 31) else abs(signed) % num_buckets


def _mixed(state: int, block: int) -> int:
    block = block * 0xCC9E2D51 & _MASK
    block = (block << 15 | block >> 17) * 0x1B873593 & _MASK
    state ^= block
    return (state << 13 & _MASK | state >> 19) * 5 + 0xE6546B64 & _MASK


def _finished(state: int) -> int:
    state ^= state >> 16
    state = state * 0x85EBCA6B & _MASK
    state ^= state >> 13
    state = state * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


# ---- rows


def row_encoder(
    columns: Sequence[Column], row_format: str
) -> Callable[[Sequence[Any]], bytes | None] | None:
    r"""Return what encodes one compacted row; None where that takes a ``RowEncoder``.

    The encoder returns None for values that take a ``RowEncoder``.

    Examples
    --------
    >>> encode = row_encoder([Column("id", DataType(TypeRoot.BIGINT))], "compacted")
    >>> encode([300]), encode([None])
    (b'\x00\xac\x02', b'\x01')
    """
    if row_format.lower() != "compacted":
        return None
    parts: list[tuple[Encode, bool]] = []
    for column in columns:
        part = value_encoder(column.type)
        if part is None:
            return None
        parts.append((part, column.type.nullable))
    width = (len(parts) + 7) // 8

    def encode(values: Sequence[Any]) -> bytes | None:
        nulls = 0
        made = []
        for i, ((part, nullable), value) in enumerate(zip(parts, values, strict=True)):
            if value is None:
                if not nullable:
                    return None
                nulls |= 1 << i
                continue
            try:
                piece = part(value)
            except (UnicodeEncodeError, OverflowError):
                return None
            if piece is None:
                return None
            made.append(piece)
        return nulls.to_bytes(width, "little") + b"".join(made)

    return encode


def framed(key: bytes, row: bytes) -> bytes:
    """Return the record of a kv batch: its length, the key with its length, and the row."""
    content = varint(len(key)) + key + row
    return _LENGTH.pack(len(content)) + content


def row_decoder(
    columns: Sequence[Column], row_format: str
) -> Callable[[bytes, int], dict[str, Any] | None] | None:
    r"""Return what decodes one compacted row; None where that takes a ``RowDecoder``.

    The decoder takes bytes, and where in them the row begins; the row ends with them. It returns
    the values as an Arrow table's ``to_pylist`` does, or None for a row that takes a
    ``RowDecoder``.

    Examples
    --------
    >>> decode = row_decoder([Column("id", DataType(TypeRoot.BIGINT))], "compacted")
    >>> decode(b"\x00\xac\x02", 0), decode(b"\x00\xac", 0)
    ({'id': 300}, None)
    """
    if row_format.lower() != "compacted":
        return None
    fields: list[tuple[str, Read, bool]] = []
    for column in columns:
        read = value_reader(column.type, row_decoder)
        if read is None:
            return None
        fields.append((column.name, read, column.type.nullable))
    width = (len(fields) + 7) // 8

    def decode(data: bytes, at: int) -> dict[str, Any] | None:
        nulls = int.from_bytes(data[at : at + width], "little")
        at += width
        row: dict[str, Any] = {}
        try:
            for name, read, nullable in fields:
                if nulls & 1:
                    if not nullable:
                        return None
                    row[name] = None
                else:
                    row[name], at = read(data, at)
                nulls >>= 1
        except (ValueError, IndexError, OverflowError, struct.error):
            return None
        return row if at == len(data) and not nulls else None

    return decode
