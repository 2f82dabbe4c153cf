"""Compacted rows, the rows of primary-key tables: bytes from and to Arrow.

A row begins with one null bit for each column (1 is null), in whole bytes; its values follow in the
order of the columns, and a null takes nothing. INT, BIGINT, DATE, TIME, decimals up to 18 digits
and the parts of timestamps are unsigned LEB128 of their two's complement; other numbers are little
endian; everything else is a length (LEB128) and bytes. Within arrays and maps see
:mod:`fluss_df.record.rows.nested`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.headers import Bytes
from fluss_df.record.layout.unaligned import (
    Blobs,
    Bools,
    Int64s,
    Part,
    UInt8s,
    UInt64s,
    Words,
    assemble,
    join,
    padded,
    read_varints,
    varint_parts,
    word_view,
)
from fluss_df.record.rows import row_values as rv
from fluss_df.record.rows.nested import decode_nested, encode_nested
from fluss_df.types import Column, DataType, TypeRoot, to_arrow

_R = TypeRoot
# by the name of a column: the encoded parts of its values, where its key has them already
KnownParts = Mapping[str, Sequence[Part]]
NONE_KNOWN: Final[KnownParts] = {}
# about how many rows are worked on at once: what belongs to them stays in the processor's cache
BLOCK_ROWS: Final = 1 << 13
VARINTS: Final = frozenset({_R.INTEGER, _R.BIGINT, _R.DATE, _R.TIME_WITHOUT_TIME_ZONE, _R.DECIMAL})


def pieces(table: pa.Table, rows: int = BLOCK_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a table into equal batches of about that many rows, at most half as many again."""
    if len(table.columns) and table.column(0).num_chunks > 1:
        table = table.combine_chunks()
    # a batch costs a quarter of a millisecond, however few its rows: the rest gets none of its own
    count = max(1, round(table.num_rows / rows))
    yield from table.to_batches(max_chunksize=max(1, -(-table.num_rows // count)))


def check_columns(table: pa.Table, columns: Sequence[Column]) -> None:
    """Check that a table has the columns, in order.

    Raises SchemaMismatchError where it has not.
    """
    wanted = [column.name for column in columns]
    if table.schema.names != wanted:
        raise SchemaMismatchError(
            f"rows have the columns {', '.join(table.schema.names)}, not {', '.join(wanted)}"
        )


def extract_column(
    array: pa.Array, column: Column, first_row: int, nested: rv.NestedEncoder
) -> tuple[rv.Values, Bools | None]:
    """Return the values of a column, and which are not null.

    Raises SchemaMismatchError for a null in a column that is NOT NULL, or values that rows cannot
    hold.
    """
    valid = rv.validity(array)
    if valid is not None and not column.type.nullable:
        row = first_row + int(np.flatnonzero(~valid)[0])
        raise SchemaMismatchError(f"column '{column.name}' ({column.type}): null in row {row}")
    return rv.extract(array, column.type, column.name, nested), valid


class RowEncoder:
    r"""Encodes rows of Arrow as compacted rows. Immutable and thread safe.

    Examples
    --------
    >>> encoder = RowEncoder([Column("id", DataType(TypeRoot.BIGINT))])
    >>> encoder.encode(pa.table({"id": [300]}))[0]
    b'\x00\xac\x02'
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)

    def encode(self, table: pa.Table) -> EncodedRows:
        """Encode all rows.

        ``table`` has exactly the columns of the encoder, with their Arrow types.

        Raises SchemaMismatchError for other columns or types, a null in a column that is NOT NULL,
        or a value that rows cannot hold (a TIME with digits below the millisecond).
        """
        check_columns(table, self.columns)
        made = []
        row = 0
        for batch in pieces(table):
            made.append(assemble(self.parts(batch, row), batch.num_rows))
            row += batch.num_rows
        return join(made)

    def parts(
        self, batch: pa.RecordBatch, first_row: int = 0, known: KnownParts = NONE_KNOWN
    ) -> list[Part]:
        """Return the parts of the rows of a batch, for rows within something larger.

        ``known`` has the parts of columns that were encoded for the key. They have the same form in
        a row, and no nulls.
        """
        n = batch.num_rows
        width = (len(self.columns) + 7) // 8
        heads = [np.zeros(n, np.uint64) for _ in range(width)]
        parts: list[Part] = []
        for i, column in enumerate(self.columns):
            if column.name in known:
                parts += known[column.name]
                continue
            values, valid = extract_column(batch.column(i), column, first_row, _encode)
            if valid is not None:
                heads[i >> 3] |= (~valid).astype(np.uint64) << np.uint64(i & 7)
            parts += [masked(part, valid) for part in field_parts(values, column.type)]
        return [Words(head, 1) for head in heads] + parts


def masked(part: Part, kept: Bools | None) -> Part:
    """Return a part that is empty in some rows."""
    if kept is None:
        return part
    lengths = np.where(kept, part.lengths, 0)
    if isinstance(part, Words):
        return Words(part.values * kept, lengths)
    return Blobs(part.data, np.where(kept, part.starts, 0), lengths)


def field_parts(values: rv.Values, t: DataType) -> list[Part]:
    """Return the parts that stand in a compacted row (or key) for the values of a column."""
    if isinstance(values, Blobs):
        return [*varint_parts(values.lengths.view(np.uint64)), values]
    if isinstance(values, rv.Stamps):
        parts: list[Part] = [*varint_parts(values.millis.view(np.uint64))]
        if rv.has_nanos(t):
            parts += varint_parts(values.nanos.view(np.uint64))
        return parts
    if t.root in VARINTS:
        return [*varint_parts(values.values)]
    return [Words(values.values, values.width)]


def _encode(array: pa.Array, t: DataType, path: str) -> Blobs:
    return encode_nested(array, t, path, RowEncoder)


class RowDecoder:
    r"""Decodes compacted rows to Arrow. Immutable and thread safe.

    ``columns`` are those of the rows, in order. ``target`` names the columns wanted, in the order
    wanted; None for all. Others are skipped over.

    Examples
    --------
    >>> decoder = RowDecoder([Column("id", DataType(TypeRoot.BIGINT))])
    >>> decoder.decode(b"\x00\xac\x02", np.array([0]), np.array([3])).to_pydict()
    {'id': [300]}
    """

    def __init__(self, columns: Sequence[Column], target: Sequence[str] | None = None) -> None:
        self.columns = tuple(columns)
        types = {column.name: column.type for column in self.columns}
        self._target = [c.name for c in self.columns] if target is None else list(target)
        self._wanted = frozenset(self._target)
        for name in self._target:
            if name not in types:
                raise FlussError(f"rows have no column '{name}', only {', '.join(types)}")
        self.schema = pa.schema(
            [pa.field(name, to_arrow(types[name]), types[name].nullable) for name in self._target]
        )

    def decode(self, data: Bytes, starts: Int64s, ends: Int64s) -> pa.Table:
        """Decode the rows that stand from ``starts[i]`` to ``ends[i]`` (exclusive).

        The result does not refer to ``data``.

        Raises ProtocolError for bytes that are no such rows, naming row (from 0) and column.
        """
        raw = padded(data)
        bad = (starts < 0) | (ends < starts) | (ends > len(raw) - 16)
        if bad.any():
            raise ProtocolError(f"row {np.flatnonzero(bad)[0]} does not lie within the bytes")
        return self.decode_padded(raw, starts, ends)

    def decode_padded(self, data: UInt8s, starts: Int64s, ends: Int64s) -> pa.Table:
        """Decode rows in bytes with slack; where they stand was checked."""
        batches = [
            self._block(data, starts[i : i + BLOCK_ROWS], ends[i : i + BLOCK_ROWS], i)
            for i in range(0, len(starts), BLOCK_ROWS)
        ]
        table = pa.Table.from_batches(batches, self.schema)
        return table.combine_chunks() if len(batches) > 4 else table

    def _head_width(self) -> int:
        return (len(self.columns) + 7) // 8

    def _cursor(self, data: UInt8s, starts: Int64s, ends: Int64s, first_row: int) -> Cursor:
        return Cursor(data, starts + self._head_width(), ends, first_row)

    def _block(self, data: UInt8s, starts: Int64s, ends: Int64s, first_row: int) -> pa.RecordBatch:
        short = ends - starts < self._head_width()
        if short.any():
            raise ProtocolError(
                f"row {first_row + np.flatnonzero(short)[0]} is shorter than its head"
            )
        cursor = self._cursor(data, starts, ends, first_row)
        heads = [data.take(starts + i) for i in range((len(self.columns) + 7) // 8)]
        some_null = [bool(head.any()) for head in heads]
        found: dict[str, pa.Array] = {}
        for i, column in enumerate(self.columns):
            valid = None
            if some_null[i >> 3]:
                null = (heads[i >> 3] >> np.uint8(i & 7)) & 1
                if null.any():
                    valid = null == 0
            fail = rv.failing(column.name, column.type, first_row)
            if valid is not None and not column.type.nullable:
                raise fail("null", ~valid)
            made = cursor.read(column, valid, fail, column.name in self._wanted)
            if made is not None:
                found[column.name] = made
        rest = cursor.at != ends
        if rest.any():
            row = int(np.flatnonzero(rest)[0])
            raise ProtocolError(
                f"row {first_row + row}: {ends[row] - cursor.at[row]} bytes behind its last column"
            )
        if not self._target:
            return pa.record_batch([pa.nulls(len(starts))], names=[""]).select([])
        return pa.RecordBatch.from_arrays(
            [found[name] for name in self._target], schema=self.schema
        )


class Cursor:
    """Where the next column of each row begins; never beyond the row's end."""

    def __init__(self, data: UInt8s, at: Int64s, ends: Int64s, first_row: int) -> None:
        self.data = data
        self.at = at
        self.ends = ends
        self.first_row = first_row
        self._words = word_view(data)

    def skip(self, lengths: Int64s | int, valid: Bools | None, fail: rv.Fail) -> None:
        """Move over bytes of the rows that have a value."""
        if valid is not None:
            lengths = np.where(valid, lengths, 0)
        at = self.at + lengths
        over = at > self.ends
        if over.any():
            raise fail("it reaches beyond the end of its row", over)
        self.at = at

    def _varint(self, bits: int, valid: Bools | None, fail: rv.Fail) -> UInt64s:
        values, lengths = read_varints(self.data, self.at)
        if valid is not None:
            values *= valid
        if not isinstance(lengths, int) and int(lengths.max()) > 4:
            bad = lengths > (10 if bits == 64 else 5)
            if bits == 32:
                bad |= values >> np.uint64(32) != 0
            if valid is not None:
                bad &= valid
            if bad.any():
                raise fail(f"a number of more than {bits} bits", bad)
        self.skip(lengths, valid, fail)
        return values

    def _sizes(self, valid: Bools | None, fail: rv.Fail) -> Int64s:
        # bytes are read in a sixth of the time of unaligned words
        sizes = self.data.take(self.at)
        if valid is not None:
            sizes *= valid
        if len(sizes) and int(sizes.max()) >= 0x80:
            return self._varint(32, valid, fail).view(np.int64)
        self.skip(1, valid, fail)
        return sizes.astype(np.int64)

    def number(self, width: int, valid: Bools | None, fail: rv.Fail) -> UInt64s:
        """Read little-endian numbers; nulls become zero."""
        raw = self._words[self.at].astype(np.uint64)
        if width < 8:
            raw &= np.uint64((1 << 8 * width) - 1)
        if valid is not None:
            raw[~valid] = 0
        self.skip(width, valid, fail)
        return raw

    def read(
        self, column: Column, valid: Bools | None, fail: rv.Fail, wanted: bool
    ) -> pa.Array | None:
        """Read a column and move behind it; return its array where it is wanted."""
        t = column.type
        values: rv.Values
        if rv.is_stamp(t):
            millis = self._varint(64, valid, fail).view(np.int64)
            nanos = np.zeros(len(millis), np.int64)
            if rv.has_nanos(t):
                nanos = self._varint(32, valid, fail).view(np.int64)
            values = rv.Stamps(millis, nanos)
        elif rv.is_number(t):
            width = rv.width_of(t)
            if t.root in VARINTS:
                raw = self._varint(64 if width == 8 else 32, valid, fail)
            else:
                raw = self.number(width, valid, fail)
            values = rv.Numbers(raw, width)
        else:
            lengths = self._sizes(valid, fail)
            starts = self.at if valid is None else np.where(valid, self.at, 0)
            self.skip(lengths, valid, fail)
            values = Blobs(self.data, starts, lengths)
            if wanted and t.root in rv.NESTED:
                return decode_nested(values, t, valid, column.name, RowDecoder)
        return rv.build(values, t, valid, fail) if wanted else None
