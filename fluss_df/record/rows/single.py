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
from fluss_df.record.rows.single_numbers import EXACT, since_epoch_of, unscaled_of
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_MASK: Final = 0xFFFFFFFF
EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
# longer keys are hashed faster with NumPy
_MOST_HASHED: Final = 64

_LENGTH: Final = struct.Struct("<i")
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

Encode = Callable[[Any], bytes | None]
# takes bytes and a place in them; returns the value there, and the place behind it
Read = Callable[[bytes, int], tuple[Any, int]]


# ---- keys


def _integer(bits: int, *, fixed: bool) -> Encode:
    limit, mask = 1 << (bits - 1), (1 << bits) - 1

    def encode(value: Any) -> bytes | None:
        if type(value) is not int or not -limit <= value < limit:
            return None
        return (value & mask).to_bytes(bits // 8, "little") if fixed else varint(value & mask)

    return encode


def _text(value: Any) -> bytes | None:
    if type(value) is not str:
        return None
    raw = value.encode()
    return varint(len(raw)) + raw


def _binary(value: Any) -> bytes | None:
    return varint(len(value)) + value if type(value) is bytes else None


def _bool(value: Any) -> bytes | None:
    return bytes((value,)) if type(value) is bool else None


def _date(value: Any) -> bytes | None:
    return varint(value.toordinal() - EPOCH_DAY & _MASK) if type(value) is dt.date else None


def _float(value: Any) -> bytes | None:
    # a NaN has payload bits, which Python does not keep
    return _FLOAT.pack(value) if type(value) is float and value == value else None


def _double(value: Any) -> bytes | None:
    return _DOUBLE.pack(value) if type(value) is float and value == value else None


def _decimal(t: DataType) -> Encode | None:
    unscaled = unscaled_of(t)
    if unscaled is None:
        return None

    def encode(value: Any) -> bytes | None:
        number = unscaled(value)
        return None if number is None else _bigint(number)

    return encode


def _stamp(t: DataType) -> Encode | None:
    since_epoch = since_epoch_of(t)
    if since_epoch is None:
        return None
    nanos = to_arrow(t).unit == "us"

    def encode(value: Any) -> bytes | None:
        number = since_epoch(value)
        if number is None or not nanos:
            return None if number is None else _bigint(number)
        millis, micros = divmod(number, 1000)
        return varint(millis & (1 << 64) - 1) + varint(micros * 1000)

    return encode


_bigint = _integer(64, fixed=False)
_KEY_PARTS: Final[Mapping[TypeRoot, Encode]] = {
    _R.BOOLEAN: _bool,
    _R.TINYINT: _integer(8, fixed=True),
    _R.SMALLINT: _integer(16, fixed=True),
    _R.INTEGER: _integer(32, fixed=False),
    _R.BIGINT: _bigint,
    _R.STRING: _text,
    _R.BYTES: _binary,
    _R.DATE: _date,
}
_ROW_PARTS: Final[Mapping[TypeRoot, Encode]] = {**_KEY_PARTS, _R.FLOAT: _float, _R.DOUBLE: _double}
_ROW_PART_MAKERS: Final[Mapping[TypeRoot, Callable[[DataType], Encode | None]]] = {
    _R.DECIMAL: _decimal,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: _stamp,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: _stamp,
}


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
    parts = [_KEY_PARTS.get(column.type.root) for column in columns]
    if (lake_format or "").lower() not in ("", "lance") or None in parts:
        return None
    encoders = [part for part in parts if part is not None]

    def encode(values: Sequence[Any]) -> bytes | None:
        made = b""
        for part, value in zip(encoders, values, strict=True):
            try:
                piece = part(value)
            except UnicodeEncodeError:
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

    The encoder takes values as Arrow's ``as_py`` gives them. It returns None for values that take a
    ``RowEncoder``.

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
        root = column.type.root
        make = _ROW_PART_MAKERS.get(root)
        part = _ROW_PARTS.get(root) if make is None else make(column.type)
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


def _read_time(t: DataType) -> Read | None:
    if to_arrow(t).unit == "s":
        return None

    def read(data: bytes, at: int) -> tuple[dt.time, int]:
        millis, at = _read_int(data, at)
        if not 0 <= millis < 86_400_000:
            raise ValueError("a time beyond the day")
        return (dt.datetime.min + dt.timedelta(milliseconds=millis)).time(), at

    return read


def _read_decimal(t: DataType) -> Read | None:
    precision, scale = t.precision or 0, t.scale or 0
    if precision > 18:
        return None
    limit = 10**precision

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        value, at = _read_bigint(data, at)
        if not -limit < value < limit:
            raise ValueError("a decimal of more digits than its precision")
        return Decimal(value).scaleb(-scale, EXACT), at

    return read


def _read_stamp(t: DataType) -> Read | None:
    kind = to_arrow(t)
    if kind.unit not in ("ms", "us"):
        return None
    epoch = dt.datetime(1970, 1, 1, tzinfo=pa.scalar(0, kind).as_py().tzinfo)
    nanos = kind.unit == "us"

    def read(data: bytes, at: int) -> tuple[dt.datetime, int]:
        millis, at = _read_bigint(data, at)
        micros = 0
        if nanos:
            rest, at = _read_int(data, at)
            if not 0 <= rest <= 999_999:
                raise ValueError("nanoseconds that are no part of a millisecond")
            micros = rest // 1000
        return epoch + dt.timedelta(milliseconds=millis, microseconds=micros), at

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
_READ_MAKERS: Final[Mapping[TypeRoot, Callable[[DataType], Read | None]]] = {
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
