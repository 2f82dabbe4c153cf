"""One value of a compacted row, from its bytes to what an Arrow table's ``to_pylist`` has for it.

What is here raises ValueError, IndexError, OverflowError or ``struct.error`` for bytes that are no
value of the type, and for a value that Python does not have. The vectorised codecs have the errors
for users.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from fluss_df.record.layout.unaligned import read_varint
from fluss_df.record.rows.row_values import BYTES, NESTED, has_nanos, is_stamp, is_wide_decimal
from fluss_df.record.rows.single_nested import Rows, nested_reader
from fluss_df.record.rows.single_python import blob_maker, number_maker, stamp_maker
from fluss_df.types import DataType, TypeRoot

_R = TypeRoot
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

# takes bytes and a place in them; returns the value there, and the place behind it
Read = Callable[[bytes, int], tuple[Any, int]]


def value_reader(t: DataType, rows: Rows) -> Read | None:
    r"""Return what reads a value; None for a type that only the vectorised codecs read.

    ``rows`` makes what decodes the rows within a row.

    Examples
    --------
    >>> read = value_reader(DataType(TypeRoot.BIGINT), lambda columns, row_format: None)
    >>> read(b"\xac\x02", 0)
    (300, 2)
    """
    if t.root in NESTED:
        inner = nested_reader(t, rows)
        return None if inner is None else _within(inner)
    if t.root is _R.STRING or t.root is _R.BYTES:
        return _read_text if t.root is _R.STRING else _read_bytes
    if t.root in BYTES or is_wide_decimal(t):
        return _made(_read_bytes, blob_maker(t))
    if is_stamp(t):
        return _stamp(t)
    read, make = _READS[t.root], number_maker(t)
    return read if make is None else _made(read, make)


def _made(read: Read, make: Callable[[Any], Any]) -> Read:
    def read_and_make(data: bytes, at: int) -> tuple[Any, int]:
        value, end = read(data, at)
        return make(value), end

    return read_and_make


def _within(inner: Callable[[bytes, int, int], Any]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        size, at = read_varint(data, at)
        end = at + size
        if end > len(data):
            raise ValueError("a value that goes on behind its row")
        return inner(data, at, size), end

    return read


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


def _read_byte(data: bytes, at: int) -> tuple[int, int]:
    return data[at], at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(data, at)
    end = at + size
    return data[at:end], end


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _read_bytes(data, at)
    return raw.decode(), at


def _stamp(t: DataType) -> Read:
    make, nanos_too = stamp_maker(t), has_nanos(t)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        millis, at = _read_bigint(data, at)
        nanos = 0
        if nanos_too:
            nanos, at = _read_int(data, at)
        return make(millis, nanos), at

    return read


_READS: Final[Mapping[TypeRoot, Read]] = {
    _R.BOOLEAN: _read_byte,
    _R.TINYINT: _read_fixed(1),
    _R.SMALLINT: _read_fixed(2),
    _R.INTEGER: _read_int,
    _R.BIGINT: _read_bigint,
    _R.FLOAT: _read_float,
    _R.DOUBLE: _read_double,
    _R.DATE: _read_int,
    _R.TIME_WITHOUT_TIME_ZONE: _read_int,
    _R.DECIMAL: _read_bigint,
}
