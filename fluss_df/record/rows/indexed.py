"""Indexed rows: bytes from and to Arrow.

A row begins with one null bit for each column, in whole bytes; then come the lengths (int32) of the
columns of variable length that are not null, in a room for all of them, and then the values, a null
taking nothing. Numbers are little endian; CHAR(n) and BINARY(n) take n bytes, filled with zeros,
which servers take off again: they fail on a BINARY(n) that ends with a zero byte of its own;
timestamps are int64 milliseconds and, above a precision of 3, int32 nanoseconds of the millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss_df.errors import SchemaMismatchError
from fluss_df.record.layout.unaligned import (
    SLACK,
    Blobs,
    Bools,
    Int64s,
    Part,
    UInt8s,
    Words,
    copy_blobs,
    word_view,
)
from fluss_df.record.rows import compacted
from fluss_df.record.rows import row_values as rv
from fluss_df.record.rows.compacted import extract_column, masked
from fluss_df.record.rows.nested import decode_nested, encode_nested
from fluss_df.types import Column, DataType, TypeRoot

_R = TypeRoot
_LENGTH_SIZE = 4


def _is_variable(t: DataType) -> bool:
    """Whether a length stands in the head of a row for values of this type."""
    return t.root in (_R.STRING, _R.BYTES, *rv.NESTED) or rv.is_wide_decimal(t)


class RowEncoder(compacted.RowEncoder):
    """Encodes rows of Arrow as indexed rows; otherwise as the one of compacted rows."""

    def parts(
        self,
        batch: pa.RecordBatch,
        first_row: int = 0,
        known: compacted.KnownParts = compacted.NONE_KNOWN,
    ) -> list[Part]:
        """Return the parts of the rows of a batch; those of keys have another form here."""
        n = batch.num_rows
        heads = [np.zeros(n, np.uint64) for _ in range((len(self.columns) + 7) // 8)]
        variable = [i for i, column in enumerate(self.columns) if _is_variable(column.type)]
        room = np.zeros((n, len(variable)), np.uint64)
        used = np.zeros(n, np.int64)
        parts: list[Part] = []
        rows = np.arange(n)
        for i, column in enumerate(self.columns):
            values, valid = extract_column(batch.column(i), column, first_row, _encode)
            if valid is not None:
                heads[i >> 3] |= (~valid).astype(np.uint64) << np.uint64(i & 7)
            if i in variable:
                assert isinstance(values, Blobs)
                here = rows if valid is None else np.flatnonzero(valid)
                room[here, used[here]] = values.lengths[here].view(np.uint64)
                used[here] += 1
            made = _field_parts(values, column, valid, first_row)
            parts += [masked(part, valid) for part in made]
        lengths: list[Part] = [Words(room[:, i], _LENGTH_SIZE) for i in range(len(variable))]
        return [Words(head, 1) for head in heads] + lengths + parts


def _field_parts(
    values: rv.Values, column: Column, valid: Bools | None, first_row: int
) -> list[Part]:
    t = column.type
    if isinstance(values, rv.Numbers):
        return [Words(values.values, values.width)]
    if isinstance(values, rv.Stamps):
        millis = Words(values.millis.view(np.uint64), 8)
        return [millis, Words(values.nanos.view(np.uint64), 4)] if rv.has_nanos(t) else [millis]
    if _is_variable(t):
        return [values]
    width = t.length or 0
    n = len(values.lengths)
    # servers strip zero bytes at the end of CHAR(n) and BINARY(n), as they take them for padding
    last = values.data[values.starts + np.maximum(values.lengths - 1, 0)]
    over = (values.lengths > width) | ((last == 0) & (values.lengths > 0))
    if over.any():
        row = first_row + int(np.flatnonzero(over)[0])
        what = (
            f"the text in row {row} takes more than {width} bytes of UTF-8, or ends with a zero "
            "character"
            if t.root is _R.CHAR
            else f"the value in row {row} ends with a zero byte"
        )
        raise SchemaMismatchError(
            f"column '{column.name}' ({t}): {what}: indexed rows cannot hold it, compacted ones can"
        )
    filled = np.zeros(n * width + SLACK, np.uint8)
    at = np.arange(n) * width
    copy_blobs(values.data, values.starts, values.lengths, filled, at, exact=True)
    return [Blobs(filled, at, np.full(n, width, np.int64))]


def _encode(array: pa.Array, t: DataType, path: str) -> Blobs:
    return encode_nested(array, t, path, RowEncoder)


class RowDecoder(compacted.RowDecoder):
    """Decodes indexed rows to Arrow; otherwise as the one of compacted rows."""

    def __init__(self, columns: Sequence[Column], target: Sequence[str] | None = None) -> None:
        super().__init__(columns, target)
        self._variable = sum(_is_variable(column.type) for column in self.columns)

    def _head_width(self) -> int:
        return super()._head_width() + _LENGTH_SIZE * self._variable

    def _cursor(
        self, data: UInt8s, starts: Int64s, ends: Int64s, first_row: int
    ) -> compacted.Cursor:
        lengths_at = starts + super()._head_width()
        return _Cursor(data, starts + self._head_width(), ends, first_row, lengths_at)


class _Cursor(compacted.Cursor):
    """Where the next column and its length stand."""

    def __init__(
        self, data: UInt8s, at: Int64s, ends: Int64s, first_row: int, lengths_at: Int64s
    ) -> None:
        super().__init__(data, at, ends, first_row)
        self._lengths_at = lengths_at

    def read(
        self, column: Column, valid: Bools | None, fail: rv.Fail, wanted: bool
    ) -> pa.Array | None:
        t = column.type
        values: rv.Values
        if rv.is_number(t):
            values = rv.Numbers(self.number(rv.width_of(t), valid, fail), rv.width_of(t))
        elif rv.is_stamp(t):
            millis = self.number(8, valid, fail).view(np.int64)
            nanos = np.zeros(len(millis), np.int64)
            if rv.has_nanos(t):
                nanos = self.number(4, valid, fail).view(np.int64)
            values = rv.Stamps(millis, nanos)
        else:
            lengths = self._blob_lengths(t, valid, fail)
            starts = self.at if valid is None else np.where(valid, self.at, 0)
            self.skip(lengths, valid, fail)
            if t.root is _R.CHAR:
                lengths = _without_zeros(self.data, starts, lengths)
            values = Blobs(self.data, starts, lengths)
            if wanted and t.root in rv.NESTED:
                return decode_nested(values, t, valid, column.name, RowDecoder)
        return rv.build(values, t, valid, fail) if wanted else None

    def _blob_lengths(self, t: DataType, valid: Bools | None, fail: rv.Fail) -> Int64s:
        n = len(self.at)
        if _is_variable(t):
            lengths = word_view(self.data, 4)[self._lengths_at].view(np.int32).astype(np.int64)
            self._lengths_at = self._lengths_at + (
                _LENGTH_SIZE if valid is None else _LENGTH_SIZE * valid.astype(np.int64)
            )
        else:
            lengths = np.full(n, t.length or 0, np.int64)
        if valid is not None:
            lengths[~valid] = 0
        if (lengths < 0).any():
            raise fail("a length below zero", lengths < 0)
        return lengths


def _without_zeros(data: UInt8s, starts: Int64s, lengths: Int64s) -> Int64s:
    lengths = lengths.copy()
    rows = np.flatnonzero(lengths)
    while len(rows):
        rows = rows[data[starts[rows] + lengths[rows] - 1] == 0]
        lengths[rows] -= 1
        rows = rows[lengths[rows] > 0]
    return lengths
