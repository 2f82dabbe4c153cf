"""Values that a batch of changes has to do with, in one buffer: named by where they stand.

A value is a schema id (int16) and a row, as RocksDB holds it. Old values, new ones and merged ones
are put behind each other, and what is made of them (the changelog, what is stored) is an order of
places in this buffer: nothing is copied row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fluss_df.engine.merge.wide_lists import WideLists
from fluss_df.engine.tables.tables import Table
from fluss_df.record.kv.kv_batch import KvRecords
from fluss_df.record.kv.values import ValueDecoder, encode_values
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.unaligned import SLACK, Bools, Int64s, UInt8s, gather_blobs, word_view
from fluss_df.record.rows.row_formats import encoder_of
from fluss_df.types import Column, arrow_schema

_ID_SIZE = 2
# lists that may take more in Arrow are counted before they are decoded
_COUNTED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Places:
    """Where values begin and end in a pool; both are -1 where there is none."""

    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Int64s | Bools) -> Places:
        return Places(self.starts[rows], self.ends[rows])

    @property
    def present(self) -> Bools:
        """Which rows have a value."""
        present: Bools = self.starts >= 0
        return present

    def copy(self) -> Places:
        """Return places that may be changed."""
        return Places(self.starts.copy(), self.ends.copy())

    def put(self, rows: Int64s | Bools, others: Places) -> None:
        """Replace some of the places."""
        self.starts[rows] = others.starts
        self.ends[rows] = others.ends

    @classmethod
    def none(cls, count: int) -> Places:
        """Return places of no values."""
        return cls(np.full(count, -1, np.int64), np.full(count, -1, np.int64))


class TableCodec:
    """How the rows of a table are encoded and decoded, as long as its newest schema stays."""

    def __init__(self, table: Table) -> None:
        version = table.version
        self.schema_id = version.schema_id
        self.schema = version.schemas[self.schema_id]
        self.kv_format = version.descriptor.properties.get("table.kv.format", "compacted")
        self.columns = self.schema.columns
        # what encodes the rows of a changelog that is not Arrow
        self.log_encoder = None if table.arrow else encoder_of(table.log_format)(self.columns)
        self.arrow_schema = arrow_schema(self.columns)
        self._widths = {field.name: _width(field.type) for field in self.arrow_schema}
        #: what a row takes in Arrow, whatever is in it
        self.row_width = sum(self._widths.values())
        self._columns = {key: schema.columns for key, schema in version.schemas.items()}
        self.wide_lists = WideLists(self._columns, self.schema_id, self.kv_format)
        # what is read is nullable: a partial update of an old row has no value for a column
        self._encoder = encoder_of(self.kv_format)(self.columns)
        self._decoders: dict[tuple[str, ...], ValueDecoder] = {}

    def decoder(self, names: tuple[str, ...] | None = None) -> ValueDecoder:
        """Return the decoder of some columns of the newest schema, or of all."""
        names = tuple(column.name for column in self.columns) if names is None else names
        found = self._decoders.get(names)
        if found is None:
            target = pa.schema([self.arrow_schema.field(name) for name in names])
            found = ValueDecoder(self._columns, target, self.kv_format)
            self._decoders[names] = found
        return found

    def least_bytes(self, rows: int, names: tuple[str, ...] | None = None) -> int:
        """Return what rows of some columns, or of all, take in Arrow, whatever is in them."""
        width = self.row_width if names is None else sum(self._widths[name] for name in names)
        return rows * width

    @property
    def widest(self) -> Column:
        """The column of which a value takes the most bytes in Arrow, also where it is null."""
        lists = self.wide_lists.widths
        return max(self.columns, key=lambda c: max(self._widths[c.name], lists[c.name]))

    def encode(self, rows: pa.Table) -> EncodedRows:
        """Return rows of the newest schema as values."""
        return encode_values(self.schema_id, self._encoder.encode(rows))

    def has(self, schema_id: int) -> bool:
        """Whether the table has, or had, a schema."""
        return schema_id in self._columns


def _width(kind: pa.DataType) -> int:
    """Return the bytes that a value takes in Arrow at least: also a null is as wide as others."""
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:
        # where a text or a list begins
        return 4


class ValuePool:
    """A buffer of values that grows.

    Parameters
    ----------
    codec
        The codec of the values.
    require_room
        Is called with what rows take in Arrow at least, before they are decoded; may raise.
    """

    def __init__(self, codec: TableCodec, require_room: Callable[[int], None]) -> None:
        self.codec = codec
        self._require_room = require_room
        self._data: UInt8s = np.zeros(0, np.uint8)
        self._size = 0

    def _reserve(self, size: int) -> int:
        """Make room for more bytes; return where they begin."""
        start = self._size
        self._size += size
        if self._size + SLACK > len(self._data):
            grown = np.zeros(max(self._size + SLACK, 2 * len(self._data)), np.uint8)
            grown[:start] = self._data[:start]
            self._data = grown
        return start

    def add_batch(self, data: memoryview, records: KvRecords) -> Places:
        """Take in the rows of a kv batch; deletes have no place.

        The id of the schema is written before each row, over the end of its key or of the length
        of the key: two bytes that every record has, and that nobody reads any more.
        """
        start = self._reserve(len(data))
        self._data[start : start + len(data)] = np.frombuffer(data, np.uint8)
        kept = records.row_starts >= 0
        starts = np.where(kept, records.row_starts - _ID_SIZE + start, -1)
        ends = np.where(kept, records.row_ends + start, -1)
        word_view(self._data, _ID_SIZE)[starts[kept]] = np.uint16(records.schema_id)
        return Places(starts, ends)

    def add(self, values: Sequence[bytes | None]) -> Places:
        """Take in values; None has no place."""
        lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
        present = lengths >= 0
        start = self._size
        there = [value for value in values if value is not None]
        if there:
            # joined in one copy: old values are by far the most bytes of many batches
            held = self._data[:start].data
            self._data = np.frombuffer(bytearray().join((held, *there, bytes(SLACK))), np.uint8)
            self._size = len(self._data) - SLACK
        ends = np.cumsum(np.maximum(lengths, 0)) + start
        return Places(np.where(present, ends - lengths, -1), np.where(present, ends, -1))

    def add_rows(self, rows: pa.Table) -> Places:
        """Take in rows of the newest schema."""
        values = self.codec.encode(rows)
        start = self._reserve(len(values.data))
        self._data[start : start + len(values.data)] = values.data
        return Places(values.offsets[:-1] + start, values.offsets[1:] + start)

    def rows(self, places: Places, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return values as rows of the newest schema, or some of its columns.

        Raises FlussError as ``require_room``.
        """
        least = self.codec.least_bytes(len(places), columns)
        self._require_room(least)
        lengths = places.ends - places.starts
        size = int(lengths.sum())
        if size * 2 < self._size:
            found = gather_blobs(self._data, places.starts, lengths)
            data, starts, ends = found.data, found.offsets[:-1], found.offsets[1:]
        else:
            data, starts, ends = self._data[: self._size], places.starts, places.ends
        values = data.data, starts, ends
        if columns is None and self.codec.wide_lists.most_bytes(size) > _COUNTED_BYTES:
            self._require_room(least + self.codec.wide_lists.bytes_of(values))
        return self.codec.decoder(columns).decode_values(values)

    def values(self, places: Places) -> list[bytes | None]:
        """Return values as bytes; None for those that are not there."""
        present = places.present
        if not present.any():
            return [None] * len(places)
        # often a small part of the buffer: the new values, and not the old ones
        first = int(places.starts[present].min())
        data = self._data[first : int(places.ends.max())].tobytes()
        return [
            data[start:end] if start >= 0 else None
            for start, end in zip(
                (places.starts - first * present).tolist(),
                (places.ends - first).tolist(),
                strict=True,
            )
        ]
