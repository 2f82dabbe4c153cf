"""One value of Python as the bytes that stand for it in a compacted row or key.

Values come as users give them. The encoders return None for a value that is left to the vectorised
codecs: one that does not fit, and one of which it is not certain.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from fluss_df.record.layout.unaligned import varint
from fluss_df.record.rows.row_values import is_wide_decimal
from fluss_df.record.rows.single_numbers import EPOCH_DAY, since_epoch_of, unscaled_of
from fluss_df.types import DataType, TypeRoot, to_arrow

_R = TypeRoot
_MASK: Final = 0xFFFFFFFF
_LONG_MASK: Final = (1 << 64) - 1

Encode = Callable[[Any], bytes | None]


def value_encoder(t: DataType) -> Encode | None:
    r"""Return what encodes a value that is not null; None for nested types.

    The encoder raises UnicodeEncodeError or OverflowError for some values that do not fit.

    Examples
    --------
    >>> encode = value_encoder(DataType(TypeRoot.BINARY, length=2))
    >>> encode(b"ab"), encode(b"abc")
    (b'\x02ab', None)
    """
    make = _MAKERS.get(t.root)
    return _PLAIN.get(t.root) if make is None else make(t)


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


def _letters(t: DataType) -> Encode:
    most = t.length or 0
    return lambda value: _text(value) if type(value) is str and len(value) <= most else None


def _bytes(value: Any) -> bytes | None:
    return varint(len(value)) + value if type(value) is bytes else None


def _binary(t: DataType) -> Encode:
    size = t.length or 0
    head = varint(size)
    return lambda value: head + value if type(value) is bytes and len(value) == size else None


def _bool(value: Any) -> bytes | None:
    return bytes((value,)) if type(value) is bool else None


def _date(value: Any) -> bytes | None:
    return varint(value.toordinal() - EPOCH_DAY & _MASK) if type(value) is dt.date else None


def _floating(form: str, exact: int) -> Encode:
    """Return the encoder of floats, and of integers up to ``exact``."""
    pack = struct.Struct(form).pack

    def encode(value: Any) -> bytes | None:
        if type(value) is float:
            # a NaN has payload bits, which Python does not keep
            return pack(value) if value == value else None
        return pack(value) if type(value) is int and -exact <= value <= exact else None

    return encode


def _decimal(t: DataType) -> Encode:
    unscaled = unscaled_of(t)
    wide = is_wide_decimal(t)

    def encode(value: Any) -> bytes | None:
        number = unscaled(value)
        if number is None:
            return None
        if not wide:
            return varint(number & _LONG_MASK)
        # the fewest bytes that hold the number and its sign
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return varint(size) + number.to_bytes(size, "big", signed=True)

    return encode


def _time(t: DataType) -> Encode:
    # Rows refuse digits below the millisecond. Keys lose them: a lookup has to notice that.
    step = 10 ** (6 - min(t.precision or 0, 3))

    def encode(value: Any) -> bytes | None:
        if type(value) is not dt.time or value.tzinfo is not None or value.microsecond % step:
            return None
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return varint(seconds * 1000 + value.microsecond // 1000)

    return encode


def _stamp(t: DataType) -> Encode:
    since_epoch = since_epoch_of(t)
    unit = to_arrow(t).unit
    if unit in ("s", "ms"):
        millis_each = 1000 if unit == "s" else 1

        def encode_millis(value: Any) -> bytes | None:
            number = since_epoch(value)
            return None if number is None else varint(number * millis_each & _LONG_MASK)

        return encode_millis
    per_milli, nanos_each = (1000, 1000) if unit == "us" else (1_000_000, 1)

    def encode(value: Any) -> bytes | None:
        number = since_epoch(value)
        if number is None:
            return None
        millis, rest = divmod(number, per_milli)
        return varint(millis & _LONG_MASK) + varint(rest * nanos_each)

    return encode


_PLAIN: Final[Mapping[TypeRoot, Encode]] = {
    _R.BOOLEAN: _bool,
    _R.TINYINT: _integer(8, fixed=True),
    _R.SMALLINT: _integer(16, fixed=True),
    _R.INTEGER: _integer(32, fixed=False),
    _R.BIGINT: _integer(64, fixed=False),
    _R.FLOAT: _floating("<f", 1 << 24),
    _R.DOUBLE: _floating("<d", 1 << 53),
    _R.STRING: _text,
    _R.BYTES: _bytes,
    _R.DATE: _date,
}
_MAKERS: Final[Mapping[TypeRoot, Callable[[DataType], Encode]]] = {
    _R.CHAR: _letters,
    _R.BINARY: _binary,
    _R.DECIMAL: _decimal,
    _R.TIME_WITHOUT_TIME_ZONE: _time,
    _R.TIMESTAMP_WITHOUT_TIME_ZONE: _stamp,
    _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE: _stamp,
}
