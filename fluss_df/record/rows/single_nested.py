"""One array, map or row within a row, as ``nested`` reads those of a column.

The readers raise ValueError, IndexError, OverflowError or ``struct.error`` for bytes that are no
value of the type. They look at no byte outside those that they are given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fluss_df.record.rows.nested import element_width
from fluss_df.record.rows.row_values import BYTES, NESTED, has_nanos, is_number, is_stamp
from fluss_df.record.rows.single_python import blob_maker, number_maker, stamp_maker
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot
_INLINE: Final = 7
_COUNT_SIZE: Final = 4
_LONG: Final = struct.Struct("<q")
_FORMS: Final[Mapping[TypeRoot, str]] = {
    _R.BOOLEAN: "B",
    _R.TINYINT: "b",
    _R.SMALLINT: "h",
    _R.INTEGER: "i",
    _R.BIGINT: "q",
    _R.FLOAT: "f",
    _R.DOUBLE: "d",
    _R.DATE: "i",
    _R.TIME_WITHOUT_TIME_ZONE: "i",
    _R.DECIMAL: "q",
}

# takes bytes, where the value begins in them, and its size
Inner = Callable[[bytes, int, int], Any]
Row = Callable[[bytes, int], dict[str, Any] | None]
# makes what decodes rows of some columns in a format; None where it cannot
Rows = Callable[[Sequence[Column], str], Row | None]


def nested_reader(t: DataType, rows: Rows) -> Inner | None:
    """Return what reads an ARRAY, MAP or ROW; None where ``rows`` does not decode a row in it."""
    if t.element is not None:
        return _array(t.element, rows)
    if t.key is not None and t.value is not None:
        return _map(t.key.with_nullable(False), t.value, rows)
    names = [field.name for field in t.fields]
    decode = rows([Column(field.name, field.type) for field in t.fields], "compacted")
    return None if decode is None or len(set(names)) < len(names) else _row(decode)


def _row(decode: Row) -> Inner:
    def read(data: bytes, start: int, size: int) -> dict[str, Any]:
        row = decode(data[start : start + size], 0)
        if row is None:
            raise ValueError("no such row")
        return row

    return read


def _map(key: DataType, value: DataType, rows: Rows) -> Inner | None:
    read_keys, read_values = _array(key, rows), _array(value, rows)
    if read_keys is None or read_values is None:
        return None

    def read(data: bytes, start: int, size: int) -> list[tuple[Any, Any]]:
        key_size = _count(data, start, size)
        if not 0 <= key_size <= size - _COUNT_SIZE:
            raise ValueError("a map whose keys are longer than it is")
        at = start + _COUNT_SIZE
        keys = read_keys(data, at, key_size)
        values = read_values(data, at + key_size, size - _COUNT_SIZE - key_size)
        return list(zip(keys, values, strict=True))

    return read


def _count(data: bytes, start: int, size: int) -> int:
    if size < _COUNT_SIZE:
        raise ValueError("a value shorter than its count")
    return int.from_bytes(data[start : start + _COUNT_SIZE], "little", signed=True)


def _array(t: DataType, rows: Rows) -> Inner | None:
    if is_number(t):
        return _fixed(t, _FORMS[t.root], number_maker(t))
    if is_stamp(t):
        stamp = stamp_maker(t)
        return _nanos(t, stamp) if has_nanos(t) else _fixed(t, "q", lambda at: stamp(at, 0))
    if t.root in NESTED:
        inner = nested_reader(t, rows)
        return None if inner is None else _blobs(t, inner)
    of_bytes = blob_maker(t)
    return _blobs(t, lambda data, start, size: of_bytes(data[start : start + size]))


class _Elements:
    """The fixed part of an array: the words of its elements, and which are null."""

    __slots__ = ("bits", "data", "header", "some_null", "words")

    def __init__(self, data: bytes, start: int, size: int, t: DataType, form: str) -> None:
        count = _count(data, start, size)
        self.data = data
        self.bits = start + _COUNT_SIZE
        self.header = _COUNT_SIZE + (count + 31) // 32 * 4
        if count < 0 or self.header + count * element_width(t) > size:
            raise ValueError("an array longer than its bytes")
        self.words = struct.unpack_from(f"<{count}{form}", data, start + self.header)
        bits = int.from_bytes(data[self.bits : start + self.header], "little")
        self.some_null = bits & ((1 << count) - 1) != 0
        if self.some_null and not t.nullable:
            raise ValueError("null, which the type does not allow")

    def is_null(self, index: int) -> int:
        return self.some_null and self.data[self.bits + (index >> 3)] >> (index & 7) & 1


def _fixed(t: DataType, form: str, make: Callable[[Any], Any] | None) -> Inner:
    def read(data: bytes, start: int, size: int) -> list[Any]:
        found = _Elements(data, start, size, t, form)
        made = list(found.words)
        if found.some_null:
            is_null = found.is_null
            return [
                None if is_null(i) else word if make is None else make(word)
                for i, word in enumerate(made)
            ]
        return made if make is None else list(map(make, made))

    return read


def _nanos(t: DataType, make: Callable[[int, int], Any]) -> Inner:
    def read(data: bytes, start: int, size: int) -> list[Any]:
        found = _Elements(data, start, size, t, "Q")
        made: list[Any] = []
        for i, word in enumerate(found.words):
            if found.is_null(i):
                made.append(None)
                continue
            offset = word >> 32
            if offset + _LONG.size > size:
                raise ValueError("a timestamp outside its array")
            made.append(make(_LONG.unpack_from(data, start + offset)[0], word & 0xFFFFFFFF))
        return made

    return read


def _blobs(t: DataType, make: Inner) -> Inner:
    short_ones = t.root in BYTES

    def read(data: bytes, start: int, size: int) -> list[Any]:
        found = _Elements(data, start, size, t, "Q")
        made: list[Any] = []
        # values may not share bytes: a small hostile row would else grow large
        room = size
        for i, word in enumerate(found.words):
            if found.is_null(i):
                made.append(None)
                continue
            offset, length = word >> 32, word & 0xFFFFFFFF
            if short_ones and word >> 63:
                offset, length = found.header + 8 * i, word >> 56 & 0x7F
                if length > _INLINE:
                    raise ValueError("a short value of more than 7 bytes")
            room -= length
            if room < 0 or offset + length > size:
                raise ValueError("a value outside its array")
            made.append(make(data, start + offset, length))
        return made

    return read
