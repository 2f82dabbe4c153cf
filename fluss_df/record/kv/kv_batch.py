"""Batches of a primary-key table: upserts and deletes, as they are put.

A batch is a header of 28 bytes and its records; a record is its length (int32), the length of its
key (LEB128), the key, and the row, or nothing for a delete.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from fluss_df.errors import ErrorCode, FlussError, ProtocolError, SchemaMismatchError
from fluss_df.record.keys.keys import encode_keys, no_nested
from fluss_df.record.layout.bytes_columns import EncodedRows, as_array, refuse_nulls
from fluss_df.record.layout.chain import walk_chain
from fluss_df.record.layout.columns import with_columns
from fluss_df.record.layout.headers import NO_SEQUENCE, NO_WRITER_ID, Bytes, byte_view
from fluss_df.record.layout.stamped import StampedBatch
from fluss_df.record.layout.unaligned import (
    Blobs,
    Bools,
    Int64s,
    Part,
    UInt8s,
    Words,
    assemble,
    join,
    padded,
    read_varints,
    total_lengths,
    varint_parts,
    word_view,
)
from fluss_df.record.rows import row_values as rv
from fluss_df.record.rows.compacted import KnownParts, RowEncoder, field_parts, masked, pieces
from fluss_df.record.rows.row_formats import encoder_of
from fluss_df.record.rows.single import framed, key_encoder, row_encoder
from fluss_df.types import Column, arrow_schema

KV_HEADER_SIZE: Final = 28
_HEADER: Final = struct.Struct("<iBIhBqii")
_LENGTH_SIZE: Final = 4
_CRC_AT: Final = 5
_CRC_START: Final = 9
_WRITER_AT: Final = 12
# a record has at least the length of its key and a byte of it
_LEAST_RECORD: Final = 2


class EncodedKvBatch(StampedBatch):
    """A kv batch in the form that is sent: 28 bytes of header and the records."""

    __slots__ = ()

    _crc_at = _CRC_AT
    _crc_start = _CRC_START
    _writer_at = _WRITER_AT

    def halves(self) -> tuple[EncodedKvBatch, EncodedKvBatch]:
        """Return the records as two batches in their order, without a copy; it has several."""
        schema_id = _HEADER.unpack_from(self._header)[3]
        rows = self.num_rows // 2
        found = walk_chain(self._body, 0, self.num_rows, least=_LEAST_RECORD, what="kv records")
        middle = int((found.starts + found.moved)[rows]) - _LENGTH_SIZE
        return (
            _kv_batch(schema_id, self._body.slice(0, middle), rows),
            _kv_batch(schema_id, self._body.slice(middle), self.num_rows - rows),
        )


class KvEncoder:
    """Encodes rows of Arrow as kv batches. Immutable and thread safe.

    Raises FlussError for an unknown format or column, or target columns that lack a key column.

    Parameters
    ----------
    key_columns
        The columns of the physical primary key: those of the primary key, in its order, without
        partition columns.
    kv_format
        The table's ``table.kv.format``.
    target_columns
        The columns that a partial update writes, key columns included; None for all. The others
        are encoded as nulls, which the server does not look at.
    lake_format
        Which encoding keys have: see :func:`primary_key_format`.
    """

    def __init__(
        self,
        schema_id: int,
        columns: Sequence[Column],
        key_columns: Sequence[str],
        *,
        kv_format: str = "compacted",
        target_columns: Sequence[str] | None = None,
        lake_format: str | None = None,
    ) -> None:
        if not 0 <= schema_id < 2**15:
            raise FlussError(f"schema id {schema_id} does not fit a kv batch")
        by_name = {column.name: column for column in columns}
        for name in (*key_columns, *(target_columns or ())):
            if name not in by_name:
                raise FlussError(f"no column '{name}' among {', '.join(by_name)}")
        if not key_columns:
            raise FlussError("a key needs at least one column")
        self._schema_id = schema_id
        self._lake = (lake_format or "").lower()
        # the parts of keys in Fluss's own encoding are written straight into the records
        self._plain = self._lake in ("", "lance")
        self._keys = [by_name[name] for name in key_columns]
        self._given = tuple(columns)
        row_columns = list(columns)
        if target_columns is not None:
            for column in self._keys:
                if column.name not in target_columns:
                    raise FlussError(f"the target columns lack '{column.name}' of the key")
            given = frozenset(target_columns)
            self._given = tuple(c for c in columns if c.name in given)
            row_columns = [
                c if c.name in given else Column(c.name, c.type.with_nullable(True))
                for c in columns
            ]
        self._rows: RowEncoder = encoder_of(kv_format)(row_columns)
        self._key_of_one = key_encoder(self._keys, lake_format)
        self._row_of_one = row_encoder(row_columns, kv_format)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that tables to encode have, in order."""
        return self._given

    def keys(self, table: pa.Table) -> EncodedRows:
        """Return the key of each row: for buckets (where it is the bucket key) and lookups.

        ``table`` needs the key columns only.

        Raises SchemaMismatchError for a null in a key column, another type, or a value that keys
        cannot hold.
        """
        chosen = self._key_columns(table)
        if self._plain:
            batches = pieces(chosen)
            return join([assemble(_all(self._key_parts(b)), b.num_rows) for b in batches])
        arrays = [as_array(column) for column in chosen.columns]
        for array, column in zip(arrays, self._keys, strict=True):
            rv.extract(array, column.type, column.name, no_nested)
        return encode_keys(
            arrays, [c.type for c in self._keys], self._lake, names=[c.name for c in self._keys]
        )

    def _key_columns(self, table: pa.Table) -> pa.Table:
        there = frozenset(table.schema.names)
        for column in self._keys:
            if column.name not in there:
                raise SchemaMismatchError(f"rows lack the key column '{column.name}'")
        chosen = table.select([column.name for column in self._keys])
        for column in self._keys:
            refuse_nulls(chosen.column(column.name), column.name, "key")
        return chosen

    def _key_parts(self, batch: pa.RecordBatch) -> KnownParts:
        parts: dict[str, list[Part]] = {}
        for column in self._keys:
            values = rv.extract(batch.column(column.name), column.type, column.name, no_nested)
            parts[column.name] = field_parts(values, column.type)
        return parts

    def encode(self, table: pa.Table, deletes: bool | Bools | None = None) -> EncodedKvBatch:
        """Encode rows as one batch, without writer and sequence.

        The rows have :attr:`columns`; where all are deletes, the key columns are enough.
        ``deletes`` says which rows are deletes: all (True), none, or one flag for each.

        Raises SchemaMismatchError for rows that do not fit the table. Raises FlussError for no
        rows, or more than a batch can hold (2 GiB).
        """
        n = table.num_rows
        if not n:
            raise FlussError("a kv batch needs at least one row")
        kept: Bools | None = None
        if isinstance(deletes, np.ndarray):
            if len(deletes) != n:
                raise FlussError(f"{len(deletes)} flags of deletes for {n} rows")
            kept = ~deletes.astype(np.bool_)
            kept = None if kept.all() else kept
        elif deletes:
            kept = np.zeros(n, np.bool_)
        keys = self._key_columns(table)
        rows = None if kept is not None and not kept.any() else self._with_all_columns(table)
        encoded: Blobs | None = None
        if not self._plain:
            found = self.keys(table)
            encoded = Blobs(padded(found.data), found.offsets[:-1], np.diff(found.offsets))
        made = []
        first = 0
        for batch in pieces(keys if rows is None else rows):
            last = first + batch.num_rows
            known: KnownParts = {}
            key: Sequence[Part]
            if encoded is None:
                known = self._key_parts(batch)
                key = _all(known)
            else:
                key = [encoded[first:last]]
            parts = [] if rows is None else self._rows.parts(batch, first, known)
            if kept is not None:
                parts = [masked(part, kept[first:last]) for part in parts]
            made.append(_records(key, parts, batch.num_rows))
            first = last
        body = made[0] if len(made) == 1 else np.concatenate(made)
        return _kv_batch(self._schema_id, body, n)

    def encode_values(
        self, values: Mapping[str, Any], *, deleted: bool = False
    ) -> EncodedKvBatch | None:
        """Encode one row, or the deletion of one; None where its values are not plain.

        ``values`` are by column: those of :attr:`columns`, or those of the key alone where the row
        is deleted.
        """
        if self._key_of_one is None or self._row_of_one is None:
            return None
        key = self._key_of_one([values[c.name] for c in self._keys])
        row: bytes | None = b""
        if not deleted:
            row = self._row_of_one([values.get(c.name) for c in self._rows.columns])
        if key is None or row is None:
            return None
        return _kv_batch(self._schema_id, framed(key, row), 1)

    def _with_all_columns(self, table: pa.Table) -> pa.Table:
        wanted = [column.name for column in self._given]
        if table.schema.names != wanted:
            raise SchemaMismatchError(
                f"rows have the columns {', '.join(table.schema.names)}, not {', '.join(wanted)}"
            )
        if len(wanted) == len(self._rows.columns):
            return table
        made: pa.Table = with_columns(table, arrow_schema(self._rows.columns))
        return made


