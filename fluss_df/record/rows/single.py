"""One key, one row: what the vectorised codecs do for many, without what they cost at least.

To encode a key, hash it and decode a value with arrays of one item takes 0.2 ms, more than a server
takes to answer. Everything here is for plain values only and gives up (None) on all others, on
every doubt and on every fault: the vectorised codecs are asked then, and have the errors.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from fluss_df.record.layout.unaligned import read_varint, varint
from fluss_df.record.rows.row_values import is_wide_decimal
from fluss_df.record.rows.single_numbers import EPOCH_DAY, EXACT
from fluss_df.record.rows.single_values import Encode, value_encoder
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_MASK: Final = 0xFFFFFFFF
# longer keys are hashed faster with NumPy
_MOST_HASHED: Final = 64
_WIDEST_DECIMAL: Final = 16

_LENGTH: Final = struct.Struct("<i")
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

# takes bytes and a place in them; returns the value there, and the place behind it
Read = Callable[[bytes, int], tuple[Any, int]]


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


def _signed_varint(bits: int) -> Read:
    half, whole = 1 << (bits - 1), 1 << bits
    most = (bits + 6) // 7

    def read(data: bytes, at: int) -> tuple[int, int]:
        value, end = read_varint(data, at)
        if value >= half:
            value -= whole
        if value >= half or end - at > most:
            raise ValueError(f"a number of more than {bits} bits")
        return value, end

    return read


_read_int = _signed_varint(32)
_read_bigint = _signed_varint(64)


def _read_fixed(width: int) -> Read:
    def read(data: bytes, at: int) -> tuple[int, int]:
        end = at + width
        return int.from_bytes(data[at:end], "little", signed=True), end

    return read


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bool(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return byte == 1, at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(data, at)
    end = at + size
    return data[at:end], end


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _read_bytes(data, at)
    return raw.decode(), at


def _read_date(data: bytes, at: int) -> tuple[dt.date, int]:
    days, at = _read_int(data, at)
    return dt.date.fromordinal(EPOCH_DAY + days), at


def _read_binary(t: DataType) -> Read:
    size = t.length or 0

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = _read_bytes(data, at)
        if len(value) != size:
            raise ValueError("bytes of another length")
        return value, at

    return read


def _read_time(t: DataType) -> Read:
    step = 1000 if to_arrow(t).unit == "s" else 1

    def read(data: bytes, at: int) -> tuple[dt.time, int]:
        millis, at = _read_int(data, at)
        if not 0 <= millis < 86_400_000:
            raise ValueError("a time beyond the day")
        since_midnight = dt.timedelta(milliseconds=millis - millis % step)
        return (dt.datetime.min + since_midnight).time(), at

    return read


def _read_wide(data: bytes, at: int) -> tuple[int, int]:
    raw, at = _read_bytes(data, at)
    if not 1 <= len(raw) <= _WIDEST_DECIMAL:
        raise ValueError("a decimal of so many bytes")
    return int.from_bytes(raw, "big", signed=True), at


def _read_decimal(t: DataType) -> Read:
    scale, limit = t.scale or 0, 10 ** (t.precision or 0)
    read_number = _read_wide if is_wide_decimal(t) else _read_bigint

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        value, at = read_number(data, at)
        if not -limit < value < limit:
            raise ValueError("a decimal of more digits than its precision")
        return Decimal(value).scaleb(-scale, EXACT), at

    return read


def _read_stamp(t: DataType) -> Read:
    kind = to_arrow(t)
    if kind.unit == "ns":
        return _read_nanos(kind)
    epoch = dt.datetime(1970, 1, 1, tzinfo=pa.scalar(0, kind).as_py().tzinfo)
    micros_too = kind.unit == "us"
    step = 1000 if kind.unit == "s" else 1

    def read(data: bytes, at: int) -> tuple[dt.datetime, int]:
        millis, at = _read_bigint(data, at)
        millis -= millis % step
        micros = 0
        if micros_too:
            rest, at = _read_rest(data, at)
            micros = rest // 1000
        return epoch + dt.timedelta(milliseconds=millis, microseconds=micros), at

    return read


def _read_rest(data: bytes, at: int) -> tuple[int, int]:
    rest, at = _read_int(data, at)
    if not 0 <= rest <= 999_999:
        raise ValueError("nanoseconds that are no part of a millisecond")
    return rest, at


def _read_nanos(kind: pa.DataType) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        millis, at = _read_bigint(data, at)
        rest, at = _read_rest(data, at)
        # Arrow decides what it is in Python: with pandas, a Timestamp. Where 64 bits do not hold
        # the number, Arrow raises OverflowError.
        return pa.scalar(millis * 1_000_000 + rest, kind).as_py(), at

    return read


_READS: Final[Mapping[TypeRoot, Read]] = {
    _R.BOOLEAN: _read_bool,
    _R.TINYINT: _read_fixed(1),
    _R.SMALLINT: _read_fixed(2),
    _R.INTEGER: _read_int,
    _R.BIGINT: _read_bigint,
    _R.FLOAT: _read_float,
    _R.DOUBLE: _read_double,
    _R.STRING: _read_text,
    _R.CHAR: _read_text,
    _R.BYTES: _read_bytes,
    _R.DATE: _read_date,
}
_READ_MAKERS: Final[Mapping[TypeRoot, Callable[[DataType], Read]]] = {
    _R.BINARY: _read_binary,
    _R.DECIMAL: _read_decimal,
    _R.TIME_WITHOUT_TIME_ZONE: _read_time,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: _read_stamp,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: _read_stamp,
}


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
        root = column.type.root
        read = _READ_MAKERS[root](column.type) if root in _READ_MAKERS else _READS.get(root)
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
