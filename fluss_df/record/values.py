"""Values of primary-key tables, as lookups and scans return them, into Arrow.

A value is the id of the schema that it was written with (int16) and a compacted row. All values of
an answer are decoded at once, column by column. Every length that a peer sends is checked before it
is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.headers import Bytes, byte_view
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
_BATCH_HEADER: Final = 9
_SLACK: Final = 16

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]

_PLAIN: Final[dict[TypeRoot, np.dtype[Any]]] = {
    _R.BOOLEAN: np.dtype("u1"),
    _R.TINYINT: np.dtype("i1"),
    _R.SMALLINT: np.dtype("<i2"),
    _R.FLOAT: np.dtype("<f4"),
    _R.DOUBLE: np.dtype("<f8"),
}
_TIMESTAMPS: Final = (_R.TIMESTAMP_WITHOUT_TIME_ZONE, _R.TIMESTAMP_WITH_LOCAL_TIME_ZONE)


class ValueDecoder:
    """Decodes values; immutable and thread safe.

    Parameters
    ----------
    schemas
        The columns of each schema id.
    target
        The columns of the result, by name; one that a value's schema lacks is null.
    kv_format
        The table's ``table.kv.format``; ``"compacted"`` only.
    """

    def __init__(
        self, schemas: Mapping[int, Sequence[Column]], target: pa.Schema, kv_format: str
    ) -> None:
        if kv_format != "compacted":
            raise FlussError(
                f"the kv format '{kv_format}' cannot be read", ErrorCode.UNSUPPORTED_VERSION
            )
        self._schemas = dict(schemas)
        self._target = target

    def decode_values(
        self, values: Sequence[bytes] | tuple[npt.NDArray[np.uint8], Int64s, Int64s]
    ) -> pa.Table:
        """Return the rows of values, in their order.

        Parameters
        ----------
        values
            The values, or where they begin and end in an array of bytes.

        Raises
        ------
        ProtocolError
            For bytes that are not values.
        FlussError
            ``SCHEMA_NOT_EXIST`` for a schema that is not known here.
        """
        if isinstance(values, tuple):
            data, starts, ends = values
        else:
            data = np.frombuffer(b"".join(values), np.uint8)
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            ends = np.cumsum(lengths)
            starts = ends - lengths
        if not len(starts):
            return pa.Table.from_batches([], self._target)
        if (ends - starts < 2).any():
            raise ProtocolError("a value is too short for its schema id")
        ids = data[starts].astype(np.int64) | data[starts + 1].astype(np.int64) << 8
        padded = np.concatenate([data, np.zeros(_SLACK, np.uint8)])
        tables, places = [], []
        for schema_id in np.unique(ids).tolist():
            columns = self._schemas.get(schema_id)
            if columns is None:
                raise FlussError(
                    f"a value has schema {schema_id}, which is not known here",
                    ErrorCode.SCHEMA_NOT_EXIST,
                )
            at = np.flatnonzero(ids == schema_id)
            places.append(at)
            tables.append(self._rows(padded, starts[at] + 2, ends[at], columns))
        if len(tables) == 1:
            return tables[0]
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(tables).combine_chunks().take(pa.array(order))

    def decode_batch(self, data: Bytes) -> pa.Table:
        """Return the rows of a value batch: length, magic, count, then length and value of each."""
        content = np.frombuffer(data, np.uint8)
        if not len(content):
            return pa.Table.from_batches([], self._target)
        if len(content) < _BATCH_HEADER:
            raise ProtocolError("a value batch is shorter than its header")
        count = int(content[5:9].view("<i4")[0])
        # every value takes at least its length and its schema id
        if content[4] != 0 or not 0 <= count <= (len(content) - _BATCH_HEADER) // 6:
            raise ProtocolError(f"a value batch of {len(content)} bytes claims {count} values")
        starts = np.empty(count, np.int64)
        ends = np.empty(count, np.int64)
        view = byte_view(data)
        at = _BATCH_HEADER
        for i in range(count):
            length = int.from_bytes(view[at : at + 4], "little", signed=True)
            starts[i] = at + 4
            at += 4 + length
            if length < 2 or at > len(content):
                raise ProtocolError(f"value {i} of a value batch reaches beyond its end")
            ends[i] = at
        return self.decode_values((content, starts, ends))

    def _rows(
        self, data: UInt8s, starts: Int64s, ends: Int64s, columns: Sequence[Column]
    ) -> pa.Table:
        head = -(-len(columns) // 8)
        _within(starts + head, ends)
        bits = data[starts[:, None] + np.arange(head)]
        position = starts + head
        made: dict[str, pa.Array] = {}
        wanted = set(self._target.names)
        for i, column in enumerate(columns):
            present = (bits[:, i >> 3] >> (i & 7) & 1) == 0
            rows = np.flatnonzero(present)
            reader = _Cursor(data, position[rows], ends[rows])
            array = _column(reader, column, present, wanted=column.name in wanted)
            position[rows] = reader.position
            if array is not None:
                made[column.name] = array
        if (position != ends).any():
            raise ProtocolError("a row of a primary-key table does not end where its value does")
        arrays = []
        for field in self._target:
            array = made.get(field.name)
            if array is None:
                array = pa.nulls(len(starts), field.type)
            elif array.type != field.type:
                raise FlussError(f"column '{field.name}' is {array.type}, not {field.type}")
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self._target)


class _Cursor:
    """Where rows are read, all at once."""

    def __init__(self, data: UInt8s, position: Int64s, ends: Int64s) -> None:
        self._data = data
        self.position = position
        self._ends = ends

    def numbers(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return a number of each row."""
        _within(self.position + kind.itemsize, self._ends)
        view: npt.NDArray[Any] = np.ndarray(
            (len(self._data) - _SLACK + 1,), kind, self._data.data, strides=(1,)
        )
        values = view[self.position]
        self.position = self.position + kind.itemsize
        return values

    def varint(self, width: int) -> Int64s:
        """Return an unsigned LEB128 of each row as a number of ``width`` (32 or 64) bits."""
        result = np.zeros(len(self.position), np.uint64)
        open_rows = np.arange(len(self.position))
        position = self.position.copy()
        for i in range(-(-width // 7)):
            _within(position[open_rows] + 1, self._ends[open_rows])
            byte = self._data[position[open_rows]].astype(np.uint64)
            position[open_rows] += 1
            low = byte & np.uint64(0x7F)
            if 7 * (i + 1) > width and (low >> np.uint64(width - 7 * i)).any():
                raise ProtocolError(f"a number of a row does not fit {width} bits")
            result[open_rows] |= low << np.uint64(7 * i)
            open_rows = open_rows[byte >= 0x80]
            if not len(open_rows):
                break
        if len(open_rows):
            raise ProtocolError(f"a number of a row does not fit {width} bits")
        self.position = position
        if width == 32:
            return result.astype(np.uint32).view(np.int32).astype(np.int64)
        return result.view(np.int64)

    def lengths(self) -> Int64s:
        """Return a length of each row, and check that so many bytes follow."""
        lengths = self.varint(32)
        if (lengths < 0).any():
            raise ProtocolError("a length of a row is negative")
        _within(self.position + lengths, self._ends)
        return lengths

    def content(self, lengths: Int64s, *, wanted: bool) -> UInt8s:
        """Return so many bytes of each row, behind each other."""
        starts = self.position
        self.position = starts + lengths
        if not wanted:
            return self._data[:0]
        begins = np.cumsum(lengths) - lengths
        index = np.arange(int(lengths.sum())) + np.repeat(starts - begins, lengths)
        content: UInt8s = self._data[index]
        return content


def _within(position: Int64s, ends: Int64s) -> None:
    if (position > ends).any():
        raise ProtocolError("a row of a primary-key table reaches beyond its end")


def _column(
    reader: _Cursor, column: Column, present: npt.NDArray[np.bool_], *, wanted: bool
) -> pa.Array | None:
    """Read a column of all rows that have it; None where it is not wanted."""
    t = column.type
    root = t.root
    if root in (_R.STRING, _R.CHAR, _R.BYTES, _R.BINARY):
        lengths = reader.lengths()
        content = reader.content(lengths, wanted=wanted)
        return _strings(column, lengths, content, present) if wanted else None
    values: npt.NDArray[Any]
    if root in _PLAIN:
        values = reader.numbers(_PLAIN[root])
        if root is _R.BOOLEAN:
            if (values > 1).any():
                raise ProtocolError(f"column '{column.name}': a boolean is neither 0 nor 1")
            values = values.astype(np.bool_)
    elif root in (_R.INTEGER, _R.DATE):
        values = reader.varint(32).astype(np.int32)
    elif root is _R.BIGINT:
        values = reader.varint(64)
    elif root is _R.TIME_WITHOUT_TIME_ZONE:
        values = _time(reader.varint(32), t, column.name)
    elif root in _TIMESTAMPS:
        millis = reader.varint(64)
        nanos = reader.varint(32) if (t.precision or 0) > 3 else np.zeros(len(millis), np.int64)
        values = _timestamp(millis, nanos, t, column.name)
    elif root is _R.DECIMAL:
        return _decimal(reader, column, present, wanted=wanted)
    else:
        raise FlussError(
            f"column '{column.name}' of type {t} of a primary-key table cannot be read",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if not wanted:
        return None
    kind = to_arrow(t)
    full = np.zeros(len(present), values.dtype)
    full[present] = values
    mask = None if present.all() else ~present
    array = pa.array(full, mask=mask)
    return array if array.type == kind else array.view(kind)


def _strings(
    column: Column, lengths: Int64s, content: UInt8s, present: npt.NDArray[np.bool_]
) -> pa.Array:
    if len(content) >= 2**31:
        raise FlussError(
            f"column '{column.name}' has {len(content)} bytes in one answer: ask for fewer rows"
        )
    full = np.zeros(len(present) + 1, np.int32)
    widths = np.zeros(len(present), np.int64)
    widths[present] = lengths
    np.cumsum(widths, out=full[1:])
    t = column.type
    kind = to_arrow(t)
    validity = None if present.all() else pa.array(present).buffers()[1]
    if t.root is _R.BINARY:
        if (lengths != t.length).any():
            raise ProtocolError(f"column '{column.name}': a value is not {t.length} bytes long")
        plain = pa.Array.from_buffers(
            pa.binary(), len(present), [validity, pa.py_buffer(full), pa.py_buffer(content)]
        )
        return plain.cast(kind)
    array = pa.Array.from_buffers(
        kind, len(present), [validity, pa.py_buffer(full), pa.py_buffer(content)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"column '{column.name}' of a value: {error}") from None
    return array


def _time(millis: Int64s, t: DataType, name: str) -> npt.NDArray[Any]:
    if ((millis < 0) | (millis >= 86_400_000)).any():
        raise ProtocolError(f"column '{name}': a time is not within a day")
    precision = t.precision or 0
    if precision == 0:
        return (millis // 1000).astype(np.int32)
    if precision <= 3:
        return millis.astype(np.int32)
    return millis * (1_000 if precision <= 6 else 1_000_000)


def _timestamp(millis: Int64s, nanos: Int64s, t: DataType, name: str) -> Int64s:
    if ((nanos < 0) | (nanos >= 1_000_000)).any():
        raise ProtocolError(f"column '{name}': a timestamp has too many nanoseconds")
    precision = t.precision or 0
    if precision == 0:
        return millis // 1000
    if precision <= 3:
        return millis
    factor = 1_000 if precision <= 6 else 1_000_000
    limit = (2**63 - 1) // factor - 1
    if ((millis > limit) | (millis < -limit)).any():
        raise ProtocolError(f"column '{name}': a timestamp does not fit 64 bits")
    return millis * factor + nanos // (1_000_000 // factor)


def _decimal(
    reader: _Cursor, column: Column, present: npt.NDArray[np.bool_], *, wanted: bool
) -> pa.Array | None:
    words = np.zeros((len(present), 2), np.int64)
    if (column.type.precision or 0) <= 18:
        unscaled = reader.varint(64)
        words[present] = np.stack([unscaled, unscaled >> 63], axis=1)
    else:
        lengths = reader.lengths()
        if ((lengths < 1) | (lengths > 16)).any():
            raise ProtocolError(f"column '{column.name}': a decimal has no or too many bytes")
        content = reader.content(lengths, wanted=True)
        ends = np.cumsum(lengths)
        # byte i from the right of each value, the sign in front of the first
        sign = np.where(content[ends - lengths] & 0x80, 0xFF, 0).astype(np.uint8)
        little = np.empty((len(lengths), 16), np.uint8)
        for i in range(16):
            byte = content[np.maximum(ends - 1 - i, 0)] if len(ends) else sign
            little[:, i] = np.where(i < lengths, byte, sign)
        words[present] = little.view("<i8")
    if not wanted:
        return None
    validity = None if present.all() else pa.array(present).buffers()[1]
    array = pa.Array.from_buffers(
        to_arrow(column.type), len(present), [validity, pa.py_buffer(words)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"column '{column.name}' of a value: {error}") from None
    return array