def _kv_batch(schema_id: int, body: Bytes | UInt8s, n: int) -> EncodedKvBatch:
    """Return records behind a header, without writer and sequence."""
    length = KV_HEADER_SIZE + len(body) - _LENGTH_SIZE
    if length >= 2**31:
        raise FlussError(
            f"a batch of {len(body)} bytes is larger than a kv batch can be: send fewer rows",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    header = bytearray(KV_HEADER_SIZE)
    _HEADER.pack_into(header, 0, length, 0, 0, schema_id, 0, NO_WRITER_ID, NO_SEQUENCE, n)
    return EncodedKvBatch(header, pa.py_buffer(body), n)


def _all(parts: KnownParts) -> list[Part]:
    return [part for of_column in parts.values() for part in of_column]


def _records(key: Sequence[Part], row: Sequence[Part], n: int) -> UInt8s:
    """Return records behind each other, of the parts of their keys and rows."""
    lengths = total_lengths(key, n)
    head = Words(np.zeros(n, np.uint64), _LENGTH_SIZE)
    made = assemble([head, *varint_parts(lengths.view(np.uint64)), *key, *row], n)
    word_view(made.data, 4)[made.offsets[:-1]] = np.diff(made.offsets) - _LENGTH_SIZE
    return made.data


def primary_key_format(
    lake_format: str | None, *, kv_format_version: int = 1, default_bucket_key: bool = True
) -> str | None:
    """Return which encoding the primary keys of a table have, as ``lake_format`` of KvEncoder.

    Buckets are always hashed from keys in the encoding of the table's lake. Primary keys have that
    encoding too, except in tables of version 2 (``table.kv.format-version``) whose bucket key is a
    part of the primary key: there they have Fluss's own, which a prefix lookup relies on.

    Raises FlussError for a version that is not known.
    """
    if kv_format_version not in (1, 2):
        raise FlussError(f"table.kv.format-version {kv_format_version} is not supported")
    return lake_format if kv_format_version == 1 or default_bucket_key else None


@dataclass(frozen=True, slots=True)
class KvRecords:
    """The records of a kv batch, as places in its bytes; row i is deleted where both are -1.

    The starts and ends say where the key and the row of each record stand. Schema id, writer id and
    sequence are those of the header.
    """

    schema_id: int
    writer_id: int
    sequence: int
    key_starts: Int64s
    key_ends: Int64s
    row_starts: Int64s
    row_ends: Int64s

    def __len__(self) -> int:
        return len(self.key_starts)


def claimed_rows(data: Bytes) -> int:
    """Return how many rows a kv batch says that it has; no more than its bytes can hold."""
    view = byte_view(data)
    if len(view) < KV_HEADER_SIZE:
        return 0
    most = (len(view) - KV_HEADER_SIZE) // (_LENGTH_SIZE + _LEAST_RECORD)
    return max(0, min(int(_HEADER.unpack_from(view)[-1]), most))


def decode_kv_batch(data: Bytes) -> KvRecords:
    """Read a kv batch that fills ``data``; rows are left to a RowDecoder.

    Raises ProtocolError for lengths, counts or a magic that cannot be. Raises
    ``CORRUPT_RECORD_EXCEPTION`` where the checksum differs.
    """
    view = byte_view(data)
    if len(view) < KV_HEADER_SIZE:
        raise ProtocolError(f"a kv batch of {len(view)} bytes, less than its header")
    length, magic, crc, schema_id, _, writer_id, sequence, count = _HEADER.unpack_from(view)
    if length + _LENGTH_SIZE != len(view):
        raise ProtocolError(f"a kv batch says it has {length + 4} bytes, it has {len(view)}")
    if magic:
        raise ProtocolError(f"a kv batch of unknown magic {magic}")
    found = google_crc32c.value(np.frombuffer(view, np.uint8)[_CRC_START:])
    if found != crc:
        raise FlussError(
            f"a kv batch is corrupt: its checksum is {crc:#010x}, its bytes have {found:#010x}",
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
        )
    found = walk_chain(view, KV_HEADER_SIZE, count, least=_LEAST_RECORD, what="kv records")
    sizes, taken = read_varints(found.data, found.starts)
    key_starts = found.starts + taken
    bad = (taken > np.int64(5)) | (sizes == 0) | (sizes >= np.uint64(2**31))
    key_ends = key_starts + np.where(bad, np.uint64(0), sizes).view(np.int64)
    bad |= key_ends > found.ends
    if bad.any():
        raise ProtocolError(f"kv record {np.flatnonzero(bad)[0]} of {count} has no such key")
    deleted = key_ends == found.ends
    key_starts += found.moved
    key_ends += found.moved
    return KvRecords(
        schema_id,
        writer_id,
        sequence,
        key_starts,
        key_ends,
        np.where(deleted, -1, key_ends),
        np.where(deleted, -1, found.ends + found.moved),
    )
