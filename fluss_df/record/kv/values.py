"""Values of primary-key tables, as lookups and scans return them: a schema id (int16) and a row.

A batch of values is its length (int32, without itself), a magic of 0, the count (int32), and the
values, each with its length (int32) before it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError
from fluss_df.record.layout.bytes_columns import EncodedRows
from fluss_df.record.layout.chain import walk_chain
from fluss_df.record.layout.columns import with_columns
from fluss_df.record.layout.headers import Bytes, byte_view
from fluss_df.record.layout.unaligned import Blobs, Int64s, UInt8s, Words, assemble, padded
from fluss_df.record.rows.row_formats import decoder_of
from fluss_df.types import Column

_BATCH: Final = struct.Struct("<iBi")
_LENGTH_SIZE: Final = 4
_ID_SIZE: Final = 2


class ValueDecoder:
    """Decodes values to Arrow, whichever schemas of the table they were written with.

    Immutable and thread safe. ``schemas`` has the columns of each schema id that may come. The
    result has the columns of ``target``. A column that was added after a value was written is null.

    Raises FlussError for an unknown format, or a column that has another type in a schema than in
    ``target``.
    """

    def __init__(
        self,
        schemas: Mapping[int, Sequence[Column]],
        target: pa.Schema,
        kv_format: str = "compacted",
    ) -> None:
        self.target = target
        make = decoder_of(kv_format)
        self._decoders = {}
        for schema_id, columns in schemas.items():
            names = {column.name for column in columns}
            decoder = make(columns, [name for name in target.names if name in names])
            for field in decoder.schema:
                if field.type != target.field(field.name).type:
                    raise FlussError(
                        f"column '{field.name}' is {field.type} in schema {schema_id}, not "
                        f"{target.field(field.name).type}"
                    )
            self._decoders[schema_id] = decoder

    def decode_values(self, values: Sequence[bytes] | tuple[Bytes, Int64s, Int64s]) -> pa.Table:
        """Decode values, one row each, in their order.

        Instead of a list, the values may be given as bytes, and where each value starts and ends
        (exclusive) there. A lookup answers with an empty value for a key that does not exist: leave
        these out.

        Raises ProtocolError for bytes that are no such values. Raises ``SCHEMA_NOT_EXIST`` for a
        schema id that the decoder was not given.
        """
        if isinstance(values, tuple) and len(values) == 3 and isinstance(values[1], np.ndarray):
            data, starts, ends = values
            raw = padded(data)
            bad = (starts < 0) | (ends > len(byte_view(data))) | (starts > ends)
            if bad.any():
                raise ProtocolError(f"value {np.flatnonzero(bad)[0]} is not within the bytes")
        else:
            parts: Sequence[bytes] = values
            ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
            starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
            raw = padded(b"".join(parts))
        return self._decode(raw, starts, ends)

    def decode_batch(self, data: Bytes) -> pa.Table:
        """Decode a batch of values that fills ``data``; no bytes at all are no rows.

        Raises ProtocolError, FlussError as :meth:`decode_values`.
        """
        view = byte_view(data)
        if not len(view):
            return self.target.empty_table()
        if len(view) < _BATCH.size:
            raise ProtocolError(f"a batch of values of {len(view)} bytes, less than its header")
        length, magic, count = _BATCH.unpack_from(view)
        if length + _LENGTH_SIZE != len(view) or magic:
            raise ProtocolError(
                f"a batch of values of {len(view)} bytes says {length + 4}, of magic {magic}"
            )
        found = walk_chain(view, _BATCH.size, count, least=_ID_SIZE, what="values")
        return self._decode(found.data, found.starts, found.ends)

    def _decode(self, raw: UInt8s, starts: Int64s, ends: Int64s) -> pa.Table:
        if not len(starts):
            return self.target.empty_table()
        rows = starts + _ID_SIZE
        short = rows > ends
        if short.any():
            raise ProtocolError(f"value {np.flatnonzero(short)[0]} is shorter than a schema id")
        low, high = raw.take(starts), raw.take(starts + 1)
        if (low == low[0]).all() and (high == high[0]).all():
            only = int.from_bytes((low[0], high[0]), "little", signed=True)
            return self._of_schema(only, raw, rows, ends)
        ids = (high.astype(np.uint16) << 8 | low).view(np.int16)
        tables, orders = [], []
        for schema_id in np.unique(ids).tolist():
            of_id = np.flatnonzero(ids == schema_id)
            tables.append(self._of_schema(schema_id, raw, rows[of_id], ends[of_id]))
            orders.append(of_id)
        place = np.empty(len(ids), np.int64)
        place[np.concatenate(orders)] = np.arange(len(ids))
        return pa.concat_tables(tables).take(pa.array(place))

    def _of_schema(self, schema_id: int, raw: UInt8s, starts: Int64s, ends: Int64s) -> pa.Table:
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            raise FlussError(
                f"a value has schema {schema_id}, which is not known here",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        table = decoder.decode_padded(raw, starts, ends)
        if decoder.schema.names == self.target.names:
            return table.cast(self.target) if table.schema != self.target else table
        made: pa.Table = with_columns(table, self.target)
        return made


def encode_values(schema_id: int, rows: EncodedRows) -> EncodedRows:
    """Return rows as values: each behind the schema id."""
    n = len(rows)
    head = Words(np.full(n, schema_id, np.uint64), _ID_SIZE)
    row = Blobs(padded(rows.data), rows.offsets[:-1], np.diff(rows.offsets))
    return assemble([head, row], n)


def encode_value_batch(values: list[bytes]) -> bytes:
    """Return values as one batch."""
    lengths = np.fromiter(map(len, values), np.dtype("<i4"), len(values))
    # Bytes objects are joined in a third of the time that NumPy takes to write them word by word.
    parts: list[bytes] = [b""] * (2 * len(values))
    parts[::2] = lengths.view(f"V{_LENGTH_SIZE}").tolist()
    parts[1::2] = values
    size = _BATCH.size + int(lengths.sum(dtype=np.int64)) + _LENGTH_SIZE * len(values)
    return b"".join([_BATCH.pack(size - _LENGTH_SIZE, 0, len(values)), *parts])
